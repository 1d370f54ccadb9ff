"""Tests of the files that run three brokers elsewhere: they are well formed, `tiered` accepts their commands and
settings, and brokers that start with them find each other."""

from __future__ import annotations

import atexit
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.serving import COMMAND, ServeProcess, run_tiered
from tests.ports import held_port
from tests.sources import ROOT
from tiered.config.exposure import check_exposure
from tiered.config.settings import Settings, broker_rows
from tiered_api.cli.arguments import parser
from tiered_api.cli.broker.serve import option_settings
from tiered_api.cli.broker.sources import environment_variable, load_settings

INFRA = ROOT / "infra"
UNIT = INFRA / "systemd" / "tiered@.service"
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose" / "compose.yaml").read_text())
BROKERS = (1, 2, 3)


def serve_settings(words: list[str], environment: Mapping[str, str]) -> Settings:
    """Returns the settings of `tiered serve` from its command line and environment. Fails if there are none, or if one
    has no effect."""
    args = parser().parse_args(words)
    chosen, warnings = load_settings(args.config, environment, args.pairs, option_settings(args))
    assert not warnings
    check_exposure(chosen)
    return chosen


def unit() -> configparser.SectionProxy:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read(UNIT)
    return read["Service"]


def environment_of(text: str) -> dict[str, str]:
    """Returns the variables of an EnvironmentFile."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def unit_words(number: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Returns the words of the unit's command. systemd splits a variable without braces, and an empty one is no word.
    `Environment` stands below the files."""
    set_by_unit = environment_of(unit()["Environment"])
    found = {**set_by_unit, **(environment or {})}
    words = shlex.split(unit()["ExecStart"].replace("%i", number))
    return [each for word in words for each in (found[word[1:]].split() if word.startswith("$") else [word])]


def test_unit_starts_the_broker_of_its_name() -> None:
    words = unit_words("2")
    assert words[0] == "/opt/tiered/bin/tiered"
    words[words.index("/etc/tiered/cluster.properties")] = str(INFRA / "systemd" / "cluster.properties")
    chosen = serve_settings(words[1:], environment_of((INFRA / "systemd" / "broker-1.env").read_text()))
    assert (chosen.node_id, chosen.data_dir, chosen.store) == (2, "/var/lib/tiered/2", "s3://my-bucket/my-cluster")
    assert (chosen.kafka, chosen.http, chosen.broker_rack) == ("10.0.0.1:9092", "10.0.0.1:8082", "a")
    assert (chosen.default_replication_factor, chosen.min_insync_replicas) == (3, 2)
    assert "/var/lib/" + unit()["StateDirectory"].replace("%i", "2") == chosen.data_dir


def test_unit_adds_the_first_administrator_of_the_page_only_if_asked() -> None:
    page = (INFRA / "README.md").read_text()
    ((line, path),) = re.findall(r"^echo '(SERVE_OPTIONS=.*)' > (\S+)$", page, re.MULTILINE)
    assert f"EnvironmentFile=-{path.replace('-1', '-%i')}" in UNIT.read_text().splitlines()
    assert parser().parse_args(unit_words("1", environment_of(line))[1:]).add_scram == ["@/etc/tiered/first-users"]
    assert parser().parse_args(unit_words("1")[1:]).add_scram == []


@pytest.mark.parametrize("number", map(str, BROKERS))
def test_secured_settings_allow_addresses_for_other_machines(number: str) -> None:
    words = unit_words(number)
    words[words.index("/etc/tiered/cluster.properties")] = str(INFRA / "secure" / "cluster.properties")
    own = (INFRA / "secure" / f"broker-{number}.env").read_text().replace("127.0.0.1", f"10.0.0.{number}")
    chosen = serve_settings(words[1:], environment_of(own))
    assert (chosen.http, chosen.ssl_keystore_location) == (
        f"https://10.0.0.{number}:{8081 + int(number)}",
        f"/etc/tiered/broker-{number}.pem",
    )
    assert {each.host for each in chosen.effective_listeners()} == {f"10.0.0.{number}"}
    assert all(each.is_encrypted and each.requires_login for each in chosen.effective_listeners())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The test replaces the program, because that of the unit is on no test machine."""
    tried = tmp_path / UNIT.name
    tried.write_text(UNIT.read_text().replace("/opt/tiered/bin/tiered", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tried)], capture_output=True, text=True, timeout=240
    )
    assert UNIT.name not in done.stderr and (done.returncode, done.stdout) == (0, ""), done.stderr


def test_unit_has_no_capability_that_the_broker_does_not_need() -> None:
    """Its addresses need no capability: their ports are above 1023."""
    service = unit()
    assert (service["CapabilityBoundingSet"], service["SystemCallFilter"]) == ("", "@system-service")
    for name in ("NoNewPrivileges", "ProtectKernelLogs", "ProtectKernelModules", "RestrictNamespaces"):
        assert service[name] == "yes"
    assert (service["ProtectSystem"], service["UMask"]) == ("strict", "0077")


@pytest.mark.parametrize("number", BROKERS)
def test_container_writes_to_its_volumes_only_without_capabilities(number: int) -> None:
    service = COMPOSE["services"][f"broker-{number}"]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    places = {volume.split(":")[1] for volume in service["volumes"]}
    assert places == {"/data", "/bucket"} and service["tmpfs"] == ["/tmp"]


def compose_environment(service: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment of a container if the host sets no variable."""
    return {
        name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        for name, text in service["environment"].items()
        if name.startswith("TIERED_")
    }


