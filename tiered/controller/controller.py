"""The controller as a shard: decides requests about topics, settings, brokers and leaders, and applies their changes.

`image` is ahead of the log by the changes that are decided and not yet committed. Brokers act on committed images only
(M5). A request that is granted changes the image only by its changes, which stand in the log (I24). Every election
raises the leader epoch, and no leader epoch is used twice (I8). The decisions themselves are in the files of their
subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tiered.config.settings import Settings
from tiered.controller import (
    acls,
    broker_secrets,
    brokers,
    client_quotas,
    delegation_tokens,
    features,
    group_configs,
    leaders,
    reassignment,
    requests,
    scram_credentials,
)
from tiered.controller.decision import ControllerResult
from tiered.controller.quorum import describe_quorum
from tiered.controller.requests import Request
from tiered.controller.topics import Topics
from tiered.errors import Refused
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import Change
from tiered.metadata.image import Image

PRODUCER_IDS = 1_000
"""Producer ids in a block, as in Kafka: a broker serves that many producers with one request to the controller."""


class Controller:
    """The controller shard. `settings` are the defaults; `draw_id` returns a new topic id on each call."""

    def __init__(self, image: Image, settings: Settings, draw_id: Callable[[], TopicId]) -> None:
        self.image = image
        self._settings = settings
        self._draw_id = draw_id
        self._decided: tuple[Image, ControllerResult[Any]] | None = None
        """The last decision, and the image that it was made from."""

    def apply(self, changes: Sequence[Change], slot: int | None = None) -> None:
        """Applies changes. If these are the changes of the last decision, and it has the image after them, takes that
        image."""
        decided, self._decided = self._decided, None
        if decided is not None and slot is None:
            before, decision = decided
            if decision.after is not None and decision.changes is changes and before is self.image:
                self.image = decision.after
                return
        self.image = self.image.apply(changes, slot)

    def decide(self, request: Request, now_ms: int) -> ControllerResult[Any]:
        """Returns the changes and the reply for a request. Raises `Refused` if it cannot be granted.

        The docstring of each request names the type of its reply.
        """
        decision = self._decide(request, now_ms)
        self._decided = self.image, decision
        return decision

    def _decide(self, request: Request, now_ms: int) -> ControllerResult[Any]:
        image, settings = self.image, self._settings
        match request:
            case requests.AlterBrokerConfigs():
                return brokers.alter_configs(image, settings, request, now_ms)
            case requests.AlterGroupConfigs():
                return group_configs.alter_configs(image, settings, request)
            case requests.RegisterBroker():
                return brokers.register(image, settings, request, now_ms)
            case requests.AnnounceBroker():
                return brokers.announce(image, request, now_ms)
            case requests.NameDirectory():
                known = image.check_incarnation(request.node_id, request.incarnation)
                return brokers.update_registration(image, replace(known, directory=request.directory), now_ms)
            case requests.StopBroker():
                return leaders.stop_broker(image, settings, request, now_ms)
            case requests.UnregisterBroker():
                return brokers.unregister(image, request)
            case requests.FenceBroker():
                return leaders.fence_broker(image, settings, request, now_ms)
            case requests.UnfenceBroker():
                return leaders.unfence_broker(image, settings, request, now_ms)
            case requests.HandOver():
                return leaders.hand_over_leaders(image, settings, request, now_ms)
            case requests.ReportDisk():
                return leaders.report_disk(image, settings, request, now_ms)
            case requests.LeavePartitions():
                return leaders.leave_partitions(image, settings, request, now_ms)
            case requests.AlterPartitions():
                return leaders.alter_isrs(image, settings, request, now_ms)
            case requests.ElectLeaders():
                return leaders.elect_leaders(image, settings, request, now_ms)
            case requests.Reassign():
                return reassignment.reassign(image, settings, request, now_ms)
            case requests.ReportLoss():
                return leaders.report_loss(image, request, now_ms)
            case requests.AcknowledgeLosses():
                return leaders.acknowledge_losses(image, request, now_ms)
            case requests.NoteStoredEnds():
                return leaders.note_stored_ends(image, settings, request, now_ms)
            case requests.ReportEnds():
                return leaders.report_ends(image, settings, request, now_ms)
            case requests.AllocateProducerIds():
                block = kinds.ProducerIdsAllocated(request.node_id, image.next_producer_id, PRODUCER_IDS)
                return ControllerResult((block,), block)
            case requests.UpdateFeatures():
                return features.update_features(image, request)
            case requests.CreateAcls():
                return acls.create_acls(image, settings, request)
            case requests.DeleteAcls():
                return acls.delete_acls(image, request)
            case requests.AlterScramCredentials():
                return scram_credentials.alter_credentials(image, request)
            case requests.AlterClientQuotas():
                return client_quotas.alter_quotas(image, request)
            case requests.RotateBrokerSecret():
                return broker_secrets.rotate_secret(image, request)
            case requests.CreateDelegationToken():
                return delegation_tokens.create_token(image, settings, request, self._draw_id(), now_ms)
            case requests.RenewDelegationToken():
                return delegation_tokens.renew_token(image, settings, request, now_ms)
            case requests.ExpireDelegationToken():
                return delegation_tokens.expire_token(image, request, now_ms)
            case requests.RemoveExpiredTokens():
                return delegation_tokens.remove_expired(image, now_ms)
            case requests.DescribeQuorum():
                return ControllerResult((), describe_quorum(image, now_ms))
            case _:
                return self._decide_topic_request(request, now_ms)

    def _decide_topic_request(
        self,
        request: requests.CreateTopic
        | requests.CreateTopics
        | requests.DeleteTopic
        | requests.ForgetTopic
        | requests.CreatePartitions
        | requests.AlterTopicConfigs,
        now_ms: int,
    ) -> ControllerResult[Any]:
        topics = Topics(self.image, self._settings, self._draw_id)
        match request:
            case requests.CreateTopic():
                decision = topics.create((request,), now_ms)
                if isinstance(decision.reply[0], Refused):
                    raise decision.reply[0]
                return ControllerResult(decision.changes, decision.reply[0], decision.after)
            case requests.CreateTopics():
                return topics.create(request.topics, now_ms)
            case requests.DeleteTopic():
                return topics.delete(request, now_ms)
            case requests.ForgetTopic():
                return topics.forget(request.topic_id)
            case requests.CreatePartitions():
                return topics.add_partitions(request)
            case requests.AlterTopicConfigs():
                return topics.alter_configs(request, now_ms)
