"""Tests of the console's pages by axe-core, in both themes: no finding that it calls serious or critical.

axe-core comes with a package of the tools of the tests, and is no part of an install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.console.site import Site
from tests.console.test_group_acts import open_act
from tests.console.test_pages import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Page

GRAVE = ("serious", "critical")
OPERATORS = {name: name.capitalize() for name in ("tables", "transactions", "access", "settings", "moves", "audit")}
"""The pages of operators, and words of each."""


OTHERS = {
    "topics/orders?pick=1:0": "First records",
    "topics/orders?axis=time": "Partition 2",
    "topics/orders/messages?partition=all&from=start&filter=7": "scanned in 3 partitions",
    "access?tab=users": "Add a user",
    "access?tab=quotas": "Set a quota",
    "no/such": "No such page",
}
"""Pages with a part that is opened by the address."""
DIALOGUES = {
    "topics": "Create a topic",
    "topics/orders": "Delete records",
    "groups/billing": "Reset offsets",
    "access?tab=quotas": "Set a quota",
}
"""Pages, and an act of each."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("path", "words"), {**PAGES, **OPERATORS, **OTHERS}.items())
def test_page_has_no_grave_finding_of_axe(site: Site, path: str, words: str, theme: str) -> None:
    with site.page(path, color_scheme=theme) as page:
        page.get_by_text(words).first.wait_for()
        page.wait_for_load_state("networkidle")
        check_page(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("path", "label"), DIALOGUES.items())
def test_dialogue_has_no_grave_finding_of_axe(site: Site, path: str, label: str, theme: str) -> None:
    with site.page(path, color_scheme=theme) as page:
        open_act(page, label)
        check_page(page)


def check_page(page: Page) -> None:
    """Fails if axe-core has a grave finding."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    found: dict[str, Any] = axe.Axe().run(page).response
    grave = [
        (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found["violations"]
        if each["impact"] in GRAVE
    ]
    assert not grave
    assert found["passes"], "axe has looked at nothing"
