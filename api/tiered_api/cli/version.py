"""`tiered version`."""

from __future__ import annotations

import platform
from argparse import Namespace

import tiered
from tiered.records import native
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_json


def version(args: Namespace) -> int:
    """Prints the version, the Python that runs it and which record code is in use."""
    records = "C" if native.NATIVE else "Python"
    facts = {"tiered": tiered.__version__, "python": platform.python_version(), "records": records}
    if args.format == "json":
        print_json(facts)
    else:
        print(f"tiered {facts['tiered']} (Python {facts['python']}, records in {facts['records']})")
    return Exit.OK
