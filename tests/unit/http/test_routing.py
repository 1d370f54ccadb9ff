import re
from inspect import iscoroutinefunction

import pytest

from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import parse_query
from tiered_api.http.server.openapi import SCHEMAS, openapi_document
from tiered_api.http.server.routes import table


def refused(method: str, target: str) -> HttpError:
    with pytest.raises(HttpError) as error:
        table().match(method, target)
    return error.value


def test_every_route_is_found_by_its_path() -> None:
    for route in table().routes:
        names = re.findall(r"{(\w+)", route.path)
        target = re.sub(r"{(\w+)(\.\.\.)?}", r"the-\1", route.path)
        assert table().match(route.method, target) == (route, {name: f"the-{name}" for name in names})


def test_every_route_names_a_handler_with_a_summary() -> None:
    for route in table().routes:
        assert iscoroutinefunction(route.handle) and route.handle.__doc__, route.handler
        assert route.operation.endswith(route.handle.__name__)


def test_last_argument_with_dots_takes_all_segments_that_follow() -> None:
    for target, page in (("/console/", ""), ("/console/topics", "topics"), ("/console/topics/a%2Fb", "topics/a/b")):
        assert table().match("GET", target)[1] == {"page": page}
    assert table().match("GET", "/console/static/vendor/x.js")[1] == {"file": "vendor/x.js"}
    assert refused("GET", "/consoles/x").status == 404


def test_path_segment_is_decoded_after_the_split() -> None:
    route, arguments = table().match("GET", "/topics/a%2Fb%20c?x=%2F")
    assert (route.path, arguments) == ("/topics/{topic}", {"topic": "a/b c"})
    assert table().match("GET", "/topics/..%2f..%2fetc%2fpasswd")[1] == {"topic": "../../etc/passwd"}


@pytest.mark.parametrize("target", ["/nothing", "/topics/", "//topics", "/topics//partitions", "/topics/a/b", "/v3"])
def test_unknown_path_is_404(target: str) -> None:
    assert refused("GET", target).status == 404


@pytest.mark.parametrize(
    "target", ["*", "http://other/topics", "/topics/%ff", "/topics/a%00b", "/topics/\udcff", "/topics/\udcff%20", ""]
)
def test_target_that_is_no_path_is_400(target: str) -> None:
    assert refused("GET", target).status == 400


def test_other_method_is_405_with_the_allowed_ones() -> None:
    error = refused("PUT", "/v3/clusters/c/topics/t")
    assert (error.status, error.headers) == (405, (("Allow", "DELETE, GET, HEAD, PATCH"),))
    assert table().match("HEAD", "/topics")[0].method == "GET"


def test_repeated_query_name_is_refused() -> None:
    assert parse_query("offset=5&a=b%20c+d&&flag") == {"offset": "5", "a": "b c d", "flag": ""}
    for wrong in ("a=1&a=2", "a=%ff", "a=%00", "&".join(f"a{n}=1" for n in range(40))):
        with pytest.raises(HttpError) as error:
            parse_query(wrong)
        assert error.value.status == 400


def test_document_has_every_operation_once_and_only_existing_schemas() -> None:
    made = openapi_document(table().routes)
    operations = [operation for path in made["paths"].values() for operation in path.values()]
    assert len(operations) == len(table().routes) == len({each["operationId"] for each in operations})
    assert all(each["summary"] for each in operations)
    used = set(re.findall(r"#/components/schemas/(\w+)", repr(made)))
    assert used <= SCHEMAS.keys()
