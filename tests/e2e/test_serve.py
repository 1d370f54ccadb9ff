"""Tests of `tiered serve` as a process: ready line, clean stop, kill, refusals, and packages that it does not load."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.serving import COMMAND, SECONDS, ServeProcess, run_tiered

HEAVY = ("boto3", "botocore", "pandas", "pyarrow", "pyspark", "delta", "numpy", "rich", "uuid6", "flask")


def test_serve_prints_its_addresses_serves_and_stops_cleanly(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", is_forked=False) as broker:
        assert broker.line.startswith("tiered is ready: http://127.0.0.1:") and broker.line.endswith("/data/bucket\n")
        status, health = broker.ask("GET", "/healthz")
        assert (status, health["ok"], health["problems"]) == (200, True, [])
        status, metrics = broker.ask("GET", "/metrics")
        assert status == 200 and "# TYPE tiered_store_requests_total counter" in metrics
        assert broker.stop() == 0
        log = broker.log.read_text()
    assert "clean=True" in log
    assert "Traceback" not in log and " ERROR " not in log


def test_broker_near_its_limit_of_descriptors_says_so_in_its_health(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        assert broker.ask("GET", "/healthz")[1]["problems"] == []
        pid = broker.process.pid
        limit = len(os.listdir(f"/proc/{pid}/fd")) * 10 // 9
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
        status, health = broker.ask("GET", "/healthz")
        assert status == 200
        assert any(f" of {limit} file descriptors are open" in each for each in health["problems"])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert broker.ask("GET", "/healthz")[1]["problems"] == []


def test_log_level_is_changed_while_it_runs(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        option = ("--brokers", broker.kafka)
        assert run_tiered("cluster", "config", "set", "log.level=error", "--node", "1", *option).returncode == 0
        broker.create_topic("quiet")
        assert run_tiered("cluster", "config", "reset", "log.level", "--node", "1", *option).returncode == 0
        broker.create_topic("loud")
        assert run_tiered("cluster", "config", "set", "log.level=all", *option).returncode == 1
        log = broker.log.read_text()
    assert "topic created name=loud" in log and "name=quiet" not in log


def test_debug_level_logs_connections_requests_and_changes(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        option = ("--brokers", broker.kafka)
        assert run_tiered("topic", "list", *option).returncode == 0
        assert "DEBUG" not in broker.log.read_text()
        assert run_tiered("cluster", "config", "set", "log.level=debug", "--node", "1", *option).returncode == 0
        assert run_tiered("topic", "create", "seen", *option).returncode == 0
        assert broker.ask("GET", "/v3/nothing")[0] == 404
        lines = [line for line in broker.log.read_text().splitlines() if " DEBUG " in line]

        def has(*words: str) -> bool:
            return any(all(word in line for word in words) for line in lines)

        assert has("kafka connection opened peer=127.0.0.1:", "listener=PLAINTEXT")
        assert has("kafka request handled api=CreateTopics version=", "peer=127.0.0.1:", "client=tiered", "ms=")
        assert has("kafka connection closed peer=127.0.0.1:")
        assert has("metadata changed slot=", "TopicCreated=1")
        assert has("http request handled method=GET", "target='/v3/nothing'", "status=404", "ms=")


def test_ctrl_c_stops_serve_cleanly(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        assert broker.stop(signal.SIGINT) == 0
        assert "clean=True" in broker.log.read_text()


def test_records_survive_a_kill_and_a_stop(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic("kept")
        assert broker.produce("kept", 1, 2) == [0, 1]
        broker.stop(signal.SIGKILL)
    with ServeProcess(tmp_path / "data") as broker:
        assert broker.values("kept") == [1, 2]
        assert broker.produce("kept", 3) == [2]
    with ServeProcess(tmp_path / "data") as broker:
        assert broker.values("kept") == [1, 2, 3]


def test_lost_directory_is_restored_from_the_bucket(tmp_path: Path) -> None:
    store = ("--store", f"file://{tmp_path}/bucket")
    soon = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")
    with ServeProcess(tmp_path / "old", *store, *soon) as broker:
        broker.create_topic("kept", file_delete_delay_ms="0")
        broker.produce("kept", *range(50))
        broker.wait_for_offset("kept", "cold_end_offset", 50)
        broker.stop(signal.SIGKILL)
    listed = run_tiered("cold", "cat", store[0], store[1], "--topic", "kept", "--max", "2", "--offset", "7")
    assert [line.split("\t")[1] for line in listed.stdout.splitlines()] == ["7", "8"]
    with ServeProcess(tmp_path / "new", *store) as broker:
        assert broker.values("kept") == list(range(50))
        assert broker.produce("kept", "more") == [50]


def test_second_process_on_a_directory_is_refused_with_the_owner(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        second = run_tiered("serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0")
        assert (second.returncode, second.stdout) == (4, "")
        assert f"in use by process {broker.process.pid}" in second.stderr.splitlines()[-1]
        assert broker.ask("GET", "/healthz")[0] == 200


def test_second_broker_on_a_store_is_refused_while_the_first_answers(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/bucket"
    with ServeProcess(tmp_path / "one", "--store", store) as broker:
        second = run_tiered("serve", "--data-dir", str(tmp_path / "two"), "--store", store, "--http", "127.0.0.1:0")
        assert second.returncode == 2
        assert broker.url.removeprefix("http://") in second.stderr.splitlines()[-1]


def test_http_address_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "one") as broker:
        taken = broker.url.removeprefix("http://")
        second = run_tiered("serve", "--data-dir", str(tmp_path / "two"), "--http", taken)
        assert second.returncode == 4
        assert second.stderr.splitlines()[-1] == f"tiered: cannot listen on {taken}: Address already in use"


@pytest.mark.parametrize("listeners", ["A://{taken}", "A://127.0.0.1:0,B://{taken}"])
def test_kafka_address_in_use_is_a_one_line_error(tmp_path: Path, listeners: str) -> None:
    with ServeProcess(tmp_path / "one") as broker:
        chosen = f"listeners={listeners.format(taken=broker.kafka)}"
        second = run_tiered("serve", "--data-dir", str(tmp_path / "two"), "--http", "127.0.0.1:0", "-c", chosen)
        assert second.returncode == 4
        assert second.stderr.splitlines()[-1] == f"tiered: cannot listen on {broker.kafka}: Address already in use"
        assert "broker serves" not in second.stderr and "controller" not in second.stderr, "no other broker knows it"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_long_start_ends_on_a_stop(tmp_path: Path, how: signal.Signals) -> None:
    """Another process accepts the request at the address of the broker's last process, and does not reply."""
    with ServeProcess(tmp_path / "data") as broker:
        broker.stop(signal.SIGKILL)
    address = urlsplit(broker.url)
    with socket.create_server((str(address.hostname), address.port or 0)) as silent:
        command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--kafka", ""]
        starting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        silent.settimeout(SECONDS)
        asked, _ = silent.accept()
        with asked:
            starting.send_signal(how)
            out, err = starting.communicate(timeout=SECONDS)
    assert (starting.returncode, out) == (0, ""), err
    assert err.splitlines()[-1].endswith("stopped before it served")
    with ServeProcess(tmp_path / "data") as broker:
        assert broker.ask("GET", "/healthz")[0] == 200


