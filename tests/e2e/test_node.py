"""One broker from its start to its end, on simulated ports in virtual time: what its users rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.clock import SimRng
from tests.sim.disk import DiskFault
from tests.sim.loop import SimLoop
from tests.sim.net import SimNetwork
from tests.sim.store import SimBucket
from tests.sim.world import SimMachine
from tiered.cold.faulty import Fault, Kind
from tiered.config import Settings
from tiered.errors import Code, Refused, Unavailable
from tiered.metadata.image import TopicImage
from tiered.metadata.load import load_image
from tiered.metadata.requests import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from tiered.metrics import Metrics
from tiered.node import Node
from tiered.ports import FileSlice, Stream
from tiered.records.batch import encode, records
from tiered.records.native import walk
from tiered.replication.replica import Replica

QUICK = Settings(
    num_partitions=1,
    log_retention_check_interval_ms=1_000,
    remote_log_manager_task_interval_ms=2_000,
    tiered_object_delete_delay_ms=5_000,
    tiered_topic_delete_delay_ms=60_000,
)
SMALL = {"segment.bytes": "4096", "retention.ms": "-1"}
COLD_AT_ONCE = SMALL | {"local.retention.bytes": "1"}


class Site:
    """A bucket, a machine, and the broker that runs there now."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.bucket = SimBucket(loop)
        self.network = SimNetwork(loop, SimRng(f"{loop.seed}/net").stream("net"))
        self.machine = SimMachine(loop, "one", self.bucket, self.network)
        self.node = self._fresh(QUICK)

    def _fresh(self, settings: Settings) -> Node:
        return Node(settings, self.machine.process(), Metrics())

    async def start(self, settings: Settings = QUICK) -> Node:
        self.node = self._fresh(settings)
        await self.node.start()
        return self.node

    async def stop(self) -> None:
        await self.node.stop()

    async def crash(self, how: Callable[[], None]) -> None:
        """`how` is a method of the machine: its ports are gone before the broker's tasks are."""
        how()
        await self.node.stop(clean=False)

    async def create(self, name: str = "t", partitions: int = 1, **configs: str) -> Replica:
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        await self.node.submit(CreateTopic(name, partitions, configs=dotted or SMALL))
        return self.node.replica(name, 0)

    async def until(self, true: Callable[[], bool], seconds: float = 120) -> None:
        """Lets virtual time pass until it holds."""
        deadline = self.loop.now_ns + int(seconds * 1e9)
        while not true():
            assert self.loop.now_ns < deadline, f"not within {seconds} s: {self.node.health()}"
            await asyncio.sleep(0.1)


def run(story: Callable[[Site], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    loop = SimLoop(seed, seconds_max=100_000)

    async def main() -> None:
        await story(Site(loop))

    loop.run(main())


def batch(values: list[bytes], timestamp: int = 1_700_000_000_000) -> bytearray:
    return bytearray(encode([(timestamp + i, b"k", value, ()) for i, value in enumerate(values)]))


async def fill(replica: Replica, count: int, start: int = 0) -> None:
    """`count` records of about 1 KiB, one batch each; the value begins with the record's number."""
    for number in range(start, start + count):
        await replica.append(batch([b"%06d" % number + b"x" * 1000]))


async def read_values(replica: Replica, start: int, *, max_bytes: int = 3000) -> list[bytes]:
    """The first bytes of every record from `start` to the end, read as a consumer does."""
    found: list[bytes] = []
    offset = start
    while offset < replica.high_watermark:
        fetched = await replica.read(offset, max_bytes)
        data = fetched.data
        if isinstance(data, FileSlice):
            data = data.file.pread(data.start, data.length)
        walked = walk(data)
        assert walked.why == "" and walked.batches, (offset, walked)
        for each in walked.batches:
            found += [(record.value or b"")[:6] for record in records(data, each.at) if record.offset >= offset]
        offset = walked.batches[-1].last_offset + 1
    return found


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, end)]


