"""`tiered load`, `verify`, `table erase`, `table rebuild`: the Spark package, an extra, is imported on demand."""

from __future__ import annotations

import gc
import logging
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tiered.errors import Code, Refused
from tiered_api.cli.broker.log_output import log_to_stderr
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import format_size, print_json, print_lines
from tiered_api.cli.progress import BYTES, Progress, show_progress

if TYPE_CHECKING:
    from pyspark_tiered.load.load import LoadOptions, LoadProgress
    from pyspark_tiered.load.native_engine import NativeEngine
    from pyspark_tiered.proof.erase import EraseProgress
    from pyspark_tiered.proof.rebuild import RebuildProgress
    from pyspark_tiered.proof.repair import RepairProgress
    from pyspark_tiered.proof.verify import RowFault, VerifyResult
    from pyspark_tiered.schemas.registry import RegistryChoice
    from pyspark_tiered.typed.change import FieldChanger
    from pyspark_tiered.typed.form import ValueRules
    from pyspark_tiered.typed.replay import ReplayProgress

LISTED_MAX = 20
TASKS = "tasks"
"""The unit of a comparison of a table with the log: a part of both."""
_LIBRARIES = {"avro": "fastavro", "protobuf": "google.protobuf"}
"""Kinds of values and keys that need a library."""
GC_THRESHOLD = 50_000
"""New objects between two looks for circles in a load without a JVM, which makes few. Looks took a tenth of its CPU."""


def describe_missing() -> str:
    """Returns one sentence on the missing parts of Spark and Delta and how to install them; empty if nothing is
    missing."""
    lacking = [name for name in ("pyspark", "delta", "pyarrow") if find_spec(name) is None]
    if lacking:
        return f"Python packages {', '.join(lacking)} are missing: pip install '.[spark]' in tiered's source folder."
    from pyspark_tiered import jars

    return jars.missing_tools(build=not jars.cache_folder().is_dir())


def describe_missing_native(*names: str) -> str:
    """Returns one sentence on the missing parts of the native engine; empty if nothing is missing."""
    for name in ("pyarrow", *names):
        if find_spec(name) is None:
            return f"The Python package {name} is missing: pip install '.[sql]' in tiered's source folder."
    return ""


def load(args: Namespace) -> int:
    """Loads a topic and prints each step; with --follow until it is interrupted."""
    if lack := describe_missing() if args.engine == "spark" else describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.load.load import LoadOptions
    from pyspark_tiered.load.load import load as run

    if args.iceberg:
        from pyspark_tiered.iceberg.export import check_package

        check_package()
    place = (args.store, args.topic, args.warehouse)
    null_timestamps = args.timestamps == "null"
    registry = _read_registry(args)._replace(waits=args.unknown_ids == "wait")
    rules = _read_value_rules(args)
    options = LoadOptions(null_timestamps, args.accept_deletes, rules, registry, args.mode, args.iceberg, args.vacuum)
    engine = None
    if args.engine == "native":
        from pyspark_tiered.load.native_engine import NativeEngine

        gc.set_threshold(GC_THRESHOLD)
        engine = NativeEngine()
    else:
        prepare_spark(args.warehouse)
    if args.metrics_port is not None and args.topics is None:
        raise Refused(Code.INVALID_REQUEST, "--metrics-port needs --topics")
    with show_progress(args, f"load {args.topic or args.topics}", has_children=engine is None) as shown:
        if args.topics is not None:
            return _load_topics(args, engine, options, shown)
        if args.repair:
            _repair(args, null_timestamps, shown)
            shown.describe(f"load {args.topic}")
        run(
            *place,
            follow=args.follow,
            interval=args.interval,
            progress=lambda progress: _print_step(args, progress, shown),
            options=options,
            engine=engine,
        )
    return Exit.OK


