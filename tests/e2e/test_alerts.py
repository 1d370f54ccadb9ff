"""Tests of the alerts for Prometheus: each fires for its fault, none on a quiet day, and all read metrics that exist.

`promtool test rules` evaluates the rules over series in its own time. The series come from real brokers, before and
after a fault, or from a table where no test can order the fault.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.ports import free_port
from tests.sources import ROOT
from tiered.testing import TieredCluster, cluster

FOLDER = ROOT / "infra" / "prometheus"
RULES = FOLDER / "alerts.yml"
SECONDS = 120.0
STEP_MINUTES = 4
QUIET_STEPS = 8 * 60 // STEP_MINUTES
FEWER_STEPS = 2 * 60 // STEP_MINUTES
"""Quiet steps of cases whose rules look back for an hour at most: the time of a case is that of its steps."""
FAULT_STEPS = 2 * 60 // STEP_MINUTES
Series = dict[str, float]
NAME = re.compile(r"\b(?:tiered|kafka)_[a-z0-9_]+")

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="needs Prometheus: apt-get install prometheus",
)


@cache
def alerts() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def scrape(brokers: TieredCluster) -> Series:
    """Returns the samples of all running brokers, as Prometheus stores them."""
    found: Series = {}
    for url in brokers.http_urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=SECONDS) as reply:
            text = reply.read().decode()
        at = f'job="tiered",instance="{url.removeprefix("http://")}"'
        found[f"up{{{at}}}"] = 1.0
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                labelled = f"{name[:-1]},{at}}}" if name.endswith("}") else f"{name}{{{at}}}"
                found[labelled] = float(value)
    return found


def check(before: Series, after: Series, expected: set[str], folder: Path) -> None:
    """Fails unless exactly these alerts fire two hours after `before` became `after`, and none did before."""
    run_rules([make_case(rows_of(before, after), expected)], folder)


def rows_of(before: Series, after: Series, quiet_steps: int = QUIET_STEPS) -> dict[str, str]:
    """Returns series in the notation of promtool. One that grew goes on growing, so that rates stay."""
    rows = {}
    for name in before.keys() | after.keys():
        if any(each in name for each in watched()):
            old, new = before.get(name), after.get(name)
            quiet = f"_x{quiet_steps}" if old is None else f"{old}+0x{quiet_steps}"
            grown = 0.0 if new is None or old is None or "_total" not in name else new - old
            rows[name] = f"{quiet} " + (f"_x{FAULT_STEPS}" if new is None else f"{new}+{grown}x{FAULT_STEPS}")
    return rows


def make_case(rows: Mapping[str, str], expected: set[str], quiet_steps: int = QUIET_STEPS) -> dict[str, object]:
    """Returns a case of promtool: exactly these alerts fire at its end, and none before the fault."""
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    quiet_minutes, minutes = quiet_steps * STEP_MINUTES, (quiet_steps + FAULT_STEPS) * STEP_MINUTES
    samples = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in sorted(expected)]
    asked: list[dict[str, object]] = [
        {"expr": firing, "eval_time": f"{minute}m", "exp_samples": []} for minute in (60, quiet_minutes)
    ]
    asked.append({"expr": firing, "eval_time": f"{minutes}m", "exp_samples": samples})
    series = [{"series": name, "values": values} for name, values in sorted(rows.items())]
    return {"interval": f"{STEP_MINUTES}m", "input_series": series, "promql_expr_test": asked}


def run_rules(cases: Sequence[Mapping[str, object]], folder: Path) -> None:
    """Fails unless the rules give what cases of promtool expect, which have one interval. They are evaluated at each
    sample."""
    file = folder / "cases.yml"
    given = {"rule_files": [str(RULES)], "evaluation_interval": cases[0]["interval"], "tests": [*cases]}
    file.write_text(yaml.safe_dump(given))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def watched() -> set[str]:
    """The metrics that the alerts read."""
    return {name for rule in alerts().values() for name in NAME.findall(rule["expr"])} | {"up"}


@pytest.fixture(scope="module")
def quiet() -> Iterator[Series]:
    """The samples of three brokers that have nothing to complain of."""
    with cluster(3, min_insync_replicas=2) as brokers:
        use(brokers)
        yield scrape(brokers)


def use(brokers: TieredCluster) -> None:
    """Writes records of a topic that goes to the bucket."""
    brokers.create_topic("t", remote_storage_enable=True, internal_segment_bytes=1000)
    for _ in range(4):
        brokers.produce("t", "x" * 900)
    brokers.wait_until(lambda: brokers.cold_end_offset("t") == 3)


def test_rules_are_well_formed() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True, timeout=SECONDS)
    assert all(rule["labels"]["severity"] in ("page", "ticket") for rule in alerts().values())
    assert all({"summary", "action", "runbook"} == rule["annotations"].keys() for rule in alerts().values())


def test_runbook_of_each_alert_exists() -> None:
    for name, rule in alerts().items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, (
            name
        )


def test_alerts_read_metrics_that_brokers_have(quiet: Series) -> None:
    """The last ones come with a listener over TLS, a pause, a machine of several processes, and a group."""
    found = {NAME.match(name).group() for name in quiet if NAME.match(name)}  # type: ignore[union-attr]
    absent = watched() - found - {"up"}
    assert absent <= SELDOM and all(is_defined(name) for name in absent), absent


SELDOM = {
    "tiered_tls_certificate_expiry_timestamp_seconds", "tiered_tls_certificate_rejected",
    "tiered_process_paused_seconds_total", "tiered_machine_process_up", "tiered_remote_copy_lag_seconds",
    "kafka_consumergroup_lag_seconds",
}  # fmt: skip


def is_defined(name: str) -> bool:
    """True if the sources name the metric."""
    return any(f'"{name}"' in path.read_text() for tree in ("tiered", "api") for path in (ROOT / tree).rglob("*.py"))


def test_quiet_day_has_no_alert(quiet: Series, tmp_path: Path) -> None:
    check(quiet, quiet, set(), tmp_path)


def test_lost_broker_is_told(quiet: Series, tmp_path: Path) -> None:
    with cluster(3, min_insync_replicas=2) as brokers:
        use(brokers)
        before = scrape(brokers)
        brokers.lose_leader("t")
        brokers.wait_until(lambda: len(brokers.in_sync("t")) == 2)
        brokers.wait_until(lambda: value(scrape(brokers), "tiered_replica_troubles") == 0)
        gone = {name: 0.0 for name in before if name.startswith("up{")}
        check(
            before,
            gone | scrape(brokers),
            {"TieredBrokerDown", "TieredBrokersFenced", "TieredReplicasBehind"},
            tmp_path,
        )


def test_lost_majority_is_told(tmp_path: Path) -> None:
    with cluster(3, min_insync_replicas=2) as brokers:
        use(brokers)
        before = scrape(brokers)
        leader = brokers.leader("t")
        for number in {1, 2, 3} - {leader}:
            brokers.kill(number)
        brokers.wait_until(lambda: brokers.in_sync("t") == {leader})
        expected = {"TieredBrokersFenced", "TieredReplicasBehind", "TieredWritesRefused"}
        check(before, scrape(brokers), expected, tmp_path)


def test_bucket_that_is_away_is_told(tmp_path: Path) -> None:
    with cluster(3, min_insync_replicas=2) as brokers:
        use(brokers)
        before = scrape(brokers)
        with brokers.bucket_away():
            for _ in range(2):  # another segment closes
                brokers.produce("t", "x" * 900)
            brokers.wait_until(lambda: value(scrape(brokers), "tiered_tiering_failing_partitions") > 0)
            brokers.advance(minutes=2)
            brokers.wait_until(lambda: value(scrape(brokers), "tiered_store_unavailable_seconds") > 60)
            brokers.wait_until(lambda: value(scrape(brokers), "tiered_replica_troubles") == 0)
            check(before, scrape(brokers), {"TieredBucketAway", "TieredTieringFails"}, tmp_path)


def test_page_of_an_absent_bucket_comes_within_two_minutes_and_a_half(tmp_path: Path) -> None:
    """A drill on a cluster that nobody uses: the first broker that needs the bucket notices the outage. Prometheus
    scrapes every fifteen seconds of the brokers' time, and evaluates the rules as often."""
    with cluster(3, min_insync_replicas=2) as brokers:
        use(brokers)
        with brokers.bucket_away():
            samples = [scrape(brokers)]
            while value(samples[-1], UNAVAILABLE) <= 60 and len(samples) <= DRILL_SECONDS // SCRAPE_SECONDS:
                brokers.advance(seconds=SCRAPE_SECONDS)
                samples.append(scrape(brokers))
    names = {name for each in samples for name in each if any(metric in name for metric in watched())}
    rows = {name: " ".join(str(each.get(name, "_")) for each in samples) for name in sorted(names)}
    paged_seconds = SCRAPE_SECONDS * (len(samples) - 1)
    assert value(samples[-1], UNAVAILABLE) > 60, f"no page after {paged_seconds} s"
    fires = 'group by (alertname) (ALERTS{alertname="TieredBucketAway",alertstate="firing"})'
    page = {"labels": '{alertname="TieredBucketAway"}', "value": 1}
    asked = [
        {"expr": fires, "eval_time": f"{seconds}s", "exp_samples": [page] if seconds == paged_seconds else []}
        for seconds in range(0, paged_seconds + 1, SCRAPE_SECONDS)
    ]
    series = [{"series": name, "values": values} for name, values in rows.items()]
    run_rules([{"interval": f"{SCRAPE_SECONDS}s", "input_series": series, "promql_expr_test": asked}], tmp_path)


