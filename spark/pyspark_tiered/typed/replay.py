"""Makes rows of dead letters that fit by now: after a change of the table, or of what this program reads.

A step takes some files of the dead letters. It commits the rows first, and then takes them out of the letters. A replay
that ends between the two leaves offsets that are rows and letters: `verify` lists them, and the next replay only takes
them out. Two replays at once do not double a row: each commit of rows counts up one transaction identifier of the typed
table, and is valid only if no other replay has moved that identifier since the rows were read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.table_form import LoadedFile, Range, ReplacedFile
from pyspark_tiered.log.bucket import ColdTopicReader, never_loaded
from pyspark_tiered.proof.erasures import ErasureReader, join_ranges
from pyspark_tiered.proof.sums import is_inside
from pyspark_tiered.schemas.registry import ANY_REGISTRY, RegistryChoice
from pyspark_tiered.schemas.sorting import RegisteredKinds, sort_records
from pyspark_tiered.typed import form
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.convert import keep_letters, open_letters, open_rows, typed_batch
from pyspark_tiered.typed.evolve import is_stored_as
from pyspark_tiered.typed.kinds import StructOf, select_columns
from pyspark_tiered.typed.tables import DeadLetters, Json, OnFile, Places, TypedTable
from tiered.errors import Unavailable

STEP_BYTES = 64 << 20
"""Bytes of files of dead letters in one step."""
REPLAYED = {"operation": "REPLAY", "operationParameters": {}}
ATTEMPTS = 10
"""Steps in a row that may lose to other writers."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of a replay. `rows` left the dead letters and are rows, `left` are dead letters still."""

    step: str
    table: str
    rows: int = 0
    left: int = 0


Report = Callable[[ReplayProgress], None]


def replay_dead(
    store: str,
    topic: str,
    warehouse: str,
    progress: Report = lambda _: None,
    on_file: OnFile = lambda *_: None,
    registry: RegistryChoice = ANY_REGISTRY,
) -> ReplayProgress:
    """Makes rows of the dead letters of `<warehouse>/<topic>` that fit by now. `on_file` takes how many files of dead
    letters are done, of how many. `registry`: where the schemas of values are.

    Raises `Refused` if the topic has no typed table, `Unavailable` if other writers always come first.
    """
    with closing(ColdTopicReader(store)) as reader:
        topic_id = reader.topic_id(topic)
        brokers = reader.broker_addresses()
    url = f"{spark_url(warehouse)}/{topic}"
    with (
        closing(TypedTable(f"{url}{form.TYPED_SUFFIX}", topic, topic_id)) as typed,
        closing(DeadLetters(f"{url}{form.DEAD_SUFFIX}", topic, topic_id)) as letters,
        closing(ErasureReader(url, topic_id)) as erasures,
    ):
        typed.snapshot()
        if typed.rules() is None:
            raise never_loaded(topic, typed.url)
        kinds = typed.registered_kinds(registry._replace(waits=False), lambda: brokers)
        return Replay(typed, letters, erasures, progress, on_file, kinds).run()


