"""`tiered debug bundle`: one archive with the state of a cluster, for who has to find out what is wrong with it.

All facts are replies of brokers that anybody with the same rights can get; a part that a broker refuses or that does
not come is left out, and the manifest says so.
"""

from __future__ import annotations

import os
import platform
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

import tiered
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.records import native
from tiered.time_text import format_time
from tiered_api.cli.debug.archive import Bundle, check_path, file_name
from tiered_api.cli.debug.machine import describe_directory, find_logs, read_log_end
from tiered_api.cli.debug.redaction import hide_json, hide_text
from tiered_api.cli.debug.selection import choose_partitions, choose_topics, describe_left_out
from tiered_api.cli.exits import Exit
from tiered_api.cli.explain.commands import topic_path
from tiered_api.cli.explain.http_client import BrokersHttp, open_http
from tiered_api.cli.output import format_size, print_json, print_lines
from tiered_api.cli.progress import Progress, show_progress

TOPICS_MAX, PARTITIONS_MAX, GROUPS_MAX = 50, 200, 50
"""Most topics, partitions that health names, and groups with files of their own."""
ENTRIES = 100
"""Entries of the metadata log."""
SHOWN_SETTING = ("name", "value", "source", "is_sensitive", "synonyms")

Shape = Callable[[Any], Any]


