"""`manage.py makemessages -l zh_Hans` with our habits: only our own sources, no guessed translations, stable diffs."""

from typing import Any

from django.core.management.commands import makemessages


class Command(makemessages.Command):
    """Django's command, told where our sources end."""

    # A fuzzy guess looks translated and is not shown; an empty one is seen by the test that counts them.
    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]

    def handle(self, *args: Any, **options: Any) -> None:
        """Leaves out what we did not write; names files without line numbers, which change with every edit."""
        options["ignore_patterns"] += ["node_modules", "var", "tests", "sdk", "bench", "states.html"]
        options["add_location"] = options["add_location"] or "file"
        super().handle(*args, **options)
