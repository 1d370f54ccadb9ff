"""One browser for all tests of this folder, and one cluster for those that stop no broker. Playwright runs an event
loop meanwhile, in which other tests cannot run theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.site import Site, open_browser, open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="package")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(browser, tmp_path_factory.mktemp("console")) as opened:
        yield opened
