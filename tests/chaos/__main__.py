"""The command behind `make chaos`.

python -m tests.chaos                          every fault on a directory as bucket, then on S3 (with faults of its own)
python -m tests.chaos --store s3 --minutes 30  the same, then drawn ones until the time is over
python -m tests.chaos --only "kill -9 of all"
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.faults import EVERY, Fault, named
from tests.chaos.run import run
from tests.chaos.trio import QUICK
from tests.chaos.writers import has_java


def chosen(store: str, only: list[str], minutes: float, seed: int) -> Iterator[Fault]:
    """Each fault once, then drawn ones while there is time."""
    end = time.monotonic() + minutes * 60
    faults = [each for each in (named(tuple(only)) if only else EVERY) if store == "s3" or not each.needs_s3]
    yield from faults
    draw = random.Random(seed)
    while time.monotonic() < end:
        yield draw.choice(faults)


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description="Real brokers fail while clients write.")
    asked.add_argument("--store", choices=("file", "s3", "both"), default="both")
    asked.add_argument("--minutes", type=float, default=0.0, help="go on with drawn faults until they are over")
    asked.add_argument("--seed", type=int, default=1, help="of what is drawn")
    asked.add_argument("--only", action="append", default=[], help="a fault by its name; again for more")
    asked.add_argument("--quick", action="store_true", help="sessions of 2 s instead of the default settings")
    asked.add_argument(
        "--allow-resent", default="", metavar="REASON",
        help="why a record may be there twice that its client sent again under a new producer epoch; else it fails",
    )  # fmt: skip
    args = asked.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # brokers that die in the midst of a request
    well = True
    for store in ("file", "s3") if args.store == "both" else (args.store,):
        directory = Path(tempfile.mkdtemp(prefix="tiered-chaos-"))
        faults = chosen(store, args.only, args.minutes, args.seed)
        print(f"store {store}, logs in {directory}", flush=True)
        settings = QUICK if args.quick else {}
        report = run(
            directory, store, faults, settings, has_java=has_java(), resent_allowed=args.allow_resent,
            say=lambda text: print(text, flush=True),
        )  # fmt: skip
        print(f"\n{report}\n", flush=True)
        well = well and report.well
        if report.well:
            shutil.rmtree(directory)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
