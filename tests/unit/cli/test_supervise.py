"""Tests of supervised processes: they start, are started again, and stop together. The processes are real and short."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from tiered_api.cli.broker.supervise import LINE_MAX, Program, Supervisor, describe_exit, next_pause, read_lines

STAYS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"bye\\n"), sys.exit(0)))
os.write(1, b"ready at %s\\n" % sys.argv[1].encode())
while True: signal.pause()
"""
DEAF = STAYS.replace('lambda *_: (os.write(1, b"bye\\n"), sys.exit(0))', "signal.SIG_IGN")
DIES = "import os, sys; print('ready at', sys.argv[1], flush=True); os.kill(os.getpid(), 9)"
Output = list[tuple[str, str]]


def program(name: str, *scripts: str) -> Program:
    """Returns a program that runs one script after the other, and the last one repeatedly. Each gets the ready line of
    the one before."""
    turn = count()

    def command(ready_line: str) -> Sequence[str]:
        script = scripts[min(next(turn), len(scripts) - 1)]
        return [sys.executable, "-S", "-c", script, ready_line.removeprefix("ready ") or "first"]

    return Program(name, command, "ready ")


def run(
    *programs: Program, act: Callable[[Supervisor, Output], None], stop_seconds: float = 30.0
) -> tuple[int, Output]:
    """Returns the exit code and the output; `act` gets each new line."""
    output: Output = []

    async def main() -> int:
        def say(name: str, line: str) -> None:
            output.append((name, line))
            act(fleet, output)

        fleet = Supervisor(programs, say, "up", stop_seconds=stop_seconds, pauses=(0.01, 0.04))
        return int(await fleet.run(lambda said: say("all", " | ".join(said))))

    return asyncio.run(main()), output


def stop_when(*line: str) -> Callable[[Supervisor, Output], None]:
    """Stops the supervisor after this output, once for each time that it appears."""

    def act(fleet: Supervisor, output: Output) -> None:
        if output[-1] == line:
            fleet.request_stop()

    return act


def test_processes_stop_one_after_the_other_in_reverse_order() -> None:
    everybody = ("all", "ready at first | ready at first | ready at first")
    code, output = run(*(program(name, STAYS) for name in "abc"), act=stop_when(*everybody))
    stops = [("c", "bye"), ("b", "bye"), ("a", "bye")]
    expected = [step for name, bye in stops for step in (("up", f"stopping {name}"), (name, bye))]
    assert (code, output) == (0, [everybody, *expected])


def test_failed_first_start_ends_all_with_its_exit_code() -> None:
    code, output = run(
        program("a", STAYS), program("b", "import sys; print('no such key', file=sys.stderr); sys.exit(2)"),
        act=lambda *_: None,
    )  # fmt: skip
    assert code == 2
    assert output[:3] == [
        ("b", "no such key"),
        ("up", "b did not start: it ended with exit code 2"),
        ("up", "stopping a"),
    ]


