"""Tests of the metadata log over HTTP: entries in pages, controllers, rights and bad input."""

from __future__ import annotations

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import HttpBroker, run, wait_until
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER

LOG, CONTROLLERS = "/tiered/v1/metadata/log", "/tiered/v1/metadata/controllers"


@run_by(run, "tmp_path")
async def test_log_is_listed_entry_by_entry_newest_first(site: HttpBroker) -> None:
    for number in range(5):
        await site.create(f"t{number}")
    whole = (await site.get(f"{LOG}?limit=100")).json
    entries, to = list[dict[str, object]](), whole["slot"]
    while to is not None:
        page = (await site.get(f"{LOG}?limit=3&to={to}")).json
        entries, to = [*entries, *page["entries"]], page["next_to"]
    assert entries == whole["entries"] and [each["slot"] for each in entries] == list(range(whole["slot"], -1, -1))
    created = [change["name"] for each in whole["entries"] for change in each["changes"] if "assignments" in change]
    assert created == ["t4", "t3", "t2", "t1", "t0"]
    assert all(each["written_ms"] > 1_700_000_000_000 and each["bytes"] > 0 for each in whole["entries"])
    assert whole["entries"][-1]["changes"][0]["kind"] == "controller_elected"
    assert site.broker.incarnation not in str(whole)


@run_by(run, "tmp_path")
async def test_bad_requests_for_the_metadata_log_are_refused(site: HttpBroker) -> None:
    for query in ("to=-1", "to=x", "limit=0", "limit=x"):
        assert (await site.get(f"{LOG}?{query}")).status == 400, query
    newest = (await site.get(f"{LOG}?to=99999999999999999999&limit=1000000")).json
    assert newest["entries"][0]["slot"] == newest["slot"]


@pytest.mark.parametrize("path", [LOG, CONTROLLERS])
@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_metadata_log_needs_the_right_to_describe_the_cluster(site: HttpBroker, *, path: str) -> None:
    assert (await site.get(path)).json["error_code"] == 40301


@run_by(run_cluster, "tmp_path")
async def test_controllers_are_listed_with_their_times_by_each_broker(three: HttpCluster) -> None:
    await three.create("t", [1, 2, 3])
    old = three[1].broker.image.controller
    await three.end(old)
    left = next(each for each in three.brokers.values() if each.number != old)
    await wait_until(lambda: left.broker.image.controller not in (-1, old))
    new = left.broker.image.controller
    await wait_until(lambda: three.is_known_by_all(lambda node: node.image.controller == new))
    found = (await three.get_from_all(CONTROLLERS)).json
    assert [each["node_id"] for each in found["controllers"]] == [new, old]
    newest, oldest = found["controllers"]
    assert newest["to_ms"] is None and oldest["to_ms"] == newest["from_ms"] >= oldest["from_ms"] > 0
    assert newest["controller_epoch"] > oldest["controller_epoch"] and found["since_slot"] == 0
