"""The commands that use Kafka's protocol, with any broker that speaks it: topic, group, transaction, cluster."""

from __future__ import annotations

import argparse

from tiered_api.cli.parsing import (
    INT16_MAX,
    INT32_MAX,
    Command,
    Commands,
    add_command,
    add_dry_run_option,
    add_format_option,
    add_isolation_option,
    add_noun,
    add_profile_options,
    add_progress_option,
    count,
    number_of,
    number_within,
)

DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
ACKS = {"0": 0, "none": 0, "1": 1, "leader": 1, "-1": -1, "all": -1}
RECORD_FORMAT = (
    "%%t topic, %%p partition, %%o offset, %%k key, %%v value, %%d timestamp, %%h{...} headers (docs/reference/cli.md)"
)


def add_kafka_commands(commands: Commands) -> None:
    """Adds `tiered topic`, `tiered group`, `tiered transaction`, `tiered cluster` and `tiered top`."""
    add_noun(commands, "topic", "create, change, read, write and delete topics of a Kafka cluster", _topics)
    add_noun(commands, "group", "describe, move and delete consumer groups of a Kafka cluster", _group)
    add_noun(commands, "transaction", "list, describe and abort transactions of a Kafka cluster", _transaction)
    add_noun(commands, "cluster", "brokers, health and settings of a Kafka cluster", _cluster)
    add_verb(commands, "top", "show brokers, topics and groups on a terminal, live", "live.top", "top", form=False)


def _add_connection_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--brokers",
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help="bootstrap brokers (default: $TIERED_BROKERS, else those of the profile, else 127.0.0.1:9092)",
    )
    command.add_argument(
        "-X",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="extra",
        help="brokers=HOST:PORT, timeout=SECONDS, security.protocol=SSL or ssl.ca.location=FILE",
    )
    add_profile_options(command, "properties of a Kafka client, with its TLS and its login")


def add_verb(
    verbs: Commands,
    name: str,
    help: str,
    module: str,
    function: str,
    *,
    form: bool = True,
    aliases: tuple[str, ...] = (),
) -> argparse.ArgumentParser:
    """Adds a command that connects to a broker. `module` is a name below `tiered_api.cli`."""
    made = add_command(verbs, name, help, Command(f"tiered_api.cli.{module}", function), aliases)
    _add_connection_options(made)
    if form:
        add_format_option(made)
    return made


