"""A hook of MkDocs: pages of docs/ link to files of the repository outside of it, and the site has these too. Lists in
lists get the indentation that MkDocs needs.

Each such file gets the place `repository/<path>` in the site. Pages of Markdown become pages, all others stay files.
Links to a folder lead to its README.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
OUTSIDE = "repository"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FOLDER = re.compile(r"\[([^\]\[]+)\]\(([^)#\s]+/?)\)")


def in_repository(src_uri: str) -> str:
    """Returns the path in the repository of a file of the site."""
    outside = src_uri.removeprefix(f"{OUTSIDE}/")
    return outside if outside != src_uri else f"{DOCS}/{src_uri}"


def in_site(path: str) -> str:
    """Returns the place in the site of a file of the repository."""
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{OUTSIDE}/{path}"


def target_of(page: str, link: str) -> str | None:
    """Returns the file of the repository to which a link leads, None for another kind of link."""
    if re.match(r"[a-z]+:", link):
        return None
    path = Path(os.path.normpath(Path(page).parent / link))
    if (ROOT / path).is_dir():
        path /= "README.md"
    return path.as_posix() if (ROOT / path).is_file() else None


def linked_files(page: str) -> list[str]:
    """Returns the files of the repository to which a page links."""
    found = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [target for _, link, _ in found if (target := target_of(page, link))]


def on_files(files: Files, config: Any) -> Files:
    """Adds each file outside of docs/ to which a page links, and those to which these link."""
    waiting = [in_repository(file.src_uri) for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        for path in linked_files(waiting.pop()):
            if path in seen or path.startswith(f"{DOCS}/"):
                continue
            seen.add(path)
            content = (ROOT / path).read_bytes()
            files.append(File.generated(config, in_site(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            if path.endswith(".md"):
                waiting.append(path)
    return files


def indent(lines: list[str]) -> Iterator[str]:
    """Yields the lines of a page with four spaces for each level of a list, where ours have two or three. A block of
    code in a list moves as a whole."""
    more, in_code = 0, False
    for line in lines:
        text = line.lstrip(" ")
        spaces = len(line) - len(text)
        if not in_code:
            level = 0 if spaces < 2 else 1 if spaces < 4 else 2
            more = 4 * level - spaces if level else 0
        if text.startswith("```"):
            in_code = not in_code
        yield " " * more + line if text else line


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links to the places in the site. A link to a folder without a README.md becomes its text."""
    here = in_repository(page.file.src_uri)

    def drop(found: re.Match[str]) -> str:
        folder = ROOT / os.path.normpath(Path(here).parent / found[2])
        return found[1] if folder.is_dir() and not (folder / "README.md").is_file() else found[0]

    def lead(found: re.Match[str]) -> str:
        target = target_of(here, found[2])
        if target is None:
            return found[0]
        place = os.path.relpath(in_site(target), os.path.dirname(page.file.src_uri))
        return f"{found[1]}{place}{found[3]}"

    return "\n".join(indent(LINK.sub(lead, FOLDER.sub(drop, markdown)).splitlines()))
