"""What the parts of the command line are made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, TypeAlias

EXIT_CODES_HELP = (
    "exit codes: 0 done; 1 a comparison did not hold, data is broken or a part of it was refused; 2 wrong usage or "
    "setting; 3 a tool that is needed is missing (Java, Maven, an extra); 4 store or broker not reached; "
    "10 the cluster is not healthy; 130 interrupted"
)

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest numbers of the protocol's fields."""
DIGITS_MAX = 100

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Command(NamedTuple):
    """Module and function that run a command: `function(args) -> int`."""

    module: str
    function: str


class Parser(argparse.ArgumentParser):
    """One line for an error, as every error of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tiered: {message} (see {self.prog} --help)\n")


def add_command(
    commands: Commands, name: str, help: str, command: Command, aliases: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """One more command."""
    said = help[0].upper() + help[1:] + "."
    made = commands.add_parser(
        name, help=help, description=said.replace("%", "%%"), epilog=EXIT_CODES_HELP, aliases=list(aliases)
    )
    made.set_defaults(command=command)
    return made


def add_format_option(command: argparse.ArgumentParser, *more: str) -> None:
    """The option that says how to print."""
    command.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="how to print (default text)"
    )


def number_within(low: int, high: int = INT64_MAX) -> Callable[[str], int]:
    """The type of an option that takes a number in a range."""

    def number(text: str) -> int:
        found = integer(text)
        if found is not None and low <= found <= high:
            return found
        if high < INT64_MAX:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        why = f"is not a number from {low} on" if found is None or found < low else f"is more than {high}"
        raise argparse.ArgumentTypeError(f"{text!r} {why}")

    return number


count = number_within(0)
"""A number from 0 on."""
number_of = number_within(0, INT32_MAX)
"""That of a partition or a broker, or how many bytes a request may ask for."""


def integer(text: str) -> int | None:
    """A number in decimal digits; None when it is none. One that has no room in 64 bits is the next that has none
    either: Python refuses to read thousands of digits."""
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        return None
    size = int(digits) if len(digits) <= DIGITS_MAX else INT64_MAX + 1
    return -size if text.startswith("-") else size


def is_number(text: str, high: int = INT32_MAX) -> bool:
    """Whether it is a number from 0 on that the protocol has room for; partitions and brokers have 32 bits."""
    found = integer(text)
    return found is not None and text.isdecimal() and found <= high
