"""All settings, one file. Values come from the environment through portal.env; docs/operations.md lists them."""

from pathlib import Path

import django_stubs_ext
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from portal import env

django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent
VAR = Path(env.text("LESSOR_VAR", str(BASE_DIR / "var")))
VERSION = "0.1.0"

DEBUG = env.flag("DEBUG", default=False)
TESTING = env.flag("LESSOR_TESTING", default=False)
SECRET_KEY = env.text("SECRET_KEY", "only-for-tests" if TESTING or DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY or SECRET_KEY_FILE must be set (scripts/demo makes one in var/).")
SECRET_KEY_FALLBACKS = env.words("SECRET_KEY_FALLBACKS", [])  # what these signed or sealed still opens
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
# Where people and nodes reach the portal; used in mails and in the enrolment command.
PORTAL_URL = env.text("PORTAL_URL", "http://localhost:8000").rstrip("/")
# Asked by the presence task: does the portal itself receive? Set it where PORTAL_URL does not lead here from inside.
PRESENCE_URL = env.text("PRESENCE_URL", f"{PORTAL_URL}/healthz")
HTTPS = PORTAL_URL.startswith("https://")
CSRF_TRUSTED_ORIGINS = [PORTAL_URL]
SITE_NAME = env.text("SITE_NAME", "Lessor")

INSTALLED_APPS = [
    "portal.apps.PortalConfig",
    "nodes.apps.NodesConfig",
    "billing.apps.BillingConfig",
    "rental.apps.RentalConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.sessions",
    "django.contrib.messages",
    "portal.staticfiles.StaticFiles",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "portal.middleware.ContentSecurityPolicy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "portal.login_limits.RememberDevice",
    "portal.sessions.NoteUse",
    "portal.middleware.ViewerTimeZone",
    "portal.middleware.DomainErrors",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "portal.urls"
WSGI_APPLICATION = "portal.wsgi.application"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.context.shell",
                "billing.context.balance",
            ],
            "builtins": ["django.templatetags.i18n", "django.templatetags.static", "portal.templatetags.lessor"],
        },
    }
]

# --- data -----------------------------------------------------------------------------------------------------------
DB_POOL = env.flag("DB_POOL", default=not TESTING)
DATABASES = {"default": env.database("DATABASE_URL", f"sqlite:///{VAR / 'lessor.sqlite3'}", pooled=DB_POOL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = env.text("REDIS_URL", "redis://127.0.0.1:6379/0")
# The broker of the nodes: our own Redis with an ACL user per node. The name nodes reach it by may differ from ours.
NODE_BROKER_URL = env.text("NODE_BROKER_URL", REDIS_URL)
NODE_BROKER_PUBLIC_URL = env.text("NODE_BROKER_PUBLIC_URL", NODE_BROKER_URL)
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "cache",
        # Without Redis nothing is cached; sign-in answers 429, as its limits cannot count, and the rest goes on.
        "OPTIONS": {"SOCKET_TIMEOUT": 1, "SOCKET_CONNECT_TIMEOUT": 1, "IGNORE_EXCEPTIONS": True},
    }
}

# --- work -----------------------------------------------------------------------------------------------------------
BROKER_OPTIONS = {
    "visibility_timeout": 3600,
    "socket_timeout": 2,
    "socket_connect_timeout": 1,
    "socket_keepalive": True,
    "health_check_interval": 25,
}
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_TRANSPORT_OPTIONS = BROKER_OPTIONS
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = "portal"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = False  # True reruns a poisonous task without end; the sweeps repeat what is due
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_TIME_LIMIT = 300
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
IDLE_SWEEP_S = env.number("IDLE_SWEEP_S", 15, least=1)
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR / "beat-schedule")
CELERY_BEAT_SCHEDULE = {
    "presence": {"task": "portal.tasks.note_presence", "schedule": 10, "options": {"expires": 10}},
    "deadlines": {"task": "rental.tasks.sweep_deadlines", "schedule": 2, "options": {"expires": 4}},
    "waiting": {"task": "rental.tasks.sweep_unanswered", "schedule": 10, "options": {"expires": 10}},
    "silence": {"task": "rental.tasks.sweep_silence", "schedule": 15, "options": {"expires": 15}},
    "holds": {"task": "rental.tasks.sweep_holds", "schedule": 60, "options": {"expires": 60}},
    "abandoned": {"task": "rental.tasks.sweep_abandoned", "schedule": 60, "options": {"expires": 60}},
    "idle": {"task": "rental.tasks.sweep_idle", "schedule": IDLE_SWEEP_S, "options": {"expires": IDLE_SWEEP_S}},
    "barred": {"task": "rental.tasks.sweep_barred", "schedule": 15, "options": {"expires": 15}},
    "run-out": {"task": "rental.tasks.sweep_run_out", "schedule": 15, "options": {"expires": 15}},
    "notices": {"task": "rental.tasks.sweep_notices", "schedule": 30, "options": {"expires": 30}},
    "ssh-events": {"task": "nodes.tasks.sweep_ssh_events", "schedule": 3600, "options": {"expires": 3600}},
    "invitations": {"task": "portal.mail_tasks.sweep_invitations", "schedule": 60, "options": {"expires": 60}},
    "standing": {"task": "portal.mail_tasks.sweep_standing", "schedule": 60, "options": {"expires": 60}},
    "owed-mails": {"task": "portal.owed_mails.sweep_owed", "schedule": 60, "options": {"expires": 60}},
    "token-ends": {"task": "portal.mail_tasks.sweep_token_ends", "schedule": 3600, "options": {"expires": 3600}},
    "broker-users": {"task": "nodes.tasks.assert_broker_users", "schedule": 60, "options": {"expires": 60}},
}

