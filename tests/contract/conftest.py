"""Fixtures of the ObjectStore contract: the S3 servers, started once, and each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.key_rotation import rotate_keys
from tests.contract.stores import KINDS, StoreCase, store_case
from tests.fakes3 import FakeS3, S3Server, s3_fake, s3_moto
from tests.s3_servers import s3_server
from tests.seeds import chosen


@pytest.fixture(scope="session")
def fake_server() -> Iterator[FakeS3]:
    with s3_fake() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with s3_moto() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    with s3_server("versitygw") as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    with s3_server("seaweedfs") as server:
        yield server


SERVERS = {"s3-moto": "moto_server", "s3-versitygw": "versitygw", "s3-seaweedfs": "seaweedfs"}
"""Fixtures of the servers of other makers, by kind of store."""

AGAIN = ("s3-moto", "s3-rotating")
"""Kinds of store that show once more what the others do: a server of another maker, and keys that change meanwhile."""


@pytest.fixture
def fake(fake_server: FakeS3) -> Iterator[FakeS3]:
    """The fake without faults, before and after."""
    fake_server.mend()
    yield fake_server
    fake_server.mend()


@pytest.fixture(params=chosen(KINDS, [each for each in KINDS if each not in AGAIN], "stores"))
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreCase:
    kind: str = request.param
    environment = {}
    if kind.startswith("s3-"):
        server: S3Server = request.getfixturevalue(SERVERS.get(kind, "fake_server"))
        environment = server.environment
        if isinstance(server, FakeS3):
            request.addfinalizer(server.mend)
            server.rules.sparse_listings = True
            server.rules.deletes_need_md5 = server.rules.puts_need_checksum = kind == "s3-strict"
            server.rules.folder_order = kind == "s3-strict"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if kind == "s3-rotating":
        assert isinstance(server, FakeS3)
        monkeypatch.setattr("tiered.object_store.s3_clients.LOOK_SECONDS", 0)
        rotate_keys(server, tmp_path / "credentials", monkeypatch)
    return store_case(kind, request.node.name, tmp_path)