def _load_topics(args: Namespace, engine: NativeEngine | None, options: LoadOptions, shown: Progress) -> int:
    if engine is None:
        raise Refused(Code.INVALID_REQUEST, "--topics needs --engine native: Spark loads one topic at a time")
    from pyspark_tiered.load.follow import load_topics
    from tiered.metrics import Metrics
    from tiered_api.cli.lake.metrics_server import serve_metrics

    metrics = Metrics()
    with ExitStack() as opened:
        if args.metrics_port is not None:
            port = opened.enter_context(serve_metrics(args.metrics_port, metrics.render))
            print(f"metrics: http://127.0.0.1:{port}/metrics", file=sys.stderr)
        load_topics(
            args.store,
            args.topics,
            args.warehouse,
            engine,
            follow=args.follow,
            interval=args.interval,
            progress=lambda progress: _print_step(args, progress, shown, with_topic=True),
            options=options,
            metrics=metrics,
        )
    return Exit.OK


def _read_value_rules(args: Namespace) -> ValueRules | None:
    """Returns how values become columns. Raises `Refused` for a schema with a fault, before Spark starts."""
    from pyspark_tiered.typed.form import ValueRules, declared_schema

    for option, needed in (("schema", "values"), ("keys", "values"), ("key_schema", "keys")):
        if getattr(args, option) is not None and getattr(args, needed) is None:
            raise Refused(Code.INVALID_REQUEST, f"--{option.replace('_', '-')} needs --{needed}")
    if args.values is None:
        return None
    names = [_LIBRARIES[each] for each in (args.values, args.keys) if each in _LIBRARIES]
    if lack := describe_missing_native(*names):
        raise Refused(Code.INVALID_REQUEST, lack.replace(".[sql]", ".[sql,registry]"))
    rules = ValueRules(args.values, args.schema or "", args.keys or "", args.key_schema or "")
    declared_schema(rules)
    return rules


def _read_registry(args: Namespace) -> RegistryChoice:
    """Returns where a user says that schemas are. Raises `Refused` for a file of properties that is wrong."""
    from pyspark_tiered.log.login import read_login_file
    from pyspark_tiered.schemas.registry import RegistryChoice

    found = {} if args.registry_config is None else read_login_file(args.registry_config, "--registry-config")
    return RegistryChoice(args.registry or "", tuple(found.items()))


def _repair(args: Namespace, null_timestamps: bool, shown: Progress) -> None:
    from pyspark_tiered.proof.repair import repair

    shown.describe(f"repair {args.topic}")

    def print_progress(progress: RepairProgress) -> None:
        if args.format == "json":
            print_json(asdict(progress))
            sys.stdout.flush()
        else:
            print_lines(repaired_lines(progress))

    repair(
        args.store,
        args.topic,
        args.warehouse,
        progress=print_progress,
        null_timestamps=null_timestamps,
        on_task=lambda done, total: shown.report(done, total, TASKS),
    )


def _print_step(args: Namespace, progress: LoadProgress, shown: Progress, *, with_topic: bool = False) -> None:
    if with_topic:
        shown.describe(f"load {progress.topic}")
    shown.report(progress.log_bytes, progress.log_bytes + progress.log_bytes_left, BYTES)
    if args.format == "json":
        print_json(asdict(progress))
        sys.stdout.flush()
    elif progress.step != "converted":
        print_lines([f"{progress.topic}: {progress_line(progress)}" if with_topic else progress_line(progress)])


