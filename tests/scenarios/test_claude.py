"""The main job with the real Claude Code CLI, against a fake model server."""

import json
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.scenarios.conftest import Deploy

pytestmark = [pytest.mark.scenario, pytest.mark.real_agents]


def test_the_second_runs_request_contains_the_first_runs_messages(
    deploy: Deploy,
    model_server: ModelServer,
    claude_path: Path,
    tmp_path: Path,
) -> None:
    """A second comment resumes the real session: the model is told the first run's conversation."""
    segue = deploy(providers=json.dumps({"claude": {"path": str(claude_path)}}))
    env = {
        "ANTHROPIC_BASE_URL": model_server.url,
        "ANTHROPIC_API_KEY": "not-a-real-key",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude-config"),
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    agent, issue = segue.agent(provider="claude", env=env), segue.issue()
    first = segue.run(agent, issue, "The colour is teal. [[say I will remember it]]")
    assert (first["status"], first["result"]) == ("completed", "I will remember it"), first
    second = segue.run(agent, issue, "Which colour was it? [[say It was teal]]")
    assert (second["continuity"]["state"], second["result"]) == ("resumed", "It was teal")
    assert (second["session_id"], second["work_dir"]) == (first["session_id"], first["work_dir"])
    last = json.dumps(model_server.conversations()[-1])
    assert "The colour is teal." in last
    assert "I will remember it" in last
    assert "Which colour was it?" in last
