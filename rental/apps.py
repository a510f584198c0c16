"""Django's view of the app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RentalConfig(AppConfig):
    """The app rental."""

    name = "rental"
    verbose_name = _("Rental")

    def ready(self) -> None:
        """Listen to the accounts."""
        from rental import organisations, people, signals  # noqa: F401  # importing connects the receivers
