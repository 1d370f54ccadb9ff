"""What the parts of the command line are made of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple, NoReturn, TypeAlias

EXITS = (
    "exit codes: 0 done; 1 a comparison did not hold, data is broken or a part of it was refused; 2 wrong usage or "
    "setting; 3 a tool that is needed is missing (Java, Maven, an extra); 4 store or broker not reached; "
    "10 the cluster is not healthy; 130 interrupted"
)

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Command(NamedTuple):
    """Module and function that run a command: `function(args) -> int`."""

    module: str
    function: str


class Parser(argparse.ArgumentParser):
    """One line for an error, as every error of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tiered: {message} (see {self.prog} --help)\n")


def add(
    commands: Commands, name: str, help: str, command: Command, aliases: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """One more command."""
    said = help[0].upper() + help[1:] + "."
    made = commands.add_parser(
        name, help=help, description=said.replace("%", "%%"), epilog=EXITS, aliases=list(aliases)
    )
    made.set_defaults(command=command)
    return made


def add_form(command: argparse.ArgumentParser, *more: str) -> None:
    """The option that says how to print."""
    command.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="how to print (default text)"
    )


def count(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
