"""The recorded orchestrations for a real worker: those whose activities take one argument, as ours do."""

from __future__ import annotations

from tests.engine.golden_app import app


@app.activity(name="SayHello")
def say_hello(who: str) -> str:
    return f"Hello, {who}!"


@app.activity(name="Square")
def square(x: int) -> int:
    return x * x


@app.activity(name="Fail")
def fail(what: str) -> None:
    raise ValueError(f"broken: {what}")


@app.activity(name="FailUntilToldOtherwise")
def fail_until_told_otherwise(what: str) -> str:
    return "ok now"
