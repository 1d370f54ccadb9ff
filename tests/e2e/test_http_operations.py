"""Tests of the HTTP requests of operators and tools."""

import re

import pytest

from tests.e2e import http_cluster
from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_site import HttpBroker, run
from tests.scenario import run_by
from tiered.ids import incarnation_digest
from tiered_api.http.server import server
from tiered_api.http.server.routes import table
from tiered_api.http.server.server import REQUEST_ID


@run_by(run, "tmp_path")
async def test_health_metrics_and_identity_are_served(site: HttpBroker) -> None:
    await site.create("t")
    await site.produce("t", "a", "b")
    await site.get("/topics/t/partitions/0/records")
    health = await site.get("/healthz")
    assert health.status == 200 and health.json["ok"] and health.json["problems"] == []
    node = (await site.get("/tiered/v1/node")).json
    life = incarnation_digest(site.broker.incarnation)
    assert node == {"cluster_id": site.broker.cluster_id, "node_id": 1, "incarnation_sha256": life}
    metrics = await site.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = metrics.body.decode()
    assert "tiered_http_records_written_total 2" in text and "tiered_http_records_read_total 2" in text
    assert 'tiered_http_requests_total{operation="v3_produce_batch",status="207"} 1' in text
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"  # Prometheus
    metrics = await site.get("/metrics", accept)
    assert metrics.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    text = metrics.body.decode()
    assert "# TYPE tiered_http_records_written counter\ntiered_http_records_written_total 2\n" in text
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert text.endswith("\n# EOF\n") and len(names) == len({*names}) > 50


@run_by(run, "tmp_path")
async def test_partition_shows_its_hot_and_cold_offsets(site: HttpBroker) -> None:
    await site.create("t")
    await site.produce("t", "a", "b", "c")
    state = (await site.get("/tiered/v1/topics/t/partitions/0")).json
    assert {name: state[name] for name in ("leader", "log_start_offset", "local_start_offset")} == {
        "leader": 1,
        "log_start_offset": 0,
        "local_start_offset": 0,
    }
    assert (state["high_watermark"], state["last_stable_offset"], state["cold_end_offset"]) == (3, 3, 0)
    assert (state["local_segments"], state["cold_segments"], state["cold_bytes"]) == (1, 0, 0)
    assert state["local_bytes"] > 0 and state["leader_epoch"] >= 0
    assert (await site.get("/tiered/v1/topics/t/partitions/1")).json["error_code"] == 40402


@run_by(run, "tmp_path")
async def test_request_that_fails_has_an_id_that_the_log_has(
    site: HttpBroker, *, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "tiered_api.http.server.server")
    assert REQUEST_ID not in (await site.get("/tiered/v1/node")).headers
    refused = [await site.get("/tiered/v1/topics/absent/storage") for _ in range(2)]
    monkeypatch.setattr(server, "find_meter", lambda *_: 1 // 0)
    failed = await site.get("/tiered/v1/node")
    assert [each.status for each in (*refused, failed)] == [404, 404, 500]
    ids = [each.headers[REQUEST_ID] for each in (*refused, failed)]
    assert len(set(ids)) == 3 and all(re.fullmatch("1-[0-9a-f]+", each) for each in ids)
    lines = [each.getMessage() for each in caplog.records]
    for request_id in ids:
        assert len([line for line in lines if f"request_id={request_id} " in line]) == 1
    [error] = [each for each in caplog.records if each.exc_info]
    assert error.levelname == "ERROR" and f"request_id={ids[2]} operation=get_node" in error.getMessage()


@run_by(http_cluster.run, "tmp_path", numbers=(1,))
async def test_openapi_document_describes_the_served_routes(three: HttpCluster) -> None:
    site = three[1]
    await site.create("t")
    document = (await site.get("/openapi.json")).json
    assert document["openapi"].startswith("3.0")
    assert set(document["paths"]) == {route.path.replace("...", "") for route in table().routes}
    values = {"cluster": site.broker.cluster_id, "topic": "t", "partition": "0", "broker": "1", "config": "flush"}
    values |= {"page": "topics", "file": "main.js", "base": "0"}
    for path, operations in document["paths"].items():
        if "get" not in operations or ("broker" in path and "config}" in path) or "{group}" in path:
            continue  # what needs a group is read in test_http_groups.py and test_http_consumers.py
        if "{table}" in path:
            continue  # what needs a table is read in test_http_tables.py
        if "{namespace}" in path:
            continue  # what needs a warehouse is read in test_http_iceberg.py
        if any(part in path for part in ("{subject}", "{id}", "{guid}")):
            continue  # what needs a schema is read in test_registry.py
        target = re.sub(r"{(\w+)}", lambda found: values[found[1]], path)
        answer = await site.get(target)
        assert answer.status == 200, (path, answer)
        promised = next(iter(operations["get"]["responses"].values()))["content"]
        assert answer.headers["Content-Type"].partition(";")[0] in promised, path


@run_by(run, "tmp_path")
async def test_labels_of_metrics_do_not_grow_with_requests(site: HttpBroker) -> None:
    for n in range(50):
        await site.get(f"/nothing/{n}")
        await site.get(f"/topics/no{n}")
    lines = [line for line in (await site.get("/metrics")).body.decode().splitlines() if "_requests_total{" in line]
    assert len([line for line in lines if line.startswith("tiered_http")]) == 2
