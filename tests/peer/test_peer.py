"""The peer itself: Kafka's tools run, and a broker starts, answers and goes without a trace."""

from __future__ import annotations

import pytest

from tests.peer.kafka import Peer, tool

pytestmark = [pytest.mark.also, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_peer_keeps_its_topics_over_a_stop_and_leaves_nothing_behind() -> None:
    with Peer() as peer:
        tool("topics", "--bootstrap-server", peer.address, "--create", "--topic", "kept", "--partitions", "2")
        peer.stop()
        peer.start()
        assert "kept" in tool("topics", "--bootstrap-server", peer.address, "--list").split()
        assert (peer.logs / "kept-1").is_dir()
        directory = peer.directory
    assert not directory.exists()


def test_a_failing_tool_says_what_it_was_asked() -> None:
    with pytest.raises(RuntimeError, match="dump-log --files /nowhere"):
        tool("dump-log", "--files", "/nowhere/00000000000000000000.log")
