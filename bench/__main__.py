"""``python -m bench [NAME …]``: measure and print the table."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import counts, live, measure, message, resolve, shapes, throughput, transcript, turn
from bench.lab import Lab
from bench.measure import Row, Size
from bench.services import Services

Benchmark = Callable[[Lab], Awaitable[list[Row]]]

#: Memory first: a worker that has been busy before has room for more runs without growing.
BENCHMARKS: dict[str, Benchmark] = {
    "memory": live.weighed,
    "message": message.measured,
    "turn": turn.measured,
    "counts": counts.measured,
    "shapes": shapes.measured,
    "throughput": throughput.measured,
    "burst": throughput.burst,
    "cancel": live.cancelled,
    "stream": live.streamed,
    "resolve": resolve.measured,
    "transcript": transcript.measured,
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--tiny", action="store_true", help="only prove that it works; the numbers mean nothing"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    # Ends like Ctrl-C does: everything that was started is stopped, and the folder removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        run(options.names or list(BENCHMARKS), measure.TINY if options.tiny else Size(), rows)
    finally:
        print(measure.table(rows))  # also what was measured before something failed
    return 0


def run(names: list[str], size: Size, rows: list[Row]) -> None:
    """Start everything in a temporary folder, add to ``rows`` what is measured, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as folder, Services(Path(folder)) as services:
        lab = Lab(services, Path(folder), size)
        try:
            asyncio.run(_measure(lab, names, rows))
        finally:
            lab.segue.close()


async def _measure(lab: Lab, names: list[str], rows: list[Row]) -> None:
    async with lab:
        for name in names:
            began = time.monotonic()
            rows += await BENCHMARKS[name](lab)
            load = "/".join(f"{value:.1f}" for value in os.getloadavg())
            print(f"{name}: {time.monotonic() - began:.0f} s, load average {load}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
