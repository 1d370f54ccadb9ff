"""The demo's last steps: the Delta table, the proof that it is complete, and three questions of SQL."""

from __future__ import annotations

from collections.abc import Sequence

from tiered_api.cli.demo_flights import Departure
from tiered_api.cli.demo_progress import Steps


def table_steps(store: str, topic: str, warehouse: str, records: Sequence[Departure], steps: Steps) -> None:
    """Loads, verifies and asks. Corrupt when the table or an answer is not what the input says."""
