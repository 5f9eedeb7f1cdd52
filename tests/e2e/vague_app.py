"""An app with an annotation that names nothing."""

from __future__ import annotations

from airflow_provider_taskhub.app import App

app = App("vague")


@app.activity
def work(x: Nope) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Never called."""
