"""Apache Kafka beside us, on loopback: `Peer` is a fresh one-broker cluster, `tool` runs one of Kafka's own tools.

    python -m tests.peer.kafka dump-log --files 00000000000000000000.log --print-data-log
    python -m tests.peer.kafka serve 19092          a broker until Ctrl-C

Needs a JDK 17 and Maven; the jars are fetched once into `~/.cache/tiered/peer/<hash of the POM>` (or `$TIERED_PEER`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.peer.wire import Wire
from tests.ports import free_port
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse

HERE = Path(__file__).parent
FETCH_SECONDS = 900
TOOL_SECONDS = 300
STOP_SECONDS = 20

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "format": "kafka.tools.StorageTool",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
BROKER = "kafka.Kafka"
CLUSTER_ID = "dGllcmVkLXBlZXItMDAwMA"


def jars(pom: Path = HERE / "pom.xml") -> Path:
    """Returns the folder of a POM's jars; Maven fetches them if it does not exist. Two fetches at once both end
    well."""
    root = Path(os.environ.get("TIERED_PEER") or Path.home() / ".cache" / "tiered" / "peer")
    folder = root / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        got = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={got}", "-DincludeScope=runtime"]
        subprocess.run(["mvn", "-q", "-B", "-C", "-f", str(pom), *goal], check=True, timeout=FETCH_SECONDS)
        try:
            got.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def java(main_class: str, arguments: Sequence[str], heap: str = "512m") -> list[str]:
    """Returns the command line of one of Kafka's classes."""
    logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return ["java", f"-Xmx{heap}", logging, "-cp", f"{jars()}/*", main_class, *arguments]


def tool(name: str, *arguments: str, stdin: str = "") -> str:
    """Runs one of Kafka's tools and returns its output; RuntimeError with the output if it fails."""
    command = java(TOOLS[name], arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def format_directory(directory: Path, address: str, settings: Mapping[str, str], users: Sequence[str] = ()) -> Path:
    """Returns the properties of a broker on `directory`, which is also its own controller; formats its log once, with
    the users of SCRAM."""
    file = directory / "server.properties"
    if not file.exists():
        properties = _properties(address, directory / "log", settings)
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        scram = [word for user in users for word in ("--add-scram", user)]
        tool("format", "format", "-t", CLUSTER_ID, "-c", str(file), *scram)
    return file


def _properties(address: str, logs: Path, settings: Mapping[str, str]) -> dict[str, str]:
    controller = free_port()
    listeners = settings.get("listeners", f"PLAINTEXT://{address}")
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": str(logs),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    } | {name: value for name, value in settings.items() if name != "listeners"}


class Peer:
    """One broker with its controller on a new directory. A context manager that removes everything."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        heap: str = "1g",
        users: Sequence[str] = (),
        jvm: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.directory = Path(tempfile.mkdtemp(prefix="tiered-peer-"))
        self.logs = self.directory / "log"
        self._settings = dict(settings or {})
        self._heap = heap
        self._users = users
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Peer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Formats the directory the first time, starts the broker, and returns when it replies."""
        file = format_directory(self.directory, self.address, self._settings, self._users)
        output = (self.directory / "output").open("ab")
        with output:
            command = java(BROKER, [str(file)], self._heap)
            command[1:1] = self._jvm
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + TOOL_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no reply at {self.address}\n{(self.directory / 'output').read_text()[-2000:]}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        """True if the broker names itself in a reply: it is registered, and topics can be created."""
        try:
            with Wire(self.address) as wire:
                return bool(wire.ask(MetadataRequest([]), MetadataResponse).brokers)
        except OSError:
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the broker: SIGTERM lets it close its logs, SIGKILL does not. The directory stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stops and removes everything."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """The command of this module."""
    if arguments and arguments[0] in TOOLS:
        os.execvp("java", java(TOOLS[arguments[0]], arguments[1:]))
    if arguments and arguments[0] == "serve":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt), Peer(port=int(arguments[1]) if len(arguments) > 1 else 19092) as peer:
            print(peer.address, flush=True)
            signal.pause()
        return 0
    print(__doc__, "tools: " + " ".join(sorted(TOOLS)), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
