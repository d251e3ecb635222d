"""Continuing a finished run in a chat: what would come along, said in words, and the chat."""

from dataclasses import dataclass

from cli import conversations, runs
from cli.client import ApiClient
from cli.output import Json, Output, notice

_WHY_NOT = {
    "task_not_terminal": "The run has not ended: wait for it, or cancel it first.",
    "task_is_chat": "It is a turn of a chat: go on in that chat.",
    "target_unavailable": "The agent is archived: restore it first.",
    "agent_runtime_required": "The agent has no runtime: bind it to one first.",
}
_OFFLINE = "The machine takes no new work at the moment: messages wait until it is back."


@dataclass(frozen=True)
class Steps:
    """What is wanted beside the chat itself."""

    preview: bool = False
    follow: bool = False


def go_on(client: ApiClient, output: Output, task: str, *, fork: bool | None, steps: Steps) -> int:
    """Make the chat, or only say what it would be; returns the exit code."""
    before = _wished(client.get(f"/tasks/{task}/continuation"), fork=fork)
    if steps.preview:
        output.one(before, _in_words(before))
        return runs.OK if before["possible"] else runs.FAILED
    made = client.post(f"/tasks/{task}/continue-in-chat", {} if fork is None else {"fork": fork})
    chat = made["chat"]
    if not before["runtime_online"]:
        notice(_OFFLINE)
    if steps.follow:
        conversations.show(client, output, chat["id"], last=None)
        return conversations.watch(client, output, chat["id"], everything=False)
    shown = {"chat": chat["id"], "title": chat["title"], "reopened": made["reopened"]}
    output.one(made, shown | _carried(made, before["work_dir"]))
    notice(f'go on with: segue chat send {chat["id"]} "…" --wait')
    return runs.OK


def _wished(before: Json, *, fork: bool | None) -> Json:
    """The api's preview is of the default; who asks for one conversation shares what comes along."""
    if fork is not False:
        return before
    return before | {"fork": False, "shared_with_issue": before["session_carried"]}


def _in_words(before: Json) -> Json:
    if not before["possible"]:
        return {"possible": False, "why": _WHY_NOT.get(before["reason"], before["reason"])}
    return {
        "possible": True,
        **_carried(before, before["work_dir"]),
        "issue": "sees what is said in the chat" if before["shared_with_issue"] else "sees nothing of it",
        "machine": "online" if before["runtime_online"] else _OFFLINE,
        "chat": before["existing_chat_id"],
    }


def _carried(answer: Json, work_dir: str | None) -> Json:
    session = "comes along" if answer["session_carried"] else f"stays behind: {answer['session_reason']}"
    return {"conversation": session, "directory": work_dir or "a new one"}
