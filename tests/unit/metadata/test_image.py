"""Tests of the image: the effect of each change, immutability, and equality with its snapshot."""

from __future__ import annotations

import pytest

from tests.refusal import refuses
from tiered.errors import Code, Corrupt
from tiered.ids import PartitionId, TopicId
from tiered.metadata import changes as kinds
from tiered.metadata import image as images
from tiered.metadata import layout
from tiered.metadata.changes import ALL_BROKERS, Change, from_json, to_json
from tiered.metadata.image import Image
from tiered.metadata.layout import Boundary, Entry, Format, SnapshotRef
from tiered.metadata.parts import topics
from tiered.metadata.parts.acls import AclsImage
from tiered.metadata.parts.broker_secrets import BrokerSecretsImage
from tiered.metadata.parts.brokers import BrokerImage, BrokersImage
from tiered.metadata.parts.controllers import ControllersImage
from tiered.metadata.parts.delegation_tokens import DelegationTokensImage
from tiered.metadata.parts.features import FeaturesImage
from tiered.metadata.parts.groups import GroupConfigsImage
from tiered.metadata.parts.producer_ids import ProducerIdsImage
from tiered.metadata.parts.quotas import ClientQuotasImage
from tiered.metadata.parts.scram import ScramImage
from tiered.metadata.parts.topics import DeletedTopic, End, Loss, PartitionImage, TopicImage, TopicsImage
from tiered.object_store.envelope import seal
from tiered.security.acls import acl_from_texts
from tiered.security.broker_secrets import BrokerSecret
from tiered.security.delegation_tokens import DelegationToken
from tiered.security.scram import ScramCredential
from tiered.security.secret import Secret

FLIGHTS = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
ONE_OF_EACH: list[Change] = [
    kinds.ControllerElected(1, 7, "i1"),
    kinds.BrokerRegistered(7, "i1", "d1", "127.0.0.1:8082", "", 1000),
    kinds.TopicCreated("flights", FLIGHTS, ((7,), (7,)), {"retention.ms": "-1", "segment.bytes": "2097152"}, 1001),
    kinds.PartitionChanged(FLIGHTS, 0, 7, 0, (7,), ()),
    kinds.PartitionChanged(FLIGHTS, 1, 7, 0, (7,), ()),
    kinds.PartitionsAdded(FLIGHTS, ((7,),)),
    kinds.TopicConfigChanged(FLIGHTS, {"retention.ms": None, "segment.ms": "5"}),
    kinds.BrokerConfigChanged(ALL_BROKERS, {"log.segment.bytes": "4194304"}),
    kinds.PartitionChanged(FLIGHTS, 1, 7, 1, (7,), (), (7, 8), ((8, 0, 3),), (7, 8), (8,), (7,)),
    kinds.LossReported(FLIGHTS, 1, 1, 42, 1002),
    kinds.LossReported(FLIGHTS, 2, 0, 5, 1003),
    kinds.LossesAcknowledged(((FLIGHTS, 2, 0),), 1004),
    kinds.StoredEndsNoted(((FLIGHTS, 0, 30), (FLIGHTS, 1, 9), (FLIGHTS, 1, -1))),
    kinds.ProducerIdsAllocated(7, 0, 1000),
    kinds.BrokerFenced(7, "i1"),
    kinds.BrokerUnfenced(7, "other"),
    kinds.BrokerStopping(7, "other"),
    kinds.BrokerDiskReported(7, "i1", "full", 3, 1005),
    kinds.BrokerStopped(7, "i1"),
    kinds.BrokerUnregistered(7, "other"),
    kinds.FeatureLevelSet("transaction.version", 1),
    kinds.AclAdded("TOPIC", "PREFIXED", "fl", "User:alice", "*", "READ", "ALLOW"),
    kinds.AclAdded("GROUP", "LITERAL", "*", "User:*", "10.0.0.1", "ALL", "DENY"),
    kinds.AclRemoved("TOPIC", "PREFIXED", "fl", "User:alice", "*", "READ", "ALLOW"),
    kinds.ScramCredentialSet("alice", "SCRAM-SHA-256", "c2FsdA==", "c3RvcmVk", "c2VydmVy", 4096),
    kinds.ScramCredentialSet("alice", "SCRAM-SHA-512", "c2FsdA==", "c3RvcmVk", "c2VydmVy", 8192),
    kinds.ScramCredentialSet("bob", "SCRAM-SHA-256", "c2FsdA==", "c3RvcmVk", "c2VydmVy", 4096),
    kinds.ScramCredentialRemoved("alice", "SCRAM-SHA-256"),
    kinds.ScramCredentialRemoved("bob", "SCRAM-SHA-256"),
    kinds.ClientQuotaSet((("client-id", None), ("user", "alice")), "producer_byte_rate", 1024.0),
    kinds.ClientQuotaSet((("client-id", None), ("user", "alice")), "request_percentage", 12.5),
    kinds.ClientQuotaSet((("ip", "10.0.0.1"),), "connection_creation_rate", 5.0),
    kinds.ClientQuotaRemoved((("client-id", None), ("user", "alice")), "producer_byte_rate"),
    kinds.ClientQuotaRemoved((("ip", "10.0.0.1"),), "connection_creation_rate"),
    *(kinds.BrokerSecretSet(version, f"{version:032x}") for version in (1, 2, 3, 4)),
    kinds.DelegationTokenSet("t1", "User:alice", "User:bob", ("User:carol",), 1000, 3000, 2000),
    kinds.DelegationTokenSet("t2", "User:alice", "User:alice", (), 1000, 3000, 2000),
    kinds.DelegationTokenSet("t1", "User:alice", "User:bob", ("User:carol",), 1000, 3000, 2500),
    kinds.DelegationTokenRemoved("t2"),
    kinds.GroupConfigChanged("g", {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}),
    kinds.GroupConfigChanged("h", {"consumer.session.timeout.ms": "50000"}),
    kinds.GroupConfigChanged("g", {"consumer.session.timeout.ms": None}),
    kinds.GroupConfigChanged("h", {"consumer.session.timeout.ms": None}),
]


