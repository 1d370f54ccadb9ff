"""The state of a table from the actions of Delta's log, for the native engine. Pure: JSON lines in, values out.

It knows the tables that this package makes: reader version 1 and writer version 2, without partition columns. A table
that needs more of its writers is refused by the name of the feature.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pyspark_tiered.delta import history, table_features, table_form
from pyspark_tiered.delta.history import FileExtent
from tiered.errors import Code, Corrupt, Refused

Json = dict[str, Any]

READER_VERSION, WRITER_VERSION = 1, 2
READER_VERSION_MAX, FEATURES_VERSION = 3, 7
"""Versions of Delta that name each feature."""
IN_COMMIT_TIMES = "delta.enableInCommitTimestamps"
CHECKPOINT_INTERVAL = 10
"""Commits between two checkpoints, if the table's properties do not say otherwise."""
RETENTION = "delta.deletedFileRetentionDuration"
TOMBSTONE_MS = 7 * 24 * 3600 * 1000
"""Time for which a checkpoint keeps the names of removed files. VACUUM of any engine needs them that long."""

V2_CHECKPOINT = "v2Checkpoint"
LOG_FEATURES = (V2_CHECKPOINT, "catalogManaged", "catalogOwned-preview", "redirectReaderWriter-preview")
"""Features that keep a part of the table's state where this reader does not look."""

_COMMIT = re.compile(r"(\d{20})\.json")
_V2_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\.(?:json|parquet)"
)
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


def commit_name(version: int) -> str:
    """Returns the name of a commit file."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Returns the name of a checkpoint of one file."""
    return f"{version:020d}.checkpoint.parquet"


def commit_versions(names: Iterable[str]) -> list[int]:
    """Returns the versions of the commit files among these names, in order."""
    return sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))


def newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """Returns version and file names of the newest complete checkpoint; version -1 if there is none."""
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if found := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(name)
    whole = [(version, sorted(files)) for (version, count), files in parts.items() if len(files) == count]
    return max(whole, default=(-1, []))


def newest_v2_checkpoint(names: Iterable[str]) -> int:
    """Returns the version of the newest checkpoint under a name that only `v2Checkpoint` gives; -1 if there is none."""
    return max((int(found[1]) for name in names if (found := _V2_CHECKPOINT.fullmatch(name))), default=-1)


SHAPES: dict[str, dict[str, tuple[type, bool]]] = {
    "add": {"path": (str, True), "deletionVector": (dict, False)},
    "remove": {"path": (str, True), "deletionVector": (dict, False)},
    "txn": {"appId": (str, True), "version": (int, True)},
    "domainMetadata": {"domain": (str, True)},
    "metaData": {"configuration": (dict, False), "schemaString": (str, False), "partitionColumns": (list, False)},
    "protocol": {
        "minReaderVersion": (int, True),
        "minWriterVersion": (int, True),
        "readerFeatures": (list, False),
        "writerFeatures": (list, False),
    },
}
"""By action: its fields with their types, and if each is needed."""


