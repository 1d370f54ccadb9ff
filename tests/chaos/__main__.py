"""The command behind `make chaos`.

python -m tests.chaos                          every fault on a directory as bucket, then on S3 (with faults of its own)
python -m tests.chaos --store s3 --minutes 30  the same, then drawn ones until the time is over
python -m tests.chaos --only "kill -9 of all"
python -m tests.chaos --processes 2            three machines of two processes, and the faults of these
python -m tests.chaos --store versitygw        an S3 server of another maker as bucket (`tests/s3_servers.py`)
python -m tests.chaos --flush bucket           all topics are in the bucket, and killed brokers lose their disks
python -m tests.chaos --deadline-factor 6      every deadline is six times as long: for a busy machine
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

from tests.chaos.cluster import QUICK_SETTINGS
from tests.chaos.faults import ALL_FAULTS, OF_BUCKET_FLUSH, OF_MACHINES, ChaosFault, faults_by_name
from tests.chaos.run import run
from tests.chaos.writers import has_java
from tests.s3_servers import SERVERS


def choose_faults(
    store: str, only: list[str], minutes: float, seed: int, processes: int, *, flushes_to_bucket: bool
) -> Iterator[ChaosFault]:
    """Yields each fault once, then drawn ones while there is time."""
    end = time.monotonic() + minutes * 60
    every = OF_BUCKET_FLUSH if flushes_to_bucket else ALL_FAULTS if processes == 1 else OF_MACHINES
    faults = [each for each in (faults_by_name(tuple(only)) if only else every) if store == "s3" or not each.needs_s3]
    yield from faults
    rng = random.Random(seed)
    while time.monotonic() < end:
        yield rng.choice(faults)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Real brokers fail while clients write.")
    parser.add_argument("--store", choices=("file", "s3", "both", *SERVERS), default="both")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with drawn faults until they are over")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--only", action="append", default=[], help="a fault by its name; again for more")
    parser.add_argument(
        "--deadline-factor", type=float, default=1.0, help="multiplies all deadlines, on a busy machine"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes of each of three machines")
    parser.add_argument("--flush", choices=("none", "bucket"), default="none", help="`log.flush` of all brokers")
    parser.add_argument("--quick", action="store_true", help="sessions of 2 s instead of the default settings")
    parser.add_argument(
        "--allow-resent", default="", metavar="REASON",
        help="why a record may be there twice that its client sent again under a new producer epoch; else it fails",
    )  # fmt: skip
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # brokers that die in the midst of a request
    well = True
    for store in ("file", "s3") if args.store == "both" else (args.store,):
        directory = Path(tempfile.mkdtemp(prefix="tiered-chaos-"))
        flushes_to_bucket = args.flush == "bucket"
        faults = choose_faults(
            store, args.only, args.minutes, args.seed, args.processes, flushes_to_bucket=flushes_to_bucket
        )
        print(f"store {store}, logs in {directory}", flush=True)
        settings = QUICK_SETTINGS if args.quick else {}
        report = run(
            directory, store, faults, settings, has_java=has_java(), resent_allowed=args.allow_resent,
            deadline_factor=args.deadline_factor, processes=args.processes, flushes_to_bucket=flushes_to_bucket,
            say=lambda text: print(text, flush=True),
        )  # fmt: skip
        print(f"\n{report}\n", flush=True)
        well = well and report.is_ok
        if report.is_ok:
            shutil.rmtree(directory)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
