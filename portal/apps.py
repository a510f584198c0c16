"""Django's view of the app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PortalConfig(AppConfig):
    """The app ``portal``: project plumbing and accounts."""

    name = "portal"
    verbose_name = _("Accounts")

    def ready(self) -> None:
        """Register the system checks and the audit of account events."""
        from portal import account_events, checks  # noqa: F401  # importing registers them