class TableState:
    """A table at one version. Version -1: there is no table."""

    def __init__(self) -> None:
        self.version = -1
        self.protocol: Json = {}
        self.metadata: Json = {}
        self.transactions: dict[str, Json] = {}
        self.domains: dict[str, Json] = {}
        """Domain -> metadata that features of other writers keep in the log. Checkpoints keep it."""
        self.files: dict[str, Json] = {}
        """Key of a file -> its add action."""
        self.tombstones: dict[str, Json] = {}
        """Key of a removed file -> its remove action."""

    def copy(self) -> TableState:
        """Returns a state that later commits do not change."""
        found = TableState()
        found.version, found.protocol, found.metadata = self.version, self.protocol, self.metadata
        found.transactions, found.domains = dict(self.transactions), dict(self.domains)
        found.files, found.tombstones = dict(self.files), dict(self.tombstones)
        return found

    def apply(self, version: int, actions: Iterable[Json]) -> None:
        """Applies a commit, or all actions of a checkpoint. Raises `Corrupt` if a version is missing between."""
        for action in actions:
            self._apply_action(action)
        self.version = version

    def _apply_action(self, action: Json) -> None:
        if add := action.get("add"):
            key = _file_key(add)
            self.files[key] = add
            self.tombstones.pop(key, None)
        elif remove := action.get("remove"):
            key = _file_key(remove)
            self.files.pop(key, None)
            self.tombstones[key] = remove
        elif transaction := action.get("txn"):
            self.transactions[transaction["appId"]] = transaction
        elif domain := action.get("domainMetadata"):
            self.domains[domain["domain"]] = domain
        elif metadata := action.get("metaData"):
            self.metadata = metadata
        elif protocol := action.get("protocol"):
            self.protocol = protocol

    def properties(self) -> dict[str, str]:
        """Returns the table's properties."""
        return dict(self.metadata.get("configuration") or {})

    def held_topic(self) -> tuple[str, str]:
        """Returns id and name of the table's topic, empty texts if it holds none."""
        found = self.properties()
        return found.get(table_form.TOPIC_ID, ""), found.get(table_form.TOPIC_NAME, "")

    def versions(self) -> dict[str, int]:
        """Returns the version of each transaction identifier."""
        return {app: int(each["version"]) for app, each in self.transactions.items()}

    def is_at_start(self, topic_id: str, advances: Sequence[table_form.Advance]) -> bool:
        """True if each partition is where its step starts."""
        found = [self.transactions.get(table_form.app_id(topic_id, step.partition)) for step in advances]
        starts = [-1 if each is None else int(each["version"]) for each in found]
        return all(version == step.start for version, step in zip(starts, advances, strict=True))

    def has_files(self, adds: Iterable[Mapping[str, Any]]) -> bool:
        """True if the table has these files, as they are in add actions."""
        return all(_file_key(add) in self.files for add in adds)

    def extents(self) -> list[FileExtent]:
        """Returns the bounds of the rows in the table's files, those of shared files by their runs."""
        return [extent for add in self.files.values() for extent in file_extents(add)]

    def actions(self, now_ms: int) -> Iterator[Json]:
        """Yields the actions of a checkpoint. Removed files are kept as long as Delta does by default."""
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        for transaction in self.transactions.values():
            yield {"txn": transaction}
        for domain in self.domains.values():
            if not domain.get("removed"):
                yield {"domainMetadata": domain}
        for add in self.files.values():
            yield {"add": {**add, "dataChange": False}}
        for remove in self._kept_tombstones(now_ms).values():
            yield {"remove": {**remove, "dataChange": False}}

    def drop_old_tombstones(self, now_ms: int) -> None:
        """Drops the names of removed files that no checkpoint has from now on."""
        self.tombstones = self._kept_tombstones(now_ms)

    def _kept_tombstones(self, now_ms: int) -> dict[str, Json]:
        if not self.keeps_removed_files():
            return self.tombstones
        oldest = now_ms - TOMBSTONE_MS
        return {key: each for key, each in self.tombstones.items() if int(each.get("deletionTimestamp") or 0) > oldest}

    def keeps_removed_files(self) -> bool:
        """True if checkpoints keep the names of removed files for Delta's default time."""
        return RETENTION not in self.properties()

    def named_paths(self) -> set[str]:
        """Returns the paths of the table's files, and of removed files as far as their names are kept."""
        return {unquote(str(action["path"])) for each in (self.files, self.tombstones) for action in each.values()}

    def checkpoint_interval(self) -> int:
        """Returns the commits between two checkpoints."""
        found = self.properties().get("delta.checkpointInterval", "")
        return max(int(found), 1) if found.isdecimal() else CHECKPOINT_INTERVAL


def parse_actions(text: str, where: str) -> list[Json]:
    """Parses the lines of a commit file. Raises `Corrupt`."""
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as fault:
        raise Corrupt(f"commit of a table is no JSON: {fault}", where=where) from None
    if not all(isinstance(action, dict) for action in found):
        raise Corrupt("commit of a table has a line that is no object", where=where)
    for action in found:
        _check_shape(action, where)
    return found


def _check_shape(action: Json, where: str) -> None:
    """Raises `Corrupt` if an action has another form than Delta's protocol gives it, as far as it is read here."""
    for name, fields in SHAPES.items():
        if (body := action.get(name)) is None:
            continue
        if not isinstance(body, dict):
            raise Corrupt(f"commit of a table has an action {name} that is no object", where=where)
        for field, (kind, is_needed) in fields.items():
            value = body.get(field)
            if value is None and not is_needed:
                continue
            if not isinstance(value, kind):
                raise Corrupt(f"commit of a table has an action {name} with a wrong {field}: {value!r}", where=where)


def check_log_features(state: TableState, url: str) -> None:
    """Raises `Refused` if the log alone does not say what is in the table."""
    named = {*(state.protocol.get("readerFeatures") or ()), *(state.protocol.get("writerFeatures") or ())}
    for feature in LOG_FEATURES:
        if feature in named:
            raise refuse_log(url, feature)


def refuse_log(url: str, feature: str, more: str = "") -> Refused:
    """Returns the error for a table whose log this package does not read, because of a feature."""
    return Refused(
        Code.INVALID_REQUEST,
        f"the table at {url} needs reader version 3 with {feature}{more}, whose log only Spark reads: "
        f"ALTER TABLE ... DROP FEATURE {feature} takes it off, and queries may use `--engine spark`",
    )