class Replay:
    """A replay in progress."""

    def __init__(
        self,
        typed: TypedTable,
        letters: DeadLetters,
        erasures: ErasureReader,
        report: Report = lambda _: None,
        on_file: OnFile = lambda *_: None,
        registered: RegisteredKinds | None = None,
    ) -> None:
        self._registered = registered
        self._on_file = on_file
        self._typed = typed
        self._letters = letters
        self._erasures = erasures
        self._report = report
        self._rows = 0
        self._left = 0

    def run(self) -> ReplayProgress:
        """Runs all steps, and all again if another writer came first: it may have written the files of letters anew."""
        for _ in range(ATTEMPTS):
            self._left = 0
            self._letters.snapshot()
            self._letters.check_removal()
            if self._run_steps(self._letters.files()):
                done = ReplayProgress("done", self._typed.url, self._rows, self._left)
                self._report(done)
                return done
        raise Unavailable(f"{ATTEMPTS} other commits to {self._typed.url} came first: try again")

    def _run_steps(self, files: Sequence[Json]) -> bool:
        """Replays the letters of all files. Returns false if another writer committed first."""
        done = 0
        for step in _steps(files):
            self._on_file(done, len(files))
            if not self._run_step(step):
                return False
            done += len(step)
        self._on_file(done, len(files))
        return True

    def _run_step(self, files: Sequence[Json]) -> bool:
        """Replays the letters of some files. Returns false if another writer committed first."""
        for _ in range(ATTEMPTS):
            at = self._letters.pin().state
            if not at.has_files(files):
                return False
            if self._replay_files(at, files):
                self._report(ReplayProgress("replayed", self._typed.url, self._rows, self._left))
                return True
        return False

    def _replay_files(self, at: TableState, files: Sequence[Json]) -> bool:
        # The loaded offsets are read first: no load commits rows below them later.
        loaded = self._typed.loaded_offsets()
        before, metadata, schema = self._typed.replays(), self._typed.metadata, self._typed.schema()
        changes = self._typed.applied_rules()
        # An erasure whose record comes after this look changes the metadata, so that the rows are not committed.
        erased = join_ranges(self._erasures.read())
        places = self._letters.places(files)
        there = self._typed.find_places(places)
        candidates = _candidates(places, there, loaded, erased)
        if not any(map(len, candidates.values())) and not any(map(len, there.values())):
            self._left += sum(map(len, places.values()))
            return True
        done = self._convert(files, candidates, there, schema, changes)
        while not all(is_stored_as(columns, select_columns(done.schema)) for columns in done.columns):
            done = self._convert(files, candidates, there, done.schema, changes)
        if done.files:
            if select_columns(done.schema) != select_columns(schema):
                if not self._typed.grow(done.schema):
                    return False
                metadata = self._typed.metadata
            if not self._typed.append_replayed(done.files, before, metadata):
                return False
        replaced = [ReplacedFile(add, 0, None, "") for add in files]
        if done.gone and not self._letters.replace_files(at, replaced, REPLAYED, files=done.rest):
            return False
        self._rows += done.gone
        self._left += done.left
        return True

    def _convert(
        self, files: Sequence[Json], candidates: Places, there: Places, schema: StructOf, changes: Sequence[FieldRule]
    ) -> _Converted:
        """Writes the candidates that fit to new files of the typed table, and all other letters to new files of theirs.

        Letters that are rows already are left out of both.
        """
        import numpy as np
        import pyarrow as pa

        name = f"replayed-{uuid.uuid4()}"
        rows, rest = open_rows(self._typed.url, name), open_letters(self._letters.url, name)
        gone = left = 0
        with rows, rest:
            for number, batch in self._letters.read(files):
                offsets = batch.column("_offset").to_numpy()
                is_candidate = np.isin(offsets, candidates.get(number, ()))
                is_there = np.isin(offsets, there.get(number, ()))
                chosen = batch.filter(pa.array(is_candidate))
                parts = [chosen.column(part) for part in ("_key", "_value", "_headers")]
                found = sort_records(parts, schema, changes, self._registered).found
                schema = found.schema
                is_row = is_candidate.copy()
                is_row[np.flatnonzero(is_candidate)[[at for at, _ in found.dead]]] = False
                fits = batch.filter(pa.array(is_row)).select(["_offset", "_timestamp", "_key", "_headers"])
                fits = fits.rename_columns(["offset", "timestamp", "key", "headers"])
                rows.add(typed_batch(fits, number, found.rows, schema), select_columns(schema))
                rest.add(keep_letters(batch, pa.array(~is_row & ~is_there)))
                rows.end_run()
                rest.end_run()
                gone += int((is_row | is_there).sum())
                left += int((~is_row & ~is_there).sum())
        return _Converted(rows.files, rows.columns, rest.files, schema, gone, left)


class _Converted(NamedTuple):
    """Files of rows and their columns, files of the letters that stay, the schema, and how many letters go and stay."""

    files: list[LoadedFile]
    columns: list[StructOf]
    rest: list[LoadedFile]
    schema: StructOf
    gone: int
    left: int


def _steps(files: Sequence[Json]) -> Iterator[list[Json]]:
    """Yields the files in steps of about equal bytes."""
    step: list[Json] = []
    size = 0
    for add in files:
        if step and size + int(add.get("size") or 0) > STEP_BYTES:
            yield step
            step, size = [], 0
        step.append(add)
        size += int(add.get("size") or 0)
    if step:
        yield step


def _candidates(
    places: Places, there: Places, loaded: Mapping[int, int], erased: Mapping[int, Sequence[Range]]
) -> Places:
    """Returns the letters that may become rows: each once, of a loaded offset, not erased, and no row yet."""
    import numpy as np

    found = {}
    for number, offsets in places.items():
        each, counts = np.unique(offsets, return_counts=True)
        is_erased = is_inside(each, erased.get(number, ()))
        each = each[(counts == 1) & (each < loaded.get(number, -1)) & ~is_erased]
        found[number] = np.setdiff1d(each, there[number]) if number in there else each
    return found
