"""Benchmarks run. What they measure is not asserted: a ratio is for people, and the machine is shared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import measure
from bench.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]


@pytest.mark.scenario
@pytest.mark.timeout(600)
def test_every_benchmark_runs_at_its_smallest(tmp_path: Path) -> None:
    """The command prints the table, exits 0, and leaves nothing in the temporary folder."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--tiny"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") > len(BENCHMARKS)
    assert list(tmp_path.glob("segue-bench-*")) == []


def test_an_unknown_name_is_refused() -> None:
    """Exit code 2, before anything is started."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "nothing"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "unknown: nothing" in done.stderr) == (2, True)


@pytest.mark.parametrize("share, value", [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0)])
def test_percentile_lies_between_its_neighbours(share: float, value: float) -> None:
    """The ends are the extremes, and between two values the place decides."""
    assert measure.percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_rows_are_judged_by_medians() -> None:
    """An outlier on either side changes nothing."""
    row = measure.at_most("what", 1.3, floor=[1.0, 1.0, 9.0], ours=[1.2, 1.2, 99.0])
    slower = measure.at_least("what", 0.5, floor=[10.0, 10.0, 99.0], ours=[4.0, 4.0, 99.0])
    assert (row.measured, row.met, slower.measured, slower.met) == ("1.20 x", True, "0.40 x", False)
