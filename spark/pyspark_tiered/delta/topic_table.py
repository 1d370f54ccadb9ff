"""The rules by which a table is sound: no row that the next load would repeat, no loaded row that others removed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pyspark_tiered.delta import history
from pyspark_tiered.delta.history import FileExtent, RowRemoval, TableCommit
from pyspark_tiered.delta.snapshot import Snapshot, UnaccountedRows
from pyspark_tiered.delta.table_form import LATEST, MODE
from tiered.errors import Code, Refused

log = logging.getLogger(__name__)

NAMED_MAX = 3
"""Partitions that an error names at most."""


REPAIRED_BY = "`tiered load --repair` compares the table with the log and repairs both"
"""The way out if a raw table has rows that no identifier covers."""
RESTORED_BY = "`tiered load --repair` puts back what the log still holds"
"""The way out if others removed rows of a raw table."""


def check_mode(now: Snapshot, wanted: str) -> None:
    """Raises `Refused` if the table has another mode than the load."""
    if now.version < 0 or now.properties().get(MODE, "") == wanted:
        return
    if wanted != LATEST:
        refuse_latest(now.properties(), now.url, "and a load appends", ": load with `--mode latest`")
    why = f"the table at {now.url} has a row for each record, and no command changes the mode of a table yet"
    raise Refused(Code.INVALID_REQUEST, f"{why}: load without --mode, or into another warehouse")


def refuse_latest(properties: Mapping[str, str], url: str, what: str, way_out: str = "") -> None:
    """Raises `Refused` if the table is in mode latest, in which `what` is not possible."""
    if properties.get(MODE, "") == LATEST:
        why = f"the table at {url} is in mode latest, {what}{way_out}"
        raise Refused(Code.INVALID_REQUEST, why)


def check_bounds(
    now: Snapshot,
    commits: Sequence[TableCommit],
    loaded: Mapping[int, int],
    checked: Mapping[int, int] | None,
    repaired_by: str,
) -> None:
    """Raises `Refused` if the table has rows that no identifier covers: the next load would repeat them.

    `checked` are the identifiers at the last check by this process, and the commits came since; None: it made none.
    """
    if checked is None:
        extents = now.extents()
    else:
        extents = [
            change.extent for each in commits if not each.by_loader for change in each.added if change.changes_data
        ]
        extents += [FileExtent(lost, lost, 0) for lost in checked.keys() - loaded.keys()]
    if found := _find_unaccounted(now, commits, extents, loaded):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {now.url} {_describe_unaccounted(found, loaded, 'load')}. {repaired_by}",
        )


def check_removals(found: Sequence[RowRemoval], now: Snapshot, loaded: Mapping[int, int], restored_by: str) -> None:
    """Raises `Refused` if others removed rows that nobody selected. Warns of those that a user selected."""
    wholesale = [removal for removal in found if not removal.is_selective]
    if wholesale:
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {now.url} lacks loaded rows: {_describe_removals(wholesale, now, loaded)}. "
            f"{restored_by}, `tiered load --accept-deletes` goes on without them",
        )
    for removal in found:
        log.warning(
            "rows were removed from the table since the last load, loading goes on table=%s by=%s",
            now.url,
            removal.description,
        )


def check_accounted(now: Snapshot) -> None:
    """Raises `Refused` if the table has rows that no identifier covers: a query that adds the newer records of the log
    could count them twice."""
    loaded, extents = now.loaded_offsets(), now.extents()
    refuse_latest(now.properties(), now.url, "whose rows go when newer records come", ": query the table alone")
    if not history.may_hold_unaccounted(extents, loaded, None):
        return
    commits, _ = now.commits()
    if found := _find_unaccounted(now, commits, extents, loaded):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {now.url} {_describe_unaccounted(found, loaded, 'query with newer records')}. "
            f"{REPAIRED_BY}. Or query the table alone, without store and bootstrap",
        )


def _find_unaccounted(
    now: Snapshot, commits: Sequence[TableCommit], extents: Sequence[FileExtent], loaded: Mapping[int, int]
) -> list[UnaccountedRows]:
    """Returns rows that no identifier covers. Reads rows only if statistics leave it open. `commits` are those since
    the last mark."""
    marks = [each.mark for each in commits if each.mark is not None]
    trusted = int(marks[-1].get("identifiers", len(loaded))) if marks and "checked" in marks[-1] else None
    has_foreign_rows = any(change.changes_data for each in commits if not each.by_loader for change in each.added)
    if not history.may_hold_unaccounted(extents, loaded, None if has_foreign_rows else trusted):
        return []
    return now.find_unaccounted_rows(loaded)


def _describe_unaccounted(found: Sequence[UnaccountedRows], loaded: Mapping[int, int], reader: str) -> str:
    """Describes rows that no identifier covers, and that this reader could count twice."""
    parts = []
    for partition, first, last in found[:NAMED_MAX]:
        if partition is None:
            parts.append("rows without a partition or an offset")
        elif partition in loaded:
            parts.append(
                f"rows of partition {partition} from offset {first} to {last}, loaded only up to {loaded[partition]}"
            )
        else:
            parts.append(f"rows of partition {partition} up to offset {last} and no transaction identifier of it")
    more = f" and of {len(found) - NAMED_MAX} more partitions" if len(found) > NAMED_MAX else ""
    return (
        f"holds {'; '.join(parts)}{more}: a {reader} could duplicate them (the identifiers expired by "
        "delta.setTransactionRetentionDuration, the table's log was rewritten, or others wrote these rows)"
    )


def _describe_removals(wholesale: Sequence[RowRemoval], now: Snapshot, loaded: Mapping[int, int]) -> str:
    """Describes the commits that removed rows, and what is left."""
    by = ", ".join(removal.description for removal in wholesale[-NAMED_MAX:])
    extents = now.extents()
    table_ends = {first: offset + 1 for first, last, offset, _ in extents if first == last and offset is not None}
    has_separate_files = all(first is not None and first == last for first, last, _, _ in extents)
    short = [
        (number, table_ends.get(number, 0), end)
        for number, end in sorted(loaded.items())
        if has_separate_files and table_ends.get(number, 0) < end
    ]
    parts = [
        f"partition {number} now ends at offset {there} and was loaded up to {end}" for number, there, end in short
    ]
    rest = f", and {len(parts) - NAMED_MAX} more" if len(parts) > NAMED_MAX else ""
    where = f" ({'; '.join(parts[:NAMED_MAX])}{rest})" if parts else ""
    return f"{by} removed them{where}"
