"""Django's view of the app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class BillingConfig(AppConfig):
    """The app billing."""

    name = "billing"
    verbose_name = _("Billing")
