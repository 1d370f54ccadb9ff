"""Seeds of clusters that once failed, the fault, and the test that shows it now.

Each change of a broker or of the simulation changes the run of a seed, so that a seed alone soon shows nothing: its
fault is kept as a test of its own. The seeds run all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import test_node_faults, test_node_races
from tests.sim.__main__ import run_seed
from tests.sim.cluster import (
    test_cluster_checkers,
    test_cluster_cuts,
    test_cluster_model,
    test_cluster_rebuilding,
    test_cluster_replies,
    test_cluster_rot,
    test_cluster_settings,
    test_model_of_copies,
)
from tests.sim.scenarios import (
    test_cut_off,
    test_deleted_records,
    test_follower_node,
    test_losses,
    test_nearest,
    test_start_behind_a_cut,
)
from tests.unit.broker import test_registration
from tests.unit.controller import test_controller
from tests.unit.groups import test_member_requests
from tests.unit.hot import (
    test_log_bad_days,
    test_producer_recovery,
    test_retention,
    test_rotten_logs,
    test_unopened_log,
)
from tests.unit.metadata import test_loader
from tests.unit.replication import test_leader_state, test_producers_behind_the_bucket, test_replica_fetcher

FOUND: dict[int, tuple[str, Callable[..., Any]]] = {
    11603076: (
        "a lost disk took a deletion along, and the topic was tiered later: the model relied on its manifest",
        test_cluster_settings.test_disk_that_is_lost_takes_log_start_along_only_while_nothing_is_cold,
    ),
    11601583: (
        "an I/O error that a roll by age met was known to that log alone, and a kill then hid it from the next start",
        test_node_faults.test_disk_that_fails_under_a_roll_by_age_ends_the_broker,
    ),
    11600819: (
        "the model did not commit a batch that the log start divides, which an uncleanly elected leader has",
        test_cluster_settings.test_uncleanly_elected_leader_commits_batch_that_the_log_start_divides,
    ),
    11600405: (
        "the model relied on records of a log whose topic id a power cut tore, and which the next start deletes",
        test_cluster_checkers.test_log_whose_topic_id_a_power_cut_tore_is_no_log_of_the_next_start,
    ),
    11601835: (
        "rot hit the log of an earlier topic, and the damage was laid to the topic that has its name now",
        test_cluster_rot.test_log_of_an_earlier_topic_of_the_name_is_no_target,
    ),
    11402388: (
        "a leader that was cut off was answered a deletion by the manifest alone, which its successor had read before",
        test_deleted_records.test_deletion_below_min_insync_replicas_is_not_answered,
    ),
    11402378: (
        "a log that was new began where one of an earlier topic of its name had started",
        test_node_races.test_a_log_that_is_new_takes_over_no_offsets_that_are_noted_of_an_earlier_topic_of_its_name,
    ),
    11401862: (
        "a clean stop wrote a producer snapshot anew, which a power cut tore, and retries were written twice",
        test_producer_recovery.test_producers_from_before_the_log_start_survive_stop_and_power_cut,
    ),
    11402112: (
        "bytes that came wrong twice made a leader without its disk forget all but the last batch of a producer",
        test_producers_behind_the_bucket.test_damaged_batches_of_a_producer_are_read_again,
    ),
    11400000: (
        "a record of that moment went with an old segment, for its timestamp was ahead of the broker's clock",
        test_retention.test_a_record_of_this_moment_stays_though_its_clock_is_ahead_and_its_segment_is_old,
    ),
    11410063: (
        "the model believed a log that was new in a life without a boot mark",
        test_cluster_checkers.test_a_directory_is_marked_until_the_machine_loses_power,
    ),
    11410559: (
        "the model knew one end of a partition where the rebuild had gone through several",
        test_cluster_rebuilding.test_i31_a_group_is_where_it_was_or_is_cut_to_the_end,
    ),
    9010668: (
        "the model held a leader to what is cold that was deposed before it could begin",
        test_model_of_copies.test_r5_who_was_deposed_before_it_could_begin_may_begin_below,
    ),
    9031250: (
        "a leader died before it could tell its loss, and who had joined it meanwhile led",
        test_losses.test_nobody_joins_who_leads_with_a_loss_that_is_not_told,
    ),
    8054: (
        "a disk that failed under a log that goes did not end the broker when it was to follow the next",
        test_follower_node.test_a_disk_that_failed_ends_the_broker_when_it_is_to_follow_what_is_new,
    ),
    20519: (
        "the model held a deposed leader to a replica that the metadata log had taken away",
        test_model_of_copies.test_i6_whom_the_metadata_log_took_out_a_leader_may_still_count,
    ),
    21472: (
        "a loss that was told while another leader was elected was told to nobody",
        test_controller.test_loss_of_an_earlier_leader_counts_and_lowest_offset_stays,
    ),
    50083: (
        "a log that began anew on a full disk kept the epochs of before, and its followers began anew without end",
        test_leader_state.test_an_empty_log_at_the_cold_end_knows_the_epochs_below_or_restarts,
    ),
    50190: (
        "a start waited 30 s for one connection",
        test_start_behind_a_cut.test_a_broker_that_starts_behind_a_cut_serves_soon_after_it_is_mended,
    ),
    2042069: (
        "an I/O error under a checkpoint did not end the broker",
        test_node_faults.test_a_disk_that_fails_under_a_checkpoint_ends_the_broker_too,
    ),
    2044372: (
        "a follower that cut its log kept the old point up to which it was durable",
        test_replica_fetcher.test_nothing_is_fetched_until_a_truncation_is_durable,
    ),
    2060655: (
        "the model asked for records below the log start",
        test_model_of_copies.test_what_lies_below_the_log_start_may_be_of_another_history,
    ),
    2064508: (
        "a member that asked for its place again kept the session from before, and lost its place with it",
        test_member_requests.test_member_that_repeats_a_request_starts_a_new_session,
    ),
    5011457: (
        "a replica that went elsewhere while its broker started left its log there, open",
        test_loader.test_changes_during_a_start_are_applied,
    ),
    5021583: (
        "the model held a follower that had been put out, and heard a leader of before, to what was committed since",
        test_cluster_cuts.test_i7_a_copy_that_counts_for_nobody_may_follow_who_led_before,
    ),
    6000217: (
        "what a full disk kept closed counted as empty in an election, and another one led with less",
        test_unopened_log.test_after_a_power_cut_it_reaches_as_far_as_an_opening_finds_and_writes_nothing,
    ),
    7020636: (
        "rot that was found came back with a power cut, below the point from which on the next start looked",
        test_rotten_logs.test_corruption_that_returns_after_a_power_cut_is_truncated_again,
    ),
    7003915: (
        "the model asked of who joined and came back within one slot what it had when it was back",
        test_cluster_cuts.test_i10_who_joined_and_came_back_within_one_slot_was_relied_on_before_it_was_hurt,
    ),
    7013914: (
        "a broker that was fenced before it acted on its first leadership told nobody what a power cut may have taken",
        test_registration.test_a_log_stays_in_doubt_until_somebody_else_leads,
    ),
    7022703: (
        "a power cut took what was known of producers, once the segments that it was made from had been dropped",
        test_log_bad_days.test_producers_of_dropped_segments_survive_a_power_cut,
    ),
    7023257: (
        "retention by age of a local segment took what was before it in the bucket, and younger",
        test_retention.test_age_deletes_nothing_after_records_that_only_the_bucket_has,
    ),
    7021195: (
        "a damaged producer snapshot was kept open after it had been removed",
        test_log_bad_days.test_a_damaged_producer_snapshot_never_goes_to_the_bucket,
    ),
    7030212: (
        "the checker wanted the order of what was under way together where the broker had lost all of the producer",
        test_cluster_checkers.test_i12_a_sender_finds_its_records_in_order,
    ),
    11000880: (
        "the model did not know that a commit refused for lack of replicas may be in the log",
        test_cluster_checkers.test_i18_what_a_coordinator_showed_stays_until_somebody_commits_something_else,
    ),
    11001031: (
        "the model asked at the end for a committed offset that was cut back where records were lost",
        test_cluster_checkers.test_i18_a_group_may_be_where_its_partition_ends_that_lost_records,
    ),
    11000932: (
        "a log that began behind the bucket knew no retries of what only sub-manifests name",
        test_producers_behind_the_bucket.test_retries_are_known_by_segments_that_only_sub_manifests_name,
    ),
    11000209: (
        "a leader that had heard of the next one, or was behind the controller, acknowledged after an unclean election",
        test_cut_off.test_a_leader_that_hears_of_another_one_leads_no_more_in_the_same_turn,
    ),
    11000285: (
        "the model wanted a manifest that names nothing to say where a log starts",
        test_cluster_model.test_i21_a_log_on_a_disk_starts_no_higher_than_its_manifest,
    ),
    11000590: (
        "the model did not know whom a broker had relied on that left in one slot with another one's return",
        test_cluster_cuts.test_i10_who_came_back_unproved_within_one_slot_was_relied_on_by_who_left_in_it,
    ),
    11000871: (
        "a log that its broker alone held counted as empty once a move of it had begun",
        test_losses.test_who_begins_to_move_while_its_only_broker_starts_is_led_by_who_has_the_records,
    ),
    11001077: (
        "a broker that was to lead, and did not yet, sent consumers away from what is cold",
        test_nearest.test_a_follower_that_is_to_lead_sends_nobody_away_before_it_leads,
    ),
    11001247: (
        "the model knew nothing of what a leader begins with after two unclean elections",
        test_cluster_cuts.test_i6_what_a_leader_knows_to_be_committed_from_before_is_so_again_after_an_unclean_election,
    ),
    11001491: (
        "a leader asked for a new incarnation by what the one before had",
        test_leader_state.test_new_incarnation_does_not_join_isr_by_the_old_ones_position,
    ),
    11100104: (
        "a power cut brought back the note that a log had rotted",
        test_rotten_logs.test_log_stays_suspect_until_cleared_however_its_process_ends,
    ),
    11100511: (
        "a deletion that the bucket did not take kept followers out of the in-sync set",
        test_deleted_records.test_a_deletion_that_the_bucket_did_not_take_keeps_nobody_out_of_the_in_sync_set,
    ),
    11300287: (
        "a broker that had a loss to tell wrote before it told, and its next start told the loss from behind that",
        test_losses.test_who_has_a_loss_to_tell_writes_nothing_and_its_next_start_tells_it_whole,
    ),
    11300365: (
        "a broker that was cut off stood for controller on what an earlier one had said of the bucket",
        test_cut_off.test_what_a_controller_said_of_the_bucket_says_nothing_to_who_was_cut_off_since,
    ),
    11500009: (
        "the model asked of a leader that was elected uncleanly for a deletion that the one before had answered",
        test_cluster_replies.test_i22_who_is_elected_uncleanly_may_lack_a_deletion,
    ),
    11001847: (
        "a follower cut its log below its start, led next, and wrote what nobody could read or copy",
        test_replica_fetcher.test_log_start_above_the_leaders_end_moves_to_the_copied_records,
    ),
}
"""By seed. Of 21583, 160809, 3003123, 6000070, 7013274 and 7014723 nothing but the end of a run was wrong (what it
waits for, and that what is read then comes byte by byte), of 6020474 the model alone, of 7010897 and 7024706 what rots
(where no start looks); 7003055 is as 7023257, and 7004537 as 7022703. Why 5241, 6746 and 6972 were not live in time was
never found, and they are in time since."""
ENDS = (21583, 160809, 5241, 6746, 6972)


@pytest.mark.parametrize("seed", sorted((*FOUND, *ENDS)))
def test_a_seed_that_once_failed_does_not(seed: int) -> None:
    story = run_seed(seed, "cluster")[1]
    assert not story, story


def test_what_a_seed_found_is_shown_by_a_test_that_runs() -> None:
    for seed, (what, test) in FOUND.items():
        assert what and test.__name__.startswith("test_") and callable(test), seed
