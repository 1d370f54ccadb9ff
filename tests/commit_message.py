"""Checks a commit message: `area: verb object`, imperative, and a body with the reason.

python -m tests.commit_message FILE      for git's commit-msg hook
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SUBJECT_MAX, LINE_MAX = 72, 100
_BY_GIT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ?")
_SUBJECT = re.compile(r"[a-z][\w.-]*(?:, [\w.-]+)*: (?P<verb>[a-z][\w-]*) \S")
_NO_IMPERATIVE = re.compile(r"[a-z]{3,}(?:ed|ing)")
_VERBS = {"bring", "embed", "feed", "need", "seed", "shed", "speed", "string", "exceed", "proceed"}


def faults(message: str) -> Iterator[str]:
    """Yields each fault as a sentence; none for messages that git itself writes."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    while lines and not lines[-1]:
        lines.pop()
    subject = lines[0] if lines else ""
    if _BY_GIT.match(subject):
        return
    found = _SUBJECT.match(subject)
    if found is None:
        yield "the subject is not `area: verb object` in small letters, such as `hot: check a log that opens late`"
    elif _NO_IMPERATIVE.fullmatch(found["verb"]) and found["verb"] not in _VERBS:
        yield f"`{found['verb']}` is no imperative"
    if len(subject) > SUBJECT_MAX:
        yield f"the subject has {len(subject)} characters, {SUBJECT_MAX} are allowed"
    if subject.endswith("."):
        yield "the subject ends with a full stop"
    if len(lines) > 1 and lines[1]:
        yield "the second line is not empty"
    if len([line for line in lines[1:] if line]) == 0:
        yield "there is no body: say why, and how it was tested"
    yield from (
        f"line {number} is longer than {LINE_MAX}" for number, line in enumerate(lines, 1) if len(line) > LINE_MAX
    )


def main() -> None:
    """Prints the faults and returns 1, or returns 0."""
    found = [*faults(Path(sys.argv[1]).read_text())]
    for fault in found:
        print(f"commit message: {fault} (CONTRIBUTING.md, Commits)", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
