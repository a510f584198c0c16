"""The component page, `/states` with DEBUG: sample data for the drawings that need lists. No real data, no database."""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.views.generic import TemplateView


class StatesPage(TemplateView):
    """Every component in every state it has."""

    template_name = "portal/states.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Adds a ribbon's stretches and a timeline's events."""
        now = timezone.now()
        stretches = [
            {"kind": "free", "seconds": 59},
            {"kind": "charged", "seconds": 7309},
            {"kind": "free", "seconds": 93},
            {"kind": "charged", "seconds": 6636},
            {"kind": "left", "seconds": 9000},
        ]
        events = [
            {"state": "running", "title": "Ready", "why": "Charging begins.", "todo": True},
            {"state": "interrupted", "icon": "pause", "title": "SSH did not answer", "why": "Not charged.", "at": now},
            {"state": "starting", "title": "Starting", "at": now - timedelta(seconds=58)},
            {"state": "assigned", "title": "Assigned", "why": "2 GPUs on ams-02", "at": now - timedelta(days=3)},
        ]
        return super().get_context_data(stretches=stretches, events=events, **kwargs)
