"""Building blocks of the command line's parser."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

EXIT_CODES_HELP = (
    "exit codes: 0 done; 1 a comparison did not hold, data is broken, or one of several things was refused; "
    "2 wrong usage or setting; 3 a tool that is needed is missing (Java, Maven, an extra); "
    "4 store, disk or broker unreachable; 10 the cluster is unhealthy; 11 what you may see of it is healthy; "
    "130 interrupted"
)

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest numbers of the protocol's fields."""
DIGITS_MAX = 100
PARSER = "parser_of_command"
"""The name under which parsed arguments have the parser of their command."""

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


_BEGINS_AS_A_NUMBER = re.compile(r"^-\d")
"""A value such as -10 or -1h. No option begins with a digit."""


class Command(NamedTuple):
    """The module and the function that run a command: `function(args) -> int`, or a coroutine function."""

    module: str
    function: str


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, as all our errors are reported. For an unknown option it names the
    option of the command that is most alike."""

    _words: Sequence[str] = ()
    _add_verbs: Callable[[Commands], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = _BEGINS_AS_A_NUMBER  # argparse lets a word that matches be a value

    def error(self, message: str) -> NoReturn:
        if "required" in message:  # perhaps an option is there under a wrong name
            message += self._name_alike([word for word in self._words if not self._is_option(word)])
        self.exit(2, f"tiered: {message} (see {self.prog} --help)\n")

    def add_verbs_later(self, add_verbs: Callable[[Commands], None]) -> None:
        """Makes a noun of this command, whose verbs are added once it is parsed. A parser of all verbs is the largest
        part of the work before a broker starts."""
        self._add_verbs = add_verbs

    def complete(self) -> None:
        """Adds the verbs of a noun, once."""
        if self._add_verbs is not None:
            add_verbs, self._add_verbs = self._add_verbs, None
            add_verbs(self.add_subparsers(metavar="VERB", required=True))

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Returns the arguments of a command line. Ends the process if it has unknown ones."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command: Parser = getattr(parsed, PARSER, self)
            command.error(f"unrecognized arguments: {' '.join(unknown)}{command._name_alike(unknown)}")
        return parsed

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Returns the known arguments, and the words that are none. Each command has a parser of its own."""
        self.complete()
        self._words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def _is_option(self, word: str) -> bool:
        """True if argparse takes the word for an option: the beginning of a name is enough."""
        return any(name.startswith(word.partition("=")[0]) for name in self._option_string_actions)

    def _name_alike(self, words: Sequence[str]) -> str:
        """Returns the end of an error about unknown options: those of the command that are most alike; "" without."""
        options = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--"]
        alike = [difflib.get_close_matches(option, self._option_string_actions, n=1) for option in options]
        near = " or ".join(dict.fromkeys(each[0] for each in alike if each))
        return f"; did you mean {near}?" if near else ""


def add_command(
    commands: Commands, name: str, help: str, command: Command, aliases: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Adds a command."""
    said = help[0].upper() + help[1:] + "."
    made = commands.add_parser(
        name, help=help, description=said.replace("%", "%%"), epilog=EXIT_CODES_HELP, aliases=list(aliases)
    )
    made.set_defaults(command=command, **{PARSER: made})
    return made


def add_noun(commands: Commands, name: str, help: str, add_verbs: Callable[[Commands], None]) -> None:
    """Adds a command that has verbs."""
    commands.add_parser(name, help=help, epilog=EXIT_CODES_HELP).add_verbs_later(add_verbs)


def add_format_option(command: argparse.ArgumentParser, *more: str) -> None:
    """Adds the option for the output format."""
    command.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="output format (default text)"
    )


def add_progress_option(command: argparse.ArgumentParser) -> None:
    """Adds the option of commands that may take more than two seconds."""
    command.add_argument("--no-progress", action="store_true", help="draw no line on a terminal that says what is left")


def add_dry_run_option(command: argparse.ArgumentParser, what: str, *aliases: str) -> None:
    """Adds the option of commands that delete or change something: they say what would happen, and do nothing."""
    command.add_argument(*aliases, "--dry-run", dest="dry_run", action="store_true", help=what)


def add_profile_options(command: argparse.ArgumentParser, file_help: str) -> None:
    """Adds the options for a file of properties and for a profile."""
    command.add_argument("--command-config", metavar="FILE", help=f"{file_help} (default $TIERED_COMMAND_CONFIG)")
    profiles = command.add_mutually_exclusive_group()
    profiles.add_argument(
        "--profile",
        metavar="NAME",
        help="a profile of `tiered profile` (default $TIERED_PROFILE, else the current)",
    )
    profiles.add_argument("--ignore-profile", action="store_true", help="use no profile")


def add_isolation_option(command: argparse.ArgumentParser) -> None:
    """Adds the option for records of open and aborted transactions. It becomes `read_committed`."""
    command.add_argument(
        "--isolation-level",
        dest="read_committed",
        type=_is_read_committed,
        default=True,
        metavar="read_committed|read_uncommitted",
        help="without or with records of open and aborted transactions (default read_committed)",
    )


def _is_read_committed(text: str) -> bool:
    if text not in ("read_committed", "read_uncommitted"):
        raise argparse.ArgumentTypeError(f"{text!r} is not read_committed or read_uncommitted")
    return text == "read_committed"


def number_within(low: int, high: int = INT64_MAX) -> Callable[[str], int]:
    """Returns the type of an option that takes a number in a range."""

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
"""Parses a number from 0 on."""
number_of = number_within(0, INT32_MAX)
"""Parses the number of a partition or broker, or a size in bytes of a request."""


def integer(text: str) -> int | None:
    """Returns a number from decimal digits; None if they are none. A number that does not fit into 64 bits becomes the
    smallest such number, because Python refuses to parse thousands of digits."""
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        return None
    size = int(digits) if len(digits) <= DIGITS_MAX else INT64_MAX + 1
    return -size if text.startswith("-") else size


def is_number(text: str, high: int = INT32_MAX) -> bool:
    """True if the text is a number from 0 on that fits into the protocol's field; partitions and brokers have 32
    bits."""
    found = integer(text)
    return found is not None and text.isdecimal() and found <= high
