"""The validation of records at a broker: reads of the registry are shared, rare, and come before each refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.unit.registry.registry import Registry
from tiered.config.settings import SUBJECT_NAME_STRATEGIES, TopicConfig
from tiered.errors import Code, Refused
from tiered.hosting.record_judge import RecordJudge
from tiered.hosting.schema_validation import REFRESH_SECONDS, SchemaValidation
from tiered.hot.validation import RecordFaults
from tiered.metrics import Metrics
from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered.registry.registration import Registration, decide, plan
from tiered.registry.schema import Schema
from tiered.registry.state import RegistryState

VALUES = TopicConfig(confluent_value_schema_validation=True)
BOTH = replace(VALUES, confluent_key_schema_validation=True)


def framed(id: int) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + b"data"


def batch(*values: bytes | None, key: bytes | None = None, codec: Codec = Codec.NONE) -> bytes:
    return encode_batch([(1, key, value, ()) for value in values], codec=codec)


class Site:
    """A broker's validation, and the registry that it reads: `read_seconds` each time, or not at all."""

    def __init__(self) -> None:
        self.loop = SimLoop(1)
        self.clock = SimClock(self.loop)
        self.registry = Registry()
        self.reads = 0
        self.read_seconds = 0.5
        self.away = False
        self.validation = SchemaValidation(self.clock, Metrics())
        self.validation.connect(self._read)

    async def _read(self) -> RegistryState:
        self.reads += 1
        await asyncio.sleep(self.read_seconds)
        if self.away:
            raise Refused(Code.REQUEST_TIMED_OUT, "the log of the registry was not read within 20 s")
        return self.registry.state

    async def find(self, data: bytes, config: TopicConfig = VALUES) -> list[RecordFaults]:
        return await self.validation.find_faults("t", config, data, "")

    def run(self, scenario: Callable[[Site], Awaitable[None]]) -> None:
        async def run_all() -> None:
            await scenario(self)

        self.loop.run(run_all())

    def run_with_threads(self, scenario: Callable[[Site], Awaitable[None]]) -> None:
        """Runs the scenario on a real event loop, whose threads open batches and parse schemas."""
        self.read_seconds = 0

        async def run_all() -> None:
            async with asyncio.timeout(240):
                await scenario(self)

        asyncio.run(run_all())


def test_faults_have_the_numbers_of_their_records() -> None:
    async def scenario(site: Site) -> None:
        site.registry.register("t-value", '"int"')
        found = await site.find(batch(framed(1), b"{}", None, framed(9)) + batch(framed(1)))
        assert [number for number, _ in found[0]] == [1, 3] and found[1] == ()
        assert "names no schema" in found[0][0][1] and "schema id 9" in found[0][1][1]

    Site().run(scenario)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_keys_count_where_the_topic_says_so(codec: Codec) -> None:
    async def scenario(site: Site) -> None:
        site.registry.register("t-value", '"int"')
        site.registry.register("t-key", '"long"')
        assert await site.find(batch(framed(1), key=framed(2), codec=codec), BOTH) == [()]
        [[(number, why)]] = await site.find(batch(framed(1), key=framed(1), codec=codec), BOTH)
        assert (number, "'t-key'" in why) == (0, True)
        assert await site.find(batch(framed(1), key=b"k", codec=codec)) == [()]

    Site().run_with_threads(scenario)


def test_good_records_read_the_registry_once_for_ten_seconds() -> None:
    async def scenario(site: Site) -> None:
        site.registry.register("t-value", '"int"')
        for _ in range(5):
            assert await site.find(batch(framed(1))) == [()]
        assert site.reads == 1
        site.registry.delete("t-value")
        await asyncio.sleep(REFRESH_SECONDS)
        assert any(await site.find(batch(framed(1)))), "a version that was deleted is noticed"
        assert site.reads == 2

    Site().run(scenario)


