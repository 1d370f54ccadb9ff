"""`python -m pyspark_tiered load ...` is `tiered load ...`: a file of this package for `spark-submit`."""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    # The command line is above this package, which may not import it.
    sys.exit(import_module("tiered_api.cli.main").main())
