"""A load without a JVM: this process converts, and the package's own writer of Delta's log commits."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_tiered.native_table import NativeTable
from pyspark_tiered.rounds import FilePlan
from pyspark_tiered.table import ConversionResult


class NativeEngine:
    """An engine of loads in this process, one file after the other."""

    tasks = 1

    def open_table(self, url: str, topic: str, topic_id: str) -> NativeTable:
        """Opens a topic's table."""
        return NativeTable(url, topic, topic_id)

    def convert(self, store: str, url: str, files: Sequence[FilePlan], null_timestamps: bool) -> list[ConversionResult]:
        """Converts each file. Raises `Unavailable` for failures that are not in the log."""
        from pyspark_tiered.convert import convert  # imported late: a load with nothing new decodes nothing

        return [convert(store, splits, url, null_timestamps) for splits in files]