def bundle(args: Namespace) -> Exit:
    """Writes a bundle. A broker that does not reply is left out; without any, and no files of this machine, the command
    fails."""
    out = Path(args.out or f"tiered-debug-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    check_path(out)
    made, http = Bundle(), open_http(args)
    with show_progress(args, "debug bundle") as shown:
        collector = Collector(http, made, shown)
        try:
            collector.collect_cluster()
        except Unavailable as fault:
            if args.data_dir is None and not args.log:
                raise
            made.leave_out("cluster.json", str(fault))
        _add_machine(made, args)
    facts = _describe_maker(collector.base)
    size = made.write(out, facts)
    if args.format == "json":
        print_json(
            {"file": str(out), "bytes": size, "files": sorted(made.files), "left_out": made.left_out},
        )
    else:
        print_lines([f"{out}: {len(made.files)} files, {format_size(size)}"])
        print_lines(f"left out {each['file']}: {each['why']}" for each in made.left_out)
    return Exit.OK


class Collector:
    """Collects the replies of brokers into a bundle."""

    def __init__(self, http: BrokersHttp, made: Bundle, shown: Progress) -> None:
        self._http = http
        self._made = made
        self._shown = shown
        self.base = http.base

    def collect_cluster(self) -> None:
        """Collects all that the cluster says. Raises `Unavailable` if the named broker does not reply at all."""
        self._http.get_json("/tiered/v1/node")
        cluster = self._ask("cluster.json", "/tiered/v1/cluster")
        v3 = f"/v3/clusters/{quote(str((cluster or {}).get('cluster_id', '')), safe='')}"
        for broker in (cluster or {}).get("brokers", ()):
            self._collect_broker(broker, v3)
        self._ask("settings/cluster.json", f"{v3}/broker-configs", _shorten_settings)
        self._ask("settings/topics.json", f"{v3}/topics/-/configs", _list_changed_settings)
        self._ask("metadata-log.json", f"/tiered/v1/metadata/log?limit={ENTRIES}")
        self._ask("controllers.json", "/tiered/v1/metadata/controllers")
        self._ask("transactions.json", "/tiered/v1/transactions")
        self._ask("quotas.json", "/tiered/v1/quotas")
        self._ask("moves.json", f"{v3}/topics/-/partitions/-/reassignment")
        self._ask("tables.json", "/tiered/v1/tables")
        self._ask("costs.json", "/tiered/v1/costs?days=2")
        rows = (self._ask("topics.json", "/tiered/v1/topics") or {}).get("topics", ())
        named = choose_partitions(cluster or {}, rows)
        self._collect_partitions(named, (cluster or {}).get("partitions_left_out", 0))
        self._collect_topics(choose_topics(rows, named))
        self._collect_groups()

    def _collect_broker(self, broker: dict[str, Any], v3: str) -> None:
        """Collects metrics, health and settings of one broker, by its own HTTP."""
        node, address = broker["node_id"], broker.get("http")
        if broker["state"] != "live" or not address:
            self._made.leave_out(f"brokers/{node}", f"broker {node} is {broker['state']}, and its HTTP is {address}")
            return
        self._ask(f"brokers/{node}/healthz.json", "/healthz", base=address)
        self._ask(f"brokers/{node}/settings.json", f"{v3}/brokers/{node}/configs", _shorten_settings, base=address)
        name = f"brokers/{node}/metrics.txt"
        try:
            self._made.add(name, hide_text(self._http.get("/metrics", address).decode()).encode())
        except (Refused, Unavailable, UnicodeDecodeError) as fault:
            self._made.leave_out(name, str(fault))

    def _collect_topics(self, names: list[str]) -> None:
        for topic in self._first("topics", names, TOPICS_MAX):
            name, path = file_name(topic), topic_path(topic)
            self._ask(f"topics/{name}/storage.json", f"{path}/storage")
            self._ask(f"topics/{name}/explain.json", f"{path}/explain")

    def _collect_partitions(self, named: list[TopicPartition], unlisted: int) -> None:
        if unlisted:
            self._made.leave_out("partitions", f"files of {unlisted} more that the reply of the broker does not list")
        names = {f"{topic}/{number}": (topic, number) for topic, number in named}
        for name in self._first("partitions", list(names), PARTITIONS_MAX):
            topic, number = names[name]
            path = f"{topic_path(topic)}/partitions/{number}/explain"
            self._ask(f"partitions/{file_name(topic)}-{number}/explain.json", path)

    def _collect_groups(self) -> None:
        found = self._ask("groups.json", "/tiered/v1/groups")
        rows = sorted((found or {}).get("groups", ()), key=lambda each: -(each.get("lag") or 0))
        for group in self._first("groups", [each["group"] for each in rows], GROUPS_MAX):
            path = f"/tiered/v1/groups/{quote(group, safe='')}"
            self._ask(f"groups/{file_name(group)}/group.json", path)
            self._ask(f"groups/{file_name(group)}/explain.json", f"{path}/explain")

    def _first(self, kind: str, names: list[str], most: int) -> list[str]:
        if len(names) > most:
            self._made.leave_out(kind, describe_left_out(names, most))
        return names[:most]

    def _ask(self, name: str, path: str, shape: Shape = lambda value: value, base: str = "") -> Any:
        """Adds a reply without secrets, and returns it; None if it is left out."""
        try:
            found = shape(self._http.get_json(path, base))
        except (Refused, Unavailable, Corrupt, orjson.JSONDecodeError) as fault:
            self._made.leave_out(name, str(fault))
            return None
        self._made.add_json(name, hide_json(found))
        self._shown.count(len(self._made.files), "files")
        return found


def _shorten_settings(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns settings with their sources, without links and documentation."""
    return [{name: each.get(name) for name in SHOWN_SETTING} for each in found["data"]]


def _list_changed_settings(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the settings of topics that are no defaults."""
    return [
        {"topic": each.get("topic_name")} | {name: each.get(name) for name in SHOWN_SETTING}
        for each in found["data"]
        if not each.get("is_default")
    ]


def _add_machine(made: Bundle, args: Namespace) -> None:
    logs = [Path(each) for each in args.log]
    if args.data_dir is not None:
        directory = Path(args.data_dir)
        logs += find_logs(directory)
        made.add_json("machine/data-dir.json", describe_directory(directory))
    for number, path in enumerate(logs):
        made.add(f"machine/logs/{number}-{file_name(path.name)}", read_log_end(path))


def _describe_maker(base: str) -> dict[str, Any]:
    return {
        "made_at": format_time(time.time_ns() // 1_000_000),
        "asked": base,
        "versions": {
            "tiered": tiered.__version__,
            "python": platform.python_version(),
            "records": "C" if native.NATIVE else "Python",
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
    }
