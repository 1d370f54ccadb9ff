"""A broker as users start it: a separate process, whose CPU seconds and memory are read from the kernel."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.ports import free_port

TICKS = os.sysconf("SC_CLK_TCK")


class BrokerProcess:
    """`tiered serve` on `directory`. It is ready when /healthz has returned 200. `admin` is a user with this name and
    password, who makes the requests."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        store: str | None = None,
        env: dict[str, str] | None = None,
        admin: str = "",
    ) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tiered_api.cli.main", "serve", "--data-dir", str(directory)]
        command += ["--http", f"127.0.0.1:{self.port}", "--kafka", "127.0.0.1:0"]
        command += ["--store", store] if store else []
        command += ["--add-scram", f"SCRAM-SHA-512=[name={admin},password={admin}]"] if admin else []
        self.login = {"Authorization": f"Basic {b64encode(f'{admin}:{admin}'.encode()).decode()}"} if admin else {}
        for setting in settings:
            command += ["-c", setting]
        self.log = (directory.parent / f"{directory.name}.log").open("ab")
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ, **(env or {})})
        self.ready_seconds = self._wait_ready(started)

    def _wait_ready(self, started: float) -> float:
        while time.perf_counter() - started < 120:
            if self.process.poll() is not None:
                raise RuntimeError(f"the broker ended with {self.process.returncode}; see {self.log.name}")
            try:
                if self.request("GET", "/healthz")[0] == 200:
                    return time.perf_counter() - started
            except OSError:
                pass
            time.sleep(0.002 if time.perf_counter() - started < 1 else 0.02)  # each look at its health costs CPU
        raise RuntimeError(f"the broker was not ready within 120 s; see {self.log.name}")

    def request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Content-Type": content_type} if body is not None else {}
            connection.request(method, path, body, {**headers, **self.login})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.request(method, path, None if body is None else json.dumps(body).encode())
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
        return json.loads(answer) if answer else None

    def create_topic(self, name: str, partitions: int, **configs: str | int) -> None:
        cluster = self.json("GET", "/v3/clusters")["data"][0]["cluster_id"]
        settings = [{"name": k.replace("_", "."), "value": str(v)} for k, v in configs.items()]
        body = {"topic_name": name, "partitions_count": partitions, "configs": settings}
        self.json("POST", f"/v3/clusters/{cluster}/topics", body)

    def partition(self, topic: str, partition: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = self.json("GET", f"/tiered/v1/topics/{topic}/partitions/{partition}")
        return answer

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, field: str = "VmRSS") -> int:
        """Returns bytes: VmRSS now, and VmHWM, its peak."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"no {field} for pid {self.process.pid}")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def metric(self, name: str) -> float:
        """Returns the sum of a metric's samples over all labels."""
        total = 0.0
        for line in self.request("GET", "/metrics")[1].decode().splitlines():
            if line.startswith(name) and line[len(name)] in "{ ":
                total += float(line.rsplit(" ", 1)[1])
        return total

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        self.log.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
