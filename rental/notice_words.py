"""What each kind of warning says: one line on a terminal, and a mail. In the active language."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rental import ending_words, idle_words, run_out_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portal.mails import Mail
    from rental.models import Lease


@dataclass(frozen=True)
class Words:
    """``line(lease, data)`` is one line of text for terminals and the page, ``mail(lease, data)`` the mail."""

    line: Callable[[Lease, dict[str, Any]], str]
    mail: Callable[[Lease, dict[str, Any]], Mail]


RUN_OUT: Final = ("run_out_deadline", "run_out_cap", "run_out_balance", "run_out_month")

# Kinds are also codes of the lease's history and have a title in rental/words.py.
WORDS: Final[Mapping[str, Words]] = {
    "idle_warning": Words(idle_words.warning_line, idle_words.warning_mail),
    **{kind: Words(partial(run_out_words.line, kind), partial(run_out_words.mail, kind)) for kind in RUN_OUT},
    "gpu_failed": Words(ending_words.gpu_failed_line, ending_words.gpu_failed_mail),
    "idle_released": Words(idle_words.released_line, idle_words.released_mail),
}
