"""Every setting, in sections. With env.py the only reader of the environment.

The defaults run on a fresh checkout: without DATABASE_URL and REDIS_URL the embedded
services are used, whose addresses `agentstate.embedded` leaves in the data folder.
"""

import json
import os
from pathlib import Path
from typing import Any

import dj_database_url
from django.templatetags.static import static
from django.utils.csp import CSP
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentstate.env import (
    env_bool,
    env_choice,
    env_grants,
    env_int,
    env_list,
    env_str,
)
from agentstate.pool import check_open

# Before numpy is imported: a process that serves many threads has no use for a pool of
# its own in each product of two matrices, whose members wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

BASE_DIR = Path(__file__).resolve().parent.parent
DEFAULT_DATA_DIR = ".data"
DATA_DIR = Path(env_str("AGENTSTATE_DATA_DIR", DEFAULT_DATA_DIR))
if not DATA_DIR.is_absolute():
    DATA_DIR = BASE_DIR / DATA_DIR


def _data_file(name: str) -> dict[str, Any]:
    """A JSON file of the data folder; empty while the folder has not been set up."""
    try:
        loaded: dict[str, Any] = json.loads((DATA_DIR / name).read_text())
    except FileNotFoundError:
        return {}
    return loaded


# Written by agentstate.embedded, readable by their owner alone.
_secrets = _data_file("secrets.json")
_services = _data_file("services.json")

# --- Core
SECRET_KEY = env_str("AGENTSTATE_SECRET_KEY") or _secrets.get("secret_key", "")
SECRET_KEY_IS_KEPT = bool(SECRET_KEY)
if not SECRET_KEY:
    # No data folder yet: a command such as `makemigrations --check` needs some key,
    # and nothing it signs outlives the process.
    from django.core.management.utils import get_random_secret_key

    SECRET_KEY = get_random_secret_key()
# Web processes that `manage.py serve` starts; they share its port.
WEB_PROCESSES = env_int("AGENTSTATE_WEB_PROCESSES", 2, low=1, high=64)
# Threads of one web process. More of them than connections in the pool would only wait.
WEB_THREADS = env_int("AGENTSTATE_WEB_THREADS", 8, low=1, high=500)
DEBUG = env_bool("AGENTSTATE_DEBUG", False)
ALLOWED_HOSTS = env_list(
    "AGENTSTATE_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1],testserver"
)
CSRF_TRUSTED_ORIGINS = env_list("AGENTSTATE_TRUSTED_ORIGINS")
PORT = env_int("AGENTSTATE_PORT", 8000, low=1, high=65535)
DEMO = env_bool("AGENTSTATE_DEMO", True)

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "procrastinate.contrib.django",
    "agentstate",
    "access_app",
    "sessions_app",
    "runs_app",
    "memory_app",
    "context_app",
]

MIDDLEWARE = [
    "agentstate.middleware.RequestContextMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "agentstate.middleware.StaticFiles",
    "agentstate.middleware.Sessions",
    "django.middleware.common.CommonMiddleware",
    "agentstate.middleware.Csrf",
    "agentstate.middleware.Authentication",
    "agentstate.middleware.Messages",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "agentstate.middleware.Htmx",
    "agentstate.middleware.ContentSecurityPolicy",
    "agentstate.middleware.PagePolicyMiddleware",
    "agentstate.middleware.ReaderZoneMiddleware",
    "agentstate.middleware.UnusableValueMiddleware",
]

ROOT_URLCONF = "agentstate.urls"
WSGI_APPLICATION = "agentstate.wsgi.application"
ASGI_APPLICATION = "agentstate.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "agentstate.navigation.frame",
            ],
        },
    },
]

