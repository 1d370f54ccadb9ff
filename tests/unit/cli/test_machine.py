"""Tests of the processes that `tiered serve` starts: the command of each, and what they share."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from tiered.config.processes import of_process
from tiered.config.settings import Settings
from tiered.errors import Unavailable
from tiered_api.cli.arguments import parser
from tiered_api.cli.broker.machine import HTTP, Machine, bind_shared, parse_shared, process_command, ready_line

ANYWHERE = Settings(kafka="127.0.0.1:0", http="127.0.0.1:0", store="s3://b/p", data_dir="/d")


def test_command_of_a_process_has_the_options_of_the_machine() -> None:
    words = ["--config", "f", "--node-id", "7", "-c", "tiered.processes=2", "--add-scram", "SCRAM-SHA-256=[...]"]
    args = parser().parse_args(["serve", *words])
    with socket.create_server(("127.0.0.1", 0)) as shared:
        machine = Machine(ANYWHERE, (ANYWHERE, ANYWHERE), {"PLAINTEXT": shared})
        first, second = (list(process_command(args, machine, number)("")) for number in (0, 1))
        told = parser().parse_args(second[4:])
        assert (told.config, told.node_id, told.pairs) == ("f", "7", ["tiered.processes=2"])
        assert (told.process, told.shared) == ("1/2", [f"PLAINTEXT={shared.fileno()}"])
        assert second[3] == str(os.getpid())
    assert parser().parse_args(first[4:]).add_scram and not told.add_scram, "one process adds the first users"


def test_shared_addresses_are_open_before_any_process_runs() -> None:
    shared = bind_shared(ANYWHERE)
    try:
        machine = Machine(ANYWHERE, (of_process(ANYWHERE, 0, 1, "s3://b/p"),), shared)
        host, port = shared["PLAINTEXT"].getsockname()
        assert machine.address("PLAINTEXT") == f"{host}:{port}"
        assert ready_line(machine).endswith(f" kafka={host}:{port} store=s3://b/p processes=1")
        socket.create_connection((host, port)).close()
        again = Settings(kafka=f"{host}:{port}", http="127.0.0.1:0")
        with pytest.raises(Unavailable, match=f"cannot listen on {host}:{port}"):
            bind_shared(again)
        taken = parse_shared([f"{HTTP}={os.dup(shared[HTTP].fileno())}"])
        with closing(taken[HTTP]) as sock:
            assert sock.getsockname() == shared[HTTP].getsockname() and not os.get_inheritable(sock.fileno())
    finally:
        for each in shared.values():
            each.close()
