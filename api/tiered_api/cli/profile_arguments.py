"""The parser of `tiered profile`."""

from __future__ import annotations

import argparse

from tiered_api.cli.parsing import Command, Commands, add_command, add_format_option


def add_profile_verbs(verbs: Commands) -> None:
    """Adds the verbs of `tiered profile`."""
    create = _add(verbs, "create", "create a profile, and make it the current one", "create")
    create.add_argument("name", metavar="NAME")
    create.add_argument(
        "-s",
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting, by its name in -X or in the properties of a Kafka client",
    )
    create.add_argument(
        "--command-config", metavar="FILE", help="properties of a Kafka client; the profile names the file"
    )
    create.add_argument("--from-profile", metavar="NAME", help="begin with the settings of another profile")
    create.add_argument("-d", "--description", metavar="TEXT", help="a text for people")
    change = _add(verbs, "set", "change settings of a profile", "set_settings")
    change.add_argument("settings", metavar="NAME=VALUE", nargs="+", help="an empty value removes the setting")
    change.add_argument("--profile", metavar="NAME", help="the profile (default: the one in use)")
    listed = _add(verbs, "list", "list the profiles", "list_profiles", aliases=("ls",))
    show = _add(verbs, "show", "print the settings of a profile, without its secrets", "show", aliases=("print",))
    show.add_argument("name", metavar="NAME", nargs="?", help="(default: the profile in use)")
    show.add_argument("--secrets", action="store_true", help="print passwords and keys too")
    for verb in (listed, show):
        add_format_option(verb)
    _add(verbs, "current", "print the name of the profile in use, for scripts and prompts", "current")
    use = _add(verbs, "use", "make a profile the current one", "use")
    use.add_argument("name", metavar="NAME")
    _add(verbs, "clear", "leave the current profile: none is current any more", "clear")
    remove = _add(verbs, "remove", "remove a profile", "remove", aliases=("delete",))
    remove.add_argument("name", metavar="NAME")


def _add(
    verbs: Commands, name: str, help: str, function: str, aliases: tuple[str, ...] = ()
) -> argparse.ArgumentParser:
    return add_command(verbs, name, help, Command("tiered_api.cli.profile.commands", function), aliases)
