"""`tiered encryption`: keys of a key file, and the keys that a bucket needs. No command prints a key."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from datetime import UTC, datetime

from tiered.errors import Code, Refused
from tiered.object_store.key_file import edit_key_file, read_key_lines
from tiered.object_store.key_ring import KEY_BYTES, KeyRing, activate_key, format_key_line, parse_key_ring, remove_key
from tiered.offline.keys_in_use import UNKNOWN, KeysInUse, count_keys_in_use
from tiered.offline.rewrite import RewriteCounts, rewrite_objects
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_error, print_lines, print_rows
from tiered_api.cli.progress import show_progress

PLAIN = "-"
"""The key of objects that are not encrypted, as it is printed."""


def add(args: Namespace) -> int:
    """Adds a key to a key file, which is created if it does not exist."""
    key_id = args.id or datetime.now(UTC).strftime("%Y-%m-%d")

    def change(lines: list[str]) -> list[str]:
        if lines and key_id in parse_key_ring("\n".join(lines), args.file).keys:
            raise Refused(Code.INVALID_REQUEST, f"{args.file} has a key {key_id} already: name another one by --id")
        added = [*lines, format_key_line(key_id, os.urandom(KEY_BYTES), is_active=False)]
        return activate_key(added, key_id) if args.active else added

    _print_ring(f"key {key_id} was added", args.file, edit_key_file(args.file, change))
    return Exit.OK


def activate(args: Namespace) -> int:
    """Makes another key of a key file the active one."""

    def change(lines: list[str]) -> list[str]:
        if not lines or args.id not in parse_key_ring("\n".join(lines), args.file).keys:
            raise Refused(Code.INVALID_REQUEST, f"{args.file} has no key {args.id}")
        return activate_key(lines, args.id)

    _print_ring(f"key {args.id} is active", args.file, edit_key_file(args.file, change))
    return Exit.OK


def remove(args: Namespace) -> int:
    """Removes a key from a key file, once no object in the bucket needs it."""
    _check_removable(read_key_lines(args.file), args)
    found = _count_keys(args)
    counts = {each.key_id: each.object_count for each in found.keys}
    needed = counts.get(args.id, 0)
    if needed:
        why = f"{args.store} has {needed} objects under key {args.id}, which {args.file} keeps: `encryption rewrite`"
        raise Refused(Code.INVALID_REQUEST, f"{why} encrypts them by the active key")
    if counts.get(UNKNOWN):
        why = f"{args.store} has {counts[UNKNOWN]} objects whose key is not known, which may be {args.id}"
        raise Refused(Code.INVALID_REQUEST, f"{why}: {found.faults[0]}")

    if args.dry_run:
        print_lines([f"key {args.id} can be removed: no object of {args.store} needs it"])
        return Exit.OK

    def change(lines: list[str]) -> list[str]:
        _check_removable(lines, args)
        return remove_key(lines, args.id)

    _print_ring(f"key {args.id} was removed", args.file, edit_key_file(args.file, change))
    return Exit.OK


def _check_removable(lines: list[str], args: Namespace) -> None:
    """Raises `Refused` for a key that the file does not have, or that is active."""
    ring = parse_key_ring("\n".join(lines), args.file)
    if args.id not in ring.keys:
        raise Refused(Code.INVALID_REQUEST, f"{args.file} has no key {args.id}")
    if ring.active == args.id:
        raise Refused(Code.INVALID_REQUEST, f"key {args.id} encrypts new objects: activate another one first")


def list_keys(args: Namespace) -> int:
    """Prints the keys of the objects in a bucket, and the first objects whose key is not known."""
    found = _count_keys(args)
    rows = [
        {"key": each.key_id or PLAIN, "objects": each.object_count, "bytes": each.stored_bytes} for each in found.keys
    ]
    print_rows(rows, args.format, ("key", "objects", "bytes"))
    for fault in found.faults:
        print_error(fault)
    return Exit.OK


def _count_keys(args: Namespace) -> KeysInUse:
    with show_progress(args, "look at all objects") as shown:
        return asyncio.run(count_keys_in_use(args.store, lambda looked: shown.count(looked, "objects")))


def rewrite(args: Namespace) -> int:
    """Encrypts all objects under the active key that are plain, or under another one."""
    with show_progress(args, "encrypt anew") as shown:

        def report(done: RewriteCounts) -> None:
            print_lines([_progress(done)])

        done = asyncio.run(rewrite_objects(args.store, report, lambda looked: shown.count(looked, "objects")))
    for fault in done.faults:
        print_error(fault)
    return Exit.FAILED if done.left else Exit.OK


def _progress(done: RewriteCounts) -> str:
    return f"{done.object_count} objects of {done.stored_bytes} bytes are encrypted anew, {done.left} are left"


def _print_ring(done: str, file: str, ring: KeyRing) -> None:
    print_lines([f"{done}: {file} has {_describe(ring)}"])


def _describe(ring: KeyRing) -> str:
    keys = "1 key" if len(ring.keys) == 1 else f"{len(ring.keys)} keys"
    new = f"{ring.active} encrypts new objects" if ring.active else "none encrypts new objects"
    return f"{keys}, {new}"