def test_every_change_has_its_effect_on_the_image() -> None:
    image = Image().apply(ONE_OF_EACH, 3)
    flights = TopicImage(
        "flights",
        FLIGHTS,
        (
            PartitionImage((7,), 7, 0, (7,), partition_epoch=1, stored_end=30),
            PartitionImage((7, 8), 7, 1, (7,), (), Loss(1, 42, 1002), 2, (7, 8), (End(8, 0, 3),), (8,), (7,)),
            PartitionImage((7,), loss=Loss(0, 5, 1003)),
        ),
        {"segment.bytes": "2097152", "segment.ms": "5"},
        1001,
    )
    assert image == Image(
        slot=3,
        controllers_image=ControllersImage(1, 7, "i1"),
        brokers_image=BrokersImage(
            brokers={
                7: BrokerImage(
                    7,
                    "i1",
                    "d1",
                    "127.0.0.1:8082",
                    "",
                    False,
                    1000,
                    fenced=True,
                    disk="full",
                    disk_since_ms=1005,
                    moved_leaders=3,
                )
            },
            configs={ALL_BROKERS: {"log.segment.bytes": "4194304"}},
        ),
        topics_image=TopicsImage(
            {"flights": flights},
            {FLIGHTS: flights},
            losses={PartitionId(FLIGHTS, 1): (Loss(1, 42, 1002),)},
        ),
        producer_ids_image=ProducerIdsImage(1000),
        features_image=FeaturesImage({"transaction.version": 1}, 1),
        acls_image=AclsImage(frozenset({acl_from_texts("GROUP", "LITERAL", "*", "User:*", "10.0.0.1", "ALL", "DENY")})),
        quotas_image=ClientQuotasImage({(("client-id", None), ("user", "alice")): {"request_percentage": 12.5}}),
        broker_secrets_image=BrokerSecretsImage(
            tuple(BrokerSecret(version, Secret(f"{version:032x}")) for version in (2, 3, 4))
        ),
        delegation_tokens_image=DelegationTokensImage(
            {"t1": DelegationToken("t1", "User:alice", "User:bob", ("User:carol",), 1000, 3000, 2500)}
        ),
        group_configs_image=GroupConfigsImage({"g": {"consumer.heartbeat.interval.ms": "6000"}}),
        scram_image=ScramImage({"alice": {"SCRAM-SHA-512": ScramCredential(b"salt", b"stored", b"server", 8192)}}),
    )
    assert (image.partition_count, image.replica_counts) == (3, {7: 3, 8: 1})


