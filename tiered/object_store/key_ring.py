"""The keys that encrypt the objects of a bucket: a ring of named keys, as the lines of a text.

Pure. A line is `key ID BASE64`, and `active` after it on the line of the key that encrypts new objects. Empty lines and
lines that begin with `#` do not count. A ring without an active key reads encrypted objects, and encrypts none. With
the line `refuse-plain`, a plain object is an error. Errors name the line, never what it says.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiered.errors import Code, Refused
from tiered.security.secret import Secret

KEY_BYTES = 32
KEYS_MAX = 100
ID_CHARACTERS_MAX = 40
ACTIVE = "active"
REFUSE_PLAIN = "refuse-plain"
_WORD = "key"
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{ID_CHARACTERS_MAX}}}")
_LINE_FORM = "a line is `key ID BASE64`, perhaps with `active` after it"


@dataclass(frozen=True)
class KeyRing:
    """Keys by their ids. `active` is the id of the key for new objects; "" for none."""

    keys: Mapping[str, Secret] = field(default_factory=dict)
    """Each key as base64."""
    active: str = ""
    refuses_plain: bool = False
    """True if an object that is not encrypted is an error."""

    def find(self, key_id: str) -> bytes | None:
        """Returns the 32 bytes of a key, None if the ring does not have it."""
        found = self.keys.get(key_id)
        return None if found is None else base64.b64decode(found.reveal())


def parse_key_ring(text: str, where: str) -> KeyRing:
    """Returns the ring. Raises `Refused` (INVALID_CONFIG) with `where` and the number of the line that is wrong."""
    keys: dict[str, Secret] = {}
    active, refuses_plain = "", False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words == [REFUSE_PLAIN]:
            refuses_plain = True
            continue
        key_id, key, is_active = _parse_line(words, where, number)
        if key_id in keys:
            raise _refuse(where, number, f"the id {key_id} is there twice")
        if is_active and active:
            raise _refuse(where, number, f"two keys are active, {active} and {key_id}")
        keys[key_id] = key
        active = key_id if is_active else active
    if not keys:
        raise Refused(Code.INVALID_CONFIG, f"{where} has no key: {_LINE_FORM}")
    if len(keys) > KEYS_MAX:
        raise Refused(Code.INVALID_CONFIG, f"{where} has {len(keys)} keys, and may have {KEYS_MAX}")
    if refuses_plain and not active:
        raise Refused(Code.INVALID_CONFIG, f"{where}: {REFUSE_PLAIN} needs an active key")
    return KeyRing(keys, active, refuses_plain)


def format_key_line(key_id: str, key: bytes, *, is_active: bool) -> str:
    """Returns the line of a key. Raises `Refused` for an id that no ring takes."""
    if not is_key_id(key_id):
        raise Refused(
            Code.INVALID_REQUEST, f"{key_id!r} is no id of a key: use 1 to {ID_CHARACTERS_MAX} of A-Z a-z 0-9 . _ -"
        )
    words = [_WORD, key_id, base64.b64encode(key).decode()]
    return " ".join(words + [ACTIVE] * is_active)


def activate_key(lines: Sequence[str], key_id: str) -> list[str]:
    """Returns the lines of a ring with another active key. Comments stay."""
    changed = []
    for line in lines:
        words = line.split()
        if words and words[0] == _WORD:
            words = words[:3] + [ACTIVE] * (words[1] == key_id)
            line = " ".join(words)
        changed.append(line)
    return changed


def remove_key(lines: Sequence[str], key_id: str) -> list[str]:
    """Returns the lines of a ring without a key. Comments stay."""
    return [line for line in lines if line.split()[:2] != [_WORD, key_id]]


def is_key_id(text: str) -> bool:
    """True if a key may have this id."""
    return _ID.fullmatch(text) is not None


def _parse_line(words: Sequence[str], where: str, number: int) -> tuple[str, Secret, bool]:
    if words[0] != _WORD or len(words) not in (3, 4) or (len(words) == 4 and words[3] != ACTIVE):
        raise _refuse(where, number, _LINE_FORM)
    if not is_key_id(words[1]):
        raise _refuse(where, number, f"an id has 1 to {ID_CHARACTERS_MAX} of A-Z a-z 0-9 . _ -")
    try:
        key = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise _refuse(where, number, f"the key is not the base64 of {KEY_BYTES} bytes")
    return words[1], Secret(words[2]), len(words) == 4


def _refuse(where: str, number: int, why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{where} line {number}: {why}")