UNAVAILABLE = "tiered_store_unavailable_seconds"
SCRAPE_SECONDS, DRILL_SECONDS = 15, 150


def test_every_alert_has_a_test_of_its_fault() -> None:
    ordered = {"TieredBrokerDown", "TieredBrokersFenced", "TieredReplicasBehind", "TieredWritesRefused"}
    assert alerts().keys() - ORDERED.keys() == ordered | {"TieredBucketAway", "TieredDiskFillsUp"}


def test_disk_that_fills_up_is_told(tmp_path: Path) -> None:
    """The disk loses three hundredths of its room every four minutes."""
    rows = {f"tiered_disk_free_bytes{{{AT}}}": f"1000+0x{QUIET_STEPS} 1000-30x30"}
    run_rules([make_case(rows, {"TieredDiskFillsUp"})], tmp_path)


def test_prometheus_scrapes_a_cluster_and_loads_the_rules(tmp_path: Path) -> None:
    """The configuration is the one in infra/prometheus, with the addresses of the brokers and a short interval."""
    with cluster(3) as brokers:
        address = f"127.0.0.1:{free_port()}"
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [
            url.removeprefix("http://") for url in brokers.http_urls
        ]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        with (tmp_path / "log").open("w") as log:
            server = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log)
        try:
            url = f"http://{address}/api/v1"
            brokers.wait_until(lambda: ask(f"{url}/query?query=count(up==1)") == [3.0], SECONDS)
            (names,) = ask(f"{url}/query?query=count(count+by(__name__)({{job=%22tiered%22}}))")
            assert names > 80
            brokers.wait_until(lambda: len(evaluated(url)) == len(alerts()), SECONDS)
            for query in dashboard_queries():
                ask(f"{url}/query?query={quote(query.replace('$job', 'tiered').replace('$__rate_interval', '1m'))}")
            assert {health for health, _ in evaluated(url).values()} == {"ok"}
            assert "firing" not in {state for _, state in evaluated(url).values()}
        finally:
            server.terminate()
            server.wait(SECONDS)


