"""Our own requests to Azure Storage, for the hot operations only: messages, rows, block blobs.

Everything else goes through Microsoft's clients (``storage/azure/sdk``). These do not, because an orchestration is some
fifteen of them and their cost bounds the hub's throughput. Measured: through the SDKs an
orchestration costs 10 to 17 ms of CPU, more than the emulator needs to store it: 0.5 to 1 ms a request and 0.3 ms a row
of a batch. And the table SDK reads times to the microsecond, where DurableTask's columns have 100 ns.

``account`` who and where · ``tokens`` Entra ID · ``wire`` one request and the session · ``attempts`` deadline and
repetition · ``answers`` every error, translated once · ``odata`` rows and filters · ``batch`` entity-group transactions
· ``messages``, ``rows``, ``blobs`` the operations. ``storage/azure/sdk`` stands on the first five as well.
"""
