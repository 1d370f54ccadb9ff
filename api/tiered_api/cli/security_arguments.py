"""The commands about what principals may do, and about what they did: acl, user, quota and audit."""

from __future__ import annotations

import argparse
import math

from tiered.security.acls import Operation
from tiered.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS
from tiered_api.cli.kafka_arguments import add_verb
from tiered_api.cli.parsing import Commands, add_dry_run_option, add_noun, number_within

DEFAULT_MECHANISM = "SCRAM-SHA-512"
EVENTS_MAX = 100_000
RESOURCES = (
    ("--topic", "TOPIC", "a topic"),
    ("--group", "GROUP", "a consumer group"),
    ("--transactional-id", "ID", "a transactional id"),
    ("--delegation-token", "TOKEN", "a delegation token"),
    ("--user-principal", "PRINCIPAL", "a user, for its delegation tokens"),
)
QUOTA_OWNERS = (
    ("user", "USER", "a user"),
    ("client-id", "CLIENT-ID", "a client id"),
    ("ip", "IP", "an address"),
)
_OPERATIONS = {each.name.replace("_", ""): each for each in Operation if each >= Operation.ALL}


def add_security_commands(commands: Commands) -> None:
    """Adds `tiered acl`, `tiered user`, `tiered quota` and `tiered audit`."""
    add_noun(commands, "acl", "the ACLs: which operations a principal may carry out", _acl)
    add_noun(commands, "user", "the users of a cluster that log in with SCRAM", _user)
    add_noun(commands, "quota", "the quotas of users, client ids and addresses", _quota)
    _audit(commands)


def _audit(commands: Commands) -> None:
    audit = add_verb(
        commands, "audit", "print events of the audit log: logins, refusals and changes", "security.audit", "show_audit"
    )
    audit.add_argument("--topic", metavar="TOPIC", help="topic of the audit log (default: tiered.audit.topic)")
    audit.add_argument("--file", metavar="FILE", help="read this file (tiered.audit.file of a broker), no topic")
    audit.add_argument("--event", choices=("change", "login", "operation", "share"), help="only events of this kind")
    audit.add_argument("--principal", metavar="User:NAME", help="only events of this principal")
    audit.add_argument("--resource", metavar="NAME", help="only events about this topic, group, user or other resource")
    audit.add_argument("--since", metavar="TIME", help="only later events: -1h, 2026-03-01T12:00:00Z, unix ms")
    audit.add_argument(
        "-n", "--num", type=number_within(1, EVENTS_MAX), default=100, metavar="N",
        help="the last N of these events (default 100)",
    )  # fmt: skip


def _acl(verbs: Commands) -> None:
    module = "security.acls"
    listed = add_verb(verbs, "list", "list ACLs", module, "list_acls", aliases=("ls",))
    added = add_verb(verbs, "add", "add ACLs", module, "add_acls", aliases=("create",))
    removed = add_verb(verbs, "remove", "remove ACLs", module, "remove_acls", aliases=("delete", "rm"))
    for verb in (listed, added, removed):
        for option, form, what in RESOURCES:
            verb.add_argument(option, action="append", default=[], metavar=form, help=f"{what} by its name, * for all")
        verb.add_argument("--cluster", action="store_true", help="the cluster")
        verb.add_argument(
            "--allow-principal", action="append", default=[], metavar="User:NAME", help="a principal that is allowed"
        )
        verb.add_argument(
            "--deny-principal", action="append", default=[], metavar="User:NAME", help="a principal that is denied"
        )
        verb.add_argument(
            "--host", action="append", default=[], metavar="IP", help="the address of the client, * for all"
        )
        verb.add_argument(
            "--operation", action="append", default=[], type=_operation, metavar="OPERATION",
            help="Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, ... or All",
        )  # fmt: skip
    added.add_argument(
        "--resource-pattern-type", dest="pattern", choices=("literal", "prefixed"), default="literal",
        help="take the names as they are, or as prefixes (default literal)",
    )  # fmt: skip
    for verb in (listed, removed):
        verb.add_argument(
            "--principal", action="append", default=[], metavar="User:NAME", help="a principal, allowed or denied"
        )
        verb.add_argument(
            "--resource-pattern-type", dest="pattern", choices=("any", "match", "literal", "prefixed"), default="any",
            help="match: all rules that apply to the named resources (default any)",
        )  # fmt: skip
    for verb in (added, removed):
        add_dry_run_option(verb, "only show the rules, change nothing")
        _add_force_option(verb)


def _user(verbs: Commands) -> None:
    module = "security.users"
    listed = add_verb(verbs, "list", "list users with their mechanisms", module, "list_users", aliases=("ls",))
    listed.add_argument("users", metavar="USER", nargs="*")
    added = add_verb(verbs, "add", "add a user", module, "add_user", aliases=("create",))
    altered = add_verb(verbs, "alter", "change the password of a user", module, "alter_user")
    for verb in (added, altered):
        verb.add_argument("user", metavar="USER")
        verb.add_argument(
            "--password-file", metavar="FILE", help="the password is the first line of this file; - for standard input"
        )
        verb.add_argument(
            "--mechanism", choices=tuple(MECHANISMS), default=DEFAULT_MECHANISM,
            help=f"the mechanism of the password (default {DEFAULT_MECHANISM})",
        )  # fmt: skip
        verb.add_argument(
            "--iterations", type=number_within(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN, metavar="N",
            help=f"iterations of the hash (default {ITERATIONS_MIN})",
        )  # fmt: skip
    added.add_argument("--force", action="store_true", help="also if no listener takes the mechanism")
    removed = add_verb(verbs, "remove", "remove users", module, "remove_users", aliases=("delete", "rm"))
    removed.add_argument("users", metavar="USER", nargs="+")
    removed.add_argument("--mechanism", choices=tuple(MECHANISMS), help="remove only the passwords of this mechanism")
    removed.add_argument("--with-rules", action="store_true", help="remove the ACLs and quotas of these users too")
    add_dry_run_option(removed, "only show what would be removed, change nothing")
    _add_force_option(removed)


def _quota(verbs: Commands) -> None:
    module = "security.quotas"
    listed = add_verb(verbs, "list", "list quotas", module, "list_quotas", aliases=("ls", "describe"))
    changed = add_verb(verbs, "set", "set quotas of one owner", module, "set_quotas", aliases=("alter",))
    removed = add_verb(verbs, "remove", "remove quotas of one owner", module, "remove_quotas", aliases=("delete", "rm"))
    for verb in (listed, changed, removed):
        for option, form, what in QUOTA_OWNERS:
            choice = verb.add_mutually_exclusive_group()
            choice.add_argument(f"--{option}", metavar=form, help=f"{what} by its name")
            choice.add_argument(
                f"--default-{option}",
                action="store_true",
                help=f"each {what.partition(' ')[2]} without a quota of its own",
            )
    changed.add_argument(
        "quotas", metavar="QUOTA=VALUE", nargs="+", type=_quota_value, help="such as producer_byte_rate=1048576"
    )
    removed.add_argument("keys", metavar="QUOTA", nargs="*", help="only these quotas (default all of the owner)")
    for verb in (changed, removed):
        add_dry_run_option(verb, "only check the change, change nothing")


def _quota_value(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not QUOTA=NUMBER") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r}: a quota is finite; `quota remove` ends it")
    return key, number


def _add_force_option(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--force", action="store_true", help="also if nobody can administrate the cluster after it")


def _operation(text: str) -> Operation:
    found = _OPERATIONS.get(text.replace("_", "").replace("-", "").upper())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(each.name for each in _OPERATIONS.values())}"
        )
    return found
