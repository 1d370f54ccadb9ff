"""A shared credentials file whose key is replaced, as the store knows it."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path

import pytest

from tests.fakes3 import FakeS3

KEY_REQUESTS = 20
"""Requests after which `rotate_keys` writes the next key."""
VALID_KEYS = 3
"""The newest keys, which are valid: a request that is refused has time to be made again beside others."""


def write_key(file: Path, key: str) -> None:
    """Replaces the file of credentials."""
    new = file.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
    new.replace(file)


def use_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the credentials of the file, and none of the environment."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))


def rotate_keys(server: FakeS3, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the server replace its key in the file every few requests, the first time before the first one."""
    numbers = itertools.count()
    valid: deque[str] = deque(maxlen=VALID_KEYS)

    def on_request() -> None:
        number = next(numbers)
        if number % KEY_REQUESTS == 0:
            valid.append(f"KEY{number}")
            write_key(file, valid[-1])
            server.rules.access_keys = frozenset(valid)

    use_file(file, monkeypatch)
    write_key(file, "FIRST")
    server.on_request = on_request
