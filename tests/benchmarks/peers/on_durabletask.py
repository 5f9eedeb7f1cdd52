"""The workloads on durabletask-python with its in-memory backend: ``on_durabletask.py WORKLOAD SIZE``.

Runs in an environment of its own, so it imports nothing of this repository; prints one JSON object of figures. The
backend, a gRPC server, the worker and the client are this one process; activities run in the worker's threads, and
nothing is durable. Its only durable backend is a cloud service.
"""

import json
import logging
import socket
import sys
import time
from statistics import median

from durabletask.client import OrchestrationStatus, TaskHubGrpcClient
from durabletask.task import when_all
from durabletask.testing import create_test_backend
from durabletask.worker import TaskHubGrpcWorker

WARM = 8
LIMIT = 600
ends: list[float] = []
"""When each step of a chain ended."""


def nothing(ctx, value):
    return value


def single(ctx, value):
    return (yield ctx.call_activity(nothing, input=value))


def fan(ctx, width):
    results = yield when_all([ctx.call_activity(nothing, input=index) for index in range(width)])
    return len(results)


def chain(ctx, length):
    for index in range(length):
        yield ctx.call_activity(nothing, input=index)
        if not ctx.is_replaying:
            ends.append(time.perf_counter())
    return length


def finish(client: TaskHubGrpcClient, instance: str) -> str | None:
    state = client.wait_for_orchestration_completion(instance, timeout=LIMIT)
    assert state is not None
    assert state.runtime_status is OrchestrationStatus.COMPLETED, state
    return state.serialized_output


def run(client: TaskHubGrpcClient, orchestrator, value: int) -> str | None:
    return finish(client, client.schedule_new_orchestration(orchestrator, input=value))


def measure(client: TaskHubGrpcClient, workload: str, size: int) -> dict[str, float]:
    for value in range(WARM):
        run(client, single, value)
    begun = time.perf_counter()
    if workload == "a0":
        times = []
        for value in range(size):
            begun = time.perf_counter()
            run(client, single, value)
            times.append(time.perf_counter() - begun)
        return {"p50": median(times) * 1000}
    if workload == "a":
        for instance in [client.schedule_new_orchestration(single, input=value) for value in range(size)]:
            finish(client, instance)
        return {"finished": size / (time.perf_counter() - begun)}
    if workload == "b":
        assert run(client, fan, size) == str(size)
        return {"whole": time.perf_counter() - begun}
    assert run(client, chain, size) == str(size)
    whole = time.perf_counter() - begun
    steps = [after - before for before, after in zip([begun, *ends], ends, strict=False)]
    part = max(1, size // 10)
    return {
        "step": whole / size * 1000,
        "first": median(steps[:part]) * 1000,
        "last": median(steps[-part:]) * 1000,
    }


def main(workload: str, size: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    backend = create_test_backend(port=port)
    address = f"localhost:{port}"
    worker = TaskHubGrpcWorker(host_address=address)
    for orchestrator in (single, fan, chain):
        worker.add_orchestrator(orchestrator)
    worker.add_activity(nothing)
    worker.start()
    try:
        found = measure(TaskHubGrpcClient(host_address=address), workload, size)
    finally:
        worker.stop()
        backend.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main(sys.argv[1], int(sys.argv[2]))
