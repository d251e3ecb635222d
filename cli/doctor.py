"""``segue doctor``: is everything that Segue needs there and right?"""

import asyncio
from dataclasses import asdict

import typer

from cli.invocation import Invocation, verb
from cli.processes import local_settings

root = typer.Typer()


@verb(root, "doctor")
def doctor(invocation: Invocation) -> None:
    """Check database, schema, Temporal, clock, disk and agent CLIs; exits 1 when something fails."""
    from workers import checks

    findings = asyncio.run(checks.everything(local_settings()))
    output = invocation.output
    if output.text:
        for finding in findings:
            output.say(str(finding))
    else:
        output.rows([asdict(finding) for finding in findings], ())
    failed = any(finding.state is checks.State.FAIL for finding in findings)
    raise typer.Exit(1 if failed else 0)