def test_containers_are_three_brokers_of_one_cluster() -> None:
    services = COMPOSE["services"]
    assert list(services) == [f"broker-{number}" for number in BROKERS]
    chosen = [serve_settings(shlex.split(each["command"]), compose_environment(each)) for each in services.values()]
    assert [each.node_id for each in chosen] == list(BROKERS)
    assert {each.store for each in chosen} == {"file:///bucket"}
    assert {(each.default_replication_factor, each.min_insync_replicas) for each in chosen} == {(3, 2)}
    mounted = [volume.split(":")[0] for each in services.values() for volume in each["volumes"]]
    assert mounted.count("bucket") == 3 and len(set(mounted)) == 4 and set(mounted) == set(COMPOSE["volumes"])


@pytest.mark.parametrize("number", BROKERS)
def test_container_advertises_addresses_for_brokers_and_the_host(number: int) -> None:
    name = f"broker-{number}"
    service = COMPOSE["services"][name]
    chosen = serve_settings(shlex.split(service["command"]), compose_environment(service))
    told = {each.name: each.address for each in chosen.resolve_advertised_listeners(chosen.effective_listeners(), "x")}
    published = dict(port.rsplit(":", 1) for port in service["ports"])
    assert told[chosen.inter_broker_listener_name] == f"{name}:19092" and service["hostname"] == name
    assert published[told["OUTSIDE"]] == "9092"
    assert published[f"127.0.0.1:{8081 + number}"] == chosen.http.split(":")[1]
    assert published[chosen.advertised_http] == chosen.http.split(":")[1]


Command = tuple[list[str], dict[str, str]]
"""The words after `tiered`, and the additional environment."""


