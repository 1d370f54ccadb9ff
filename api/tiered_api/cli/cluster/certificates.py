"""`tiered cluster certificates`: the certificates that the listeners of each broker show, and those that are rejected.

The reports are those of `tiered cluster health`. Each broker looks at its files before it replies.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence

from tiered.security.certificates import DAY_MS, VALID
from tiered.time_text import format_time
from tiered_api.cli.cluster.view import fetch_registered, fetch_self_reports
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.health.view import LIVE, BrokerReport, BrokerSummary, build_view
from tiered_api.kafka.protocol.messages.describe_cluster import ReportedCertificate

UNKNOWN = "unknown"
UNREPORTED = "the broker reports no certificates; the report needs DESCRIBE on the cluster"
COLUMNS = ("broker", "listener", "subject", "names", "not_before", "not_after", "days_left", "state", "reason")


async def certificates(args: Namespace) -> int:
    """Prints a row for each listener with TLS. Returns exit code 10 unless all certificates are valid and in use."""
    async with open_client(args) as client:
        got = await client.fetch_metadata([])
        seen = build_view(await fetch_registered(client), got)
        found = certificate_rows(seen.brokers.values(), await fetch_self_reports(client, seen), client.clock.wall_ms())
    return print_certificates(found, args.format)


def print_certificates(rows: Sequence[Row], form: str) -> Exit:
    """Prints the rows. The exit code repeats the verdict."""
    print_rows(rows, form, COLUMNS)
    return Exit.OK if all(row["state"] == VALID and not row["reason"] for row in rows) else Exit.UNHEALTHY


def certificate_rows(brokers: Iterable[BrokerSummary], reports: Sequence[BrokerReport], now_ms: int) -> list[Row]:
    """Returns a row for each listener with TLS, and one for each of the `brokers` that does not report certificates.

    A broker that is not live may have lost the others by its certificate, so it has a row too.
    """
    rows: list[Row] = []
    reports_by_node = {each.node_id: each for each in reports}
    for broker in brokers:
        node = broker.node_id
        why = UNREPORTED if broker.state == LIVE else f"the broker is {broker.state}"
        report = reports_by_node.get(node, BrokerReport(node, (why,)))
        if report.certificates is None:
            reason = report.problems[0] if report.problems else UNREPORTED
            rows.append({**dict.fromkeys(COLUMNS), "broker": node, "state": UNKNOWN, "reason": reason})
        else:
            rows += [_row(node, each, now_ms) for each in report.certificates]
    return rows


def _row(node: int, each: ReportedCertificate, now_ms: int) -> Row:
    return {
        "broker": node,
        "listener": each.listener,
        "subject": each.subject,
        "names": each.names,
        "not_before": format_time(each.not_before_ms),
        "not_after": format_time(each.not_after_ms),
        "days_left": (each.not_after_ms - now_ms) // DAY_MS,
        "state": each.state,
        "reason": each.rejected,
    }
