"""Ask GitHub about pull requests: what state they are in, politely, and never guessing from a bad answer."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

import httpx

from sm120.integration.common.refusal import Refusal

API = "https://api.github.com"
PULL = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


@dataclass(frozen=True)
class PullState:
    """One answer: `open`, `closed`, `merged`, or `gone` for a pull request that is not there (404, 410, 451)."""

    pull: str
    state: str
    checked: str
    title: str = ""
    draft: bool = False
    base: str = ""
    """The branch that it goes to, or went to."""
    merge_commit: str = ""
    """Where it was merged: a release has it when its tag contains this commit."""
    release: str = ""
    """The oldest listed release that has it."""

    @property
    def said(self) -> str:
        """`open (draft) 2026-11-29`, `merged 0123456789ab into main, in 0.5.24, 2026-11-29`."""
        extra = " (draft)" if self.draft and self.state == "open" else ""
        if self.state == "merged" and self.merge_commit:
            extra = f" {self.merge_commit[:12]}" + (f" into {self.base}" if self.base else "")
        if self.state == "merged" and self.release:
            extra += f", in {self.release},"
        return f"{self.state}{extra} {self.checked}"


class Unanswered(Refusal):
    """GitHub did not answer usefully; what is known already stays as it is."""


def pull_states(
    pulls: Iterable[str],
    *,
    api: str | None = None,
    today: datetime.date | None = None,
    timeout: float = 20,
    tags: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[list[PullState], Unanswered | None]:
    """States of `owner/repo#N` pull requests, in order, until one request is not answered.

    `GITHUB_TOKEN` is sent when it is set (and nowhere else but to `api`). Stops at the first refusal, so that a rate
    limit is respected; returns what was answered before it, and the refusal. `tags` are the releases to look for merged
    ones in: by repository, oldest first, the tag of each version.
    """
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    if token := os.environ.get("GITHUB_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    date = (today or datetime.date.today()).isoformat()
    base = api or os.environ.get("SM120_GITHUB_API") or API
    found: list[PullState] = []
    with httpx.Client(base_url=base, headers=headers, timeout=timeout, follow_redirects=True) as client:
        for pull in dict.fromkeys(pulls):
            try:
                state = _ask(client, pull, date)
                releases = (tags or {}).get(pull.partition("#")[0], {})
                found.append(replace(state, release=_release_of(client, state, releases)))
            except Unanswered as unanswered:
                return found, unanswered
    return found, None


def _release_of(client: httpx.Client, state: PullState, tags: Mapping[str, str]) -> str:
    """The oldest version of `tags` that contains the merge commit; empty when none does, or GitHub cannot compare."""
    for version, tag in tags.items() if state.merge_commit else ():
        repository = state.pull.partition("#")[0]
        answer = _get(
            client, f"/repos/{repository}/compare/{quote(tag)}...{state.merge_commit}", f"{state.pull} in {tag}"
        )
        try:
            # Of the commit, seen from the tag: it is the tag's, or lies behind it.
            if answer.status_code == 200 and answer.json()["status"] in ("identical", "behind"):
                return version
        except (ValueError, KeyError, TypeError):
            raise Unanswered("status-answer", f"not a comparison but {answer.text[:60]!r} for {tag}") from None
    return ""


def _get(client: httpx.Client, path: str, what: str) -> httpx.Response:
    try:
        answer = client.get(path)
    except httpx.HTTPError as error:
        raise Unanswered("status-offline", f"no answer: {error or type(error).__name__}") from None
    if answer.status_code in (403, 429):
        raise Unanswered(
            "status-limit", f"{answer.status_code} for {what}{_when(answer)}", fix="set GITHUB_TOKEN, or wait"
        )
    return answer


def _ask(client: httpx.Client, pull: str, date: str) -> PullState:
    match = PULL.fullmatch(pull)
    if not match:
        raise Refusal("status-pull", f"{pull!r} is not owner/repo#N")
    answer = _get(client, f"/repos/{match[1]}/pulls/{match[2]}", pull)
    # Gone for good, or taken down by law: nothing is wrong with the next question.
    if answer.status_code in (404, 410, 451):
        return PullState(pull, "gone", date)
    if answer.status_code != 200:
        raise Unanswered("status-answer", f"HTTP {answer.status_code} for {pull}")
    try:
        data = answer.json()
        state = "merged" if data["merged_at"] else data["state"]
        number, title = data["number"], str(data.get("title", ""))
        draft, base = bool(data.get("draft")), str((data.get("base") or {}).get("ref", ""))
        commit = str(data.get("merge_commit_sha") or "") if state == "merged" else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unanswered("status-answer", f"not a pull request but {answer.text[:60]!r} for {pull}") from None
    if state not in ("open", "closed", "merged") or number != int(match[2]):
        raise Unanswered("status-answer", f"a pull request that is not {pull}: number {number}, state {state!r}")
    return PullState(pull, state, date, title, draft, base, commit)


def _when(answer: httpx.Response) -> str:
    if seconds := answer.headers.get("Retry-After"):
        return f", retry after {seconds} s"
    reset = answer.headers.get("X-RateLimit-Reset", "")
    if answer.headers.get("X-RateLimit-Remaining") == "0" and reset.isdigit():
        at = datetime.datetime.fromtimestamp(int(reset), datetime.UTC)
        return f", rate limit until {at:%Y-%m-%d %H:%M} UTC"
    return ""
