"""The cold part of one log, whose cleans in the bucket are judged (I20, I21, I23, I26)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tests.sim.cluster.cold_cleans import ColdCleans, ColdLog
from tests.sim.cluster.compacted_logs import CompactedLog, read_compacted_log
from tests.sim.cluster.observer import BrokenRules, Finding
from tests.sim.harness.bucket_rules import BucketRules
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, Broker, Rig
from tests.unit.cold.test_cleaner import clean
from tests.unit.hot.cleaning import put
from tests.unit.hot.fixtures import DIRECTORY, NOW, config, disk, open_log
from tiered.cold.cold_cleaning import ColdCleanResult
from tiered.cold.manifest import Manifest
from tiered.hot.disk_log import DiskLog
from tiered.ids import PartitionId

KEYS = 5
GRACE_MS = 1000
RETENTION_MS = 60_000
COMPACTED = config(cleanup_policy=("compact",), segment_bytes=4096, delete_retention_ms=RETENTION_MS)


class WatchedBucket(BucketRules):
    """A log whose segments are uploaded, the broker that leads it, and what was found."""

    def __init__(self, rig: Rig, log: DiskLog, on: SimDisk) -> None:
        super().__init__(rig.bucket)
        self.rig = rig
        self.broker: Broker = rig.broker(fan=2)
        self.cleaner = self.broker.make_cleaner(object_bytes=2048)
        self.log = log
        self.manifest = Manifest("flights", PID.topic_id, PID.partition)
        self.findings: list[Finding] = []
        self._disk = on
        self._compacted = CompactedLog("t-0", self._report)
        self._cold = ColdCleans(lambda: rig.bucket.objects, self._report)
        rig.bucket.memory.on_write = self._check_write
        rig.bucket.memory.on_delete = self._check_delete_call

    def put_some(self, count: int, tombstone: str = "") -> None:
        """Appends records with few keys, then a tombstone of one of them."""
        for number in range(count):
            put(self.log, f"k{number % KEYS}", f"v{number}")
        if tombstone:
            put(self.log, tombstone, None)
        self.log.roll()

    async def upload(self) -> None:
        """Uploads every closed segment."""
        _, held = read_compacted_log(self._disk, DIRECTORY)
        for each in held:
            self._compacted.take(each.batch.base, each)
        self.manifest = await self.broker.upload_all(self.log, 1)  # type: ignore[arg-type]

    async def clean(
        self, *, at_ms: int = NOW, memory: int = 1 << 16, segment_bytes: int = COMPACTED.segment_bytes
    ) -> ColdCleanResult:
        """Cleans once, as the leader."""
        settings = replace(COMPACTED, segment_bytes=segment_bytes)
        result = await clean(self.cleaner, self.manifest, settings=settings, now=at_ms, memory=memory)
        self.manifest = result.manifest
        return result

    # -- checks -------------------------------------------------------------------------------------------------------

    def _report(self, rule: str, what: str) -> None:
        self.findings.append(Finding(rule, what))

    def _check_write(self) -> None:
        try:
            self._check()
        except AssertionError as error:
            self._seen = len(self._bucket.written)
            self._report(str(error).partition(":")[0], str(error))

    def _check_delete_call(self, keys: Sequence[str]) -> None:
        self._cold.on_delete(keys, self.rig.loop.now_ns, GRACE_MS)
        try:
            self._check_delete(keys)
        except AssertionError as error:
            self._report(str(error).partition(":")[0], str(error))

    def _may_replace(self, partition_id: PartitionId) -> bool:
        return True

    def _check_manifest(self, manifest: Manifest) -> None:
        super()._check_manifest(manifest)
        _, held = read_compacted_log(self._disk, DIRECTORY)
        committed = {each.batch.base: each.batch for each in held}
        log = ColdLog(self._compacted, committed, self.log.end_offset, [COMPACTED], 0)
        self._cold.on_manifest(manifest, list(self.segments(manifest)), log, self.rig.loop.now_ns)


def run_in_bucket(scenario: Callable[[WatchedBucket], Awaitable[None]]) -> None:
    """Runs a scenario of one partition in the bucket. Raises what it breaks."""
    rig, found = Rig(), list[Finding]()

    async def run() -> None:
        on = disk()
        watched = WatchedBucket(rig, await open_log(on, config(segment_bytes=1024)), on)
        try:
            await scenario(watched)
        finally:
            found.extend(watched.findings)

    try:
        rig.run(run)
    finally:
        if found:
            raise BrokenRules(found)
