"""Tests of three brokers of an earlier program that are replaced under load, one after the other, by this program.

`make compat` runs them. The rules of levels are in `tests/sim/scenarios/test_metadata_levels.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.chaos.audit import TransactionOutcome
from tests.chaos.cluster import NODES, THIS_PROGRAM, ChaosCluster, Program
from tests.chaos.earlier_program import BEFORE_LEVELS, LAST_RELEASE, extract_program, install_program
from tests.chaos.faults import IN_SYNC_SECONDS, ChaosFault, FaultContext
from tests.chaos.run import run
from tiered.errors import Code
from tiered.metadata.features import HIGHEST_METADATA_VERSION, METADATA_VERSION
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.kafka.client.client import Address, KafkaClient, code_from_number
from tiered_api.kafka.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a socket that is shut may listen again"),
    pytest.mark.slow,
    pytest.mark.also("tests/test_formats.py"),
    pytest.mark.timeout(1200),
]
RATE = 20.0
"""Records a second and partition: a low rate leaves CPU for other tests."""
TOPIC = {"internal.segment.bytes": "32768", "local.retention.bytes": "65536"}
DEADLINE_FACTOR = 3.0
CREATE_SECONDS = 120.0
REFUSED_SECONDS = 120.0
LAST_LEVEL = 1
"""Level of the last release."""
UPGRADE, SAFE_DOWNGRADE = 1, 2
"""Numbers in Kafka of the kinds of an update."""


def change_level(three: ChaosCluster, level: int, kind: int = UPGRADE) -> tuple[Code | None, str]:
    """Requests a level of the metadata; returns the error and its words."""
    request = UpdateFeaturesRequest(30_000, [FeatureUpdateKey(METADATA_VERSION, level, upgrade_type=kind)])

    async def send() -> UpdateFeaturesResponse:
        addresses = [Address("127.0.0.1", three.ports[node]) for node in three.pids()]
        client = KafkaClient(SocketNet(), SystemClock(), addresses, timeout=30.0, retry_seconds=30.0)
        try:
            return await client.send_to_controller(request, UpdateFeaturesResponse)
        finally:
            await client.close()

    got = asyncio.run(send())
    code = got.error_code or next((each.error_code for each in got.results if each.error_code), 0)
    words = got.error_message or next((each.error_message for each in got.results if each.error_message), "")
    return (code_from_number(code) if code else None), words or ""


def replace_program(scene: FaultContext, node: int, program: Program) -> None:
    """Stops a broker, and starts it again with a program; waits until everything is in sync."""
    three = scene.trio
    code = three.brokers[node].end(signal.SIGTERM)
    assert code == 0, f"broker {node} ended with {code}: {three.brokers[node].log_tail()}"
    three.brokers[node].program = program
    three.start(node)
    three.wait_until(three.is_in_sync, IN_SYNC_SECONDS, three.fetch_views)


def fault(name: str, begin: Callable[[FaultContext], None]) -> ChaosFault:
    """Returns a step of the upgrade, during which every partition stays available."""
    return ChaosFault(name, begin, lambda scene: None)


def replace_all(
    name: str, order: Sequence[int], program: Program, *, check_level: bool = False
) -> Callable[[FaultContext], None]:
    """Replaces brokers in this order. A new topic, whose name begins with `name`, follows each of them."""

    def begin(scene: FaultContext) -> None:
        scene.targets = NODES
        for number, node in enumerate(order):
            if check_level and number:
                code, words = change_level(scene.trio, HIGHEST_METADATA_VERSION)
                words_of_both = (
                    # A controller of an earlier program knows no levels, or not this one.
                    r"broker \d+ |there is no such feature|its levels are 0 to "
                )
                assert code is Code.INVALID_UPDATE_VERSION and re.search(words_of_both, words), (code, words)
            replace_program(scene, node, program)
            scene.trio.wait_until(partial(create_topic, scene.trio, f"{name}-{node}"), CREATE_SECONDS, str)

    return begin


def create_topic(three: ChaosCluster, name: str) -> bool:
    """Creates a topic; False if the controller changed before it replied."""
    try:
        three.create(name, 1, {}, has_small_segments=False)
    except KafkaException as fault:
        if fault.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return True
        if fault.args[0].code() == KafkaError.REQUEST_TIMED_OUT:
            return False
        raise
    return True


def raise_level(scene: FaultContext) -> None:
    """Raises the level, once each broker has told the controller that it supports it. It is never lowered."""
    three = scene.trio
    said: list[tuple[Code | None, str]] = []

    def is_raised() -> bool:
        said.append(change_level(three, HIGHEST_METADATA_VERSION))
        return said[-1][0] is None

    three.wait_until(is_raised, IN_SYNC_SECONDS, lambda: said[-1:])
    code, words = change_level(three, 0, SAFE_DOWNGRADE)
    assert code is Code.INVALID_UPDATE_VERSION and words, (code, words)


def show_levels(three: ChaosCluster) -> tuple[int, int]:
    """Returns the level in force, and the level that all brokers support."""
    shown = json.loads(three.command("cluster", "upgrade", "--format", "json"))
    return shown["level"], shown["supported"]


def expect_levels(level: int, supported: int) -> Callable[[FaultContext], None]:
    """Waits until each broker tells that it supports a level. The level in force is `level`."""

    def begin(scene: FaultContext) -> None:
        scene.trio.wait_until(
            lambda: show_levels(scene.trio)[1] == supported,
            IN_SYNC_SECONDS,
            lambda: scene.trio.command("cluster", "upgrade"),
        )
        assert show_levels(scene.trio) == (level, supported)

    return begin


def finalize(scene: FaultContext) -> None:
    """Finalizes the upgrade by the command, and makes the metadata log hold what the earlier program refuses."""
    three = scene.trio
    said = three.command("cluster", "upgrade", "--finalize")
    assert "there is nothing to finalize" in said, said
    level = HIGHEST_METADATA_VERSION
    three.wait_until(lambda: show_levels(three) == (level, level), IN_SYNC_SECONDS, lambda: show_levels(three))
    three.wait_until(partial(create_topic, three, "short-lived"), CREATE_SECONDS, str)
    three.command("topic", "delete", "short-lived")
    code, words = change_level(three, LAST_LEVEL, SAFE_DOWNGRADE)
    assert code is Code.INVALID_UPDATE_VERSION and words, (code, words)


def refuse_bucket(old: Program, directory: Path) -> None:
    """A broker of an earlier program with an empty disk says why it does not start on the bucket, and leaves it."""
    bucket = directory / "bucket"

    def objects() -> dict[str, int]:
        files = (path for path in bucket.rglob("*") if path.is_file())
        return {str(path.relative_to(bucket)): path.stat().st_size for path in files}

    before = objects()
    words = ["serve", "--node-id", "9", "--data-dir", str(directory / "late"), "--store", f"file://{bucket}"]
    done = subprocess.run(
        [*old.command, *words, "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=REFUSED_SECONDS, env={**os.environ, **old.find_environment()},
    )  # fmt: skip
    print(f"the earlier program alone ended with {done.returncode}: {done.stderr[-600:]}")
    assert done.returncode > 0 and "tiered:" in done.stderr and "Traceback" not in done.stderr, done
    assert objects() == before


def refuse_earlier_program(old: Program) -> Callable[[FaultContext], None]:
    """An earlier program does not start any more, says so, and writes nothing. This program starts after it."""

    def begin(scene: FaultContext) -> None:
        three, node = scene.trio, scene.follower()
        scene.targets = (node,)
        broker = three.brokers[node]
        assert broker.end(signal.SIGTERM) == 0
        logged = broker.log.stat().st_size
        broker.program = old
        three.start(node)
        assert broker.process is not None
        try:
            code = broker.process.wait(REFUSED_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the earlier program runs at a raised level: {broker.log_tail()}")
        words = broker.log.read_bytes()[logged:].decode()
        print(f"the earlier program ended with {code}: {words[-600:]}")
        assert code not in (0, -signal.SIGKILL) and "tiered:" in words and "Traceback" not in words, (code, words)
        broker.process = None
        broker.program = THIS_PROGRAM
        three.start(node)

    return begin


def replace_under_load(tmp_path: Path, store: str, old: Program, steps: Sequence[ChaosFault]) -> None:
    """Runs the steps while clients write. Nothing is lost, and no client sees an error that it does not retry."""
    report = run(
        tmp_path, store, steps, {}, has_java=False, rate=RATE, deadline_factor=DEADLINE_FACTOR,
        topic=TOPIC, program=old,
    )  # fmt: skip
    print(report)
    assert report.is_ok, report
    assert len(report.rows) == len(steps)
    assert report.read + report.compacted >= sum(report.acked.values()) > 0
    assert report.batches > 0 and report.cold > 0 and report.copied > 0
    assert report.transactions[TransactionOutcome.COMMITTED] > 0


def test_brokers_of_the_program_before_levels_are_replaced_under_load(tmp_path: Path) -> None:
    old = extract_program(BEFORE_LEVELS, tmp_path / "old")
    steps = [
        fault("one replaced by this program", replace_all("first", [1], THIS_PROGRAM)),
        fault("and back by the earlier one", replace_all("back", [1], old)),
        fault("each replaced by this program", replace_all("all", [2, 3, 1], THIS_PROGRAM, check_level=True)),
        fault("the level raised", raise_level),
        fault("a start of the earlier program refused", refuse_earlier_program(old)),
    ]
    replace_under_load(tmp_path, "s3", old, steps)


def test_last_release_goes_forward_back_and_forward_under_load(tmp_path: Path) -> None:
    old = install_program(LAST_RELEASE, tmp_path / "old")
    newest = HIGHEST_METADATA_VERSION
    steps = [
        fault("all are of the last release", expect_levels(LAST_LEVEL, LAST_LEVEL)),
        fault("each replaced by this program", replace_all("first", [1, 2, 3], THIS_PROGRAM, check_level=True)),
        fault("this program supports more", expect_levels(LAST_LEVEL, newest)),
        fault("each replaced by the last release", replace_all("back", [2, 3, 1], old)),
        fault("the last release supports its level", expect_levels(LAST_LEVEL, LAST_LEVEL)),
        fault("each replaced by this program again", replace_all("again", [3, 1, 2], THIS_PROGRAM, check_level=True)),
        fault("the upgrade finalized", finalize),
        fault("a start of the last release refused", refuse_earlier_program(old)),
    ]
    replace_under_load(tmp_path, "file", old, steps)
    refuse_bucket(old, tmp_path)
