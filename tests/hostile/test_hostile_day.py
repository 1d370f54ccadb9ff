"""A hostile day: all attacks on one broker, side by side in small sets, over TLS and with logins. A tenant within its
quota writes all the time, and each of its records is taken.

The attackers are one user with the quotas of a tenant. They prepare without quotas. A broker that nobody attacks has
such a tenant too: its latencies show what the attackers take of the cores of this machine.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import random
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.kafka_site import RawClient
from tests.e2e.serving import ServeProcess
from tests.hostile.attacks import ATTACKS, Case, list_cases
from tests.hostile.target import (
    FULL,
    GOOD,
    HOSTILE,
    P99_MS,
    PASSWORD,
    ROOT,
    WORST_MS,
    AttackedBroker,
    attacked_broker,
    log_in,
    measure,
    scale,
    set_quota,
    write_measured,
)
from tests.hostile.tenant import trusting
from tests.hostile.test_crowds import many_files, open_tenant
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered_api.kafka.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
SIDE_BY_SIDE = 4
"""Attacks at a time."""
SET_SECONDS = scale(400, 10_000) / 1000
"""Time of a set. An attack that ends sooner, by itself or because a quota refuses it, begins again: else a broker that
refuses soon is measured for a moment, and 3 slow writes of 300 are its p99."""
PREPARE_SECONDS = 600
QUIET_SECONDS = scale(100, 1_000) / 1000
KEPT_OUT_SHARE = 10
"""At most one attack of so many may find that earlier ones have all that their user may have."""
CALM_P99_MS = P99_MS / 2
"""A calm broker's tenant that waits longer lacks the cores: then the set is not judged by time."""
QUOTAS = {
    "producer_byte_rate": 2_000_000.0,
    "consumer_byte_rate": 4_000_000.0,
    "request_percentage": 30.0,
    "controller_mutation_rate": 5.0,
}
"""The quotas that `infra/secure/tenant.sh` gives a tenant."""
ALL, CREATE, DESCRIBE, IDEMPOTENT_WRITE = 2, 5, 8, 12
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
RIGHTS = (
    (HOSTILE, TOPIC, "*", ALL),
    (HOSTILE, GROUP, "*", ALL),
    (HOSTILE, TRANSACTIONAL_ID, "*", ALL),
    *((HOSTILE, CLUSTER, "kafka-cluster", each) for each in (CREATE, DESCRIBE, IDEMPOTENT_WRITE)),
    (GOOD, TOPIC, GOOD, ALL),
)
SETTINGS: dict[str, object] = {
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": f"User:{ROOT}",
    "authentication_method": "BASIC",
    "tiered_partitions_max": 200_000,
    "log_retention_check_interval_ms": 500,
    "remote_log_manager_task_interval_ms": 500,
}
"""Settings of the day, before those of the attacks."""
FAULTS = (OSError, EOFError, AssertionError, ValueError, LookupError, HTTPException, asyncio.IncompleteReadError)
"""Errors that an attack may get beside others: quotas and other attacks keep it from what it gets alone."""
NOT_IN_DAY = {
    "test_tenant_is_served_beside_crowds_as_on_a_calm_broker": "its crowds are an attack too, and its brokers are two",
    "test_good_tenant_is_served_through_all_attacks": "it is the day",
    "test_machine_is_attacked_as_one_broker": "its attacks are those of the day, on two processes",
    "test_client_that_floods_all_processes_gets_one_quota": "it needs two processes, and the day has one",
}
"""Tests with a broker that are no attack, each with the reason."""


class Secured(HTTPSConnection):
    """A connection over TLS, whose requests have a login."""

    user = HOSTILE

    def putrequest(self, *arguments: Any, **options: Any) -> None:
        super().putrequest(*arguments, **options)
        self.putheader("Authorization", f"Basic {b64encode(f'{self.user}:{PASSWORD}'.encode()).decode()}")


