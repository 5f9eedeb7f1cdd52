"""Requests through Microsoft's clients: azure-storage-queue, azure-data-tables, azure-storage-blob.

These requests are less frequent: create, delete and list queues, tables and containers; peek and count messages; append
to blobs, delete blobs, and lease blobs. ``storage/azure/rest`` sends the frequent requests, and says why.

``clients`` creates the three clients, which share the HTTP session, credential, deadline and retries of ``rest``.
``queues``, ``tables`` and ``blobs`` are the operations.
"""