def localized(text: str, addresses: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Returns a word or a value for a broker on this machine. Every address in it must be known."""
    return re.sub(r"[\w.-]+:\d+", lambda found: addresses[found[0]], places.get(text, text))


def containers(directory: Path, free: Callable[[], str]) -> list[Command]:
    """Returns the commands that compose starts. A published address is used directly: nothing translates it here."""
    addresses: dict[str, str] = {}
    for name, each in COMPOSE["services"].items():
        addresses |= {f"{name}:{port}": free() for port in (19092, 9092, 8082)}
        for published in each["ports"]:
            host, _, port = published.rpartition(":")
            addresses[host] = addresses[f"{name}:{port}"]
    made = []
    for name, each in COMPOSE["services"].items():
        places = {"/data": str(directory / name), "file:///bucket": f"file://{directory / 'bucket'}"}
        words = [localized(word, addresses, places) for word in shlex.split(each["command"])]
        environment = compose_environment(each).items()
        made.append((words, {variable: localized(text, addresses, places) for variable, text in environment}))
    return made


def units(directory: Path, free: Callable[[], str]) -> list[Command]:
    """Returns the commands that systemd starts, on three machines with their own environments."""
    config = directory / "cluster.properties"
    shared = (INFRA / "systemd" / "cluster.properties").read_text()
    config.write_text(shared.replace("s3://my-bucket/my-cluster", f"file://{directory / 'bucket'}"))
    own = environment_of((INFRA / "systemd" / "broker-1.env").read_text())
    made = []
    for number in map(str, BROKERS):
        addresses = {own[name]: free() for name in ("TIERED_KAFKA", "TIERED_HTTP")}
        places = {"/etc/tiered/cluster.properties": str(config), f"/var/lib/tiered/{number}": str(directory / number)}
        words = unit_words(number)[1:]
        environment = {variable: localized(text, addresses, {}) for variable, text in own.items()}
        made.append(([localized(word, {}, places) for word in words], environment))
    return made


def start_broker(stack: ExitStack, command: Command) -> subprocess.Popen[str]:
    """Starts a broker that is stopped at the end."""
    words, more = command
    process = subprocess.Popen([*COMMAND, *words], env={**os.environ, **more}, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.terminate)
    return process


@pytest.mark.parametrize("how", [containers, units])
def test_three_brokers_that_start_so_are_a_healthy_cluster(
    how: Callable[[Path, Callable[[], str]], list[Command]], tmp_path: Path
) -> None:
    """Only addresses and directories differ from the files. A topic without settings gets the replicas that the files
    define."""
    with ExitStack() as stack:

        def free() -> str:
            """An address that is held until the end, so that no other one is the same."""
            return f"127.0.0.1:{stack.enter_context(held_port()).getsockname()[1]}"

        for each in [start_broker(stack, command) for command in how(tmp_path, free)]:
            assert each.stdout is not None
            line = each.stdout.readline()
            assert line.startswith("tiered is ready: "), line
        address = line.partition(" kafka=")[2].split()[0].split(",")[-1]
        made = run_tiered("topic", "create", "t", "--brokers", address)
        assert made.returncode == 0, made.stderr
        health = run_tiered("cluster", "health", "--brokers", address)
        assert health.returncode == 0 and re.search(r"All nodes: +\[1, 2, 3\]", health.stdout), health
        (found,) = run_tiered("topic", "describe", "t", "--format", "json", "--brokers", address).stdout.splitlines()
        told = json.loads(found)
        assert told["summary"]["replicas"] == 3
        assert ("min.insync.replicas", "2") in [(each["key"], each["value"]) for each in told["configs"]]


def test_container_is_healthy_while_its_broker_serves(tmp_path: Path) -> None:
    """The check is the container's own, with another port."""
    words = COMPOSE["x-broker"]["healthcheck"]["test"]
    assert words[:3] == ["CMD", "python", "-c"]
    names = {each["hostname"] for each in COMPOSE["services"].values()}
    assert {each["command"].rpartition(" ")[2] for each in COMPOSE["services"].values()} == {f"{n}:8082" for n in names}

    def check(port: str) -> int:
        command = [sys.executable, "-c", words[3].replace(":8082", f":{port}")]
        environment = {**os.environ, "HOSTNAME": "127.0.0.1"}
        return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=240).returncode

    with ServeProcess(tmp_path / "data") as broker:
        port = broker.url.rpartition(":")[2]
        assert check(port) == 0
        broker.stop()
        assert check(port) != 0


def test_variables_of_the_files_are_settings() -> None:
    known = {environment_variable(name) for name in broker_rows()}
    for service in COMPOSE["services"].values():
        assert set(compose_environment(service)) <= known


