"""Tests of the choice of the record functions: the C extension if it was built, plain Python on request and as
fallback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiered.records import native, pure, pure_compact

SHOW = "from tiered.records import native; print(native.NATIVE, native.crc32c(b'123456789'), native.crc32c.__module__)"
ROOT = Path(native.__file__).parents[2]


def run(**env: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout


def test_plain_python_is_used_on_request() -> None:
    assert run(TIERED_PURE="1").split() == ["False", str(0xE3069283), "tiered.records.pure"]


@pytest.mark.skipif(not native.NATIVE, reason="the C extension is not built here")
def test_extension_is_used_if_it_was_built() -> None:
    assert run(TIERED_PURE="0").split()[:2] == ["True", str(0xE3069283)]


@pytest.mark.skipif(not native.NATIVE or sys.platform != "linux", reason="the C extension is not built here")
def test_extension_aborts_a_process_whose_stack_is_overwritten() -> None:
    (built,) = Path(native.__file__).parent.glob("_native*.so")
    assert b"__stack_chk_fail" in built.read_bytes()


def test_every_function_returns_a_new_reference_to_none() -> None:
    """Python 3.12 and 3.13 build `Py_RETURN_NONE` without a new reference, because None is immortal there. An extension
    that they build runs on 3.11 too, where the process aborts once None has no references left."""
    sources = sorted((Path(native.__file__).parent / "c").glob("*.c"))
    assert sources and not [path.name for path in sources if re.search(r"\bPy_RETURN_", path.read_text())]


def test_c_and_python_have_the_same_names() -> None:
    compaction = {"filter_batches", "find_keyless", "put_keys"}
    assert compaction <= vars(pure_compact).keys()
    assert set(native.__all__) == {*pure.__all__, *compaction, "NATIVE", "WHY_PURE"}
