"""Mails in our own frame: what is said, to whom, in whose language. Sent from tasks only, never inside a request.

allauth sends its own mails through its own templates; everything else that writes to people comes through here. What
no row of its own remembers as due goes by portal/owed_mails.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.utils import translation

if TYPE_CHECKING:
    from collections.abc import Callable

    from portal.models import User


@dataclass(frozen=True)
class Mail:
    """One mail, already in the reader's language: a sentence or two, one thing to do, what else is good to know.

    ``url`` is absolute and ``label`` names what the button does; both empty when there is nothing to press.
    """

    subject: str
    text: str
    url: str = ""
    label: str = ""
    after: str = ""


def language_of(user: User | None) -> str:
    """The language a person reads: the one they chose last, else the portal's."""
    return (user.language if user is not None else "") or settings.LANGUAGE_CODE


def send_to(user: User, write: Callable[[], Mail]) -> None:
    """Mail ``write()`` to a person, in their language. Raises OSError or SMTPException when the server refuses."""
    with translation.override(language_of(user)):
        send(user.email, write())


def send(address: str, mail: Mail) -> None:
    """Mail to an address, in the active language."""
    _message(address, mail).send()


def written(address: str, language: str, write: Callable[[], Mail]) -> EmailMultiAlternatives:
    """``write()`` to an address in a language, not sent."""
    with translation.override(language):
        return _message(address, write())


def _message(address: str, mail: Mail) -> EmailMultiAlternatives:
    """As text and as HTML, in the active language."""
    facts = {"mail": mail}
    subject = " ".join(mail.subject.split())  # a line end in a name must not become a header
    message = EmailMultiAlternatives(subject, render_to_string("email/message.txt", facts), to=[address])
    message.attach_alternative(render_to_string("email/message.html", facts), "text/html")
    return message
