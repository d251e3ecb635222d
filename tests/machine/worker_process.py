"""A runtime worker's machine part as a process of its own: killed, it leaves its agents running.

``python -m tests.machine.worker_process ROOT API_URL [BRIEF_JSON]``: looks after the living, starts the
brief's attempt if one is given, and prints each outcome as a line.
"""

import asyncio
import sys

from domain.brief import Brief
from machine.config import MachineConfig
from machine.plane import Plane
from machine.root import RootDirectory
from machine.run import Run
from machine.supervisor import Supervisor
from tests.machine.toy_provider import provider


async def main(root_path: str, api_url: str, brief_json: str | None) -> None:
    root = RootDirectory(root_path)
    root.lock()
    async with Plane(api_url, "sgr_test") as plane:
        config = MachineConfig(api_url=api_url, disk_floor=0, retry_cap=0.2)
        supervisor = Supervisor(root, plane, provider, config)
        runs: list[Run] = [await supervisor.attach(a) for a in await supervisor.look_after_living()]
        if brief_json is not None:
            brief = Brief.model_validate_json(brief_json)
            gate = await supervisor.gate(brief)
            runs.append(await supervisor.attach(brief.attempt_id, brief=brief, gate=gate))
        for run in runs:
            print((await run.wait()).model_dump_json(), flush=True)  # noqa: T201 - its result


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
