"""A secret prints in no form."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import pytest

from tiered.security.secret import HIDDEN, Secret

TEXT = "correct horse"


@dataclass(frozen=True)
class Holder:
    """A value with a secret inside."""

    password: Secret


def test_secret_prints_in_no_form(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(TEXT)
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("given %s %r %s", secret, secret, {"password": secret})
    shown = [
        str(secret), repr(secret), f"{secret}", f"{secret!s:>40}", f"{secret:20}", " ".join(map(str, [secret])),
        f"{secret}", repr([secret]), repr(Holder(secret)), str(asdict(Holder(secret))), caplog.text,
        json.dumps({"password": secret}, default=str), str(copy.deepcopy(Holder(secret))),
    ]  # fmt: skip
    assert not [text for text in shown if TEXT in text or "horse" in text]
    assert all(HIDDEN in text for text in shown)
    assert secret.reveal() == TEXT


@pytest.mark.parametrize("dump", [json.dumps, orjson.dumps, pickle.dumps])
def test_secret_is_not_serialized(dump: Any) -> None:
    with pytest.raises(TypeError) as refused:
        dump({"password": Secret(TEXT)})
    assert TEXT not in str(refused.value)


def test_secret_compares_by_its_text() -> None:
    assert Secret("a") == Secret("a") != Secret("b") and Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") and not Secret("")
