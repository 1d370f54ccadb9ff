"""Decisions about client quotas: Kafka's refusals, entity by entity, and the limits of ours."""

from __future__ import annotations

import pytest

from tiered.controller import client_quotas
from tiered.controller.client_quotas import alter_quotas
from tiered.controller.requests import AlterClientQuotas, QuotaAlteration
from tiered.errors import Code
from tiered.metadata.changes import ClientQuotaRemoved, ClientQuotaSet
from tiered.metadata.image import Image
from tiered.quotas.entity import QuotaEntity

ALICE: QuotaEntity = (("user", "alice"),)
APP: QuotaEntity = (("client-id", "app"), ("user", "alice"))
RATE = "producer_byte_rate"
IMAGE = Image().apply([ClientQuotaSet(ALICE, RATE, 1024.0)])


def alter(*alterations: QuotaAlteration, image: Image = IMAGE, validate_only: bool = False) -> tuple[object, ...]:
    """Returns the changes, then the code of each refusal."""
    decided = alter_quotas(image, AlterClientQuotas(alterations, validate_only))
    return decided.changes, [refused and refused.code for refused in decided.reply]


def test_quotas_are_set_and_removed_whatever_the_order_of_types() -> None:
    unsorted = QuotaAlteration((("user", "alice"), ("client-id", "app")), ((RATE, 5.0), ("request_percentage", 0.5)))
    removal = QuotaAlteration(ALICE, ((RATE, None), ("consumer_byte_rate", None)))
    assert alter(unsorted, removal) == (
        (
            ClientQuotaSet(APP, RATE, 5.0),
            ClientQuotaSet(APP, "request_percentage", 0.5),
            ClientQuotaRemoved(ALICE, RATE),
        ),
        [None, None],
    )


def test_quota_with_its_present_value_changes_nothing() -> None:
    assert alter(QuotaAlteration(ALICE, ((RATE, 1024.0),))) == ((), [None])


def test_request_that_only_validates_changes_nothing() -> None:
    bad = QuotaAlteration((), ((RATE, 1.0),))
    assert alter(QuotaAlteration(APP, ((RATE, 1.0),)), bad, validate_only=True) == ((), [None, Code.INVALID_REQUEST])


@pytest.mark.parametrize(
    "bad",
    [
        QuotaAlteration(APP, ((RATE, 1.0), ("unknown", 1.0))),
        QuotaAlteration(APP, ((RATE, 0.0),)),
        QuotaAlteration(APP, ((RATE, 1.0), (RATE, 2.0))),
        QuotaAlteration((("ip", "10.0.0.1"), ("user", "a")), (("connection_creation_rate", 1.0),)),
        QuotaAlteration(ALICE, ((RATE, 3.0),)),
    ],
    ids=["unknown key", "zero", "key twice", "combination", "entity twice"],
)
def test_refused_entity_changes_nothing_and_others_do(bad: QuotaAlteration) -> None:
    good = QuotaAlteration(ALICE, ((RATE, 2.0),))
    assert alter(good, bad) == ((ClientQuotaSet(ALICE, RATE, 2.0),), [None, Code.INVALID_REQUEST])


def test_number_of_entities_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "ENTITIES_MAX", 2)
    new = [QuotaAlteration((("user", name),), ((RATE, 1.0),)) for name in "ab"]
    assert alter(*new) == ((ClientQuotaSet((("user", "a"),), RATE, 1.0),), [None, Code.POLICY_VIOLATION])
    assert alter(QuotaAlteration(ALICE, ((RATE, 2.0),)))[1] == [None], "an entity that has quotas may get others"


def test_number_of_alterations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "ALTERATIONS_MAX", 1)
    changes, codes = alter(QuotaAlteration(ALICE, ()), QuotaAlteration(APP, ()))
    assert (changes, codes) == ((), [Code.POLICY_VIOLATION] * 2)
