"""What is said when a lease ended because of what happened elsewhere. ``data`` names the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.mails import Mail

if TYPE_CHECKING:
    from rental.models import Lease


def gpu_failed_line(lease: Lease, data: dict[str, Any]) -> str:
    """One line for terminals."""
    return _("The GPU %(gpu)s has failed: this lease ends. What it did not give you is not charged.") % data


def gpu_failed_mail(lease: Lease, data: dict[str, Any]) -> Mail:
    """The mail: what happened, what it costs, where to read the sum."""
    name = lease.name or lease.pk
    return Mail(
        subject=_("%(name)s ended: a GPU has failed") % {"name": name},
        text=_(
            "The GPU %(gpu)s of %(name)s has failed, so the lease ended. Charged is the time until it last was well;"
            " what came after is not."
        )
        % {"gpu": data["gpu"], "name": name},
        url=f"{settings.PORTAL_URL}{reverse('lease-receipt', args=[lease.pk])}",
        label=_("See the receipt"),
        after=_("Other leases on the same node go on. You can rent the same again from the page of the lease."),
    )
