"""Tests of the console's pages: each shows its subject, and axe-core finds nothing serious or critical in either theme.

axe-core comes with a package of the tools of the tests, and is no part of an install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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
ROWS = 8
"""Rows of a table that axe-core looks at. Those behind them are like them, and 200 of them take it 15 seconds."""
HIDE = """rule => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(rule);
    document.adoptedStyleSheets = [sheet];
}"""
RULES: dict[Literal["light", "dark"], dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}},
}
"""Themes, and the rules of axe-core that apply to each: a dark page differs from a light one by its colours alone."""


@pytest.mark.parametrize(("path", "words"), {**PAGES, **OPERATORS, **OTHERS}.items())
def test_page_shows_its_subject_and_axe_finds_nothing_grave(site: Site, path: str, words: str) -> None:
    with site.visit(path) as page:
        page.get_by_text(words).first.wait_for()
        wait_for_replies(page)
        if path != "no/such":  # which has no title of its own
            check_frame(page)
        check_page(page)


@pytest.mark.parametrize(("path", "label"), DIALOGUES.items())
def test_dialogue_has_no_grave_finding_of_axe(site: Site, path: str, label: str) -> None:
    with site.page(path, color_scheme="light") as page:
        open_act(page, label)
        check_page(page)


def wait_for_replies(page: Page) -> None:
    """Returns once no part of a page waits for its first reply."""
    page.wait_for_function(
        "() => ![...document.querySelectorAll('p')].some((each) => each.textContent === 'Loading …')"
    )


def check_frame(page: Page) -> None:
    """Fails if a page is wider than its window, or has not one heading and a title."""
    page.wait_for_function("() => document.title.includes('·')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"
    assert page.locator("h1").count() == 1


def check_page(page: Page) -> None:
    """Fails if axe-core has a grave finding on a page in light colours, or one about its colours in dark ones."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page.evaluate(axe.Axe().axe_script)
    page.evaluate(HIDE, f"tbody tr:nth-child(n + {ROWS + 1}) {{ display: none }}")
    for theme, rules in RULES.items():
        page.emulate_media(color_scheme=theme)
        found: dict[str, Any] = page.evaluate("options => axe.run(options)", {"resultTypes": ["violations"], **rules})
        grave = [
            (theme, each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found["violations"]
            if each["impact"] in GRAVE
        ]
        assert not grave
        assert found["passes"], "axe has looked at nothing"
