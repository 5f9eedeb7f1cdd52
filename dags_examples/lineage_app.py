"""An orchestrator whose activities declare which data they read and write."""

from pathlib import Path

from airflow_provider_taskhub.activity import inlet, outlet
from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("lineage")


@app.activity(record=True)  # a Spark activity has a record without saying so
def count_words(folder: str) -> str:
    source, target = Path(folder, "text.txt"), Path(folder, "words.txt")
    inlet(source.as_uri())
    words = source.read_text(encoding="utf-8").split()
    target.write_text(f"{len(words)}\n", encoding="utf-8")
    outlet(target.as_uri())
    return target.as_uri()


@app.orchestrator
async def word_count(ctx: OrchestrationContext, folder: str) -> str:
    """Count the words of the file text.txt in a folder."""
    return await ctx.call_activity(count_words, folder)
