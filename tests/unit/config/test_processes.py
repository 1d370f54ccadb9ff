"""Tests of the processes of a machine: their number, and the settings of each."""

from __future__ import annotations

import pytest

from tiered.config.processes import count_processes, of_process
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
    first, third = (of_process(machine, number, "s3://b") for number in (0, 2))
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
    assert (of_process(machine, 1, "").kafka, of_process(machine, 1, "").http) == ("127.0.0.1:0", "127.0.0.1:0")
    assert of_process(Settings(kafka=""), 1, "").kafka == ""
    with pytest.raises(Refused, match="would have the port 65600"):
        of_process(Settings(kafka="127.0.0.1:65500"), 0, "")
