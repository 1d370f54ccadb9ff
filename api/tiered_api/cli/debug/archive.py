"""The files of a bundle: bounded, with a list of what is there and of what is left out, written as one archive."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from tiered.errors import Code, Refused

FILE_BYTES, TOTAL_BYTES = 8 << 20, 64 << 20
"""Most bytes of one file, and of all, before compression."""
NAME_CHARACTERS = 100
SUFFIXES = (".tar.gz", ".tgz", ".zip")
MANIFEST = "manifest.json"
NEVER = (
    "records: their keys, values and headers",
    "passwords, keys, tokens and SCRAM credentials",
    "users, ACLs, and the samples of dead letters",
)
"""The content that no bundle has."""


class Bundle:
    """The files of a bundle by their names."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.left_out: list[dict[str, str]] = []
        self._bytes = 0

    def add(self, name: str, data: bytes) -> None:
        """Adds a file. One that is too large loses its beginning or, as JSON, is left out."""
        room = min(FILE_BYTES, TOTAL_BYTES - self._bytes)
        if len(data) > room and name.endswith(".json"):
            self.leave_out(name, f"it has {len(data)} bytes, and there is room for {max(room, 0)}")
            return
        if len(data) > room:
            self.leave_out(name, f"the first {len(data) - max(room, 0)} bytes of {len(data)}")
            data = data[len(data) - room :] if room > 0 else b""
        if data:
            self.files[name] = data
            self._bytes += len(data)

    def add_json(self, name: str, value: Any) -> None:
        """Adds a value as indented JSON."""
        self.add(name, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))

    def leave_out(self, name: str, why: str) -> None:
        """Notes that a file, or a part of it, is not there."""
        self.left_out.append({"file": name, "why": why})

    def write(self, path: Path, facts: dict[str, Any]) -> int:
        """Writes the archive, readable by its owner alone, and returns its bytes. `facts` are in the manifest. Raises
        `Refused` if the file exists, or its name says no format."""
        check_path(path)
        manifest = facts | {
            "never_included": NEVER,
            "left_out": self.left_out,
            "files": {name: len(data) for name, data in sorted(self.files.items())},
        }
        files = {MANIFEST: orjson.dumps(manifest, option=orjson.OPT_INDENT_2), **self.files}
        made = io.BytesIO()
        (_write_zip if path.suffix == ".zip" else _write_tar)(made, path.name.partition(".")[0], files)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise Refused(Code.INVALID_REQUEST, f"--out {path}: {error.strerror}") from None
        with open(descriptor, "wb") as out:
            out.write(made.getbuffer())
        return made.tell()


def check_path(path: Path) -> None:
    """Raises `Refused` for the name of a bundle that exists, or that says no format."""
    if not path.name.endswith(SUFFIXES):
        raise Refused(Code.INVALID_REQUEST, f"--out {path}: it must end with {', '.join(SUFFIXES)}")
    if path.exists():
        raise Refused(Code.INVALID_REQUEST, f"--out {path}: the file exists")


def file_name(name: str) -> str:
    """Returns the name of a topic or a group as a part of a file's name."""
    quoted = quote(name, safe="")[:NAME_CHARACTERS]
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted


def _write_zip(out: io.BytesIO, folder: str, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{folder}/{name}", data)


def _write_tar(out: io.BytesIO, folder: str, files: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
