"""Directed scenarios for mutants that a search finds rarely: each holds without its bug, and breaks with it."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.cluster import test_transition_rules
from tests.sim.mutants import cleaning_scenarios
from tests.sim.scenarios import test_transactional_offsets, test_transactions
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tests.unit.cold import test_uploader
from tests.unit.controller import test_partition_transitions
from tests.unit.coordinator import test_runtime_transactions
from tests.unit.coordinator.counters import CounterRig
from tests.unit.replication import test_leader_state, test_offset_lookup_of_epochs
from tiered.controller.requests import CreateTopic
from tiered.metadata.image import Image
from tiered.metadata.layout import Entry, encode_entry, slot_key


def slow_reader_meets_old_slot() -> None:
    """Rule M3: a broker that froze reads the slot after its own one. The boundary has passed that slot long ago."""

    images: list[Image] = []

    async def scenario(three: ThreeBrokers) -> None:
        leader, reader = three.controller, three.others()[0]
        slot, epoch = reader.node.image.slot + 1, reader.node.image.controller_epoch
        three.loop.freeze(reader.process)
        for name in ("a", "b"):
            await leader.node.submit(CreateTopic(name, 1, 1))
            await leader.node._metadata.write_snapshot(leader.node.image)
        assert slot_key(slot) not in three.bucket.objects, "collected"
        await leader.machine.store.put(slot_key(slot), encode_entry(Entry(slot, epoch, "late", ())), if_absent=True)
        await reader.node.cluster.standby.catch_up()
        images[:] = leader.node.image, reader.node.image
        three.loop.resume(reader.process)

    run_scenario(scenario)
    assert images[0] == images[1], f"the reader is at {images[1].slot} of {images[0].slot}"


SCENARIOS: dict[str, Callable[[], None]] = {
    "recreated_slot": slow_reader_meets_old_slot,
    "progress_of_removed": test_leader_state.test_progress_of_a_removed_replica_is_forgotten,
    "deletion_past_proposed": test_transition_rules.test_i22_deletion_that_passes_over_a_proposed_member_is_reported,
    "older_offset_outlives": test_transition_rules.test_i15_older_offset_that_outlives_a_commit_is_reported,
    "any_marker_completes": test_transition_rules.test_i14_completion_without_its_markers_is_reported,
    "r4_first_leads": test_partition_transitions.test_most_complete_log_of_several_last_known_leads,
    "unclean_election": test_partition_transitions.test_replica_that_leaves_a_small_isr_stays_eligible,
    "r2_joins_behind": test_leader_state.test_follower_joins_isr_only_at_epoch_start,
    "sweep_too_early": test_uploader.test_sweep_spares_the_object_of_an_undecided_change,
    "wrong_cold_epoch": test_offset_lookup_of_epochs.test_end_of_a_cold_epoch_is_found_in_lineages_of_segments,
    "fenced_upload": test_uploader.test_upload_of_a_fenced_leader_is_not_named,
    "marker_before_decision": test_transactions.test_no_marker_is_written_before_the_outcome_is_committed,
    "old_marker": lambda: test_transactions.test_marker_of_an_earlier_coordinator_ends_no_later_transaction(version=2),
    "guard_outlives_marker": lambda: (
        test_runtime_transactions.test_coordinator_refuses_records_that_a_marker_overtook_and_goes_on(CounterRig())
    ),
    "markers_forgotten": lambda: (
        test_transactions.test_markers_of_a_decided_transaction_are_sent_by_the_next_coordinator(commit=True)
    ),
    "commit_aborted_at_move": lambda: (
        test_transactions.test_markers_of_a_decided_transaction_are_sent_by_the_next_coordinator(commit=True)
    ),
    "timeouts_forgotten": test_transactions.test_timeout_goes_on_at_the_next_coordinator,
    "fence_forgotten": test_transactions.test_fence_holds_at_the_next_coordinator,
    "unstable_offsets": lambda: (
        test_transactional_offsets.test_offset_of_an_open_transaction_moves_with_the_group_coordinator(commit=True)
    ),
    "pending_not_in_image": (
        test_transactional_offsets.test_offset_of_a_decided_transaction_survives_the_loss_of_all_disks
    ),
    "tombstone_too_early": cleaning_scenarios.tombstones_are_cleaned_twice,
    "lost_at_pass_boundary": cleaning_scenarios.keys_take_several_cleans,
    "pass_boundary_forgotten": cleaning_scenarios.keys_take_several_cleans,
    "last_sequence_cleaned": cleaning_scenarios.producer_writes_no_more,
    "marker_before_data": cleaning_scenarios.transactions_are_cleaned,
    "aborted_supersedes": cleaning_scenarios.transactions_are_cleaned,
    "cleaned_past_stable": cleaning_scenarios.transaction_stays_open,
    "cleaned_past_watermark": cleaning_scenarios.followers_are_behind,
    "cleaned_too_young": cleaning_scenarios.records_are_young,
    "old_time_index": cleaning_scenarios.times_are_looked_up,
    "swap_before_sync": cleaning_scenarios.power_goes_at_every_step,
    "replaced_left": cleaning_scenarios.power_goes_at_every_step,
    "manifest_names_old_and_new": cleaning_scenarios.objects_are_cleaned,
    "replaced_too_early": cleaning_scenarios.objects_are_cleaned,
    "cold_boundary_forgotten": cleaning_scenarios.objects_are_cleaned,
    "cold_tombstone_too_early": cleaning_scenarios.objects_are_cleaned,
    "successor_lacks_a_batch": cleaning_scenarios.objects_are_cleaned,
    "compact_only_expires": cleaning_scenarios.compact_only_topic_keeps_everything,
}
"""The scenario of each such mutant, by its name."""
