"""A request that one broker forwards to another arrives unchanged, or is refused."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.controller import requests
from tiered.controller.request_codec import decode_reply, decode_request, encode_reply, encode_request
from tiered.controller.requests import Request
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import TopicId
from tiered.metadata.changes import (
    AclAdded,
    AclRemoved,
    DelegationTokenSet,
    ListEdit,
    ProducerIdsAllocated,
    ScramCredentialSet,
)
from tiered.metadata.parts.topics import DeletedTopic, End, Loss, PartitionImage, TopicImage

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBER = st.integers(-(2**63), 2**63 - 1)
IDS = TEXT.map(TopicId)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=3).map(tuple)


EDITS = st.dictionaries(TEXT, st.none() | TEXT | st.builds(ListEdit, tuples(TEXT), tuples(TEXT)), max_size=3)
CREATION = st.builds(
    requests.CreateTopic,
    TEXT,
    NUMBER,
    NUMBER,
    st.none() | tuples(tuples(NUMBER)),
    st.dictionaries(TEXT, TEXT),
    st.booleans(),
    TEXT,
)
ENDS = tuples(st.builds(requests.ReplicaEnd, IDS, NUMBER, NUMBER, NUMBER))
ISR = tuples(st.builds(requests.InSync, NUMBER, NUMBER))
ISR_CHANGES = tuples(st.builds(requests.IsrChange, IDS, NUMBER, NUMBER, NUMBER, ISR))
MOVES = tuples(st.builds(requests.Move, IDS, NUMBER, st.none() | tuples(NUMBER)))
SAID_WITH: dict[type[Any], st.SearchStrategy[Any]] = {
    requests.CreateTopic: CREATION,
    requests.CreateTopics: st.builds(requests.CreateTopics, tuples(CREATION)),
    requests.DeleteTopic: st.builds(requests.DeleteTopic, TEXT, st.none() | IDS),
    requests.CreatePartitions: st.builds(
        requests.CreatePartitions, TEXT, NUMBER, st.booleans(), st.none() | tuples(tuples(NUMBER))
    ),
    requests.AlterTopicConfigs: st.builds(requests.AlterTopicConfigs, TEXT, EDITS, st.booleans(), st.booleans()),
    requests.AlterBrokerConfigs: st.builds(requests.AlterBrokerConfigs, NUMBER, EDITS, st.booleans(), st.booleans()),
    requests.AlterGroupConfigs: st.builds(requests.AlterGroupConfigs, TEXT, EDITS, st.booleans(), st.booleans()),
    requests.RegisterBroker: st.builds(
        requests.RegisterBroker, NUMBER, TEXT, TEXT, TEXT, TEXT, st.booleans(), st.dictionaries(TEXT, TEXT), ENDS,
        replaces=st.none() | TEXT, metadata_version=NUMBER, process=NUMBER,
        adopted=tuples(st.builds(requests.AdoptedReplicas, NUMBER, TEXT, TEXT, tuples(st.tuples(IDS, NUMBER)))),
    ),
    requests.FenceBroker: st.builds(requests.FenceBroker, NUMBER, TEXT, tuples(st.tuples(NUMBER, TEXT))),
    requests.AnnounceBroker: st.builds(
        requests.AnnounceBroker, NUMBER, TEXT, TEXT, st.dictionaries(TEXT, TEXT), TEXT
    ),
    requests.UpdateFeatures: st.builds(
        requests.UpdateFeatures, tuples(st.builds(requests.FeatureUpdate, TEXT, NUMBER, st.booleans())), st.booleans()
    ),
    requests.AlterScramCredentials: st.builds(
        requests.AlterScramCredentials, tuples(st.builds(requests.ScramDeletion, TEXT, TEXT)),
        tuples(st.builds(ScramCredentialSet, TEXT, TEXT, TEXT, TEXT, TEXT, NUMBER)), st.booleans()
    ),
    requests.AlterClientQuotas: st.builds(
        requests.AlterClientQuotas,
        tuples(
            st.builds(
                requests.QuotaAlteration, tuples(st.tuples(TEXT, st.none() | TEXT)),
                tuples(st.tuples(TEXT, st.none() | st.floats(allow_nan=False, allow_infinity=False))),
            )
        ), st.booleans()
    ),
    requests.AlterPartitions: st.builds(requests.AlterPartitions, NUMBER, TEXT, ISR_CHANGES),
    requests.ElectLeaders: st.builds(
        requests.ElectLeaders, st.booleans(), st.none() | tuples(st.tuples(IDS, NUMBER))
    ),
    requests.ReportEnds: st.builds(
        requests.ReportEnds, NUMBER, TEXT, tuples(st.builds(requests.AwaitedEnd, IDS, NUMBER, NUMBER, NUMBER, NUMBER))
    ),
    requests.LeavePartitions: st.builds(requests.LeavePartitions, NUMBER, TEXT, tuples(st.tuples(IDS, NUMBER))),
    requests.Reassign: st.builds(requests.Reassign, MOVES, st.booleans()),
    requests.AcknowledgeLosses: st.builds(requests.AcknowledgeLosses, tuples(st.tuples(IDS, NUMBER, NUMBER))),
    requests.NoteStoredEnds: st.builds(
        requests.NoteStoredEnds, NUMBER, TEXT, tuples(st.builds(requests.StoredEnd, IDS, NUMBER, NUMBER, NUMBER))
    ),
    requests.CreateDelegationToken: st.builds(
        requests.CreateDelegationToken, TEXT, TEXT, tuples(TEXT), NUMBER
    ),
    requests.CreateAcls: st.builds(requests.CreateAcls, tuples(st.builds(AclAdded, *[TEXT] * 7))),
    requests.DeleteAcls: st.builds(
        requests.DeleteAcls,
        tuples(st.builds(requests.AclChoice, TEXT, TEXT, *[st.none() | TEXT] * 3, TEXT, TEXT)),
    ),
}  # fmt: skip
"""Requests with other fields than texts and numbers."""

NUMBERS = tuples(NUMBER)
PARTITION = st.builds(
    PartitionImage, NUMBERS, NUMBER, NUMBER, NUMBERS, NUMBERS, st.none() | st.builds(Loss, *[NUMBER] * 4),
    NUMBER, NUMBERS, tuples(st.builds(End, NUMBER, NUMBER, NUMBER)), NUMBERS, NUMBERS, NUMBER,
)  # fmt: skip
TOPIC = st.builds(
    TopicImage, TEXT, IDS, tuples(PARTITION), st.dictionaries(TEXT, TEXT, max_size=3), NUMBER, NUMBER, TEXT
)
CODE = st.sampled_from(Code)
REPLY = st.one_of(
    TOPIC,
    st.builds(DeletedTopic, TEXT, IDS, NUMBER, NUMBER),
    st.dictionaries(TEXT | st.just("kind"), TEXT),
    st.none(),
    NUMBER,
    st.builds(ProducerIdsAllocated, NUMBER, NUMBER, NUMBER),
    st.builds(DelegationTokenSet, TEXT, TEXT, TEXT, tuples(TEXT), NUMBER, NUMBER, NUMBER),
    tuples(tuples(st.builds(AclRemoved, *[TEXT] * 7))),
    tuples(CODE),
    tuples(st.tuples(IDS, NUMBER, CODE)),
    tuples(TOPIC),
)


@pytest.mark.parametrize("kind", get_args(Request), ids=lambda kind: kind.__name__)
def test_every_request_decodes_to_what_was_encoded(kind: type[Any]) -> None:
    plain = {name: NUMBER if hint is int else TEXT for name, hint in get_type_hints(kind).items()}

    @given(SAID_WITH[kind] if kind in SAID_WITH else st.builds(kind, **plain))
    def arrives(request: Any) -> None:
        assert decode_request(encode_request(request)) == request

    arrives()


@given(REPLY)
def test_every_reply_decodes_to_what_was_encoded(reply: Any) -> None:
    found = decode_reply(encode_reply(reply))
    assert found == reply
    assert type(found) is type(reply)


def test_isr_change_keeps_its_old_name_between_brokers() -> None:
    request = requests.AlterPartitions(1, "i", (requests.IsrChange(TopicId("t"), 0, 1, 2, (requests.InSync(1, 3),)),))
    body = (
        b'{"kind":"AlterPartitions","node_id":1,"incarnation":"i","wishes":[{"kind":"IsrWish","topic_id":"t",'
        b'"partition":0,"leader_epoch":1,"partition_epoch":2,"isr":[{"kind":"InSync","node_id":1,"incarnation":3}]}]}'
    )
    assert (encode_request(request), decode_request(body)) == (body, request)


def test_refusal_among_replies_keeps_its_code_and_text() -> None:
    (found,) = decode_reply(encode_reply((Refused(Code.INVALID_CONFIG, "no"),)))
    assert isinstance(found, Refused) and (found.code, found.why) == (Code.INVALID_CONFIG, "no")


def test_lists_arrive_as_tuples() -> None:
    request = requests.CreateTopic("t", assignments=[[1, 2], [2, 1]])
    assert decode_request(encode_request(request)) == requests.CreateTopic("t", assignments=((1, 2), (2, 1)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"1.5",
        b'{"kind": "Nobody"}',
        b'{"kind": 5}',
        b'{"kind": ["ForgetTopic"]}',
        b'{"kind": "ForgetTopic"}',
        b'{"kind": "ForgetTopic", "topic_id": "x", "more": 1}',
        b'{"kind": "ForgetTopic", "topic_id": 5}',
        b'{"kind": "AllocateProducerIds", "node_id": true}',
        b'{"kind": "AllocateProducerIds", "node_id": "1"}',
        b'{"kind": "AllocateProducerIds", "node_id": 1.0}',
        b'{"kind": "AllocateProducerIds", "node_id": 18446744073709551616}',
        b'{"kind": "ListEdit", "added": [], "removed": []}',
        b'{"kind": "AnnounceBroker", "node_id": 1, "incarnation": "i", "http": "", "listeners": {"a": "b"}}',
        b'{"kind": "AnnounceBroker", "node_id": 1, "incarnation": "i", "http": "", "listeners": []}',
        b'{"kind": "AlterPartitions", "node_id": 1, "incarnation": "i", "wishes": [[]]}',
        b'{"kind": "ElectLeaders", "preferred": true, "partitions": [["t", 1, 2]]}',
        b'{"kind": "Code", "of": "NO_SUCH"}',
        b'{"kind": "map", "of": {}, "more": 1}',
        b"[" * 900 + b"]" * 900,
        b'{"kind": "map", "of": {"a": ' * 300 + b"1" + b"}}" * 300,
    ],
)
def test_invalid_request_is_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_request(body)


def test_invalid_reply_is_refused() -> None:
    good = encode_reply(TopicImage("t", TopicId("x"), (PartitionImage((1,), ends=(End(1, 2, 3),)),), {}, 0))
    data = orjson.loads(good)
    data["partitions"][0]["isr"] = [None]
    several: list[Any] = [data, [{"kind": "Refused", "code": "NONE"}], {"kind": "Loss", "at_ms": 1}]
    for bad in several:
        with pytest.raises(Corrupt):
            decode_reply(orjson.dumps(bad))


def test_type_that_brokers_never_send_is_an_error() -> None:
    with pytest.raises(TypeError):
        encode_reply(NoneType)
