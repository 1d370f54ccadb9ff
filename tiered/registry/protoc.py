"""The compiler of Protobuf, for schemas that are `.proto` texts.

It is the compiler of `grpcio-tools`, in a process of its own: a text that takes it long, or takes much memory, ends
that process and no broker. Called in a thread.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from google.protobuf import descriptor_pb2

from tiered.registry.refusals import invalid_schema

SECONDS = 20.0
CPU_SECONDS = 10
MEMORY_BYTES = 1 << 30
MESSAGE_CHARACTERS = 300
KEPT = 16
"""Compiled texts that are kept: a comparison compiles the earlier ones anew otherwise."""
MAIN = "schema.proto"
_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_LOG = re.compile(r"WARNING: |[IWEF]\d{4} ")
"""Lines of the log of the compiler, which are no errors in the text."""
_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
if sys.platform != "darwin":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", *sys.argv[3:]]))
"""


@lru_cache(maxsize=KEPT)
def compile_proto(text: str, imports: tuple[tuple[str, bytes], ...]) -> bytes:
    """Returns the serialized descriptor of a text. `imports` are descriptors of the files that it imports, by their
    names. Raises `RegistryRefused` with what the compiler says."""
    tools = find_spec("grpc_tools")
    if tools is None or not tools.submodule_search_locations:
        raise invalid_schema("this broker cannot read .proto texts, because grpcio-tools is not installed")
    well_known = Path(tools.submodule_search_locations[0]) / "_proto"
    with tempfile.TemporaryDirectory(prefix="tiered-protoc-") as made:
        source, known, out = Path(made) / "source", Path(made) / "imports", Path(made) / "out"
        source.mkdir()
        (source / MAIN).write_text(text)
        known.write_bytes(_describe(imports))
        limits = [str(CPU_SECONDS), str(MEMORY_BYTES)]
        where = [f"--proto_path={source}", f"--proto_path={well_known}", f"--descriptor_set_in={known}"]
        command = [sys.executable, "-I", "-c", _CHILD, *limits, *where, f"--descriptor_set_out={out}", MAIN]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, cwd=made)
        except subprocess.TimeoutExpired:
            raise invalid_schema(f"the compiler of Protobuf took longer than {SECONDS:g} s") from None
        if done.returncode or not out.exists():
            said = done.stderr.decode(errors="replace").replace(f"{made}/", "").replace(f"source/{MAIN}", MAIN)
            lines = [line for line in said.splitlines() if line and not _LOG.match(line)]
            why = "; ".join(lines)[:MESSAGE_CHARACTERS]
            raise invalid_schema(why or "the compiler of Protobuf ended without a word")
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
        return bytes(found.file[0].SerializeToString())


def _describe(imports: tuple[tuple[str, bytes], ...]) -> bytes:
    """Returns the imported files as one set. Raises `RegistryRefused` for a name that is no path below a directory."""
    made = descriptor_pb2.FileDescriptorSet()
    for name, data in imports:
        if not _NAME.fullmatch(name) or ".." in PurePosixPath(name).parts or name == MAIN:
            raise invalid_schema(f"reference {name[:100]!r} is no name of a .proto file")
        file = made.file.add()
        file.ParseFromString(data)
        file.name = name
    return bytes(made.SerializeToString())