# -- the main path ----------------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_hot_and_cold_and_across() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        await site.node.submit(AlterTopicConfigs("t", {"local.retention.bytes": "1"}))
        await site.until(lambda: replica.local_start_offset == 9)
        await fill(replica, 1, start=10)
        assert await read_values(replica, 0) == numbers(0, 11)
        assert await read_values(replica, 5) == numbers(5, 11)
        assert (replica.log_start_offset, replica.high_watermark) == (0, 11)
        assert isinstance((await replica.read(9, 1 << 20)).data, FileSlice)
        assert isinstance((await replica.read(0, 1 << 20)).data, bytes)
        await site.stop()

    run(story)


def test_a_clean_restart_keeps_everything_under_a_new_epoch() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
        await fill(replica, 10)
        await site.until(lambda: replica.local_start_offset == 9)
        await site.stop()
        node = await site.start()
        again = node.replica("t", 0)
        assert (again.leader_epoch, again.high_watermark, again.cold_end_offset) == (1, 10, 9)
        assert await read_values(again, 0) == numbers(0, 10)
        assert again.explain()["possible_loss"] is None
        await fill(again, 5, start=10)
        await site.until(lambda: again.cold_end_offset >= 12)
        assert await read_values(again, 0) == numbers(0, 15)
        await site.stop()

    run(story)


def test_a_killed_process_loses_nothing() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 10)
        await site.crash(site.machine.kill)
        again = (await site.start()).replica("t", 0)
        assert await read_values(again, 0) == numbers(0, 10)
        assert again.explain()["possible_loss"] is None
        await site.stop()

    run(story)


@pytest.mark.parametrize("seed", range(10))
def test_after_power_loss_what_was_fsynced_is_there_and_the_rest_is_reported(seed: int) -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(segment_bytes="4096", retention_ms="-1", remote_storage_enable="false")
        await fill(replica, 5)
        await replica.flush()
        await fill(replica, 5, start=5)
        await site.crash(site.machine.power_cut)
        again = (await site.start()).replica("t", 0)
        assert 5 <= again.high_watermark <= 10
        assert await read_values(again, 0) == numbers(0, again.high_watermark)
        loss = again.explain()["possible_loss"]
        assert (loss["from_offset"], loss["leader_epoch"]) == (again.high_watermark, again.leader_epoch)
        await site.stop()

    run(story, seed)


def test_acks_of_a_topic_with_flush_ack_survive_power_loss() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(flush="ack", retention_ms="-1")
        await asyncio.gather(*(replica.append(batch([b"%06d" % number])) for number in range(10)))
        assert replica.high_watermark == 10
        await site.crash(site.machine.power_cut)
        again = (await site.start()).replica("t", 0)
        assert await read_values(again, 0) == numbers(0, 10)
        assert again.explain()["possible_loss"] is None
        await site.stop()

    run(story)


def test_a_lost_disk_comes_back_from_the_bucket() -> None:
    async def story(site: Site) -> None:
        await site.start()
        first = await site.create("a", 2)
        await site.create("b")
        await fill(first, 10)
        await site.until(lambda: first.cold_end_offset == 9)
        topics = site.node.image.topics
        await site.crash(site.machine.lose_disk)
        node = await site.start()
        assert {name: topic.topic_id for name, topic in node.image.topics.items()} == {
            name: topic.topic_id for name, topic in topics.items()
        }
        again = node.replica("a", 0)
        assert (again.high_watermark, again.leader_epoch) == (9, 1)
        assert await read_values(again, 0) == numbers(0, 9)
        losses = node.health().details["possible_loss"]
        assert {name: loss["from_offset"] for name, loss in losses.items()} == {"a-0": 9, "a-1": 0, "b-0": 0}
        await fill(again, 5, start=9)
        assert await read_values(again, 0) == numbers(0, 14)
        await site.until(lambda: again.cold_end_offset >= 12)
        await site.stop()
        assert {key for key, data in site.bucket.written if ".seg" in key} == {
            key for key, _ in site.bucket.written if ".seg" in key
        }

    run(story)


