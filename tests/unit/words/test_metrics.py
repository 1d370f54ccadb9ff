"""Tests of metrics: recorded values, and the text that Prometheus reads."""

from __future__ import annotations

import pytest

from tiered.metrics import OTHERS, Exemplar, Metrics, limit_topics


def test_counters_grow_per_label_values() -> None:
    requests = Metrics().counter("requests_total", "Requests.", ("verb",))
    requests.inc(1, "get")
    requests.inc(2, "put")
    requests.inc(1, "get")
    assert (requests.value("get"), requests.value("put"), requests.value("list")) == (2, 2, 0)
    assert requests.total() == 4


def test_counter_never_falls_and_takes_exactly_its_labels() -> None:
    requests = Metrics().counter("requests_total", "Requests.", ("verb",))
    with pytest.raises(AssertionError):
        requests.inc(-1, "get")
    with pytest.raises(AssertionError):
        requests.inc(1)


def test_same_name_gives_the_same_metric() -> None:
    metrics = Metrics()
    first = metrics.counter("a_total", "A.")
    assert metrics.counter("a_total", "A.") is first
    with pytest.raises(ValueError, match="a_total exists as counter"):
        metrics.gauge("a_total", "A.")
    with pytest.raises(ValueError, match="labels"):
        metrics.counter("a_total", "A.", ("verb",))


def test_gauges_are_set_read_and_removed() -> None:
    metrics = Metrics()
    size = metrics.gauge("size_bytes", "Size.", ("topic",))
    size.set(5, "a")
    size.set(6, "b")
    size.remove("a")
    assert (size.value("a"), size.value("b")) == (0, 6)
    level = metrics.gauge("level", "Level.")
    level.set_function(lambda: 0.25)
    assert level.value() == 0.25
    size.set_function(lambda: {("c",): 1})
    assert (size.value("b"), size.value("c")) == (0, 1)


def test_rendered_text_is_in_prometheus_format() -> None:
    metrics = Metrics()
    metrics.counter("b_total", "Bees.", ("kind",)).inc(3, 'a"b\\c\n')
    metrics.counter("a_total", "Ays.")
    metrics.gauge("g", "Gee.").set(1.5)
    seconds = metrics.histogram("s_seconds", "Seconds.", (0.1, 1))
    for value in (0.1, 0.5, 7):
        seconds.observe(value)
    assert metrics.render() == (
        "# HELP a_total Ays.\n# TYPE a_total counter\na_total 0\n"
        '# HELP b_total Bees.\n# TYPE b_total counter\nb_total{kind="a\\"b\\\\c\\n"} 3\n'
        "# HELP g Gee.\n# TYPE g gauge\ng 1.5\n"
        "# HELP s_seconds Seconds.\n# TYPE s_seconds histogram\n"
        's_seconds_bucket{le="0.1"} 1\ns_seconds_bucket{le="1"} 2\ns_seconds_bucket{le="+Inf"} 3\n'
        "s_seconds_sum 7.6\ns_seconds_count 3\n"
    )
    assert seconds.count() == 3


def test_bucket_has_its_newest_exemplar_where_the_format_has_a_place() -> None:
    metrics = Metrics()
    seconds = metrics.histogram("s_seconds", "Seconds.", (0.1, 1), ("api",), scale=1000)
    series = seconds.series("Fetch")
    for value, at_ms in ((200, 5_000), (500, 6_001), (7_000, 7_000)):
        series.observe(value)
        series.keep_exemplar(Exemplar(f"{value:032x}", value, at_ms))
    assert "trace_id" not in metrics.render()
    assert metrics.render(exemplars=True).splitlines()[2:] == [
        's_seconds_bucket{api="Fetch",le="0.1"} 0',
        f's_seconds_bucket{{api="Fetch",le="1"}} 2 # {{trace_id="{500:032x}"}} 0.5 6.001',
        f's_seconds_bucket{{api="Fetch",le="+Inf"}} 3 # {{trace_id="{7_000:032x}"}} 7 7.000',
        's_seconds_sum{api="Fetch"} 7.7',
        's_seconds_count{api="Fetch"} 3',
    ]


def test_no_metrics_render_as_empty_text() -> None:
    assert Metrics().render() == ""


def test_counter_reads_from_its_function() -> None:
    taken = [0, 7]
    counter = Metrics().counter("taken_total", "Taken.", ("what",))
    counter.set_function(lambda: {("second",): taken[1]})
    taken[1] += 1
    assert (counter.value("second"), counter.value("first"), counter.total()) == (8, 0, 8)
    assert list(counter.lines()) == ['taken_total{what="second"} 8']


def test_surplus_topics_share_one_sample() -> None:
    values = {"a": 1.0, "b": 5.0, "c": 2.0, "d": 2.0}
    assert limit_topics(values, 4) == {("a",): 1, ("b",): 5, ("c",): 2, ("d",): 2}
    assert limit_topics(values, 2) == {("b",): 5, ("c",): 2, (OTHERS,): 3}
    assert limit_topics(values, 0) == {(OTHERS,): 10}


def test_series_counts_for_its_histogram() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("took_seconds", "Time.", (0.1, 1), ("api",))
    series = histogram.series("Fetch")
    for value in (0.05, 0.1, 0.5, 7):
        series.observe(value)
    histogram.observe(0.5, "Fetch")
    assert histogram.count("Fetch") == 5 and histogram.count("Produce") == 0
    assert list(histogram.lines()) == [
        'took_seconds_bucket{api="Fetch",le="0.1"} 2',
        'took_seconds_bucket{api="Fetch",le="1"} 4',
        'took_seconds_bucket{api="Fetch",le="+Inf"} 5',
        'took_seconds_sum{api="Fetch"} 8.15',
        'took_seconds_count{api="Fetch"} 5',
    ]


def test_histogram_counts_in_fractions_and_renders_units() -> None:
    metrics = Metrics()
    whole = metrics.histogram("whole_seconds", "h", (0.0005, 0.25, 30))
    parts = metrics.histogram("parts_seconds", "h", (0.0005, 0.25, 30), scale=1_000_000_000)
    for ns in (1, 500_000, 500_001, 250_000_000, 30_000_000_001):
        whole.observe(ns / 1e9)
        parts.observe(ns)
    shown = metrics.render()
    of_whole = [line.removeprefix("whole") for line in shown.splitlines() if line.startswith("whole")]
    of_parts = [line.removeprefix("parts") for line in shown.splitlines() if line.startswith("parts")]
    assert of_whole[:-2] == of_parts[:-2] and of_whole[-1] == of_parts[-1]
    assert '_seconds_bucket{le="0.0005"} 2' in of_parts
    assert float(of_parts[-2].split()[1]) == 30.251_000_003
