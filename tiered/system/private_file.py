"""Edits of a small file of one user: a lock of its folder, and a replacement that is whole or did not happen."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from stat import S_IMODE

from tiered.system.local_disk import FILE_MODE, sync_file


@contextlib.contextmanager
def lock_folder(path: str) -> Iterator[int]:
    """Yields a descriptor of the folder of a file, which has the lock for edits. Raises `BlockingIOError` at once if
    another process has the lock, and `OSError` if the folder cannot be locked."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(folder)


def replace_file(path: str, text: str, folder: int, *, keeps_mode: bool) -> None:
    """Writes a file beside `path`, gives it that name, and makes both durable. Raises `OSError`.

    `folder` is what `lock_folder` yields. Only its user may use the new file, unless `keeps_mode`: then owner and mode
    of an old file stay.
    """
    temporary = f"{path}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a process that was killed
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            if keeps_mode and os.path.exists(path):
                old = os.stat(path)
                os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, S_IMODE(old.st_mode))
            file.write(text)
            file.flush()
            sync_file(descriptor)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    sync_file(folder)
