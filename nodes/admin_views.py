"""Pages behind the buttons of the operators' node pages: each says what will happen, then calls one service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from nodes import broker, services
from nodes.models import Gpu, Node
from portal.actor import Actor
from portal.errors import DomainError
from portal.services import audit

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse
    from django.utils.functional import Promise


class NodeForm(forms.Form):
    """What an operator says about a machine before it enrols; services.add_node judges it."""

    name = forms.CharField(
        label=_("Name"), help_text=_("1 to 63 lower-case letters, digits and hyphens, like ams-gpu-02")
    )
    site = forms.CharField(label=_("Site"), required=False, help_text=_("where it stands, for people"))
    ssh_host = forms.CharField(
        label=_("SSH host"), required=False, help_text=_("name or address renters use; empty: where it enrols from")
    )
    ssh_port = forms.IntegerField(
        label=_("SSH port"), required=False, help_text=_("port renters use; empty: the default")
    )


class ReasonForm(forms.Form):
    """Why, for whoever looks later."""

    reason = forms.CharField(label=_("Reason"), max_length=500)


@dataclass(frozen=True)
class Button:
    """A button of the node page: its words, what will happen, and the service that does it."""

    label: str | Promise
    explains: str | Promise
    done: str | Promise
    call: Callable[..., None]


@transaction.atomic
def _wake(*, node: Node, actor: Actor) -> None:
    broker.wake(node_id=node.pk)
    audit(actor=actor, action="node.woken", obj=node)


BUTTONS: Final[dict[str, Button]] = {
    "drain": Button(
        _("Drain"),
        _("No new leases start on this node. Running leases go on to their end. Undrain takes it back at any time."),
        _("The node takes no new leases."),
        services.drain,
    ),
    "undrain": Button(
        _("Undrain"),
        _("The node takes new leases again. GPUs of running leases stay taken."),
        _("The node takes new leases again."),
        services.undrain,
    ),
    "wake": Button(
        _("Wake"),
        _("The agent is told to fetch its whole desired state now, not with its next pull."),
        _("The agent was told to fetch its desired state."),
        _wake,
    ),
    "revoke": Button(
        _("Revoke"),
        _(
            "For good: the node's token and broker user stop working at once and it sells nothing any more. Containers"
            " that run there are ended by the agent itself after 15 minutes without contact. Free GPUs are"
            " retired; GPUs under a lease come free with their lease. Rows and history stay. The"
            " machine may return as a new node."
        ),
        _("The node is revoked."),
        services.revoke,
    ),
}
NEW_COMMAND_EXPLAINS: Final = _(
    "Earlier commands for this node stop working. When a machine runs the new one it becomes this node: it gets new"
    " secrets, the machine enrolled before is locked out, and nothing is sold before inventory and preflight passed."
)


def add_node(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The form for a new node; after it the enrolment command, shown once."""
    if not request.user.has_perm("nodes.add_node"):
        raise PermissionDenied
    form = NodeForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            node, token = services.add_node(**form.cleaned_data, actor=Actor.of(request))
        except DomainError as error:
            _show(error, form)
        else:
            return _command_page(request, site, node, token)
    return _page(request, site, "admin/nodes/add.html", title=_("Add a node"), form=form)


def node_action(request: HttpRequest, site: AdminSite, node_id: str, action: str) -> HttpResponse:
    """A button of the node page: GET explains, POST does."""
    node = _get(request, Node, node_id)
    button = BUTTONS[action]
    back = reverse("admin:nodes_node_change", args=[node.pk])
    if request.method == "POST":
        try:
            button.call(node=node, actor=Actor.of(request))
        except DomainError as error:
            messages.error(request, error.detail)
        else:
            messages.success(request, str(button.done))
        return HttpResponseRedirect(back)
    return _confirm_page(request, site, node, button.label, button.explains)


def new_command(request: HttpRequest, site: AdminSite, node_id: str) -> HttpResponse:
    """A fresh enrolment command: GET explains, POST makes and shows it once."""
    node = _get(request, Node, node_id)
    back = reverse("admin:nodes_node_change", args=[node.pk])
    if request.method == "POST":
        try:
            token = services.new_enrolment_token(node=node, actor=Actor.of(request))
        except DomainError as error:
            messages.error(request, error.detail)
            return HttpResponseRedirect(back)
        return _command_page(request, site, node, token)
    return _confirm_page(request, site, node, _("New enrolment command"), NEW_COMMAND_EXPLAINS)


def gpu_action(request: HttpRequest, site: AdminSite, gpu_id: int, action: str) -> HttpResponse:
    """Quarantine a GPU or return it to service, with the reason."""
    gpu = _get(request, Gpu, gpu_id)
    back = reverse("admin:nodes_gpu_change", args=[gpu.pk])
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        _gpu_service(request, gpu, action, form.cleaned_data["reason"])
        return HttpResponseRedirect(back)
    label = _("Quarantine") if action == "quarantine" else _("Return to service")
    context = {"title": f"{label}: {gpu}", "label": label, "action": action, "form": form, "back": back}
    return _page(request, site, "admin/nodes/reason.html", **context)


def _gpu_service(request: HttpRequest, gpu: Gpu, action: str, reason: str) -> None:
    actor = Actor.of(request)
    try:
        if action == "return":
            services.return_gpu(gpu=gpu, actor=actor, note=reason)
            messages.success(request, _("The GPU is back in service."))
        elif services.quarantine(uuids=[gpu.uuid], node=gpu.node, note=reason, actor=actor):
            messages.success(request, _("The GPU is quarantined; a lease that holds it runs on."))
        else:
            messages.info(request, _("The GPU was quarantined already."))
    except DomainError as error:
        messages.error(request, error.detail)


def _get(request: HttpRequest, kind: type[Any], pk: object) -> Any:
    if not request.user.has_perm(f"nodes.change_{kind._meta.model_name}"):
        raise PermissionDenied
    return get_object_or_404(kind, pk=pk)


def _command_page(request: HttpRequest, site: AdminSite, node: Node, token: str) -> HttpResponse:
    command = services.enrol_command(node, token)
    page = _page(request, site, "admin/nodes/command.html", title=_("Enrol this machine"), node=node, command=command)
    page["Cache-Control"] = "no-store"
    return page


def _confirm_page(
    request: HttpRequest, site: AdminSite, node: Node, label: str | Promise, explains: str | Promise
) -> HttpResponse:
    back = reverse("admin:nodes_node_change", args=[node.pk])
    context = {"title": f"{label}: {node}", "label": label, "explains": explains, "back": back}
    return _page(request, site, "admin/nodes/confirm.html", **context)


def _page(request: HttpRequest, site: AdminSite, template: str, **context: Any) -> TemplateResponse:
    return TemplateResponse(request, template, {**site.each_context(request), **context})


def _show(error: DomainError, form: forms.Form) -> None:
    for name, sentences in (error.errors or {"": [error.detail]}).items():
        form.add_error(name if name in form.fields else None, sentences)
