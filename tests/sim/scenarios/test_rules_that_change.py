"""Users and bearers of delegation tokens write and read while passwords, tokens, ACLs and quotas change all the time,
and while brokers freeze, are cut off for moments and start again.

I28, I29: once a change was acknowledged a session ago, no broker serves by the old rule, and none refuses by it. Each
bug that is put in is reported.
"""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import pytest

from tests.sim.cluster.observer import BrokenRules, Findings, patched
from tests.sim.cluster.rules_checker import Factor, Rule, RulesChecker
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.loop import SimLoop
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.sim.settings import SETTINGS
from tiered.access.authorization import Authorization
from tiered.access.client_quotas import ClientQuotas
from tiered.access.delegation_tokens import DelegationTokens
from tiered.broker.broker import Broker
from tiered.config.listeners import SASL_PLAINTEXT, Endpoint
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import (
    AclChoice,
    AlterClientQuotas,
    AlterScramCredentials,
    CreateAcls,
    CreateDelegationToken,
    CreateTopic,
    DeleteAcls,
    ExpireDelegationToken,
    QuotaAlteration,
    Request,
    ScramDeletion,
)
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.metadata.changes import AclAdded
from tiered.metadata.image import Image
from tiered.records.batch import encode_batch
from tiered.security.delegation_tokens import make_hmac
from tiered.security.secret import Secret
from tiered_api.cli.broker.scram_users import read_credentials
from tiered_api.kafka.client.connection import BrokerConnection
from tiered_api.kafka.client.login import UserLogin, log_in_user
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

SECONDS = 60.0
SESSION_SECONDS = 1.0
"""The session timeout, and the time after which a change is in force on each broker that is not cut off."""
LISTENER, PORT, MECHANISM = "CLIENTS", 9093, "SCRAM-SHA-256"
KEY = Secret("key-of-tokens")
CONFIGS: dict[str, Any] = {
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "broker_session_timeout_ms": round(SESSION_SECONDS * 1000),
    "broker_heartbeat_interval_ms": 300,
    "connection_failed_authentication_delay_ms": 50,
    "delegation_token_secret_key": KEY,
    "sasl_enabled_mechanisms": (MECHANISM,),
}
TOPICS, USERS, OWNER = ("ta", "tb"), ("alice", "bob"), "carol"
"""The owner of tokens has no password."""
OPERATIONS = ("READ", "WRITE")
REQUEST_SECONDS, TIMEOUT_SECONDS = 0.1, 2.0
CHANGE_SECONDS, QUOTA_CHANGE_SECONDS, FAULT_SECONDS = 1.2, 5.0, 1.5
WINDOW_SECONDS = float((SETTINGS.quota_window_num - 1) * SETTINGS.quota_window_size_seconds)
"""Samples of a rate that are whole, and the one that grows."""
VALUE_BYTES = 600
QUOTAS = (200.0, 200.0, None)
"""Bytes a second; None removes a quota."""
FAULTS = (Refused, Unavailable, Corrupt)
A_LOGIN_FAILED = Code.SASL_AUTHENTICATION_FAILED


class Proof(NamedTuple):
    """The login of a client, and the rule that it stands on."""

    login: UserLogin
    factor: Factor


class Client:
    """One client of a user, with a connection to each broker."""

    def __init__(self, host: str, principal: str, choose_proof: Callable[[], Proof | None]) -> None:
        self.host = host
        self.principal = principal
        self.choose_proof = choose_proof
        self.connections: dict[int, tuple[BrokerConnection, Proof]] = {}


