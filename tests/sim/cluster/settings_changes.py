"""Settings that change while topics are in use, of one topic or of all brokers. Half of the time an operator acts while
a broker is down: then the value matters most for records that were written under another one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping

from tests.sim.cluster.expected import ExpectedTopics
from tests.sim.cluster.observer import Finding, Findings
from tests.sim.cluster.options import CHAINS, ClusterOptions
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
PAUSE_SECONDS = 1.5
DOWN_SECONDS = 5.0
LOOK_SECONDS = 0.1
CLUSTER_CHANCE = 0.3
DEFAULT_MIN_ISR_CHANCE = 0.7
Edit = Mapping[str, str | None]

TOPIC_EDITS: Mapping[str, tuple[Edit, ...]] = {
    "flush": ({"flush": "ack"}, {"flush": "ack"}, {"flush": "none"}, {"flush": None}),
    CHAINS: ({"flush": "bucket"}, {"flush": "bucket"}, {"flush": "none"}, {"flush": None}),
    "min_isr": (
        {"min.insync.replicas": "1"},
        {"min.insync.replicas": "2"},
        {"min.insync.replicas": None},
    ),
    "retention": (
        {"retention.bytes": "-1"},
        {"retention.bytes": "4096"},
        {"retention.bytes": "16384"},
        {"retention.bytes": None},
        {"retention.ms": "-1"},
        {"retention.ms": "5000"},
        {"retention.ms": "20000"},
    ),
    "local_retention": (
        {"local.retention.bytes": "1"},
        {"local.retention.bytes": "4096"},
        {"local.retention.bytes": "-2"},
        {"local.retention.ms": "-2"},
        {"local.retention.ms": "3000"},
    ),
    "tiering": (
        {"remote.storage.enable": "true", "remote.log.copy.disable": None},
        {"remote.storage.enable": "true", "remote.log.copy.disable": "true"},
        {"remote.storage.enable": "false"},
    ),
    "unclean": (
        {"unclean.leader.election.enable": "true"},
        {"unclean.leader.election.enable": "false"},
        {"unclean.leader.election.enable": None},
    ),
}
"""By kind: values that a topic may get. None removes the topic's own value."""
CLUSTER_EDITS: Mapping[str, tuple[Edit, ...]] = {
    "flush": ({"log.flush": "ack"}, {"log.flush": "none"}, {"log.flush": None}),
    CHAINS: ({"log.flush": "bucket"}, {"log.flush": None}),
    "min_isr": (
        {"min.insync.replicas": "1"},
        {"min.insync.replicas": "2"},
        {"min.insync.replicas": None},
        {"min.insync.replicas": None},
    ),
    "retention": ({"log.retention.bytes": "8192"}, {"log.retention.bytes": "-1"}, {"log.retention.bytes": None}),
    "local_retention": ({"log.local.retention.bytes": "1"}, {"log.local.retention.bytes": None}),
    "tiering": ({"log.remote.storage.enable": "true"}, {"log.remote.storage.enable": None}),
    "unclean": ({"unclean.leader.election.enable": "true"}, {"unclean.leader.election.enable": None}),
}
"""By kind: values that all brokers may get."""


class SettingsChanges:
    """Changes settings of the run's topics until `working` is unset. `is_broker_down` returns true if a broker is
    down."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        options: ClusterOptions,
        log_event: Callable[[str], None],
        expected: ExpectedTopics,
        findings: Findings,
        is_broker_down: Callable[[], bool],
    ) -> None:
        self.working = True
        self.counts: dict[str, int] = {}
        self._client = client
        self._options = options
        self._log_event = log_event
        self._expected = expected
        self._findings = findings
        self._is_broker_down = is_broker_down
        self._rng = random.Random(f"{loop.seed}/settings-changes")

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_SECONDS))
            if self._rng.random() < 0.5:
                await self._wait_broker_down()
            kind = self._rng.choice(self._options.changes)
            by_default = kind == "min_isr" and not all(each.own_min_isr for each in self._options.topics)
            if self._rng.random() < (DEFAULT_MIN_ISR_CHANCE if by_default else CLUSTER_CHANCE):
                await self._change("", kind, self._rng.choice(CLUSTER_EDITS[kind]))
            else:
                name = self._rng.choice(self._options.topics).name
                await self._change(name, kind, self._rng.choice(TOPIC_EDITS[kind]))
        await self._client.close()

    async def _wait_broker_down(self) -> None:
        for _ in range(int(DOWN_SECONDS / LOOK_SECONDS)):
            if self._is_broker_down() or not self.working:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _change(self, name: str, kind: str, edit: Edit) -> None:
        """Changes a setting. `name` is a topic, or empty for all brokers."""
        try:
            code: Code | None = await self._alter_configs(name, edit)
        except REQUEST_ERRORS as error:
            self._log_event(f"settings of {name or 'all'} to {edit}: {error}")
            code = None
        else:
            self._log_event(f"settings of {name or 'all'} to {edit}: {code}")
        for finding in self._check_reply(name, edit, code):
            self._findings.report(*finding)
        where = "topic" if name else "all"
        answer = "unknown" if code is None else code.name
        counted = f"{where}_{kind}_{answer}"
        self.counts[counted] = self.counts.get(counted, 0) + 1

    def _check_reply(self, name: str, edit: Edit, code: Code | None) -> Iterator[Finding]:
        if name:
            yield from self._expected.on_configs_altered(name, edit, code)
        else:
            yield from self._expected.on_cluster_configs_altered(edit, code)

    async def _alter_configs(self, name: str, edit: Edit) -> Code:
        each = [
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in edit.items()
        ]
        kind = TOPIC if name else BROKER
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=each)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        got = await self._client.send_to_controller(request, IncrementalAlterConfigsResponse)
        return code_from_number(got.responses[0].error_code)