# --- Postgres
DATABASE_URL = env_str("DATABASE_URL") or _services.get("database_url", "")
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        **dj_database_url.parse(
            DATABASE_URL or "postgres://agentstate@127.0.0.1:1/agentstate"
        ),
        "ENGINE": "django.db.backends.postgresql",
        # Behind PgBouncer in transaction mode a cursor does not outlive a transaction.
        "DISABLE_SERVER_SIDE_CURSORS": True,
    }
}
DATABASES["default"].setdefault("OPTIONS", {})
DATABASES["default"]["OPTIONS"] |= {
    "connect_timeout": 5,  # seconds
    "application_name": "agentstate",
}
# Statements that are called often are parsed once for a connection. A pooler between
# us and Postgres would have to know of them, so with a URL this is asked for.
DB_PREPARED = env_bool("AGENTSTATE_DB_PREPARED", not env_str("DATABASE_URL"))
if DB_PREPARED:
    DATABASES["default"]["OPTIONS"]["prepare_threshold"] = 2  # uses before the first
if _pool_size := env_int("AGENTSTATE_DB_POOL_SIZE", 12, low=0, high=500):
    DATABASES["default"]["OPTIONS"]["pool"] = {
        "min_size": 1,
        "max_size": _pool_size,
        "check": check_open,
        "timeout": 10,  # seconds a request waits for a connection before it gets a 503
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

PROCRASTINATE_AUTODISCOVER_MODULE_NAME = "jobs"

# --- Redis or Valkey: working memory, rate limits, live hints
REDIS_URL = env_str("REDIS_URL") or _services.get("redis_url", "redis://127.0.0.1:1/0")
# Seconds; no request waits longer for Redis.
REDIS_TIMEOUT = env_int("AGENTSTATE_REDIS_TIMEOUT_MS", 250, low=10, high=60_000) / 1000
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {
            "SOCKET_CONNECT_TIMEOUT": REDIS_TIMEOUT,
            "SOCKET_TIMEOUT": REDIS_TIMEOUT,
            "CONNECTION_POOL_KWARGS": {
                "max_connections": max(64, 2 * WEB_THREADS),
                # A retry would wait as long again; callers are told to come back.
                "retry": Retry(NoBackoff(), 0),
            },
        },
    }
}

# --- API
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["access_app.api.authentication.ApiKeyAuth"],
    "DEFAULT_PERMISSION_CLASSES": ["access_app.api.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["agentstate.api.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["agentstate.api.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "agentstate.api.errors.problem_response",
    "UNAUTHENTICATED_USER": None,
}
UNFOLD = {
    "SITE_TITLE": "AgentState",
    "SITE_HEADER": "AgentState",
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda request: static("img/icon.svg"),
        }
    ],
    "STYLES": [lambda request: static("css/admin.css")],
}

SPECTACULAR_SETTINGS = {
    "TITLE": "AgentState",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "DESCRIPTION": (
        "Durable state for AI agents: sessions with their log and state, artifacts, "
        "runs worked through step by step, memory, contexts for models."
    ),
    # The order in which the page shows them: what one meets first comes first.
    "TAGS": [
        {"name": name}
        for name in (
            "sessions",
            "events",
            "state",
            "artifacts",
            "working memory",
            "runs",
            "steps",
            "work",
            "effects",
            "limits",
            "memory",
            "promotions",
            "context",
            "handoffs",
            "whoami",
            "project",
            "keys",
            "members",
            "audit",
        )
    ],
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    # Names of choices that several apps give a field of the same name.
    "ENUM_NAME_OVERRIDES": {
        "RunState": "runs_app.states.RunState",
        "StepState": "runs_app.states.StepState",
        "HandoffStatus": "runs_app.models.HandoffStatus",
        "SessionStatus": "sessions_app.models.SessionStatus",
        "FactStatus": "memory_app.models.Status",
        "FactKind": "memory_app.models.Kind",
        "PromotionStatus": "memory_app.models.PromotionStatus",
    },
    # From a package: the page works without the internet.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_PATCH": False,
}
# A socket whose other side has vanished is noticed, on both sides, within two of these.
SOCKET_PING_SECONDS = env_int("AGENTSTATE_SOCKET_PING_SECONDS", 20, low=1, high=300)
# Of one process; one more is told at once to come back later.
SOCKETS_PER_PROCESS = env_int("AGENTSTATE_SOCKETS_PER_PROCESS", 2000, low=1)
DATA_UPLOAD_MAX_MEMORY_SIZE = None  # the parser enforces REQUEST_MAX_BYTES, with a 413
REQUEST_MAX_BYTES = 40 * 1024 * 1024
EVENT_PAYLOAD_MAX_BYTES = 32 * 1024 * 1024
EVENTS_PER_BATCH = 1000
JSON_MAX_DEPTH = 100
STATE_MAX_BYTES = 8 * 1024 * 1024
PLAN_MAX_STEPS = env_int("AGENTSTATE_PLAN_MAX_STEPS", 10_000, low=1, high=100_000)
STEP_RESULT_MAX_BYTES = 1024 * 1024
RATE_LIMIT_PER_MINUTE = env_int("AGENTSTATE_RATE_LIMIT_PER_MINUTE", 600_000, low=0)
IDEMPOTENCY_HOURS = 24