def test_an_idempotent_producer_goes_on_after_the_disk_was_lost() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        for sequence in range(8):
            made = encode([(1, None, b"%06d" % sequence + b"x" * 1000, ())], producer_id=7, producer_epoch=0,
                          base_sequence=sequence)  # fmt: skip
            await replica.append(bytearray(made))
        replica.roll()
        await site.until(lambda: replica.cold_end_offset == 8)
        await site.crash(site.machine.lose_disk)
        again = (await site.start()).replica("t", 0)
        retried = await again.append(bytearray(made))
        assert (retried.base_offset, retried.duplicate) == (7, True)
        await site.stop()

    run(story)


def test_offsets_named_by_a_manifest_never_change_their_bytes() -> None:
    """A log longer than what is cold is lost, and other records take its offsets: only above the cold end."""

    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        before = await read_values(replica, 0)
        await site.crash(site.machine.lose_disk)
        again = (await site.start()).replica("t", 0)
        await fill(again, 3, start=500)
        assert await read_values(again, 0) == before[:9] + numbers(500, 503)
        await site.stop()

    run(story)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_at_once_and_its_objects_after_the_stated_delay() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        topic_id = site.node.image.topics["t"].topic_id
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        waiting = asyncio.create_task(replica.read(10, 1000, max_wait_ms=60_000))
        await asyncio.sleep(0)
        await site.node.submit(DeleteTopic("t"))
        for ask in (replica.append(batch([b"x"])), replica.read(0, 1000), waiting):
            with pytest.raises(Refused) as refused:
                await ask
            assert refused.value.code is Code.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(Refused):
            site.node.replica("t", 0)
        await asyncio.sleep(30)
        assert await site.bucket.memory.list(f"data/{topic_id}/")
        await site.until(lambda: not site.node.image.deleted, 300)
        assert await site.bucket.memory.list(f"data/{topic_id}/") == []
        assert [name for name in site.machine.disk.list("log") if name.startswith("t-0")] == []
        await site.stop()

    run(story)


def test_a_name_can_be_taken_again_and_means_another_topic() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        await site.node.submit(DeleteTopic("t"))
        again = await site.create()
        assert (again.topic_id != replica.topic_id, again.high_watermark, again.cold_end_offset) == (True, 0, 0)
        await fill(again, 3, start=700)
        await site.stop()
        node = await site.start()
        assert await read_values(node.replica("t", 0), 0) == numbers(700, 703)
        await site.stop()

    run(story)


def test_a_topic_deleted_while_its_log_was_away_leaves_nothing_behind() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 2)
        await site.node.submit(DeleteTopic("t"))
        await site.crash(site.machine.kill)
        await site.start()
        assert [name for name in site.machine.disk.list("log") if name.startswith("t-0")] == []
        await site.stop()

    run(story)


def test_partitions_are_added_while_it_runs() -> None:
    async def story(site: Site) -> None:
        await site.start()
        await site.create()
        topic = await site.node.submit(CreatePartitions("t", 3))
        assert isinstance(topic, TopicImage)
        assert len(topic.partitions) == 3
        await fill(site.node.replica("t", 2), 2)
        assert await read_values(site.node.replica("t", 2), 0) == numbers(0, 2)
        await site.stop()

    run(story)


def test_settings_take_effect_while_it_runs() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(retention_ms="-1")
        await site.node.submit(AlterTopicConfigs("t", {"max.message.bytes": "100"}))
        with pytest.raises(Refused) as refused:
            await fill(replica, 1)
        assert refused.value.code is Code.MESSAGE_TOO_LARGE
        await site.node.submit(AlterTopicConfigs("t", {"max.message.bytes": None}))
        await fill(replica, 1)
        await site.node.submit(AlterBrokerConfigs(-1, {"message.max.bytes": "200"}))
        with pytest.raises(Refused):
            await fill(replica, 1)
        assert replica.config.max_message_bytes == 200
        await site.stop()
        assert (await site.start()).replica("t", 0).config.max_message_bytes == 200
        await site.stop()

    run(story)


