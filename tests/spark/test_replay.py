"""Tests of replays of dead letters without a JVM: each letter that fits becomes a row once, through kills and races."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.typed import replay
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.replay import ReplayProgress, replay_dead
from pyspark_tiered.typed.tables import DeadLetters, TypedTable
from tests.spark.typed_site import Site, encode, rows_of
from tiered.errors import Refused

BEYOND = 1 << 64


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Returns a topic with numbers beyond 64 bits that were dead letters before their column became a double."""
    made = Site(tmp_path, partitions=2)
    for number in (0, 1):
        made.write(encode({"x": 1}, {"x": BEYOND}, {"x": "text"}, {"x": BEYOND, "new": number}), partition=number)
    made.load()
    made.write(encode({"x": 0.5}))
    made.load()
    return made


def run(site: Site) -> ReplayProgress:
    return replay_dead(site.store, "t", site.warehouse)


def test_letters_that_fit_become_rows_and_others_stay(site: Site) -> None:
    assert (site.verify().ok, site.verify().dead, site.verify().fitting) == (True, 6, 2)
    done = run(site)
    assert (done.step, done.rows, done.left) == ("done", 4, 2)
    assert site.columns() == "x double, new bigint"
    assert site.rows("x", "new") == [
        (1.0, None), (2.0**64, None), (2.0**64, 0), (0.5, None), (1.0, None), (2.0**64, None), (2.0**64, 1),
    ]  # fmt: skip
    assert [row[0] for row in rows_of(site.dead(), ("_offset",))] == [2, 2]
    site.check_offsets()
    found = site.verify()
    assert (found.ok, found.rows, found.dead, found.fitting) == (True, 7, 2, 0)
    versions = site.typed().version, site.dead().version
    assert (run(site).rows, site.typed().version, site.dead().version) == (0, *versions)


def test_loads_go_on_after_a_replay(site: Site) -> None:
    run(site)
    site.write(encode({"x": 2}, {"x": [1]}))
    assert (site.load().typed_rows, site.load().dead_letters) == (1, 0)
    assert site.verify().ok
    site.check_offsets()


class Killed(Exception):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.parametrize("step", ["append_replayed", "replace_files", "grow"])
@pytest.mark.parametrize("landed", [False, True])
def test_replay_that_ends_between_its_commits_is_completed_by_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: str, landed: bool
) -> None:
    with monkeypatch.context() as patch:
        owner = DeadLetters if step == "replace_files" else TypedTable
        real = getattr(owner, step)

        def kill(*arguments: Any, **more: Any) -> bool:
            if landed:
                real(*arguments, **more)
            raise Killed

        patch.setattr(owner, step, kill)
        with pytest.raises(Killed):
            run(site)
    is_between = (step, landed) in (("append_replayed", True), ("replace_files", False))
    assert site.verify().ok != is_between, "a row that is a letter too is listed"
    run(site)
    site.check_offsets()
    assert site.verify().ok
    assert site.verify().rows == 7


def test_replays_at_once_and_a_load_have_each_record_once(site: Site) -> None:
    site.write(encode(*({"x": at, "later": "t"} for at in range(100))))
    with ThreadPoolExecutor(3) as pool:
        loaded = pool.submit(site.load)
        for started in [pool.submit(run, site), pool.submit(run, site)]:
            started.result(60)
        loaded.result(60)
    site.check_offsets()
    assert site.verify().ok


def test_letters_of_several_steps_are_replayed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(encode({"x": "more"}, {"x": [BEYOND]}))
    site.load()
    monkeypatch.setattr(replay, "STEP_BYTES", 1)
    assert (run(site).rows, len(site.dead().files())) == (4, 2)
    assert site.verify().ok


def test_letter_ahead_of_the_rows_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(encode({"x": [1]}, {"x": 3}))
    with monkeypatch.context() as patch:

        def kill(*arguments: Any, **more: Any) -> bool:
            raise Killed

        patch.setattr(TypedTable, "commit", kill)
        with pytest.raises(Killed):
            site.load()
    assert run(site).left == 3
    site.load()
    site.check_offsets()


def test_letter_ahead_of_the_rows_stays_though_it_fits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load that goes on decides it again: a row of a replay would be there twice."""
    site.write(encode({"x": "text"}, {"x": 3}))
    with monkeypatch.context() as patch:

        def kill(*arguments: Any, **more: Any) -> bool:
            raise Killed

        patch.setattr(TypedTable, "commit", kill)
        with pytest.raises(Killed):
            site.load()
    ahead = 0, site.typed().loaded_offsets()[0]
    assert ahead in rows_of(site.dead(), ("_partition", "_offset"))
    FieldChanger(site.store, "t", site.warehouse, "x").retype("string")
    run(site)
    assert ahead in rows_of(site.dead(), ("_partition", "_offset")), (
        "the load that was killed is still to bring its row"
    )
    site.load()
    site.check_offsets()
    run(site)
    site.check_offsets()
    assert site.verify().ok and ahead not in rows_of(site.dead(), ("_partition", "_offset"))


def test_topic_without_a_typed_table_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(Refused, match="there is no table at"):
        run(site)
