"""T's runtime-like process: ``python -m bench.floor ADDRESS NAMESPACE``, until SIGTERM."""

import asyncio
import signal
import sys
from datetime import timedelta

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from bench.floor import activities
from bench.floor.workflow import OPS_QUEUE, RUNS_QUEUE
from workers import lifeline
from workers.control import stop_on_signals

_THROTTLE = timedelta(seconds=1)


async def main(address: str, namespace: str) -> None:
    """Two workers, set up like a runtime worker's."""
    stopping = stop_on_signals()
    client = await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
    ops = Worker(client, task_queue=OPS_QUEUE, activities=[activities.gate], max_concurrent_activities=20)
    runs = Worker(
        client,
        task_queue=RUNS_QUEUE,
        activities=[activities.run],
        max_concurrent_activities=2000,
        max_heartbeat_throttle_interval=_THROTTLE,
        default_heartbeat_throttle_interval=_THROTTLE,
    )
    async with ops, runs:
        await stopping.wait()


if __name__ == "__main__":
    lifeline.signal_on_death(signal.SIGTERM)
    asyncio.run(main(*sys.argv[1:]))
