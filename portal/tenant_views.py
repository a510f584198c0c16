"""Pages of tenants: which one a session works for, who is in one, with which role. Each view calls one service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views import View

from portal import invitations, members, roles
from portal.access_views import person
from portal.actor import Actor
from portal.errors import DomainError
from portal.models import Invitation, Membership, Tenant
from portal.roles import Act, may
from portal.services import choose_tenant, memberships
from portal.tenant_forms import HandOverForm, InviteForm, OrganisationForm

if TYPE_CHECKING:
    from portal.forms import ServiceForm


@method_decorator(login_required, name="dispatch")
class Tenants(View):
    """A person's tenants, invitations waiting for them, and the form for an organisation."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The list, with the form below it."""
        return self._page(request, OrganisationForm(), 200)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Create an organisation; the session works for it from now on."""
        form = OrganisationForm(request.POST)
        if form.is_valid():
            try:
                made = members.create_organisation(
                    user=person(request), name=form.cleaned_data["name"], actor=Actor.of(request)
                )
            except DomainError as error:
                form.refuse(error)
            else:
                request.session["tenant"] = made.pk
                messages.success(request, _("“%(name)s” is created. You work for it now.") % {"name": made.name})
                return redirect("tenant", made.pk)
        return self._page(request, form, 400)

    def _page(self, request: HttpRequest, form: OrganisationForm, status: int) -> HttpResponse:
        facts = {
            "memberships": memberships(request),
            "waiting": invitations.waiting_for(person(request)),
            "form": form,
        }
        return render(request, "tenant/tenants.html", facts, status=status)


@method_decorator(login_required, name="dispatch")
class Switch(View):
    """``POST``: the session works for another tenant of the person."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """Choose, and go back to where one was, or to the leases when that page belongs to the other tenant."""
        tenant = choose_tenant(request, request.POST.get("tenant", ""))
        messages.info(request, _("You work for %(name)s now.") % {"name": tenant.name})
        target = request.POST.get("next", "")
        safe = url_has_allowed_host_and_scheme(
            target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        return redirect(target if safe else "leases")


class Roles(View):
    """What each role may do, for everybody."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The table."""
        table = [(act.label, [may(role, act) for role in roles.Role]) for act in Act]
        return render(request, "tenant/roles.html", {"roles": roles.Role, "table": table})


