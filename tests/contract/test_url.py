"""Tests of store URLs: the store that each opens, and the cost of opening it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes3 import FakeS3
from tiered.errors import Refused, Unavailable
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng

LIGHT = """
import sys
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng
open_store("memory://", SystemClock(), SystemRng())
heavy = {"boto3", "botocore", "pandas", "pyarrow", "pyspark"} & set(sys.modules)
assert not heavy, heavy
"""


def test_each_url_scheme_opens_its_store(tmp_path: Path, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    urls = {
        "memory://": "memory://",
        f"file://{tmp_path}/a%20b/": f"file://{tmp_path}/a b",
        f"file://localhost{tmp_path}/c": f"file://{tmp_path}/c",
        "s3://bucket/some/prefix/": "s3://bucket/some/prefix",
        "s3a://bucket": "s3://bucket",
    }
    assert {url: open_store(url, SystemClock(), SystemRng()).url for url in urls} == urls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "an unknown kind"),
        ("/plain/path", "an unknown kind"),
        ("http://host/x", "an unknown kind"),
        ("memory://name", "an unknown kind"),
        ("file://relative/dir", "no absolute directory"),
        ("file:///", "no absolute directory"),
        ("s3:///prefix", "no bucket"),
        ("s3://bucket/p?x=1", "query"),
        ("s3://bucket/p#x", "fragment"),
    ],
)
def test_invalid_url_is_refused_with_the_allowed_forms(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        open_store(url, SystemClock(), SystemRng())
    assert "s3://bucket" in caught.value.why or "file:///dir" in caught.value.why


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("AWS_ENDPOINT_URL_S3", "nonsense", "Invalid endpoint: nonsense"),
        ("AWS_PROFILE", "nobody", "nobody.* not be found"),
    ],
)
def test_environment_that_s3_cannot_use_is_refused(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=f"cannot use the store s3://bucket: .*{why}"):
        open_store("s3://bucket", SystemClock(), SystemRng())


def test_directory_that_the_system_denies_is_an_unreachable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file under the URL is a wrong URL. A directory that may not be written is a store that refuses, as S3 can."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Refused, match="Not a directory"):
        open_store(f"file://{tmp_path}/file/bucket", SystemClock(), SystemRng())

    def no(path: str, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "mkdir", no)
    with pytest.raises(Unavailable, match=f"cannot use the store file://{tmp_path}/bucket: Permission denied") as told:
        open_store(f"file://{tmp_path}/bucket", SystemClock(), SystemRng())
    assert told.value.refused


def test_broker_without_s3_does_not_load_it() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=240)
