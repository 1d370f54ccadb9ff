"""Decisions about SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter

from tiered.controller.decision import ControllerResult
from tiered.controller.requests import AlterScramCredentials, ScramDeletion
from tiered.errors import Code, Refused
from tiered.metadata.changes import Change, ScramCredentialRemoved, ScramCredentialSet
from tiered.metadata.image import Image
from tiered.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, ScramMechanism, make_credential

USERS_MAX = 10_000
"""Most users of a cluster: every broker keeps all of them in memory."""
NAME_MAX = 255
"""Most characters of a user name."""


def set_password(
    user: str, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredentialSet:
    """Returns the change that gives a user a credential. It has the keys that follow from the salted password."""
    made = make_credential(mechanism, salted_password, salt, iterations)
    encoded_salt, stored_key, server_key = (b64encode(each).decode() for each in made[:3])
    return ScramCredentialSet(user, mechanism.mechanism_name, encoded_salt, stored_key, server_key, iterations)


def alter_credentials(image: Image, request: AlterScramCredentials) -> ControllerResult[dict[str, Refused | None]]:
    """Sets and removes credentials. A refused user keeps its credentials, and the others change."""
    wanted: list[ScramDeletion | ScramCredentialSet] = [*request.deletions, *request.upsertions]
    times = Counter(each.user for each in wanted)
    changes: list[Change] = []
    results: dict[str, Refused | None] = {}
    new_users = 0
    for each in wanted:
        refused = _find_fault(image, each, times[each.user], new_users)
        results[each.user] = refused
        if refused is not None:
            continue
        if isinstance(each, ScramDeletion):
            changes.append(ScramCredentialRemoved(each.user, each.mechanism))
        elif not (request.if_absent and each.mechanism in image.scram.get(each.user, {})):
            changes.append(each)
            new_users += each.user not in image.scram
    return ControllerResult(tuple(changes), results)


def _find_fault(image: Image, each: ScramDeletion | ScramCredentialSet, times: int, new_users: int) -> Refused | None:
    if times > 1:
        return Refused(Code.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    if not each.user:
        return Refused(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if each.mechanism not in MECHANISMS:
        return Refused(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(each, ScramDeletion):
        if each.mechanism not in image.scram.get(each.user, {}):
            return Refused(Code.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return None
    if len(each.user) > NAME_MAX:
        return Refused(Code.UNACCEPTABLE_CREDENTIAL, f"Username must not have more than {NAME_MAX} characters")
    if each.iterations < ITERATIONS_MIN:
        return Refused(Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if each.iterations > ITERATIONS_MAX:
        return Refused(Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if each.user not in image.scram and len(image.scram) + new_users >= USERS_MAX:
        return Refused(Code.POLICY_VIOLATION, f"the cluster has {USERS_MAX} users already")
    return None