def dashboard_queries() -> list[str]:
    """Returns the queries of all panels of infra/grafana/tiered.json."""
    panels = json.loads((ROOT / "infra/grafana/tiered.json").read_text())["panels"]
    whole = [inner for panel in panels for inner in (panel["panels"] if panel["type"] == "row" else [panel])]
    return [target["expr"] for panel in whole for target in panel["targets"]]


def test_dashboard_has_a_panel_for_each_metric(quiet: Series) -> None:
    """`infra/grafana/make_dashboard.py` makes it from the definitions of a broker."""
    shown = {name for query in dashboard_queries() for name in METRIC.findall(query)}
    kept = {re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]) for name in quiet}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} >= kept - {"up"}


METRIC = re.compile(r"\b(?:tiered|kafka|process)_[a-z0-9_]+")


def ask(url: str) -> list[float]:
    """Returns the values of a query of Prometheus."""
    with urllib.request.urlopen(url, timeout=SECONDS) as reply:
        return [float(each["value"][1]) for each in json.load(reply)["data"]["result"]]


def evaluated(url: str) -> dict[str, tuple[str, str]]:
    """Returns health and state of each rule that Prometheus has evaluated."""
    with urllib.request.urlopen(f"{url}/rules", timeout=SECONDS) as reply:
        rules = [rule for group in json.load(reply)["data"]["groups"] for rule in group["rules"]]
    return {rule["name"]: (rule["health"], rule["state"]) for rule in rules if rule["health"] != "unknown"}


