"""Pages of the accounts: access, theme, health, error pages, the policy on every answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal import views
from portal.errors import InsufficientFunds, NoCapacity
from portal.middleware import POLICY, ContentSecurityPolicy, DomainErrors, ViewerTimeZone, known_zone
from portal.models import ApiToken, SshKey, User
from portal.routes import every_route
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from django.http import HttpRequest


# --- access -----------------------------------------------------------------------------------------------------------


def test_a_key_is_added_listed_and_removed(page: Client, user: User) -> None:
    line = make.ed25519_line("maya@laptop")
    assert page.post(reverse("ssh-keys"), {"public_key": line, "name": ""})["Location"] == reverse("ssh-keys")
    key = user.ssh_keys.get()
    listed = page.get(reverse("ssh-keys")).content.decode()
    assert "maya@laptop" in listed
    assert key.fingerprint in listed
    remove = reverse("ssh-key-remove", args=[key.pk])
    assert key.fingerprint in page.get(remove).content.decode()
    assert user.ssh_keys.count() == 1  # GET asks, it does not remove
    assert page.post(remove)["Location"] == reverse("ssh-keys")
    assert not SshKey.objects.exists()


def test_a_refused_key_says_why_beside_the_field_and_is_not_shown_again(page: Client) -> None:
    line = make.ed25519_line()[:-4]
    answer = page.post(reverse("ssh-keys"), {"public_key": line, "name": "mine"})
    text = answer.content.decode()
    assert answer.status_code == 400
    assert "cut short" in text
    assert line not in text
    assert 'value="mine"' in text
    assert 'aria-invalid="true"' in text


def test_a_duplicate_key_is_told_on_the_page(page: Client, user: User) -> None:
    key = make.make_key(user)
    answer = page.post(reverse("ssh-keys"), {"public_key": key.line, "name": ""})
    assert answer.status_code == 400
    assert "You have this key already." in answer.content.decode()


def test_a_token_is_made_shown_once_and_revoked(page: Client, user: User) -> None:
    answer = page.post(reverse("api-tokens"), {"name": "ci", "ends": "90", "scopes": ["leases:read"]})
    assert answer.status_code == 201
    assert "no-store" in answer["Cache-Control"]
    token = ApiToken.objects.get()
    secret = next(
        word
        for word in answer.content.decode().replace("<", " ").replace(">", " ").split()
        if word.startswith("lsr_") and len(word) == 42
    )
    assert ApiClient(secret).get("me").json()["scopes"] == ["leases:read"]
    assert token.expires_at is not None
    assert 89 <= (token.expires_at - timezone.now()).days <= 90
    assert secret not in page.get(reverse("api-tokens")).content.decode()
    revoke = reverse("api-token-revoke", args=[token.pk])
    assert page.get(revoke).status_code == 200
    page.post(revoke)
    assert ApiClient(secret).get("me").status_code == 401
    assert page.get(revoke).status_code == 404


@pytest.mark.parametrize("data", [{"name": ""}, {"scopes": []}, {"scopes": ["everything"]}, {"ends": "1000000"}])
def test_a_wrong_token_form_makes_no_token(page: Client, data: dict[str, object]) -> None:
    form = {"name": "ci", "ends": "90", "scopes": ["leases:read"], **data}
    assert page.post(reverse("api-tokens"), form).status_code == 400
    assert not ApiToken.objects.exists()


def test_lists_need_the_same_queries_for_any_number_of_rows(page: Client, user: User) -> None:
    for name, maker in (("ssh-keys", make.make_key), ("api-tokens", make.make_token)):
        counts = []
        for _ in range(2):
            for _i in range(3):
                maker(user)
            with CaptureQueriesContext(
                connection,
            ) as seen:
                page.get(reverse(name))
            counts.append(len(seen))
        assert counts[0] == counts[1] <= 8


# --- theme ------------------------------------------------------------------------------------------------------------


def test_the_theme_is_kept_in_a_cookie_and_leads_back(db: None) -> None:
    answer = Client().post(reverse("set-theme"), {"theme": "dark", "next": "/access/keys/"})
    assert (answer.status_code, answer["Location"]) == (302, "/access/keys/")
    assert answer.cookies["theme"].value == "dark"


@pytest.mark.parametrize("target", ["https://evil.test/", "//evil.test/", "javascript:alert(1)", ""])
def test_the_theme_never_leads_to_another_site(db: None, target: str) -> None:
    assert Client().post(reverse("set-theme"), {"theme": "dark", "next": target})["Location"] == "/"


def test_an_unknown_theme_is_ignored_and_get_is_refused(db: None) -> None:
    assert "theme" not in Client().post(reverse("set-theme"), {"theme": "pink"}).cookies
    assert Client().get(reverse("set-theme")).status_code == 405


# --- health -----------------------------------------------------------------------------------------------------------


def test_healthz_is_ok_while_the_database_answers(db: None) -> None:
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"ok")
    assert "no-store" in answer["Cache-Control"]


def test_healthz_says_503_without_a_database(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        """A connection that is gone."""

        def cursor(self) -> None:
            """Fail."""
            raise DatabaseError("gone: password=hunter2")

    monkeypatch.setattr(views, "connection", Away())
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.content) == (503, b"no database")


def test_readyz_needs_the_tables_of_this_version(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client().get("/readyz").status_code == 200
    monkeypatch.setattr(MigrationExecutor, "migration_plan", lambda *_: [("portal", "0002")])
    assert Client().get("/readyz").status_code == 503


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_missing_page_is_a_page_and_a_missing_route_of_the_api_a_problem(db: None) -> None:
    missing = Client().get("/no-such-page")
    assert (missing.status_code, missing["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert Client().get("/api/v1/nothing")["Content-Type"] == "application/problem+json"
    assert Client().get("/api/node/v1/nothing")["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/x", "/api/v1/x"])
def test_each_error_handler_answers_pages_and_problems(db: None, path: str) -> None:
    request = RequestFactory().get(path)
    kind = "application/problem+json" if path.startswith("/api/") else "text/html; charset=utf-8"
    answers = [
        (400, views.bad_request(request, ValueError())),
        (403, views.permission_denied(request, ValueError())),
        (403, views.csrf_failure(request)),
        (404, views.not_found(request, ValueError())),
        (500, views.server_error(request)),
    ]
    for status, answer in answers:
        assert (answer.status_code, answer["Content-Type"]) == (status, kind)


def test_a_refusal_of_a_service_becomes_a_page_with_its_sentence(user: User) -> None:
    request = RequestFactory().post("/rent")
    request.user = user
    error = NoCapacity("8 together: the largest free group is 4.", extra={"reasons": ["node a drains"]})
    answer = DomainErrors(lambda _: HttpResponse()).process_exception(request, error)
    assert answer is not None
    assert answer.status_code == 409
    assert "the largest free group is 4" in answer.content.decode()
    assert "node a drains" in answer.content.decode()


def test_a_refusal_under_the_api_is_a_problem_and_other_errors_are_left_alone() -> None:
    middleware = DomainErrors(lambda _: HttpResponse())
    request = RequestFactory().post("/api/v1/x")
    answer = middleware.process_exception(request, InsufficientFunds("Short.", extra={"needed_micros": 7}))
    assert answer is not None
    assert (answer.status_code, answer["Content-Type"]) == (402, "application/problem+json")
    assert b'"needed_micros": 7' in answer.content
    assert middleware.process_exception(request, ValueError()) is None


# --- policy and zone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/access/keys/", "/healthz", "/nothing", "/api/v1/me", "/admin/", "/admin/login/", "/account/login/"]
)
def test_the_policy_is_on_every_answer(db: None, path: str) -> None:
    answer = Client().get(path)
    assert answer["Content-Security-Policy"] == POLICY
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["X-Frame-Options"] == "DENY"


def test_a_view_may_set_a_policy_of_its_own() -> None:
    def view(_: HttpRequest) -> HttpResponse:
        return HttpResponse(headers={"Content-Security-Policy": "default-src 'self'"})

    assert ContentSecurityPolicy(view)(RequestFactory().get("/"))["Content-Security-Policy"] == "default-src 'self'"


@pytest.mark.parametrize(
    ("cookie", "zone"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("", "UTC"),
        ("../../etc/passwd", "UTC"),
        ("Mars/Base", "UTC"),
        ("x" * 5000, "UTC"),
    ],
)
def test_the_viewer_zone_holds_for_one_request_only(cookie: str, zone: str) -> None:
    seen: list[str] = []

    def view(_: HttpRequest) -> HttpResponse:
        seen.append(timezone.get_current_timezone_name())
        return HttpResponse()

    request = RequestFactory().get("/")
    request.COOKIES["tz"] = cookie
    ViewerTimeZone(view)(request)
    assert seen == [zone]
    assert timezone.get_current_timezone_name() == "UTC"


def test_zones_are_known_by_name_only() -> None:
    assert known_zone("Asia/Shanghai") is not None
    assert known_zone("/etc/localtime") is None


def test_no_template_of_ours_has_inline_script_or_style() -> None:
    text = render_to_string("500.html")
    assert "<style" not in text
    assert " style=" not in text


# --- ids out of a URL -------------------------------------------------------------------------------------------------

WITH_ID = sorted(
    {re.sub(r"<[^>]+>", "%00", route.path) for route in every_route() if "<" in route.path and "(" not in route.path}
)


@pytest.mark.parametrize("path", WITH_ID)
def test_an_id_with_a_nul_is_not_found_anywhere(path: str, operator: User) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(operator)
    assert client.get(f"/{path}").status_code == 404