# --- accounts -------------------------------------------------------------------------------------------------------
AUTH_USER_MODEL = "portal.User"
# The address is unique whatever its case, by a constraint on LOWER(email); the check only knows unique=True.
SILENCED_SYSTEM_CHECKS = ["auth.W004"]
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "portal.passwords.MinimumLength", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
ACCOUNT_ADAPTER = "portal.adapters.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
ACCOUNT_EMAIL_NOTIFICATIONS = True
ACCOUNT_CONFIRM_EMAIL_ON_GET = False
ACCOUNT_LOGIN_ON_EMAIL_CONFIRMATION = False
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_PREVENT_ENUMERATION = True
ACCOUNT_UNIQUE_EMAIL = True
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = False  # this browser stays; every other session ends, as Django's session hash says
ACCOUNT_CHANGE_EMAIL = True  # one address; a new one replaces it once it is confirmed
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_REAUTHENTICATION_METHODS = ("password", "mfa")
ACCOUNT_FORMS = {
    "login": "portal.account_forms.Login",
    "signup": "portal.account_forms.SignUp",
    "add_email": "portal.account_forms.ChangeAddress",
    "reset_password": "portal.account_forms.ResetPassword",
}
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
MFA_ADAPTER = "portal.adapters.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_FORMS = {
    "add_webauthn": "portal.account_forms.AddPasskey",
    "authenticate_webauthn": "portal.account_forms.PasskeyAsSecondFactor",
    "login_webauthn": "portal.account_forms.PasskeyAlone",
    "reauthenticate_webauthn": "portal.account_forms.PasskeyAgain",
}
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_ISSUER = SITE_NAME
MFA_TOTP_TOLERANCE = 1  # phones' clocks are off by some seconds
# Nobody signs in before their first address is confirmed; an address they change to must not lock the second factor.
MFA_ALLOW_UNVERIFIED_EMAIL = True
STAFF_MFA = env.flag("STAFF_MFA", default=True)  # the admin opens only to a session that showed a second factor
# Wrong passwords are counted in portal/login_limits.py; `login_failed` is left for wrong codes of a second factor.
ACCOUNT_RATE_LIMITS = {
    "login": "60/m/ip",
    "login_failed": "10/m/ip,5/5m/key",
    "signup": "20/m/ip,100/h/ip",
    "reset_password": "20/m/ip,6/h/key",
}
# How often one tenant may ask for prices and order.
QUOTES_PER_MINUTE = env.number("QUOTES_PER_MINUTE", 600, least=1)
ORDERS_PER_MINUTE = env.number("ORDERS_PER_MINUTE", 300, least=1)
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "leases"
LOGOUT_REDIRECT_URL = "catalog"

# --- mail: to a server when one is named, else to files that scripts/demo and an operator can read ------------------
EMAIL_HOST = env.text("EMAIL_HOST")
EMAIL_PORT = env.number("EMAIL_PORT", 25, least=1)
EMAIL_HOST_USER = env.text("EMAIL_HOST_USER")
EMAIL_HOST_PASSWORD = env.text("EMAIL_HOST_PASSWORD")
EMAIL_USE_TLS = env.flag("EMAIL_USE_TLS")
EMAIL_TIMEOUT = 10
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'filebased'}.EmailBackend"
EMAIL_FILE_PATH = str(VAR / "mail")
DEFAULT_FROM_EMAIL = env.text("DEFAULT_FROM_EMAIL", "Lessor <noreply@localhost>")
SERVER_EMAIL = DEFAULT_FROM_EMAIL