class TenantView(View):
    """Base: a tenant of the person, 404 for every other one. ``self.mine`` is their membership."""

    mine: Membership

    @method_decorator(login_required)
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Find the membership first."""
        found = next((row for row in memberships(request) if row.tenant_id == kwargs["tenant_id"]), None)
        if found is None:
            raise Http404
        self.mine = found
        return super().dispatch(request, *args, **kwargs)

    @property
    def tenant(self) -> Tenant:
        """The tenant of the address."""
        return self.mine.tenant

    def member(self, user_id: str) -> Membership:
        """Another member, 404 for anyone else."""
        return members.member(tenant=self.tenant, user_id=user_id)

    def invitation(self, invitation_id: str) -> Invitation:
        """An invitation of this tenant, 404 for any other."""
        rows = Invitation.objects.select_related("tenant").filter(tenant=self.tenant, pk=invitation_id)
        row = rows.first() if may(self.mine.role, Act.INVITE) else None
        if row is None:
            raise Http404
        return row

    def back(self, request: HttpRequest, said: str) -> HttpResponse:
        """To the page of members, with a word about what was done."""
        messages.success(request, said)
        return redirect("tenant", self.tenant.pk)

    def page(self, request: HttpRequest, status: int = 200, **forms: ServiceForm) -> HttpResponse:
        """The page of members, with forms that were sent."""
        role = self.mine.role
        organisation = self.tenant.kind == Tenant.Kind.ORGANISATION
        leads = organisation and may(role, Act.INVITE)
        people = list(members.members_of(self.tenant))
        others = any(row.user.is_active and row.pk != self.mine.pk for row in people)
        facts: dict[str, Any] = {
            "shown": self.tenant,
            "mine": self.mine,
            "members": people,
            "invited": self._invited() if leads else [],
            "organisation": organisation,
            "leads": leads,
            "gives": [(one.value, one.label) for one in roles.givable(role)],
            "unmakes_owners": may(role, Act.HAND_OVER),
            "hands_over": organisation and others and may(role, Act.HAND_OVER),
            "only_owner": organisation and members.is_only_owner(self.mine, people),
            "deletes": organisation and may(role, Act.DELETE),
            "invite_form": InviteForm(giver=self.mine),
            "rename_form": OrganisationForm(initial={"name": self.tenant.name}, prefix="tenant"),
        }
        return render(request, "tenant/members.html", {**facts, **forms}, status=status)

    def _invited(self) -> list[Invitation]:
        rows = self.tenant.invitations.filter(state=Invitation.State.OPEN).select_related("invited_by")
        return list(rows.order_by("created_at", "pk"))


class Members(TenantView):
    """Who is in a tenant and who is invited."""

    def get(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """The page."""
        return self.page(request)


class Rename(TenantView):
    """``POST``: another name."""

    def post(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """Rename."""
        form = OrganisationForm(request.POST, prefix="tenant")
        if form.is_valid():
            try:
                row = members.rename(tenant=self.tenant, name=form.cleaned_data["name"], actor=Actor.of(request))
            except DomainError as error:
                form.refuse(error)
            else:
                return self.back(request, _("It is called “%(name)s” now.") % {"name": row.name})
        return self.page(request, 400, rename_form=form)


class Invite(TenantView):
    """``POST``: invite an address."""

    def post(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """Send an invitation."""
        form = InviteForm(request.POST, giver=self.mine)
        if form.is_valid():
            try:
                row = invitations.invite(tenant=self.tenant, actor=Actor.of(request), **form.cleaned_data)
            except DomainError as error:
                form.refuse(error)
            else:
                return self.back(request, _("%(email)s is invited; the mail is on its way.") % {"email": row.email})
        return self.page(request, 400, invite_form=form)


class Resend(TenantView):
    """``POST``: mail an invitation again."""

    def post(self, request: HttpRequest, tenant_id: str, invitation_id: str) -> HttpResponse:
        """Send it with a new link."""
        row = invitations.resend(invitation=self.invitation(invitation_id), actor=Actor.of(request))
        said = _("%(email)s gets a new mail. The link before opens nothing any more.") % {"email": row.email}
        return self.back(request, said)


class Withdraw(TenantView):
    """``POST``: take an invitation back."""

    def post(self, request: HttpRequest, tenant_id: str, invitation_id: str) -> HttpResponse:
        """Withdraw it."""
        row = self.invitation(invitation_id)
        invitations.withdraw(invitation=row, actor=Actor.of(request))
        return self.back(request, _("The invitation of %(email)s is withdrawn.") % {"email": row.email})


class ChangeRole(TenantView):
    """``POST``: another role for a member."""

    def post(self, request: HttpRequest, tenant_id: str, user_id: str) -> HttpResponse:
        """Change it."""
        row = members.change_role(
            tenant=self.tenant,
            user_id=self.member(user_id).user_id,
            role=request.POST.get("role", ""),
            actor=Actor.of(request),
        )
        facts = {"email": row.user.email, "role": row.get_role_display()}
        return self.back(request, _("%(email)s: the role is %(role)s now.") % facts)


class Remove(TenantView):
    """Ask, then remove a member."""

    def get(self, request: HttpRequest, tenant_id: str, user_id: str) -> HttpResponse:
        """The question."""
        facts = {"shown": self.tenant, "member": self.member(user_id), "mine": self.mine}
        return render(request, "tenant/member_remove.html", facts)

    def post(self, request: HttpRequest, tenant_id: str, user_id: str) -> HttpResponse:
        """Remove them."""
        row = self.member(user_id)
        members.remove(tenant=self.tenant, user_id=row.user_id, actor=Actor.of(request))
        if row.user_id == self.mine.user_id:
            return gone(request, self.tenant)
        return self.back(request, _("%(email)s is removed.") % {"email": row.user.email})


class Leave(TenantView):
    """Ask, then leave."""

    def get(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """The question; the only owner reads what to do instead. Nobody leaves a personal tenant."""
        if self.tenant.kind == Tenant.Kind.PERSONAL:
            raise Http404
        facts = {"shown": self.tenant, "only_owner": members.is_only_owner(self.mine, members.members_of(self.tenant))}
        return render(request, "tenant/leave.html", facts)

    def post(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """Leave."""
        members.leave(tenant=self.tenant, actor=Actor.of(request))
        return gone(request, self.tenant)


class HandOver(TenantView):
    """Ask for the next owner, then hand the organisation over."""

    def get(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """The question."""
        return self._ask(request, HandOverForm(others=self._others()), 200)

    def post(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """Hand it over."""
        form = HandOverForm(request.POST, others=self._others())
        if form.is_valid():
            try:
                row = members.hand_over(
                    tenant=self.tenant, user_id=form.cleaned_data["member"], actor=Actor.of(request)
                )
            except DomainError as error:
                form.refuse(error)
            else:
                return self.back(
                    request, _("%(email)s is the owner now; you are an admin.") % {"email": row.user.email}
                )
        return self._ask(request, form, 400)

    def _ask(self, request: HttpRequest, form: HandOverForm, status: int) -> HttpResponse:
        if not may(self.mine.role, Act.HAND_OVER) or self.tenant.kind == Tenant.Kind.PERSONAL:
            raise Http404
        return render(request, "tenant/hand_over.html", {"shown": self.tenant, "form": form}, status=status)

    def _others(self) -> list[Membership]:
        rows = members.members_of(self.tenant).filter(user__is_active=True)
        return [row for row in rows if row.user_id != self.mine.user_id]


def gone(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """To the person's other tenants, after they left this one."""
    messages.success(request, _("You have left %(name)s.") % {"name": tenant.name})
    return redirect("tenants")
