"""Tests of the Kafka beside us: its tools run, and a broker starts, replies and ends without a trace."""

from __future__ import annotations

import pytest

from tests.peer.kafka import Peer, tool

pytestmark = [pytest.mark.also("kafka"), pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


def test_peer_keeps_its_topics_over_a_stop_and_leaves_no_files() -> None:
    with Peer() as peer:
        tool("topics", "--bootstrap-server", peer.address, "--create", "--topic", "kept", "--partitions", "2")
        peer.stop()
        peer.start()
        assert "kept" in tool("topics", "--bootstrap-server", peer.address, "--list").split()
        assert (peer.logs / "kept-1").is_dir()
        directory = peer.directory
    assert not directory.exists()


def test_error_of_a_failed_tool_has_its_command() -> None:
    with pytest.raises(RuntimeError, match="dump-log --files /nowhere"):
        tool("dump-log", "--files", "/nowhere/00000000000000000000.log")
