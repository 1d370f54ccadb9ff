"""The tutorial, and the page on restores behind it, typed line by line into one shell."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.e2e.page_examples import check_page
from tests.ports import held_port
from tests.sources import ROOT

DOCS = ROOT / "docs"


def follow_tutorial(folder: Path, path: str) -> None:
    """Runs both pages in an empty folder, with the command `tiered` of a search path. Restores come before the stop."""
    tutorial = (DOCS / "start" / "tutorial.md").read_text()
    lessons, heading, stop = tutorial.partition("## 8. Stop\n")
    assert heading
    pages = lessons + (DOCS / "how-to" / "back-up-and-restore.md").read_text() + stop
    with ExitStack() as held:
        kafka, http = (f"127.0.0.1:{held.enter_context(held_port()).getsockname()[1]}" for _ in range(2))
        settings = {"TIERED_KAFKA": kafka, "TIERED_HTTP": http, "TIERED_BROKERS": kafka}
        check_page(pages.replace("127.0.0.1:8082", http), folder, path, settings)
