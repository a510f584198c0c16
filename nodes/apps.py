"""Django's view of the app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class NodesConfig(AppConfig):
    """The app nodes."""

    name = "nodes"
    verbose_name = _("Nodes")
