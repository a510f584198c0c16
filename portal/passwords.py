"""What a new password must be, where Django's own words are not enough."""

from __future__ import annotations

from django.contrib.auth.password_validation import MinimumLengthValidator
from django.utils.translation import ngettext


class MinimumLength(MinimumLengthValidator):
    """Django's rule. Its sentence stands here as well, because Django's own catalogs lack it in Chinese."""

    def get_error_message(self) -> str:
        """Says the least length."""
        return (
            ngettext(
                "This password is too short. It must contain at least %d character.",
                "This password is too short. It must contain at least %d characters.",
                self.min_length,
            )
            % self.min_length
        )