def test_changes_in_one_step_equal_changes_one_by_one() -> None:
    stepped = Image()
    for change in ONE_OF_EACH:
        stepped = stepped.apply([change], 3)
    assert stepped == Image().apply(ONE_OF_EACH, 3)


def image_with_losses(*losses: tuple[int, int], image: Image | None = None) -> Image:
    """Returns an image after losses of one partition, each as (leader epoch, from offset)."""
    image = image or Image().apply([kinds.TopicCreated("flights", FLIGHTS, ((7,),), {}, 0)])
    return image.apply([kinds.LossReported(FLIGHTS, 0, *each, 100 + each[0]) for each in losses])


def open_losses(image: Image) -> list[tuple[int, int]]:
    """Returns (leader epoch, from offset) of each loss that no operator acknowledged."""
    return [each[:2] for each in image.losses.get(PartitionId(FLIGHTS, 0), ())]


def test_loss_stays_until_it_is_acknowledged_or_its_topic_is_deleted() -> None:
    image = image_with_losses((1, 42), (3, 50))
    assert open_losses(image) == [(1, 42), (3, 50)]
    assert open_losses(image_with_losses((3, 40), image=image)) == [(1, 42), (3, 40)], "the same one, told again"
    first = image.apply([kinds.LossesAcknowledged(((FLIGHTS, 0, 1),), 9)])
    assert open_losses(first) == [(3, 50)], "what was told later was not seen"
    seen = first.apply([kinds.LossesAcknowledged(((FLIGHTS, 0, 3),), 9)])
    assert seen.losses == {} and seen.topics["flights"].partitions[0].loss == Loss(3, 50, 103)
    assert open_losses(image_with_losses((3, 60), image=seen)) == [], "less than was seen"
    assert open_losses(image_with_losses((3, 49), image=seen)) == [(3, 49)], "more than was seen"
    assert image.apply([kinds.TopicDeleted(FLIGHTS, 9)]).losses == {}


def test_no_loss_is_open_if_all_records_are_in_the_bucket() -> None:
    noted = Image().apply([kinds.TopicCreated("flights", FLIGHTS, ((7,),), {}, 0)])
    noted = noted.apply([kinds.StoredEndsNoted(((FLIGHTS, 0, 9),))])
    assert open_losses(image_with_losses((1, 0), image=noted)) == []
    assert open_losses(image_with_losses((1, 9), image=noted.apply([kinds.StoredEndsNoted(((FLIGHTS, 0, -1),))]))) == [
        (1, 9)
    ]


def test_oldest_of_many_losses_are_merged() -> None:
    image = image_with_losses(*((epoch, 100 - epoch) for epoch in range(1, topics.LOSSES_MAX + 2)))
    assert open_losses(image) == [(2, 98), (3, 97), (4, 96), (5, 95)]
    assert image.losses[PartitionId(FLIGHTS, 0)][0].at_ms == 101, "the time of the first"


def test_snapshot_from_before_acknowledged_losses_is_read() -> None:
    body = images.to_json(image_with_losses((1, 42)))
    assert images.from_json(body) == image_with_losses((1, 42))
    body = images.to_json(image_with_losses((1, 42)))
    del body["losses"], body["topics"][0]["partitions"][0]["stored_end"]
    old = images.from_json(body)
    assert (
        old.losses == {} and old.topics["flights"].partitions == image_with_losses((1, 42)).topics["flights"].partitions
    )


