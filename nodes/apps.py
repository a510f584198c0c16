"""Django's view of the app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class NodesConfig(AppConfig):
    """The app nodes."""

    name = "nodes"
    verbose_name = _("Nodes")

    def ready(self) -> None:
        """Register the system checks."""
        from nodes import checks  # noqa: F401  # importing registers them