# --- Artifacts: files in a folder, or in a bucket of any S3-compatible store
ARTIFACT_MAX_BYTES = env_int(
    "AGENTSTATE_ARTIFACT_MAX_BYTES", 5 * 1024**3, low=1, high=1024**4
)
# Of one project, its large payloads included; 0 is no limit.
STORAGE_LIMIT_BYTES = env_int("AGENTSTATE_STORAGE_LIMIT_BYTES", 0, low=0, high=2**62)
# A larger payload of an event is kept in the store as well.
PAYLOAD_INLINE_BYTES = env_int(
    "AGENTSTATE_PAYLOAD_INLINE_BYTES", 64 * 1024, low=4096, high=2**31 - 1
)
UPLOAD_DIR = DATA_DIR / "uploads"  # where a body waits until it is stored
STORAGE_BUCKET = env_str("AGENTSTATE_STORAGE_BUCKET")
# Give out links of the store's own, for clients that can reach it themselves.
STORAGE_LINKS = env_bool("AGENTSTATE_STORAGE_LINKS", True)
if STORAGE_BUCKET:
    _artifact_storage: dict[str, Any] = {
        "BACKEND": "sessions_app.artifacts.s3.BucketStore",
        "OPTIONS": {
            "bucket_name": STORAGE_BUCKET,
            "endpoint_url": env_str("AGENTSTATE_STORAGE_ENDPOINT") or None,
            "region_name": env_str("AGENTSTATE_STORAGE_REGION") or None,
            "location": env_str("AGENTSTATE_STORAGE_PREFIX"),
            # `path` is what most stores that are not Amazon's want.
            "addressing_style": env_str("AGENTSTATE_STORAGE_ADDRESSING", "auto"),
            # Completing an upload of gigabytes takes some stores a while.
            "timeout": env_int("AGENTSTATE_STORAGE_TIMEOUT", 60, low=1, high=3600),
            # Without these, boto looks where it always does: profiles, roles.
            "access_key": env_str("AWS_ACCESS_KEY_ID") or None,
            "secret_key": env_str("AWS_SECRET_ACCESS_KEY") or None,
            "security_token": env_str("AWS_SESSION_TOKEN") or None,
        },
    }
else:
    _artifact_storage = {
        "BACKEND": "sessions_app.artifacts.disk.FolderStore",
        "OPTIONS": {
            "location": env_str("AGENTSTATE_STORAGE_DIR", str(DATA_DIR / "artifacts"))
        },
    }
