"""The command line as one parser. What a command does stands in the module named beside it, imported when it is run."""

from __future__ import annotations

import argparse
from typing import NamedTuple, NoReturn, TypeAlias

from tiered import __version__

STORE_HELP = "file:///dir, s3://bucket/prefix (credentials and endpoint as every AWS tool takes them)"
WAREHOUSE = "./tiered-warehouse"
WAREHOUSE_HELP = f"folder of the Delta tables, a path or s3:// URL (default {WAREHOUSE})"
EXITS = (
    "exit codes: 0 done; 1 a comparison did not hold or data is broken; 2 wrong usage or setting; "
    "3 a tool that is needed is missing (Java, Maven, an extra); 4 store or broker not reached; 130 interrupted"
)

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


class Command(NamedTuple):
    """Module and function that run a command: `function(args) -> int`."""

    module: str
    function: str


class _Parser(argparse.ArgumentParser):
    """One line for an error, as every error of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tiered: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line. Parsed arguments carry their `command`."""
    whole = _Parser(
        prog="tiered",
        description="A log service of the Kafka family that needs a bucket and nothing else.",
        epilog=EXITS,
    )
    whole.add_argument("--version", action="version", version=f"tiered {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    _serve(commands)
    _demo(commands)
    _cold(commands)
    _lake(commands)
    version = _add(commands, "version", "print the version", Command("tiered_api.cli.version", "version"))
    _form(version)
    return whole


def _add(commands: Commands, name: str, help: str, command: Command) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", epilog=EXITS)
    made.set_defaults(command=command)
    return made


def _form(command: argparse.ArgumentParser, *more: str) -> None:
    command.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="how to print (default text)"
    )


def _serve(commands: Commands) -> None:
    serve = _add(commands, "serve", "run a broker", Command("tiered_api.cli.serve", "serve"))
    serve.add_argument("--config", metavar="FILE", help="settings from a .properties or .toml file")
    serve.add_argument("--data-dir", metavar="DIR", help="directory of the hot log (default ./tiered-data)")
    serve.add_argument(
        "--store", metavar="URL", help=f"the bucket: {STORE_HELP} or memory:// (default: in the data directory)"
    )
    serve.add_argument("--http", metavar="HOST:PORT", help="address of the HTTP interface (default 127.0.0.1:8082)")
    serve.add_argument("--kafka", metavar="HOST:PORT", help="address of the Kafka protocol")
    serve.add_argument("--node-id", metavar="N", help="number of this broker (default 1)")
    serve.add_argument(
        "-c", metavar="NAME=VALUE", action="append", default=[], dest="pairs", help="one setting, by Kafka's name"
    )


def _demo(commands: Commands) -> None:
    demo = _add(
        commands,
        "demo",
        "send the flights of 2013 through everything and compare",
        Command("tiered_api.cli.demo", "demo"),
    )
    demo.add_argument("--store", metavar="URL", help=f"the bucket: {STORE_HELP} (default: a new directory)")
    demo.add_argument("--dir", metavar="DIR", help="where data and warehouse go (default: a new temporary directory)")
    demo.add_argument("--records", metavar="N", type=_count, help="only the first N flights")


def _cold(commands: Commands) -> None:
    cold = commands.add_parser("cold", help="read the bucket without a broker", epilog=EXITS)
    verbs = cold.add_subparsers(metavar="VERB", required=True)
    ls = _add(verbs, "ls", "list what is in the bucket", Command("tiered_api.cli.cold", "ls"))
    ls.add_argument("--topic", metavar="T", help="list the segments of this topic")
    cat = _add(verbs, "cat", "print cold records", Command("tiered_api.cli.cold", "cat"))
    cat.add_argument("--topic", metavar="T", required=True)
    cat.add_argument("--offset", metavar="N", type=_count, help="begin here (default: the log start)")
    cat.add_argument("--max", metavar="N", type=_count, help="so many records of each partition at most")
    for verb in (ls, cat):
        verb.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
        verb.add_argument("--partition", metavar="P", type=_count, help="only this partition")
        _form(verb)


def _lake(commands: Commands) -> None:
    load = _add(
        commands, "load", "load a topic's cold records into its Delta table", Command("tiered_api.cli.lake", "load")
    )
    load.add_argument("--follow", action="store_true", help="go on with what becomes cold, until interrupted")
    verify = _add(
        commands,
        "verify",
        "prove that every loaded record is in the table once",
        Command("tiered_api.cli.lake", "verify"),
    )
    sql = _add(commands, "sql", "ask the loaded tables, by their topics' names", Command("tiered_api.cli.lake", "sql"))
    sql.add_argument("query", metavar="QUERY", help='for example "SELECT count(*) FROM flights"')
    for command in (load, verify):
        command.add_argument("--store", metavar="URL", required=True, help=STORE_HELP)
        command.add_argument("--topic", metavar="T", required=True)
        _form(command)
    _form(sql, "csv")
    for command in (load, verify, sql):
        command.add_argument("--warehouse", metavar="DIR", default=WAREHOUSE, help=WAREHOUSE_HELP)


def _count(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
