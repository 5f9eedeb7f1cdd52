"""Two apps of which each worker loads one, and one of another version."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

left = App("left", version=os.environ.get("LEFT_VERSION", "1"))
right = App("right", version="1")


def _declare(app: App, name: str) -> None:
    @app.activity(name=f"{name}_plain")
    def plain(number: int) -> int:
        return number + 1

    @app.activity(name=f"{name}_kept", record=True)
    def kept(number: int) -> int:
        return number + 1

    @app.orchestrator(name=name)
    async def orchestrate(ctx: OrchestrationContext, number: int) -> int:
        number = await ctx.call_activity(f"{name}_plain", number)
        await ctx.create_timer(timedelta(seconds=1))
        return int(await ctx.call_activity(f"{name}_kept", number))


_declare(left, "left")
_declare(right, "right")
