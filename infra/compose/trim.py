"""Removes from an install what a broker never opens: `python trim.py --prefix DIR`.

botocore describes some 450 services of AWS in 28 MB. A broker uses S3, and the services that give out credentials.
zstandard has two builds of its library, and CPython uses the one in C. Libraries carry symbols for debuggers, which
`strip` removes, if there is one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

SERVICES = {"s3", "signin", "sso", "sso-oidc", "sts"}
"""S3, and those that botocore asks for credentials: roles, and logins of people."""


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", type=Path, required=True, help="the prefix of the install")
    (site,) = parser.parse_args().prefix.glob("lib/python3*/site-packages")
    before = _size(site)
    for each in sorted((site / "botocore" / "data").iterdir()):
        if each.is_dir() and each.name not in SERVICES:
            shutil.rmtree(each)
    for each in sorted((site / "zstandard").glob("_cffi.*")):
        each.unlink()
    libraries = sorted(site.rglob("*.so"))
    if libraries and shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", *libraries], check=True)
    print(f"removed {(before - _size(site)) >> 20} of {before >> 20} MiB", file=sys.stderr)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
