"""What an agent process gets to see."""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from domain.brief import Brief, DirectoryBrief, Prompt
from domain.statuses import Continuity
from machine.environment import Identity, complete, settings


def brief(**fields: Any) -> Brief:
    return Brief(
        attempt_id=uuid4(),
        attempt=2,
        task_id=uuid4(),
        workspace_id=uuid4(),
        agent_id=uuid4(),
        agent_name="A",
        lane_id=uuid4(),
        provider="script",
        prompt=Prompt(full_context="", short_context="", message=""),
        directory=DirectoryBrief(id=uuid4()),
        continuity=Continuity.FIRST,
        **fields,
    )


def test_only_listed_variables_of_the_worker_are_inherited() -> None:
    """Locale, proxies and certificates pass; credentials and a nested agent's marks do not."""
    worker = {
        "PATH": "/bin",
        "HOME": "/srv/me",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://proxy",
        "XDG_CONFIG_HOME": "/x",
        "ANTHROPIC_API_KEY": "worker's own",
        "SEGUE_RUNTIME_TOKEN": "sgr_x",
        "CLAUDECODE": "1",
        "CLAUDE_CODE_ENTRYPOINT": "cli",
        "EXTRA": "asked for",
    }
    env = settings(brief(), worker, ["EXTRA"])
    assert env.pop("PATH").startswith("/bin:")
    assert env == {
        "HOME": "/srv/me",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://proxy",
        "XDG_CONFIG_HOME": "/x",
        "EXTRA": "asked for",
    }


def test_an_agents_env_can_not_forge_an_identity() -> None:
    """Reserved, nested and impossible names are left out; the rest wins over the worker's."""
    own = {
        "SEGUE_TOKEN": "forged",
        "HOME": "/elsewhere",
        "PATH": "/evil",
        "TMPDIR": "/t",
        "CLAUDECODE": "1",
        "BAD NAME": "x",
        "NUL": "a\0b",
        "LC_ALL": "mine",
        "CLAUDE_CODE_USE_BEDROCK": "1",
    }
    env = settings(brief(env=own), {"PATH": "/bin", "HOME": "/srv/me", "LC_ALL": "C"})
    env.pop("PATH")
    assert env == {"HOME": "/srv/me", "LC_ALL": "mine", "CLAUDE_CODE_USE_BEDROCK": "1"}


def test_the_run_is_told_who_it_is() -> None:
    """Everything the contract lists, ids only where they apply, and a private TMPDIR."""
    issue = UUID(int=7)
    mine = brief(issue_id=issue, issue_key="SEG-7")
    identity = Identity(mine, "http://api", "sgt_token", Path("/private/tmp"))
    env = complete({"BASE": "1", "SEGUE_TOKEN": "x"}, {"IS_SANDBOX": "1"}, identity)
    assert env == {
        "BASE": "1",
        "IS_SANDBOX": "1",
        "SEGUE_API_URL": "http://api",
        "SEGUE_TOKEN": "sgt_token",
        "SEGUE_WORKSPACE_ID": str(mine.workspace_id),
        "SEGUE_AGENT_ID": str(mine.agent_id),
        "SEGUE_AGENT_NAME": "A",
        "SEGUE_TASK_ID": str(mine.task_id),
        "SEGUE_ATTEMPT": "2",
        "SEGUE_ATTEMPT_ID": str(mine.attempt_id),
        "SEGUE_ISSUE_ID": str(issue),
        "SEGUE_ISSUE_KEY": "SEG-7",
        "TMPDIR": "/private/tmp",
        "TMP": "/private/tmp",
        "TEMP": "/private/tmp",
    }
