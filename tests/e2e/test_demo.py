"""Tests of `tiered demo`, which `make demo` runs, with fewer flights: on a directory, on S3, without Java, and with a
difference."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.serving import COMMAND, ServeProcess
from tests.fakes3 import BUCKET, s3_moto
from tests.scenario import run_alone, run_by
from tiered.errors import Corrupt
from tiered_api.cli.demo.broker import demo_broker
from tiered_api.cli.demo.flights import Departure, departures
from tiered_api.cli.demo.questions import QUESTIONS, expected_answers, format_query
from tiered_api.cli.demo.replay import replay
from tiered_api.cli.demo.stream import produce_records

FEW = "3000"


def demo(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the demo to its end."""
    whole = {**os.environ, **(env or {})}
    command = [*COMMAND, "demo", "--records", FEW, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=550, env=whole)


@pytest.mark.java
@pytest.mark.slow
def test_demo_succeeds_on_a_directory(tmp_path: Path) -> None:
    done = demo("--dir", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^\[(\d)/7\]", done.stdout, re.MULTILINE) == list("1234567")
    assert "3,000 rows, equal in every column; no gaps" in done.stdout
    assert "Every comparison held" in done.stdout
    demo_places = f"--store file://{tmp_path}/demo/bucket --data-dir {tmp_path}/demo/data"
    assert done.stdout.endswith(f" serve {demo_places} --open topics/flights\n")
    assert list((tmp_path / "demo" / "bucket" / "data").rglob("*.seg"))
    left = list((tmp_path / "demo" / "data" / "log").glob("flights-*/*.log"))
    assert len(left) == 6 and all(path.stat().st_size == 0 for path in left)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.also("tests/e2e/test_demo.py::test_demo_succeeds_on_a_directory")
def test_demo_succeeds_on_s3(tmp_path: Path) -> None:
    with s3_moto() as server:
        done = demo("--dir", str(tmp_path / "demo"), "--store", f"s3://{BUCKET}/trial", env=server.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cold ls --store s3://{BUCKET}/trial/demo/log --topic flights" in done.stdout


def test_demo_without_java_ends_after_the_replay_with_a_reason(tmp_path: Path) -> None:
    done = demo("--dir", str(tmp_path / "demo"), env={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert done.returncode == 3, done.stderr
    assert re.findall(r"^\[(\d)/7\]", done.stdout, re.MULTILINE) == list("1234")
    assert "Every record came back" in done.stdout
    assert re.search(r"Java.*install", done.stdout)
    *_, store, _, data, option, page = done.stdout.splitlines()[-1].split()
    assert (option, page) == ("--open", "topics/flights")
    unseen = {"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with ServeProcess(Path(data), "--store", store, option, page, env=unseen) as broker:
        assert broker.ask("GET", "/tiered/v1/topics")[1]["topics"][0]["name"] == "flights"
        broker.stop()
        assert f"the page is {broker.url}/console/topics/flights\n" in broker.log.read_text()
    assert "Traceback" not in done.stderr


def test_demo_refuses_a_directory_with_content(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = demo("--dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"tiered: --dir {tmp_path}: it must be empty or absent\n")


@pytest.mark.parametrize(
    "altered",
    [Departure(b"ZZ", 0, b"{}"), Departure(b"UA", 1_357_034_400_000, b"{}")],
    ids=["another record", "another value"],
)
@run_by(run_alone)
async def test_replay_finds_the_one_record_that_differs(*, tmp_path: Path, altered: Departure) -> None:
    sent = departures(500)
    async with demo_broker(tmp_path / "data", f"file://{tmp_path}/bucket", tmp_path / "log") as broker:
        cluster_id = (await broker.send_request("GET", "/tiered/v1/node"))["cluster_id"]
        body = {
            "topic_name": "flights",
            "partitions_count": 2,
            "configs": [{"name": "retention.ms", "value": "-1"}],
        }
        await broker.send_request("POST", f"/v3/clusters/{cluster_id}/topics", body)
        placed = await produce_records(broker, cluster_id, "flights", sent, lambda _: None)
        assert await replay(broker, "flights", sent, placed, lambda _: None) > 0
        sent[0] = altered
        with pytest.raises(Corrupt, match=r"flights-\d offset 0 holds"):
            await replay(broker, "flights", sent, placed, lambda _: None)


def test_flight_has_its_carrier_as_key_and_its_scheduled_hour() -> None:
    first = departures(1)[0]
    assert (first.key, first.timestamp) == (b"UA", 1_357_034_400_000)
    assert first.flight["time_hour"] == "2013-01-01T10:00:00Z" and first.flight["dest"] == "IAH"
    sent = json.loads(first.to_produce_json())
    assert sent["value"]["data"] == first.flight and sent["key"]["data"] == "UA"


def test_answers_follow_from_the_input() -> None:
    records = [
        _flight("UA", "EWR", 1, None, None),
        _flight("UA", "EWR", 1, 5, 61),
        _flight("AA", "JFK", 2, 0, 60),
    ]
    assert expected_answers(records) == [
        [("UA", 2), ("AA", 1)],
        [(1, 1, 2), (2, 0, 1)],
        [("EWR", 1, 1), ("JFK", 1, 0)],
    ]
    assert all("FROM flights" in format_query(question, "flights") for question in QUESTIONS)


def _flight(carrier: str, origin: str, month: int, dep_delay: int | None, arr_delay: int | None) -> Departure:
    flight = {
        "carrier": carrier,
        "origin": origin,
        "month": month,
        "dep_delay": dep_delay,
        "arr_delay": arr_delay,
    }
    return Departure(carrier.encode(), 0, json.dumps(flight).encode())