def file_extents(add: Mapping[str, Any]) -> list[FileExtent]:
    """Returns the bounds of the rows of one file: one entry for each run if the file says so."""
    runs = file_runs(add)
    if runs is None:
        return [history.parse_extent(add.get("stats"))]
    return [FileExtent(partition, partition, last, first) for partition, first, last in runs]


def file_runs(add: Mapping[str, Any]) -> list[tuple[int, int, int]] | None:
    """Returns (partition, first offset, last offset) of each run of a shared file, None for any other file."""
    text = (add.get("tags") or {}).get(table_form.RUNS_TAG)
    return None if text is None else [(int(run[0]), int(run[1]), int(run[2])) for run in json.loads(text)]


def file_path(add: Mapping[str, Any], url: str) -> str:
    """Returns the path of a file below its table. Raises `Refused` for a file elsewhere."""
    path = unquote(str(add["path"]))
    if path.startswith("/") or ":" in path.partition("/")[0] or ".." in path.split("/"):
        raise Refused(Code.INVALID_REQUEST, f"the table at {url} has a file elsewhere ({path}): use `--engine spark`")
    return path


def check_reader(state: TableState, url: str) -> None:
    """Raises `Refused` if the protocol of this table asks more of a reader than this package knows."""
    version = int(state.protocol.get("minReaderVersion", 0))
    unknown = sorted(set(state.protocol.get("readerFeatures") or ()) - set(table_features.READABLE))
    if version > READER_VERSION_MAX or unknown:
        named = f" with {', '.join(unknown)}" if unknown else ""
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} has reader version {version}{named}, which this package does not read",
        )


def check_writer(state: TableState, url: str, known_features: Sequence[str], way_out: str) -> None:
    """Raises `Refused` if the protocol of this table asks more of a writer than these features."""
    protocol = state.protocol
    writer, reader = int(protocol.get("minWriterVersion", 0)), int(protocol.get("minReaderVersion", 0))
    unknown = [name for name in table_features.features_of(protocol) if name not in known_features]
    lacking = ""
    if writer > WRITER_VERSION and (writer > FEATURES_VERSION or unknown):
        lacking = f"writer version {writer}" + (f" with {', '.join(unknown)}" if unknown else "")
    elif reader < READER_VERSION:
        lacking = f"reader version {reader}"
    elif table_features.is_true(state.properties(), IN_COMMIT_TIMES):
        lacking = f"times in its commits ({IN_COMMIT_TIMES})"
    if lacking:
        raise Refused(Code.INVALID_REQUEST, f"the table at {url} has {lacking}, {way_out}")


def check_plain(
    state: TableState,
    url: str,
    describe_columns: Callable[[Mapping[str, Any]], str],
    known_features: Sequence[str],
    way_out: str,
) -> None:
    """Raises `Refused` if a writer of this typed table has to know more than this package does.

    `describe_columns` says of the metadata why the rows do not fit into the columns.
    """
    check_writer(state, url, known_features, way_out)
    lacking = ""
    if state.metadata.get("partitionColumns"):
        lacking = f"partition columns {', '.join(state.metadata['partitionColumns'])}"
    else:
        lacking = describe_columns(state.metadata)
    if lacking:
        raise Refused(Code.INVALID_REQUEST, f"the table at {url} has {lacking}, {way_out}")


def _file_key(action: Mapping[str, Any]) -> str:
    """Returns what makes a file: its path and its deletion vector."""
    vector = action.get("deletionVector") or {}
    offset = vector.get("offset")  # an inline vector has none: commits leave it out, and in checkpoints it is NULL
    place = "" if offset is None else offset
    return f"{action['path']} {vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}@{place}"


def commit_lines(
    actions: Sequence[str], *, unique: str, now_ms: int, read_version: int, operation: Json, user_metadata: str
) -> bytes:
    """Returns a commit file: what Delta's history shows of it, then the actions. `unique` is a UUID of this attempt."""
    info = {
        "timestamp": now_ms,
        **operation,
        **({"readVersion": read_version} if read_version >= 0 else {}),
        "isolationLevel": "Serializable",
        "engineInfo": "tiered",
        "txnId": unique,
        "userMetadata": user_metadata,
    }
    return "".join(f"{line}\n" for line in (json.dumps({"commitInfo": info}), *actions)).encode()


def append_operation(files: Sequence[table_form.LoadedFile]) -> Json:
    """Returns the history entry of a load: Delta's word for an append."""
    metrics = {
        "numFiles": str(len(files)),
        "numOutputRows": str(sum(file.rows for file in files)),
        "numOutputBytes": str(sum(file.size for file in files)),
    }
    parameters = {"mode": "Append", "partitionBy": "[]"}
    return {
        "operation": "WRITE",
        "operationParameters": parameters,
        "isBlindAppend": True,
        "operationMetrics": metrics,
    }