def _add_regex_option(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("-r", "--regex", action="store_true", help=f"take the names as regular expressions of {what}")


def _topics(verbs: Commands) -> None:
    for add_verbs in (_topic, _topic_storage, _topic_change, _produce, _consume):
        add_verbs(verbs)


def _topic(verbs: Commands) -> None:
    create = add_verb(verbs, "create", "create topics", "topic.topics", "create")
    create.add_argument("topics", metavar="TOPIC", nargs="+")
    create.add_argument(
        "-p",
        "--partitions",
        type=number_within(-1, INT32_MAX),
        default=-1,
        metavar="N",
        help="partitions (default: the broker's)",
    )
    create.add_argument(
        "-r",
        "--replicas",
        type=number_within(-1, INT16_MAX),
        default=-1,
        metavar="N",
        help="replicas of each (default: the broker's)",
    )
    create.add_argument(
        "-c",
        "--topic-config",
        dest="config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the topics",
    )
    create.add_argument("--if-not-exists", action="store_true", help="a topic that already exists is no error")
    add_dry_run_option(create, "only check the request, create nothing", "-d", "--dry")
    listed = add_verb(verbs, "list", "list topics", "topic.topics", "list_topics", aliases=("ls",))
    listed.add_argument("topics", metavar="TOPIC", nargs="*")
    listed.add_argument("-d", "--detailed", action="store_true", help="a row for each partition")
    listed.add_argument("-i", "--internal", action="store_true", help="internal topics too")
    _add_regex_option(listed, "topics")
    describe = add_verb(verbs, "describe", "describe topics", "topic.describe", "describe", aliases=("info",))
    describe.add_argument("topics", metavar="TOPIC", nargs="+")
    describe.add_argument("-s", "--print-summary", dest="summary", action="store_true", help="the summary")
    describe.add_argument("-c", "--print-configs", dest="configs", action="store_true", help="the settings")
    describe.add_argument(
        "-p", "--print-partitions", dest="partitions", action="store_true", help="the partitions with their offsets"
    )
    describe.add_argument("-a", "--print-all", dest="all", action="store_true", help="summary, settings and partitions")
    _add_regex_option(describe, "topics")
    check = add_verb(
        verbs, "check-settings", "find settings of topics that do not survive a move between Kafka and tiered",
        "topic.portability", "check_settings",
    )  # fmt: skip
    check.add_argument("topics", metavar="TOPIC", nargs="*", help="(default: all topics)")
    check.add_argument("--to", choices=("tiered", "kafka"), required=True, help="where the topics are to be copied")
    _add_regex_option(check, "topics")


def _topic_storage(verbs: Commands) -> None:
    storage = add_verb(
        verbs, "describe-storage", "show which offsets are local and which are in the bucket",
        "lake.storage", "describe_storage",
    )  # fmt: skip
    storage.add_argument("topics", metavar="TOPIC", nargs="+")
    storage.add_argument(
        "--warehouse",
        metavar="DIR",
        help="folder of Delta tables: show what is loaded (default: tiered.console.warehouse of a broker)",
    )
    storage.add_argument("--no-picture", action="store_true", help="print columns on a terminal too, and no bars")
    _add_regex_option(storage, "topics")


def _topic_change(verbs: Commands) -> None:
    alter = add_verb(verbs, "alter", "change settings of topics", "topic.topics", "alter", aliases=("alter-config",))
    alter.add_argument("topics", metavar="TOPIC", nargs="+")
    alter.add_argument("-s", "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting")
    alter.add_argument(
        "-d", "--delete", action="append", default=[], metavar="NAME", help="reset this setting to its default"
    )
    alter.add_argument(
        "--append", action="append", default=[], metavar="NAME=VALUE", help="add words to a setting that is a list"
    )
    alter.add_argument(
        "--subtract",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="remove words from a setting that is a list",
    )
    add_dry_run_option(alter, "only check the request, change nothing", "--dry")
    _add_regex_option(alter, "topics")
    more = add_verb(verbs, "add-partitions", "give topics more partitions", "topic.topics", "add_partitions")
    more.add_argument("topics", metavar="TOPIC", nargs="+")
    more.add_argument("-n", "--num", type=number_of, required=True, metavar="N", help="number of partitions to add")
    add_dry_run_option(more, "only check the request, change nothing")
    delete = add_verb(verbs, "delete", "delete topics", "topic.deletion", "delete")
    delete.add_argument("topics", metavar="TOPIC", nargs="+")
    add_dry_run_option(delete, "show how many records the topics have, delete nothing")
    _add_regex_option(delete, "topics")
    trim = add_verb(
        verbs, "trim", "delete the records of a topic before an offset or a time", "topic.describe", "trim",
        aliases=("trim-prefix",),
    )  # fmt: skip
    trim.add_argument("topic", metavar="TOPIC")
    trim.add_argument(
        "-o", "--offset", required=True, metavar="WHERE", help="the new start: an offset, end, or @TIME as in consume"
    )
    trim.add_argument("-p", "--partitions", required=True, metavar="0,1|all", help="partitions, or the word all")
    add_dry_run_option(trim, "show the old and the new start and the records between, delete nothing")
    compact = add_verb(verbs, "compact", "clean compacted topics as soon as possible", "topic.compact", "compact")
    compact.add_argument("topics", metavar="TOPIC", nargs="+")
    add_dry_run_option(compact, "only show what cleans did and what is dirty")
    _add_regex_option(compact, "topics")


def _produce(verbs: Commands) -> None:
    produce = add_verb(verbs, "produce", "write records from standard input", "topic.produce", "produce", form=False)
    produce.add_argument("topic", metavar="TOPIC", nargs="?")
    produce.add_argument(
        "-f", "--format", default=r"%v\n", metavar="FORMAT", help=rf"of the input (default %%v\n): {RECORD_FORMAT}"
    )
    produce.add_argument(
        "-o",
        "--output-format",
        default="Produced to partition %p at offset %o with timestamp %d.\\n",
        metavar="FORMAT",
        help="format of the line for each written record, json, or empty for none",
    )
    produce.add_argument("-k", "--key", metavar="KEY", help="key of all records that have none of their own")
    produce.add_argument(
        "-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="a header of all records"
    )
    produce.add_argument("-p", "--partition", type=number_of, metavar="P", help="write to this partition")
    produce.add_argument(
        "-z",
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default="snappy",
        help="codec of the batches (default snappy)",
    )
    produce.add_argument(
        "--acks", type=_acks, default=-1, metavar="0|1|all", help="replicas that must have a record (default all)"
    )
    produce.add_argument(
        "--transactional-id",
        metavar="ID",
        help="write all records in one transaction, committed at the end of the input",
    )
    produce.add_argument(
        "--transaction-timeout",
        type=_milliseconds,
        default=60_000,
        metavar="1m",
        help="time after which the broker aborts the transaction (default 1m)",
    )
    produce.add_argument("-Z", "--tombstone", action="store_true", help="an empty value is written as null")
    produce.add_argument("--allow-auto-topic-creation", action="store_true", help="a missing topic is created")
    produce.add_argument(
        "--delivery-timeout", type=_duration, default=120.0, metavar="30s", help="time limit of a record (default 2m)"
    )
    produce.add_argument(
        "--max-message-bytes", type=number_of, metavar="N", help="bytes of a batch before compression (default 1000000)"
    )


def _consume(verbs: Commands) -> None:
    consume = add_verb(verbs, "consume", "print records", "topic.consume", "consume", form=False)
    consume.add_argument("topics", metavar="TOPIC", nargs="+")
    consume.add_argument(
        "-o",
        "--offset",
        default="start",
        metavar="WHERE",
        help="start, end, 47, +2, -3, 10:20, :end, @TIME, @TIME:TIME, or with -g none (default start)",
    )
    consume.add_argument(
        "-n", "--num", type=count, default=0, metavar="N", help="end after this many records (0, the default: never)"
    )
    consume.add_argument("-p", "--partitions", metavar="0,1", help="only these partitions")
    consume.add_argument("-g", "--group", metavar="GROUP", help="read as a member of this group, and commit")
    consume.add_argument(
        "--group-protocol",
        choices=("classic", "consumer"),
        default="classic",
        help="with -g: the protocol of the group, as `group.protocol` of Kafka's consumers (default classic)",
    )
    consume.add_argument(
        "-f", "--format", default="json", metavar="FORMAT", help=f"json (default), text, or a format: {RECORD_FORMAT}"
    )
    consume.add_argument(
        "--pretty-print",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="JSON over several lines (default), or one line for each record",
    )
    consume.add_argument("--meta-only", action="store_true", help="all fields except the value (json)")
    add_isolation_option(consume)
    consume.add_argument("--print-control-records", action="store_true", help="print transaction markers too")
    consume.add_argument(
        "--fetch-max-bytes", type=number_of, default=16 << 20, metavar="N", help="bytes of a response (default 16 MiB)"
    )
    consume.add_argument(
        "--fetch-max-wait",
        type=_milliseconds,
        default=500,
        metavar="500ms",
        help="longest wait of a broker for records",
    )
    consume.add_argument("--rack", default="", metavar="RACK", help="rack of the reader")
    _add_regex_option(consume, "topics")


def _group(verbs: Commands) -> None:
    listed = add_verb(verbs, "list", "list groups with their states", "group.groups", "list_groups", aliases=("ls",))
    listed.add_argument(
        "-s", "--states", action="append", default=[], metavar="STATE,...", help="only those: Stable, Empty, ..."
    )
    describe = add_verb(verbs, "describe", "show members, offsets and lag of groups", "live.watch", "describe")
    describe.add_argument("groups", metavar="GROUP", nargs="+")
    describe.add_argument("-s", "--print-summary", dest="summary", action="store_true", help="only the summary")
    describe.add_argument("-c", "--print-commits", dest="commits", action="store_true", help="only the offsets")
    describe.add_argument("-w", "--watch", action="store_true", help="repeat, with the course of the lag on a terminal")
    _add_regex_option(describe, "groups")
    seek = add_verb(verbs, "seek", "change the committed offsets of a group", "group.seek", "seek")
    seek.add_argument("group", metavar="GROUP")
    where = seek.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="WHERE", help="start, end, or @TIME as in consume -o")
    where.add_argument("--to-group", metavar="GROUP", help="to the committed offsets of another group")
    where.add_argument("--to-file", metavar="FILE", help="to the offsets in a file: TOPIC PARTITION OFFSET on a line")
    seek.add_argument("--topics", action="append", default=[], metavar="T,...", help="only these topics")
    seek.add_argument("--allow-new-topics", action="store_true", help="also topics without a committed offset")
    add_dry_run_option(seek, "show the new offsets, commit nothing")
    delete = add_verb(verbs, "delete", "delete groups that have no members", "group.groups", "delete_groups")
    delete.add_argument("groups", metavar="GROUP", nargs="+")
    _add_regex_option(delete, "groups")
    add_dry_run_option(delete, "show how many members and offsets the groups have, delete nothing")
    offsets = add_verb(verbs, "offset-delete", "delete committed offsets of a group", "group.groups", "offset_delete")
    offsets.add_argument("group", metavar="GROUP")
    offsets.add_argument(
        "-t",
        "--topic",
        dest="topics",
        action="append",
        required=True,
        metavar="TOPIC[:0,1]",
        help="offsets of this topic",
    )
    add_dry_run_option(offsets, "show the offsets, delete nothing")


