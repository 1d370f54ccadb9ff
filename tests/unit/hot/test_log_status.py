"""Tests of the status of a log: what a failure and a close end."""

from __future__ import annotations

import pytest

from tiered.errors import Code, Refused, Unavailable
from tiered.hot.log_status import LogStatus


def test_open_log_takes_writes_and_fsyncs() -> None:
    status = LogStatus()
    status.check_open("log/t-0")
    status.check_syncable("log/t-0")
    status.require_writable("t-0")
    assert (status.write_failure, status.has_disk_failed, status.is_closed) == ("", False, False)


@pytest.mark.parametrize("final", [False, True])
def test_failed_log_refuses_writes_and_fsyncs_with_the_cause(final: bool) -> None:
    status = LogStatus()
    status.fail("no room", final=final)
    with pytest.raises(Refused, match="no room") as refused:
        status.require_writable("t-0")
    with pytest.raises(Unavailable, match="no room") as failed:
        status.check_syncable("log/t-0")
    assert (refused.value.code, failed.value.final) == (Code.KAFKA_STORAGE_ERROR, final)
    status.check_open("log/t-0")


def test_failed_disk_does_not_recover_by_a_lesser_failure() -> None:
    status = LogStatus()
    status.fail("sync failed", final=True)
    status.fail("no room", final=False)
    assert status.has_disk_failed


def test_closed_log_is_neither_written_nor_synced() -> None:
    status = LogStatus()
    status.is_closed = True
    with pytest.raises(Refused, match="the log of t-0 is closed"):
        status.require_writable("t-0")
    for check in (status.check_open, status.check_syncable):
        with pytest.raises(Unavailable, match="log/t-0 is closed") as closed:
            check("log/t-0")
        assert not closed.value.final
