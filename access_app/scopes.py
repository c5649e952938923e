"""What a key may be allowed to do."""

SESSIONS_READ = "sessions:read"
SESSIONS_WRITE = "sessions:write"
RUNS_READ = "runs:read"
RUNS_WRITE = "runs:write"
RUNS_WORK = "runs:work"
MEMORY_READ = "memory:read"
MEMORY_WRITE = "memory:write"
MEMORY_FORGET = "memory:forget"
ADMIN = "admin"
ALL = "all"  # every scope, those to come included

SCOPES = (
    SESSIONS_READ,
    SESSIONS_WRITE,
    RUNS_READ,
    RUNS_WRITE,
    RUNS_WORK,
    MEMORY_READ,
    MEMORY_WRITE,
    MEMORY_FORGET,
    ADMIN,
    ALL,
)
