"""Pages that keep an idle lease: the button on its page, the link in its mail, and what idle means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View

from portal.actor import Actor, client_ip
from portal.errors import DomainError
from portal.models import User
from rental import activity, idle, idle_words, keep_links, lease_page, services
from rental.models import Lease
from rental.states import State
from rental.views import find, person

if TYPE_CHECKING:
    from rental.keep_links import KeepLink

MAIL_LINK = "link in a mail"


@method_decorator(login_required, name="dispatch")
class KeepLease(View):
    """Say that you are there. The lease page has the button; this page is the same question without it."""

    def get(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """The question."""
        lease = find(request, lease_id)
        if lease.state != State.RUNNING or not lease_page.may_lease(person(request), lease.tenant_id):
            return redirect("lease", lease.pk)
        return render(request, "rental/keep.html", {"lease": lease, "stands": True})

    def post(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """Keep it; the idle clock starts again. Repeating is harmless."""
        lease = find(request, lease_id)
        try:
            services.keep_lease(lease=lease, actor=Actor.of(request))
        except DomainError as error:
            messages.error(request, error.detail)
        else:
            messages.success(request, _("Kept. Its idle time counts from now."))
        return redirect("lease", lease.pk)


class KeepByLink(View):
    """The link of a warning's mail: a page with one button. It shows nothing but the lease's name and id."""

    def get(self, request: HttpRequest, token: str) -> HttpResponse:
        """The question; nothing is changed by opening the link."""
        link, lease, stands = self._found(token)
        return self._page(request, link, lease, stands=stands)

    def post(self, request: HttpRequest, token: str) -> HttpResponse:
        """Keep the lease: the valid link is the right to do just this; a member who may do it anyway signs for it."""
        link, lease, stands = self._found(token)
        if link is None or lease is None or not stands:
            return self._page(request, link, lease, stands=stands)
        try:
            services.keep_lease(lease=lease, actor=_presser(request, lease))
        except DomainError:
            return self._page(request, link, lease, stands=False)
        return self._page(request, link, lease, stands=stands, kept=True)

    def _found(self, token: str) -> tuple[KeepLink | None, Lease | None, bool]:
        link = keep_links.read(token)
        lease = Lease.objects.select_related("tenant", "activity").filter(pk=link.lease_id).first() if link else None
        if link is None or lease is None:
            return None, None, False
        stands = lease.state == State.RUNNING and link.stands(lease, activity.of(lease), timezone.now())
        return link, lease, stands

    def _page(
        self, request: HttpRequest, link: KeepLink | None, lease: Lease | None, *, stands: bool, kept: bool = False
    ) -> HttpResponse:
        facts: dict[str, Any] = {"link": link, "lease": lease, "stands": stands, "kept": kept}
        if link is None:
            return render(request, "rental/keep.html", facts, status=404)
        answer = render(request, "rental/keep.html", facts, status=200 if stands else 410)
        answer["Cache-Control"] = "no-store"
        answer["Referrer-Policy"] = "no-referrer"
        return answer


def _presser(request: HttpRequest, lease: Lease) -> Actor:
    user = request.user
    if isinstance(user, User) and lease_page.may_lease(user, lease.tenant_id):
        return Actor.of(request)
    return Actor(label=MAIL_LINK, ip=client_ip(request))


class IdleRules(View):
    """What idle means here: signals, limits, times. Public: it holds for everybody."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, with this portal's own numbers."""
        limits = activity.limits()
        facts = {
            "rows": [
                (idle_words.NAMES[signal], idle_words.counts_words(signal, limits.of(signal))) for signal in idle.Signal
            ],
            "mode": settings.IDLE_MODE,
            "exempt": idle_words.span(settings.IDLE_EXEMPT_S),
            "warn_before": idle_words.span(settings.IDLE_WARN_BEFORE_S),
            "most": idle_words.span(settings.IDLE_TIMEOUT_MAX_S),
            "off_allowed": settings.IDLE_OFF_ALLOWED,
        }
        return render(request, "rental/idle.html", facts)
