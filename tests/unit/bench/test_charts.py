"""Tests of the charts of figures: bars are as long as their shares, and all charts are well-formed."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.charts import BAR_WIDTH, LABEL_WIDTH, Bar, bars_of_figures, bars_of_rows, draw
from bench.figures import Figure
from bench.peer.report import ReportRow

SVG = "{http://www.w3.org/2000/svg}"


def marks(chart: str, kind: str) -> list[ElementTree.Element]:
    """Returns the shapes of one class, without those of the legend."""
    return [each for each in ElementTree.fromstring(chart).iter() if each.get("class") == kind][1:]


def test_bars_are_as_long_as_their_shares() -> None:
    bars = [Bar("a", 50, "50", 100, "100", 25, "<= 0.25", False), Bar("b", 8, "8", 4, "4", 6, ">= 1.5", True)]
    chart = draw("t", bars)
    (missed,) = marks(chart, "missed")
    (met,) = marks(chart, "ours")
    assert (missed.get("width"), met.get("width")) == (str(BAR_WIDTH / 2), str(float(BAR_WIDTH)))
    assert [mark.get("width") for mark in marks(chart, "kafka")] == [str(float(BAR_WIDTH)), str(BAR_WIDTH / 2)]
    goals = [float(str(mark.get("x1"))) - LABEL_WIDTH for mark in marks(chart, "goal")]
    assert goals == [BAR_WIDTH / 4, BAR_WIDTH * 6 / 8]


def test_bar_beyond_the_scale_is_cut_and_says_so() -> None:
    chart = draw("t", [Bar("a", 900, "900", goal=100, goal_text=">= 100", is_met=True)])
    assert (
        marks(chart, "ours")[0].get("width") == str(float(BAR_WIDTH))
        and "900 \N{BLACK RIGHT-POINTING TRIANGLE}" in chart
    )
    chart = draw("t", [Bar("a", -1, "-1", goal=16, goal_text="<= 16", is_met=True)])
    assert marks(chart, "ours")[0].get("width") == "0.0"


def test_names_are_text_and_no_markup() -> None:
    chart = draw("a < b & c", [Bar("<script>x</script>", 1, "1 <s>")])
    texts = [each.text for each in ElementTree.fromstring(chart).iter(f"{SVG}text")]
    assert "a < b & c" in texts and "<script>x</script>" in texts and "1 <s>" in texts


def test_runs_become_bars_with_their_verdicts() -> None:
    figures = [
        Figure("start", 0.4, "s", 0.5, at_most=True),
        Figure("rate", 1_234.0, "/s", 2_000.0),
        Figure("n", 1.0, "x"),
    ]
    assert [(bar.ours_text, bar.goal_text, bar.is_met) for bar in bars_of_figures(figures)] == [
        ("0.4 s", "<= 0.5", True),
        ("1,234 /s", ">= 2,000", False),
        ("1 x", "", None),
    ]
    row = ReportRow("w", "cpu_us", "us", 2.0, 8.0, 0.25, 0.2, 0.3, 5, 0, 0.4, True, False, True)
    own = ReportRow("w", "p99_us", "us", 2.0, 8.0, 0.25, 0.2, 0.3, 5, 0, 3.0, True, True, True)
    made, mine = bars_of_rows({"w": "work"}, [row, own])
    assert made == Bar("work: cpu", 2.0, "2 us", 8.0, "8 us", 3.2, "<= 0.4 of Kafka", True)
    assert (mine.goal, mine.goal_text) == (3.0, "<= 3")