def test_typed_text_of_earlier_releases_is_shown_as_its_value() -> None:
    """The log and its snapshots keep what earlier releases wrote; nobody has to set the values again."""
    changes: list[Change] = [
        kinds.TopicCreated("t", FLIGHTS, ((7,),), {"retention.ms": " 5_000 ", "cleanup.policy": "compact,"}, 0),
        kinds.TopicConfigChanged(FLIGHTS, {"preallocate": "FALSE", "made.up": " 1 "}),
        kinds.BrokerConfigChanged(7, {"log.cleaner.threads": "+2", "listener.name.plaintext.max.connections": "+9"}),
    ]
    shown = {"retention.ms": "5000", "cleanup.policy": "compact", "preallocate": "false", "made.up": " 1 "}
    of_broker = {"log.cleaner.threads": "2", "listener.name.plaintext.max.connections": "9"}
    image = Image().apply(changes)
    body = images.to_json(image)
    body["topics"][0]["configs"] = {"retention.ms": " 5_000 ", "cleanup.policy": "compact,"}
    body["topics"][0]["configs"] |= {"preallocate": "FALSE", "made.up": " 1 "}
    body["broker_configs"][0]["configs"] = of_broker | {"log.cleaner.threads": "0_2"}
    for each in (image, images.from_json(body)):
        assert dict(each.topics["t"].configs) == shown and dict(each.broker_configs[7]) == of_broker


def test_image_is_immutable() -> None:
    before = Image().apply(ONE_OF_EACH, 3)
    copy = Image().apply(ONE_OF_EACH, 3)
    before.apply([kinds.TopicDeleted(FLIGHTS, 2000)], 4)
    assert before == copy


def test_deleted_topic_frees_its_name_and_waits_for_the_collector() -> None:
    image = Image().apply(ONE_OF_EACH, 3).apply([kinds.TopicDeleted(FLIGHTS, 2000)], 4)
    assert (image.topics, image.topics_by_id) == ({}, {})
    assert image.deleted_topics == {FLIGHTS: DeletedTopic("flights", FLIGHTS, 3, 2000)}
    assert image.apply([kinds.TopicForgotten(FLIGHTS)], 5).deleted_topics == {}


def test_stop_of_an_older_incarnation_leaves_the_newer_one() -> None:
    image = Image().apply([ONE_OF_EACH[1], kinds.BrokerStopped(7, "i0")])
    assert image.brokers[7].alive


def test_unregistered_broker_is_gone_with_its_settings() -> None:
    changes = [*ONE_OF_EACH, kinds.BrokerConfigChanged(7, {"cordoned.log.dirs": "*"})]
    before = Image().apply(changes, 3)
    after = before.apply([kinds.BrokerUnregistered(7, "i1")], 4)
    assert (after.brokers, after.broker_configs) == ({}, {ALL_BROKERS: {"log.segment.bytes": "4194304"}})
    assert after.apply([kinds.BrokerUnregistered(7, "i1")], 5).brokers == {}


@pytest.mark.parametrize(
    "change",
    [
        kinds.ControllerElected(1, 7, "i2"),
        kinds.TopicCreated("flights", TopicId("other"), ((7,),), {}, 0),
        kinds.TopicDeleted(TopicId("other"), 0),
        kinds.PartitionChanged(FLIGHTS, 3, 7, 0, (7,), ()),
        kinds.PartitionChanged(FLIGHTS, 1, 7, 0, (7,), ()),
        kinds.TopicConfigChanged(TopicId("other"), {}),
    ],
)
def test_change_that_does_not_fit_is_a_forked_log(change: Change) -> None:
    image = Image().apply(ONE_OF_EACH, 3)
    with pytest.raises(Corrupt):
        image.apply([change], 4)


