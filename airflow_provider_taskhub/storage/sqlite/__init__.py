"""The embedded store: one SQLite file, or a private database in memory.

``store`` is the public class. ``file`` opens and checks the file, and ``store_clock`` has the store's time.
``transactions`` runs functions on the database, called works. ``shared_file`` and ``writer_thread`` do this for a file,
``in_memory`` for a private database. ``process_wakeups`` wakes other processes. ``queues``, ``rows``, ``filters``,
``columns``, ``blobs`` and ``leases`` implement Azure's semantics with SQL.
"""