def verify(args: Namespace) -> int:
    """Compares a table with the bucket. Returns exit code 1 and prints the differences if the table does not have every
    record once."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.delta.folder_check import check_warehouse
    from pyspark_tiered.proof.verify import verify as run

    check_warehouse(args.warehouse)
    with show_progress(args, f"verify {args.topic}") as shown:
        found = run(
            args.store,
            args.topic,
            args.warehouse,
            on_task=lambda done, total: shown.report(done, total, TASKS),
            registry=_read_registry(args),
        )
    if args.format == "json":
        print_json(_to_json(found))
    else:
        print_lines(verified_lines(found))
    return Exit.OK if found.ok else Exit.FAILED


def erase(args: Namespace) -> int:
    """Erases rows from a table and prints each step, or counts them."""
    if lack := describe_missing_native("duckdb"):
        return report_missing(lack)
    from pyspark_tiered.delta.folder_check import check_warehouse
    from pyspark_tiered.proof.erase import erase as run

    def print_progress(progress: EraseProgress) -> None:
        if args.format == "json":
            print_json(asdict(progress))
            sys.stdout.flush()
        else:
            print_lines([erased_line(progress)])

    check_warehouse(args.warehouse)
    with show_progress(args, f"erase from {args.topic}") as shown:
        run(
            args.store,
            args.topic,
            args.warehouse,
            args.where,
            args.reason,
            print_progress,
            dry_run=args.dry_run,
            on_bytes=lambda done, total: shown.report(done, total, BYTES),
        )
    return Exit.OK


def rebuild(args: Namespace) -> int:
    """Makes a table anew beside the old one, exchanges both and prints each step, or counts what is left to load."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.delta.folder_check import check_warehouse
    from pyspark_tiered.proof.rebuild import rebuild as run

    def print_progress(progress: RebuildProgress) -> None:
        if args.format == "json":
            print_json(asdict(progress))
            sys.stdout.flush()
        else:
            print_lines([rebuilt_line(progress)])

    check_warehouse(args.warehouse)
    with show_progress(args, f"rebuild {args.topic}") as shown:
        run(
            args.store,
            args.topic,
            args.warehouse,
            print_progress,
            accept_lost=args.accept_lost,
            dry_run=args.dry_run,
            on_load=lambda done: shown.report(done.log_bytes, done.log_bytes + done.log_bytes_left, BYTES),
            on_task=lambda done, total: shown.report(done, total, TASKS),
        )
    return Exit.OK


def change(args: Namespace) -> int:
    """Changes how a field of the typed table becomes a column."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.typed.change import FieldChanger

    with show_progress(args, f"change {args.topic}") as shown:

        def on_file(done: int, total: int) -> None:
            shown.report(done, total, "files")

        changer = FieldChanger(args.store, args.topic, args.warehouse, args.field, on_file)
        if args.dry_run:
            return _count_values(args, changer)
        done = _change(args, changer)
    if args.format == "json":
        print_json({"topic": args.topic, "field": args.field, "done": done})
    else:
        print_lines([done, "`tiered table replay-dead` makes rows of the dead letters that fit now"])
    return Exit.OK


def _count_values(args: Namespace, changer: FieldChanger) -> int:
    """Prints how many rows have a value that a drop of the column would take out."""
    if not args.drop_column:
        why = "--dry-run counts what --drop-column takes out: no other change takes values out of rows"
        raise Refused(Code.INVALID_REQUEST, why)
    found = changer.count()
    if args.format == "json":
        print_json({"topic": args.topic, "field": args.field, **found._asdict(), "dry_run": True})
    else:
        said = f"{args.field} has a value in {found.values} of {found.rows} rows, and a column in {found.files} files"
        print_lines([f"{said}: nothing was changed (dry run)"])
    return Exit.OK


def _change(args: Namespace, changer: FieldChanger) -> str:
    """Changes the field, and returns what was done in words."""
    if args.rename_to is not None:
        changer.rename(args.rename_to)
        return f"the column of {args.field} has the name {args.rename_to}"
    if args.retype is not None:
        changer.retype(args.retype)
        return f"the column of {args.field} has the type {args.retype.strip().lower()}"
    if args.drop_column:
        changer.drop()
        return f"{args.field} has no column, and its values are left out from the next load on"
    made = changer.move_values("" if args.drop else args.move_to)
    what = f"move to {made.to}" if made.to else "are dropped"
    return f"values of {args.field} that are no {made.stays} {what} from the next load on"


def replay_dead(args: Namespace) -> int:
    """Makes rows of dead letters that fit by now, and prints each step."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.typed.replay import replay_dead as run

    def print_progress(progress: ReplayProgress) -> None:
        if args.format == "json":
            print_json(asdict(progress))
            sys.stdout.flush()
        else:
            print_lines([replayed_line(progress)])

    with show_progress(args, f"replay {args.topic}") as shown:
        run(
            args.store,
            args.topic,
            args.warehouse,
            print_progress,
            on_file=lambda done, total: shown.report(done, total, "files"),
            registry=_read_registry(args),
        )
    return Exit.OK


