"""The plumbing of the API: problems, strict bodies, cursors, CSRF, the OpenAPI document."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from rest_framework import exceptions, serializers
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from portal import problems, schema
from portal.errors import DomainError, NoCapacity
from portal.models import SshKey, User
from portal.serializers import StrictSerializer
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from pathlib import Path

    from django.test.client import _MonkeyPatchedWSGIResponse as Answer

NUL = base64.urlsafe_b64encode(b'["2026-01-01T00:00:00+00:00", "\\u0000"]').decode()
MEMBERS = {"type", "title", "status", "code", "detail"}


def assert_problem(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """It is a problem document with this status and code."""
    assert answer.status_code == status
    assert answer["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert set(body) >= MEMBERS
    assert (body["status"], body["code"], body["type"]) == (status, code, f"urn:lessor:problem:{code}")
    return body


def test_no_token_is_401(db: None) -> None:
    for method, path in [("GET", "me"), ("GET", "ssh-keys"), ("POST", "ssh-keys"), ("DELETE", "ssh-keys/sk-x")]:
        assert_problem(ApiClient(None).send(method, path), 401, "not_authenticated")


def test_a_token_without_the_scope_is_403_and_names_it(user: User) -> None:
    _, secret = make.make_token(user, scopes=["leases:read"])
    body = assert_problem(ApiClient(secret).get("ssh-keys"), 403, "scope_missing")
    assert body["scope"] == "keys:read"


@pytest.mark.parametrize("query", ["token=lsr_abc", "access_token=x", "api_key=x", "q=lsr_abcdef", "TOKEN=x"])
def test_a_token_in_the_address_is_refused(api: ApiClient, query: str) -> None:  # case H10
    assert_problem(api.get(f"me?{query}"), 400, "token_in_query")
    assert_problem(ApiClient(None).get(f"me?{query}"), 400, "token_in_query")


def test_an_unknown_address_under_the_api_is_a_problem(api: ApiClient) -> None:
    assert_problem(api.get("no-such-thing"), 404, "not_found")


def test_a_method_that_is_not_there_is_405_for_everyone(api: ApiClient) -> None:
    for client in (api, ApiClient(None)):
        assert_problem(client.send("PATCH", "ssh-keys", {}), 405, "method_not_allowed")
        assert_problem(client.send("OPTIONS", "ssh-keys"), 405, "method_not_allowed")


def test_broken_json_and_other_types_are_problems(api: ApiClient) -> None:
    headers = api.headers
    post = api.http.post
    broken = post("/api/v1/ssh-keys", data="{", content_type="application/json", headers=headers)
    assert_problem(broken, 400, "malformed")
    form = post("/api/v1/ssh-keys", data={"public_key": "x"}, headers=headers)
    assert_problem(form, 415, "unsupported_media_type")
    text = post("/api/v1/ssh-keys", data='{"public_key":"x"}', content_type="text/plain", headers=headers)
    assert_problem(text, 415, "unsupported_media_type")
    for body in ("[]", '"x"', "null", "7"):
        answer = post("/api/v1/ssh-keys", data=body, content_type="application/json", headers=headers)
        assert_problem(answer, 400, "invalid")


def test_an_unknown_field_is_refused_by_name_beside_the_other_errors(api: ApiClient) -> None:
    body = assert_problem(api.post("ssh-keys", {"publickey": "x", "is_staff": True}), 400, "invalid")
    assert set(body["errors"]) == {"public_key", "publickey", "is_staff"}


def test_a_number_is_not_taken_for_text(api: ApiClient) -> None:
    assert set(api.post("ssh-keys", {"public_key": 7}).json()["errors"]) == {"public_key"}


def test_nested_errors_are_flat_with_dots() -> None:
    detail = {"env": {"A B": ["bad"]}, "ids": [{}, {"n": ["low"]}], "scopes": {1: ["unknown"]}, "x": ["a", "b"]}
    assert problems.flat(detail) == {"env.A B": ["bad"], "ids.1.n": ["low"], "scopes.1": ["unknown"], "x": ["a", "b"]}
    assert problems.flat({"non_field_errors": ["whole"]}) == {"body": ["whole"]}


def test_nested_strict_serializers_refuse_unknown_fields_inside() -> None:
    class Inner(StrictSerializer):
        a = serializers.IntegerField()

    class Outer(StrictSerializer):
        inner = Inner()

    outer = Outer(data={"inner": {"a": 1, "b": 2}})
    assert not outer.is_valid()
    assert problems.flat(outer.errors) == {"inner.b": ["There is no such field."]}


class Broken(APIView):
    """Raises what it is given."""

    error: Exception = NoCapacity("Nothing.")
    permission_classes = ()
    authentication_classes = ()

    def get(self, request: object) -> None:
        """Raise."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoCapacity("Nothing.", extra={"reasons": ["all leased"]}), 409, "no_capacity"),
        (DomainError("No.", code="odd"), 409, "odd"),
        (exceptions.Throttled(wait=7), 429, "too_many_requests"),
        (exceptions.NotFound(), 404, "not_found"),
        (exceptions.PermissionDenied(), 403, "permission_denied"),
        (exceptions.APIException(), 500, "error"),
    ],
)
def test_errors_of_a_view_become_problems(error: Exception, status: int, code: str) -> None:
    answer = Broken.as_view(error=error)(APIRequestFactory().get("/api/v1/x"))
    assert (answer.status_code, answer.data["code"]) == (status, code)
    assert answer.data.get("reasons") == (["all leased"] if code == "no_capacity" else None)
    assert answer.headers.get("Retry-After") == ("7" if status == 429 else None)