def test_names_that_are_not_there_are_said_so() -> None:
    async def story(site: Site) -> None:
        await site.start()
        await site.create()
        for topic, partition in (("u", 0), ("t", 1), ("t", -1)):
            with pytest.raises(Refused) as refused:
                site.node.replica(topic, partition)
            assert refused.value.code is Code.UNKNOWN_TOPIC_OR_PARTITION
        await site.stop()

    run(story)


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_quiet_topic_goes_up_too() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 1)
        await asyncio.sleep(9 * 60)
        assert replica.cold_end_offset == 0
        await site.until(lambda: replica.cold_end_offset == 1, 90)
        await site.stop()

    run(story)


def test_total_retention_moves_the_log_start_hot_and_cold() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(segment_bytes="4096", retention_ms="600000", local_retention_bytes="1")
        await fill(replica, 10)
        await site.until(lambda: replica.local_start_offset == 9)
        await site.until(lambda: replica.log_start_offset == 10, 1500)
        with pytest.raises(Refused) as refused:
            await replica.read(0, 1000)
        assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
        await asyncio.sleep(120)
        segments = [each for each in await site.bucket.memory.list("data/") if each.key.endswith(".seg")]
        assert segments == []
        await fill(replica, 1, start=10)
        assert await read_values(replica, 10) == numbers(10, 11)
        await site.stop()

    run(story)


def test_a_topic_that_is_not_tiered_keeps_to_its_disk() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(
            segment_bytes="4096", retention_ms="-1", retention_bytes="9000", remote_storage_enable="false"
        )
        await fill(replica, 20)
        await site.until(lambda: replica.log_start_offset > 0)
        assert replica.local_bytes <= 9000 + 4096
        assert await site.bucket.memory.list("data/") == []
        assert await read_values(replica, replica.log_start_offset) == numbers(replica.log_start_offset, 20)
        await site.stop()

    run(story)


def test_a_broker_with_nothing_to_do_leaves_the_bucket_alone() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create("t", 5)
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        await asyncio.sleep(20 * 60)
        before = site.node.store.requests()
        await asyncio.sleep(60 * 60)
        assert site.node.store.requests() - before <= 60
        await site.stop()

    run(story)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_a_long_poll_ends_with_the_first_record_or_with_its_time() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        began = site.loop.now_ns
        assert (await replica.read(0, 1000, max_wait_ms=500)).size == 0
        assert site.loop.now_ns - began == 500_000_000
        waiting = asyncio.create_task(replica.read(0, 5000, max_wait_ms=60_000, min_bytes=1500))
        await asyncio.sleep(1)
        await fill(replica, 1)
        await asyncio.sleep(1)
        assert not waiting.done()
        await fill(replica, 1)
        assert (await waiting).size >= 1500
        await site.stop()

    run(story)


def test_records_are_found_by_time_hot_and_cold() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
        base = site.node.world.clock.wall_ms()
        for number in range(10):
            await replica.append(batch([b"x" * 1000], timestamp=base + 100 * number))
        await site.until(lambda: replica.local_start_offset == 9)
        for number in range(10):
            assert await replica.offset_for_timestamp(base + 100 * number - 50) == (number, base + 100 * number, 0)
        assert await replica.offset_for_timestamp(base + 1000) is None
        await site.stop()

    run(story)


def test_deleted_records_stay_deleted() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        assert await replica.delete_records(4) == 4
        with pytest.raises(Refused):
            await replica.read(3, 1000)
        with pytest.raises(Refused):
            await replica.delete_records(11)
        assert await read_values(replica, 4) == numbers(4, 10)
        await site.crash(site.machine.lose_disk)
        again = (await site.start()).replica("t", 0)
        assert again.log_start_offset == 4
        assert await again.delete_records(-1) == again.high_watermark
        await site.stop()

    run(story)


