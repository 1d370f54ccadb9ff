"""DescribeCluster (API key 60): the brokers, as Metadata lists them (KIP-700).

v1+ says whether the client means brokers or controllers (KIP-919): controllers have no listeners of their own here. v2+
can include fenced brokers (KIP-1073), except those without a known address. Tagged fields of our own, which Kafka's
clients skip, tell more: that a broker stopped by itself and cleanly, that its disk is full, where its HTTP is, and
since when it is fenced. On request they have the problems, figures, certificates and use of the bucket of the replying
broker, and the possible losses of the cluster.
"""

from __future__ import annotations

from tiered.broker.encryption import ListenerTls
from tiered.controller.partition_health import unacknowledged_losses
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ReportedCertificate,
    ReportedFigure,
    ReportedStorage,
    ReportedUsage,
)
from tiered_api.kafka.server.context.advertised_brokers import advertised_brokers, advertised_controller
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import CLUSTER_OPERATIONS
from tiered_api.kafka.server.handlers.tiered_acknowledge import encode_losses

BROKERS, CONTROLLERS = 1, 2


async def handle(context: KafkaContext, call: Call[DescribeClusterRequest]) -> DescribeClusterResponse:
    """Returns the cluster id, the controller and the brokers."""
    request, image = call.request, context.broker.image
    if request.endpoint_type == CONTROLLERS:
        why = "this address is one of brokers, not of controllers"
        return _make_refused_response(Code.MISMATCHED_ENDPOINT_TYPE, why)
    if request.endpoint_type != BROKERS:
        return _make_refused_response(
            Code.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {request.endpoint_type} is unknown"
        )
    scheme = context.broker.settings.http_scheme
    away = image.brokers if request.include_fenced_brokers else ()
    response = DescribeClusterResponse(
        cluster_id=context.broker.cluster_id,
        controller_id=advertised_controller(image),
        brokers=[
            DescribeClusterBroker(
                broker.node_id,
                host,
                port,
                broker.rack or None,
                not broker.live,
                not broker.alive,
                broker.is_disk_full,
                broker.process,
                broker.advertised_http or (f"{scheme}://{broker.http}" if broker.http else ""),
                context.broker.fenced_brokers.find_since_ms(broker.node_id),
            )
            for broker, host, port in advertised_brokers(image, call.listener, away)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if request.include_health:
        health, figures = context.broker.self_reports.read()
        since_ms = health.details["store_unreachable_since_ms"]
        response.problems = health.own_problems
        response.store_away_since_ms = -1 if since_ms is None else since_ms
        response.losses = encode_losses(unacknowledged_losses(image))
        response.figures = [ReportedFigure(*each) for each in figures]
        response.certificates = _encode_certificates(context.broker.tls)
    if request.usage_from_ms >= 0:
        usage = context.broker.store_usage
        if usage.is_kept:
            response.usage = [ReportedUsage(*each) for each in usage.list_verbs(request.usage_from_ms)]
            response.stored = [ReportedStorage(*each) for each in usage.list_stored(request.usage_from_ms)]
    return response


def _encode_certificates(tls: ListenerTls) -> list[ReportedCertificate]:
    return [
        ReportedCertificate(
            listener,
            found.subject,
            list(found.names),
            found.not_before_ms,
            found.not_after_ms,
            tls.judge(found),
            rejected or (distrusted and f"the trust store of the broker refuses it: {distrusted}"),
        )
        for listener, found, rejected, distrusted in tls.list_certificates()
    ]


def _make_refused_response(code: Code, why: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code.number, error_message=why)
