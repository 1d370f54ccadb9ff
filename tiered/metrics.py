"""Counters, gauges and histograms as plain objects, rendered as Prometheus text on demand.

Recording a value costs a dict look-up and an addition. Recording allocates nothing after the first time and takes no
lock, because only the broker's event loop records values; threads may read them. Names follow Prometheus: seconds,
bytes, `_total` on counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Labels = tuple[str, ...]
OTHERS = "(others)"
"""A label value that no topic can have, and that stands for all entities without a value of their own."""
M = TypeVar("M", bound="Counter | Gauge | Histogram")


class Counter:
    """A number that only grows, for each combination of label values."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name, self.help, self.labels = name, help, labels
        self._values: dict[Labels, float] = {} if labels else {(): 0}
        self._function: Callable[[], float | Mapping[Labels, float]] | None = None

    def inc(self, n: float = 1, *label_values: str) -> None:
        """Adds `n`, which must not be negative."""
        assert n >= 0 and len(label_values) == len(self.labels), (self.name, n, label_values)
        self._values[label_values] = self._values.get(label_values, 0) + n

    def remove(self, *label_values: str) -> float:
        """Removes one combination of label values, and returns its value: the caller may add it to another one."""
        return self._values.pop(label_values, 0)

    def set_function(self, function: Callable[[], float | Mapping[Labels, float]]) -> None:
        """Makes `function` the source of the values, for a count that is kept elsewhere because even a call for each
        event would cost too much."""
        self._function = function

    def value(self, *label_values: str) -> float:
        """Returns the current value, 0 if nothing was ever added."""
        return self.samples().get(label_values, 0)

    def total(self) -> float:
        """Returns the sum over all label values."""
        return sum(self.samples().values())

    def lines(self) -> Iterable[str]:
        """Yields samples in Prometheus text form."""
        for values, number in sorted(self.samples().items()):
            yield f"{self.name}{_format_labels(self.labels, values)} {_format_number(number)}"

    def samples(self) -> Mapping[Labels, float]:
        """Returns all values by their label values."""
        return self._values if self._function is None else _as_samples(self._function())


class Gauge:
    """A number that goes up and down: set, or returned by a function when it is read."""

    kind = "gauge"

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name, self.help, self.labels = name, help, labels
        self._values: dict[Labels, float] = {}
        self._function: Callable[[], float | Mapping[Labels, float]] | None = None

    def set(self, value: float, *label_values: str) -> None:
        """Sets the value."""
        assert len(label_values) == len(self.labels), (self.name, label_values)
        self._values[label_values] = value

    def remove(self, *label_values: str) -> None:
        """Removes one combination of label values, for partitions that left."""
        self._values.pop(label_values, None)

    def set_function(self, function: Callable[[], float | Mapping[Labels, float]]) -> None:
        """Makes `function` the source of the values: it returns a number, or numbers by label values."""
        self._function = function

    def value(self, *label_values: str) -> float:
        """Returns the current value, 0 if nothing was ever set."""
        return self.samples().get(label_values, 0)

    def lines(self) -> Iterable[str]:
        """Yields samples in Prometheus text form."""
        for values, number in sorted(self.samples().items()):
            yield f"{self.name}{_format_labels(self.labels, values)} {_format_number(number)}"

    def samples(self) -> Mapping[Labels, float]:
        """Returns all values by their label values."""
        return self._values if self._function is None else _as_samples(self._function())


class Exemplar(NamedTuple):
    """One value of a bucket, and the trace that shows where it comes from."""

    trace_id: str
    value: float
    at_ms: int


