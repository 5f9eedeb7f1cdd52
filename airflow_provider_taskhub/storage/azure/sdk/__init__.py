"""Sends requests through Microsoft's clients: azure-storage-queue, azure-data-tables, azure-storage-blob.

Only the less frequent requests are sent in this way: create, delete and list queues, tables and containers; peek and
count messages; append to blobs, delete blobs, and lease blobs. ``storage/azure/rest`` sends the frequent requests, and
says why.

``clients`` creates the three clients, which share the HTTP session, credential, deadline and retries of ``rest``.
``queues``, ``tables`` and ``blobs`` have the operations.
"""
