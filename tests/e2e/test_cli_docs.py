"""Test of examples on pages of docs/, run in order on one cluster: they succeed and print the output on the page."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_cluster import CliCluster, start_cluster
from tests.e2e.page_examples import check_output, read_examples, write_command
from tests.e2e.serving import SECONDS
from tests.sources import ROOT

PAGES = ("reference/cli.md", "how-to/size-and-cost.md", "how-to/write-an-application.md", "how-to/week.md")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[CliCluster]:
    with start_cluster("ours", place) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_examples_print_the_output_on_the_page(cluster: CliCluster, place: Path, page: str) -> None:
    write_command(place / "bin")
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TIERED_BROKERS": cluster.address, "XDG_CONFIG_HOME": str(place)}
    environment["STORE"] = f"file://{place}/data/bucket"
    text = (ROOT / "docs" / page).read_text().replace("http://127.0.0.1:8082", cluster.url)
    for script, shown in read_examples(text.replace("127.0.0.1:9092", cluster.address)):
        assert shown is not None, f"an example without its output: {script}"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            timeout=SECONDS * 2,
            env=environment,
            cwd=place,
        )
        assert (done.returncode, done.stderr) == (0, ""), (script, done)
        check_output(script, done.stdout, shown)