def test_program_starts_once_those_before_it_are_ready(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    is_ready = f"import os; ready = os.path.exists({str(sign)!r})\n"
    says = "import sys; print('early' if not ready else 'in time', file=sys.stderr, flush=True)\n"
    first = program("a", f"open({str(sign)!r}, 'w').close()\n" + STAYS)
    second = program("b", is_ready + says + STAYS)._replace(after=frozenset("a"))
    code, output = run(first, second, act=stop_when("all", "ready at first | ready at first"))
    assert code == 0 and ("b", "in time") in output and ("up", "b starts after a") in output


def test_program_that_waits_for_others_ends_with_them() -> None:
    waits = program("b", STAYS)._replace(after=frozenset("a"))
    code, output = run(program("a", "import sys; sys.exit(2)"), waits, act=lambda *_: None)
    assert code == 2 and not any(name == "b" for name, _ in output)


@pytest.mark.parametrize("script", ["pass", "import os; os.kill(os.getpid(), 9)"])
def test_first_start_that_exits_without_an_error_code_is_a_failure(script: str) -> None:
    assert run(program("a", script), act=lambda *_: None)[0] == 1


def test_ended_process_is_restarted_after_growing_pauses() -> None:
    code, output = run(
        program("b", DIES, "import sys; sys.exit(3)", "import sys; sys.exit(4)", STAYS),
        act=stop_when("up", "b is ready again"),
    )  # fmt: skip
    assert (code, output[0]) == (0, ("all", "ready at first"))
    assert output[1:5] == [
        ("up", "b was killed by SIGKILL, and is started again in 0.01 s"),
        ("up", "b ended with exit code 3, and is started again in 0.02 s"),
        ("up", "b ended with exit code 4, and is started again in 0.04 s"),
        ("up", "b is ready again"),
    ]


def test_ready_process_is_restarted_while_others_still_start(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    waits = f"import os, time\nwhile not os.path.exists({str(sign)!r}): time.sleep(0.01)\n"

    def act(fleet: Supervisor, output: Output) -> None:
        if output[-1] == ("up", "b was killed by SIGKILL, and is started again in 0.01 s"):
            sign.touch()
        if output[-1][0] == "all":
            fleet.request_stop()

    code, output = run(program("a", waits + STAYS), program("b", DIES, STAYS), act=act)
    assert code == 0 and ("all", "ready at first | ready at at first") in output


def test_process_that_does_not_stop_is_killed_with_its_exit_code() -> None:
    code, output = run(program("a", DEAF), act=stop_when("all", "ready at first"), stop_seconds=0.05)
    assert code == 1
    assert output[1:] == [("up", "stopping a"), ("up", "killing a: it took more than 0.05 s to stop")]


def test_second_stop_kills_the_remaining_processes() -> None:
    def act(fleet: Supervisor, output: Output) -> None:
        if output[-1][0] == "all" or output[-1] == ("up", "stopping b"):
            fleet.request_stop()

    code, output = run(program("a", DEAF), program("b", DEAF), act=act)
    assert code == 1
    assert [line for _, line in output[1:]] == [
        "stopping b", "killing b: second signal", "stopping a", "killing a: second signal",
    ]  # fmt: skip


def test_stop_during_a_pause_starts_nothing() -> None:
    dies = "import sys; print('ready at', sys.argv[1], flush=True); sys.exit(5)"
    code, output = run(
        program("a", dies), act=stop_when("up", "a ended with exit code 5, and is started again in 0.01 s")
    )
    assert (code, len(output)) == (0, 2)


def restart_when(*line: str) -> Callable[[Supervisor, Output], None]:
    """Requests a restart after this output, and a stop once it is over."""

    def act(fleet: Supervisor, output: Output) -> None:
        if output[-1] == line:
            fleet.request_restart()
        elif output[-1][1] == "all processes were restarted" or "the restart ends" in output[-1][1]:
            fleet.request_stop()

    return act


def test_restart_goes_on_once_a_process_is_ready_again() -> None:
    everybody = ("all", "ready at first | ready at first")
    code, output = run(program("a", STAYS), program("b", STAYS), act=restart_when(*everybody))
    assert code == 0
    assert output[: output.index(("up", "all processes were restarted")) + 1] == [
        everybody,
        *[
            step
            for name in "ab"
            for step in (("up", f"restarting {name}"), (name, "bye"), ("up", f"{name} is ready again"))
        ],
        ("up", "all processes were restarted"),
    ]


def test_restart_ends_at_a_process_that_does_not_get_ready() -> None:
    everybody = ("all", "ready at first | ready at first")
    fails = "import sys; sys.exit(3)"
    _, output = run(program("a", STAYS, fails, STAYS), program("b", STAYS), act=restart_when(*everybody))
    assert ("up", "the restart ends here: a did not get ready") in output
    assert ("up", "restarting b") not in output and ("up", "stopping b") in output


def test_restart_kills_a_process_that_does_not_stop() -> None:
    code, output = run(
        program("a", DEAF, STAYS), act=restart_when("all", "ready at first"), stop_seconds=0.2
    )  # fmt: skip
    assert ("up", "killing a: it took more than 0.2 s to stop") in output
    assert ("up", "all processes were restarted") in output and code == 0


def test_restart_is_refused_while_a_process_is_not_ready() -> None:
    def act(fleet: Supervisor, output: Output) -> None:
        if "is started again in" in output[-1][1]:
            fleet.request_restart()
        elif output[-1] == ("up", "no restart: a is not ready"):
            fleet.request_stop()

    code, output = run(program("a", DIES, STAYS), act=act)
    assert code == 0 and ("up", "restarting a") not in output


def test_error_of_one_stop_is_the_error_of_all() -> None:
    fails = STAYS.replace("sys.exit(0)", "sys.exit(1)")
    code, output = run(program("a", fails), act=stop_when("all", "ready at first"))
    assert code == 1 and output[-1] == ("up", "a ended with exit code 1")


def test_pauses_double_up_to_a_limit_and_reset_after_a_good_run() -> None:
    pauses, last = [], 0.0
    for _ in range(7):
        last = next_pause(last, False, (1.0, 30.0))
        pauses.append(last)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert next_pause(30.0, True, (1.0, 30.0)) == 1


def test_exit_by_a_signal_is_logged_by_name() -> None:
    assert [describe_exit(code) for code in (0, 4, -15, -99)] == [
        "ended with exit code 0", "ended with exit code 4", "was killed by SIGTERM", "was killed by signal 99",
    ]  # fmt: skip


def test_output_is_split_into_lines_of_bounded_length() -> None:
    async def main() -> list[str]:
        stream = asyncio.StreamReader()
        stream.feed_data(b"one\ntw")
        stream.feed_data(b"o\n\xff\n" + b"x" * (LINE_MAX + 10) + b"\nend")
        stream.feed_eof()
        return [line async for line in read_lines(stream)]

    first, second, third, *pieces, last = asyncio.run(main())
    assert (first, second, third, last) == ("one", "two", "�", "end")
    assert "".join(pieces) == "x" * (LINE_MAX + 10) and max(map(len, pieces)) <= 2 * LINE_MAX
