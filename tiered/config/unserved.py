"""Kafka 4.2's settings of brokers that are none here: known by name, and without effect.

Kafka changes some of them while a broker runs. Such a change is accepted, kept and shown here as there, so that scripts
and tools end well. A value on which safety would depend is refused with the reason, because it would not hold. Kafka
reads all others at start only, and refuses a change.
"""

from __future__ import annotations

from tiered.config.setting import SettingRow, Value

SENTENCE = "Kafka's setting; it has no effect here."
PER_BROKER = ("sasl.", "ssl.", "principal.builder.class")
"""Beginnings of the names that Kafka changes for one broker only, and not for all at once."""
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_BUILDER = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"


def _row(
    name: str, default: Value, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> SettingRow:
    return SettingRow(name, default, SENTENCE, low, high, choices, dynamic=True)


CHANGEABLE = {
    row.name: row
    for row in (
        _row("background.threads", 10, 1, _INT_MAX),
        _row("config.providers", (), choices=("",)),
        _row("metric.reporters", (_REPORTER,), choices=(_REPORTER,)),
        _row("num.io.threads", 8, 1, _INT_MAX),
        _row("num.network.threads", 3, 1, _INT_MAX),
        _row("num.recovery.threads.per.data.dir", 2, 1, _INT_MAX),
        _row("num.replica.fetchers", 1, 1, _INT_MAX),
        _row("principal.builder.class", _BUILDER, choices=(_BUILDER,)),
        _row("remote.log.index.file.cache.total.size.bytes", 1 << 30, 1, _LONG_MAX),
        _row("remote.log.manager.expiration.thread.pool.size", 10, 1, _INT_MAX),
        _row("remote.log.manager.follower.thread.pool.size", 2, 1, _INT_MAX),
        _row("remote.log.reader.threads", 10, 1, _INT_MAX),
        _row("sasl.kerberos.kinit.cmd", "/usr/bin/kinit"),
        _row("sasl.kerberos.min.time.before.relogin", 60_000, -_LONG_MAX - 1, _LONG_MAX),
        _row("sasl.kerberos.principal.to.local.rules", ("DEFAULT",)),
        _row("sasl.kerberos.service.name", ""),
        _row("sasl.kerberos.ticket.renew.jitter", 0.05, -_LONG_MAX, _LONG_MAX),
        _row("sasl.kerberos.ticket.renew.window.factor", 0.8, -_LONG_MAX, _LONG_MAX),
        _row("sasl.login.refresh.buffer.seconds", 300, 0, 3600),
        _row("sasl.login.refresh.min.period.seconds", 60, 0, 900),
        _row("sasl.login.refresh.window.factor", 0.8, 0.5, 1.0),
        _row("sasl.login.refresh.window.jitter", 0.05, 0.0, 0.25),
        _row("sasl.mechanism.inter.broker.protocol", "GSSAPI", choices=("GSSAPI",)),
        _row("ssl.engine.factory.class", "", choices=("",)),
        _row("ssl.keymanager.algorithm", "SunX509", choices=("SunX509",)),
        _row("ssl.protocol", "TLSv1.3", choices=("TLSv1.3",)),
        _row("ssl.provider", "", choices=("",)),
        _row("ssl.secure.random.implementation", "", choices=("",)),
        _row("ssl.trustmanager.algorithm", "PKIX", choices=("PKIX",)),
    )
}
"""Settings that Kafka changes while a broker runs. Those with one choice can only be set to their default."""

_READ_AT_START = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
client.quota.callback.class controlled.shutdown.enable controller.quorum.append.linger.ms
controller.quorum.auto.join.enable controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
controller.quorum.retry.backoff.ms controller.quorum.voters controller.socket.timeout.ms create.topic.policy.class.name
delete.records.purgatory.purge.interval.requests early.start.listeners fetch.purgatory.purge.interval.requests
group.consumer.assignors
group.coordinator.append.linger.ms group.coordinator.rebalance.protocols group.coordinator.threads group.share.assignors
group.share.delivery.count.limit group.share.heartbeat.interval.ms group.share.max.heartbeat.interval.ms
group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
group.share.max.size group.share.min.heartbeat.interval.ms group.share.min.record.lock.duration.ms
group.share.min.session.timeout.ms group.share.partition.max.record.locks group.share.record.lock.duration.ms
group.share.session.timeout.ms group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
group.streams.max.standby.replicas group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
group.streams.num.standby.replicas group.streams.session.timeout.ms initial.broker.registration.timeout.ms
kafka.metrics.polling.interval.secs kafka.metrics.reporters log.dir.failure.timeout.ms
log.flush.start.offset.checkpoint.interval.ms max.incremental.fetch.session.cache.slots max.request.partition.size.limit
metadata.log.dir metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes
metadata.max.retention.ms metrics.num.samples metrics.recording.level metrics.sample.window.ms
num.replica.alter.log.dirs.threads offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec
process.roles producer.purgatory.purge.interval.requests remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.thread.pool.size
remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name remote.log.storage.manager.class.path
remote.log.storage.manager.impl.prefix replica.fetch.backoff.ms replica.fetch.min.bytes
replica.high.watermark.checkpoint.interval.ms replica.socket.receive.buffer.bytes replica.socket.timeout.ms
replication.quota.window.num replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwt.retriever.class
sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name
sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class sasl.server.max.receive.size security.providers
share.coordinator.append.linger.ms share.coordinator.load.buffer.size
share.coordinator.state.topic.compression.codec
share.coordinator.threads
share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms socket.listen.backlog.size socket.receive.buffer.bytes socket.send.buffer.bytes
ssl.allow.dn.changes ssl.allow.san.changes telemetry.max.bytes
transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
transaction.two.phase.commit.enable
"""
READ_AT_START = frozenset(_READ_AT_START.split())
"""Settings that Kafka reads when a broker starts."""

ONLY_OF_LISTENERS = "sasl.jaas.config"
"""Kafka keeps this password for all listeners. Here each listener has its own: no other would be used."""


def is_of_one_broker(name: str) -> bool:
    """True for a setting of Kafka that cannot be set for all brokers at once."""
    return name in CHANGEABLE and name.startswith(PER_BROKER)


def is_known_to_kafka(name: str) -> bool:
    """True for a setting of Kafka's brokers that is none here."""
    return name in CHANGEABLE or name in READ_AT_START or name == ONLY_OF_LISTENERS
