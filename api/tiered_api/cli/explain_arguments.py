"""The parsers of the commands `tiered explain`, `tiered trace` and `tiered debug`, which ask brokers by HTTP."""

from __future__ import annotations

import argparse

from tiered_api.cli.parsing import (
    Command,
    Commands,
    add_command,
    add_format_option,
    add_isolation_option,
    add_profile_options,
    add_progress_option,
    count,
    number_of,
    number_within,
)

WATCH_SECONDS_MAX = 10


def add_explain_verbs(verbs: Commands) -> None:
    """Adds the verbs of `tiered explain`."""
    topic = _add_explain(verbs, "topic", "tell what keeps, cleans and copies the records of a topic")
    partition = _add_explain(verbs, "partition", "tell why a partition has no leader, or its offsets do not move")
    segment = _add_explain(verbs, "segment", "tell why a segment is on a disk, in the bucket, or in both")
    fetch = _add_explain(verbs, "fetch", "tell which broker answers a fetch, from which tier, and what bounds it")
    for verb in (topic, partition, segment, fetch):
        verb.add_argument("topic", metavar="TOPIC", type=_topic_alone)
    for verb in (partition, segment, fetch):
        verb.add_argument("partition", metavar="PARTITION", type=number_of)
    segment.add_argument("offset", metavar="OFFSET", type=count)
    fetch.add_argument(
        "offset",
        metavar="OFFSET",
        type=count,
        nargs="?",
        help="begin here (default: at the next record that is written)",
    )
    add_isolation_option(fetch)
    fetch.add_argument("--user", metavar="USER", help="the user whose quota holds (default: yours)")
    fetch.add_argument("--client-id", metavar="ID", help="the client id whose quota holds")
    group = _add_explain(verbs, "group", "tell why a consumer group does not read, or is behind")
    group.add_argument("group", metavar="GROUP")
    table = _add_explain(verbs, "table", "tell why records are not in a Delta table", "table")
    table.add_argument("table", metavar="TABLE", help="its name: that of the topic, perhaps with _typed or __dead")
    table.add_argument(
        "--warehouse", metavar="DIR", help="folder of the tables (default: tiered.console.warehouse of the broker)"
    )


def _topic_alone(text: str) -> str:
    """Parses a topic. `tiered cluster health` writes partitions as TOPIC/PARTITION, which no name of a topic can be."""
    topic, slash, partition = text.rpartition("/")
    if slash:
        raise argparse.ArgumentTypeError(f"write {topic} {partition} in place of {text}")
    return text


def add_debug_verbs(verbs: Commands) -> None:
    """Adds the verbs of `tiered debug`."""
    bundle = add_command(
        verbs, "bundle", "write one archive with the state of a cluster, without records and secrets",
        Command("tiered_api.cli.debug.bundle", "bundle"),
    )  # fmt: skip
    bundle.add_argument("--out", metavar="FILE", help="the archive: .tar.gz or .zip (default tiered-debug-TIME.tar.gz)")
    bundle.add_argument("--data-dir", metavar="DIR", help="on a machine of a broker: list its files, and add its logs")
    bundle.add_argument(
        "--log", metavar="FILE", action="append", default=[], help="add the end of this log of a broker, up to 1 MiB"
    )
    add_progress_option(bundle)
    _add_http_options(bundle)
    add_format_option(bundle)


def add_trace_command(commands: Commands) -> None:
    """Adds the command `tiered trace`."""
    trace = add_command(
        commands, "trace", "show the slowest requests of a broker, and what each waited for",
        Command("tiered_api.cli.explain.trace", "trace"),
    )  # fmt: skip
    trace.add_argument(
        "--seconds", metavar="N", type=number_within(0, WATCH_SECONDS_MAX), default=0,
        help="trace all requests for so long, 10 at most (default: show those that were traced)",
    )  # fmt: skip
    trace.add_argument(
        "-n", "--limit", metavar="N", type=number_within(1, 500), default=20, help="at most (default 20)"
    )
    _add_http_options(trace)
    add_format_option(trace)


def _add_explain(verbs: Commands, name: str, help: str, module: str = "commands") -> argparse.ArgumentParser:
    verb = add_command(verbs, name, help, Command(f"tiered_api.cli.explain.{module}", f"explain_{name}"))
    _add_http_options(verb)
    add_format_option(verb)
    return verb


def _add_http_options(verb: argparse.ArgumentParser) -> None:
    where = verb.add_mutually_exclusive_group()
    where.add_argument(
        "--http", metavar="HOST:PORT",
        help="a broker's HTTP, or its URL (default: by --brokers or $TIERED_BROKERS, else the setting http or the "
        "brokers of the profile, else 127.0.0.1:8082)",
    )  # fmt: skip
    where.add_argument(
        "--brokers", "--bootstrap-server", metavar="HOST:PORT[,...]",
        help="brokers by their Kafka addresses: the command asks the HTTP of the first one that says where it is",
    )  # fmt: skip
    add_profile_options(verb, "properties of a Kafka client, with its TLS and its login")
