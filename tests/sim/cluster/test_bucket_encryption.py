"""Tests of runs with an encrypted bucket: an object that is plain, or shows what a client sent, is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.cluster.bucket_encryption import BucketEncryption
from tests.sim.cluster.observer import BrokenRules
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.run import run
from tests.sim.cluster.test_cluster_stored import without_faults
from tiered.object_store.encrypted import EncryptedStore


def encrypted(drawn: ClusterOptions) -> ClusterOptions:
    return without_faults(drawn).with_changes(is_encrypted=True, chaos_seconds=6.0, senders=1, readers=0)


def test_plain_object_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make = EncryptedStore._make

    def make_for_some(self: EncryptedStore, key: str, size: int) -> Any:
        return None if key.endswith("/manifest") else make(self, key, size)

    monkeypatch.setattr(EncryptedStore, "_make", make_for_some)
    with pytest.raises(BrokenRules, match=r"ENCRYPTED: data/.*/manifest is plain"):
        run(1, encrypted)


def test_value_of_a_client_in_an_encrypted_object_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BucketEncryption.check_stored

    def show(self: BucketEncryption) -> None:
        assert self.counts["key_changes"] == 1
        objects = self._run.world.bucket.memory._objects
        key = next(each for each in objects if each.endswith(".seg"))
        # The zero ends the bytes of the cipher: the last of them may be a letter, and a name begins with any letters.
        objects[key] = objects[key]._replace(data=objects[key].data + b"\0s1.17:xxxxxxxxxx")
        original(self)

    monkeypatch.setattr(BucketEncryption, "check_stored", show)
    with pytest.raises(BrokenRules, match=r"ENCRYPTED: .* shows b's1\.17:xxxxxxxxxx'"):
        run(1, encrypted)
