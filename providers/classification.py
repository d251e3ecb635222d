"""Which failure reason a text or an HTTP status speaks for; the same for every provider.

Adapters ask structure first (their own error kinds, then the status) and these text rules last, and only
about text that is an error message already: an agent that quotes one in an answer is never asked about.
Numbers are bounded and need a word beside them that makes them a status: ``1401 tokens`` and
``line 429`` are none.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from domain.reasons import Reason
from providers.base import EndedRun, Verdict

#: Longest evidence of a verdict, in characters.
EVIDENCE_LIMIT = 2000
#: Error texts are looked at only so far, from either end, in characters.
TEXT_LIMIT = 4000
#: A final answer longer than this is an answer, not a notice.
NOTICE_LIMIT = 320

_HTTP_WORDS = r"(?:api error|status(?:[ _]code)?|http(?:/\d(?:\.\d)?)?(?: error)?|code|rejected|response)"


def _http(codes: str, phrases: str) -> str:
    """A status that is marked as one: ``HTTP 401``, ``(401)``, ``401 Unauthorized``."""
    return (
        rf"\b{_HTTP_WORDS}\W{{0,4}}(?:{codes})(?!\.?\d)"
        rf"|(?:^|\s)\((?:{codes})\)"
        rf"|(?<![\d.])(?:{codes}) (?:{phrases})"
    )


#: In this order: the first rule that matches wins.
_RULES: tuple[tuple[Reason, str], ...] = (
    (
        Reason.RESUME_REJECTED,
        (
            r"no conversation found with session id|no rollout found for thread id"
            r"|--resume requires a valid session|invalid session identifier|no session found matching"
            r"|^error: session not found|no previous sessions found for this project"
            r"|failed to read session metadata"
        ),
    ),
    (
        Reason.CONTEXT_OVERFLOW,
        (
            r"prompt (?:is )?too long|prompt_too_long|context_length_exceeded|model_context_window_exceeded"
            r"|maximum context length|ran out of room in the model's context window"
            r"|context (?:length|size|window)[^.\n]{0,40}(?:exceed|limit)"
            r"|exceeds? the (?:model's )?(?:maximum )?context|input (?:is )?too long for"
            r"|conversation (?:is )?too long"
        ),
    ),
    (
        Reason.MISSING_CONFIG,
        (
            r"missing environment variable|missing\b[^\n]{0,60}\bapi[_ ]key|api[_ ]key\b[^\n]{0,40}\brequired"
            r"|no (?:llm )?provider configured|cannot be used with root/sudo privileges"
        ),
    ),
    (
        Reason.DISK_FULL,
        r"no space left on device|\benospc\b|disk quota exceeded",
    ),
    (
        Reason.PROVIDER_AUTH_OR_ACCESS,
        _http("401|403", "unauthorized|forbidden")
        + r"|\bunauthorized\b|failed to authenticate|authentication[_ ](?:error|failed)|permission_error"
        r"|login required|not logged in|please (?:run /login|log ?in)|invalid (?:x-)?api[- _]key"
        r"|refresh token|(?:invalid|expired|revoked) (?:oauth |access )*token|oauth token has expired",
    ),
    (
        Reason.PROVIDER_QUOTA_LIMIT,
        _http("402", "payment required")
        + r"|insufficient[_ ](?:balance|quota|funds)|balance is too low|billing_error|out of credits?\b"
        r"|credit (?:balance|limit)|usage limit|hit your [^\n]{0,30}limit|out of extra usage"
        r"|quota (?:exceeded|exhausted)|exceeded your (?:current )?quota|\d-hour limit reached",
    ),
    (
        Reason.PROVIDER_RATE_LIMIT,
        _http("429|529", "too many requests")
        + r"|rate[_ -]limit|too many requests|overloaded|at capacity|no capacity available",
    ),
    (
        Reason.MODEL_UNAVAILABLE,
        _http("404", "not found")
        + r"|model[_ ]not[_ ]found|unknown model|issue with the selected model|model\b[^\n]{0,80}\bnot found"
        r"|model\b[^\n]{0,80}\bdoes not exist",
    ),
    (
        Reason.API_INVALID_REQUEST,
        _http("400|413|422", "bad request") + r"|invalid_request_error|image was too large",
    ),
    (
        Reason.PROVIDER_NETWORK,
        (
            r"\b(?:econnrefused|econnreset|enotfound|etimedout|epipe|eai_again)\b"
            r"|connection (?:refused|reset|closed|dropped|error|to the api was lost)|stream disconnected"
            r"|socket hang up|fetch failed|unable to connect|error sending request"
            r"|dial tcp|getaddrinfo|could not resolve|i/o timeout|deadline exceeded|request timed out"
        ),
    ),
    (
        Reason.PROVIDER_SERVER_ERROR,
        _http(
            r"5\d\d",
            "internal server error|bad gateway|service unavailable|gateway timeout|server error",
        )
        + r"|server_error|server had an error|internal server error|service unavailable|bad gateway"
        r"|provider returned error|experiencing high demand",
    ),
    (Reason.AGENT_TIMEOUT, r"timed out after"),
    (
        Reason.RUNTIME_MISSING_EXECUTABLE,
        r"executable (?:file )?not found|exec format error|command not found",
    ),
    (
        Reason.RUNTIME_VERSION_UNSUPPORTED,
        r"below the minimum supported version|requires? a newer version|needs an update",
    ),
)
_COMPILED = tuple((reason, re.compile(pattern, re.IGNORECASE | re.MULTILINE)) for reason, pattern in _RULES)

#: Whole answers that are the agent's own notices, not words of the model. Anchored at both ends:
#: an answer that quotes one of them stays an answer.
_NOTICES: tuple[tuple[Reason, re.Pattern[str]], ...] = tuple(
    (reason, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for reason, pattern in (
        (
            Reason.ITERATION_LIMIT,
            (
                r"(?:error: )?(?:i )?(?:have )?reached (?:the )?max(?:imum)? (?:number of )?"
                r"(?:turns|iterations|steps)(?: \(\d+\))?\.?"
            ),
        ),
        (Reason.CONTEXT_OVERFLOW, r"prompt is too long(?: ·.*)?\.?"),
        (
            Reason.CONTEXT_OVERFLOW,
            r"conversation too long\. press esc twice.*|compaction failed.*reduced below the context limit.*",
        ),
        (
            Reason.PROVIDER_QUOTA_LIMIT,
            (
                r"(?:claude ai )?usage limit reached\|\d{10}|credit balance is too low"
                r"|you['’]ve hit your (?:[\w-]+ )?limit(?: [·∙].*)?|\d-hour limit reached(?: [·∙].*)?"
            ),
        ),
        (Reason.PROVIDER_AUTH_OR_ACCESS, r"(?:invalid api key|not logged in) · (?:fix|please).*"),
    )
)


@dataclass(frozen=True)
class Match:
    """A reason and the line that speaks for it."""

    reason: Reason
    line: str


def by_status(status: int | None) -> Reason | None:
    """The reason an HTTP status of the model's API speaks for; None for a status that says nothing.

    529 is Anthropic's "overloaded", which is a matter of capacity like 429.
    """
    if status is None:
        return None
    exact = _BY_STATUS.get(status)
    if exact is None and 500 <= status <= 599:
        return Reason.PROVIDER_SERVER_ERROR
    return exact


_BY_STATUS = {
    400: Reason.API_INVALID_REQUEST,
    401: Reason.PROVIDER_AUTH_OR_ACCESS,
    402: Reason.PROVIDER_QUOTA_LIMIT,
    403: Reason.PROVIDER_AUTH_OR_ACCESS,
    404: Reason.MODEL_UNAVAILABLE,
    408: Reason.PROVIDER_NETWORK,
    413: Reason.API_INVALID_REQUEST,
    422: Reason.API_INVALID_REQUEST,
    429: Reason.PROVIDER_RATE_LIMIT,
    529: Reason.PROVIDER_RATE_LIMIT,
}


def by_text(text: str) -> Match | None:
    """The first rule that an error text satisfies, with the line that does it."""
    bounded = _bounded(text)
    for reason, pattern in _COMPILED:
        found = pattern.search(bounded)
        if found:
            return Match(reason, _line_around(bounded, found.start()))
    return None


def by_notice(text: str) -> Reason | None:
    """The reason of a final answer that is nothing but one of the agents' canned notices."""
    answer = text.strip()
    if len(answer) > NOTICE_LIMIT:
        return None
    return next((reason for reason, pattern in _NOTICES if pattern.fullmatch(answer)), None)


