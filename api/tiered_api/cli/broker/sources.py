"""The sources of settings: a file, then the environment, then `-c`, then options; the later one wins.

A `.properties` file is read as Java reads it, so that a Kafka broker's file loads as it is; `.toml` may nest tables.
`TIERED_<NAME>` is a setting's name in capitals with underscores for dots (a leading `tiered.` is not doubled).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiered.config.kafka_aliases import WITHOUT_EFFECT
from tiered.config.listener_overrides import OWN_LOGIN, has_no_effect
from tiered.config.properties import parse_properties
from tiered.config.setting import unknown_setting
from tiered.config.settings import Settings, broker_rows
from tiered.errors import Code, Refused
from tiered_api.cli.client_sources import FILE_VARIABLE, PROFILE_VARIABLE, VARIABLES

PREFIX = "TIERED_"
NOT_SETTINGS = {
    *VARIABLES,
    PROFILE_VARIABLE,
    FILE_VARIABLE,
    "TIERED_PURE",
    "TIERED_JARS",
    "TIERED_PEER",
}
"""Variables with the same prefix that other parts read."""
KUBERNETES_VARIABLE = re.compile(r"TIERED_(SERVICE_(HOST|PORT\w*)=.*|PORT(_\d+_\w+)?=\w+://.*|PORT_\d+_\w+=.*)")
"""Variables that Kubernetes sets in every pod beside a service named `tiered`."""

SourcedTexts = dict[str, tuple[str, str]]
"""By name: the text, and its source."""
NOTHING: Mapping[str, tuple[str, str]] = {}


def load_settings(
    file: str | None,
    environment: Mapping[str, str],
    pairs: Sequence[str],
    options: Mapping[str, str],
    weakest: Mapping[str, tuple[str, str]] = NOTHING,
) -> tuple[Settings, list[str]]:
    """Returns the settings, and a warning for each setting that is accepted without effect. All other sources win over
    `weakest`. Raises `Refused` (INVALID_CONFIG) with the source."""
    given: SourcedTexts = dict(weakest)
    if file is not None:
        given.update((name, (text, file)) for name, text in _read(file).items())
    given.update(_from_environment(environment))
    given.update(_from_pairs(pairs))
    given.update((name, (text, f"--{name.replace('.', '-')}")) for name, text in options.items())
    try:
        made = Settings.from_strings({name: text for name, (text, _) in given.items()})
    except Refused as refused:
        name = re.split(r"[=:]", refused.why, maxsplit=1)[0]
        place = f" ({given[name][1]})" if name in given else ""
        raise Refused(refused.code, refused.why + place) from None
    return made, [
        f"{name}={text} has no effect: {WITHOUT_EFFECT[name]} ({place})"
        for name, (text, place) in given.items()
        if name in WITHOUT_EFFECT
    ] + [
        f"{name}={text} has no effect: {why} ({place})"
        for name, (text, place) in given.items()
        if (why := _find_reason(name, text))
    ] + [f"{name} has no effect: {OWN_LOGIN} ({place})" for name, (_, place) in given.items() if has_no_effect(name)]


def _find_reason(name: str, text: str) -> str:
    """Returns why a value of a setting is kept without effect; "" if it has an effect."""
    row = broker_rows().get(name)
    return row.without_effect.get(row.normalize(text), "") if row is not None and row.without_effect else ""


def environment_variable(name: str) -> str:
    """Returns the environment variable of a setting."""
    return PREFIX + name.removeprefix("tiered.").upper().replace(".", "_")


def _from_environment(environment: Mapping[str, str]) -> SourcedTexts:
    names = {environment_variable(name): name for name in broker_rows()}
    given = {}
    for key, text in environment.items():
        if key in names:
            given[names[key]] = (text, key)
        elif _is_misspelt(key, text):
            raise unknown_setting(key, names, "environment")
    return given


def _is_misspelt(key: str, text: str) -> bool:
    """True for a variable with our prefix that nothing of ours reads, and that nobody else sets."""
    is_foreign = KUBERNETES_VARIABLE.fullmatch(f"{key}={text}") is not None
    return key.startswith(PREFIX) and key not in NOT_SETTINGS and not is_foreign


def _from_pairs(pairs: Sequence[str]) -> SourcedTexts:
    given = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise Refused(Code.INVALID_CONFIG, f"-c {pair}: it must be name=value")
        given[name.strip()] = (text, "-c")
    return given


def _read(file: str) -> dict[str, str]:
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Refused(Code.INVALID_CONFIG, f"--config {file}: cannot be read: {reason}") from None
    if path.suffix != ".toml":
        return dict(parse_properties(text))
    try:
        return dict(_flatten(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError as error:
        raise Refused(Code.INVALID_CONFIG, f"--config {file}: {error}") from None


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Returns TOML's tables as dotted names, its values as text."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, list):
            yield name, ",".join(map(str, value))
        else:
            yield name, str(value)
