"""``make refuse``: workers on a real Azurite lose their key under load and get it back; then everything is counted.

Between the workers and Azurite stands a proxy. While it refuses, it changes the signature of each request, so that
Azurite itself answers 403, as it does for a key that is not valid any more. Clients go around the proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from airflow_provider_taskhub.demo.azurite import Azurite, install
from tests.azurite import FOLDER
from tests.e2e.house import House, Worker, housed
from tests.e2e.storm import AFTERWARDS, APP, Damage, check, check_all, jobs
from tests.waiting import PATIENCE, until_async

_SIGNED = re.compile(rb"(?i)(authorization: SharedKey(?:Lite)? [\w-]+:)(.)")
_PIECE = 256 * 1024


class Proxy:
    """Passes everything on to the services of an account, on a thread of its own.

    :ivar refusing: whether requests are to be refused from now on.
    :ivar connection: the connection string that leads through the proxy.
    """

    def __init__(self, connection: str) -> None:
        self.refusing = False
        self.connection = connection
        self._ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._given = connection

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._ready.set()
        self._loop.run_forever()

    async def _open(self) -> None:
        for address in re.findall(r"Endpoint=(http[^;]+)", self._given):
            port = urlsplit(address).port

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int | None = port
            ) -> None:
                try:
                    there, back = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    writer.close()
                    return
                await asyncio.gather(self._pass(reader, back, signed=True), self._pass(there, writer, signed=False))

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            mine = server.sockets[0].getsockname()[1]
            self.connection = self.connection.replace(f":{port}/", f":{mine}/")

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, signed: bool) -> None:
        try:
            while piece := await source.read(_PIECE):
                if signed and self.refusing:
                    piece = _SIGNED.sub(lambda found: found[1] + (b"B" if found[2] == b"A" else b"A"), piece)
                sink.write(piece)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


async def refuse(
    house: House, proxy: Proxy, *, seconds: float, count: int, workers: int = 2, calm: float = 3.0
) -> tuple[Damage, float, list[Worker]]:
    """Work, lose the key for ``seconds``, get it back.

    :param calm: seconds of work before and after. :returns: the damage, seconds until all had ended, the workers.
    """
    fleet = [
        house.worker(f"w{number}", app=APP, TASKHUB_CONNECTION=proxy.connection, PYTHONUNBUFFERED="1")
        for number in range(workers)
    ]
    work, damage = jobs(count), Damage()
    async with house.client() as client:
        for worker in fleet:
            await asyncio.to_thread(worker.ready)
        pause = (seconds + 2 * calm) / count
        first, last = round(calm / pause), round((calm + seconds) / pause)
        for at, job in enumerate(work):
            proxy.refusing = first <= at < last
            await client.start(job.orchestrator, job.input, instance_id=job.instance_id)
            for number in range(job.input if job.orchestrator == "gathers" else 0):
                await client.raise_event(job.instance_id, "go", number)
            if proxy.refusing:
                await _each_says(fleet, "store_refused")
            await asyncio.sleep(pause)
        proxy.refusing = False
        await _each_says(fleet, "store_accepts_again")
        over = time.monotonic()
        for job in work:
            await check(client, job, damage, left=AFTERWARDS.total_seconds() - (time.monotonic() - over))
        passed = time.monotonic() - over
        await check_all(client, house, damage)
    return damage, passed, fleet


async def _each_says(fleet: Sequence[Worker], event: str) -> None:
    await until_async(f"each worker says {event}", lambda: all(event in worker.text() for worker in fleet))


def told_of(worker: Worker) -> list[str]:
    """What a worker should not have said or not have left out."""
    text, wrong = worker.text(), []
    wrong += [
        f"{worker.name} said {event}" for event in ("loop_failed", "task_failed", "worker_failed") if event in text
    ]
    wrong += [
        f"{worker.name} did not say {event}" for event in ("store_refused", "store_accepts_again") if event not in text
    ]
    if worker.process.poll() is not None:
        wrong.append(f"{worker.name} ended with status {worker.process.returncode}")
    elif (status := worker.end()) != 0:
        wrong.append(f"{worker.name} stopped with status {status}")
    return wrong


@contextmanager
def place() -> Iterator[tuple[House, Proxy]]:
    """A hub of its own on an Azurite of its own, behind a proxy."""
    install(FOLDER)
    with (
        tempfile.TemporaryDirectory(prefix="refuse-") as folder,
        Azurite(FOLDER) as azurite,
        Proxy(azurite.connection) as proxy,
        housed(Path(folder), azurite.connection, f"Refuse{uuid4().hex[:8]}") as house,
    ):
        yield house, proxy


async def _main(options: argparse.Namespace) -> int:
    with place() as (house, proxy):
        damage, passed, fleet = await refuse(
            house, proxy, seconds=options.seconds, count=options.instances, workers=options.workers, calm=10.0
        )
        lines = [len(re.findall("store_refused", worker.text())) for worker in fleet]
        wrong = [text for worker in fleet for text in await asyncio.to_thread(told_of, worker)]
    counts = f"lost {len(damage.lost)}, doubled results {len(damage.doubled)}, corrupt histories {len(damage.corrupt)}"
    print(
        f"azurite: {options.instances} orchestrations, {options.workers} workers refused for {options.seconds:g} s, "
        f"all ended {passed:.0f} s after the last start: {counts}; lines about it per worker {lines}",
        flush=True,
    )
    for line in [*damage.told, *wrong]:
        print(line, file=sys.stderr)
    return 1 if damage.told or wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.refuse", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="for which everything is refused")
    parser.add_argument("--instances", type=int, default=140)
    parser.add_argument("--workers", type=int, default=2)
    return asyncio.run(_main(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
