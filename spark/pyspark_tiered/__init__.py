"""`tiered` topics in Spark. PySpark finds the data source by this package's name: no registration call is needed.

The import costs nothing and needs no Spark, because each look-up of any Python data source imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_tiered.source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> type[DefaultSource]:
    if name == "DefaultSource":
        from pyspark_tiered.source import DefaultSource

        return DefaultSource
    raise AttributeError(name)