def _transaction(verbs: Commands) -> None:
    module = "transaction.commands"
    listed = add_verb(verbs, "list", "list transactional ids", module, "list_transactions", aliases=("ls",))
    listed.add_argument(
        "-s",
        "--states",
        action="append",
        default=[],
        metavar="STATE,...",
        help="only those: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort",
    )
    listed.add_argument(
        "--longer-than", type=_duration, metavar="5m", help="only transactions that are open for so long"
    )
    describe = add_verb(verbs, "describe", "show the transactions of transactional ids", module, "describe")
    describe.add_argument("ids", metavar="ID", nargs="+")
    abort = add_verb(verbs, "abort", "abort open transactions, and fence their producers", module, "abort")
    abort.add_argument("ids", metavar="ID", nargs="*")
    abort.add_argument("-t", "--topic", metavar="TOPIC", help="abort a hanging transaction of this topic")
    abort.add_argument("-p", "--partition", type=number_of, metavar="P", help="its partition")
    abort.add_argument("--start-offset", type=count, metavar="N", help="its first offset, as find-hanging prints it")
    abort.add_argument("--force", action="store_true", help="also if a coordinator has it, and may yet commit it")
    hanging = add_verb(
        verbs, "find-hanging", "find open transactions that no coordinator will end", module, "find_hanging"
    )
    hanging.add_argument("topics", metavar="TOPIC", nargs="*", help="(default: all topics)")
    hanging.add_argument(
        "--max-timeout",
        type=_duration,
        default=900.0,
        metavar="15m",
        help="only transactions without a record for so long (default 15m, the longest timeout of a transaction)",
    )