def replayed_line(progress: ReplayProgress) -> str:
    """Returns the progress of a replay in words."""
    return f"{progress.step}: {progress.rows:,} dead letters became rows, {progress.left:,} do not fit"


def progress_line(progress: LoadProgress) -> str:
    """Returns the progress of a load in words."""
    if progress.step == "done" and not (progress.files or progress.typed_rows or progress.dead_letters):
        made = f"; requests: {_requests_text(progress.requests)}" if progress.requests else ""
        return f"done: the bucket holds no record that is not loaded; a segment gets there after it is closed{made}"
    if progress.step == "stopped" and not (progress.files or progress.typed_rows or progress.dead_letters):
        return "stopped: nothing more can be loaded"
    if progress.step == "done" and progress.requests:
        return f"{_counted_line(progress)}; requests: {_requests_text(progress.requests)}"
    return _counted_line(progress)


def _requests_text(requests: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {verb}" for verb, count in sorted(requests.items()))


def _counted_line(progress: LoadProgress) -> str:
    done, left = format_size(progress.log_bytes), format_size(progress.log_bytes_left)
    typed = ""
    if progress.typed_rows or progress.dead_letters:
        typed = f"; {progress.typed_rows:,} typed rows, {progress.dead_letters:,} dead letters"
    return (
        f"{progress.step}: {progress.rows:,} rows in {progress.files} files, {done} of log loaded, {left} to go" + typed
    )


def repaired_lines(repaired: RepairProgress) -> list[str]:
    """Returns the result of a repair in words; nothing while it still compares."""
    if repaired.step == "compared":
        return []
    if repaired.step == "done" and not repaired.rows and not repaired.taken_out:
        lines = ["nothing to repair: the table is equal to the log"]
    else:
        took = f", wrong rows of {repaired.taken_out:,} offsets taken out" if repaired.taken_out else ""
        what = "repaired" if repaired.step == "done" else "repairing"
        lines = [f"{what}: {repaired.rows:,} rows put back{took}"]
    for gap in repaired.gaps[:LISTED_MAX]:
        lines.append(
            f"partition {gap.partition}, offsets {gap.start} to {gap.end - 1}: not in the table, gone from the log"
        )
    if len(repaired.gaps) > LISTED_MAX:
        lines.append(f"... {len(repaired.gaps)} gaps in all")
    return lines


def rebuilt_line(progress: RebuildProgress) -> str:
    """Returns the progress of a rebuild in words."""
    lost = f", {progress.lost:,} rows that the bucket no longer has are left out" if progress.lost else ""
    if progress.step == "counted":
        return f"dry run: {progress.rows:,} offsets are left to load, and nothing was{lost}"
    if progress.step == "behind":
        return "another writer of the table came first: the new table catches up"
    if progress.step == "exchanged":
        left = "older versions keep the old files until `tiered table vacuum`"
        return f"exchanged: {progress.rows:,} rows{lost}; {left}"
    return f"{progress.step}: {progress.rows:,} rows"


def erased_line(progress: EraseProgress) -> str:
    """Returns the progress of an erasure in words."""
    if progress.step == "done":
        values = f", and {progress.values:,} rows and dead letters of their values" if progress.values else ""
        left = "older versions of the tables keep them until `tiered table vacuum`"
        return f"done: {progress.rows:,} rows erased{values}; {left}"
    if progress.step == "counted":
        return f"dry run: {progress.rows:,} rows would be erased, and nothing was"
    if progress.step == "removed":
        return f"removed: {progress.removed:,} rows are out of the table"
    return f"{progress.step}: {progress.rows:,} rows"


def verified_lines(found: VerifyResult) -> list[str]:
    """Returns the result of a comparison in words."""
    bounds = ", ".join(f"{number}: {end}" for number, end in sorted(found.loaded.items()))
    lines = [f"{found.table}: {found.rows:,} rows compared with the bucket; loaded up to {bounds or 'nothing'}"]
    for gap in found.gaps[:LISTED_MAX]:
        lines.append(f"partition {gap.partition}, offsets {gap.start} to {gap.end - 1}: {gap.why}")
    for fault in found.faults[:LISTED_MAX]:
        lines.append(f"partition {fault.partition}, offset {fault.offset}: {_describe_fault(fault)}")
    for what, listed in (("gaps", found.gaps), ("faults", found.faults)):
        if len(listed) > LISTED_MAX:
            lines.append(f"... {len(listed)} {what} in all")
    if found.erased:
        lines.append(f"{found.erased:,} rows were erased lawfully, and are counted as such")
    lines.append("the table does not hold every record once" if found.faults else "every record is there once")
    return lines + (_verified_values_lines(found.values) if found.values is not None else [])


def _verified_values_lines(found: VerifyResult) -> list[str]:
    """Returns the result of the comparison of a typed table in words."""
    lines = [
        f"{found.table}: {found.rows:,} rows and {found.dead:,} dead letters compared with the values in the bucket"
    ]
    for gap in found.gaps[:LISTED_MAX]:
        lines.append(f"partition {gap.partition}, offsets {gap.start} to {gap.end - 1}: {gap.why}")
    if found.fitting:
        lines.append(f"{found.fitting:,} dead letters fit by now: `tiered table replay-dead` makes rows of them")
    for fault in found.faults[:LISTED_MAX]:
        table = "dead letter" if fault.is_dead else "row"
        why = f" ({fault.why})" if fault.why else ""
        lines.append(f"partition {fault.partition}, offset {fault.offset}: {table} {fault.kind}{why}")
    for what, listed in (("gaps", found.gaps), ("faults", found.faults)):
        if len(listed) > LISTED_MAX:
            lines.append(f"... {len(listed)} {what} in all")
    lines.append("every value is a row or a dead letter, once" if found.ok else "rows and dead letters are not the log")
    return lines


def _describe_fault(fault: RowFault) -> str:
    if fault.kind == "erased":
        return "erased, but in the table: `tiered load --repair` removes it"
    return f"{fault.kind}, perhaps by {fault.why}" if fault.why else fault.kind


def _to_json(found: VerifyResult) -> dict[str, Any]:
    return {
        "table": found.table,
        "ok": found.ok,
        "rows": found.rows,
        "erased": found.erased,
        "loaded": {str(number): end for number, end in found.loaded.items()},
        "faults": [dict(zip(("kind", "partition", "offset", "why"), fault, strict=False)) for fault in found.faults],
        "gaps": [gap._asdict() for gap in found.gaps],
        "values": None if found.values is None else _values_to_json(found.values),
    }


def _values_to_json(found: VerifyResult) -> dict[str, Any]:
    return {
        "table": found.table,
        "ok": found.ok,
        "rows": found.rows,
        "dead": found.dead,
        "fitting": found.fitting,
        "loaded": {str(number): end for number, end in found.loaded.items()},
        "faults": [fault._asdict() for fault in found.faults],
        "gaps": [gap._asdict() for gap in found.gaps],
    }


def prepare_spark(warehouse: str) -> None:
    """Looks at the warehouse before Java starts, and stops PySpark from logging tracebacks of errors that it raises
    anyway."""
    from pyspark_tiered.delta.folder_check import check_warehouse

    check_warehouse(warehouse)
    from pyspark.logger import PySparkLogger

    log_to_stderr("critical", logging.CRITICAL)
    logging.getLogger("pyspark_tiered").setLevel(logging.WARNING)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def report_missing(lack: str) -> int:
    """Prints what is missing, and returns the exit code for it."""
    print(f"tiered: {lack}", file=sys.stderr)
    return Exit.MISSING