class RulesRun:
    """One run: the clients, the changes and the faults, all drawn from the seed."""

    def __init__(self, three: ThreeBrokers, checker: RulesChecker, findings: Findings, seconds: float) -> None:
        self._three = three
        self._checker = checker
        self._findings = findings
        self._rng = random.Random(f"{three.loop.seed}/rules")
        self._end_ns = three.loop.now_ns + round(seconds * 1e9)
        self._numbers = 0
        self._tokens: list[str] = []
        self._uses: dict[tuple[int, str], deque[tuple[int, int]]] = {}
        """Writes of each user to each broker: the time when the request was sent, and its bytes."""

    @property
    def _is_over(self) -> bool:
        return bool(self._findings.found) or self._three.loop.now_ns >= self._end_ns

    async def _pause(self, mean_seconds: float) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / mean_seconds))

    # -- changes ------------------------------------------------------------------------------------------------------

    async def _submit(self, rule: Rule, value: object, request: Request) -> Any:
        """Carries out a change. The controller is never frozen, so that each outcome is known."""
        change = self._checker.begin(rule, value)
        reply = await self._three.controller.node.submit(request)
        self._checker.end(change)
        return reply

    async def change_passwords(self) -> None:
        """Gives users other passwords, and removes users."""
        while not self._is_over:
            await self.change_password(self._rng.choice(USERS), is_removed=self._rng.random() < 0.3)
            await self._pause(CHANGE_SECONDS)

    async def change_password(self, user: str, *, is_removed: bool = False) -> None:
        """Gives a user another password, or removes the user."""
        rule = "password", user
        if is_removed and self._checker.newest(rule) is not None:
            await self._submit(rule, None, AlterScramCredentials((ScramDeletion(user, MECHANISM),)))
            return
        self._numbers += 1
        password, salt = f"secret-{self._numbers}", b64encode(self._rng.randbytes(16)).decode()
        (made,) = read_credentials([f"{MECHANISM}=[name={user},password={password},salt={salt}]"])
        await self._submit(rule, password, AlterScramCredentials((), (made,)))

    async def change_tokens(self) -> None:
        """Makes tokens and removes them."""
        while not self._is_over:
            await self.make_token()
            await self._pause(CHANGE_SECONDS)
            if len(self._tokens) > 1 or self._rng.random() < 0.5:
                token = self._rng.choice(self._tokens)
                if self._checker.newest(("token", token)):
                    await self._submit(("token", token), False, ExpireDelegationToken(token, f"User:{OWNER}"))
            await self._pause(CHANGE_SECONDS)

    async def make_token(self) -> None:
        """Makes a token. No client knows it before its creation was acknowledged."""
        made = await self._three.controller.node.submit(CreateDelegationToken(f"User:{OWNER}", f"User:{OWNER}"))
        self._checker.end(self._checker.begin(("token", made.token_id), True))
        self._tokens.append(made.token_id)

    async def change_rights(self) -> None:
        """Adds ACLs and removes them."""
        while not self._is_over:
            rule = self._rng.choice([("acl", *each) for each in all_rights()])
            await self.set_right(rule, is_allowed=not self._checker.newest(rule))
            await self._pause(CHANGE_SECONDS / 3)

    async def set_right(self, rule: Rule, *, is_allowed: bool) -> None:
        """Lets a user carry out an operation on a topic, or not."""
        _, user, topic, operation = rule
        place = "TOPIC", "LITERAL", topic, f"User:{user}", "*", operation, "ALLOW"
        request: Request = CreateAcls((AclAdded(*place),)) if is_allowed else DeleteAcls((AclChoice(*place),))
        await self._submit(rule, is_allowed, request)

    async def change_quotas(self) -> None:
        """Sets quotas and removes them, seldom enough for whole windows."""
        while not self._is_over:
            user, bound = self._rng.choice((*USERS, OWNER)), self._rng.choice(QUOTAS)
            alteration = QuotaAlteration((("user", user),), (("producer_byte_rate", bound),))
            await self._submit(("quota", user), bound, AlterClientQuotas((alteration,)))
            await self._pause(QUOTA_CHANGE_SECONDS)

    # -- faults -------------------------------------------------------------------------------------------------------

    async def disturb_brokers(self) -> None:
        """Freezes one broker at a time, cuts it off from the controller, or starts it again."""
        while not self._is_over:
            await self._pause(FAULT_SECONDS)
            one = self._rng.choice(self._three.others())
            kind, seconds = self._rng.random(), self._rng.random() * SESSION_SECONDS / 3
            if kind < 0.5:
                self._three.loop.freeze(one.process)
                await asyncio.sleep(seconds)
                self._three.loop.resume(one.process)
            elif kind < 0.9:
                links = ((one.name, self._three.controller.name), (self._three.controller.name, one.name))
                for source, target in links:
                    self._three.network.cut(source, target)
                await asyncio.sleep(seconds)
                self._three.network.heal()
            else:
                await one.kill()
                for node, user in list(self._uses):  # a process that starts knows of no use
                    if node == one.node_id:
                        del self._uses[node, user]
                await one.start()
                await listen(one)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _find_leader(self, topic: str) -> int:
        return self._three.controller.node.image.topics[topic].partitions[0].leader

    async def call(self, client: Client) -> None:
        """Sends requests of one client, one after the other."""
        while not self._is_over:
            await self._pause(REQUEST_SECONDS)
            topic, operation = self._rng.choice(TOPICS), self._rng.choice(OPERATIONS)
            node = self._find_leader(topic)
            if node >= 0:
                with suppress(*FAULTS):
                    await self._send(client, node, topic, operation)
        for connection, _ in client.connections.values():
            connection.close()

    async def _send(self, client: Client, node: int, topic: str, operation: str) -> None:
        connection, proof = await self._connect(client, node)
        sent_ns = self._three.loop.now_ns
        if operation == "WRITE":
            records = encode_batch([(EPOCH_MS, None, bytes(self._rng.randrange(100, VALUE_BYTES)), ())])
            part = PartitionProduceData(index=0, records=records)
            produce = ProduceRequest(None, self._rng.choice((1, -1)), 500, [TopicProduceData(topic, "", [part])])
            got = await connection.send(produce, ProduceResponse, TIMEOUT_SECONDS)
            code = got.responses[0].partition_responses[0].error_code
            if not code:
                self._check_quota(client, node, sent_ns, len(records), got.throttle_time_ms)
        else:
            place = FetchTopic(topic, "", [FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)])
            fetch = FetchRequest(max_wait_ms=50, min_bytes=1, topics=[place])
            fetched = await connection.send(fetch, FetchResponse, TIMEOUT_SECONDS)
            code = fetched.error_code or fetched.responses[0].partitions[0].error_code
        acl = Factor(("acl", client.principal, topic, operation), bool)
        what = f"{operation} of {topic} for {client.principal}"
        if code == 0:
            self._checker.check_reply(node, [proof.factor, acl], sent_ns, is_served=True, what=what)
        elif code == Code.TOPIC_AUTHORIZATION_FAILED.number:
            self._checker.check_reply(node, [acl], sent_ns, is_served=False, what=what)

    async def _connect(self, client: Client, node: int) -> tuple[BrokerConnection, Proof]:
        """Returns the connection to a broker, after a login if there is none. A login that is refused is judged."""
        known = client.connections.get(node)
        if known is not None and known[0].closed is None:
            return known
        proof = client.choose_proof()
        if proof is None:
            raise Unavailable("the client has no login yet")
        stream = await self._three.network.host(client.host).connect(f"b{node}", PORT, TIMEOUT_SECONDS)
        connection = BrokerConnection(stream, f"b{node}:{PORT}", "client")
        try:
            await connection.negotiate(TIMEOUT_SECONDS)
            sent_ns = self._three.loop.now_ns
            await log_in_user(connection, proof.login, TIMEOUT_SECONDS)
        except FAULTS as error:
            connection.close()
            if isinstance(error, Refused) and error.code is A_LOGIN_FAILED:
                self._checker.logins_refused += 1
                what = f"the login of {proof.factor.rule}"
                self._checker.check_reply(node, [proof.factor], sent_ns, is_served=False, what=what)
            raise
        self._checker.check_reply(node, [proof.factor], sent_ns, is_served=True, what="a login")
        client.connections[node] = connection, proof
        return connection, proof

    def _check_quota(self, client: Client, node: int, sent_ns: int, size: int, pause_ms: int) -> None:
        rule, now_ns = ("quota", client.principal), self._three.loop.now_ns
        uses = self._uses.setdefault((node, client.principal), deque())
        uses.append((sent_ns, size))
        since_ns = now_ns - round((WINDOW_SECONDS - 1) * 1e9)
        while uses[0][0] < since_ns:
            uses.popleft()
        self._checker.check_pause(node, rule, sent_ns, pause_ms)
        if not pause_ms:
            used = sum(each for _, each in uses)
            self._checker.check_no_pause(node, rule, since_ns, used, WINDOW_SECONDS + 1)

    # -- logins -------------------------------------------------------------------------------------------------------

    def prove_password(self, user: str) -> Proof | None:
        """Returns a login with the newest password of a user, or with an earlier one."""
        known = [each for each in self._checker.past_values(("password", user)) if isinstance(each, str)]
        if not known:
            return None
        password = known[-1] if self._rng.random() < 0.8 else self._rng.choice(known)
        factor = Factor(("password", user), lambda value: value == password)
        return Proof(UserLogin(user, Secret(password), MECHANISM), factor)

    def prove_token(self) -> Proof | None:
        """Returns a login with one of the last tokens, which may be gone."""
        if not self._tokens:
            return None
        token = self._rng.choice(self._tokens[-4:])
        hmac = b64encode(make_hmac(KEY, token)).decode()
        return Proof(UserLogin(token, Secret(hmac), MECHANISM, by_token=True), Factor(("token", token), bool))

    async def run(self) -> None:
        """Runs everything. Clients that wait at the end are cut off."""
        for user in USERS:
            await self.change_password(user)
        await self.make_token()
        for right in all_rights():
            await self.set_right(("acl", *right), is_allowed=True)
        clients = [
            *(Client(f"10.0.0.{n}", user, partial(self.prove_password, user)) for n, user in enumerate(USERS)),
            *(Client(f"10.0.1.{n}", OWNER, self.prove_token) for n in range(2)),
        ]
        calls = [asyncio.create_task(self.call(each)) for each in clients]
        changes: list[Coroutine[Any, Any, None]] = [
            self.change_passwords(), self.change_tokens(), self.change_rights(), self.change_quotas(),
            self.disturb_brokers(),
        ]  # fmt: skip
        await asyncio.gather(*changes)
        for each in calls:
            each.cancel()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def all_rights() -> list[tuple[str, str, str]]:
    """Returns the user, the topic and the operation of each right that comes and goes."""
    return [(user, topic, operation) for user in (*USERS, OWNER) for topic in TOPICS for operation in OPERATIONS]


