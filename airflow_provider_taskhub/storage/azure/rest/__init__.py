"""HTTP requests to Azure Storage without Microsoft's clients, for frequent operations: messages, rows, block blobs.

All other operations use Microsoft's clients (``storage/azure/sdk``). An orchestration needs about fifteen of the
frequent requests, so their cost limits the throughput of a hub. With Microsoft's clients an orchestration was measured
at 10 to 17 ms of CPU time: 0.5 to 1 ms for a request, and 0.3 ms for each row of a batch. The emulator needs less time
to store the orchestration. Also, Microsoft's table client reads times in microseconds, but DurableTask's columns have
units of 100 ns.

``account`` has the address and the credential, ``tokens`` the tokens of Entra ID, ``request`` one request and the HTTP
session, ``resend`` deadlines and retries, ``service_errors`` the translation of errors, ``refusals`` the log of refused
credentials. ``odata`` encodes rows and filters, ``batch`` entity-group transactions. ``messages``, ``rows`` and
``blobs`` are the operations. ``storage/azure/sdk`` uses the first six modules too.
"""