# -- bad days ---------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_away_costs_no_ack_and_is_told() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        site.machine.faults.outage = True
        await fill(replica, 20)
        await site.until(lambda: site.node.store.outage is not None)
        assert await read_values(replica, 0) == numbers(0, 20)
        health = site.node.health()
        assert health.ok
        assert any("store unreachable since" in each and "segments wait" in each for each in health.problems)
        assert health.details["waiting_segments"] >= 5
        assert "tiered_upload_waiting_segments 6" in site.node.metrics.render()
        with pytest.raises(Refused) as refused:
            await site.node.submit(CreateTopic("u"))
        assert refused.value.code is Code.REQUEST_TIMED_OUT
        site.machine.faults.outage = False
        await site.until(lambda: replica.cold_end_offset == 18, 300)
        await site.until(lambda: "u" in site.node.image.topics, 300)
        assert site.node.health().problems == []
        await site.stop()

    run(story)


def test_a_full_disk_refuses_appends_serves_reads_and_heals() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 3)
        site.machine.disk.capacity = 1
        with pytest.raises(Refused) as refused:
            await fill(replica, 1, start=3)
        assert refused.value.code is Code.KAFKA_STORAGE_ERROR
        health = site.node.health()
        assert any(each.startswith("disk full since") for each in health.problems)
        assert "tiered_disk_full 1" in site.node.metrics.render()
        assert await read_values(replica, 0) == numbers(0, 3)
        site.machine.disk.capacity = None
        await fill(replica, 1, start=3)
        assert site.node.health().problems == []
        assert await read_values(replica, 0) == numbers(0, 4)
        await site.stop()

    run(story)


@pytest.mark.parametrize("verb", ["append", "sync"])
def test_a_disk_that_fails_ends_the_broker_and_is_not_trusted_again(verb: str) -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create(flush="ack", retention_ms="-1")
        await fill(replica, 5)
        site.machine.disk.faults.append(DiskFault(verb, ".log"))
        with pytest.raises(Refused) as refused:
            await fill(replica, 1, start=5)
        assert refused.value.code is Code.KAFKA_STORAGE_ERROR
        await asyncio.wait_for(site.node.ended.wait(), 1)
        health = site.node.health()
        assert not health.ok
        assert any("data directory" in each for each in health.problems)
        await site.stop()
        site.machine.kill()
        again = (await site.start()).replica("t", 0)
        assert (await read_values(again, 0))[:5] == numbers(0, 5)
        assert again.explain()["possible_loss"]["from_offset"] == again.high_watermark
        await site.stop()

    run(story)


def test_a_partition_that_the_bucket_did_not_tell_about_is_served_later() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 10)
        await site.until(lambda: replica.cold_end_offset == 9)
        await site.crash(site.machine.lose_disk)
        site.machine.faults.rules = [Fault(Kind.ERROR, ("get",), key="/manifest", times=3)]
        node = await site.start()
        with pytest.raises(Refused, match="not served"):
            node.replica("t", 0)
        assert any("t-0 is not served" in each for each in node.health().problems)
        await site.until(lambda: not node.partitions.unopened)
        assert await read_values(node.replica("t", 0), 0) == numbers(0, 9)
        await site.until(lambda: node.replica("t", 0).explain()["possible_loss"] is not None)
        assert node.health().problems == []
        await site.stop()

    run(story)