async def listen(broker: SimBroker) -> None:
    """Opens the listener for clients that log in."""
    await broker.server.listen(Endpoint(LISTENER, "0.0.0.0", PORT, SASL_PLAINTEXT))


def run_with_changing_rules(seed: int, seconds: float = SECONDS) -> RulesChecker:
    """Runs one seed. Raises `BrokenRules` if a broker breaks I28 or I29."""
    findings = Findings(lambda event: None)
    checker = RulesChecker(
        findings.report, lambda: cast(SimLoop, asyncio.get_running_loop()).now_ns, round(SESSION_SECONDS * 1e9)
    )

    async def scenario(three: ThreeBrokers) -> None:
        for broker in three.brokers.values():
            await listen(broker)
        others = [each.node_id for each in three.others()]
        for topic, first in zip(TOPICS, others, strict=True):
            rest = [node for node in three.brokers if node != first]
            await three.controller.node.submit(CreateTopic(topic, assignments=[[first, *rest]]))
        await RulesRun(three, checker, findings, seconds).run()

    run_scenario(scenario, seed, **CONFIGS)
    findings.raise_if_any()
    return checker


def test_i29_acknowledged_changes_of_rules_are_in_force_after_a_session() -> None:
    checker = run_with_changing_rules(1, 2 * SECONDS)  # few replies name a pause: a write during one waits for its end
    assert min(checker.served, checker.refused, checker.logins_refused, checker.paused) > 10
    assert checker.decided_by_one > checker.served // 2, "most requests have one permitted outcome"


