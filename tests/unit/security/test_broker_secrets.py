"""The secrets of brokers through a rotation: neighbours in it understand each other, and the old secret ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tiered.controller.broker_secrets import rotate_secret
from tiered.controller.requests import RotateBrokerSecret
from tiered.errors import Refused
from tiered.metadata.image import Image
from tiered.security import broker_login
from tiered.security.broker_secrets import KEPT, BrokerSecrets, choose_secrets
from tiered.security.scram import ScramMechanism, ScramServer

FIRST = b"f" * 16


def rotate(image: Image, times: int = 1) -> Image:
    """Returns the image after so many steps."""
    for _ in range(times):
        newest = image.broker_secrets[-1].version if image.broker_secrets else 0
        result = rotate_secret(image, RotateBrokerSecret(newest, f"{newest + 1:032x}"))
        assert result.reply == newest + 1
        image = image.apply(result.changes)
    return image


def log_in(sender: BrokerSecrets, receiver: BrokerSecrets) -> str:
    """Returns the user that a broker with these secrets is at another one."""
    server = ScramServer(
        ScramMechanism.SHA_256, lambda user: broker_login.find_credentials(receiver, user), "server", b"key"
    )
    client = broker_login.make_client(sender.proof, 3, "client")
    client.step(server.step(client.step(server.step(client.make_first()))))
    assert client.is_done
    return server.user


def test_brokers_one_step_apart_understand_each_other() -> None:
    images = [Image()]
    for _ in range(6):
        images.append(rotate(images[-1]))
    known = [choose_secrets(FIRST, image.broker_secrets) for image in images]
    steps = list(pairwise(known))
    for one, other in [*((each, each) for each in known), *steps, *((new, old) for old, new in steps)]:
        assert other.accepts(one.proof) and log_in(one, other) == "broker-3"
    assert [each.newest_version for each in known] == list(range(7))


def test_three_steps_end_the_secrets_from_before() -> None:
    for steps in range(4):
        before = rotate(Image(), steps)
        old = choose_secrets(FIRST, before.broker_secrets)
        new = choose_secrets(FIRST, rotate(before, KEPT).broker_secrets)
        assert not any(map(new.accepts, old.accepted))
        with pytest.raises(Refused):
            log_in(old, new)


def test_broker_without_a_secret_accepts_nobody() -> None:
    nobody = BrokerSecrets()
    assert not nobody.accepts(b"") and not nobody.accepts(FIRST) and nobody.proof == b""
    with pytest.raises(Refused):
        log_in(choose_secrets(FIRST, ()), nobody)
    assert FIRST.decode() not in repr(choose_secrets(FIRST, ()))


@pytest.mark.parametrize(("expected", "secret"), [(0, "0" * 32), (2, "0" * 32), (-1, "0" * 32), (1, "0" * 31)])
def test_step_that_expects_another_version_is_refused(expected: int, secret: str) -> None:
    with pytest.raises(Refused):
        rotate_secret(rotate(Image()), RotateBrokerSecret(expected, secret))