class DayBroker(AttackedBroker):
    """The broker of the day, as one attack sees it: all connections are those of the hostile user."""

    def __init__(self, served: ServeProcess, directory: Path, prefix: str, begin: threading.Event) -> None:
        super().__init__(served, directory)
        self._prefix = prefix
        self._begin = begin
        self.memory_bound = 0
        self.is_prepared = threading.Event()
        self.is_reached = False
        self.outcome = ""
        """The outcome of the first round, in words."""
        self.rounds = 0
        self._limit = asyncio.timeout(None)
        self._ends: float | None = None
        self._is_over = False

    def name(self, short: str) -> str:
        return f"{self._prefix}-{self.rounds}-{short}"

    async def client(self, own: str = "127.0.0.1", port: int = 0) -> RawClient:
        return await self._connect(own, port, None) if port else await self.logged_in(own)

    async def logged_in(self, own: str = "127.0.0.1", user: str = HOSTILE) -> RawClient:
        client = await self._connect(own, self.port_of("SASL_SSL"), trusting())
        await log_in(client, user)
        return client

    def http(self, timeout: float = 200, own: str = "127.0.0.1") -> HTTPConnection:
        if self._is_over:
            raise ConnectionAbortedError("the time of the attack is over")
        made = Secured(urlsplit(self.served.url).netloc, timeout=timeout, source_address=(own, 0), context=trusting())
        self._connections.append(made)
        return made

    async def limit(self, key: str, value: float, client_id: str = "test") -> None:
        """Does nothing: the quotas of the day hold."""

    def memory(self, what: str = "VmRSS") -> int:
        """Returns 0: the day measures the memory of a set of attacks."""
        return 0

    def forget_peak(self) -> int:
        return 0

    @asynccontextmanager
    async def attack(self, name: str, *, memory: int, probe_kind: str = "") -> AsyncIterator[None]:
        """Runs the attack inside the context when all of the set are prepared, until the time of the set is over."""
        if self.rounds == 1:
            self.memory_bound += memory
            self.is_reached = True
            self.is_prepared.set()
            assert await asyncio.to_thread(self._begin.wait, PREPARE_SECONDS), "another attack is not prepared"
            if self._ends is None:
                self._ends = time.monotonic() + SET_SECONDS
                self._limit.reschedule(asyncio.get_running_loop().time() + SET_SECONDS)
        yield

    def _seconds_left(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def run(self, case: Case) -> None:
        """Runs an attack in a thread of its own, round after round until the time of the set is over."""
        while not self._is_over:
            self.rounds += 1
            outcome = asyncio.run(self._run_round(case))
            self.outcome = self.outcome or outcome
            self.is_prepared.set()
            self._begin.wait(PREPARE_SECONDS)

    async def _run_round(self, case: Case) -> str:
        """Runs the attack once, with new names. Later rounds prepare within the time of the set, and under its quotas.
        Returns what became of it."""
        outcome = "ended"
        try:
            async with asyncio.timeout(self._seconds_left()) as self._limit:
                await case.run(self)
        except* FAULTS as faults:
            outcome = "stopped" if self._limit.expired() else f"{faults.exceptions[0]!r}"[:200]
        finally:
            self.close_clients()
            self._connections.clear()
        return outcome

    def end(self) -> None:
        """Ends the requests over HTTP that threads still wait for. There are no further ones."""
        self._is_over = True
        self.close_http()


class Day:
    """The day: its broker, and the broker that nobody attacks."""

    def __init__(self, broker: AttackedBroker, calm: AttackedBroker) -> None:
        self._broker = broker
        self._calm = calm
        self._fresh = 0
        self.peak = self.largest_bound = 0
        """Most MB above a fresh broker, and the bound of the set that may take most."""
        self.kept_out: list[str] = []
        """Attacks that could not be prepared, each with the reason."""
        self.late: list[dict[str, object]] = []
        self.unjudged: list[dict[str, object]] = []

    def _view(self, prefix: str, begin: threading.Event) -> DayBroker:
        return DayBroker(self._broker.served, self._broker.directory, prefix, begin)

    async def run(self, sets: list[list[Case]]) -> None:
        """Runs all sets, beside a tenant at each broker."""
        for each in (self._broker, self._calm):
            await self._admit_tenants(each)
        login = (GOOD, GOOD, PASSWORD)
        async with (
            open_tenant(f"127.0.0.1:{self._broker.port_of('SASL_SSL')}", *login) as tenant,
            open_tenant(f"127.0.0.1:{self._calm.port_of('SASL_SSL')}", *login) as calm,
        ):
            self._fresh = self._broker.forget_peak()
            for number, cases in enumerate(sets):
                await self._run_set(number, cases, tenant, calm)

    async def _admit_tenants(self, to: AttackedBroker) -> None:
        root = await DayBroker(to.served, to.directory, "", threading.Event()).logged_in(user=ROOT)
        rows = [AclCreation(kind, name, 3, f"User:{user}", "*", operation, 3) for user, kind, name, operation in RIGHTS]
        made = await root.ask(CreateAclsRequest(rows), 3, CreateAclsResponse)
        assert {each.error_code for each in made.results} == {0}, made
        topic = CreateTopicsRequest([CreatableTopic(GOOD, 1, 1)], 60_000)
        assert (await root.ask(topic, 7, CreateTopicsResponse)).topics[0].error_code == 0
        await set_quota(root, "user", GOOD, QUOTAS)
        root.close()

    async def _run_set(
        self, number: int, cases: list[Case], tenant: asyncio.subprocess.Process, calm: asyncio.subprocess.Process
    ) -> None:
        begin = threading.Event()
        views = [self._view(f"d{number}-{at}", begin) for at in range(len(cases))]
        root = await self._view("", begin).logged_in(user=ROOT)
        threads = [threading.Thread(target=view.run, args=(case,)) for view, case in zip(views, cases, strict=True)]
        for each in threads:
            each.start()
        try:
            for view, case in zip(views, cases, strict=True):
                assert await asyncio.to_thread(view.is_prepared.wait, PREPARE_SECONDS), case.name
                if not view.is_reached:  # attacks before it have all that one holder may have
                    self.kept_out.append(f"{case.name}: {view.outcome}")
            await set_quota(root, "user", HOSTILE, QUOTAS)
            failed = (await measure(tenant))["failed"]
            await measure(calm)
            await asyncio.sleep(QUIET_SECONDS)
            quiet = await measure(tenant)
            before = self._broker.forget_peak()
            queued, began = self._broker.cpu_wait_seconds(), time.monotonic()
            begin.set()
            await asyncio.sleep(SET_SECONDS)
            waited, beside = await measure(tenant), await measure(calm)
            took, queued = time.monotonic() - began, self._broker.cpu_wait_seconds() - queued
            peak = self._broker.memory("VmHWM")
        finally:
            begin.set()
            for view, each in zip(views, threads, strict=True):
                view.end()
                await asyncio.to_thread(each.join, PREPARE_SECONDS)
        measured: dict[str, object] = {
            "attack": f"the hostile day, set {number + 1}", **waited, "quiet_p99": quiet["p99"],
            "calm_p99": beside.get("p99"), "memory_mb": peak - before, "day_memory_mb": peak - self._fresh,
            "memory_bound_mb": sum(view.memory_bound for view in views), "queued": round(queued / took, 2),
            "seconds": round(took, 1), "seed": SEED,
            "attacks": {case.name: view.outcome for case, view in zip(cases, views, strict=True)},
            "rounds": [view.rounds for view in views],
        }  # fmt: skip
        write_measured(measured)
        self._judge(measured, failed + quiet["failed"] + waited["failed"])
        await set_quota(root, "user", HOSTILE, QUOTAS, is_lifted=True)
        await self._delete_topics(root)
        root.close()

    def _judge(self, measured: dict[str, Any], failed: float) -> None:
        assert self._broker.served.process.poll() is None, "the broker has ended"
        assert measured["count"] and not failed, measured
        assert measured["memory_mb"] <= measured["memory_bound_mb"], measured
        self.peak = max(self.peak, measured["day_memory_mb"])
        self.largest_bound = max(self.largest_bound, measured["memory_bound_mb"])
        if FULL and (measured["p99"] > P99_MS or measured["worst"] > WORST_MS):
            (self.unjudged if measured["calm_p99"] > CALM_P99_MS else self.late).append(measured)

    async def _delete_topics(self, root: RawClient) -> None:
        """Deletes what attacks have made."""
        listed = await root.ask(MetadataRequest(topics=None), 12, MetadataResponse)
        found = [each.name for each in listed.topics if each.name and each.name != GOOD]
        names = [name for name in found if not name.startswith("_")]
        for at in range(0, len(names), 500):
            request = DeleteTopicsRequest([DeleteTopicState(name) for name in names[at : at + 500]], timeout_ms=60_000)
            gone = await root.ask(request, 6, DeleteTopicsResponse)
            assert {each.error_code for each in gone.responses} == {0}


def merge_settings() -> dict[str, object]:
    """Returns the settings of the day: the largest of each that attacks want."""
    merged: dict[str, object] = {}
    for each in ATTACKS.values():
        for name, value in each.settings.items():
            merged[name] = max(value, merged.get(name, value))  # type: ignore[call-overload]
    return {**merged, **SETTINGS}


def choose() -> list[list[Case]]:
    """Returns the sets of the day, in an order that the seed tells; one attack of each module where time is short."""
    rng, cases = random.Random(SEED), list(list_cases())
    rng.shuffle(cases)
    if not FULL:
        cases = list({each.attack.run.__module__: each for each in cases if not each.is_also}.values())
    return [cases[at : at + SIDE_BY_SIDE] for at in range(0, len(cases), SIDE_BY_SIDE)]


@pytest.mark.also("tests/hostile/test_hostile_day.py::test_each_test_with_a_broker_is_an_attack_of_the_day")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(scale(300, 3_600))
def test_good_tenant_is_served_through_all_attacks(tmp_path: Path) -> None:
    import_attacks()
    settings: dict[str, Any] = merge_settings()
    url = "https://127.0.0.1:0"
    with (
        many_files(),
        attacked_broker(tmp_path / "data", http=url, stop_seconds=60, **settings) as broker,
        attacked_broker(tmp_path / "calm", http=url, stop_seconds=60, **settings) as calm,
    ):
        day, sets = Day(broker, calm), choose()
        asyncio.run(day.run(sets))
    gc.collect()  # while warnings are ignored: a TLS handshake that an attack breaks off leaves its socket
    assert day.peak <= day.largest_bound, "memory of earlier attacks adds up"
    assert len(day.kept_out) <= sum(map(len, sets)) // KEPT_OUT_SHARE, day.kept_out
    assert not day.late
    if day.unjudged:
        pytest.skip(f"the machine is busy, so these sets are not judged by time: {day.unjudged}")


def import_attacks() -> list[ModuleType]:
    """Imports the modules of this folder that have tests."""
    return [import_module(f"tests.hostile.{path.stem}") for path in sorted(Path(__file__).parent.glob("test_*.py"))]


def test_each_test_with_a_broker_is_an_attack_of_the_day() -> None:
    with_broker = {
        test
        for module in import_attacks()
        for name, test in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(test) and "tmp_path" in inspect.signature(test).parameters
    }
    assert {each.__name__ for each in with_broker - ATTACKS.keys()} == NOT_IN_DAY.keys()
    attacked = {name for each in list_cases() for name in [each.attack.run.__name__]}
    assert attacked == {each.__name__ for each in ATTACKS}
