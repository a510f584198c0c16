"""``portal.settings`` with a password hash that is quick: for rigs that count guesses and do not measure them."""

from portal.settings import *  # noqa: F403  # settings are inherited as a whole

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
