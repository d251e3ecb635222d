"""The checks of ``segue doctor``: one line each, and in every failure the next step."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import httpx
import psycopg
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from domain import names
from domain.errors import SegueError
from machine.inventory import installed
from providers import registry
from providers.base import Provider
from store import schema
from workers.folder import default_folder
from workers.runtime import machine_config
from workers.settings import Settings, connect_temporal

#: Above this, timeouts and schedules are visibly wrong.
_SKEW_SECONDS = 5.0
_ANSWER_SECONDS = 10.0


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    state: State
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.state:<4} {self.name:<18} {self.detail}"


class NotRight(Exception):
    """A check's result; the text has the next step."""

    def __init__(self, detail: str, state: State = State.FAIL) -> None:
        super().__init__(detail)
        self.state = state


Check = Callable[[], Awaitable[str]]


async def everything(settings: Settings) -> list[Finding]:
    """Run all checks at the same time; never raises."""
    examiner = Examiner(settings)
    checks: list[tuple[str, Check]] = [
        ("database", examiner.database),
        ("schema", examiner.schema),
        ("temporal", examiner.temporal),
        ("search attributes", examiner.search_attributes),
        ("api", examiner.api),
        ("clock", examiner.clock),
        ("disk", examiner.disk),
        *((f"agent {name}", examiner.agent(registry.get(name))) for name in registry.names()),
    ]
    return list(await asyncio.gather(*(_find(name, check) for name, check in checks)))


async def _find(name: str, check: Check) -> Finding:
    try:
        return Finding(State.OK, name, await check())
    except NotRight as error:
        return Finding(error.state, name, str(error))
    except SegueError as error:
        return Finding(State.FAIL, name, str(error))


class Examiner:
    """The checks, on one configuration."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def database(self) -> str:
        version, _ = await self._ask_database()
        return f"PostgreSQL {version}"

    async def schema(self) -> str:
        url = self._database_url()
        try:
            revision = await asyncio.to_thread(schema.current, url)
        except Exception as error:
            raise NotRight("unknown, since the database does not answer: mend that first") from error
        if revision != schema.head():
            raise NotRight(f"at {revision or 'nothing'}, not {schema.head()}: run `segue db upgrade`")
        return f"at {revision}"

    async def temporal(self) -> str:
        client = await self._temporal_client()
        return f"{client.service_client.config.target_host}, namespace {client.namespace}"

    async def search_attributes(self) -> str:
        client = await self._temporal_client()
        request = ListSearchAttributesRequest(namespace=client.namespace)
        try:
            found = await client.operator_service.list_search_attributes(request)
        except RPCError as error:
            raise NotRight(
                f"can't be listed ({error}): look at the server's permissions", State.WARN
            ) from error
        missing = [name for name in names.SEARCH_ATTRIBUTES if name not in found.custom_attributes]
        if missing:
            options = " ".join(f"--name {name} --type Keyword" for name in missing)
            raise NotRight(
                f"missing: run `temporal operator search-attribute create -n {client.namespace} {options}`"
            )
        return f"{len(names.SEARCH_ATTRIBUTES)} registered"

    async def api(self) -> str:
        answer = await self._ask_api("/readyz")
        if answer.status_code != 200:
            raise NotRight(f"{self._settings.api_url} is up but not ready: {answer.text[:200]}")
        return self._settings.api_url

    async def clock(self) -> str:
        """Skew of this machine against the database, or else the API."""
        skew = await self._skew()
        if skew is None:
            raise NotRight("nothing to compare with: neither database nor api answers", State.WARN)
        if abs(skew) > _SKEW_SECONDS:
            raise NotRight(f"{skew:+.1f} s off: set up time synchronisation (NTP) on this machine")
        return f"{skew:+.1f} s off"

    async def disk(self) -> str:
        """Free space where runs write."""
        folder = self._settings.root or default_folder()
        free = shutil.disk_usage(_existing(folder)).free
        text = f"{free / 1024**3:.1f} GiB free at {folder}"
        if free < self._settings.min_free_bytes:
            raise NotRight(f"{text}: no run starts before there are {self._settings.min_free_bytes} bytes")
        if free < 4 * self._settings.min_free_bytes:
            raise NotRight(f"{text}: make room soon", State.WARN)
        return text

    def agent(self, provider: Provider) -> Check:
        async def check() -> str:
            return await asyncio.to_thread(self._agent_version, provider)

        return check

    def _agent_version(self, provider: Provider) -> str:
        configured = self._settings.providers.get(provider.name)
        found = installed([provider], machine_config(self._settings))
        if not found and configured and configured.path:
            raise NotRight(f"{configured.path} can't be run: mend [providers.{provider.name}] path")
        if not found:
            hint = f"install it, or set [providers.{provider.name}] path, if agents here shall use it"
            raise NotRight(f"no {provider.executable()} on PATH: {hint}", State.WARN)
        if found[0].version is None:
            raise NotRight(f"{found[0].path} does not tell its version: run it by hand")
        return f"{found[0].version} at {found[0].path}"

    def _database_url(self) -> str:
        if self._settings.database_url is None and self._settings.runtime_token is not None:
            raise NotRight("not configured, as it should be on an agent machine", State.WARN)
        if self._settings.database_url is None:
            raise NotRight("not configured: start a stack (`segue up`) or set SEGUE_DATABASE_URL")
        return self._settings.required_database_url()

    async def _ask_database(self) -> tuple[str, float]:
        """The server's version, and how far our clock is ahead of its (seconds)."""
        url = self._database_url()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), await psycopg.AsyncConnection.connect(url) as conn:
                before = time.time()
                cursor = await conn.execute(
                    "select current_setting('server_version'), extract(epoch from clock_timestamp())::float8"
                )
                row = await cursor.fetchone()
        except (psycopg.Error, TimeoutError) as error:
            reason = str(error).strip() or "no answer"
            raise NotRight(f"{reason}: is it running, and is SEGUE_DATABASE_URL right?") from error
        assert row is not None, "this query has one row"
        return str(row[0]), (before + time.time()) / 2 - float(row[1])

    async def _ask_api(self, path: str) -> httpx.Response:
        try:
            async with httpx.AsyncClient(base_url=self._settings.api_url, timeout=_ANSWER_SECONDS) as http:
                return await http.get(path)
        except httpx.HTTPError as error:
            raise NotRight(
                f"{self._settings.api_url} does not answer: start it (`segue up` or `segue api`)"
            ) from error

    async def _skew(self) -> float | None:
        try:
            return (await self._ask_database())[1]
        except (NotRight, SegueError):
            return await self._skew_of_api()

    async def _skew_of_api(self) -> float | None:
        try:
            stated = (await self._ask_api("/healthz")).headers["date"]
        except (NotRight, KeyError):
            return None
        server = datetime.strptime(stated, "%a, %d %b %Y %H:%M:%S %Z").replace(tzinfo=UTC)
        return time.time() - server.timestamp()

    async def _temporal_client(self) -> Client:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await connect_temporal(self._settings)
        except (RuntimeError, RPCError, TimeoutError) as error:
            raise NotRight(
                f"{self._settings.temporal_address} does not answer for namespace "
                f"{self._settings.temporal_namespace}: is it running, and is SEGUE_TEMPORAL_ADDRESS right?"
            ) from error


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())
