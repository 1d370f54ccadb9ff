"""Tests of the C extension under sanitizers: it stays within its buffers, and nothing that it does is undefined in C.
The short form of `make sanitize`."""

from __future__ import annotations

import pytest

from tests import sanitize

LACK = sanitize.missing()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(LACK), reason=f"the sanitizers need {LACK}, which is not here"),
]


def run(*words: str) -> tuple[int, str]:
    """Returns the exit code of a command of tests/sanitize.py, and its output."""
    done = sanitize.run(list(words), capture_output=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def test_one_byte_too_far_is_reported() -> None:
    code, said = run("probe")
    assert code == sanitize.REPORTED and "heap-buffer-overflow" in said and "0 bytes to the right of" in said, said


def test_mutated_inputs_are_read_within_bounds_as_in_plain_python() -> None:
    code, said = run("fuzz", "--rounds", "500")
    assert code == 0 and "nothing found" in said, said


@pytest.mark.also("tests/test_sanitized.py::test_mutated_inputs_are_read_within_bounds_as_in_plain_python")
def test_unit_tests_of_records_run_without_a_report() -> None:
    """Tests that draw their inputs run in `make sanitize`; the inputs of the test above replace them here."""
    code, said = run("test", "-m", f"not hypothesis and {sanitize.MEASURABLE}")
    assert code == 0 and " passed" in said, said