def test_a_bug_is_a_clean_500(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is swordfish")

    monkeypatch.setattr("portal.api.Cursor.paginate_queryset", burst)
    api.http.raise_request_exception = False
    answer = api.get("ssh-keys")
    assert_problem(answer, 500, "server_error")
    assert "swordfish" not in answer.content.decode()


def test_a_view_that_declares_no_scope_is_closed(user: User) -> None:
    class Forgotten(APIView):
        """No scopes."""

        def get(self, request: object) -> None:
            """Never reached."""
            raise AssertionError

    _, secret = make.make_token(user)
    request = APIRequestFactory().get("/api/v1/x", headers={"Authorization": f"Bearer {secret}"})
    assert Forgotten.as_view()(request).status_code == 403


def test_a_viewer_may_not_write_leases_whatever_the_token_says(user: User, stranger: User) -> None:
    from portal.permissions import HasScope

    class Leases(APIView):
        """Needs leases:write."""

        scopes = {"POST": "leases:write"}
        permission_classes = (HasScope,)

        def post(self, request: object) -> None:
            """Never reached."""
            raise AssertionError

    organisation = make.make_tenant(members={stranger: "owner", user: "viewer"})
    _, secret = make.make_token(user, tenant=organisation)
    request = APIRequestFactory().post("/api/v1/x", headers={"Authorization": f"Bearer {secret}"})
    assert Leases.as_view()(request).status_code == 403


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_may_read_without_and_write_only_with_the_csrf_token(user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get("/api/v1/ssh-keys").status_code == 200
    body = {"public_key": make.ed25519_line()}
    bare = client.post("/api/v1/ssh-keys", body, content_type="application/json")
    assert_problem(bare, 403, "csrf_failed")
    client.get("/access/keys/")
    token = client.cookies["csrftoken"].value
    written = client.post("/api/v1/ssh-keys", body, content_type="application/json", headers={"X-CSRFToken": token})
    assert written.status_code == 201


def test_a_bearer_token_needs_no_csrf_token_and_no_cookie(user: User) -> None:
    _, secret = make.make_token(user)
    client = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {secret}"})
    answer = client.post("/api/v1/ssh-keys", {"public_key": make.ed25519_line()}, content_type="application/json")
    assert answer.status_code == 201
    assert not answer.cookies


# --- lists ------------------------------------------------------------------------------------------------------------


def walk(api: ApiClient, limit: int) -> list[str]:
    """All ids of a list, page by page."""
    found: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"ssh-keys?limit={limit}{cursor}").json()
        assert len(page["results"]) <= limit
        found += [row["id"] for row in page["results"]]
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 200])
def test_pages_give_every_row_once_even_when_many_share_a_moment(api: ApiClient, user: User, limit: int) -> None:
    # case B08
    moment = timezone.now()
    rows = [make.make_key(user) for _ in range(7)]
    for index, row in enumerate(rows):
        SshKey.objects.filter(pk=row.pk).update(created_at=moment - timedelta(seconds=index // 3))
    expected = list(SshKey.objects.order_by("created_at", "pk").values_list("pk", flat=True))
    assert walk(api, limit) == expected


def test_rows_that_arrive_or_go_meanwhile_double_and_skip_nothing(api: ApiClient, user: User) -> None:  # case B08
    first, second, third = (make.make_key(user) for _ in range(3))
    page = api.get("ssh-keys?limit=2").json()
    assert [row["id"] for row in page["results"]] == [first.pk, second.pk]
    first.delete()
    late = make.make_key(user)
    rest = api.get(f"ssh-keys?limit=2&cursor={page['next']}").json()
    assert [row["id"] for row in rest["results"]] == [third.pk, late.pk]


@pytest.mark.parametrize("limit", ["0", "201", "-1", "abc", "1e2", "", "٣", "99999999999999999999"])
def test_a_bad_limit_is_named(api: ApiClient, limit: str) -> None:  # case B08
    assert "limit" in assert_problem(api.get(f"ssh-keys?limit={limit}"), 400, "invalid")["errors"]


@pytest.mark.parametrize(
    "cursor", ["x", "AAAA", "W10", "WyJhIiwiYiJd", "bnVsbA", "WzEsMl0", "é", "A" * 500, "W251bGwsbnVsbF0", NUL]
)
def test_a_bad_cursor_is_named(api: ApiClient, cursor: str) -> None:  # case B08
    assert "cursor" in assert_problem(api.get(f"ssh-keys?cursor={cursor}"), 400, "invalid")["errors"]


def test_a_list_needs_the_same_queries_for_any_number_of_rows(
    api: ApiClient, user: User, django_assert_num_queries: Any
) -> None:
    api.get("ssh-keys")  # notes the token's use
    for _ in range(2):
        for _i in range(5):
            make.make_key(user)
        with django_assert_num_queries(2):
            api.get("ssh-keys")


# --- description ------------------------------------------------------------------------------------------------------


def test_the_openapi_document_describes_every_route_with_scope_and_problems(db: None) -> None:
    answer = Client().get("/api/v1/openapi.json")
    assert answer.status_code == 200
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        assert path.startswith("/api/v1/")
        for operation in operations.values():
            assert operation["responses"]["default"]["content"]["application/problem+json"]
            assert operation["operationId"]
            assert operation["security"]
            assert operation.get("description"), operation["operationId"]
    operation = document["paths"]["/api/v1/ssh-keys"]["post"]
    assert operation["security"] == [{"token": ["keys:write"]}]
    assert "`keys:write`" in operation["description"]
    listed = document["paths"]["/api/v1/ssh-keys"]["get"]
    assert {"limit", "cursor"} <= {parameter["name"] for parameter in listed["parameters"]}
    shape = listed["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    components = document["components"]["schemas"]
    assert set(components[shape]["required"]) == {"results", "next"}
    assert set(components["SshKeyInRequest"]["properties"]) == {"public_key", "name"}


def test_the_document_is_valid_and_made_without_a_warning(tmp_path: Path) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "openapi.yaml"))


def test_the_node_api_is_not_in_the_document() -> None:
    kept = schema.only_v1([("/api/node/v1/enrol", "", "POST", None), ("/api/v1/me", "", "GET", None)])
    assert [endpoint[0] for endpoint in kept] == ["/api/v1/me"]


def test_the_browser_of_the_api_has_no_inline_script_or_style(db: None) -> None:
    answer = Client().get("/api/v1/docs/")
    text = answer.content.decode()
    assert answer.status_code == 200
    assert "<style" not in text
    assert text.count("<script") == text.count("<script src=")
    script = Client().get("/api/v1/docs/?script=")
    assert script["Content-Type"].startswith("application/javascript")
    assert "/api/v1/openapi.json" in script.content.decode()
