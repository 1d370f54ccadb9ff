"""`tiered explain topic`, `partition`, `segment`, `fetch` and `group`: the sentences of a broker."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from urllib.parse import quote, urlencode

from tiered_api.cli.exits import Exit
from tiered_api.cli.explain.http_client import open_http
from tiered_api.cli.output import print_json, print_lines


def explain_topic(args: Namespace) -> Exit:
    """Prints what becomes of the records of a topic."""
    return _ask(args, f"{topic_path(args.topic)}/explain")


def explain_partition(args: Namespace) -> Exit:
    """Prints why a partition is as it is."""
    return _ask(args, f"{_partition_path(args)}/explain")


def explain_segment(args: Namespace) -> Exit:
    """Prints why the segment that holds an offset is where it is."""
    return _ask(args, f"{_partition_path(args)}/segments/{args.offset}/explain")


def explain_fetch(args: Namespace) -> Exit:
    """Prints what a fetch at an offset gets."""
    query = {} if args.offset is None else {"offset": str(args.offset)}
    query["isolation_level"] = "read_committed" if args.read_committed else "read_uncommitted"
    query |= {name: value for name, value in (("user", args.user), ("client_id", args.client_id)) if value is not None}
    return _ask(args, f"{_partition_path(args)}/fetch/explain?{urlencode(query)}")


def explain_group(args: Namespace) -> Exit:
    """Prints why a group does not read, or is behind."""
    return _ask(args, f"/tiered/v1/groups/{quote(args.group, safe='')}/explain")


def topic_path(topic: str) -> str:
    """Returns the path of a topic."""
    return f"/tiered/v1/topics/{quote(topic, safe='')}"


def print_explanation(found: dict[str, Any], form: str) -> Exit:
    """Prints an explanation: a sentence on each line, or all of its JSON."""
    if form == "json":
        print_json(found)
    else:
        print_lines(found["sentences"])
    return Exit.OK


def _partition_path(args: Namespace) -> str:
    return f"{topic_path(args.topic)}/partitions/{args.partition}"


def _ask(args: Namespace, path: str) -> Exit:
    return print_explanation(open_http(args).get_json(path), args.format)
