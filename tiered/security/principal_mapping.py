"""`ssl.principal.mapping.rules`: the principals of certificates, by rules in Kafka's grammar.

A rule is `DEFAULT`, which takes the name as it is, or `RULE:pattern/replacement/`, perhaps with `L` or `U` at the end.
The first rule whose pattern matches the whole name makes the principal. A name that no rule matches has none.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.security.capturing_pattern import CapturingPattern
from tiered.security.distinguished_names import Subject, format_name
from tiered.security.principal import ANONYMOUS, USER, Principal, can_be_issued

SETTING = "ssl.principal.mapping.rules"
DEFAULT = "DEFAULT"
RULES_MAX = 100
_RULE = re.compile(
    r"(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)",
    re.DOTALL,
)
_GAP = re.compile(r"[\s,]*")
_END = re.compile(r"\s*(?:,|$)")
_TOKEN = re.compile(r"\\(?P<escaped>.)|\$(?P<number>[0-9]+)|(?P<plain>[^\\$]+)", re.DOTALL)


class MappingRule(NamedTuple):
    """One rule; without a pattern it is DEFAULT."""

    pattern: CapturingPattern | None = None
    parts: tuple[str | int, ...] = ()
    """The replacement: texts, and numbers of groups."""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Returns the name of the principal, None if the rule does not match."""
        if self.pattern is None:
            return name
        groups = self.pattern.match(name)
        if groups is None:
            return None
        made = "".join(each if isinstance(each, str) else groups[each] or "" for each in self.parts)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


@lru_cache(maxsize=64)
def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Returns the rules of a setting. Raises `Refused` (INVALID_CONFIG) with the rule that is wrong."""
    rules: list[MappingRule] = []
    text = text.strip()
    position = 0
    while (position := _end_of(_GAP, text, position)) < len(text):
        match = _RULE.match(text, position)
        end = _END.match(text, match.end()) if match is not None else None
        if match is None or end is None:
            why = "it must be DEFAULT, or RULE:pattern/replacement/ with L or U at the end or without"
            raise _refuse(text[position:], why)
        if len(rules) >= RULES_MAX:
            raise _refuse(match[0], f"there are more than {RULES_MAX} rules")
        rules.append(MappingRule() if match["default"] else _make_rule(match))
        position = end.end()
    return tuple(rules)


def map_name(rules: tuple[MappingRule, ...], name: str) -> str | None:
    """Returns the name of the principal for a distinguished name, None if there is none."""
    made = (rule.apply(name) for rule in rules)
    return next((each for each in made if each is not None), None) or None


def map_subject(text: str, subject: Subject) -> Principal:
    """Returns the principal of a certificate under the rules of a setting; ANONYMOUS without a certificate.

    Raises `Refused` (SASL_AUTHENTICATION_FAILED) if no rule matches its name, or if the rules make a name that no login
    may have."""
    name = format_name(subject)
    if not name:
        return ANONYMOUS
    mapped = _map_name(text, name)
    if mapped is None:
        why = f"no rule of {SETTING} makes a principal of the certificate's name {name[:200]!r}"
        raise Refused(Code.SASL_AUTHENTICATION_FAILED, why)
    if not can_be_issued(mapped):
        why = f"{SETTING} make {mapped[:200]!r} of the certificate's name {name[:200]!r}, which no login may have"
        raise Refused(Code.SASL_AUTHENTICATION_FAILED, why)
    return Principal(USER, mapped)


@lru_cache(maxsize=1024)
def _map_name(text: str, name: str) -> str | None:
    return map_name(parse_mapping_rules(text), name)


def _make_rule(match: re.Match[str]) -> MappingRule:
    try:
        pattern = CapturingPattern(match["pattern"])
    except ValueError as error:
        raise _refuse(match[0], f"the pattern cannot be used: {error}") from None
    parts: list[str | int] = []
    replacement, position = match["replacement"], 0
    while position < len(replacement):
        token = _TOKEN.match(replacement, position)
        if token is None:
            raise _refuse(match[0], "a $ in the replacement needs the number of a group after it")
        position = token.end()
        if token["number"] is not None:
            parts += _split_reference(token["number"], pattern.groups)
        else:
            parts.append(token["plain"] or token["escaped"])
    return MappingRule(pattern, tuple(parts), match["case"])


def _split_reference(digits: str, groups: int) -> tuple[str | int, ...]:
    """Returns the group of a reference and the digits after it. A group that does not exist is a text, as in Kafka."""
    known = [end for end in range(1, len(digits) + 1) if int(digits[:end]) <= groups]
    if not known:
        return (f"${digits}",)
    return int(digits[: known[-1]]), digits[known[-1] :]


def _end_of(form: re.Pattern[str], text: str, position: int) -> int:
    match = form.match(text, position)
    return position if match is None else match.end()


def _refuse(rule: str, why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{SETTING}: {rule[:200]!r}: {why}")
