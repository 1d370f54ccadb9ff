"""Key files for tests of encryption."""

from __future__ import annotations

import base64
import random
from pathlib import Path

KEYS = {name: random.Random(name).randbytes(32) for name in ("one", "two", "gone")}


def key_line(name: str, *, active: bool = False) -> str:
    """Returns the line of a key."""
    return f"key {name} {base64.b64encode(KEYS[name]).decode()}{' active' if active else ''}"


def write_key_file(path: Path, *names: str, active: str = "one") -> Path:
    """Writes a ring with the keys `one`, or those of `names`."""
    path.touch(mode=0o600)
    path.write_text("".join(key_line(name, active=name == active) + "\n" for name in names or ("one",)))
    return path
