"""Rounds of some targets, or of all: see tests/fuzz/__init__.py."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from itertools import count
from pathlib import Path

from tests.fuzz import files, http, records, sasl, wire
from tests.fuzz.rounds import CURRENT, Check, fuzz, keep

TARGETS: dict[str, Check] = {
    "wire": wire.check,
    "records": records.check,
    "http": http.check,
    "files": files.check,
    "sasl": sasl.check,
}


def main(words: list[str]) -> int:
    """1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--rounds", type=int, default=1000, help="of each; 0 tries the corpus alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with the next seeds for so long")
    given = parser.parse_args(words)
    until = time.monotonic() + 60 * given.minutes
    logging.disable(logging.CRITICAL)  # a log that opens tells of everything that it mends
    CURRENT.mkdir(parents=True, exist_ok=True)
    for seed in count(given.seed):
        for target in given.targets or TARGETS:
            current = Path(CURRENT, target)
            failure = fuzz(target, TARGETS[target], given.rounds, seed, current)
            if failure is not None:
                traceback.print_exception(failure.error)
                path = keep(target, failure.input)
                print(
                    f"{target}: {failure.error!r:.200}; kept as {path}; again: python -m tests.fuzz {target} --rounds 0"
                )
                return 1
            current.unlink()
            print(f"{target}: {given.rounds} rounds, seed {seed}: nothing found", flush=True)
        if time.monotonic() >= until:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
