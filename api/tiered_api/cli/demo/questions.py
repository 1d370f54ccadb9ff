"""Three SQL queries of the typed table, and their expected results, computed from the input in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tiered_api.cli.demo.flights import Departure, Flight

Answer = list[tuple[Any, ...]]

COLUMNS = ("carrier", "origin", "month", "dep_delay", "arr_delay")
"""The fields of a flight that the queries use."""


class Question(NamedTuple):
    """A question with its query, and the computation of its result without the table."""

    words: str
    query: str
    expected: Callable[[Sequence[Flight]], Answer]


def _rank_carriers(flights: Sequence[Flight]) -> Answer:
    counts = Counter(flight["carrier"] for flight in flights)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:3]


def _count_cancelled(flights: Sequence[Flight]) -> Answer:
    all_of = Counter(flight["month"] for flight in flights)
    gone = Counter(flight["month"] for flight in flights if flight["dep_delay"] is None)
    rows = [(month, gone[month], all_of[month]) for month in all_of]
    return sorted(rows, key=lambda row: (-row[1], row[0]))[:3]


def _count_delayed(flights: Sequence[Flight]) -> Answer:
    rows = []
    for origin in sorted({flight["origin"] for flight in flights}):
        delays = _not_null(flight["arr_delay"] for flight in flights if flight["origin"] == origin)
        rows.append((origin, len(delays), sum(delay > 60 for delay in delays)))
    return rows


def _not_null(numbers: Iterable[int | None]) -> list[int]:
    return [number for number in numbers if number is not None]


QUESTIONS = (
    Question(
        "Which carriers flew most?",
        "SELECT carrier, count(*) AS flights FROM {typed} GROUP BY carrier ORDER BY flights DESC, carrier LIMIT 3",
        _rank_carriers,
    ),
    Question(
        "In which months were most flights cancelled?",
        "SELECT month, count_if(dep_delay IS NULL) AS cancelled, count(*) AS scheduled FROM {typed} "
        "GROUP BY month ORDER BY cancelled DESC, month LIMIT 3",
        _count_cancelled,
    ),
    Question(
        "From which airport do flights arrive more than an hour late?",
        "SELECT origin, count(arr_delay) AS arrived, count_if(arr_delay > 60) AS late FROM {typed} "
        "GROUP BY origin ORDER BY origin",
        _count_delayed,
    ),
)


def expected_answers(records: Sequence[Departure]) -> list[Answer]:
    """Returns the results of all questions, from the input alone."""
    flights = []
    for record in records:
        flight = record.flight
        flights.append({name: flight[name] for name in COLUMNS})
    return [question.expected(flights) for question in QUESTIONS]


def format_query(question: Question, topic: str) -> str:
    """Returns the SQL of a question for the typed table of a topic."""
    return question.query.format(typed=f"{topic}_typed")
