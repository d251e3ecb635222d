"""All runs of this machine: joined, started, adopted, stopped."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from secrets import token_hex
from uuid import UUID

import structlog

from domain.brief import Brief
from domain.errors import AttemptElsewhere, Conflict, InvalidInput, MachineError, NotFound, ProviderMissing
from domain.outcomes import Outcome
from domain.reasons import Reason
from domain.steps import GateResult, StopResult
from machine import workdirs
from machine.attempt import AttemptDirectory
from machine.config import MachineConfig
from machine.environment import settings
from machine.executables import find_executable
from machine.launch import Machine, record_of
from machine.plane import Plane, insist
from machine.processes import ProcessTree, stop_tree
from machine.root import RootDirectory
from machine.run import Run
from providers.base import Limits, Provider

log = structlog.get_logger()


class Supervisor:
    """One for each root directory, by whoever holds its lock. Lives in one event loop."""

    def __init__(
        self, root: RootDirectory, plane: Plane, providers: Callable[[str], Provider], config: MachineConfig
    ) -> None:
        self._machine = Machine(root, plane, providers, config)
        self._root = root
        self._plane = plane
        self.runs: dict[UUID, Run] = {}

    def running(self) -> list[UUID]:
        """The attempts that this worker looks after at the moment."""
        return [attempt_id for attempt_id, run in self.runs.items() if not run.done]

    async def gate(self, brief: Brief) -> GateResult:
        """Prepare or check the directory, the session and the agent's command, before `attach`."""
        return await asyncio.to_thread(self._gate, brief)

    async def attach(
        self, attempt_id: UUID, *, brief: Brief | None = None, gate: GateResult | None = None
    ) -> Run:
        """The run of this attempt: the one that lives, an adopted one, or a new one.

        Only a new one needs ``gate``; its brief is fetched when it is not given. Raises `MachineError`
        when the attempt is not known on this machine and no gate result is given.
        """
        living = self.runs.get(attempt_id)
        if living is not None:
            return living
        directory = AttemptDirectory.find(self._root.attempts, attempt_id)
        if directory is None:
            brief = brief or await self._fetch_brief(attempt_id)
            directory = await self._create(attempt_id, brief, gate)
        return self._follow(directory, brief)

    async def look_after_living(self) -> list[UUID]:
        """Adopt or harvest every started attempt that nobody has finished; call before taking work.

        An attempt that no longer stands is only let go of: `stop_attempt` is what stops it.
        """
        found = await asyncio.to_thread(self._unfinished)
        for directory in found:
            self._follow(directory, None)
        return [directory.attempt_id for directory in found]

    async def stop_attempt(self, attempt_id: UUID) -> StopResult:
        """Make sure that nothing of the attempt runs or ever will here, and tell what is known of it.

        Idempotent. Works by the records, and by the marker alone when there are none.
        """
        directory = AttemptDirectory.find(self._root.attempts, attempt_id)
        if directory is None:
            return StopResult(stopped=await self._sweep(attempt_id))
        run = self._follow(directory, None, must_stand=False)
        if await run.cancel():
            return StopResult(stopped=False)
        outcome = await self._harvest(run)
        return StopResult(stopped=await self._sweep(attempt_id), outcome=outcome)

    async def detach_all(self) -> None:
        """Let go of every run; their processes go on."""
        await asyncio.gather(*(run.detach() for run in list(self.runs.values())))

    def _gate(self, brief: Brief) -> GateResult:
        env = settings(brief, os.environ, self._machine.config.inherit)
        try:
            provider = self._machine.providers(brief.provider)
            find_executable(provider, self._machine.config.binaries, env["PATH"])
        except (InvalidInput, ProviderMissing) as error:  # no adapter in this version, or no program
            reason = Reason.RUNTIME_MISSING_EXECUTABLE.value
            return GateResult(ok=False, failure=reason, failure_detail=str(error))
        return workdirs.gate(self._root, brief, provider, env, self._machine.config.disk_floor)

    async def _fetch_brief(self, attempt_id: UUID) -> Brief:
        return await insist(
            lambda: self._plane.brief(attempt_id), what="brief", cap=self._machine.config.retry_cap
        )

    async def _create(self, attempt_id: UUID, brief: Brief, gate: GateResult | None) -> AttemptDirectory:
        if gate is None:
            message = f"attempt {attempt_id} is not known on this machine"
            raise MachineError(message)
        record = record_of(brief, gate, token_hex(16), self._root.boot_id)
        with contextlib.suppress(FileExistsError):
            return await asyncio.to_thread(AttemptDirectory.create, self._root.attempts, record)
        found = AttemptDirectory.find(self._root.attempts, attempt_id)
        if found is None:
            message = f"{self._root.attempts / str(attempt_id)} is damaged; remove it by hand"
            raise MachineError(message)
        return found

    def _follow(self, directory: AttemptDirectory, brief: Brief | None, *, must_stand: bool = True) -> Run:
        living = self.runs.get(directory.attempt_id)
        if living is not None:
            return living
        run = Run(self._machine, directory, brief, must_stand=must_stand)
        self.runs[run.attempt_id] = run
        run.task.add_done_callback(lambda task: self._ended(run, task))
        return run

    def _ended(self, run: Run, task: "asyncio.Task[Outcome]") -> None:
        if self.runs.get(run.attempt_id) is run:
            del self.runs[run.attempt_id]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NotFound | AttemptElsewhere):
            log.info("run_let_go", attempt_id=str(run.attempt_id), why=str(error))
        elif error is not None:
            log.error("run_broken", attempt_id=str(run.attempt_id), exc_info=error)

    def _unfinished(self) -> list[AttemptDirectory]:
        found = []
        for path in sorted(self._root.attempts.iterdir()):
            if path.name.startswith(".new-"):
                shutil.rmtree(path, ignore_errors=True)  # a creation that was cut short
                continue
            with contextlib.suppress(ValueError):
                directory = AttemptDirectory.find(self._root.attempts, UUID(path.name))
                if directory is not None and directory.started and directory.outcome() is None:
                    found.append(directory)
        return found

    async def _harvest(self, run: Run) -> Outcome | None:
        try:
            return await run.wait()
        except (NotFound, Conflict):
            return None

    async def _sweep(self, attempt_id: UUID) -> bool:
        tree = ProcessTree(attempt_id, None, None, self._root.boot_id)
        return not await stop_tree(tree, Limits.stop_grace)
