"""A table format's own commit with the idempotency key, as ``docs/how-to/publish.md`` shows it, under a race."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from airflow_provider_taskhub.activity import entered
from tests.publishing.test_publish import attempt

PAGE = Path(__file__).parents[2] / "docs/how-to/publish.md"


def shown() -> Any:
    """The function of the page."""
    import pandas

    names: dict[str, Any] = {"pandas": pandas}
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(from deltalake import.*?)\n\n\ntable_path", text, re.DOTALL)
    exec(block, names)
    return names


def test_two_attempts_that_append_at_the_same_time_append_once(tmp_path: Path) -> None:
    import pandas
    from deltalake import DeltaTable

    names = shown()
    append, write = names["append_once"], names["write_deltalake"]
    path, rows = str(tmp_path / "table"), pandas.DataFrame({"minutes": [1, 2]})
    write(path, pandas.DataFrame({"minutes": [0]}))
    answers = []

    def other_first(*arguments: Any, **options: Any) -> None:
        names["write_deltalake"] = write
        with entered(attempt(2)):
            answers.append(append(path, rows))
        write(*arguments, **options)

    names["write_deltalake"] = other_first
    with entered(attempt(1)):
        answers.append(append(path, rows))
        answers.append(append(path, rows))
    with entered(attempt(3, "another call")):
        answers.append(append(path, rows))
    assert answers == [True, False, False, True]
    assert sorted(DeltaTable(path).to_pandas()["minutes"]) == [0, 1, 1, 2, 2]
