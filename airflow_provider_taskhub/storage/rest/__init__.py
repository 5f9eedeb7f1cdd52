"""Azure Storage's REST interface, as far as the primitives need it.

Requests go through aiohttp directly, not through the azure-storage SDKs. Measured (spec/azurite.md §2, §3): an
orchestration costs the SDKs 10 to 17 ms of CPU, more than the emulator needs to store it; 0.5 to 1 ms a request and
0.3 ms a row of a batch. The table SDK reads times to the microsecond, where DurableTask's columns have 100 ns, and all
of them run on a transport that repeats a PUT or DELETE whose answer was lost, which turns a conditional write that was
done into a false Conflict. Tokens are still Microsoft's own: azure-identity.

``account`` who and where · ``tokens`` Entra ID · ``wire`` one request, its deadline and its credentials · ``answers``
every error, translated once · ``odata`` rows and filters · ``batch`` entity-group transactions · ``queues``,
``tables``, ``blobs`` the operations.
"""
