"""Fixtures of the ObjectStore contract: the S3 servers, started once, and each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.stores import KINDS, StoreCase, store_case
from tests.fakes3 import FakeS3, S3Server, s3_fake, s3_moto


@pytest.fixture(scope="session")
def fake_server() -> Iterator[FakeS3]:
    with s3_fake() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with s3_moto() as server:
        yield server


@pytest.fixture
def fake(fake_server: FakeS3) -> Iterator[FakeS3]:
    """The fake without faults, before and after."""
    fake_server.mend()
    yield fake_server
    fake_server.mend()


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreCase:
    kind: str = request.param
    environment = {}
    if kind.startswith("s3-"):
        server: S3Server = request.getfixturevalue(kind.removeprefix("s3-") + "_server")
        environment = server.environment
        if isinstance(server, FakeS3):
            server.rules.sparse_listings = True
            request.addfinalizer(server.mend)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return store_case(kind, request.node.name, tmp_path)