def test_unknown_host_is_an_error_with_the_text_of_the_resolver(tmp_path: Path) -> None:
    refused = run_tiered(
        "serve", "--data-dir", str(tmp_path / "data"), "-c", "tiered.insecure=true", "--http", "no-such-host.invalid:0"
    )
    assert refused.returncode == 2
    line = refused.stderr.splitlines()[-1]
    assert re.fullmatch(r"tiered: cannot listen on no-such-host\.invalid:0: .*([Nn]ame|address).*", line), line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["-c", "log.segment.byte=5"],
            "log.segment.byte: unknown broker setting; did you mean log.segment.bytes? (-c)",
        ),
        (["-c", "log.segment.bytes=5"], "log.segment.bytes=5: it must be an integer from 1048576 to 2147483647 (-c)"),
        (["-c", "=5"], "-c =5: it must be name=value"),
        (["--http", "8082"], "http=8082: it must be HOST:PORT with a port from 0 to 65535 (--http)"),
        (["-c", "log.cleanup.policy=shred"], "log.cleanup.policy=shred: it must be a list of delete or compact"),
        (["--store", "ftp://x"], "ftp://x"),
        (["--kafka", "0.0.0.0:0"], "tiered.insecure=true accepts it"),
        (["--data-dir", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_invalid_setting_is_a_one_line_error(tmp_path: Path, arguments: list[str], words: str) -> None:
    refused = run_tiered("serve", "--data-dir", str(tmp_path / "data"), *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1 and refused.stderr.startswith("tiered: ")
    assert words in refused.stderr


def test_settings_are_read_from_the_environment(tmp_path: Path) -> None:
    refused = run_tiered("serve", "--data-dir", str(tmp_path), env={"TIERED_NODE_ID": "one"})
    assert refused.stderr == "tiered: node.id=one: it must be an integer from 0 to 2147483647 (TIERED_NODE_ID)\n"


def test_listener_beyond_loopback_warns_about_missing_authentication(tmp_path: Path) -> None:
    with ServeProcess(
        tmp_path / "data", "--http", "0.0.0.0:0", "--kafka", "0.0.0.0:0", "-c", "tiered.insecure=true"
    ) as broker:
        broker.stop()
        assert broker.log.read_text().count("without a login") == 2


def test_broker_on_a_directory_loads_no_heavy_package(tmp_path: Path) -> None:
    """boto3 alone would take half of the time to the ready line. Other commands need each of these packages."""
    with ServeProcess(tmp_path / "data", env={"PYTHONPROFILEIMPORTTIME": "1"}, is_forked=False) as broker:
        broker.create_topic("t")
        broker.produce("t", 1)
        broker.stop()
        loaded = {line.rsplit("|", 1)[1].strip() for line in broker.log.read_text().splitlines() if "|" in line}
    assert "tiered.broker.broker" in loaded
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]


def test_open_starts_a_browser_at_a_page_of_the_console(tmp_path: Path) -> None:
    browser, pipe = tmp_path / "browser", tmp_path / "pipe"
    os.mkfifo(pipe)
    browser.write_text(f'#!/bin/sh\necho "$1" > {pipe}\n')
    browser.chmod(0o700)
    with ServeProcess(tmp_path / "data", "--open", "topics/f 1", env={"BROWSER": f"{browser} %s"}) as broker:
        assert pipe.read_text() == f"{broker.url}/console/topics/f%201\n"


def test_open_without_a_browser_names_the_page(tmp_path: Path) -> None:
    none = dict.fromkeys(("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"), "")
    with ServeProcess(tmp_path / "data", "--open", env=none) as broker:
        broker.stop()
        assert f"tiered: no browser opens here; the page is {broker.url}/console/\n" in broker.log.read_text()
        assert f"(console {broker.url}/console/, " in broker.line


def test_ready_line_leaves_out_a_console_that_is_off(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "-c", "tiered.console.enable=false") as broker:
        assert "console" not in broker.line and f"(health {broker.url}/healthz" in broker.line


def test_open_of_a_console_that_is_off_is_refused(tmp_path: Path) -> None:
    refused = run_tiered("serve", "--data-dir", str(tmp_path), "--open", "-c", "tiered.console.enable=false")
    assert refused.returncode == 2 and "--open: tiered.console.enable=false ends the console" in refused.stderr
