"""Tests of the schema registry in virtual time: brokers race for ids while they die and lose each other (I37)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.harness.loop import process_context
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.sim.scenarios.transactions import running
from tiered.controller.requests import CreateTopic
from tiered.registry.records import RegistryRecord, VersionWritten
from tiered.registry.registration import Registration, decide, plan
from tiered.registry.schema import Schema
from tiered.registry.state import RegistryState
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import EXPECTED_ERRORS
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.registry.schema_log import CONFIGS, SCHEMAS_TOPIC, SchemaLog

CLIENTS, REGISTRATIONS, FAULTS = 6, 12, 8
SUBJECTS, TEXTS = 3, 20
PATIENCE_SECONDS = 120.0


class RegistryRun:
    """Clients that register texts at any broker, and a registry of each process."""

    def __init__(self, three: ThreeBrokers, seed: int) -> None:
        self.rng = random.Random(f"{seed}/registry")
        self.acknowledged: dict[tuple[str, int], tuple[int, str]] = {}
        self.refused = 0
        self._three = three
        self._logs: dict[str, SchemaLog] = {}

    def log_of(self, broker: SimBroker) -> SchemaLog:
        """Returns the registry of the process of a broker."""
        log = self._logs.get(broker.process)
        if log is None:
            log = self._logs[broker.process] = SchemaLog(HttpContext(broker.node, HttpLimits()))
        return log

    async def work(self) -> None:
        """Registers texts, each until it is acknowledged."""
        for _ in range(REGISTRATIONS):
            subject, text = f"s{self.rng.randrange(SUBJECTS)}", f"t{self.rng.randrange(TEXTS)}"
            written = await self._register(subject, text)
            kept = self.acknowledged.setdefault((written.subject, written.version), (written.id, written.schema.text))
            assert kept == (written.id, text) == (written.id, written.schema.text), "two schemas of one version"
            await asyncio.sleep(self.rng.expovariate(4))

    async def _register(self, subject: str, text: str) -> VersionWritten:
        wanted = Registration(subject, Schema(text, "JSON"))

        def decide_now(state: RegistryState) -> tuple[Sequence[RegistryRecord], VersionWritten]:
            done = decide(state, wanted, plan(state, wanted), [])
            assert done is not None
            return done.records, done.written

        begun = self._three.now
        while True:
            broker = self.rng.choice(running(self._three))
            process = broker.process
            log = self.log_of(broker)
            task = broker.loop.create_task(log.write(decide_now), name=process, context=process_context(process))
            [found] = await asyncio.gather(task, return_exceptions=True)
            if isinstance(found, VersionWritten):
                return found
            assert isinstance(found, (*EXPECTED_ERRORS, asyncio.CancelledError)), found
            assert self._three.now - begun < PATIENCE_SECONDS, found
            self.refused += 1
            await asyncio.sleep(0.2)

    async def harm(self) -> None:
        """Kills brokers, and cuts them off, one at a time."""
        for _ in range(FAULTS):
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))
            victim = self.rng.choice(list(self._three.brokers.values()))
            fault = self.rng.choice(("kill", "cut", "deaf", "reset"))
            others = [each for each in self._three.brokers.values() if each is not victim]
            if fault == "kill":
                await victim.kill()
                await asyncio.sleep(self.rng.uniform(0.1, 6))
                await victim.start()
            elif fault == "reset":
                for other in others:
                    self._three.network.break_between(victim.name, other.name)
            else:
                for other in others:
                    self._three.network.cut(victim.name, other.name)
                    if fault == "cut":
                        self._three.network.cut(other.name, victim.name)
                await asyncio.sleep(self.rng.uniform(0.1, 6))
                self._three.network.heal()


@pytest.mark.parametrize("seed", first_seeds(2, 30))
@run_by(run_scenario, seed=GIVEN)
async def test_acknowledged_ids_stay_under_faults_of_brokers_and_network(three: ThreeBrokers, *, seed: int) -> None:
    await three.controller.node.submit(CreateTopic(SCHEMAS_TOPIC, assignments=[(1, 2, 3)], configs=CONFIGS))
    await three.wait_until(lambda: all(SCHEMAS_TOPIC in each.node.image.topics for each in running(three)), 10)
    run = RegistryRun(three, seed)
    await asyncio.gather(run.harm(), *(run.work() for _ in range(CLIENTS)))
    three.network.heal()
    await three.wait_until(three.is_everyone_known, 60)
    states = [await run.log_of(broker).read() for broker in three.brokers.values()]
    for state in states:
        for (subject, version), (id, text) in run.acknowledged.items():
            kept = state.find_version(subject, version)
            assert (kept.id, kept.schema.text) == (id, text), "an acknowledged version is gone"
        versions = [each for subject in state.subjects.values() for each in subject.values()]
        texts = {(each.id, each.schema.text) for each in versions}
        assert len(texts) == len({id for id, _ in texts}) == len({text for _, text in texts})
        assert versions == [each for subject in states[0].subjects.values() for each in subject.values()]
