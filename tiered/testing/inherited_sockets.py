"""Sockets of brokers in the processes that a test forks.

A forked process has all sockets of its parent. A broker that is killed would keep its port and its connections while
such a process lives: no client and no other broker would see its end. The process drops them at its begin.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable

_ports: set[int] = set()


def drop_in_children(ports: Iterable[int]) -> None:
    """Makes each process that is forked from now on drop the sockets of servers at `ports`."""
    _ports.update(ports)


def forget(ports: Iterable[int]) -> None:
    """Ends what `drop_in_children` began."""
    _ports.difference_update(ports)


def _drop() -> None:
    """Puts the null device in the place of each such socket. Objects of the parent may still close the number, so that
    it stays taken."""
    if not _ports:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):
        if _local_port(number) in _ports:
            os.dup2(null, number, inheritable=False)
    os.close(null)
    _ports.clear()


def _local_port(number: int) -> int | None:
    """Returns the port of a descriptor at this machine; None if it is no socket of TCP."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        sock = socket.socket(fileno=number)
    except OSError:  # the listing of descriptors was one of them, and is closed
        return None
    try:
        return sock.getsockname()[1] if sock.family in {socket.AF_INET, socket.AF_INET6} else None
    finally:
        sock.detach()


os.register_at_fork(after_in_child=_drop)