def keep_connections(original: Any) -> Any:
    """A user that is gone, or has another password, keeps its connections."""
    return lambda broker: None


def keep_tokens(original: Any) -> Any:
    """The bearers of a removed token keep their connections."""
    return lambda tokens: None


def keep_old_rules(original: Any) -> Any:
    """A removal of ACLs is not seen."""

    def apply_image(authorization: Authorization, image: Image) -> None:
        if len(image.acls) > len(authorization._acls):
            original(authorization, image)

    return apply_image


def keep_old_quotas(original: Any) -> Any:
    """A removed quota stays in force."""

    def apply_image(quotas: ClientQuotas, image: Image) -> None:
        if len(image.quotas) >= len(quotas._quotas):
            original(quotas, image)

    return apply_image


def miss_new_quotas(original: Any) -> Any:
    """No quota comes into force."""
    return lambda quotas, image: None


BUGS = [
    (Broker, "_announce_logins", keep_connections, 1, "I29"),
    (DelegationTokens, "on_image", keep_tokens, 1, "I29"),
    (Authorization, "apply_image", keep_old_rules, 1, "I29"),
    (ClientQuotas, "apply_image", keep_old_quotas, 2, "I28"),
    (ClientQuotas, "apply_image", miss_new_quotas, 2, "I28"),
]
"""Each with a seed that finds it, and the rule that it breaks."""


@pytest.mark.parametrize("bug", BUGS, ids=[make.__name__ for _, _, make, _, _ in BUGS])
def test_i29_rules_that_stay_in_force_too_long_are_reported(bug: tuple[type[Any], str, Any, int, str]) -> None:
    owner, name, make, seed, rule = bug
    with patched(owner, name, make), pytest.raises(BrokenRules) as broken:
        run_with_changing_rules(seed)
    assert set(broken.value.rules) == {rule}
