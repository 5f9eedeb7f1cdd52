"""The orchestrator of the DAG ``on_retry``: its last activity fails at the first call, as with a server that is down.

Each call of ``count_month`` writes a line into the file ``runs.txt`` of the folder, so that you see what ran again.
"""

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("on_retry")


@dataclass(frozen=True)
class Month:
    """The input of the activity ``count_month``."""

    folder: str
    number: int


@app.activity
def count_month(month: Month) -> int:
    Path(month.folder).mkdir(parents=True, exist_ok=True)
    with Path(month.folder, "runs.txt").open("a", encoding="utf-8") as runs:
        runs.write(f"month {month.number}\n")
    return month.number * 100


@app.activity
def send_report(folder: str) -> str:
    first_call = Path(folder, "sent-once")
    if not first_call.exists():
        first_call.touch()
        raise ConnectionError("the mail server is down")
    return "the report is sent"


@app.orchestrator
async def monthly_report(ctx: OrchestrationContext, folder: str) -> str:
    """Count the months 1 to 3 at the same time, then send the report."""
    rows = await ctx.when_all([ctx.call_activity(count_month, Month(folder, number)) for number in (1, 2, 3)])
    return f"{await ctx.call_activity(send_report, folder)}: {sum(rows)} rows"
