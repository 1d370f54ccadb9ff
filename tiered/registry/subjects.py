"""Names of subjects. A subject outside the default context has the context in front: `:.CONTEXT:NAME`."""

from __future__ import annotations

from tiered.registry.refusals import INVALID_SUBJECT, RegistryRefused

DEFAULT_CONTEXT = "."
ALL_CONTEXTS = ":*:"
GLOBAL = ""
"""Stands for all subjects in tables of levels and modes."""
NAME_CHARACTERS = 1_000
RESERVED = ("__GLOBAL", "__EMPTY")
TOPIC_SUFFIXES = ("-key", "-value")


def split_subject(text: str) -> tuple[str, str]:
    """Returns context and name of a subject. The name is empty if the text is only a context: `:.CONTEXT:`."""
    if not text.startswith(":."):
        return DEFAULT_CONTEXT, text
    context, colon, name = text[1:].partition(":")
    return (context, name) if colon else (context, "")


def qualify(context: str, name: str) -> str:
    """Returns the one form of a subject: without a context if that is the default one."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def parse_subject(text: str, *, may_be_context: bool = False) -> str:
    """Returns a subject in its one form. Raises `RegistryRefused` for a name that no subject may have.

    `may_be_context`: levels and modes also belong to a whole context.
    """
    context, name = split_subject(text)
    is_printable = text.isprintable() and len(text) <= NAME_CHARACTERS
    if not is_printable or name in RESERVED or not (name.strip() or (may_be_context and context != DEFAULT_CONTEXT)):
        raise RegistryRefused(INVALID_SUBJECT, f"The specified subject '{text[:100]}' is not a valid.")
    return qualify(context, name)


def context_of(subject: str) -> str:
    """Returns the context of a subject."""
    return split_subject(subject)[0]


def scopes_of(subject: str) -> tuple[str, ...]:
    """Returns where a level or mode of a subject is looked up: the subject, its context, all subjects."""
    context = context_of(subject)
    return (subject, GLOBAL) if context == DEFAULT_CONTEXT else (subject, f":{context}:", GLOBAL)


def qualify_reference(name: str, referrer: str) -> str:
    """Returns the subject that a reference names: in the context of the referrer, unless it names another one."""
    return parse_subject(name if name.startswith(":.") else qualify(context_of(referrer), name))


def topic_of(subject: str) -> str:
    """Returns the topic that a subject `TOPIC-key` or `TOPIC-value` belongs to. Empty for other names, and for subjects
    outside the default context: a right on a topic gives none there."""
    context, name = split_subject(subject)
    if context == DEFAULT_CONTEXT:
        for suffix in TOPIC_SUFFIXES:
            if name.endswith(suffix):
                return name.removesuffix(suffix)
    return ""


def has_prefix(subject: str, prefix: str) -> bool:
    """True if a listing with this prefix has the subject. Without a context, the prefix means the default one; `:*:`
    means all."""
    if prefix.startswith(ALL_CONTEXTS):
        return split_subject(subject)[1].startswith(prefix.removeprefix(ALL_CONTEXTS))
    wanted, name_prefix = split_subject(prefix)
    context, name = split_subject(subject)
    return context == wanted and name.startswith(name_prefix)
