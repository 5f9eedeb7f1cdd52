"""Sends the frequent requests to Azure Storage without Microsoft's clients: for messages, rows and block blobs.

All other requests use Microsoft's clients (``storage/azure/sdk``). An orchestration needs about fifteen of the frequent
requests, so their cost limits the throughput of a hub. With Microsoft's clients an orchestration was measured at 10 to
17 ms of CPU time: 0.5 to 1 ms for a request, and 0.3 ms for each row of a batch. That is more than the emulator needs
to store the orchestration. Also, Microsoft's table client reads times in microseconds, but DurableTask's columns have
units of 100 ns.

``account`` reads the address and the credential, ``tokens`` fetches tokens of Entra ID, ``request`` sends one request,
``resend`` has the rules for deadlines and retries, ``service_errors`` translates errors, and ``refusals`` logs refused
credentials. ``odata`` encodes rows and filters, ``batch`` encodes entity-group transactions. ``messages``, ``rows`` and
``blobs`` have the operations. ``storage/azure/sdk`` uses the first six modules too.
"""