@pytest.mark.parametrize("change", ONE_OF_EACH, ids=lambda change: type(change).__name__)
def test_every_change_decodes_to_what_was_encoded(change: Change) -> None:
    entry = Entry(9, 4, "n", (change,))
    assert layout.decode_entry(layout.encode_entry(entry), 9) == entry


def test_snapshot_has_the_bytes_of_earlier_versions() -> None:
    """The checksums are those from before the image had parts. A table of a later level is there once it is used."""
    earlier = [change for change in ONE_OF_EACH if not isinstance(change, kinds.GroupConfigChanged)]
    assert layout.encode_snapshot(Image())[8:16] == b"1d21fd8e"
    assert layout.encode_snapshot(Image().apply(earlier, 3))[8:16] == b"0d59b345"


def test_examples_have_every_kind_of_change() -> None:
    assert {type(change) for change in ONE_OF_EACH} | {kinds.TopicDeleted, kinds.TopicForgotten} == set(
        kinds.KINDS.values()
    )


def test_unknown_kind_or_field_is_refused() -> None:
    good = to_json(kinds.TopicForgotten(FLIGHTS))
    for bad in ({"kind": "topic_frozen"}, good | {"more": 1}, {"kind": "topic_forgotten"}, {}):
        with pytest.raises(Corrupt):
            from_json(bad)
    for newer, name in (({"kind": "topic_frozen"}, "'topic_frozen'"), (good | {"more": 1}, "more")):
        with pytest.raises(Corrupt, match=f"{name}.*a newer program wrote"):
            from_json(newer)


@pytest.mark.parametrize(("name", "level"), [("transaction.version", 3), ("share.version", 1)])
def test_level_that_is_not_served_is_refused(name: str, level: int) -> None:
    with pytest.raises(Corrupt, match=rf"the cluster has {name}={level}, .* a newer program wrote it"):
        Image().apply([kinds.FeatureLevelSet(name, level)])
    body = images.to_json(Image()) | {"features": {name: level}}
    with pytest.raises(Corrupt, match=f"{name}={level}"):
        layout.decode_snapshot(seal(body), "key")


def test_snapshot_with_a_table_that_is_unknown_is_refused() -> None:
    """A broker that skipped it would have another image than the rest, and write snapshots without it."""
    body = images.to_json(Image()) | {"share_groups": []}
    with pytest.raises(Corrupt, match=r"has share_groups.*a newer program wrote"):
        layout.decode_snapshot(seal(body), "key")


def test_snapshot_decodes_to_the_same_image() -> None:
    image = Image().apply(ONE_OF_EACH, 3)
    deleted = image.apply([kinds.TopicDeleted(FLIGHTS, 2000)], 4)
    for each in (Image(), image, deleted):
        assert layout.decode_snapshot(layout.encode_snapshot(each), "key") == each


def test_small_objects_decode_to_what_was_encoded() -> None:
    boundary = Boundary((SnapshotRef(4, "a"), SnapshotRef(9, "b")), 4, 2, "n")
    assert layout.decode_boundary(layout.encode_boundary(boundary)) == boundary
    found = Format(1, "cluster", "n")
    assert layout.decode_format(layout.encode_format(found)) == found


def test_flipped_bit_anywhere_is_corrupt() -> None:
    body = layout.encode_entry(Entry(9, 4, "n", tuple(ONE_OF_EACH[:2])))
    for at in range(len(body)):
        spoiled = bytearray(body)
        spoiled[at] ^= 1
        with pytest.raises(Corrupt):
            layout.decode_entry(bytes(spoiled), 9)


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 64, b'{"crc":"00000000","body":}'])
def test_bytes_that_are_no_object_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        layout.decode_boundary(data)


def test_entry_under_the_key_of_another_slot_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        layout.decode_entry(layout.encode_entry(Entry(9, 4, "n", ())), 8)


def test_epochs_never_decrease_along_the_log() -> None:
    with pytest.raises(Corrupt, match="epoch 1 after epoch 2"):
        layout.apply_entries(Image(), [Entry(0, 2, "a", ()), Entry(1, 1, "b", ())])


