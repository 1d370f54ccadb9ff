"""Tests of the console's pages by axe-core, in both themes: no finding that it calls serious or critical.

axe-core comes with a package of the tools of the tests, and is no part of an install.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.site import Site
from tests.console.test_pages import PAGES

GRAVE = ("serious", "critical")
OPERATORS = {name: name.capitalize() for name in ("tables", "transactions", "access", "settings", "moves", "audit")}
"""The pages of operators, and words of each."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("path", "words"), {**PAGES, **OPERATORS}.items())
def test_page_has_no_grave_finding_of_axe(site: Site, path: str, words: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    with site.page(path, color_scheme=theme) as page:
        page.get_by_text(words).first.wait_for()
        page.wait_for_load_state("networkidle")
        found: dict[str, Any] = axe.Axe().run(page).response
    grave = [
        (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found["violations"]
        if each["impact"] in GRAVE
    ]
    assert not grave
    assert found["passes"], "axe has looked at nothing"
