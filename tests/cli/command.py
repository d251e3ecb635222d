"""The ``segue`` command as somebody uses it on the machine of a stack."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cli.up import PATIENCE, Up

SEGUE = [sys.executable, "-P", "-m", "cli"]


class Segue:
    """The command, as somebody uses it on the machine of a stack."""

    def __init__(self, up: Up, home: Path) -> None:
        self.up = up
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SEGUE_DATA": str(up.folder.path),
        }

    def run(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*SEGUE, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json").stdout)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*SEGUE, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
