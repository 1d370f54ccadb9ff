"""The command `tiered`: parses, runs, and turns every expected error into one clear line and an exit code."""

from __future__ import annotations

import gc
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any

from tiered.errors import FULL_ERRNOS, Code, Corrupt, Fenced, Refused, Unavailable, first_line
from tiered_api.cli.arguments import parser
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import discard_output, print_error
from tiered_api.cli.parsing import Command
from tiered_api.kafka.protocol.primitives import Malformed

Function = Callable[[Namespace], int | Coroutine[Any, Any, int]]

FOREIGN = (
    ("py4j.protocol", "Py4JError"),
    ("pyspark.errors", "PySparkException"),
    ("pyarrow", "ArrowException"),
    ("duckdb", "Error"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
)
"""Errors of other packages that no command has translated: their first line says what happened."""
UNKNOWN_NAMES = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
"""Retriable for a client, which may know more than a broker; a name that a person typed does not come by itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = parser().parse_args(arguments)
    command: Command = args.command
    try:
        code = _run(_load_command(command), args)
        sys.stdout.flush()
        return code
    except Refused as refused:
        passes = refused.code.retriable and refused.code not in UNKNOWN_NAMES
        return _fail(refused.why, Exit.UNAVAILABLE if passes else Exit.USAGE)
    except Unavailable as fault:
        return _fail(str(fault), Exit.UNAVAILABLE)
    except Malformed as error:
        # A reply that does not parse is Corrupt: this is a number or a name that does not fit into a request.
        return _fail(f"the request cannot be made: {error}", Exit.USAGE)
    except (Corrupt, Fenced) as fault:
        return _fail(str(fault), Exit.FAILED)
    except _foreign_failures() as failure:
        return _fail(f"the command failed: {first_line(failure)}", Exit.UNAVAILABLE)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`| head`): that is no error.
        discard_output()
        return Exit.OK
    except OSError as error:
        if error.errno not in FULL_ERRNOS or error.filename is not None:
            raise
        discard_output()
        return _fail(f"cannot write the output: {error.strerror}", Exit.UNAVAILABLE)


def _run(function: Function, args: Namespace) -> int:
    """Runs a command to its end. One that needs an event loop is a coroutine function."""
    result = function(args)
    if not isinstance(result, Coroutine):
        return int(result)
    import asyncio

    return int(asyncio.run(result))


def _load_command(command: Command) -> Function:
    """Returns the function that runs a command. Garbage collection is off during the imports: it would free nothing,
    and take a tenth of a broker's start."""
    gc.disable()
    try:
        function: Function = getattr(import_module(command.module), command.function)
    finally:
        gc.enable()
    return function


def _foreign_failures() -> tuple[type[BaseException], ...]:
    """Returns the errors of the packages that read tables and buckets, as far as they are loaded."""
    return tuple(getattr(sys.modules[module], name) for module, name in FOREIGN if module in sys.modules)


def _fail(why: str, code: Exit) -> int:
    print_error(why)
    return code


if __name__ == "__main__":
    sys.exit(main())
