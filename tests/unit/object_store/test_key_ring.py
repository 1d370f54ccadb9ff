"""Tests of key rings and of their file: what lines say, and what a change, a bad line or an open mode does."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.encryption import KEYS, key_line, write_key_file
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.errors import Refused
from tiered.object_store.key_file import KeyFile, edit_key_file
from tiered.object_store.key_ring import activate_key, format_key_line, parse_key_ring
from tiered.security.secret import HIDDEN

MANY = "\n".join(key_line("one").replace(" one ", f" k{number} ") for number in range(101))
WORDS = ["key", "one", "active", "#", "refuse-plain", " ", "\n", key_line("one"), "\x00", "="]


def test_ring_has_the_keys_of_its_lines_and_the_active_one() -> None:
    text = f"# of cluster X\n\n{key_line('one')}\n  {key_line('two', active=True)}\n"
    ring = parse_key_ring(text, "f")
    assert (ring.find("one"), ring.find("two"), ring.find("three")) == (KEYS["one"], KEYS["two"], None)
    assert ring.active == "two"
    assert (parse_key_ring(key_line("one"), "f").active, ring.refuses_plain) == ("", False)
    assert parse_key_ring(f"{text}refuse-plain", "f").refuses_plain
    assert format_key_line("two", KEYS["two"], is_active=True) == key_line("two", active=True)


def test_ring_never_prints_a_key() -> None:
    ring = parse_key_ring(key_line("one"), "f")
    assert HIDDEN in repr(ring) and key_line("one").split()[2] not in repr(ring)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "f has no key: a line is `key ID BASE64`"),
        ("# nothing", "f has no key"),
        ("one two three", "f line 1: a line is"),
        (f"# x\n{key_line('one')} first", "f line 2: a line is"),
        (f"{key_line('one')} active more", "f line 1: a line is"),
        ("key o/ne AAAA", "f line 1: an id has"),
        (f"key {'x' * 41} AAAA", "f line 1: an id has"),
        ("key one AAAA", "f line 1: the key is not the base64 of 32 bytes"),
        ("key one %%%%", "f line 1: the key is not the base64"),
        (f"{key_line('one')}\n{key_line('one')}", "f line 2: the id one is there twice"),
        (
            f"{key_line('one', active=True)}\n{key_line('two', active=True)}",
            "f line 2: two keys are active, one and two",
        ),
        (f"refuse-plain\n{key_line('one')}", "f: refuse-plain needs an active key"),
        (
            "\n".join(key_line("one").replace(" one ", f" k{n} ") for n in range(101)),
            "f has 101 keys, and may have 100",
        ),
    ],
)
def test_bad_line_is_named_and_not_shown(text: str, why: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_key_ring(text, "f")
    assert why in caught.value.why and key_line("one").split()[2] not in caught.value.why


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(WORDS)))
def test_any_text_is_a_ring_or_refused(words: list[str]) -> None:
    try:
        ring = parse_key_ring("".join(words), "f")
    except Refused:
        return
    assert ring.keys and ring.active in ("", *ring.keys)


def test_another_key_becomes_active_and_comments_stay() -> None:
    lines = ["# mine", key_line("one", active=True), key_line("two")]
    assert activate_key(lines, "two") == ["# mine", key_line("one"), key_line("two", active=True)]


def test_id_that_no_ring_takes_is_refused() -> None:
    with pytest.raises(Refused, match="'a b' is no id of a key"):
        format_key_line("a b", KEYS["one"], is_active=False)


class Rig:
    """A key file, and a clock that a test moves."""

    def __init__(self, path: Path) -> None:
        self.loop = SimLoop(1)
        self.path = write_key_file(path)
        self.file = KeyFile(str(path), SimClock(self.loop))

    def wait(self, seconds: float) -> None:
        self.loop.now_ns += round(seconds * 1e9)


def test_changed_file_counts_after_five_seconds(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "keys")
    write_key_file(rig.path, "one", "two", active="two")
    rig.wait(4.9)
    assert rig.file.ring().active == "one"
    rig.wait(0.2)
    assert rig.file.ring().active == "two"


def test_key_that_is_missing_is_looked_for_sooner(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "keys")
    write_key_file(rig.path, "one", "two")
    assert rig.file.find("two") is None
    rig.wait(0.6)
    assert rig.file.find("two") == KEYS["two"]


@pytest.mark.parametrize("change", ["bad", "gone", "open"])
def test_changed_file_that_is_no_ring_leaves_the_old_keys_and_is_told_once(
    change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path / "keys")
    if change == "bad":
        rig.path.write_text("key\n")
    elif change == "gone":
        rig.path.unlink()
    else:
        rig.path.chmod(0o644)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            rig.wait(6)
            assert rig.file.ring().find("one") == KEYS["one"]
    assert [record.message.partition(" reason")[0] for record in caplog.records] == [
        "changed key file is not used: the old keys stay"
    ]
    rig.path.unlink(missing_ok=True)
    write_key_file(rig.path, "two", active="two")
    rig.wait(6)
    assert rig.file.ring().active == "two"


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o601])
def test_file_that_others_may_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    path = write_key_file(tmp_path / "keys")
    path.chmod(mode)
    with pytest.raises(Refused, match=rf"tiered.encryption.keys.file={path}: .*mode {mode:04o}\): chmod 600, or 640"):
        KeyFile(str(path), SimClock(SimLoop(1)))
    path.chmod(0o640)
    assert KeyFile(str(path), SimClock(SimLoop(1))).ring().active == "one"


def test_file_that_is_absent_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for write, why in (
        (lambda: None, "it cannot be read: No such file"),
        (lambda: path.write_bytes(b"#" * 70_000), "it has more than 65536 bytes"),
        (lambda: path.write_bytes(b"\xff"), "it is no text"),
    ):
        write()
        if path.exists():
            os.chmod(path, 0o600)
        with pytest.raises(Refused, match=why):
            KeyFile(str(path), SimClock(SimLoop(1)))


def test_edit_is_durable_and_follows_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_key_file(tmp_path / "keys")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(path)
    (tmp_path / "keys.tmp").write_text("of an edit that was killed")
    done: list[str] = []
    monkeypatch.setattr(
        "tiered.system.private_file.sync_file",
        lambda descriptor: done.append(os.readlink(f"/proc/self/fd/{descriptor}")),
    )
    assert list(edit_key_file(str(link), lambda lines: [*lines, key_line("two")]).keys) == ["one", "two"]
    assert done == [f"{path}.tmp", str(tmp_path)], "the file before it has its name, then the folder"
    assert link.is_symlink() and sorted(os.listdir(tmp_path)) == ["elsewhere", "keys"]


def test_edits_at_once_are_refused(tmp_path: Path) -> None:
    """Each read the file before the other wrote it: the key of the first edit was gone, with all that it encrypts."""
    path = str(write_key_file(tmp_path / "keys"))

    def change(lines: list[str]) -> list[str]:
        with pytest.raises(Refused, match="another process edits a key file"):
            edit_key_file(path, lambda old: [*old, "# lost"])
        return [*lines, key_line("two")]

    assert list(edit_key_file(path, change).keys) == ["one", "two"]
    assert "lost" not in Path(path).read_text()


def test_edit_that_fails_leaves_the_file(tmp_path: Path) -> None:
    path = write_key_file(tmp_path / "keys")
    with pytest.raises(Refused, match="line 2"):
        edit_key_file(str(path), lambda lines: [*lines, "key"])
    (tmp_path / "keys.tmp").mkdir()
    with pytest.raises(Refused, match="keys cannot be written: "):
        edit_key_file(str(path), lambda lines: [*lines, key_line("two")])
    assert path.read_text() == f"{key_line('one', active=True)}\n"