def failed(
    reason: Reason,
    text: str,
    *,
    evidence: str = "",
    resume_refused: bool = False,
    resets_at: datetime | None = None,
) -> Verdict:
    """A verdict whose message is ``text``; the evidence is its first line if no better is given."""
    return Verdict(
        reason=reason.value,
        message=_bounded(text).strip(),
        evidence=(evidence or _first_line(text))[:EVIDENCE_LIMIT],
        resume_refused=resume_refused,
        resets_at=resets_at,
    )


def without_result(run: EndedRun) -> Verdict:
    """Judge a process that ended without a result: by signal, exit code 0, stderr, exit code."""
    last_words = _last_line(run.stderr_tail)
    if run.signal is not None:
        text = f"The agent was killed by signal {run.signal} before it gave a result."
        return failed(Reason.PROCESS_FAILURE, text, evidence=last_words)
    if run.exit_code == 0:
        text = "The agent exited with code 0 but without a result."
        return failed(Reason.EMPTY_OUTPUT, text, evidence=last_words)
    said = by_text(run.stderr_tail)
    if said is not None:
        refused = said.reason is Reason.RESUME_REJECTED and run.requested_session_id is not None
        return failed(said.reason, said.line, resume_refused=refused)
    text = f"The agent exited with code {run.exit_code} and without a result."
    return failed(Reason.PROCESS_FAILURE, text, evidence=last_words)


def _bounded(text: str) -> str:
    if len(text) <= 2 * TEXT_LIMIT:
        return text
    return f"{text[:TEXT_LIMIT]}\n…\n{text[-TEXT_LIMIT:]}"


def _line_around(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _first_line(text: str) -> str:
    return next(iter(_lines(text)), "")


def _last_line(text: str) -> str:
    return next(reversed(_lines(text)), "")