def test_image_copies_existing_files() -> None:
    build = COMPOSE["x-broker"]["build"]
    context = (INFRA / "compose" / build["context"]).resolve()
    assert context == ROOT
    dockerfile = context / build["dockerfile"]
    copied = [line.split()[1:-1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY ")]
    sources = [word for words in copied for word in words if not any(each.startswith("--from") for each in words)]
    assert sources and all((context / source).exists() for source in sources), sources
    everything, *rest = [each for each in (context / ".dockerignore").read_text().splitlines() if each[:1] != "#"]
    assert everything == "*" and {each[1:].rstrip("/") for each in rest if each.startswith("!")} == {*sources}
    volumes = {volume.split(":")[1] for each in COMPOSE["services"].values() for volume in each["volumes"]}
    assert all(f'"{volume}"' in dockerfile.read_text() for volume in volumes)


def test_page_names_existing_files() -> None:
    page = (INFRA / "README.md").read_text()
    named = set(re.findall(r"(?<![/\w])((?:systemd|compose|secure)/[\w@.-]+\w)", page))
    assert {name.split("/")[0] for name in named} == {"systemd", "compose", "secure"}
    assert all((INFRA / name).exists() for name in named), named
    for line in re.findall(r"^tiered .*$|(?<=broker-1 )tiered .*$", page, re.MULTILINE):
        parser().parse_args(shlex.split(line)[1:])


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [str(hadolint), "--no-color", str(INFRA / "compose" / "Dockerfile")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


KUBERNETES = "1.31.0"
CHART = INFRA / "helm" / "tiered"
NEEDS_HELM = pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
WITH_LOGINS = (
    "tls.secretName=tls", "firstUsers.secretName=users", "superUsers=User:admin", "encryption.secretName=keys",
    "s3.secretName=s3", "s3.endpoint=https://s3.example.org",
)  # fmt: skip
SHAPES = {
    "open": ("insecure=true",),
    "secured": WITH_LOGINS,
    "without volumes": ("insecure=true", "persistence.enabled=false"),
}


@cache
def helm_home() -> dict[str, str]:
    """The environment of helm, which wants folders of its own."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {**os.environ, "HELM_CONFIG_HOME": folder, "HELM_CACHE_HOME": folder, "HELM_DATA_HOME": folder}


def render(*values: str, namespace: str = "logs") -> list[dict[str, Any]]:
    """Returns the manifests of the chart. Raises `AssertionError` with the words of a refusal."""
    words = [word for value in ("store=s3://bucket/prefix", *values) for word in ("--set", value)]
    done = subprocess.run(
        ["helm", "template", "log", str(CHART), "--namespace", namespace, "--kube-version", KUBERNETES, *words],
        capture_output=True, text=True, timeout=240, check=False, env=helm_home(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@NEEDS_HELM
def test_helm_accepts_the_chart() -> None:
    words = ["--set", "store=s3://bucket/prefix", "--set", "insecure=true"]
    done = subprocess.run(
        ["helm", "lint", "--strict", "--kube-version", KUBERNETES, str(CHART), *words],
        capture_output=True, text=True, timeout=240, check=False, env=helm_home(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@NEEDS_HELM
@pytest.mark.parametrize("shape", SHAPES)
def test_pod_starts_a_broker_of_the_chart(shape: str, tmp_path: Path) -> None:
    """The shell finds the node id in the name of the pod, and Kubernetes replaces its variables."""
    manifests = {each["kind"]: each for each in render(*SHAPES[shape])}
    (container,) = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    shell, option, script, name = container["command"]
    pod = "log-tiered-2"
    words = [word.replace("$(POD_NAME)", pod) for word in container["args"]]
    told = subprocess.run(
        [shell, option, script.replace("exec tiered", "printf '%s\\n'"), name, *words], capture_output=True, text=True,
        timeout=60, check=True, env={**os.environ, "POD_NAME": pod},
    ).stdout.splitlines()  # fmt: skip
    properties = tmp_path / "cluster.properties"
    properties.write_text(manifests["ConfigMap"]["data"]["cluster.properties"])
    told[told.index("/etc/tiered/cluster.properties")] = str(properties)
    chosen = serve_settings(told, {})
    assert (chosen.node_id, chosen.store, chosen.data_dir) == (3, "s3://bucket/prefix", "/data")
    assert (chosen.default_replication_factor, chosen.min_insync_replicas) == (3, 2)
    own = f"{pod}.log-tiered-brokers.logs.svc"
    told_addresses = {each.address for each in chosen.resolve_advertised_listeners(chosen.effective_listeners(), "x")}
    assert told_addresses == {f"{own}:19092", f"{own}:9092"} and own in chosen.advertised_http
    is_secured = shape == "secured"
    assert all(each.requires_login and each.is_encrypted for each in chosen.effective_listeners()) is is_secured
    listened = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert listened == {"kafka": 9092, "internal": 19092, "http": int(chosen.http.rpartition(":")[2])}
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    files = [chosen.ssl_keystore_location, chosen.ssl_truststore_location, chosen.tiered_encryption_keys_file]
    assert all(os.path.dirname(path) in mounted for path in files if path)


@NEEDS_HELM
@pytest.mark.parametrize("shape", SHAPES)
def test_manifests_of_the_chart_follow_the_schemas(shape: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for manifest in render(*SHAPES[shape]):
        validate.validate(manifest, KUBERNETES, strict=True)


@NEEDS_HELM
def test_pod_of_the_chart_writes_to_its_volumes_only_without_rights() -> None:
    (pod,) = [each["spec"]["template"]["spec"] for each in render("insecure=true") if each["kind"] == "StatefulSet"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "USER 10001" in (INFRA / "compose" / "Dockerfile").read_text().splitlines()


@NEEDS_HELM
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("store=",), "store is empty"),
        (("store=file:///x", "insecure=true"), "pods share a bucket"),
        ((), "tls.secretName is empty"),
        (("tls.secretName=tls",), "firstUsers.secretName is empty"),
        (("insecure=true", "replicas=2"), "default.replication.factor=3, and there are 2 brokers"),
    ],
)
def test_chart_refuses_in_words_what_cannot_work(values: tuple[str, ...], words: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(words)):
        render(*values)
