"""`tiered acl` and `tiered user` against a broker with a login and an authorizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import ServeProcess
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered_api.cli.main import main

ADMIN, BOB = "eighty,eight", 'it"s a pencil'


def write_properties(file: Path, broker: str, user: str, password: str) -> str:
    """Writes the properties of a client, as Kafka's tools take them."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    file.write_text(
        f"bootstrap.servers={broker}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="{quoted}";\n'
    )
    return str(file)


def test_users_and_rules_are_kept_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password = tmp_path / "password"
    password.write_text(BOB + "\n")
    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"authorizer.class.name={STANDARD_AUTHORIZER}",
        "super.users=User:admin",
        f"tiered.audit.file={tmp_path}/audit",
    )
    start = ("--add-scram", f"SCRAM-SHA-512=[name=admin,password={ADMIN}]")
    with ServeProcess(tmp_path / "data", *start, *(word for each in settings for word in ("-c", each))) as broker:
        admin = write_properties(tmp_path / "admin", broker.kafka, "admin", ADMIN)
        bob = write_properties(tmp_path / "bob", broker.kafka, "bob", BOB)

        def command(words: str, as_user: str = admin, code: int = 0) -> list[dict[str, Any]] | str:
            """Returns the rows of a command, or its error."""
            ended = main([*words.split(), "--command-config", as_user, "--format", "json"])
            out, err = capsys.readouterr()
            assert ended == code, (words, ended, out, err)
            return err if err else [json.loads(line) for line in out.splitlines()]

        added = command(f"user add bob --password-file {password}")
        assert added == [{"user": "bob", "mechanism": "SCRAM-SHA-512", "status": "OK"}]
        unfit = command(f"user add bob --password-file {password} --mechanism SCRAM-SHA-256", code=2)
        assert "no listener of the brokers takes SCRAM-SHA-256: they take SCRAM-SHA-512" in unfit
        assert "`user alter` changes it" in command(f"user add bob --password-file {password}", code=2)
        users = [{"user": user, "mechanism": "SCRAM-SHA-512", "iterations": 4096} for user in ("admin", "bob")]
        assert command("user list") == users and command("user list bob") == users[1:]

        def view(as_user: str, code: int) -> tuple[bool, list[str]]:
            """Returns if a user's view of the health is partial, and what it lacks."""
            rows = command("cluster health", as_user, code)
            found = rows[0]
            assert isinstance(found, dict) and found["healthy"]
            return found["partial"], found["hidden"]

        some, no_health = "only the topics that you may see", "no problems of brokers, without DESCRIBE on the cluster"
        assert "need DESCRIBE on the cluster" in command("cluster losses", bob, code=2)
        assert view(admin, 0) == (False, []) and view(bob, 11) == (True, [some, no_health])
        command("acl add --cluster --allow-principal User:bob --operation Describe")
        assert view(bob, 11) == (True, [some])
        command("acl add --topic * --allow-principal User:bob --operation Read")
        assert view(bob, 0) == (False, [])
        command("acl remove --principal User:bob")

        assert "CLUSTER_AUTHORIZATION_FAILED" in command("acl list", bob, code=2)
        rule = {"principal": "User:bob", "host": "*", "permission": "ALLOW", "operation": "DESCRIBE"}
        rule |= {"resource_type": "CLUSTER", "resource_name": "kafka-cluster", "pattern": "LITERAL"}
        assert command("acl add --cluster --allow-principal User:bob --operation Describe") == [rule | {"status": "OK"}]
        assert command("acl list", bob) == [rule]
        statuses = command("acl add --force --topic t --allow-principal User:bob", bob, code=1)
        assert "CLUSTER_AUTHORIZATION_FAILED" in str(statuses)
        assert command("acl list --topic t") == []
        assert command("acl remove --principal User:bob --dry-run") == [rule | {"status": "OK (dry run)"}]
        assert command("acl remove --principal User:bob") == [rule | {"status": "OK"}]
        assert "no rule fits" in command("acl remove --principal User:bob", code=2)

        command("topic create kept --partitions 1")
        command("group seek readers --to end --topics kept --allow-new-topics")
        command("acl add --topic kept --group readers --allow-principal User:bob --operation Describe")
        for words in ("topic delete kept", "topic trim kept -o end -p all", "group delete readers"):
            for dry in ("", " --dry-run"):
                said = str(command(words + dry, bob, code=1))
                assert f"{words.split()[0].upper()}_AUTHORIZATION_FAILED" in said
        assert "no right to the group" in command("group offset-delete readers -t kept:0 --dry-run", bob, code=2)
        row = {"topic": "kept", "partitions": 1, "records": 0, "status": "OK (dry run)"}
        assert command("topic delete kept --dry-run") == [row]
        command("acl remove --principal User:bob")

        rate = {"user": "bob", "client_id": "<default>", "ip": None, "quota": "producer_byte_rate", "value": 1024}
        share = rate | {"quota": "request_percentage", "value": 0.5}
        address = {"user": None, "client_id": None, "ip": "10.0.0.7", "quota": "connection_creation_rate", "value": 3}
        words = "quota set --user bob --default-client-id producer_byte_rate=1024 request_percentage=0.5"
        assert command(f"{words} --dry-run") == [each | {"status": "OK (dry run)"} for each in (rate, share)]
        assert command("quota list") == []
        assert command(words) == [each | {"status": "OK"} for each in (rate, share)]
        assert command("quota set --ip 10.0.0.7 connection_creation_rate=3") == [address | {"status": "OK"}]
        assert command("quota list") == [rate, share, address]
        assert command("quota list --user bob") == [rate, share] and command("quota list --default-user") == []
        assert "must be greater than 0" in str(command("quota set --user bob producer_byte_rate=0", code=1))
        assert "needs an owner" in command("quota set producer_byte_rate=1", code=2)
        assert "user bob has no quota" in command("quota remove --user bob", code=2)
        assert command("quota remove --user bob --default-client-id request_percentage") == [share | {"status": "OK"}]
        assert command("quota remove --ip 10.0.0.7") == [address | {"status": "OK"}]
        assert command("quota list") == [rate]

        assert "CLUSTER_AUTHORIZATION_FAILED" in command("cluster rotate-secret", bob, code=2)
        assert command("cluster rotate-secret") == [{"broker": 1, "version": 3, "status": "OK"}]

        password.write_text("another\n")
        command(f"user alter bob --password-file {password}")
        assert "the user or the password is wrong" in command("acl list", bob, code=2)
        assert "no user would be left that may ALTER the cluster" in command("user remove admin bob", code=2)
        planned = command("user remove bob --dry-run --with-rules")
        names = ("SCRAM-SHA-512", "quotas of client-id (default), user bob")
        assert planned == [{"user": "bob", "mechanism": each, "status": "OK (dry run)"} for each in names]
        assert command("user list bob") == users[1:] and command("quota list") == [rate]
        assert "user bob leaves 1 quota, which" in command("user remove bob")
        assert "no user bob" in command("user remove bob", code=2)
        assert command("user remove admin --force") == [{"user": "admin", "mechanism": "SCRAM-SHA-512", "status": "OK"}]
        assert "the user or the password is wrong" in command("user list", code=2)
        assert broker.ask("GET", "/metrics")[0] == 403
        log = broker.log.read_text()
    assert "Traceback" not in log and BOB not in log and ADMIN not in log
    text = (tmp_path / "audit").read_text()
    assert BOB not in text and ADMIN not in text
    events = list(map(json.loads, text.splitlines()))
    allowed = [each for each in events if (each["event"], each["outcome"]) == ("login", "allowed")]
    assert allowed[0]["principal"] == "User:admin"
    assert {each.get("principal") for each in allowed} <= {"User:admin", "User:bob", None}, "some may only be counted"
    assert sum(1 + each.get("suppressed", 0) for each in allowed) > 15
    whys = [each["why"] for each in events if (each["event"], each["outcome"]) == ("login", "refused")]
    assert whys == ["authentication failed: the user or the password is wrong"] * 2
    refused = [
        (each["principal"], each["operation"], each["resource_type"]) for each in events if each["event"] == "operation"
    ]
    acts = [("ALTER", "CLUSTER"), *2 * [("DELETE", "TOPIC")], ("DELETE", "GROUP"), ("ALTER", "CLUSTER")]
    assert refused == [*(("User:bob", *each) for each in acts), ("User:ANONYMOUS", "DESCRIBE", "CLUSTER")]
