"""``portal.settings`` as the tests load it: what must be decided before Django loads, and nothing of the product."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("LESSOR_TESTING", "1")
os.environ.setdefault("LESSOR_VAR", str(Path(tempfile.gettempdir()) / f"lessor-tests-{os.getuid()}"))
os.environ.setdefault("LOG_LEVEL", "WARNING")
(Path(os.environ["LESSOR_VAR"]) / "static").mkdir(parents=True, exist_ok=True)  # WhiteNoise warns of a missing one

from portal.settings import *  # noqa: E402, F403  # the environment above must be set first

# No test may reach a Redis by accident: those that need one start their own and point the settings there.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
# Tests of the admin's pages sign operators in without their login; tests/portal/test_staff_access.py turns this on.
STAFF_MFA = False
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher"
]  # tests make many users; the real one is slow on purpose
# Each test has clients of its own, and each would look for all static files first: half of the time of the whole run.
WHITENOISE_AUTOREFRESH = True
