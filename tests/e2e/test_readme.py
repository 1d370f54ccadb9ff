"""Test of the README's first commands, run by a shell unchanged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.page_examples import write_command
from tests.e2e.serving import ServeProcess
from tests.sources import ROOT


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_commands_of_the_readme_produce_and_read_a_record(tmp_path: Path) -> None:
    blocks = re.findall(
        r"<!-- run: .*? -->\n```sh\n(.*?)```\n\n```json\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert len(blocks) == 2
    with ServeProcess(tmp_path / "data") as broker:
        environment = {**os.environ, "TIERED_BROKERS": broker.kafka, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        write_command(tmp_path)
        for commands, shown in blocks:
            script = "set -e\n" + commands.replace("http://127.0.0.1:8082", broker.url).replace("$PWD/.venv/bin:", "")
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=240, env=environment)
            assert done.returncode == 0, done.stderr
            assert _timeless(done.stdout[done.stdout.index("{") :]) == _timeless(shown)


def _timeless(text: str) -> Any:
    answer = json.loads(text)
    for record in (answer, *answer.get("records", [])):
        record.pop("timestamp", None)
    return answer
