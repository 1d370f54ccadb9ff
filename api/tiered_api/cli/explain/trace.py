"""`tiered trace`: the slowest requests of a broker, and what each waited for."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tiered.time_text import format_time
from tiered_api.cli.exits import Exit
from tiered_api.cli.explain.http_client import open_http
from tiered_api.cli.output import print_json, print_lines

OFF = (
    "Broker {node_id} traces no requests: --seconds 10 traces all of them for ten seconds, and the setting"
    " tiered.trace.min.ms those that take at least so long."
)
NONE = "Broker {node_id} has traced no request in the last ten minutes."


def trace(args: Namespace) -> Exit:
    """Prints the slowest requests of a broker."""
    found = open_http(args).get_json(f"/tiered/v1/traces?seconds={args.seconds}&limit={args.limit}")
    if args.format == "json":
        print_json(found)
    elif found["requests"]:
        print_lines(map(describe_request, found["requests"]))
    else:
        print_lines([(NONE if found["is_on"] or args.seconds else OFF).format(**found)])
    return Exit.OK


def describe_request(each: dict[str, Any]) -> str:
    """Returns a request and its phases in one line. Spans of the same name are one sum."""
    sums: dict[str, list[float]] = {}
    for span in each["phases"]:
        sums.setdefault(span["phase"], []).append(span["ms"])
    phases = ", ".join(
        f"{name} {sum(spans):.1f} ms{f' in {len(spans)}' if len(spans) > 1 else ''}" for name, spans in sums.items()
    )
    whose = f"{each['principal']} at {each['peer']}" + (f" as {each['client_id']}" if each["client_id"] else "")
    return (
        f"{format_time(each['at_ms'])} {each['api']} {each['ms']:.1f} ms: {phases} ({each['bytes']} bytes of {whose},"
        f" trace {each['trace_id']})"
    )
