"""A Python process that runs the blocks of one page, as an interactive session does: they share their variables.

It reads one JSON object a line, and answers each with one.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any


def main() -> None:
    sys.path[0] = os.getcwd()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a child process prints must not get between the answers
    module = types.ModuleType("page")
    sys.modules["page"] = module
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            printed = io.StringIO()
            error = ""
            with contextlib.redirect_stdout(printed):
                try:
                    _execute(runner, module.__dict__, json.loads(line))
                except BaseException:
                    error = traceback.format_exc()
            answers.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\n")
            answers.flush()


def _execute(runner: asyncio.Runner, names: dict[str, Any], request: dict[str, Any]) -> None:
    name = f"{request['name']}:{request['line']}"
    text = request["text"]
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    code = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    found = eval(code, names)
    if inspect.iscoroutine(found):
        runner.run(asyncio.wait_for(found, request["seconds"]))


if __name__ == "__main__":
    main()
