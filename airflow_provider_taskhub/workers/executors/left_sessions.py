"""Ends the Spark Connect sessions that dead executors have left running on the server.

Killing an executor ends its local processes, but a Spark Connect server goes on with the operations of a client that
has died. So the worker asks the server by the session's name, and waits until the server has confirmed the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.spark_connect import ConnectServer
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.executors.spawn import import_path

_log = structlog.get_logger()

_MODULE = "airflow_provider_taskhub.workers.executors.child.end_sessions"
_DEADLINE = 45.0
"""Seconds after which the program that ends sessions is killed. A start of Python with Spark Connect takes 2 s on an
idle machine and 15 s on a busy one; each of its calls to the server has a deadline of 10 s."""
_REMEMBERED = 1000
"""Number of ended sessions that are remembered, so that they are not ended a second time."""


class LeftSessions:
    """Ends sessions on one Spark Connect server.

    :param master: the setting ``spark.master`` with the server's address. It may contain a token.
    :param environment: environment variables of the program that ends the sessions; None: those of this process.
    :param patience: seconds for which :meth:`end` repeats its tries while the server does not answer.
    """

    def __init__(self, master: str, environment: Mapping[str, str] | None, clock: Clock, *, patience: float) -> None:
        self._master, self._environment, self._clock = master, environment, clock
        self._server = ConnectServer.parse(master)
        self._retries = Retries(after=(ExecutorError,), first=1.0, longest=30.0, within=patience)
        self._ended: OrderedDict[str, None] = OrderedDict()

    def new(self) -> str:
        """Return the name of a new session."""
        return self._server.new_session()

    async def end(self, sessions: Sequence[str]) -> None:
        """End sessions, and return when the server has confirmed the end of each.

        While the server does not answer, the tries are repeated, and each is logged.

        :raises ExecutorError: if the server has not confirmed the end within the patience, or if a session is of
            another server.
        """
        for session in sessions:
            try:
                self._server.url(session)
            except ConfigurationError as error:
                raise ExecutorError(f"what an earlier attempt left running cannot be ended: {error}") from error
        await retry(lambda: self._try(sessions), self._retries, self._clock)

    async def end_own(self, session: str, *, once: bool) -> None:
        """End the session of an attempt of this worker. If the server does not confirm the end, the log says so.

        :param once: True: try once. This is for an attempt that is lost, because the next attempt tries again and does
            not run before the server has answered. False: repeat the tries as :meth:`end` does, because no attempt
            follows an attempt that was cancelled or has failed.
        """
        with suppress(ExecutorError):
            await (self._try((session,)) if once else self.end((session,)))

    async def _try(self, sessions: Sequence[str]) -> None:
        open_sessions = [session for session in sessions if session not in self._ended]
        if not open_sessions:
            return
        answers = await self._ask(open_sessions)
        for session in open_sessions:
            reason = answers.get(session, "the program gave no answer")
            if reason is not None:
                _log.warning("spark_session_not_ended", session=session, error=reason)
                raise ExecutorError(f"what an earlier attempt left running on Spark may still run: {reason}")
            self._ended[session] = None
            _log.info("spark_session_ended", session=session)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    async def _ask(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        environment = os.environ if self._environment is None else self._environment
        order = json.dumps({"master": self._master, "sessions": list(sessions)}).encode()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, "PYTHONPATH": os.pathsep.join(import_path())},
        )
        try:
            async with asyncio.timeout(_DEADLINE):
                output, errors = await process.communicate(order)
        except TimeoutError:
            return dict.fromkeys(sessions, f"{self._server.address} did not answer within {_DEADLINE:g} s")
        finally:
            if process.returncode is None:
                process.kill()
        try:
            answers = json.loads(output)
        except ValueError:
            last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
            return dict.fromkeys(sessions, f"the program that ends sessions failed: {''.join(last)[:500]}")
        return answers if isinstance(answers, dict) else {}
