"""`tiered profile`: named settings of connections. No command prints a secret unless `--secrets` asks for it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from tiered.errors import Code, Refused
from tiered.security.secret import HIDDEN
from tiered_api.cli.client_properties import LOCATIONS, check_setting_names, read_profile_settings
from tiered_api.cli.client_settings import ClientSettings, Source
from tiered_api.cli.client_sources import PROFILE_VARIABLE, choose_profile
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_lines, print_rows
from tiered_api.cli.profile_file import edit_profiles, find_profile_file, read_profiles
from tiered_api.cli.profiles import COMMAND_CONFIG, DESCRIPTION, SECRETS, Profiles, check_profile_name
from tiered_api.cli.reach import check_settings, parse_pairs


def create(args: Namespace) -> int:
    """Creates a profile, which becomes the current one."""
    check_profile_name(args.name)
    path = find_profile_file(os.environ)

    def change(profiles: Profiles) -> Profiles:
        if args.name in profiles.settings:
            raise Refused(
                Code.INVALID_REQUEST, f"there is a profile {args.name!r} already: `tiered profile set` changes it"
            )
        settings = {} if args.from_profile is None else dict(profiles.find(args.from_profile, str(path)))
        if args.command_config is not None:
            settings[COMMAND_CONFIG] = os.path.abspath(args.command_config)
        if args.description is not None:
            settings[DESCRIPTION] = args.description
        settings = _with_pairs(args.name, settings, args.settings)
        _check(args.name, settings)
        return profiles.with_profile(args.name, settings)._replace(current=args.name)

    edit_profiles(path, change)
    return _say(f"profile {args.name} was created, and is the current one")


def set_settings(args: Namespace) -> int:
    """Changes settings of a profile."""
    path, name = find_profile_file(os.environ), ""

    def change(profiles: Profiles) -> Profiles:
        nonlocal name
        name = args.profile or _name_in_use(profiles)
        settings = _with_pairs(name, profiles.find(name, str(path)), args.settings)
        _check(name, settings)
        return profiles.with_profile(name, settings)

    edit_profiles(path, change)
    return _say(f"profile {name} was changed")


def list_profiles(args: Namespace) -> int:
    """Prints a row for each profile."""
    profiles = read_profiles(find_profile_file(os.environ))
    rows = [
        {
            "name": name,
            "current": "yes" if name == profiles.current else "no",
            "brokers": settings.get("brokers") or settings.get("bootstrap.servers"),
            "command_config": settings.get(COMMAND_CONFIG),
            "description": settings.get(DESCRIPTION),
        }
        for name, settings in sorted(profiles.settings.items())
    ]
    print_rows(rows, args.format, ("name", "current", "brokers", "command_config", "description"))
    return Exit.OK


def show(args: Namespace) -> int:
    """Prints the settings of a profile as the file has them."""
    path = find_profile_file(os.environ)
    profiles = read_profiles(path)
    settings = profiles.find(args.name or _name_in_use(profiles), str(path))
    rows = [
        {"setting": name, "value": value if args.secrets or name not in SECRETS else HIDDEN}
        for name, value in sorted(settings.items())
    ]
    print_rows(rows, args.format, ("setting", "value"))
    return Exit.OK


def current(args: Namespace) -> int:
    """Prints the name of the profile that commands use. Prints nothing without one."""
    chosen = choose_profile(
        None, os.environ.get(PROFILE_VARIABLE, ""), read_profiles(find_profile_file(os.environ)).current,
        is_ignored=False,
    )  # fmt: skip
    return Exit.OK if chosen is None else _say(chosen.name)


def use(args: Namespace) -> int:
    """Makes a profile the current one."""
    path = find_profile_file(os.environ)

    def change(profiles: Profiles) -> Profiles:
        profiles.find(args.name, str(path))
        return profiles._replace(current=args.name)

    edit_profiles(path, change)
    return _say(f"profile {args.name} is the current one")


def clear(args: Namespace) -> int:
    """Leaves the current profile."""
    edit_profiles(find_profile_file(os.environ), lambda profiles: profiles._replace(current=""))
    return _say("no profile is current")


def remove(args: Namespace) -> int:
    """Removes a profile."""
    path = find_profile_file(os.environ)

    def change(profiles: Profiles) -> Profiles:
        profiles.find(args.name, str(path))
        return profiles.without_profile(args.name)

    left = edit_profiles(path, change)
    return _say(f"profile {args.name} was removed" + ("" if left.current else ", and no profile is current"))


def _with_pairs(name: str, settings: Mapping[str, str], pairs: list[str]) -> dict[str, str]:
    """Returns settings with those of `NAME=VALUE`, without those whose value is empty."""
    made = dict(settings)
    for setting, value in parse_pairs(pairs, "setting"):
        made[setting] = os.path.abspath(value) if value and setting in LOCATIONS else value
    check_setting_names(made, f"profile {name!r}")
    return {setting: value for setting, value in made.items() if value}


def _check(name: str, settings: dict[str, str]) -> None:
    """Raises `Refused` for settings that no command could use."""
    where = f"profile {name!r}"
    check_settings(ClientSettings((Source(where, read_profile_settings(settings, where, Path.cwd()), is_client=True),)))


def _name_in_use(profiles: Profiles) -> str:
    chosen = choose_profile(None, os.environ.get(PROFILE_VARIABLE, ""), profiles.current, is_ignored=False)
    if chosen is None:
        raise Refused(Code.INVALID_REQUEST, "no profile is current: name one, or choose one by `tiered profile use`")
    return chosen.name


def _say(what: str) -> Exit:
    print_lines([what])
    return Exit.OK
