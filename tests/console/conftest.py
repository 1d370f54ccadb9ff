"""One cluster and one browser for all tests of a file. Playwright runs an event loop meanwhile, in which other tests
cannot run theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.site import Site, open_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("console")) as opened:
        yield opened
