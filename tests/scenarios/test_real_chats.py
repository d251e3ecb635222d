"""Chats with the real Claude Code and the real Codex: what does the model get to read?"""

import pytest

from tests.scenarios.conftest import Deploy
from tests.scenarios.test_real_continuity import RESUMED, RealAgent, real

__all__ = ["real"]

#: Many runs in one deployment: cheaper than many deployments, but long where the machine is slow.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]


def test_a_chat_reads_the_runs_conversation_and_the_issue_not_the_chats(
    deploy: Deploy, real: RealAgent
) -> None:
    """Branched off, as is the default: the first message's request contains the run's own conversation."""
    segue = real.deploy(deploy)
    agent, issue = real.member_of(segue), segue.issue()
    run = segue.run(agent, issue, "The colour is teal. [[tool bash pwd]]")
    assert run["status"] == "completed", run
    preview = segue.get(f"/tasks/{run['id']}/continuation")
    assert (preview["session_carried"], preview["fork"], preview["shared_with_issue"]) == (True, True, False)
    chat = segue.continued(run["id"])["id"]
    first = segue.talk(chat, "The shape is round, which colour? [[tool bash pwd]]")
    assert (first["continuity"], first["work_dir"]) == (RESUMED, run["work_dir"])
    assert run["work_dir"] in first["result"]  # where its tools work, not only where we believe it to be
    told = real.read("The shape is round")
    assert told.index("The colour is teal.") < told.index("The shape is round")
    assert first["session_id"] != run["session_id"]
    second = segue.talk(chat, "And which shape? [[say Round]]")
    assert (second["session_id"], second["result"]) == (first["session_id"], "Round")
    told = real.read("And which shape?")
    assert (
        told.index("The colour is teal.") < told.index("The shape is round") < told.index("And which shape")
    )
    after = segue.run(agent, issue, "Do you know the shape? [[say No idea]]")
    assert (after["session_id"], after["continuity"]) == (run["session_id"], RESUMED)
    told = real.read("Do you know the shape?")
    assert "The colour is teal." in told
    assert "The shape is round" not in told


def test_without_a_branch_the_issue_reads_the_chat(deploy: Deploy, real: RealAgent) -> None:
    """The chat says so, and so it is: one conversation, in order."""
    segue = real.deploy(deploy)
    agent, issue = real.member_of(segue), segue.issue()
    run = segue.run(agent, issue, "The colour is teal. [[say I will remember it]]")
    made = segue.post(f"/tasks/{run['id']}/continue-in-chat", {"fork": False})
    assert made["chat"]["fork"] is False
    turn = segue.talk(made["chat"]["id"], "The shape is round. [[say Noted]]")
    assert (turn["session_id"], turn["work_dir"]) == (run["session_id"], run["work_dir"])
    after = segue.run(agent, issue, "Which shape was it? [[say Round]]")
    assert (after["session_id"], after["continuity"]) == (run["session_id"], RESUMED)
    told = real.read("Which shape was it?")
    assert told.index("The colour is teal.") < told.index("The shape is round.") < told.index("Which shape")
