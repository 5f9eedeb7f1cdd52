"""What is known of an instance in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.hub.history.checkpoint import Stored
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance
from tests.hub.by_hand import GEN0, raised


@pytest.mark.rows("K26", "K57")
def test_of_what_was_taken_the_oldest_is_forgotten_first() -> None:
    """A sentinel holds the newest ones of a tail, after a load as well: that reads the rows before it."""
    execution: Any = None
    live = LoadedInstance(execution, Stored(sentinel_etag="e", consumed=("old",)), GEN0)
    live.absorb([replace(raised(), taskhub_message_id="new")], switched=False)
    live.remember(live.stored)
    assert live.consumed() == ("old", "new")
