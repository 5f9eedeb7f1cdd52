"""Code blocks of a documentation page, and a runner for them. docs/contributing/documentation.md has the convention."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import yaml
from markdown_it import MarkdownIt

from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
_SOURCES = (path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "_generated"} & set(path.parts))
PAGES = [ROOT / "README.md", *sorted(_SOURCES)]
PAUSE = 0.5
"""Seconds between two tries of a command that has time (``within``)."""
LANGUAGES = frozenset({"python", "bash", "console", "text", "json", "toml", "yaml", "md", "xml", "ini", ""})
"""A misspelt language would be a block that nobody runs. Other names need braces: they are directives of MyST."""
WORDS = frozenset({"file", "no-run", "status", "background", "until", "output", "within"})
KERNEL = Path(__file__).with_name("kernel.py")

_VOLATILE = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|seconds?)\b"), "<duration>"),
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block. :param line: of its first line of text in the page. :param words: after the language."""

    page: Path
    line: int
    language: str
    text: str
    words: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line} ({self.language})"

    @property
    def runs(self) -> bool:
        return "no-run" not in self.words


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """All code blocks of a page, in order; directives of MyST are left out.

    :raises ValueError: for a fence that breaks the convention.
    """
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8") if text is None else text)
    found = []
    for token in tokens:
        if token.type != "fence" or token.info.strip().startswith("{"):
            continue
        language, _, rest = token.info.strip().partition(" ")
        words = dict(_word(one) for one in shlex.split(rest))
        line = (token.map or [0, 0])[0] + 2
        block = Block(page=page, line=line, language=language, text=token.content, words=words)
        _check(block)
        found.append(block)
    return found


def _word(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def _check(block: Block) -> None:
    if block.language not in LANGUAGES:
        raise ValueError(f"{block}: unknown language; the known ones are {', '.join(sorted(LANGUAGES))}")
    if unknown := set(block.words) - WORDS:
        raise ValueError(f"{block}: unknown {', '.join(sorted(unknown))}")
    if not block.runs and len(block.words["no-run"].split()) < 3:
        raise ValueError(f'{block}: no-run needs a reason of at least three words: no-run="needs an Azure account"')


def needs(page: Path) -> list[str]:
    """What the front matter of a page asks for."""
    text = page.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return []
    return list((yaml.safe_load(text.split("---\n", 2)[1]) or {}).get("needs", []))


class Runner:
    """Runs the blocks of one page, in order, in one folder. :param env: of every process."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, env
        self._stack = ExitStack()
        self._kernel: subprocess.Popen[str] | None = None
        self._printed = ""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, block: Block) -> None:
        """Do with a block what its fence says. :raises AssertionError: when it fails, or prints something else."""
        if not block.runs:
            return
        if name := block.words.get("file"):
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            return
        match block.language:
            case "python":
                self._printed = self._python(block)
            case "bash" | "console" if "background" in block.words:
                self._background(block)
            case "bash":
                self._printed = self._bash(block, block.text)
            case "console":
                for command, expected in commands(block.text):
                    self._console(block, command, expected)
            case "text" if "output" in block.words:
                compare(block, block.text, self._printed)
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "yaml":
                list(yaml.safe_load_all(block.text))

    def _python(self, block: Block) -> str:
        if self._kernel is None:
            self._kernel = self._stack.enter_context(self._start([sys.executable, str(KERNEL)], subprocess.PIPE))
            self._stack.callback(self._kernel.kill)
        assert self._kernel.stdin is not None
        assert self._kernel.stdout is not None
        name = str(block.page.relative_to(ROOT))
        request = {"text": block.text, "name": name, "line": block.line, "seconds": PATIENCE}
        self._kernel.stdin.write(json.dumps(request) + "\n")
        self._kernel.stdin.flush()
        answer = self._kernel.stdout.readline()
        assert answer, f"{block}: the Python process ended"
        result = json.loads(answer)
        assert not result["error"], f"{block}\n{result['printed']}{result['error']}"
        return str(result["printed"])

    def _bash(self, block: Block, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        wanted = int(block.words.get("status", "0"))
        told = f"{block}: $ {text}\nended with status {done.returncode} instead of {wanted}"
        assert done.returncode == wanted, f"{told}\n{done.stdout}{done.stderr}"
        return done.stdout if wanted == 0 else done.stdout + done.stderr

    def _console(self, block: Block, command: str, expected: str) -> None:
        left = float(block.words.get("within", 0))
        while True:
            try:
                self._printed = self._bash(block, command)
                return compare(block, expected, self._printed) if expected else None
            except AssertionError:
                if left <= 0:
                    raise
            left -= PAUSE
            threading.Event().wait(PAUSE)

    def _background(self, block: Block) -> None:
        text = block.text
        if block.language == "console":
            text = "\n".join(command for command, _ in commands(text))
        log = self._stack.enter_context(tempfile.NamedTemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115
        process = self._start(["bash", "-c", f"exec {text.strip()}"], subprocess.DEVNULL, log)
        self._stack.callback(_stop, process)
        wanted = block.words.get("until")
        if wanted is None:
            return
        printed = Path(log.name)
        with suppress(AssertionError):
            until(
                f"{block}: {wanted!r} is printed",
                lambda: wanted in printed.read_text(encoding="utf-8") or process.poll() is not None,
            )
        text = printed.read_text(encoding="utf-8")
        why = "the time is over" if process.poll() is None else "it ended"
        assert wanted in text, f"{block}: {why} before it printed {wanted!r}:\n{text}"

    def _start(self, command: list[str], stdin: int, output: IO[str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._env,
            stdin=stdin,
            stdout=output or subprocess.PIPE,
            stderr=subprocess.STDOUT if output else None,
            text=True,
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and its children: `airflow standalone` leaves them running if only it is told to end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with the output that is expected of it.

    A line that ends with a backslash goes on in the next line.
    """
    command, expected = "", ""
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line[2:], ""
        elif command.endswith("\\"):
            command += f"\n{line}"
        elif not command:
            raise ValueError(f"a console block begins with '$ ', not with {line!r}")
        else:
            expected += f"{line}\n"
    if command:
        yield command, expected


def compare(block: Block, expected: str, printed: str) -> None:
    """Compare what a block printed with what the page shows. :raises AssertionError: with both texts."""
    pattern = ""
    for line in _lines(expected):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part.rstrip()) for part in line.split("...")) + r"[ ]*\n"
    shown = "".join(f"{line}\n" for line in _lines(printed))
    assert re.fullmatch(pattern, shown), f"{block}: the page shows\n{expected}\nand the command printed\n{printed}"


def _lines(text: str) -> list[str]:
    for volatile, instead in _VOLATILE:
        text = volatile.sub(instead, text)
    return [re.sub(r" {2,}", "  ", line.rstrip()) for line in text.strip("\n").splitlines()]
