"""Tests of credentials that are replaced while a store is open: they are read again, once, and only after a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.contract.key_rotation import use_file, write_key
from tests.fakes3 import FakeS3, HttpFault
from tests.s3_rules import BUCKET
from tests.scenario import run_by, run_by_fixture
from tiered.errors import Unavailable
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind
from tiered.object_store.metered import MeteredStore
from tiered.object_store.s3 import S3Store
from tiered.object_store.s3_refusals import is_login_refusal, may_be_old_login
from tiered.object_store.s3_session import open_session
from tiered.ports import ConditionFailed, GetResult, NotFound, Ok
from tiered.system.clock import SystemClock, SystemRng

Run = Callable[[Callable[[S3Store], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run(fake: FakeS3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """Runs a body with a store on the fake server, below a prefix of its own."""
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)

    def run_body(body: Callable[[S3Store], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            store = S3Store(BUCKET, request.node.name, SystemClock(), SystemRng(), part_bytes=5 << 20)
            try:
                await body(store)
            finally:
                await store.close()

        asyncio.run(main())

    return run_body


@pytest.fixture
def file(fake: FakeS3, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of credentials, with a key that the server takes."""
    path = tmp_path / "credentials"
    write_key(path, "OLD")
    use_file(path, monkeypatch)
    fake.rules.access_keys = frozenset(["OLD"])
    return path


CALLS: dict[str, Callable[[S3Store], Coroutine[Any, Any, object]]] = {
    "get": lambda store: store.get("k"),
    "range": lambda store: store.get("k", 3, 4),
    "head": lambda store: store.get("k", 0, 0),
    "put": lambda store: store.put("k", b"x"),
    "create": lambda store: store.put("new", b"x", if_absent=True),
    "upload": lambda store: store.upload("k", [b"xyz"]),
    "multipart": lambda store: store.upload("k", [bytes(41 << 20)]),
    "list": lambda store: store.list("k"),
    "delete": lambda store: store.delete(["k"]),
}


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns a list that gets an entry for each look for credentials."""
    looks: list[object] = []

    def look() -> object:
        looks.append(None)
        return open_session()

    monkeypatch.setattr("tiered.object_store.s3_clients.open_session", look)
    return looks


@pytest.mark.parametrize("verb", CALLS)
@run_by(run_by_fixture, "run")
async def test_request_after_a_rotation_takes_the_new_key(
    store: S3Store, *, fake: FakeS3, file: Path, verb: str
) -> None:
    await store.put("k", b"0123456789", if_absent=True)
    write_key(file, "NEW")
    fake.rules.access_keys = frozenset(["NEW"])
    assert not isinstance(await CALLS[verb](store), NotFound)
    await store.delete(["k", "new"])


@run_by(run_by_fixture, "run")
async def test_refused_upload_is_sent_again_from_its_first_byte(store: S3Store, *, fake: FakeS3, file: Path) -> None:
    """Once, the second request had a length and no bytes: the store waited for them until its time was over."""
    await store.put("k", b"", if_absent=True)
    write_key(file, "NEW")
    fake.rules.access_keys = frozenset(["NEW"])
    fake.requests.clear()
    assert isinstance(await store.upload("k", [b"x" * 700_000]), Ok)
    assert fake.requests["PUT"] == 2


@run_by(run_by_fixture, "run")
async def test_create_that_was_refused_and_made_again_is_no_conflict(
    store: S3Store, *, fake: FakeS3, file: Path
) -> None:
    write_key(file, "NEW")
    fake.rules.access_keys = frozenset(["NEW"])
    assert isinstance(await store.put("k", b"mine", if_absent=True), Ok)
    assert isinstance(await store.put("k", b"other", if_absent=True), ConditionFailed)
    assert fake.requests["PUT"] == 3


def test_many_refused_requests_look_for_keys_once(
    fake: FakeS3, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)

    async def body(store: S3Store) -> None:
        looks.clear()
        fake.rules.access_keys = frozenset(["NEW"])
        results = await asyncio.gather(*(store.get("k", 0, 5) for _ in range(64)), return_exceptions=True)
        assert all(isinstance(each, Unavailable) and each.refused and each.login_refused for each in results)
        assert len(looks) == 1 and fake.requests["GET"] == 64

    run(body)


def test_many_refused_requests_all_succeed_after_one_look(
    fake: FakeS3, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)

    async def body(store: S3Store) -> None:
        await store.put("k", b"0123456789")
        looks.clear()
        write_key(file, "NEW")
        fake.rules.access_keys = frozenset(["NEW"])
        results = await asyncio.gather(*(store.get("k", 0, 5) for _ in range(64)))
        assert all(isinstance(each, GetResult) for each in results)
        assert len(looks) == 1

    run(body)


def test_file_that_comes_late_or_is_half_written_is_read_at_a_later_look(
    fake: FakeS3, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.object_store.s3_clients.LOOK_SECONDS", 0)
    file.unlink()

    async def body(store: S3Store) -> None:
        with pytest.raises(Unavailable, match="locate credentials"):
            await store.get("k")
        file.write_text("[default]\naws_access_key_id = OLD\n")
        with pytest.raises(Unavailable):
            await store.get("k")
        write_key(file, "OLD")
        assert await store.get("k") == NotFound()

    run(body)


def test_credential_process_gives_the_new_key(
    fake: FakeS3, run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = cat {keys}\n")
    file.unlink()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    keys.write_text('{"Version": 1, "AccessKeyId": "OLD", "SecretAccessKey": "s"}')

    async def body(store: S3Store) -> None:
        assert await store.get("k") == NotFound()
        keys.write_text('{"Version": 1, "AccessKeyId": "NEW", "SecretAccessKey": "s"}')
        fake.rules.access_keys = frozenset(["NEW"])
        assert await store.get("k") == NotFound()

    run(body)


def test_keys_of_a_program_that_expire_are_taken_before_they_do(
    fake: FakeS3, run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were revoked early, as the sessions of a role may be."""
    keys, config = tmp_path / "keys.json", tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = cat {keys}\n")
    file.unlink()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    form = '{{"Version": 1, "AccessKeyId": "{}", "SecretAccessKey": "s", "Expiration": "2126-01-01T00:00:00Z"}}'
    keys.write_text(form.format("OLD"))

    async def body(store: S3Store) -> None:
        assert await store.get("k") == NotFound()
        keys.write_text(form.format("NEW"))
        fake.rules.access_keys = frozenset(["NEW"])
        assert await store.get("k") == NotFound()

    run(body)


