"""The sources of the settings of a connection: options, files of properties, the environment, and profiles.

They count in this order, the first one first. `--profile` and `TIERED_PROFILE` choose the profile; without both it is
the current one. Only one profile is ever used.

    options                         --brokers, -X
    --command-config, --profile     the file, then the profile
    variables                       TIERED_BROKERS, TIERED_SASL_PASSWORD and the like
    TIERED_COMMAND_CONFIG, TIERED_PROFILE
    the current profile
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered_api.cli import encryption
from tiered_api.cli.client_properties import EXTRAS, OPTION, read_client_properties, read_profile_settings
from tiered_api.cli.client_settings import ClientSettings, Source, merge_sources
from tiered_api.cli.profile_file import find_profile_file, read_profiles
from tiered_api.cli.profiles import Profiles

PROFILE_VARIABLE, FILE_VARIABLE = "TIERED_PROFILE", "TIERED_COMMAND_CONFIG"
_SETTLED = "client_settings"
"""The name under which parsed arguments keep their settings: a command that connects again gets the same cluster."""


class ChosenProfile(NamedTuple):
    """The profile of a command. `level`: 0 for an option, 1 for the environment, 2 for the current profile."""

    name: str
    level: int


def variable_of(name: str) -> str:
    """Returns the variable that has an option of `-X` for all commands."""
    return "TIERED_" + name.upper().replace(".", "_")


VARIABLES = {
    variable_of(name): name for name in EXTRAS if name not in ("timeout", encryption.ENDPOINT_CHECK)
}  # the check of hosts is a setting of brokers too, and a broker's variable must not weaken clients
"""The setting that each variable has."""


def choose_profile(flag: str | None, variable: str, current: str, *, is_ignored: bool) -> ChosenProfile | None:
    """Returns the profile of a command, None for none. An option wins over the environment, and both win over the
    current profile."""
    if flag is not None:
        return ChosenProfile(flag, 0)
    if is_ignored:
        return None
    return ChosenProfile(variable, 1) if variable else ChosenProfile(current, 2) if current else None


def find_client_settings(args: Namespace) -> ClientSettings:
    """Returns the settings of the connection of a command, by its arguments, the environment and the profiles."""
    found: ClientSettings | None = getattr(args, _SETTLED, None)
    if found is None:
        found = merge_sources([*_list_sources(args, os.environ)])
        setattr(args, _SETTLED, found)
    return found


def parse_extras(pairs: Sequence[str]) -> dict[str, str]:
    """Returns the options in `-X name=value`."""
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in EXTRAS:
            raise Refused(Code.INVALID_REQUEST, f"-X {pair}: it must be one of {', '.join(EXTRAS)}, then = and a value")
        out[name] = value
    return out


def _list_sources(args: Namespace, environment: Mapping[str, str]) -> Iterator[Source]:
    profile, level = _find_profile(args, environment)
    if getattr(args, "brokers", None):
        yield Source("--brokers", {"brokers": args.brokers}, is_option=True)
    yield Source("-X", parse_extras(getattr(args, "extra", ())), is_option=True)
    if args.command_config is not None:
        yield Source(f"{OPTION} {args.command_config}", read_client_properties(args.command_config), is_client=True)
    if profile is not None and level == 0:
        yield profile
    for variable, name in VARIABLES.items():
        if environment.get(variable):
            yield Source(variable, {name: environment[variable]})
    if file := environment.get(FILE_VARIABLE):
        yield Source(f"{FILE_VARIABLE} {file}", read_client_properties(file, FILE_VARIABLE), is_client=True)
    if profile is not None and level > 0:
        yield profile


def _find_profile(args: Namespace, environment: Mapping[str, str]) -> tuple[Source | None, int]:
    """Returns the profile and its level, None and 0 without one."""
    path = find_profile_file(environment)
    variable = environment.get(PROFILE_VARIABLE, "")
    profiles = Profiles() if args.ignore_profile else read_profiles(path)
    chosen = choose_profile(args.profile, variable, profiles.current, is_ignored=args.ignore_profile)
    if chosen is None:
        return None, 0
    wanted = ("--profile", PROFILE_VARIABLE, f"current in {path}")[chosen.level]
    given = profiles.find(chosen.name, f"{wanted}: {path}" if chosen.level < 2 else wanted)
    kind = "current profile" if chosen.level == 2 else "profile"
    where = f"{kind} {chosen.name!r} ({path})"
    folder = path.parent if path is not None else Path()
    return Source(where, read_profile_settings(given, where, folder), is_client=True), chosen.level
