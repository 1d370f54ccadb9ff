"""The file with the key ring of a bucket. It is read again when it changes, so that keys can be rotated at run time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from stat import S_IMODE, S_ISREG
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.object_store.key_ring import KeyRing, parse_key_ring
from tiered.ports import Clock
from tiered.system.private_file import lock_folder, replace_file

log = logging.getLogger(__name__)

SETTING = "tiered.encryption.keys.file"
FILE_BYTES_MAX = 64 << 10
LOOK_NS = 5_000_000_000
"""Pause between two looks whether the file has changed."""
MISSING_KEY_LOOK_NS = 500_000_000
"""The same while an object needs a key that the ring does not have."""
MODE_FORBIDDEN = 0o037
"""Others may not read the file, and a group may not write it. A group may read it, as mounted secrets need."""


class _State(NamedTuple):
    """Facts about the file that differ after a change."""

    inode: int
    size: int
    modified_ns: int
    mode: int


_ABSENT = _State(0, 0, 0, 0)


class KeyFile:
    """The ring in the file `path`. Raises `Refused` (INVALID_CONFIG) at construction if the file cannot be used."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        _, self._ring, self._state = _read(path)
        self._failed: _State | None = None
        self._last_look_ns = clock.mono_ns()

    def ring(self) -> KeyRing:
        """Returns the ring; that of a changed file after at most 5 s. While a changed file is invalid, the old ring
        stays, and the log says why."""
        self._look(LOOK_NS)
        return self._ring

    def find(self, key_id: str) -> bytes | None:
        """Returns a key, None if the file does not have it."""
        found = self.ring().find(key_id)
        if found is None:
            self._look(MISSING_KEY_LOOK_NS)
            found = self._ring.find(key_id)
        return found

    def _look(self, pause_ns: int) -> None:
        now_ns = self._clock.mono_ns()
        if now_ns - self._last_look_ns < pause_ns:
            return
        self._last_look_ns = now_ns
        try:
            state = _state_of(os.stat(self.path))
        except OSError:
            state = _ABSENT
        if state in (self._state, self._failed):
            return
        try:
            _, self._ring, self._state = _read(self.path)
        except Refused as refused:
            self._failed = state
            log.error("changed key file is not used: the old keys stay reason=%s", refused.why)
            return
        self._failed = None
        ring = self._ring
        log.info("key file was read again file=%s keys=%d active=%s", self.path, len(ring.keys), ring.active)


def read_key_lines(path: str) -> list[str]:
    """Returns the lines of a key file. Raises `Refused` if it cannot be used."""
    return _read(path)[0].splitlines()


def edit_key_file(path: str, change: Callable[[list[str]], list[str]]) -> KeyRing:
    """Changes the lines of a key file, or creates one for its user alone, and returns the new ring.

    `change` gets the lines, none for a new file, and returns the new ones. One process at a time edits files of a
    directory: a key that another one has just added would be lost. The new file is durable on return. Owner and mode of
    an old file stay. Raises `Refused` if the file cannot be used, if another process edits it, if the new lines are no
    ring, or if they cannot be written.
    """
    path = os.path.realpath(path)
    try:
        with lock_folder(path) as folder:
            lines = change(_read(path)[0].splitlines() if os.path.lexists(path) else [])
            text = "".join(f"{line}\n" for line in lines)
            ring = parse_key_ring(text, path)
            replace_file(path, text, folder, keeps_mode=True)
    except BlockingIOError:
        raise Refused(Code.INVALID_REQUEST, f"another process edits a key file beside {path}: try again") from None
    except OSError as error:
        raise _cannot_write(path, error) from None
    return ring


def _cannot_write(path: str, error: OSError) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"{path} cannot be written: {error.strerror}")


def _read(path: str) -> tuple[str, KeyRing, _State]:
    """Returns the text of a key file, its ring, and facts about it."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _refuse(path, f"it cannot be read: {error.strerror}") from None
    if not S_ISREG(found.st_mode):
        raise _refuse(path, "it is no file")
    mode = S_IMODE(found.st_mode)
    if mode & MODE_FORBIDDEN:
        raise _refuse(path, f"other users may read or change it (mode {mode:04o}): chmod 600, or 640 for its group")
    if len(data) > FILE_BYTES_MAX:
        raise _refuse(path, f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise _refuse(path, "it is no text of ASCII characters") from None
    return text, parse_key_ring(text, path), _state_of(found)


def _state_of(found: os.stat_result) -> _State:
    return _State(found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)


def _refuse(path: str, why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{SETTING}={path}: {why}")
