"""The README's first commands, run by a shell as they stand there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.serving import Served
from tests.sources import ROOT


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_produce_and_read_a_record_as_the_readme_says(tmp_path: Path) -> None:
    found = re.search(
        r"<!-- run: .*? -->\n```sh\n(.*?)```\n\n```json\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert found is not None
    with Served(tmp_path / "data") as broker:
        script = "set -e\n" + found[1].replace("http://127.0.0.1:8082", broker.url)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout[done.stdout.rindex('{"topic":"hello","partition"') :])
    shown = json.loads(found[2])
    for record in (*answer["records"], *shown["records"]):
        record["timestamp"] = 0
    assert answer == shown
