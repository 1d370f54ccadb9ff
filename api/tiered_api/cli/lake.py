"""`tiered load`, `verify` and `sql`: the Spark package, which is an extra and is looked for when it is asked for."""

from __future__ import annotations

from importlib.util import find_spec


def missing() -> str:
    """One sentence on what Spark and Delta lack on this machine and how to get it; empty when nothing."""
    lacking = [name for name in ("pyspark", "delta", "pyarrow") if find_spec(name) is None]
    if lacking:
        return f"Python packages {', '.join(lacking)} are missing: pip install 'tiered[spark]'."
    from pyspark_tiered import jars

    return jars.missing_tools(build=not jars.cache_folder().is_dir())