def _cluster(verbs: Commands) -> None:
    info = add_verb(verbs, "info", "show the brokers of the cluster", "cluster.commands", "info", aliases=("metadata",))
    info.add_argument("-t", "--print-topics", dest="topics", action="store_true", help="topics too")
    info.add_argument("-i", "--print-internal-topics", dest="internal", action="store_true", help="internal ones too")
    add_verb(verbs, "brokers", "list brokers with their states, replicas and lag", "cluster.brokers", "brokers")
    health = add_verb(
        verbs, "health", "check that every partition has its leader and replicas", "cluster.health", "health"
    )
    health.add_argument("-w", "--watch", action="store_true", help="repeat, and print changes")
    health.add_argument("-e", "--exit-when-healthy", action="store_true", help="with --watch: end when all is healthy")
    add_verb(verbs, "certificates", "show the certificates of all listeners", "cluster.certificates", "certificates")
    lost = add_verb(verbs, "losses", "list possible losses of records, or acknowledge them", "cluster.losses", "losses")
    lost.add_argument(
        "action", nargs="?", choices=["acknowledge"], help="acknowledge the losses: they no longer count as problems"
    )
    lost.add_argument("-t", "--topic", metavar="TOPIC", help="only losses of this topic")
    lost.add_argument(
        "-p", "--partition", dest="partitions", type=number_of, action="append", default=[], metavar="N",
        help="only losses of this partition of the topic",
    )  # fmt: skip
    move = add_verb(
        verbs, "reassign", "move partitions to other brokers, or list current moves", "cluster.moves", "reassign"
    )
    move.add_argument("targets", metavar="TOPIC/PARTITION=ID,...", nargs="*", help="replicas, preferred leader first")
    move.add_argument(
        "--cancel", metavar="TOPIC/PARTITION", action="append", default=[], help="cancel the move of this partition"
    )
    even = add_verb(
        verbs, "rebalance", "give all brokers equal shares of replicas with few moves", "cluster.moves", "rebalance"
    )
    which = even.add_mutually_exclusive_group()
    which.add_argument("--plan", action="store_true", help="only show the moves (default)")
    which.add_argument("--execute", action="store_true", help="carry out the plan")
    leave = add_verb(verbs, "decommission", "move everything off a broker", "cluster.moves", "decommission")
    leave.add_argument("broker", metavar="ID", type=number_of)
    leave.add_argument("--plan", action="store_true", help="only show the moves")
    leave.add_argument("--no-wait", action="store_true", help="return once all moves have started")
    gone = add_verb(
        verbs, "unregister", "unregister a broker that was decommissioned and stopped", "cluster.brokers", "unregister"
    )
    gone.add_argument("broker", metavar="ID", type=number_of)
    for verb in (health, even, leave):
        verb.add_argument(
            "-i", "--internal", action="store_true", help="a row for each partition of internal topics too"
        )
    for verb in (move, even, leave):
        verb.add_argument(
            "--throttle",
            type=number_within(1),
            metavar="BYTES",
            help="most bytes a second that each broker copies; waits for the moves, then removes the limit",
        )
    raised = add_verb(
        verbs, "upgrade", "show which formats brokers write and support, or finalize an upgrade", "cluster.upgrade",
        "upgrade",
    )  # fmt: skip
    which = raised.add_mutually_exclusive_group()
    which.add_argument("--status", action="store_true", help="only show the levels (default)")
    which.add_argument(
        "--finalize", action="store_true", help="write the newest formats: no way back to the old program"
    )
    drained = add_verb(
        verbs, "drain", "bring all acknowledged records into the bucket, so that brokers and disks may go",
        "cluster.drain", "drain",
    )  # fmt: skip
    drained.add_argument(
        "--wait", type=_duration, default=600.0, metavar="10m",
        help="longest wait until all partitions are in the bucket (default 10m)",
    )  # fmt: skip
    drained.add_argument("--end", action="store_true", help="take the setting for all topics back")
    drained.add_argument(
        "--leave-untiered", action="store_true", help="leave topics on the disks that are not copied to the bucket"
    )
    add_dry_run_option(drained, "only show the settings that would change")
    rotate = add_verb(
        verbs, "rotate-secret", "give the brokers a new secret, and end the old one", "cluster.secrets", "rotate_secret"
    )
    rotate.add_argument(
        "--wait", type=_duration, default=60.0, metavar="60s",
        help="longest wait until all brokers know the new secret (default 60s)",
    )  # fmt: skip
    for verb in (move, even, leave, rotate, drained):
        add_progress_option(verb)
    add_verb(verbs, "unthrottle", "remove all rates that moves have set", "cluster.moves", "remove_throttles")
    add_noun(verbs, "config", "settings of brokers", _config)


