"""Tests of the processes of a machine: their number, and the settings of each."""

from __future__ import annotations

import pytest

from tiered.config.processes import count_processes, of_process, share_out
from tiered.config.settings import Settings
from tiered.errors import Refused


@pytest.mark.parametrize(("text", "cores", "count"), [("1", 8, 1), ("3", 2, 3), ("auto", 4, 4), ("auto", 200, 64)])
def test_number_of_processes_is_a_number_or_that_of_the_cores(text: str, cores: int, count: int) -> None:
    assert count_processes(Settings.from_strings({"tiered.processes": text}), cores) == count


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "", "1.5"])
def test_other_numbers_of_processes_are_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"tiered\.processes"):
        count_processes(Settings.from_strings({"tiered.processes": text}), 4)


def test_each_process_has_a_node_id_a_directory_and_ports_of_its_own() -> None:
    given = {
        "node.id": "7", "data.dir": "/d", "http": "https://10.0.0.1:8082",
        "listeners": "IN://10.0.0.1:9092,OUT://[::1]:9093", "listener.security.protocol.map": "IN:PLAINTEXT",
        "advertised.listeners": "OUT://kafka.example.org:19093", "advertised.http": "https://kafka.example.org:443",
        "ssl.keystore.location": "/k",
    }  # fmt: skip
    machine = Settings.from_strings(given)
    first, third = (of_process(machine, number, 3, "s3://b") for number in (0, 2))
    assert (first.node_id, first.data_dir, first.process) == (7, "/d", 0)
    assert (third.node_id, third.data_dir, third.process) == (2007, "/d/process-2", 2)
    assert first.listeners == ("IN://10.0.0.1:9192", "OUT://[::1]:9193")
    assert third.listeners == ("IN://10.0.0.1:9392", "OUT://[::1]:9393")
    assert (third.http, third.store) == ("https://10.0.0.1:8382", "s3://b")
    assert third.advertised_listeners == ("OUT://kafka.example.org:19393",)
    assert third.advertised_http == "https://kafka.example.org:743"
    assert [each.address for each in third.effective_listeners()] == ["10.0.0.1:9392", "[::1]:9393"]


def test_free_ports_stay_free_and_too_high_ones_are_refused() -> None:
    machine = Settings.from_strings({"kafka": "127.0.0.1:0", "http": "127.0.0.1:0"})
    assert (of_process(machine, 1, 2, "").kafka, of_process(machine, 1, 2, "").http) == ("127.0.0.1:0", "127.0.0.1:0")
    assert of_process(Settings(kafka=""), 1, 2, "").kafka == ""
    assert of_process(Settings(advertised_http="h:0"), 1, 2, "").advertised_http == "h:0", "0 stands for the bound port"
    with pytest.raises(Refused, match="would have the port 65600"):
        of_process(Settings(kafka="127.0.0.1:65500"), 0, 1, "")


def test_numbers_of_the_machine_are_shared_out_and_others_stay() -> None:
    whole = Settings.from_strings(
        {"queued.max.requests": "1001", "max.connections": "1001", "tiered.store.request.rate": "8"}
    )
    share = share_out(of_process(whole, 1, 4, ""))
    assert (share.queued_max_requests, share.queued_max_request_bytes) == (250, 32 << 20)
    assert share.max_connections == 1001, "a client has a connection to each process"
    assert (share.log_retention_ms, share.socket_request_max_bytes) == (whole.log_retention_ms, 100 << 20)
    assert (share.tiered_store_request_rate, share.tiered_cleaner_max_requests_per_second) == (8.0, 12.5)
    assert share_out(whole) == whole


def test_share_is_never_below_the_least_value_and_no_limit_stays() -> None:
    given = {"remote.log.manager.copier.thread.pool.size": "2", "tiered.chunk.cache.bytes": str(2 << 20)}
    share = share_out(of_process(Settings.from_strings(given), 0, 64, ""))
    assert (share.remote_log_manager_copier_thread_pool_size, share.tiered_chunk_cache_bytes) == (1, 1 << 20)
    assert (
        share_out(of_process(Settings(leader_replication_throttled_rate=3), 0, 4, "")).leader_replication_throttled_rate
        == 1
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [({"node.id": "2147483000"}, "would be the broker 2147484000"), ({"advertised.http": "https://h"}, "needs a port")],
)
def test_process_without_an_id_or_address_of_its_own_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        of_process(Settings.from_strings(given), 1, 2, "")