def test_after_a_kill_the_old_tail_becomes_durable_without_being_asked() -> None:
    async def story(site: Site) -> None:
        await site.start()
        replica = await site.create()
        await fill(replica, 5)
        await site.crash(site.machine.kill)
        again = (await site.start()).replica("t", 0)
        await site.until(lambda: again.log.flushed_offset == 5, 5)
        await site.crash(site.machine.power_cut)
        assert (await site.start()).replica("t", 0).high_watermark == 5
        await site.stop()

    run(story)


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_bucket_delays_and_loses_nothing(seed: int) -> None:
    async def story(site: Site) -> None:
        site.machine.faults.rules = [
            Fault(Kind.ERROR, chance=0.1),
            Fault(Kind.LOST_REPLY, ("put", "upload"), chance=0.2),
            Fault(Kind.LATE_APPLY, ("put", "upload"), chance=0.1, seconds=3),
        ]
        for _ in range(50):
            try:
                await site.start()
                break
            except (Unavailable, Refused):
                await site.crash(site.machine.kill)
        replica = await site.create(segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
        await fill(replica, 20)
        await site.until(lambda: replica.local_start_offset >= 18, 3000)
        site.machine.faults.rules = []
        assert await read_values(replica, 0) == numbers(0, 20)
        await site.crash(site.machine.lose_disk)
        again = (await site.start()).replica("t", 0)
        assert await read_values(again, 0) == numbers(0, again.cold_end_offset)
        await site.stop()

    run(story, seed)


# -- one broker per store ---------------------------------------------------------------------------------------------


async def answer(site: Site, machine: SimMachine, incarnation: Callable[[], str]) -> str:
    """An HTTP interface that says who it is; returns its address."""

    def accepted(stream: Stream) -> None:
        def reply() -> None:
            stream.on_readable(None)
            stream.recv_into(memoryview(bytearray(4096)))
            body = b'{"cluster_id":"c","node_id":1,"incarnation":"%s"}' % incarnation().encode()
            stream.sendmsg([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
            stream.close()

        stream.on_readable(reply)

    listener = await machine.process().net.listen(machine.name, 8082, accepted)
    return f"{machine.name}:{listener.port}"


def test_a_second_broker_is_refused_while_the_first_answers() -> None:
    async def story(site: Site) -> None:
        first = await site.start()
        await first.announce(await answer(site, site.machine, lambda: first.incarnation))
        other = SimMachine(site.loop, "two", site.bucket, site.network)
        for node_id in (1, 2):
            twin = Node(Settings(node_id=node_id), other.process(), Metrics())
            with pytest.raises(Refused) as refused:
                await twin.start()
            assert refused.value.code is Code.DUPLICATE_BROKER_REGISTRATION
            await twin.stop()
        await first.submit(CreateTopic("t"))
        await site.stop()

    run(story)


def test_who_answers_at_the_old_address_may_be_somebody_else() -> None:
    async def story(site: Site) -> None:
        first = await site.start()
        await first.announce(await answer(site, site.machine, lambda: "somebody"))
        other = SimMachine(site.loop, "two", site.bucket, site.network)
        twin = Node(QUICK, other.process(), Metrics())
        await twin.start()
        with pytest.raises(Refused) as refused:
            await first.submit(CreateTopic("t"))
        assert refused.value.code is Code.NOT_CONTROLLER
        await asyncio.wait_for(first.ended.wait(), 10)
        assert not first.health().ok
        await twin.submit(CreateTopic("t"))
        await first.stop()
        await twin.stop()

    run(story)


def test_a_data_directory_of_another_cluster_is_refused() -> None:
    async def story(site: Site) -> None:
        await site.start()
        await site.stop()
        elsewhere = SimMachine(site.loop, "three", SimBucket(site.loop), site.network)
        elsewhere.disk = site.machine.disk
        node = Node(QUICK, elsewhere.process(), Metrics())
        with pytest.raises(Refused) as refused:
            await node.start()
        assert refused.value.code is Code.INCONSISTENT_CLUSTER_ID
        await node.stop()

    run(story)


def test_the_cluster_is_told_by_the_bucket_without_a_broker() -> None:
    async def story(site: Site) -> None:
        await site.start()
        await site.create("a", 2)
        await site.create("b")
        image = await load_image(site.bucket.memory)
        assert image == site.node.image
        assert {name: len(topic.partitions) for name, topic in image.topics.items()} == {"a": 2, "b": 1}
        await site.stop()
        assert not (await load_image(site.bucket.memory)).brokers[1].alive

    run(story)
