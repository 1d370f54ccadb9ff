"""The command line as one parser. The code of a command is in the module that is named beside it, and imported when the
command runs."""

from __future__ import annotations

import argparse

from tiered import __version__
from tiered_api.cli.kafka_arguments import add_kafka_commands
from tiered_api.cli.parsing import (
    EXIT_CODES_HELP,
    Command,
    Commands,
    Parser,
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
from tiered_api.cli.security_arguments import add_security_commands

COMMAND_CONFIG_HELP = "with --bootstrap: properties of a Kafka client, with its TLS and its login"
STORE_HELP = (
    "file:///dir, s3://bucket/prefix (credentials and endpoint as every AWS tool takes them); ?keys=FILE after it names"
    " the key file of an encrypted bucket"
)
BROKERS_MAX = 100
WAREHOUSE = "./tiered-warehouse"
WAREHOUSE_HELP = f"folder of the Delta tables, a path or s3:// URL (default {WAREHOUSE})"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line. Parsed arguments carry their `command`."""
    whole = Parser(
        prog="tiered",
        description="A log service of the Kafka family, with records on disks of brokers and in a bucket.",
        epilog=EXIT_CODES_HELP,
    )
    whole.add_argument("--version", action="version", version=f"tiered {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    _serve(commands)
    _up(commands)
    _demo(commands)
    add_kafka_commands(commands)
    add_security_commands(commands)
    add_noun(commands, "explain", "tell why things are as they are, and what mends them", _explain)
    _trace(commands)
    add_noun(commands, "debug", "collect what is needed to find out what is wrong", _debug)
    add_noun(commands, "profile", "named settings of connections: brokers, TLS and login", _profile)
    add_noun(commands, "cold", "read the bucket without a broker", _cold)
    add_noun(commands, "encryption", "the keys that encrypt the bucket", _encryption)
    _lake(commands)
    add_noun(commands, "table", "look at Delta tables, erase rows, or replay dead letters", _table)
    version = add_command(commands, "version", "print the version", Command("tiered_api.cli.version", "version"))
    add_format_option(version)
    return whole


def _serve(commands: Commands) -> None:
    serve = add_command(commands, "serve", "run a broker", Command("tiered_api.cli.broker.serve", "serve"))
    serve.add_argument("--config", metavar="FILE", help="settings from a .properties or .toml file")
    serve.add_argument("--data-dir", metavar="DIR", help="directory of the hot log (default ./tiered-data)")
    serve.add_argument(
        "--store", metavar="URL", help=f"the bucket: {STORE_HELP} or memory:// (default: in the data directory)"
    )
    serve.add_argument("--http", metavar="HOST:PORT", help="address of the HTTP interface (default 127.0.0.1:8082)")
    serve.add_argument("--kafka", metavar="HOST:PORT", help="address of the Kafka protocol (default 127.0.0.1:9092)")
    serve.add_argument("--node-id", metavar="N", help="number of this broker (default 1)")
    serve.add_argument(
        "--open",
        metavar="PAGE",
        nargs="?",
        const="",
        help="open the console in a browser once the broker is ready, at a page such as topics/orders",
    )
    serve.add_argument(
        "--ephemeral",
        action="store_true",
        help="for tests: a temporary directory, free ports in a line of JSON, and an end with the parent process",
    )
    serve.add_argument(
        "--add-scram",
        metavar="MECHANISM=[name=USER,password=PASSWORD]",
        action="append",
        default=[],
        help="a user that the cluster gets if it has no such credential yet, or @FILE with one in each line",
    )
    serve.add_argument(
        "-c", metavar="NAME=VALUE", action="append", default=[], dest="pairs", help="one setting, by Kafka's name"
    )
    # `tiered serve` itself passes these to the processes that it starts.
    serve.add_argument("--process", metavar="NUMBER/COUNT", help=argparse.SUPPRESS)
    serve.add_argument("--shared", metavar="NAME=DESCRIPTOR", action="append", default=[], help=argparse.SUPPRESS)


def _up(commands: Commands) -> None:
    up = add_command(commands, "up", "run several brokers on this machine", Command("tiered_api.cli.broker.up", "up"))
    up.add_argument(
        "--brokers", metavar="N", type=number_within(1, BROKERS_MAX), default=3, help="number of brokers (default 3)"
    )
    up.add_argument("--config", metavar="FILE", help="settings of all from a .properties or .toml file")
    up.add_argument(
        "--data-dir",
        metavar="DIR",
        default="./tiered-data",
        help="parent of the brokers' directories (default ./tiered-data)",
    )
    up.add_argument("--store", metavar="URL", help=f"the bucket: {STORE_HELP} (default: bucket in that directory)")
    up.add_argument(
        "--kafka", metavar="HOST:PORT", default="127.0.0.1:9092",
        help="the first broker's Kafka protocol; ports count up from there (default 127.0.0.1:9092)",
    )  # fmt: skip
    up.add_argument(
        "--http", metavar="HOST:PORT", default="127.0.0.1:8082",
        help="the first broker's HTTP interface; ports count up from there (default 127.0.0.1:8082)",
    )  # fmt: skip
    up.add_argument(
        "-c",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="pairs",
        help="one setting of all, by Kafka's name",
    )


def _demo(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "send the flights of 2013 through everything and compare",
        Command("tiered_api.cli.demo.commands", "demo"),
    )
    demo.add_argument("--store", metavar="URL", help=f"the bucket: {STORE_HELP} (default: a new directory)")
    demo.add_argument(
        "--dir", metavar="DIR", help="directory of data and warehouse (default: a new temporary directory)"
    )
    add_progress_option(demo)
    demo.add_argument("--records", metavar="N", type=count, help="only the first N flights")


def _explain(verbs: Commands) -> None:
    from tiered_api.cli.explain_arguments import add_explain_verbs

    add_explain_verbs(verbs)


def _trace(commands: Commands) -> None:
    from tiered_api.cli.explain_arguments import add_trace_command

    add_trace_command(commands)


def _debug(verbs: Commands) -> None:
    from tiered_api.cli.explain_arguments import add_debug_verbs

    add_debug_verbs(verbs)


def _profile(verbs: Commands) -> None:
    from tiered_api.cli.profile_arguments import add_profile_verbs

    add_profile_verbs(verbs)


def _cold(verbs: Commands) -> None:
    ls = add_command(verbs, "ls", "list what is in the bucket", Command("tiered_api.cli.cold.commands", "ls"))
    ls.add_argument("--topic", metavar="T", help="list the segments of this topic")
    ls.add_argument("-i", "--internal", action="store_true", help="a row for each partition of internal topics too")
    cat = add_command(verbs, "cat", "print cold records", Command("tiered_api.cli.cold.commands", "cat"))
    cat.add_argument("--topic", metavar="T", required=True)
    cat.add_argument("--offset", metavar="N", type=count, help="begin here (default: the log start)")
    cat.add_argument("--max", metavar="N", type=count, help="at most this many records of each partition")
    add_isolation_option(cat)
    check = add_command(
        verbs,
        "verify",
        "check that all objects of topics are in the bucket, and find those that no manifest names",
        Command("tiered_api.cli.cold.verify", "verify"),
    )
    check.add_argument("--topic", metavar="T", help="only this topic")
    check.add_argument(
        "--read", action="store_true", help="read every byte and compare its CRC, not only sizes and footers"
    )
    for verb in (cat, check):
        add_progress_option(verb)
    for verb in (ls, cat, check):
        verb.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
        verb.add_argument("--partition", metavar="P", type=number_of, help="only this partition")
        add_format_option(verb)


def _encryption(encryption: Commands) -> None:
    module = "tiered_api.cli.cold.encryption"
    add = add_command(encryption, "add", "add a new random key to a key file", Command(module, "add"))
    add.add_argument("file", metavar="FILE", help="the key file; a missing one is created")
    add.add_argument("--id", metavar="ID", help="the id of the key (default: the date)")
    add.add_argument("--active", action="store_true", help="encrypt new objects by this key")
    activate = add_command(
        encryption, "activate", "encrypt new objects by another key of a key file", Command(module, "activate")
    )
    activate.add_argument("file", metavar="FILE", help="the key file")
    activate.add_argument("id", metavar="ID", help="the id of a key in it")
    removed = add_command(
        encryption,
        "remove",
        "remove a key from a key file, unless an object in the bucket needs it",
        Command(module, "remove"),
        aliases=("delete", "rm"),
    )
    removed.add_argument("file", metavar="FILE", help="the key file")
    removed.add_argument("id", metavar="ID", help="the id of a key in it that is not active")
    removed.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
    add_dry_run_option(removed, "look if an object needs the key, remove nothing")
    listed = add_command(
        encryption,
        "list",
        "count the objects in the bucket by the key that encrypts them, with a request for each object",
        Command(module, "list_keys"),
        aliases=("ls",),
    )
    listed.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
    add_format_option(listed)
    rewrite = add_command(
        encryption,
        "rewrite",
        "encrypt the objects anew that are plain or under another key than the active one, beside running brokers",
        Command(module, "rewrite"),
    )
    rewrite.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
    for verb in (removed, listed, rewrite):
        add_progress_option(verb)


def _lake(commands: Commands) -> None:
    load = add_command(
        commands,
        "load",
        "load a topic's cold records into its Delta table",
        Command("tiered_api.cli.lake.commands", "load"),
    )
    load.add_argument("--follow", action="store_true", help="continue with new cold records until interrupted")
    load.add_argument(
        "--engine",
        choices=("spark", "native"),
        default="spark",
        help="native: this process loads, without a JVM; for small and frequent loads (default: spark)",
    )
    load.add_argument(
        "--mode",
        choices=("append", "latest"),
        default="append",
        help="latest: the table has one row for each key of a partition, that of its last record (default: append)",
    )
    load.add_argument(
        "--iceberg",
        action="store_true",
        help="other engines read the tables as Iceberg tables too, at <table>/_iceberg; a later load remembers it",
    )
    load.add_argument(
        "--vacuum",
        action="store_true",
        help="the first load of a day also does what `tiered table vacuum` does, for all tables of the topic",
    )
    load.add_argument(
        "--values",
        choices=("json", "debezium", "variant", "avro", "protobuf", "json-schema"),
        help="also load the values as columns of <topic>_typed; a later load remembers it",
    )
    load.add_argument(
        "--schema", metavar="DDL", help='with --values: columns to begin with, for example "id BIGINT, city STRING"'
    )
    load.add_argument(
        "--keys",
        choices=("json", "debezium", "avro", "protobuf", "json-schema"),
        help="with --values: the column _typed_key has the keys as JSON says, or their schemas",
    )
    load.add_argument(
        "--unknown-ids",
        choices=("dead", "wait"),
        default="dead",
        help="for a record whose schema the registry lacks: a dead letter, or stop the partition there (default: dead)",
    )
    load.add_argument(
        "--key-schema", metavar="DDL", help='with --keys: the type of the key, for example "BIGINT" or "id BIGINT"'
    )
    load.add_argument(
        "--repair", action="store_true", help="first make the table equal to what the log holds below the loaded bounds"
    )
    load.add_argument(
        "--accept-deletes",
        action="store_true",
        help="accept that a RESTORE, TRUNCATE or OVERWRITE removed rows from the table",
    )
    load.add_argument(
        "--timestamps",
        choices=("refuse", "null"),
        default="refuse",
        help="for a timestamp that Spark cannot represent: stop the partition there, or load NULL (default: refuse)",
    )
    verify = add_command(
        commands,
        "verify",
        "prove that every loaded record is in the table once",
        Command("tiered_api.cli.lake.commands", "verify"),
    )
    sql = add_command(
        commands,
        "sql",
        "query the loaded tables by the names of their topics; without a query, a shell",
        Command("tiered_api.cli.lake.sql", "sql"),
    )
    sql.add_argument("query", metavar="QUERY", nargs="?", help='for example "SELECT count(*) FROM flights"')
    sql.add_argument(
        "--engine",
        choices=("native", "spark"),
        default="native",
        help="native: DuckDB in this process; spark: also for tables that the other one refuses (default native)",
    )
    tail = sql.add_mutually_exclusive_group()
    tail.add_argument("--store", metavar="URL", help="tables end with the newer records of this bucket")
    tail.add_argument(
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="tables end with the newer records of a broker, by HTTP",
    )
    add_profile_options(sql, COMMAND_CONFIG_HELP)
    load.add_argument(
        "--interval", metavar="S", type=number_within(1, 3600), default=10, help="seconds between looks of --follow"
    )
    load.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=number_within(0, 65535),
        help="with --topics: serve lag, rows and failures by topic at http://127.0.0.1:PORT/metrics",
    )
    topics = load.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", metavar="T")
    topics.add_argument(
        "--topics",
        metavar="REGEX",
        help="all topics whose whole names match, new ones included, in one process (with --engine native)",
    )
    verify.add_argument("--topic", metavar="T", required=True)
    for command in (load, verify):
        _add_registry_options(command)
        command.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
        add_format_option(command)
    add_format_option(sql, "csv")
    for command in (load, verify, sql):
        add_progress_option(command)
        command.add_argument("--warehouse", metavar="DIR", default=WAREHOUSE, help=WAREHOUSE_HELP)


def _add_registry_options(command: argparse.ArgumentParser) -> None:
    """Adds the options that say where the schemas of values are."""
    command.add_argument(
        "--registry", metavar="URL", help="the schema registry (default: that of the table, else of the brokers)"
    )
    command.add_argument(
        "--registry-config", metavar="FILE", help="properties of a Kafka client, with the login at the registry"
    )


def _table(verbs: Commands) -> None:
    ls = add_command(verbs, "ls", "list the tables of a warehouse", Command("tiered_api.cli.lake.tables", "ls"))
    describe = add_command(
        verbs,
        "describe",
        "show columns, offsets, size and freshness of a table",
        Command("tiered_api.cli.lake.tables", "describe"),
    )
    history = add_command(
        verbs,
        "history",
        "list the versions of a table, the newest first, with the offsets that each brought",
        Command("tiered_api.cli.lake.tables", "history"),
    )
    diff = add_command(
        verbs, "diff", "show what changed between two versions", Command("tiered_api.cli.lake.tables", "diff")
    )
    vacuum = add_command(
        verbs,
        "vacuum",
        "remove files that no version within the retention needs, and the expired part of the log",
        Command("tiered_api.cli.lake.tables", "vacuum"),
    )
    add_dry_run_option(vacuum, "say how many files and bytes would go, remove nothing")
    add_progress_option(vacuum)
    for verb in (describe, history, diff, vacuum):
        verb.add_argument("topic", metavar="TABLE", help="its name: that of the topic, perhaps with _typed or __dead")
    history.add_argument(
        "--max", metavar="N", type=number_within(1, 100_000), default=20, help="at most this many versions (default 20)"
    )
    diff.add_argument("old", metavar="VERSION", type=count)
    diff.add_argument("new", metavar="VERSION", type=count, nargs="?", help="default: the newest one")
    for verb in (ls, describe):
        ends = verb.add_mutually_exclusive_group()
        ends.add_argument(
            "--store", metavar="URL", help=f"show the lag behind the records in this bucket: {STORE_HELP}"
        )
        ends.add_argument(
            "--bootstrap",
            "--bootstrap-server",
            metavar="HOST:PORT",
            help="show the lag behind the newest records, from a broker's HTTP",
        )
        add_profile_options(verb, COMMAND_CONFIG_HELP)
    for verb in (ls, describe, history, diff, vacuum):
        verb.add_argument("--warehouse", metavar="DIR", default=WAREHOUSE, help=WAREHOUSE_HELP)
        add_format_option(verb)
    erase = add_command(
        verbs,
        "erase",
        "remove rows for good and keep the fact: no load and no repair brings them back",
        Command("tiered_api.cli.lake.commands", "erase"),
    )
    replay = add_command(
        verbs,
        "replay-dead",
        "make rows of dead letters that fit the columns of the typed table by now",
        Command("tiered_api.cli.lake.commands", "replay_dead"),
    )
    erase.add_argument("topic", metavar="T")
    replay.add_argument("topic", metavar="T", help="the topic")
    _add_registry_options(replay)
    erase.add_argument(
        "--where", metavar="CONDITION", required=True, help="SQL condition on the table's columns: key = 'user-17'"
    )
    erase.add_argument("--reason", metavar="TEXT", required=True, help="why; the table keeps it with the condition")
    add_dry_run_option(erase, "count the rows, erase nothing")
    change = add_command(
        verbs,
        "change",
        "rename, retype or drop a field of the typed table, or give values of another type a place",
        Command("tiered_api.cli.lake.commands", "change"),
    )
    change.add_argument("topic", metavar="T", help="the topic")
    change.add_argument("field", metavar="FIELD", help="a path of names in JSON, such as items[].sku")
    rule = change.add_mutually_exclusive_group(required=True)
    rule.add_argument("--drop", action="store_true", help="the field is NULL where its value has another type")
    rule.add_argument("--move-to", metavar="NAME", help="such a value goes to the field NAME of the same object")
    rule.add_argument("--rename-to", metavar="NAME", help="the column of the field gets another name")
    rule.add_argument("--retype", metavar="TYPE", help="the column of the field gets another type, rows included")
    rule.add_argument("--drop-column", action="store_true", help="the field has no column any more, nor values in rows")
    add_dry_run_option(change, "count the rows with a value that --drop-column takes out, change nothing")
    rebuild = add_command(
        verbs,
        "rebuild",
        "make a raw table anew from the bucket while loads go on, and exchange both in one commit",
        Command("tiered_api.cli.lake.commands", "rebuild"),
    )
    rebuild.add_argument("topic", metavar="T")
    rebuild.add_argument(
        "--accept-lost",
        metavar="N",
        type=count,
        default=0,
        help="at most this many rows may go that the bucket no longer has (default 0)",
    )
    add_dry_run_option(rebuild, "make the checks, and say how much is left to load; load nothing")
    for verb in (erase, replay, change, rebuild):
        add_progress_option(verb)
        verb.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
        verb.add_argument("--warehouse", metavar="DIR", default=WAREHOUSE, help=WAREHOUSE_HELP)
        add_format_option(verb)
