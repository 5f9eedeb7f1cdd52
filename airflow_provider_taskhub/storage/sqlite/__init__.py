"""The embedded store's inside: one SQLite file, or a private database in memory.

``file`` opens and refuses files, ``moments`` owns the store's time, ``journal`` runs works in transactions, ``shared``
and ``inline`` say who runs them (the process's writer thread, or the caller), ``wake`` tells other processes.
``queues``, ``rows``, ``filters``, ``columns``, ``blobs`` and ``leases`` are Azure's semantics over SQL.
"""
