"""The file with the profiles of a user: `tiered/profiles.toml` in the folder for configuration (XDG)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_IMODE, S_ISREG

from tiered.errors import Code, Refused
from tiered.system.local_disk import DIRECTORY_MODE
from tiered.system.private_file import lock_folder, replace_file
from tiered_api.cli.output import print_error
from tiered_api.cli.profiles import Profiles, format_profiles, parse_profiles

FILE_BYTES_MAX = 1 << 20
MODE_OF_OTHERS = 0o077


def find_profile_file(environment: Mapping[str, str]) -> Path | None:
    """Returns the path of the file, which may not exist; None for a user without a home. A relative folder of
    configuration is ignored, as XDG's specification says."""
    folder = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".config"
        except RuntimeError:
            return None
    return folder / "tiered" / "profiles.toml"


def read_profiles(path: Path | None) -> Profiles:
    """Reads all profiles; a missing file has none. Warns if other users may read or write the file. Raises `Refused` if
    it cannot be read, is too large, or is malformed."""
    if path is None:
        return Profiles()
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_BYTES_MAX + 1) if S_ISREG(found.st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return Profiles()
    except OSError as error:
        raise _refuse(path, f"it cannot be read: {error.strerror}") from None
    if data is None:
        raise _refuse(path, "it is no file")
    if S_IMODE(found.st_mode) & MODE_OF_OTHERS:
        print_error(f"warning: other users may use {path} (mode {S_IMODE(found.st_mode):04o}): chmod 600 {path}")
    if len(data) > FILE_BYTES_MAX:
        raise _refuse(path, f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        return parse_profiles(data.decode(), str(path))
    except UnicodeDecodeError:
        raise _refuse(path, "it is not UTF-8 text") from None


def edit_profiles(path: Path | None, change: Callable[[Profiles], Profiles]) -> Profiles:
    """Changes the profiles, and returns the new ones. One process at a time edits them, and a reader sees the file
    before or after. Only its user may use the new file. Raises `Refused` if the old file cannot be used, if another
    process edits it, or if the new one cannot be written."""
    if path is None:
        raise Refused(Code.INVALID_REQUEST, "there is no home for profiles: set XDG_CONFIG_HOME to a folder")
    path = path.resolve()  # a link stays one
    try:
        path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        with lock_folder(str(path)) as folder:
            made = change(read_profiles(path))
            text = format_profiles(made)
            if len(text.encode()) > FILE_BYTES_MAX:
                raise _refuse(path, f"it would have more than {FILE_BYTES_MAX} bytes")
            replace_file(str(path), text, folder, keeps_mode=False)
    except BlockingIOError:
        raise _refuse(path, "another command changes it: try again") from None
    except UnicodeEncodeError:
        raise _refuse(path, "a setting is not UTF-8 text") from None
    except OSError as error:
        raise _refuse(path, f"it cannot be written: {error.strerror}") from None
    return made


def _refuse(path: Path, why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"{path}: {why}")
