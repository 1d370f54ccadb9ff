"""`tiered audit` answers who changed a resource, from the topic of the audit log and from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import ServeProcess
from tests.e2e.test_cli_security import write_properties
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered_api.cli.main import main

TRIES = 100


def test_audit_names_who_deleted_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        f"authorizer.class.name={STANDARD_AUTHORIZER}",
        "super.users=User:admin",
        "tiered.audit.topic=audit",
    )
    start = [
        word for name in ("admin", "bob") for word in ("--add-scram", f"SCRAM-SHA-512=[name={name},password={name}]")
    ]
    with ServeProcess(tmp_path / "data", *start, *(word for each in settings for word in ("-c", each))) as broker:
        admin = write_properties(tmp_path / "admin", broker.kafka, "admin", "admin")
        bob = write_properties(tmp_path / "bob", broker.kafka, "bob", "bob")

        def command(words: str, as_user: str = admin, form: str = "json", code: int = 0) -> str:
            """Returns the output of a command, or its error."""
            ended = main([*words.split(), "--command-config", as_user, "--format", form])
            out, err = capsys.readouterr()
            assert ended == code, (words, ended, out, err)
            return err or out

        def events(words: str) -> list[dict[str, Any]]:
            return [json.loads(line) for line in command(f"audit {words}").splitlines()]

        command("topic create audit orders -p 3 -r 1")
        command("acl add --topic orders --allow-principal User:bob --operation Delete --operation Describe")
        command("topic delete orders", bob)
        for _ in range(TRIES):  # the broker writes lines in the background
            found = events("--resource orders --event change")
            if found and found[-1]["operation"] == "DELETE":
                break
        assert [(each["principal"], each["operation"], each["resource_type"]) for each in found] == [
            ("User:admin", "CREATE", "TOPIC"), ("User:admin", "CREATE", "ACL"), ("User:admin", "CREATE", "ACL"),
            ("User:bob", "DELETE", "TOPIC"),
        ]  # fmt: skip
        assert [each["time"] for each in found] == sorted(each["time"] for each in found)
        assert events("--resource orders --event change -n 1") == found[-1:]
        assert {each["principal"] for each in events("--principal User:bob")} == {"User:bob"}
        assert events("--resource orders --since 2100-01-01") == []
        for since in ("--since -1h", "--since=-1h", "--since 1h", "--since @-1h"):
            assert len(events(f"--resource orders --event change {since}")) == len(found), since
        shown = command("audit --resource orders --event change -n 1", form="text").splitlines()
        assert shown[0].split()[:4] == ["TIME", "EVENT", "OUTCOME", "PRINCIPAL"] and "User:bob" in shown[1]
        refused = command("audit", bob, code=2)
        assert "name it with --topic" in refused

    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(each) + "\n" for each in found) + "no event\n[1]\n")
    assert main(["audit", "--file", str(file), "--resource", "orders", "--format", "json", "-n", "2"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == found[-2:] and "2 lines are no events" in err
    assert main(["audit", "--file", str(tmp_path / "absent")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_audit_finds_each_resource_of_a_shared_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"time": "2026-03-01T12:00:00.000+00:00", "event": "change", "outcome": "done", "operation": "DELETE"}
    names = {"resource_type": "TOPIC", "resource_names": ["own-0", "own-1", "orders-3"]}
    file = tmp_path / "audit"
    file.write_text(json.dumps({**shared, **names}) + "\n")
    assert main(["audit", "--file", str(file), "--resource", "orders", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["resource_name"] == "orders-3"
    assert main(["audit", "--file", str(file), "-n", "2", "--format", "json"]) == 0
    shown = [json.loads(line)["resource_name"] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["own-1", "orders-3"]


def test_removed_user_leaves_no_rule_unsaid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next user of that name would have them."""
    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0", f"authorizer.class.name={STANDARD_AUTHORIZER}",
        "super.users=User:admin",
    )  # fmt: skip
    start = ("--add-scram", "SCRAM-SHA-512=[name=admin,password=admin]")
    with ServeProcess(tmp_path / "data", *start, *(word for each in settings for word in ("-c", each))) as broker:
        admin = write_properties(tmp_path / "admin", broker.kafka, "admin", "admin")
        (tmp_path / "password").write_text("b\n")

        def command(words: str) -> tuple[str, str]:
            ended = main([*words.split(), "--command-config", admin, "--format", "json"])
            out, err = capsys.readouterr()
            assert ended == 0, (words, out, err)
            return out, err

        def make_bob() -> None:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                command(f"user add bob --password-file {tmp_path}/password --mechanism {mechanism}")

        make_bob()
        assert command("user remove bob")[1] == ""
        make_bob()
        command("acl add --topic t --allow-principal User:bob --operation Read --operation Write")
        command("acl add --topic t --allow-principal User:bobby --operation Read")
        command("quota set --user bob producer_byte_rate=1024")
        command("quota set --user bob --client-id c request_percentage=5")
        assert command("user remove bob --mechanism SCRAM-SHA-256")[1] == "", "the user is still there"
        assert "user bob leaves 2 ACLs and 2 quotas" in command("user remove bob")[1]
        make_bob()
        out, err = command("user remove bob --with-rules")
        assert (len(out.splitlines()), err) == (6, "")
        assert "bobby" in command("acl list")[0] and '"User:bob"' not in command("acl list")[0]
        assert command("quota list") == ("", "")


def test_audit_without_a_topic_says_where_the_lines_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ServeProcess(tmp_path) as broker:
        assert main(["audit", "--bootstrap", broker.kafka]) == 2
        assert "no broker has tiered.audit.topic" in capsys.readouterr().err
