"""The two brokers that every assertion runs against: ours as users start it, and Apache Kafka.

Clients reach each of them without a login, or over SASL_SSL as a user.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.compat.login import LISTENER, MECHANISM, SCRAM_MODULE, TOKEN, Login, make_login, secure_settings
from tests.e2e.serving import ServeProcess
from tests.peer.kafka import Peer
from tests.ports import free_port
from tests.token_server import TokenServer

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "log.cleaner.backoff.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "log.segment.bytes": "4194304",
    "num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""Settings of both brokers with short timeouts: a dead member is removed after a second or two."""

THEIRS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Settings of Kafka alone: ours sleeps until the next deadline of a transaction."""

KAFKAS_LOGIN = f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config"
"""Setting of Kafka alone: it wants a login module also for SCRAM."""

TOKEN_CLASSES = "org.apache.kafka.common.security.oauthbearer"

OURS = {
    "log.retention.check.interval.ms": "500",
    "remote.log.manager.task.interval.ms": "500",
    "tiered.internal.configs.enable": "true",
    "tiered.object.delete.delay.ms": "5000",
}
"""Settings of ours with small segments: they are uploaded, and local copies go, during a test."""


def ours_for_tokens(tokens: TokenServer) -> dict[str, str]:
    """Returns the settings of ours alone for tokens."""
    return {
        "sasl.oauthbearer.jwks.endpoint.url": tokens.keys_url,
        "tiered.sasl.oauthbearer.allowed.urls": tokens.keys_url,
    }


def theirs_for_tokens(tokens: TokenServer) -> dict[str, str]:
    """Returns the settings of Kafka alone for tokens. The URL is allowed by a property of its JVM."""
    prefix = f"listener.name.{LISTENER.lower()}.{TOKEN.lower()}"
    return {
        f"{prefix}.sasl.jaas.config": f"{TOKEN_CLASSES}.OAuthBearerLoginModule required;",
        f"{prefix}.sasl.server.callback.handler.class": f"{TOKEN_CLASSES}.OAuthBearerValidatorCallbackHandler",
        f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": tokens.keys_url,
    }


class CompatBroker(Protocol):
    """The interface of a broker in a test."""

    name: str
    address: str
    """The listener of the clients."""
    plain_address: str
    """The listener without a login."""
    login: Login | None
    """The user of the clients; None without a login."""

    @property
    def reach(self) -> list[str]:
        """Returns the arguments of Kafka's tools that say how the broker is reached."""

    @property
    def logs(self) -> Path:
        """Returns the directory of its partitions."""

    def crash(self) -> None:
        """Sends SIGKILL and starts the broker again on the same directory and port."""


def _reach(address: str, login: Login | None, directory: Path) -> list[str]:
    if login is None:
        return ["--bootstrap-server", address]
    return ["--bootstrap-server", address, "--command-config", str(login.write_properties(directory / "client"))]


class TieredBroker:
    """`tiered serve` on a directory with a directory as its bucket."""

    name = "ours"

    def __init__(self, directory: Path, login: Login | None, tokens: TokenServer | None = None) -> None:
        self.directory = directory
        self.login = login
        self.plain_address = self.address = f"127.0.0.1:{free_port()}"
        settings = QUICK | OURS
        self._arguments = ["--kafka", self.address]
        if login is not None:
            self.address = f"127.0.0.1:{free_port()}"
            settings |= secure_settings(self.plain_address, self.address, login, tokens)
            settings |= {} if tokens is None else ours_for_tokens(tokens)
            self._arguments = ["--add-scram", login.scram]
        self._arguments += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.served = self._start()

    def _start(self) -> ServeProcess:
        store = f"file://{self.directory / 'bucket'}"
        return ServeProcess(self.directory / "data", "--store", store, *self._arguments)

    @property
    def reach(self) -> list[str]:
        return _reach(self.address, self.login, self.directory)

    @property
    def logs(self) -> Path:
        return self.directory / "data" / "log"

    def crash(self) -> None:
        self.served.stop(signal.SIGKILL)
        self.served = self._start()

    def close(self) -> None:
        self.served.stop()


class ApacheKafka:
    """Kafka's newest release."""

    name = "peer"

    def __init__(self, directory: Path, login: Login | None, tokens: TokenServer | None = None) -> None:
        self.login = login
        self._directory = directory
        plain, secure = free_port(), f"127.0.0.1:{free_port()}"
        self.plain_address = f"127.0.0.1:{plain}"
        settings = QUICK | THEIRS
        if login is not None:
            settings |= secure_settings(self.plain_address, secure, login, tokens)
            settings |= {KAFKAS_LOGIN: f"{SCRAM_MODULE} required;"} | (theirs_for_tokens(tokens) if tokens else {})
        allowed = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys_url}"] if tokens else []
        self.peer = Peer(settings, port=plain, users=() if login is None else (login.scram,), jvm=allowed)
        try:
            self.peer.start()
        except BaseException:
            self.peer.close()
            raise
        self.address = self.plain_address if login is None else secure

    @property
    def reach(self) -> list[str]:
        return _reach(self.address, self.login, self._directory)

    @property
    def logs(self) -> Path:
        return self.peer.logs

    def crash(self) -> None:
        self.peer.stop(signal.SIGKILL)
        self.peer.start()

    def close(self) -> None:
        self.peer.close()


@contextmanager
def run_broker(
    name: str, *, secure: bool = False, again_ms: int = 0, tokens: TokenServer | None = None
) -> Iterator[CompatBroker]:
    """Yields one of the two, new; removes it at the end. If `secure`, its clients log in over SASL_SSL, and again after
    `again_ms`; 0 for never. With a token server they may log in by PLAIN and by token, too."""
    directory = Path(tempfile.mkdtemp(prefix="tiered-compat-"))
    try:
        login = make_login(directory, again_ms) if secure else None
        broker = (ApacheKafka if name == "peer" else TieredBroker)(directory, login, tokens)
        try:
            yield broker
        finally:
            broker.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
