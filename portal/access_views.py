"""Who and what can get in: a person's SSH keys and API tokens. Each view parses, calls one service, renders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from portal import keys, tokens
from portal.actor import Actor
from portal.errors import DomainError
from portal.forms import KeyForm, TokenForm
from portal.mail_tasks import TELL_BEFORE
from portal.models import ApiToken, SshKey, User
from portal.services import current_tenant

if TYPE_CHECKING:
    from django.db.models import QuerySet


def person(request: HttpRequest) -> User:
    """The signed-in user; ``login_required`` has made sure of one."""
    if not isinstance(request.user, User):
        raise Http404
    return request.user


def _shown_tokens(user: User) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(user=user, revoked_at__isnull=True).select_related("tenant")


@method_decorator([login_required, sensitive_post_parameters("public_key")], name="dispatch")
class SshKeys(View):
    """List and add SSH keys."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The list, with the form below it."""
        return self._page(request, KeyForm(), 200)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Add one."""
        form = KeyForm(request.POST)
        if form.is_valid():
            try:
                key = keys.add_key(
                    user=person(request),
                    name=form.cleaned_data["name"],
                    text=form.cleaned_data["public_key"],
                    actor=Actor.of(request),
                )
            except DomainError as error:
                form.refuse(error)
            else:
                messages.success(request, _("Key “%(name)s” is added.") % {"name": key.name})
                return redirect("ssh-keys")
        return self._page(request, form, 400)

    def _page(self, request: HttpRequest, form: KeyForm, status: int) -> HttpResponse:
        facts = {"keys": person(request).ssh_keys.all(), "form": form}
        return render(request, "access/ssh_keys.html", facts, status=status)


@method_decorator(login_required, name="dispatch")
class RemoveSshKey(View):
    """Ask, then remove. The list asks in a dialog; this page is the same question without JavaScript."""

    def get(self, request: HttpRequest, key_id: str) -> HttpResponse:
        """The question."""
        return render(request, "access/ssh_key_remove.html", {"key": self._key(request, key_id)})

    def post(self, request: HttpRequest, key_id: str) -> HttpResponse:
        """Remove it."""
        key = self._key(request, key_id)
        keys.remove_key(key=key, actor=Actor.of(request))
        messages.success(request, _("Key “%(name)s” is removed.") % {"name": key.name})
        return redirect("ssh-keys")

    def _key(self, request: HttpRequest, key_id: str) -> SshKey:
        key = SshKey.objects.filter(user=person(request), pk=key_id).first()
        if key is None:
            raise Http404
        return key


@method_decorator([login_required, never_cache], name="dispatch")
class ApiTokens(View):
    """List and create API tokens. The secret is in one answer only, which nothing may cache (never_cache: no-store)."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The list, with the form below it."""
        return self._page(request, {"form": TokenForm()}, 200)

    @method_decorator(sensitive_variables("secret"))
    def post(self, request: HttpRequest) -> HttpResponse:
        """Create one and show its secret, this once."""
        form = TokenForm(request.POST)
        if form.is_valid():
            try:
                token, secret = tokens.create_token(
                    user=person(request),
                    tenant=current_tenant(request),
                    name=form.cleaned_data["name"],
                    scopes=form.cleaned_data["scopes"],
                    expires_at=form.expires_at(),
                    actor=Actor.of(request),
                )
            except DomainError as error:
                form.refuse(error)
            else:
                return self._page(request, {"form": TokenForm(), "created": token, "secret": secret}, 201)
        return self._page(request, {"form": form}, 400)

    def _page(self, request: HttpRequest, facts: dict[str, Any], status: int) -> HttpResponse:
        soon = int((timezone.now() + TELL_BEFORE).timestamp())
        shown = {"tokens": _shown_tokens(person(request)), "scopes": tokens.SCOPES, "soon_unix": soon, **facts}
        return render(request, "access/api_tokens.html", shown, status=status)


@method_decorator(login_required, name="dispatch")
class RevokeApiToken(View):
    """Ask, then revoke."""

    def get(self, request: HttpRequest, token_id: str) -> HttpResponse:
        """The question."""
        return render(request, "access/api_token_revoke.html", {"token": self._token(request, token_id)})

    def post(self, request: HttpRequest, token_id: str) -> HttpResponse:
        """Revoke it."""
        token = tokens.revoke(token=self._token(request, token_id), actor=Actor.of(request))
        messages.success(request, _("Token “%(name)s” is revoked.") % {"name": token.name})
        return redirect("api-tokens")

    def _token(self, request: HttpRequest, token_id: str) -> ApiToken:
        token = _shown_tokens(person(request)).filter(pk=token_id).first()
        if token is None:
            raise Http404
        return token