def test_schema_that_was_registered_just_now_is_good() -> None:
    """Another broker registered it: the state here lacks it until the next read."""

    async def scenario(site: Site) -> None:
        site.registry.register("t-value", '"int"')
        assert await site.find(batch(framed(1))) == [()]
        older, site.registry = site.registry, Registry(site.registry.log)
        site.registry.register("t-value", '"long"')
        assert older.state.find_schema(".", 2) is None
        assert await site.find(batch(framed(2))) == [()]

    Site().run(scenario)


def test_reads_of_many_faulty_requests_are_shared() -> None:
    async def scenario(site: Site) -> None:
        found = await asyncio.gather(*(site.find(batch(b"x")) for _ in range(200)))
        assert all(any(each) for each in found)
        assert site.reads <= 2, "one that had begun, and one for all the others"

    Site().run(scenario)


def test_waiting_requests_share_a_failed_read() -> None:
    async def scenario(site: Site) -> None:
        site.away = True
        found = await asyncio.gather(*(site.find(batch(framed(1))) for _ in range(200)), return_exceptions=True)
        assert {each.code for each in found if isinstance(each, Refused)} == {Code.REQUEST_TIMED_OUT}
        assert len([each for each in found if isinstance(each, Refused)]) == 200
        assert site.reads <= 2

    Site().run(scenario)


def test_known_schemas_are_good_while_the_registry_is_away() -> None:
    async def scenario(site: Site) -> None:
        site.registry.register("t-value", '"int"')
        assert await site.find(batch(framed(1))) == [()]
        site.away = True
        await asyncio.sleep(REFRESH_SECONDS)
        assert await site.find(batch(framed(1))) == [()]
        with pytest.raises(Refused, match="cannot be looked up") as refused:
            await site.find(batch(framed(2)))
        assert refused.value.code is Code.REQUEST_TIMED_OUT, "clients send the records again"

    Site().run(scenario)


def test_broker_without_a_registry_lets_no_record_in() -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(Refused, match="serves no schema registry"):
            await SchemaValidation(site.clock, Metrics()).find_faults("t", VALUES, batch(framed(1)), "")

    Site().run(scenario)


def test_bytes_that_are_no_records_are_faulty() -> None:
    async def scenario(site: Site) -> None:
        data = bytearray(batch(framed(1), codec=Codec.GZIP))
        data[70:] = bytes(len(data) - 70)
        [[(number, why)]] = await site.find(bytes(data))
        assert number == 0 and why.startswith("cannot be read: ")
        assert await site.find(b"no batch") == []

    Site().run_with_threads(scenario)


def register_record(site: Site, *subjects: str) -> None:
    """Registers one record of Avro, a.b.R."""
    text = json.dumps({"type": "record", "name": "R", "namespace": "a.b", "fields": []})
    for subject in subjects:
        wanted = Registration(subject, Schema(text))
        done = decide(site.registry.state, wanted, plan(site.registry.state, wanted), [])
        assert done is not None
        site.registry.append(done.records)


def test_record_of_avro_names_its_subject() -> None:
    async def scenario(site: Site) -> None:
        register_record(site, "a.b.R", "t-a.b.R")
        site.registry.register("t-value", '"int"')
        for strategy in SUBJECT_NAME_STRATEGIES[1:]:
            config = replace(VALUES, confluent_value_subject_name_strategy=strategy)
            assert await site.find(batch(framed(1)), config) == [()]
            [[(_, why)]] = await site.find(batch(framed(2)), config)
            assert "because the schema has none" in why

    Site().run_with_threads(scenario)


def test_good_record_stays_good_when_another_schema_is_registered() -> None:
    """The names of a schema are known whether or not its frame was judged by the state before."""

    async def scenario(site: Site) -> None:
        strategy = SUBJECT_NAME_STRATEGIES[1]
        config = replace(VALUES, confluent_value_subject_name_strategy=strategy)
        register_record(site, "a.b.R")
        judge = RecordJudge()
        batches = await judge.collect("t", config, batch(framed(1)), "")
        assert await judge.find_faults(site.registry.state, batches, "") == [()]
        site.registry.register("other", '"int"')
        assert await judge.find_faults(site.registry.state, batches, "") == [()]

    Site().run_with_threads(scenario)
