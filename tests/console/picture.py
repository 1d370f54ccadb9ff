"""`python -m tests.console.picture` writes docs/pictures/console.png anew: a topic of a live cluster in both tiers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.console.site import open_browser, open_site
from tests.console.warehouse import fill_warehouse
from tests.sources import ROOT

PICTURE = ROOT / "docs" / "pictures" / "console.png"


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="tiered-console-") as directory,
        open_browser() as browser,
        open_site(browser, Path(directory)) as site,
    ):
        site.tiered("topic", "consume", "orders", "-g", "shipping", "-n", "2500")
        fill_warehouse(site)
        with site.page("topics/orders", color_scheme="light") as page:
            page.locator("svg.tiers .position title").first.wait_for(state="attached")
            page.locator("svg.tiers .loaded title").first.wait_for(state="attached")
            page.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": 1280, "height": 640})
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