class Series:
    """Values of a histogram under one combination of label values: the count in each bucket, and the sum. Callers that
    record very often update the fields themselves, without `observe`."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0
        self.exemplars: dict[int, Exemplar] | None = None
        """The newest by bucket. None as long as nobody traces: most series never have one."""

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def keep_exemplar(self, exemplar: Exemplar) -> None:
        """Makes this the exemplar of the bucket that has its value. The value is counted by others."""
        if self.exemplars is None:
            self.exemplars = {}
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar


class Histogram:
    """Counts values by bucket (`buckets` are ascending upper bounds), with their sum and number. Values are recorded in
    fractions of the rendered unit; `scale` of them make one unit."""

    kind = "histogram"

    def __init__(self, name: str, help: str, buckets: Sequence[float], labels: Labels = (), scale: int = 1) -> None:
        assert list(buckets) == sorted(set(buckets)) and buckets, (name, buckets)
        self.name, self.help, self.labels = name, help, labels
        self.buckets = tuple(float(bound) for bound in buckets)
        self._scale = scale
        self._bounds = self.buckets if scale == 1 else tuple(round(bound * scale) for bound in buckets)
        self._series: dict[Labels, Series] = {}

    def series(self, *label_values: str) -> Series:
        """Returns the series under these label values, for callers that record often."""
        found = self._series.get(label_values)
        if found is None:
            assert len(label_values) == len(self.labels), (self.name, label_values)
            found = self._series[label_values] = Series(self._bounds)
        return found

    def observe(self, value: float, *label_values: str) -> None:
        """Counts one value."""
        self.series(*label_values).observe(value)

    def count(self, *label_values: str) -> int:
        """Returns how many values were recorded."""
        found = self._series.get(label_values)
        return sum(found.counts) if found is not None else 0

    def lines(self, *, exemplars: bool = False) -> Iterable[str]:
        """Yields samples in Prometheus text form: cumulative buckets, sum, count. With `exemplars`, each bucket has its
        own."""
        bounds = [_format_number(bound) for bound in self.buckets] + ["+Inf"]
        for values, series in sorted(self._series.items()):
            kept = series.exemplars if exemplars and series.exemplars is not None else {}
            so_far = 0
            for place, (bound, count) in enumerate(zip(bounds, series.counts, strict=True)):
                so_far += count
                tail = _format_exemplar(kept[place], self._scale) if place in kept else ""
                yield f"{self.name}_bucket{_format_labels((*self.labels, 'le'), (*values, bound))} {so_far}{tail}"
            tail = _format_labels(self.labels, values)
            yield f"{self.name}_sum{tail} {_format_number(series.sum / self._scale)}"
            yield f"{self.name}_count{tail} {so_far}"


class Metrics:
    """All metrics of one broker. A second request for a name returns the same object. `refresh` updates the values that
    are computed for a scrape alone."""

    def __init__(self) -> None:
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Returns a counter; its name ends in `_total`."""
        return self._register(Counter(name, help, tuple(labels)))

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """Returns a gauge."""
        return self._register(Gauge(name, help, tuple(labels)))

    def histogram(
        self, name: str, help: str, buckets: Sequence[float], labels: Sequence[str] = (), *, scale: int = 1
    ) -> Histogram:
        """Returns a histogram with ascending bounds."""
        return self._register(Histogram(name, help, buckets, tuple(labels), scale))

    def samples(self, name: str) -> Mapping[Labels, float]:
        """Returns the values of a counter or a gauge by their label values; nothing if there is no such metric."""
        found = self._metrics.get(name)
        return found.samples() if isinstance(found, (Counter, Gauge)) else {}

    def render(self, *, exemplars: bool = False) -> str:
        """Returns all metrics in Prometheus text form (content type `text/plain; version=0.0.4`). With `exemplars`,
        buckets have theirs: Prometheus text has no place for them, OpenMetrics does."""
        parts = []
        for name, metric in sorted(self._metrics.items()):
            parts.append(f"# HELP {name} {metric.help}")
            parts.append(f"# TYPE {name} {metric.kind}")
            if isinstance(metric, Histogram):
                parts.extend(metric.lines(exemplars=exemplars))
            else:
                parts.extend(metric.lines())
        return "\n".join(parts) + "\n" if parts else ""

    def _register(self, new: M) -> M:
        known = self._metrics.setdefault(new.name, new)
        if type(known) is not type(new) or known.labels != new.labels:
            raise ValueError(f"metric {new.name} exists as {known.kind} with labels {known.labels}")
        return known


def limit_topics(values: Mapping[str, float], topics_max: int) -> dict[Labels, float]:
    """Turns numbers by topic into samples, at most `topics_max` and one: the topics with the largest numbers, and the
    sum of all others under `OTHERS`."""
    if len(values) <= topics_max:
        return {(topic,): value for topic, value in values.items()}
    found = sorted(values.items(), key=lambda each: (-each[1], each[0]))
    kept: dict[Labels, float] = {(topic,): value for topic, value in found[:topics_max]}
    return kept | {(OTHERS,): sum(value for _, value in found[topics_max:])}


def _as_samples(now: float | Mapping[Labels, float]) -> Mapping[Labels, float]:
    return now if isinstance(now, Mapping) else {(): now}


def _format_labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escape_label(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _format_exemplar(exemplar: Exemplar, scale: int) -> str:
    value = _format_number(exemplar.value / scale)
    return f' # {{trace_id="{exemplar.trace_id}"}} {value} {exemplar.at_ms / 1000:.3f}'


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
