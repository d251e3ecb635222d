"""The continuity table with the real Claude Code and the real Codex: what does the model get to read?"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from domain.prompts import continuity_notice
from domain.statuses import Continuity, ContinuityReason
from tests.fakes.model_server import MessagesApi, ModelServer
from tests.fakes.responses_api import ResponsesApi
from tests.scenarios.conftest import Deploy
from tests.scenarios.deployment import Deployment, eventually

#: Many runs in one deployment: cheaper than many deployments, but long where the machine is slow.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

RESUMED = {"state": "resumed", "reason": None}
CODEX_CONFIG = """
model_provider = "fake"

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
env_key = "FAKE_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@dataclass
class RealAgent:
    """An agent CLI whose model is ours."""

    provider: str
    binary: Path
    server: ModelServer
    #: Where a request keeps the conversation.
    path: str
    messages: str
    env: dict[str, str]
    more: dict[str, Any] = field(default_factory=dict)

    def deploy(self, deploy: Deploy) -> Deployment:
        return deploy(providers=json.dumps({self.provider: {"path": str(self.binary)}}))

    def member_of(self, segue: Deployment, name: str = "Ada") -> str:
        return segue.agent(name, provider=self.provider, env=self.env, **self.more)

    def read(self, words: str) -> str:
        """The conversation that the model was last given with these words in it."""
        found = [
            json.dumps(request.body[self.messages])
            for request in self.server.requests
            if request.path == self.path and words in json.dumps(request.body.get(self.messages))
        ]
        assert found, words
        return found[-1]


def _claude(binary: Path, server: ModelServer, folder: Path) -> RealAgent:
    env = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "not-a-real-key",
        "CLAUDE_CONFIG_DIR": str(folder / "claude-config"),
    }
    return RealAgent("claude", binary, server, "/v1/messages", "messages", env)


def _codex(binary: Path, server: ModelServer, folder: Path) -> RealAgent:
    home = folder / "codex-home"
    home.mkdir()
    (home / "config.toml").write_text(CODEX_CONFIG.format(url=server.url))
    env = {"CODEX_HOME": str(home), "FAKE_API_KEY": "not-a-real-key"}
    return RealAgent("codex", binary, server, "/v1/responses", "input", env, {"model": "fake-model"})


_MAKERS = {"claude": _claude, "codex": _codex}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.real_agents(name)) for name in _MAKERS],
)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealAgent]:
    """Each real agent CLI with a fake model API of its vendor."""
    binary = request.getfixturevalue(f"{request.param}_path")
    with ModelServer(MessagesApi(), ResponsesApi()) as server:
        yield _MAKERS[request.param](binary, server, tmp_path)


def test_the_model_reads_the_lanes_conversation_and_no_other(deploy: Deploy, real: RealAgent) -> None:
    """All of it with the next comment; nothing of it as another agent, or after a rerun."""
    segue = real.deploy(deploy)
    ada, bob = real.member_of(segue), real.member_of(segue, "Bob")
    issue = segue.issue(
        body="Begin anew. [[say begun]]", assignee={"type": "agent", "id": ada}, status="backlog"
    )
    first = segue.run(ada, issue, "The colour is teal. [[tool bash mkdir sub && cd sub && pwd]]")
    assert first["status"] == "completed", first
    assert f"{first['work_dir']}/sub" in first["result"]  # it works elsewhere, and is still found here
    second = segue.run(ada, issue, "Which colour was it? [[say It was teal]]")
    assert (second["continuity"], second["result"]) == (RESUMED, "It was teal")
    assert (second["session_id"], second["work_dir"]) == (first["session_id"], first["work_dir"])
    told = real.read("Which colour was it?")
    assert told.index("The colour is teal.") < told.index("calling a tool") < told.index("Which colour")
    other = segue.run(bob, issue, "Do you know the colour? [[say No idea]]")
    assert other["continuity"] == {"state": "first", "reason": None}
    fresh = segue.ended(segue.post(f"/issues/{issue}/rerun")["task_id"])
    assert (fresh["continuity"]["state"], fresh["result"]) == ("fresh", "begun")
    assert len({(one["session_id"], one["work_dir"]) for one in (second, other, fresh)}) == 3
    for words in ("Do you know the colour?", "Begin anew."):
        assert "teal" not in real.read(words)


def test_a_cancelled_conversation_goes_on_and_a_refused_one_does_not(deploy: Deploy, real: RealAgent) -> None:
    """Stopped in the middle of a tool call: resumed. API 400: fresh in the same directory, told once."""
    segue = real.deploy(deploy)
    agent, issue = real.member_of(segue), segue.issue()
    first = segue.run(agent, issue, "The colour is teal. [[say I will remember it]]")
    stopped = segue.ask(agent, issue, "The shape is round. [[tool bash sleep 600]]")
    eventually("the tool runs", lambda: any(event["type"] == "tool_use" for event in segue.events(stopped)))
    segue.post(f"/tasks/{stopped}/cancel")
    cancelled = segue.ended(stopped)
    assert (cancelled["status"], cancelled["session_id"]) == ("cancelled", first["session_id"])
    after = segue.run(agent, issue, "Which shape was it? [[say It was round]]")
    assert (after["status"], after["continuity"]) == ("completed", RESUMED)
    assert (after["session_id"], after["work_dir"]) == (first["session_id"], first["work_dir"])
    told = real.read("Which shape was it?")
    assert told.index("The colour is teal.") < told.index("The shape is round.") < told.index("Which shape")
    bad = segue.run(agent, issue, "This is wrong. [[status 400 bad]]")
    assert (bad["reason"], bad["continuity"]) == ("api_invalid_request", RESUMED)
    fresh = segue.run(agent, issue, "And the colour? [[say unknown]]")
    assert (fresh["status"], fresh["result"]) == ("completed", "unknown")
    assert fresh["continuity"] == {"state": "lost", "reason": "session_poisoned"}
    assert fresh["work_dir"] == first["work_dir"]
    assert fresh["session_id"] not in {None, first["session_id"]}
    told = real.read("And the colour?")
    assert "teal" not in told
    notice = continuity_notice(Continuity.LOST, ContinuityReason.POISONED)
    assert notice is not None
    assert told.count(notice) == 1
