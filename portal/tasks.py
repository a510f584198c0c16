"""Background work of the accounts and the project itself."""

import logging

from celery import shared_task
from django.conf import settings

from portal import mail_tasks, owed_mails, presence  # noqa: F401  # Celery looks for tasks here only

logger = logging.getLogger(__name__)


@shared_task
def note_presence() -> None:
    """Every 10 s: does the portal receive? Before and after: any state; the row moves forward only when it does."""
    if not presence.look():
        logger.warning("presence: %s does not answer; silence of nodes is not counted", settings.PRESENCE_URL)
