"""``make sample SEED=1 N=40``: docstrings and comments of the package, picked at random, each with its line of code.

A reader who does not know the project says in his own words what each text means. A text that he gets wrong is
rewritten. Docstrings of modules, classes, functions and constants count, and comments: lines of comment that follow
each other count as one text.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "airflow_provider_taskhub"
FOR_TOOLS = ("# type:", "# noqa", "#!")
"""How comments begin that only tools read."""


class Text(NamedTuple):
    """A text that people read.

    :param place: the file and the line. :param code: the line of code that the text describes; empty for a module.
    :param text: the docstring or the comment.
    """

    place: str
    code: str
    text: str


def texts(source: str, path: str) -> Iterator[Text]:
    """Yield all docstrings, then all comments of a module."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield Text(f"{path}:{line}", "" if isinstance(node, ast.Module) else _head(node), text)
        for before, after in zip(node.body, node.body[1:], strict=False):
            match before, after:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                    yield Text(f"{path}:{after.lineno}", ast.unparse(before)[:200], text)
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(FOR_TOOLS):
            continue
        row, column = token.start
        code = lines[row - 1][:column].strip()
        if block and (code or row != last + 1):
            yield _comment(path, lines, last, block)
            block = []
        text = token.string.removeprefix("#").strip()
        if code:
            yield Text(f"{path}:{row}", code, text)
        else:
            block.append(text)
            last = row
    if block:
        yield _comment(path, lines, last, block)


def _head(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a definition without decorators and body."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}"


def _comment(path: str, lines: list[str], last: int, block: list[str]) -> Text:
    """Return the text of comment lines, with the code after them."""
    return Text(f"{path}:{last}", lines[last].strip() if last < len(lines) else "", " ".join(block))


@cache
def _package() -> tuple[Text, ...]:
    return tuple(
        text
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in texts(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    )


def sample(seed: int, count: int) -> list[Text]:
    """Pick texts of the package; the same seed picks the same texts."""
    return random.Random(seed).sample(_package(), count)


def main() -> None:
    """Print the sample, numbered."""
    parser = argparse.ArgumentParser(prog="python -m tests.sample", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    for number, each in enumerate(sample(options.seed, options.count), 1):
        print(f"--- {number}. {each.place}\n    {each.code or '(module)'}\n\n{each.text}\n")


if __name__ == "__main__":
    main()
