"""Tests of `tiered cluster losses` and `health` after a broker has lost its disk with records that were not in the
bucket."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.cli_cluster import CliCluster
from tests.e2e.serving import SECONDS, ServeProcess


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CliCluster]:
    """Starts a cluster that has lost the records of `hot` with its disk."""
    store = ("--store", f"file://{tmp_path}/bucket")
    with ServeProcess(tmp_path / "data", *store) as broker:
        broker.create_topic("hot")
        broker.create_topic("other")
        broker.produce("hot", 1, 2, 3)
        broker.stop(signal.SIGKILL)
    shutil.rmtree(tmp_path / "data")
    with ServeProcess(tmp_path / "data", *store) as broker, closing(CliCluster("ours", broker.kafka)) as found:
        yield found


def test_losses_are_a_problem_until_they_are_acknowledged(cluster: CliCluster) -> None:
    hot, other = cluster.rows("cluster", "losses")
    assert (hot["topic"], hot["partition"], hot["from_offset"]) == ("hot", 0, 0)
    assert other["topic"] == "other", "it was empty, but not for long enough to be known to be"
    health = json.loads(cluster.run("cluster", "health", "--format", "json", code=10))
    assert health["reasons"] == ["possible losses"]
    assert [each["topic"] for each in health["possible_losses"]] == ["hot", "other"]
    text = cluster.run("cluster", "health", code=10)
    assert "Possible losses (2):" in text and "hot/0 from offset 0 on, other/0 from offset 0 on" in text
    assert [each["topic"] for each in cluster.rows("cluster", "losses", "acknowledge", "-t", "other", "-p", "0")] == [
        "other"
    ]
    assert [each["topic"] for each in cluster.rows("cluster", "losses", "--topic", "other")] == []
    assert "hot" in cluster.run("cluster", "losses")
    assert cluster.run("cluster", "losses", "acknowledge").splitlines()[-1] == "1 acknowledged"
    assert cluster.run("cluster", "losses") == "no possible losses\n"
    assert "Healthy:" in cluster.run("cluster", "health")


def test_offset_above_a_lost_end_is_a_problem_until_it_is_moved(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "offsets"
    file.write_text("hot 0 3\n")
    cluster.run("group", "seek", "g", "--to-file", str(file))
    words = "group g has committed offset 3 of partition hot-0, which ends at 0 after a loss"
    wait_for_problem(cluster, words, is_there=True)
    assert "hot-0 ends at 0, below the committed offset 3" in cluster.run("group", "describe", "g")
    cluster.run("group", "seek", "g", "--to", "end")
    wait_for_problem(cluster, words, is_there=False)


def wait_for_problem(cluster: CliCluster, words: str, *, is_there: bool) -> None:
    """Waits until the health report has a problem with these words, or none."""
    deadline = time.monotonic() + SECONDS
    while (words in cluster.run("cluster", "health", code=10)) != is_there:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_unknown_loss_cannot_be_acknowledged(cluster: CliCluster) -> None:
    said = cluster.run("cluster", "losses", "acknowledge", "--topic", "nope", code=2)
    assert "there is no topic 'nope'" in said
    said = cluster.run("cluster", "losses", "acknowledge", "--topic", "hot", "-p", "7", code=2)
    assert "there is no partition 7 of topic 'hot'" in said
    assert "needs --topic" in cluster.run("cluster", "losses", "-p", "0", code=2)
    assert len(cluster.rows("cluster", "losses")) == 2
