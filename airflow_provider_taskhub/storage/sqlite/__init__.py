"""The embedded store: one SQLite file, or a private database in memory.

``store`` has the public class. ``file`` opens and checks the file, and ``store_clock`` computes the store's time.
``transactions`` runs *works*, which are functions that change the database. ``shared_file`` and ``writer_thread`` run
the works of a file, ``in_memory`` those of a private database. ``process_wakeups`` wakes other processes. ``queues``,
``rows``, ``filters``, ``columns``, ``blobs`` and ``leases`` implement Azure's semantics with SQL.
"""
