"""The main job: a comment on an issue becomes a real agent run, durably."""

import pytest

from tests.scenarios.deployment import Deployment

pytestmark = pytest.mark.scenario


def test_a_second_comment_resumes_the_same_session_in_the_same_directory(segue: Deployment) -> None:
    """Context continues along the lane: the second run answers from the first one's memory."""
    agent, issue = segue.agent(), segue.issue()
    first = segue.run(agent, issue, "remember colour=teal\ncwd")
    second = segue.run(agent, issue, "recall colour\nturns\ncwd")
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert first["continuity"] == {"state": "first", "reason": None}
    assert second["continuity"] == {"state": "resumed", "reason": None}
    assert second["result"].split("\n") == ["teal", "2", first["work_dir"]]
    assert (second["session_id"], second["work_dir"]) == (first["session_id"], first["work_dir"])


def test_agents_and_issues_never_share_a_lane(segue: Deployment) -> None:
    """Another agent on the issue has its own session and directory, and so has a child issue."""
    ada, bob = segue.agent("Ada"), segue.agent("Bob")
    issue = segue.issue()
    child = segue.issue("A child", parent_id=issue)
    mine = segue.run(ada, issue, "remember colour=teal")
    others = [segue.run(bob, issue, "recall colour"), segue.run(ada, child, "recall colour")]
    assert [other["result"] for other in others] == ["unknown", "unknown"]
    assert len({task["work_dir"] for task in (mine, *others)}) == 3
    assert len({task["session_id"] for task in (mine, *others)}) == 3


def test_the_reply_is_a_comment_of_the_agent(segue: Deployment) -> None:
    """The final answer is posted on the issue, once, by the agent."""
    agent, issue = segue.agent(), segue.issue()
    segue.run(agent, issue, "say Hello there")
    comments = segue.get(f"/issues/{issue}/comments")["items"]
    replies = [c["body"] for c in comments if c["author"]["type"] == "agent"]
    assert replies == ["Hello there"]


def test_assigning_an_issue_starts_its_agent(segue: Deployment) -> None:
    """Creating an issue with an assignee runs it with the description as the request."""
    agent = segue.agent()
    created = segue.post(
        "/issues",
        {"title": "Greet", "body": "say From the body", "assignee": {"type": "agent", "id": agent}},
    )
    task = segue.ended(created["triggered"][0]["task_id"])
    assert (task["result"], task["trigger"]["type"]) == ("From the body", "assignment")


def test_comments_before_the_start_become_one_run(segue: Deployment) -> None:
    """Two comments behind a running task are one follow-up task that is told both, in order."""
    agent, issue = segue.agent(), segue.issue()
    running = segue.ask(agent, issue, "say started\nsleep 2")
    segue.event_with(running, "started")
    second = segue.ask(agent, issue, "say two")
    third = segue.ask(agent, issue, "say three")
    assert second == third
    assert segue.ended(second)["result"] == "two\nthree"


def test_the_agent_speaks_with_its_own_token(segue: Deployment) -> None:
    """Inside a run the command works with the task's token, which ends with the run."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "tool printenv SEGUE_TOKEN | cut -c1-4; printenv SEGUE_ISSUE_KEY")
    assert "sgt_" in str(segue.events(task["id"]))
    assert "SEG-1" in task["result"]
