"""Tests of the plan of `tiered cluster drain`: which settings change, and which topics stay on disks."""

from __future__ import annotations

from tiered_api.cli.cluster.drain import FlushChange, TopicFlush, plan_drain


def test_default_of_all_topics_changes_and_topics_with_their_own_value() -> None:
    plain, own = TopicFlush("plain", "none", False, True), TopicFlush("own", "ack", True, True)
    there = TopicFlush("there", "bucket", True, True)
    plan = plan_drain([plain, own, there], None)
    assert plan.changes == (FlushChange("", None, "bucket"), FlushChange("own", "ack", "bucket"))
    assert plan.left_out == ()


def test_drained_cluster_changes_nothing() -> None:
    assert plan_drain([TopicFlush("t", "bucket", False, True)], "bucket").changes == ()


def test_topic_without_a_copy_keeps_its_value_before_the_default_changes() -> None:
    local, own = TopicFlush("local", "none", False, False), TopicFlush("own", "ack", True, False)
    plan = plan_drain([local, own], "none")
    assert plan.changes == (FlushChange("local", None, "none"), FlushChange("", "none", "bucket"))
    assert plan.left_out == ("local", "own")


def test_internal_topics_need_no_segments_in_the_bucket() -> None:
    """Snapshots of coordinators have their records."""
    plan = plan_drain([TopicFlush("__consumer_offsets", "none", False, False)], None)
    assert plan == ((FlushChange("", None, "bucket"),), ())
