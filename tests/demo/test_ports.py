"""A free port stays free for the server that it is meant for."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys

import pytest

from airflow_provider_taskhub.demo.ports import HOST, free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server share the kept port")


def test_another_program_cannot_take_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
        other.bind((HOST, port))
    assert refused.value.errno == errno.EADDRINUSE


def test_whoever_asks_for_any_free_port_gets_another_one() -> None:
    port = free_port()
    assert len({port, *(free_port() for _ in range(200))}) == 201


async def test_a_server_can_listen_on_it_again_and_again() -> None:
    port = free_port()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for _ in range(2):
        server = await asyncio.start_server(serve, HOST, port)
        async with server:
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.read() == b""
            writer.close()
