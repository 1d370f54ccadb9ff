"""Tests of what a start trusts before it reads a log."""

from __future__ import annotations

import pytest

from tiered.hot.log_recovery import LogRecovery
from tiered.hot.recovery import WHOLE_LOG


@pytest.mark.parametrize(
    ("same_boot", "clean", "trusted_to", "flushed"),
    [(False, False, 40, 40), (True, False, WHOLE_LOG, 40), (False, True, WHOLE_LOG, 90), (True, True, WHOLE_LOG, 90)],
)
def test_page_cache_is_trusted_in_one_boot_and_fsynced_by_a_clean_stop(
    same_boot: bool, clean: bool, trusted_to: int, flushed: int
) -> None:
    left = LogRecovery(same_boot, clean, recovery_point=40)
    assert (left.trusted_to, left.find_flushed(90)) == (trusted_to, flushed)
    assert left.find_flushed(30) == 30, "nothing beyond the end of a log is fsynced"


def test_log_below_its_recovery_point_or_half_truncated_lost_records() -> None:
    left = LogRecovery(same_boot=True, clean=False, recovery_point=40)
    assert left.may_end_below_recovery_point(39) and not left.may_end_below_recovery_point(40)
    cut = LogRecovery(same_boot=True, clean=False, recovery_point=40, truncation_interrupted=True)
    assert cut.may_end_below_recovery_point(90)
    assert (left.checkpointed_recovery_point, cut.checkpointed_recovery_point) == (40, WHOLE_LOG)