def value(samples: Series, metric: str) -> float:
    return max(value for name, value in samples.items() if name.startswith(metric))


AT = 'job="tiered",instance="a:1"'
ORDERED: dict[str, Mapping[str, tuple[float, float]]] = {
    "TieredRecordsMayBeLost": {"tiered_possible_loss_partitions{%s}": (0, 1)},
    "TieredPartitionsOffline": {"kafka_controller_kafkacontroller_offlinepartitionscount{%s}": (0, 2)},
    "TieredReplicaStuck": {"tiered_replica_troubles{%s}": (0, 1)},
    "TieredNoController": {"kafka_controller_kafkacontroller_activecontrollercount{%s}": (1, 0)},
    "TieredMetadataWaits": {"tiered_metadata_waiting_changes{%s}": (0, 3)},
    "TieredTieringFails": {"tiered_tiering_failing_partitions{%s}": (0, 1)},
    "TieredUploadsFallBehind": {'tiered_remote_copy_lag_seconds{topic="t",%s}': (600, 4000)},
    "TieredColdReadsFail": {"tiered_cold_read_failures_total{%s}": (0, 5)},
    "TieredObjectsDamaged": {"tiered_cold_damaged_objects{%s}": (0, 1)},
    "TieredDiskDead": {"tiered_disk_dead{%s}": (0, 1)},
    "TieredDiskFull": {"tiered_disk_full{%s}": (0, 1)},
    "TieredLogWasCut": {"tiered_log_recovered_cut_bytes_total{%s}": (0, 100)},
    "TieredGroupsNotInBucket": {
        "tiered_group_image_lag_seconds{%s}": (30, 900), "tiered_transaction_image_lag_seconds{%s}": (0, 0),
    },
    "TieredTransactionHangs": {
        "kafka_server_replicamanager_partitionswithlatetransactionscount{%s}": (0, 1),
    },
    "TieredTransactionOpen": {"tiered_open_transaction_seconds{%s}": (20, 400)},
    "TieredConsumerBehind": {'kafka_consumergroup_lag_seconds{consumergroup="g",topic="t",%s}': (2, 400)},
    "TieredMarkersPending": {"tiered_transaction_markers_pending{%s}": (0, 1)},
    "TieredCompactionStopped": {"tiered_log_cleaner_uncleanable_partitions{%s}": (0, 1)},
    "TieredShareNearlyTaken": {'tiered_pot_held{pot="p",%s}': (10, 95), 'tiered_pot_bound{pot="p",%s}': (100, 100)},
    "TieredCertificateRejected": {'tiered_tls_certificate_rejected{listener="l",%s}': (0, 1)},
    "TieredClockWrong": {'tiered_clock_ahead_seconds{broker="2",%s}': (0.1, -9)},
    "TieredProcessPaused": {"tiered_process_paused_seconds_total{%s}": (0, 20)},
    "TieredMachineProcessDown": {'tiered_machine_process_up{process="1",%s}': (1, 0)},
    "TieredAuditDropped": {"tiered_audit_dropped_total{%s}": (0, 1)},
    # The time is 0 at the begin of a case. The fault comes after two hours.
    "TieredCertificateExpires": {
        'tiered_tls_certificate_expiry_timestamp_seconds{listener="l",%s}': (15 * 86_400, 14.1 * 86_400),
    },
}  # fmt: skip
"""By alert: the series that fire it, before and after."""
OTHER_CAUSES: Sequence[tuple[str, Mapping[str, tuple[float, float]]]] = (
    ("TieredGroupsNotInBucket", {
        "tiered_group_image_lag_seconds{%s}": (30, 30), "tiered_transaction_image_lag_seconds{%s}": (0, 900),
    }),
    ("TieredGroupsNotInBucket", {
        "tiered_group_image_lag_seconds{%s}": (30, 30), "tiered_share_image_lag_seconds{%s}": (0, 900),
    }),
)  # fmt: skip
"""Alerts with more than one cause, and the series of each other cause."""


def test_each_alert_fires_for_its_metric(tmp_path: Path) -> None:
    """One process evaluates all cases, each apart: a start of promtool takes longer than a case."""
    cases = []
    for name, series in (*ORDERED.items(), *OTHER_CAUSES):
        before, after = ({each % AT: values[at] for each, values in series.items()} for at in (0, 1))
        cases.append(make_case(rows_of(before, after, FEWER_STEPS), {name}, FEWER_STEPS))
    run_rules(cases, tmp_path)
