"""Tests of ACLs, users and quotas over HTTP: listed, added, removed, and no secret in any reply."""

from __future__ import annotations

from urllib.parse import urlencode

from tests.e2e.http_bodies import ACL, PASSWORD
from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.test_http_acls import grant
from tests.e2e.test_http_group_acts import ONE
from tests.e2e.test_http_login import BASIC, ask_as, basic, set_user
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER

ANYTHING = {"resource_type": "ANY", "pattern_type": "ANY", "operation": "ANY", "permission": "ANY"}


def shown(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Returns ACLs without kind and links."""
    return [{name: row[name] for name in ACL} for row in rows]


@run_by(run, "tmp_path", numbers=ONE, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
async def test_acls_are_added_chosen_by_a_filter_and_removed(three: HttpCluster) -> None:
    site, acls = three[1], f"{three.url}/acls"
    assert (await site.get(acls)).json["data"] == []
    other = ACL | {"resource_type": "GROUP", "resource_name": "g", "pattern_type": "PREFIXED", "permission": "DENY"}
    for acl in (ACL, other):
        assert (await site.ask("POST", acls, acl)).status == 201
    found = (await site.get(acls)).json
    assert (found["kind"], shown(found["data"])) == ("KafkaAclList", [ACL, other])
    assert shown((await site.get(f"{acls}?permission=deny")).json["data"]) == [other]
    assert shown((await site.get(f"{acls}?principal=User%3Aalice&resource_name=t")).json["data"]) == [ACL]
    refused = await site.ask("DELETE", f"{acls}?resource_type=TOPIC")
    assert refused.json["error_code"] == 40002 and "pattern_type" in refused.json["message"]
    chosen = urlencode(ANYTHING | {"resource_name": "t"})
    assert shown((await site.ask("DELETE", f"{acls}?{chosen}")).json["data"]) == [ACL]
    assert shown((await site.get(acls)).json["data"]) == [other]
    for name, value in (("resource_type", "BROKER"), ("operation", "FLY"), ("permission", "MAYBE"), ("principal", 1)):
        bad = await site.ask("POST", acls, ACL | {name: value})
        assert bad.status in (400, 422), (name, bad)
    assert (await site.get(f"{acls}?operation=FLY")).status == 400


@run_by(run, "tmp_path", numbers=ONE)
async def test_cluster_without_an_authorizer_has_no_acls_and_takes_none(three: HttpCluster) -> None:
    assert (await three[1].get(f"{three.url}/acls")).json["data"] == []
    assert (await three[1].get("/tiered/v1/console")).json["has_authorizer"] is False
    refused = await three[1].ask("POST", f"{three.url}/acls", ACL)
    assert refused.status == 400 and "SECURITY_DISABLED" in refused.json["message"]


@run_by(run, "tmp_path", numbers=ONE, authorizer_class_name=STANDARD_AUTHORIZER)
async def test_access_is_shown_and_changed_only_with_the_rights(three: HttpCluster) -> None:
    site, acls = three[1], f"{three.url}/acls"
    paths = (acls, "/tiered/v1/users", "/tiered/v1/quotas")
    quota = {"owner": {"user": "u"}, "set": {"producer_byte_rate": 1}}
    changes = (
        ("POST", acls, ACL),
        ("DELETE", f"{acls}?{urlencode(ANYTHING)}", None),
        ("PUT", "/tiered/v1/users/carol", PASSWORD),
        ("DELETE", "/tiered/v1/users/carol", None),
        ("POST", "/tiered/v1/quotas", quota),
    )
    for path in paths:
        assert (await site.get(path)).json["error_code"] == 40301, path
    for method, path, body in changes:
        assert (await site.ask(method, path, body)).json["error_code"] == 40301, path
    await grant(site, ("CLUSTER", "kafka-cluster", "DESCRIBE"), ("CLUSTER", "kafka-cluster", "DESCRIBE_CONFIGS"))
    for path in paths:
        assert (await site.get(path)).status == 200, path
    for method, path, body in changes:
        assert (await site.ask(method, path, body)).json["error_code"] == 40301, path


@run_by(run, "tmp_path")
async def test_users_are_added_changed_and_removed_from_any_broker(three: HttpCluster) -> None:
    path = "/tiered/v1/users"
    assert (await three[1].get(path)).json == {"users": []}
    assert (await three[2].ask("PUT", f"{path}/carol", PASSWORD)).status == 204
    other = {"mechanism": "SCRAM-SHA-256", "password": "not shown", "iterations": 8192}
    assert (await three[3].ask("PUT", f"{path}/carol", other)).status == 204
    [carol] = (await three[3].get(path)).json["users"]
    assert (carol["user"], sorted((each["mechanism"], each["iterations"]) for each in carol["mechanisms"])) == (
        "carol",
        [("SCRAM-SHA-256", 8192), ("SCRAM-SHA-512", 4096)],
    )
    assert b"not shown" not in (await three[3].get(path)).body
    assert (await three[3].ask("DELETE", f"{path}/carol?mechanism=SCRAM-SHA-256")).status == 204
    [carol] = (await three[3].get(path)).json["users"]
    assert [each["mechanism"] for each in carol["mechanisms"]] == ["SCRAM-SHA-512"]
    assert (await three[3].ask("DELETE", f"{path}/carol?mechanism=MD5")).status == 400
    assert (await three[3].ask("DELETE", f"{path}/carol")).status == 204
    assert (await three[3].ask("DELETE", f"{path}/carol")).status == 404
    for body in (
        {**PASSWORD, "mechanism": "PLAIN"},
        {**PASSWORD, "password": ""},
        {**PASSWORD, "password": "x" * 1025},
        {**PASSWORD, "iterations": 1},
    ):
        assert (await three[1].ask("PUT", f"{path}/carol", body)).status in (400, 422), body
    assert (await three[3].get(path)).json == {"users": []}


@run_by(run, "tmp_path", numbers=ONE, authentication_method=BASIC, connection_failed_authentication_delay_ms=1)
async def test_password_set_over_http_is_good_for_a_login(three: HttpCluster) -> None:
    site = three[1]
    await set_user(site, "admin", "first")
    login = basic("admin", "first")
    done = await site.ask("PUT", "/tiered/v1/users/carol", PASSWORD, Authorization=login)
    assert done.status == 204
    assert (await ask_as(site, basic("carol", "not shown"))).status == 200
    assert (await ask_as(site, basic("carol", "shown"))).status == 401


@run_by(run, "tmp_path")
async def test_quotas_are_set_checked_and_removed(three: HttpCluster) -> None:
    path = "/tiered/v1/quotas"
    owner = {"user": "u", "client_id": None}
    body = {"owner": owner, "set": {"producer_byte_rate": 1000, "consumer_byte_rate": 5}}
    assert (await three[2].ask("POST", path, body | {"validate_only": True})).status == 204
    assert (await three[2].get(path)).json == {"quotas": []}
    assert (await three[2].ask("POST", path, body)).status == 204
    [row] = (await three[2].get(path)).json["quotas"]
    assert (row["owner"], row["quotas"]) == (owner, {"producer_byte_rate": 1000, "consumer_byte_rate": 5})
    assert (await three[2].ask("POST", path, {"owner": owner, "remove": ["consumer_byte_rate"]})).status == 204
    [row] = (await three[2].get(path)).json["quotas"]
    assert row["quotas"] == {"producer_byte_rate": 1000}
    for bad in (
        {"owner": {}, "set": {"producer_byte_rate": 1}},
        {"owner": {"user": 1}, "set": {"producer_byte_rate": 1}},
        {"owner": owner},
        {"owner": owner, "set": {"producer_byte_rate": "1"}},
        {"owner": owner, "set": {"producer_byte_rate": True}},
        {"owner": owner, "set": {"nosuch": 1}},
        {"owner": owner, "set": {"producer_byte_rate": 1}, "remove": ["producer_byte_rate"]},
        {"owner": {"user": "u", "ip": "127.0.0.1"}, "set": {"producer_byte_rate": 1}},
    ):
        assert (await three[1].ask("POST", path, bad)).status in (400, 422), bad


def cluster_acl(principal: str, permission: str = "ALLOW") -> dict[str, str]:
    """Returns an ACL for changes of the cluster, or against them."""
    return ACL | {
        "resource_type": "CLUSTER",
        "resource_name": "kafka-cluster",
        "pattern_type": "LITERAL",
        "operation": "ALTER",
        "principal": principal,
        "permission": permission,
    }


@run_by(run, "tmp_path", numbers=ONE, authorizer_class_name=STANDARD_AUTHORIZER)
async def test_acls_that_lock_everybody_out_need_force(three: HttpCluster) -> None:
    site, acls = three[1], f"{three.url}/acls"
    await grant(site, ("CLUSTER", "kafka-cluster", "ALTER"), ("CLUSTER", "kafka-cluster", "DESCRIBE"))
    chosen = urlencode(ANYTHING | {"resource_type": "CLUSTER", "operation": "ALTER"})
    changes = (("POST", acls, cluster_acl("User:*", "DENY")), ("DELETE", f"{acls}?{chosen}", None))
    for method, path, body in changes:
        refused = await site.ask(method, path, body)
        assert (refused.status, refused.json["error_code"]) == (409, 40903), refused
        assert (
            "no principal may ALTER the cluster" in refused.json["message"] and "force=true" in refused.json["message"]
        )
    assert len((await site.get(acls)).json["data"]) == 2
    assert (await site.ask("DELETE", f"{acls}?{chosen}&force=perhaps")).status == 400
    assert (await site.ask("POST", acls, cluster_acl("User:bob"))).status == 201
    of_caller = f"{chosen}&principal=User%3AANONYMOUS"
    assert len((await site.ask("DELETE", f"{acls}?{of_caller}")).json["data"]) == 1, "bob is left"
    await grant(site, ("CLUSTER", "kafka-cluster", "ALTER"))
    assert len((await site.ask("DELETE", f"{acls}?{chosen}&force=true")).json["data"]) == 2
    assert (await site.ask("POST", acls, ACL)).json["error_code"] == 40301


@run_by(
    run, "tmp_path", numbers=ONE, authentication_method=BASIC, authorizer_class_name=STANDARD_AUTHORIZER,
    super_users="User:admin",
)  # fmt: skip
async def test_last_administrator_removes_itself_only_with_force(three: HttpCluster) -> None:
    site, path = three[1], "/tiered/v1/users"
    for user in ("admin", "carol"):
        await set_user(site, user, "secret")
    login = basic("admin", "secret")
    other = {**PASSWORD, "mechanism": "SCRAM-SHA-256"}
    assert (await site.ask("PUT", f"{path}/admin", other, Authorization=login)).status == 204
    refused = await site.ask("DELETE", f"{path}/admin", Authorization=login)
    assert refused.json["error_code"] == 40903 and "no user would be left" in refused.json["message"]
    assert (await site.ask("DELETE", f"{path}/carol", Authorization=login)).status == 204, "the caller is left"
    assert (await site.ask("DELETE", f"{path}/admin?mechanism=SCRAM-SHA-256", Authorization=login)).status == 204
    assert (await site.ask("DELETE", f"{path}/admin", Authorization=login)).status == 409
    assert (await site.ask("DELETE", f"{path}/admin?force=true", Authorization=login)).status == 204
    assert (await ask_as(site, login)).status == 401
