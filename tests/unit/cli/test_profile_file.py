"""Tests of the file of profiles: its text, its mode, and edits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Refused
from tiered.system.private_file import lock_folder
from tiered_api.cli.client_properties import read_profile_settings
from tiered_api.cli.profile_file import FILE_BYTES_MAX, edit_profiles, find_profile_file, read_profiles
from tiered_api.cli.profiles import Profiles, format_profiles, parse_profiles

NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,9}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.text(max_size=5, alphabet="ab"), st.dictionaries(NAMES, st.dictionaries(TEXTS, TEXTS, max_size=4), max_size=3)
)
def test_profiles_are_the_same_after_they_were_written(current: str, settings: dict[str, dict[str, str]]) -> None:
    profiles = Profiles(current, settings)
    assert parse_profiles(format_profiles(profiles), "file") == profiles


def test_settings_may_be_written_by_hand_without_quotes() -> None:
    text = "current = 'a'\n[profiles.a]\nbrokers = 'b:1'\ntimeout = 5\nsecurity.protocol = 'SSL'\n"
    text += "ssl.key.location = '/k'\n"
    assert parse_profiles(text, "file") == Profiles(
        "a", {"a": {"brokers": "b:1", "timeout": "5", "security.protocol": "SSL", "ssl.key.location": "/k"}}
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[profiles.a]\npencil\n", "it is no TOML: .*line 2"),
        ("[profiles.a]\nx = ['pencil']", "profile 'a': x must be a text in quotes"),
        ("[profiles.a]\nx = true", "profile 'a': x must be a text in quotes"),
        ("[profiles]\na = 'pencil'", "each profile must be a table"),
        ("profiles = 'pencil'", "each profile must be a table"),
        ("current = 5", "current must be the name of a profile in quotes"),
        ("curent = 'pencil'", "not 'curent'"),
        ("[profiles.'a b']", "'a b' cannot name a profile"),
        (f"[profiles.a]\n{'x.' * 40}y = 'pencil'", "nested too deeply"),
        ("x = " + "[" * 50_000, "nested too deeply"),
    ],
)
def test_malformed_file_is_refused_with_its_path_without_values(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(Refused, match=why) as refused:
        read_profiles(file)
    assert refused.value.why.startswith(f"{file}: ") and "pencil" not in refused.value.why


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"#" * (FILE_BYTES_MAX + 1), f"more than {FILE_BYTES_MAX} bytes"), (b"# \xff", "not UTF-8")],
    ids=["large", "latin-1"],
)
def test_file_that_is_no_bounded_text_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_bytes(data)
    with pytest.raises(Refused, match=why):
        read_profiles(file)


def test_missing_file_has_no_profiles(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (None, tmp_path / "absent" / "profiles.toml", tmp_path / "file" / "profiles.toml"):
        assert read_profiles(path) == Profiles()
    with pytest.raises(Refused, match="is no file"):
        read_profiles(Path("/dev/null"))


def test_file_stands_in_the_folder_for_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert find_profile_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/tiered/profiles.toml")
    for relative in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "x"}):
        assert find_profile_file(relative) == Path("/home/ann/.config/tiered/profiles.toml")


def test_edit_leaves_a_private_file_behind_the_same_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link, target = tmp_path / "config" / "profiles.toml", tmp_path / "dotfiles"
    link.parent.mkdir()
    target.write_text("[profiles.a]\n")
    target.chmod(0o644)
    link.symlink_to(target)
    made = edit_profiles(link, lambda profiles: profiles.with_profile("b", {"brokers": "b:1"}))
    assert f"warning: other users may use {target} (mode 0644): chmod 600" in capsys.readouterr().err
    assert link.is_symlink() and S_IMODE(target.stat().st_mode) == 0o600
    assert read_profiles(link) == made == Profiles("", {"a": {}, "b": {"brokers": "b:1"}})
    assert capsys.readouterr().err == "" and sorted(os.listdir(tmp_path)) == ["config", "dotfiles"]


def test_new_folder_and_file_are_private(tmp_path: Path) -> None:
    file = tmp_path / "config" / "tiered" / "profiles.toml"
    edit_profiles(file, lambda profiles: profiles.with_profile("a", {}))
    assert [S_IMODE(path.stat().st_mode) for path in (file.parent, file)] == [0o700, 0o600]


def test_edits_at_once_are_refused_and_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    with lock_folder(str(file)), pytest.raises(Refused, match="another command changes it"):
        edit_profiles(file, lambda profiles: profiles.with_profile("a", {}))
    assert not file.exists()


@pytest.mark.parametrize(
    ("value", "why"),
    [("x" * FILE_BYTES_MAX, "would have more than"), ("\udcff", "is not UTF-8")],
    ids=["large", "bytes"],
)
def test_edit_that_no_command_could_read_leaves_the_file(value: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    edit_profiles(file, lambda profiles: profiles.with_profile("a", {}))
    with pytest.raises(Refused, match=why):
        edit_profiles(file, lambda profiles: profiles.with_profile("b", {"brokers": value}))
    assert read_profiles(file) == Profiles("", {"a": {}}) and os.listdir(tmp_path) == ["profiles.toml"]


def test_edit_that_cannot_be_written_is_refused_with_the_path() -> None:
    with pytest.raises(Refused, match=r"/dev/null/x/profiles\.toml: it cannot be written"):
        edit_profiles(Path("/dev/null/x/profiles.toml"), lambda profiles: profiles)
    with pytest.raises(Refused, match="set XDG_CONFIG_HOME"):
        edit_profiles(None, lambda profiles: profiles)


def test_profile_has_its_own_settings_before_those_of_its_file(tmp_path: Path) -> None:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required username=bob password=pencil tokenauth=true;"
    )
    (tmp_path / "client.properties").write_text(
        f"bootstrap.servers=b:1\nrequest.timeout.ms=500\nsasl.jaas.config={jaas}\n"
    )

    def read(**own: str) -> Mapping[str, str]:
        given = {name.replace("_", "."): value for name, value in own.items()}
        return read_profile_settings({"command-config": "client.properties", **given}, "profile", tmp_path)

    file = {"brokers": "b:1", "timeout": "0.5", "sasl.username": "bob", "sasl.password": "pencil", "tokenauth": "true"}
    assert read() == file
    assert read(bootstrap_servers="c:1") == file | {"brokers": "c:1"}
    other = {name: value for name, value in file.items() if name != "tokenauth"} | {"sasl.username": "eve"}
    assert read(sasl_username="eve") == other


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"brokres": "x"}, "profile: unknown setting 'brokres'; did you mean brokers?"),
        ({"acks": "all"}, "profile: unknown setting 'acks'"),
        ({"sasl.jaas.config": "pencil"}, "profile: "),
        ({"request.timeout.ms": "pencil"}, "profile: request.timeout.ms must be a number"),
        ({"command-config": "absent"}, "profile: command-config .*absent: it cannot be read: No such file"),
    ],
)
def test_bad_settings_of_a_profile_are_refused_without_values(own: dict[str, str], why: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=why) as refused:
        read_profile_settings(own, "profile", tmp_path)
    assert "pencil" not in refused.value.why