# --- security -------------------------------------------------------------------------------------------------------
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
CSRF_FAILURE_VIEW = "portal.views.csrf_failure"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Proxies in front that set X-Forwarded-For: 0 means the peer's address is the client's. Trust no more than stand there.
TRUSTED_PROXIES = env.number("TRUSTED_PROXIES", 0)
if env.flag("TLS_BY_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_048_576

# --- language and time ----------------------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_TZ = True

# --- assets ---------------------------------------------------------------------------------------------------------
NODE_MODULES = BASE_DIR / "node_modules"
STATIC_URL = "/static/"
STATIC_ROOT = VAR / "static"
STATICFILES_DIRS = [
    BASE_DIR / "static",
    ("vendor/bootstrap", NODE_MODULES / "bootstrap/dist/css"),
    ("vendor/htmx", NODE_MODULES / "htmx.org/dist"),
    ("vendor/uplot", NODE_MODULES / "uplot/dist"),
    ("vendor/inter", NODE_MODULES / "@fontsource-variable/inter/files"),
    ("vendor/jetbrains-mono", NODE_MODULES / "@fontsource-variable/jetbrains-mono/files"),
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG or TESTING
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
# Source maps are read by a developer's tools only; compressing them took half of collectstatic's time.
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = ["jpg", "png", "gif", "webp", "gz", "br", "woff", "woff2", "map"]
WHITENOISE_USE_FINDERS = DEBUG or TESTING

# --- API ------------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["portal.authentication.BearerToken", "portal.authentication.Session"],
    "DEFAULT_PERMISSION_CLASSES": ["portal.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.parsers.LimitedJson"],
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS would describe routes to strangers; the schema does it better
    "DEFAULT_SCHEMA_CLASS": "portal.schema.Schema",
    "DEFAULT_PAGINATION_CLASS": "portal.pagination.Cursor",
    "EXCEPTION_HANDLER": "portal.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "COERCE_DECIMAL_TO_STRING": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Lessor API",
    "DESCRIPTION": "Rent GPUs by program. Errors are problem documents with a stable code.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "PREPROCESSING_HOOKS": ["portal.schema.only_v1"],
    "POSTPROCESSING_HOOKS": ["portal.schema.add_problems"],
}

# --- renting --------------------------------------------------------------------------------------------------------
CURRENCY = env.text("CURRENCY", "USD")
DEFAULT_IMAGE = env.text("DEFAULT_IMAGE", "lessor/workspace:1")
QUOTE_SECONDS = 300
MAX_DURATION_S = env.number("MAX_DURATION_S", 86_400, least=60)  # default and ceiling of max_duration_s, from ready
HOLD_SECONDS = 3600
HEARTBEAT_S = env.number("HEARTBEAT_S", 10, least=1)
PULL_S = env.number("PULL_S", 30, least=1)
# No contact for this long: no new leases on the node, its meter is provisional. At least a few heartbeats.
QUIET_AFTER_S = env.number("QUIET_AFTER_S", 90, least=3)
SILENCE_S = env.number("SILENCE_S", 900, least=QUIET_AFTER_S)  # then its leases are node_lost
# After the portal was away itself, silence starts to count only this much later.
BOOT_GRACE_S = env.number("BOOT_GRACE_S", 90, least=1)
START_TIMEOUT_S = env.number(
    "START_TIMEOUT_S", 900, least=30
)  # an order that is not ready by then fails, free of charge
# While its image keeps coming, an order may take this long in all; it holds GPUs that nobody pays for meanwhile.
PULL_TIMEOUT_S = env.number("PULL_TIMEOUT_S", 14_400, least=30)
# Idle: no signal at or above its limit for the whole window (docs/idleness.md).
IDLE_MODE = env.choice("IDLE_MODE", "enforce", ("enforce", "shadow", "off"))  # shadow: recorded, not done
IDLE_OFF_ALLOWED = env.flag("IDLE_OFF_ALLOWED")  # may a lease be ordered without an idle limit?
IDLE_TIMEOUT_MAX_S = env.number("IDLE_TIMEOUT_MAX_S", MAX_DURATION_S, least=1)  # a longer wish becomes this
IDLE_TIMEOUT_MIN_S = env.number("IDLE_TIMEOUT_MIN_S", 60, least=1)
IDLE_GPU_PERCENT = env.number("IDLE_GPU_PERCENT", 5, least=1)
IDLE_CPU_PERCENT = env.number("IDLE_CPU_PERCENT", 5, least=1)  # of the lease's own cores
IDLE_NETWORK_BYTES_PER_S = env.number("IDLE_NETWORK_BYTES_PER_S", 50_000, least=1)
IDLE_EXEMPT_S = env.number("IDLE_EXEMPT_S", 900)  # after ready, but not longer than the window
IDLE_WARN_BEFORE_S = env.number("IDLE_WARN_BEFORE_S", 60, least=1)
STOP_GRACE_S = 30
ENROLMENT_HOURS = 24
SSH_PORT = env.number("SSH_PORT", 2222, least=1)
SSH_EVENTS_DAYS = env.number("SSH_EVENTS_DAYS", 90, least=1)  # how long logins to leases are remembered
# Signs the certificates with which the portal itself enters leases; made at the first use.
SSH_CA_KEY_FILE = Path(env.text("SSH_CA_KEY_FILE", str(VAR / "ssh_ca" / "ed25519")))
# CPU, memory and disk of a lease: the node's, in proportion to its GPUs, less what the system keeps for itself.
NODE_RESERVED_CPUS_MILLI = env.number("NODE_RESERVED_CPUS_MILLI", 500)
NODE_RESERVED_MEMORY_BYTES = env.number("NODE_RESERVED_MEMORY_BYTES", 1 << 30)
LEASE_PIDS = env.number("LEASE_PIDS", 4096, least=64)
LEASE_WORKSPACE_BYTES = env.number("LEASE_WORKSPACE_BYTES", 10 << 30, least=1 << 26)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("LOG_LEVEL", "INFO")},
}
