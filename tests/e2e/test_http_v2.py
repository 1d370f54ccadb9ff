"""Tests of REST v2 against a real broker: the requests of its clients, and their replies."""

from tests.e2e.http_site import HttpBroker, run
from tests.scenario import run_by
from tiered.records.batch import decode_header

V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"


@run_by(run, "tmp_path")
async def test_topics_partitions_and_brokers_have_the_form_of_v2(site: HttpBroker) -> None:
    await site.create("b")
    await site.create("a", 2, retention_ms="60000")
    listed = await site.get("/topics")
    assert (listed.headers["Content-Type"], listed.json) == (V2, ["a", "b"])
    assert (await site.get("/topics", "application/json")).headers["Content-Type"] == "application/json"
    topic = (await site.get("/topics/a")).json
    assert (topic["name"], topic["configs"]) == ("a", {"retention.ms": "60000"})
    replica = {"broker": 1, "leader": True, "in_sync": True}
    assert topic["partitions"] == [{"partition": n, "leader": 1, "replicas": [replica]} for n in range(2)]
    assert (await site.get("/topics/a/partitions")).json == topic["partitions"]
    assert (await site.get("/topics/a/partitions/1")).json == topic["partitions"][1]
    assert (await site.get("/brokers")).json == {"brokers": [1]}
    assert (await site.get("/")).json == {}
    for path, code in (("/topics/no", 40401), ("/topics/no/partitions", 40401), ("/topics/a/partitions/2", 40402)):
        answer = await site.get(path)
        assert (answer.status, answer.json["error_code"]) == (404, code)
    assert (await site.get("/topics", "text/html")).status == 406


@run_by(run, "tmp_path")
async def test_records_are_produced_in_both_embedded_formats(site: HttpBroker) -> None:
    await site.create("t", 3)
    records = [{"key": "MjE=", "value": "dg=="}, {"value": "dg==", "partition": 1}, {"value": None, "partition": 1}]
    answer = await site.ask("POST", "/topics/t", {"records": records}, kind=BINARY)
    keyed = (-973932308 & 0x7FFFFFFF) % 3
    places = [(each["partition"], each["offset"], each["error_code"]) for each in answer.json["offsets"]]
    assert answer.status == 200 and answer.headers["Content-Type"] == V2
    assert places == [(keyed, 0, None), (1, 0 if keyed != 1 else 1, None), (1, 1 if keyed != 1 else 2, None)]
    as_json = [{"key": {"k": 1}, "value": [1, "ü"]}, {"value": None}]
    answer = await site.ask("POST", "/topics/t/partitions/2", {"records": as_json}, kind=JSON)
    first = answer.json["offsets"][0]["offset"]
    assert [each["partition"] for each in answer.json["offsets"]] == [2, 2]
    read = (await site.ask("GET", f"/topics/t/partitions/2/records?offset={first}", accept=JSON)).json
    assert [(record["key"], record["value"]) for record in read] == [({"k": 1}, [1, "ü"]), (None, None)]
    offsets = (await site.get("/topics/t/partitions/2/offsets")).json
    assert offsets == {"beginning_offset": 0, "end_offset": first + 2}


@run_by(run, "tmp_path")
async def test_refused_record_is_named_and_the_others_are_written(site: HttpBroker) -> None:
    await site.create("t", 1, max_message_bytes="1000")
    records = [{"value": "a"}, {"value": "x" * 5000}, {"value": "b", "partition": 7}, {"value": "c"}]
    offsets = (await site.ask("POST", "/topics/t", {"records": records}, kind=JSON)).json["offsets"]
    assert [each["offset"] for each in offsets] == [0, None, None, 1]
    assert [each["error_code"] for each in offsets] == [None, 1, 1, None]
    assert offsets[1]["error"] == "the record is too large: it makes a batch of 5072 bytes, max.message.bytes is 1000"
    assert "partition 7" in offsets[2]["error"]


@run_by(run, "tmp_path")
async def test_records_larger_than_a_segment_go_into_several_batches(site: HttpBroker) -> None:
    await site.create("t", 1, internal_segment_bytes="4096")
    records = [{"value": "x" * 900} for _ in range(30)]
    offsets = (await site.ask("POST", "/topics/t", {"records": records}, kind=JSON)).json["offsets"]
    assert [each["offset"] for each in offsets] == list(range(30))


@run_by(run, "tmp_path")
async def test_unacceptable_reply_type_is_refused_before_the_write(site: HttpBroker) -> None:
    await site.create("t")
    for path in ("/topics/t", "/topics/t/partitions/0"):
        body = {"records": [{"value": 1}]}
        assert (await site.ask("POST", path, body, kind=JSON, accept="text/html")).status == 406
    assert (await site.get("/topics/t/partitions/0/offsets")).json["end_offset"] == 0


@run_by(run, "tmp_path")
async def test_body_with_an_invalid_record_is_refused_whole(site: HttpBroker) -> None:
    await site.create("t")
    for body, kind, status in (
        ({"records": [{"value": "dg=="}, {"value": "not base64"}]}, BINARY, 422),
        ({"records": [{"value": {"a": 1}}]}, "application/json", 422),
        ({"records": []}, JSON, 422),
        ({"record": []}, JSON, 422),
        ([1], JSON, 422),
        (b'{"records": [', JSON, 400),
        ({"records": [{"value": 1, "partition": "0"}]}, JSON, 400),
        ({"records": [{"value": 1}]}, "application/vnd.kafka.thrift.v2+json", 415),
        ({"records": [{"value": 1}]}, "", 415),
    ):
        answer = await site.ask("POST", "/topics/t", body, kind=kind)
        assert answer.status == status, (body, answer)
        assert answer.json["error_code"] // 100 in (status, status // 100)
    wrong = {"records": [{"value": 1, "partition": 1}]}
    assert (await site.ask("POST", "/topics/t/partitions/0", wrong, kind=JSON)).status == 422
    assert (await site.ask("POST", "/topics/t/partitions/1", wrong, kind=JSON)).json["error_code"] == 40402
    assert site.broker.leader_replica("t", 0).high_watermark == 0


@run_by(run, "tmp_path")
async def test_request_with_many_records_keeps_their_order(site: HttpBroker) -> None:
    await site.create("t", 3)
    records = [{"value": n} for n in range(12_000)]
    answer = await site.ask("POST", "/topics/t", {"records": records}, kind=JSON)
    offsets = answer.json["offsets"]
    assert [each["offset"] for each in offsets] == list(range(12_000))
    assert len({each["partition"] for each in offsets}) == 1


@run_by(run, "tmp_path")
async def test_batches_of_http_have_the_compression_of_the_topic(site: HttpBroker) -> None:
    kinds = {"producer": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    for name, codec in kinds.items():
        await site.create(name, 1, compression_type=name, compression_gzip_level="-1")
        sent = {"records": [{"value": "a" * 1000}]}
        assert (await site.ask("POST", f"/topics/{name}", sent, kind=JSON)).status == 200
        path = f"/topics/{name}/partitions/0/records?offset=0"
        stored = (await site.ask("GET", path, accept="application/octet-stream")).body
        assert decode_header(stored).codec == codec
        assert (await site.ask("GET", path, accept=JSON)).json[0]["value"] == "a" * 1000
