"""The examples are no package: a worker finds them on its path, so do these tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "dags_examples"))