def _config(keys: Commands) -> None:
    listed = add_verb(keys, "list", "list the settings of a broker", "cluster.commands", "config_list", aliases=("ls",))
    listed.add_argument("--filter", default="", metavar="TEXT", help="only settings whose names contain this")
    get = add_verb(keys, "get", "print settings by their names", "cluster.commands", "config_get")
    get.add_argument("keys", metavar="NAME", nargs="+")
    change = add_verb(
        keys, "set", "change settings that can be changed while a broker runs", "cluster.commands", "config_set"
    )
    change.add_argument("settings", metavar="NAME=VALUE", nargs="+")
    reset = add_verb(keys, "reset", "reset settings to their defaults", "cluster.commands", "config_reset")
    reset.add_argument("keys", metavar="NAME", nargs="+")
    for verb in (listed, get, change, reset):
        verb.add_argument("--node", type=number_of, metavar="ID", help="settings of this broker")
    for verb in (change, reset):
        add_dry_run_option(verb, "only check the request, change nothing")


def _acks(text: str) -> int:
    if text not in ACKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of 0, 1, all")
    return ACKS[text]


def _duration(text: str) -> float:
    """Returns the seconds of `500ms`, `30s`, `2m`, or a number of seconds."""
    unit = next((unit for unit in ("ms", "s", "m", "h") if text.endswith(unit)), "")
    try:
        seconds = float(text.removesuffix(unit)) * DURATIONS.get(unit, 1.0)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 500ms, 30s or 2m")
    return seconds


def _milliseconds(text: str) -> int:
    return max(1, round(_duration(text) * 1000))