STORAGES = {
    "artifacts": _artifact_storage,
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

# --- Memory
# packaged, none, openai:MODEL, onnx:FOLDER or model2vec:FOLDER
EMBEDDER = env_str("AGENTSTATE_EMBEDDER", "packaged")
EMBEDDER_URL = env_str("AGENTSTATE_EMBEDDER_URL", "")
EMBEDDER_KEY = env_str("AGENTSTATE_EMBEDDER_KEY")
EMBEDDER_TIMEOUT = 5  # seconds; a recall falls back to the text search behind it
RECALL_CACHE_FACTS = env_int("AGENTSTATE_RECALL_CACHE_FACTS", 200_000, low=1000)
# An OpenAI-compatible chat endpoint; without a URL promotion goes by rules alone.
LLM_URL = env_str("AGENTSTATE_LLM_URL", "")
LLM_KEY = env_str("AGENTSTATE_LLM_KEY")
LLM_MODEL = env_str("AGENTSTATE_LLM_MODEL", "")
LLM_TIMEOUT = env_int("AGENTSTATE_LLM_TIMEOUT", 60, low=1, high=600)  # seconds
# A compaction holds its request's thread: all pieces and tries of it together.
LLM_COMPACT_SECONDS = env_int("AGENTSTATE_LLM_COMPACT_SECONDS", 120, low=1, high=3600)
# How much the model reads at once, its answer included.
LLM_WINDOW_TOKENS = env_int(
    "AGENTSTATE_LLM_WINDOW_TOKENS", 32_000, low=4_000, high=10_000_000
)

# --- Context: what a model is shown
# `estimate`, `tiktoken:<encoding>` or the path of a tokenizer.json.
TOKENIZER = env_str("AGENTSTATE_TOKENIZER", "estimate")
CONTEXT_BUDGET_TOKENS = env_int(
    "AGENTSTATE_CONTEXT_BUDGET_TOKENS", 32_000, low=1, high=10_000_000
)

# --- People
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "/sign-in/"
CSRF_FAILURE_VIEW = "agentstate.api.errors.csrf_failure"
LOGIN_REDIRECT_URL = "/"
# Single sign-on by OpenID Connect; without an issuer there is none.
OIDC_ISSUER = env_str("AGENTSTATE_OIDC_ISSUER")
OIDC_CLIENT_ID = env_str("AGENTSTATE_OIDC_CLIENT_ID")
OIDC_CLIENT_SECRET = env_str("AGENTSTATE_OIDC_CLIENT_SECRET")
OIDC_SCOPES = env_str("AGENTSTATE_OIDC_SCOPES", "openid profile email")
# What the button says.
OIDC_NAME = env_str("AGENTSTATE_OIDC_NAME", "single sign-on")
# What becomes of a person who has no account here.
OIDC_UNKNOWN = env_choice("AGENTSTATE_OIDC_UNKNOWN", "refuse", "create")
OIDC_GROUPS_CLAIM = env_str("AGENTSTATE_OIDC_GROUPS_CLAIM", "groups")
OIDC_ROLES = env_grants("AGENTSTATE_OIDC_ROLES")
# Then the provider is asked again whether the person may still come in.
OIDC_SESSION_HOURS = env_int("AGENTSTATE_OIDC_SESSION_HOURS", 12, low=1, high=720)
# Whether signing out here signs out at the provider too, if that offers it.
OIDC_SIGN_OUT = env_bool("AGENTSTATE_OIDC_SIGN_OUT", False)

# --- Time, language, files
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = DATA_DIR / "static"

# --- Security
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
# No inline script or style, nothing from elsewhere; the admin's is in middleware.py.
SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
}
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# True behind TLS; the embedded mode serves plain HTTP on loopback.
HTTPS = env_bool("AGENTSTATE_HTTPS", False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- Logging: one JSON object a line, with the request's id
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "agentstate.logs.JSONFormatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["console"], "level": env_str("AGENTSTATE_LOG_LEVEL", "INFO")},
    "loggers": {
        # Refusals are answers, not faults: counted in /metrics, not logged as errors.
        "django.request": {"level": "ERROR"},
        "procrastinate": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "uvicorn": {"level": "WARNING"},
    },
}