def test_boundary_keeps_two_snapshots_and_the_slots_after_the_older() -> None:
    first = Boundary().advance(SnapshotRef(10, "a"), "n1")
    second = first.advance(SnapshotRef(20, "b"), "n2")
    third = second.advance(SnapshotRef(30, "c"), "n3")
    assert (first.collected, second.collected, third.collected) == (-1, 10, 20)
    assert third == Boundary((SnapshotRef(20, "b"), SnapshotRef(30, "c")), 20, 3, "n3")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "topic_renamed"},
        {"kind": "topic_forgotten"},
        "topic_forgotten",
        None,
        {"kind": "topic_forgotten", "x": 1},
    ],
)
def test_change_of_another_shape_is_corrupt_and_names_its_object(change: object) -> None:
    data = seal({"slot": 7, "epoch": 1, "nonce": "n", "changes": [change]})
    with pytest.raises(Corrupt) as corrupt:
        layout.decode_entry(data, 7)
    assert corrupt.value.where == layout.slot_key(7)


@pytest.mark.parametrize("body", [{}, {"slot": 1}, {**images.to_json(Image()), "topics": [{"name": "t"}]}])
def test_snapshot_of_another_shape_is_corrupt_and_names_its_object(body: dict[str, object]) -> None:
    with pytest.raises(Corrupt) as corrupt:
        layout.decode_snapshot(seal(body), "meta/snap/x")
    assert corrupt.value.where == "meta/snap/x"


def test_error_of_a_change_that_does_not_fit_names_its_entries() -> None:
    entry = Entry(3, 1, "n", (kinds.TopicForgotten(TopicId("x")), kinds.TopicDeleted(TopicId("x"), 0)))
    with pytest.raises(Corrupt) as corrupt:
        layout.apply_entries(Image(), [entry])
    assert layout.slot_key(3) in corrupt.value.where


def test_newer_format_is_recognized_by_its_version_alone() -> None:
    assert layout.decode_format(seal({"version": 9, "uuid": "c"})).version == 9


def brokers_image() -> Image:
    """Returns four brokers: 1 live, 2 fenced, 3 about to stop, 4 stopped."""
    return Image().apply(
        [
            *(kinds.BrokerRegistered(node, f"i{node}", f"d{node}", "", f"r{node}", 1) for node in (1, 2, 3, 4)),
            kinds.BrokerFenced(2, "i2"),
            kinds.BrokerStopping(3, "i3"),
            kinds.BrokerStopped(4, "i4"),
        ]
    )


def test_brokers_that_stop_are_live_and_fenced_ones_are_not() -> None:
    image = brokers_image()
    assert [each.node_id for each in image.live_brokers()] == [1, 3] and image.live_ids() == {1, 3}
    assert image.stopping_ids() == {3}
    image = image.apply([kinds.BrokerUnfenced(2, "i2")])
    assert image.live_ids() == {1, 2, 3}


def test_cordoned_broker_takes_no_new_replicas_and_stays_live() -> None:
    image = brokers_image()
    assert image.placement_racks() == {1: "r1", 3: "r3"} and not image.is_cordoned(1)
    image = image.apply([kinds.BrokerConfigChanged(1, {"cordoned.log.dirs": "*"})])
    assert image.is_cordoned(1) and image.placement_racks() == {3: "r3"} and image.live_ids() == {1, 3}
    image = image.apply([kinds.BrokerConfigChanged(1, {"cordoned.log.dirs": ""})])
    assert image.placement_racks() == {1: "r1", 3: "r3"}


@pytest.mark.parametrize(("node", "incarnation"), [(1, "i0"), (5, "i5")])
def test_earlier_incarnation_is_refused(node: int, incarnation: str) -> None:
    image = brokers_image()
    assert image.check_incarnation(1, "i1") is image.brokers[1]
    with refuses(Code.STALE_BROKER_EPOCH):
        image.check_incarnation(node, incarnation)
