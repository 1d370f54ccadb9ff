"""Tests of where endpoint and region come from: the variables and files that other tools of AWS read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tests.fakes3 import FakeS3
from tests.s3_rules import BUCKET
from tiered.object_store.s3 import S3Store
from tiered.object_store.s3_session import find_endpoint, open_session
from tiered.ports import NotFound
from tiered.system.clock import SystemClock, SystemRng

ENDPOINTS = {
    "services": "[default]\nservices = ours\n[services ours]\ns3 =\n  endpoint_url = {url}\n",
    "profile": "[default]\nendpoint_url = {url}\n",
}


@pytest.fixture
def seen(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Host and authorization of each request to the fake, whose settings are in no variable but the keys."""
    heads: list[tuple[str, str]] = []
    answer = fake.rules.answer

    def watch(request: web.Request, *rest: object) -> web.Response:
        heads.append((request.host, request.headers["Authorization"]))
        return answer(request, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(fake.rules, "answer", watch, raising=True)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    return heads


def ask_once() -> None:
    async def body() -> None:
        store = S3Store(BUCKET, "settings", SystemClock(), SystemRng())
        assert await store.get("k") == NotFound()
        await store.close()

    asyncio.run(body())


@pytest.mark.parametrize("form", ENDPOINTS)
def test_endpoint_with_a_name_from_the_file_has_the_bucket_in_its_path(
    fake: FakeS3, seen: list[tuple[str, str]], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"http://localhost:{urlsplit(fake.endpoint).port}"
    (tmp_path / "config").write_text(ENDPOINTS[form].format(url=named))
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert find_endpoint(open_session()) == named
    ask_once()
    assert seen[0][0] == named.removeprefix("http://")


def test_variables_go_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(ENDPOINTS["profile"].format(url="http://of-file"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert find_endpoint(open_session()) == "http://of-file"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://of-all")
    assert find_endpoint(open_session()) == "http://of-all"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://of-s3")
    assert find_endpoint(open_session()) == "http://of-s3"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert find_endpoint(open_session()) == ""


@pytest.mark.parametrize(
    ("region", "default", "signed"),
    [("eu-north-1", None, "eu-north-1"), (None, "eu-west-1", "eu-west-1"), ("eu-north-1", "eu-west-1", "eu-north-1")],
)
def test_requests_are_signed_for_the_region_of_the_environment(
    seen: list[tuple[str, str]], region: str | None, default: str | None, signed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("AWS_REGION", region), ("AWS_DEFAULT_REGION", default)):
        if value is not None:
            monkeypatch.setenv(name, value)
    ask_once()
    assert f"/{signed}/s3/" in seen[0][1]