@run_by(run_by_fixture, "run")
async def test_keys_of_the_environment_need_a_restart(store: S3Store, *, fake: FakeS3) -> None:
    metered = MeteredStore(store, SystemClock(), Metrics())
    fake.rules.access_keys = frozenset(["NEW"])
    with pytest.raises(Unavailable, match=r"InvalidAccessKeyId.*restart the process with new ones") as caught:
        await metered.get("k")
    assert caught.value.refused and caught.value.login_refused
    assert metered.outage is not None and metered.outage.login_refused
    fake.rules.access_keys = None
    assert await metered.get("k") == NotFound()
    assert metered.outage is None


@pytest.mark.parametrize("source", ["shared", "config", "process"])
def test_refused_keys_of_a_file_or_program_are_told_with_their_source(
    fake: FakeS3, run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr("tiered.object_store.s3_clients.LOOK_SECONDS", 0)
    keys, config = tmp_path / "keys.json", tmp_path / "config"
    lines = {
        "shared": "",
        "config": "aws_access_key_id = OLD\naws_secret_access_key = s\n",
        "process": f"credential_process = cat {keys}\n",
    }
    keys.write_text('{"Version": 1, "AccessKeyId": "OLD", "SecretAccessKey": "s"}')
    config.write_text("[default]\n" + lines[source])
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    if source != "shared":
        file.unlink()
    named = {"shared": "the file of credentials", "config": "the config file", "process": "credential_process"}[source]

    async def body(store: S3Store) -> None:
        metered = MeteredStore(store, SystemClock(), Metrics())
        fake.rules.access_keys = frozenset(["NEW"])
        with pytest.raises(Unavailable, match=f"InvalidAccessKeyId.*{named}: put new ones there") as caught:
            await metered.get("k")
        assert caught.value.refused and caught.value.login_refused
        assert metered.outage is not None and metered.outage.login_refused
        for path in (file, config, keys):
            if path.exists():
                path.write_text(path.read_text().replace("OLD", "NEW"))
        assert await metered.get("k") == NotFound()
        assert metered.outage is None

    run(body)


@run_by(run_by_fixture, "run")
async def test_missing_permission_is_no_old_key(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.ERROR, status=403))
    with pytest.raises(Unavailable, match="AccessDenied") as caught:
        await store.get("k")
    assert caught.value.refused and not caught.value.login_refused
    assert fake.requests["GET"] == 1


@pytest.mark.parametrize(
    ("status", "code", "refuses_login", "may_be_old"),
    [
        (403, "InvalidAccessKeyId", True, True),
        (403, "SignatureDoesNotMatch", True, True),
        (400, "ExpiredToken", True, True),
        (401, "Unauthorized", True, True),
        (403, "AccessDenied", False, True),
        (403, "403", False, True),
        (400, "400", False, True),
        (400, "InvalidRequest", False, False),
        (404, "NoSuchKey", False, False),
        (412, "PreconditionFailed", False, False),
        (503, "SlowDown", False, False),
    ],
)
def test_refusals_of_a_login(status: int, code: str, refuses_login: bool, may_be_old: bool) -> None:
    assert is_login_refusal(status, code) == refuses_login
    assert may_be_old_login(status, code) == may_be_old
