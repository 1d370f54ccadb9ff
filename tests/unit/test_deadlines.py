"""Deadlines compared with a dictionary that does the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.deadlines import DeadlineKey, Deadlines

NAMES: list[DeadlineKey] = [("member", "g", str(n)) for n in range(4)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(NAMES), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("take"), st.just(NAMES[0]), st.integers(0, 50)),
    ),
    max_size=40,
)


@given(STEPS)
def test_deadlines_agree_with_a_dictionary(steps: list[tuple[str, DeadlineKey, int]]) -> None:
    deadlines, plain = Deadlines(), dict[DeadlineKey, int]()
    for what, name, at in steps:
        if what == "set":
            deadlines.set(name, at)
            plain[name] = at
        elif what == "cancel":
            deadlines.cancel(name)
            plain.pop(name, None)
        else:
            due = sorted((when, each) for each, when in plain.items() if when <= at)
            assert list(deadlines.pop_due(at)) == [each for _, each in due]
            for _, each in due:
                del plain[each]
        assert deadlines.next_due_ms() == min(plain.values(), default=None)
        assert {each for each in NAMES if each in deadlines} == set(plain)


def test_deadline_set_while_others_are_handled_is_due_too() -> None:
    deadlines = Deadlines()
    deadlines.set(NAMES[0], 1)
    taken = []
    for name in deadlines.pop_due(10):
        taken.append(name)
        if name == NAMES[0]:
            deadlines.set(NAMES[1], 5)
            deadlines.set(NAMES[2], 11)
    assert taken == NAMES[:2]
    assert deadlines.next_due_ms() == 11


def test_deadline_that_moves_often_takes_no_memory() -> None:
    deadlines = Deadlines()
    for at in range(10_000):
        deadlines.set(NAMES[0], at)
    for n in range(10_000):
        deadlines.set(("member", "g", f"m{n}"), 1_000_000 + n)
        deadlines.cancel(("member", "g", f"m{n}"))
    assert len(deadlines._heap) < 200
    assert deadlines.next_due_ms() == 9_999
