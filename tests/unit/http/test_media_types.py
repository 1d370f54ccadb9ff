import pytest

from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.records import READ_TYPES


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        (None, media_types.JSON),
        ("*/*", media_types.JSON),
        ("application/*", media_types.JSON),
        ("application/json", media_types.JSON),
        ("APPLICATION/JSON; charset=utf-8", media_types.JSON),
        ("application/octet-stream", media_types.BINARY),
        ("text/*", media_types.EVENTS),
        ("application/json;q=0.1, text/event-stream", media_types.EVENTS),
        ("application/vnd.kafka.json.v2+json, application/json;q=0.9", media_types.V2_JSON),
        ("*/*;q=0.1, application/json;q=0", media_types.V2_BINARY),
    ],
)
def test_accept_chooses_the_form_of_a_reply(accept: str | None, given: str) -> None:
    assert media_types.negotiate_type(accept, READ_TYPES) == given


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "application/json;q=much", "x", ","])
def test_accept_without_a_match_is_406(accept: str) -> None:
    with pytest.raises(HttpError) as refused:
        media_types.negotiate_type(accept, (media_types.JSON,))
    assert refused.value.status == 406


def test_type_of_a_body_is_read_without_its_parameters() -> None:
    assert media_types.body_type("Application/JSON; charset=utf-8", (media_types.JSON,)) == media_types.JSON


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded"])
def test_other_type_of_body_is_415_with_the_accepted_types(kind: str | None) -> None:
    with pytest.raises(HttpError, match="application/json") as refused:
        media_types.body_type(kind, (media_types.JSON,))
    assert refused.value.status == 415
