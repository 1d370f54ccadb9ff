"""Tests of the metrics of a load over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from tiered.errors import Refused
from tiered.metrics import Metrics
from tiered_api.cli.lake.metrics_server import serve_metrics


def test_metrics_are_served_until_the_end() -> None:
    metrics = Metrics()
    lag = metrics.gauge("tiered_load_lag_bytes", "Lag.", ("topic",))
    with serve_metrics(0, metrics.render) as port:
        lag.set(5, "orders")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as reply:
            assert 'tiered_load_lag_bytes{topic="orders"} 5' in reply.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404") as failure:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=120)
        failure.value.close()
        with pytest.raises(Refused, match=f"127.0.0.1:{port}"), serve_metrics(port, metrics.render):
            pass
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120)
