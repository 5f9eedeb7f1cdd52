"""Microsoft's own clients (azure-storage-queue, azure-data-tables, azure-storage-blob), for all that is not hot.

Queues, tables and containers themselves; peeking, counting and listing; append blobs, deletions and leases. What every
step of an orchestration sends goes through ``storage/azure/rest``, which says why.

``clients`` the three clients over the session, credential, deadline and rule of repetition that ``rest`` has too ·
``queues``, ``tables``, ``blobs`` the operations.
"""
