"""Three brokers of one kind as one cluster, on fresh data, behind the interface of one broker."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.peer.brokers import KafkaBroker, MeasuredBroker
from tests.peer.kafka import tool
from tests.ports import free_port

NODES = (1, 2, 3)
IN_SYNC_SECONDS = 180.0
ADMIN_SECONDS = 5.0
STEP_SECONDS = 0.05


class BenchCluster:
    """Brokers 1 to 3. The context manager starts them, waits until each knows the others, and leaves nothing behind."""

    def __init__(self, root: Path, kind: type[MeasuredBroker], settings: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"trio-{kind.name}-", dir=root))
        self.name = kind.name
        self.brokers = {node: kind(self.directory, settings) for node in NODES}
        self.address = ",".join(each.address for each in self.brokers.values())
        _configure_cluster(self.brokers, self.directory)

    @property
    def pids(self) -> tuple[int, ...]:
        """Returns the process ids of the brokers that run."""
        return tuple(each.pid for each in self.brokers.values() if each.running)

    def peak_rss(self) -> int:
        return sum(each.peak_rss() for each in self.brokers.values())

    def memory(self) -> dict[str, float]:
        """Returns the memory of all brokers that is their own, and what each shares with others."""
        found = [each.memory() for each in self.brokers.values()]
        return {
            "private_mb": sum(each["private_mb"] for each in found),
            "shared_mb": max(each["shared_mb"] for each in found),
        }

    def disk_bytes(self) -> int:
        return sum(each.disk_bytes() for each in self.brokers.values())

    def check_alive(self) -> None:
        """Raises RuntimeError if a broker that was not stopped has ended."""
        for each in self.brokers.values():
            if each.running:
                each.check_alive()

    def output_tail(self) -> str:
        return "\n".join(each.output_tail()[-700:] for each in self.brokers.values())

    def controller(self) -> int:
        """Returns the id of the active controller.

        Kafka names clients any broker as controller, so its quorum is queried.
        """
        if isinstance(self.brokers[1], KafkaBroker):
            output = tool("metadata-quorum", "--bootstrap-server", self.address, "describe", "--status")
            found = re.search(r"LeaderId:\s+(\d+)", output)
            assert found is not None, output
            return int(found[1])
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 2})
        return int(admin.describe_cluster(request_timeout=ADMIN_SECONDS).result(ADMIN_SECONDS).controller.id)

    def leaders(self, topic: str) -> dict[int, int]:
        """Returns the leader of each partition."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 2})
        partitions = admin.list_topics(topic, ADMIN_SECONDS).topics[topic].partitions
        return {number: each.leader for number, each in partitions.items()}

    def wait_in_sync(self) -> None:
        """Waits until all brokers are there, and each ISR has all replicas."""
        until = time.perf_counter() + IN_SYNC_SECONDS
        while not self._is_in_sync():
            self.check_alive()
            if time.perf_counter() > until:
                raise RuntimeError(f"{self.name} is not whole: {self.output_tail()}")
            time.sleep(STEP_SECONDS)

    def _is_in_sync(self) -> bool:
        """True if each broker reports so by itself."""
        for each in self.brokers.values():
            admin = AdminClient({"bootstrap.servers": each.address, "log_level": 2})
            try:
                seen = admin.list_topics(timeout=ADMIN_SECONDS)
            except KafkaException:
                return False
            partitions = [one for topic in seen.topics.values() for one in topic.partitions.values()]
            if sorted(seen.brokers) != list(NODES):
                return False
            if any(one.leader not in NODES or set(one.isrs) != set(one.replicas) for one in partitions):
                return False
        return True

    def __enter__(self) -> BenchCluster:
        try:
            for each in self.brokers.values():
                each.spawn()
            self.wait_in_sync()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for each in self.brokers.values():
            each.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _configure_cluster(brokers: Mapping[int, MeasuredBroker], directory: Path) -> None:
    """Writes the settings that make them one cluster: a quorum of all three for Kafka, one bucket for ours."""
    controllers = {node: f"127.0.0.1:{free_port()}" for node in brokers}
    voters = ",".join(f"{node}@{address}" for node, address in controllers.items())
    for node, each in brokers.items():
        each.settings["node.id"] = str(node)
        if isinstance(each, KafkaBroker):
            each.settings["listeners"] = f"PLAINTEXT://{each.address},CONTROLLER://{controllers[node]}"
            each.settings["controller.quorum.voters"] = voters
            each.settings["offsets.topic.replication.factor"] = "3"
        else:
            each.settings.setdefault("store", f"file://{directory / 'bucket'}")
