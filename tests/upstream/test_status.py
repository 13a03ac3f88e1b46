"""Status: what GitHub answers is recorded with its date, what it does not answer changes nothing."""

from __future__ import annotations

import datetime
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream.github import pull_states
from sm120.integration.upstream.matrix import Cell
from sm120.integration.upstream.status import last_known, refresh, statuses

from .. import mini_checkout as foundation

TODAY = datetime.date(2026, 11, 29)


class FakeGitHub:
    """A server on 127.0.0.1 that answers what the test put into `answers`, by pull number."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[int] = []
        self.compared: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """By `TAG...COMMIT`."""
        self.tokens: set[str | None] = set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                fake.tokens.add(self.headers.get("Authorization"))
                if "/compare/" in self.path:
                    status, headers, body = fake.compared[self.path.rpartition("/")[2]]
                else:
                    number = int(self.path.rsplit("/", 1)[1])
                    fake.asked.append(number)
                    status, headers, body = fake.answers[number]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def pull(self, number: int, state: str = "open", merged: bool = False, **fields: object) -> None:
        body = {
            "number": number,
            "state": state,
            "title": "a title",
            "merged_at": "2026-11-01T00:00:00Z" if merged else None,
            **fields,
        }
        self.answers[number] = (200, {}, json.dumps(body).encode())

    def fails(self, number: int, status: int, body: bytes = b"{}", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[number] = (status, named, body)


@pytest.fixture
def github(monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    fake = FakeGitHub()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture
def queue(mini):
    core = foundation.PRISTINE["alpha/core.py"]
    changed = core.replace("line_3 = 3\n", "line_3 = 33\n")
    mini.patch("sent", {"alpha/core.py": changed}, Upstream_Status="Submitted o/alpha#1", Rivals="o/alpha#2, o/alpha#3")
    return mini


def test_answers_are_recorded_with_their_date(queue, github):
    github.pull(1)
    github.pull(2, "closed", merged=True)
    github.fails(3, 404)
    path, unanswered = refresh(queue.checkout, TODAY, github.url)
    assert unanswered is None
    row = json.loads(path.read_text())
    assert row["date"] == "2026-11-29" and row["complete"] and row["patches"] == {"alpha": {"Submitted": 1}}
    assert {pull: answer["state"] for pull, answer in row["pulls"].items()} == {
        "o/alpha#1": "open",
        "o/alpha#2": "merged",
        "o/alpha#3": "gone",
    }
    (status,) = statuses(queue.checkout, TODAY)
    assert status.pulls["o/alpha#1"] == "open 2026-11-29"
    assert not status.errors
    assert status.warnings == ["the rival o/alpha#2 was merged: try the next release", "the rival o/alpha#3 is gone"]
    refresh(queue.checkout, TODAY + datetime.timedelta(days=1), github.url)
    assert len(path.read_text().splitlines()) == 2, "one row a run, so that a trend can be plotted"


@pytest.mark.parametrize(
    ("status", "body", "headers", "code", "mentions"),
    [
        (
            403,
            b"{}",
            {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "1795996800"},
            "status-limit",
            "rate limit until",
        ),
        (429, b"{}", {"Retry_After": "60"}, "status-limit", "retry after 60 s"),
        (500, b"oops", {}, "status-answer", "HTTP 500"),
        (200, b"<html>a portal's page</html>", {}, "status-answer", "a portal's page"),
        (200, b"[]", {}, "status-answer", "not a pull request"),
        (200, b'{"number": 7, "state": "open", "merged_at": null}', {}, "status-answer", "number 7"),
        (200, b'{"number": 2, "state": "strange", "merged_at": null}', {}, "status-answer", "strange"),
    ],
    ids=["403", "429", "500", "html", "list", "other-pull", "unknown-state"],
)
def test_a_bad_answer_stops_asking_and_keeps_what_is_known(queue, github, status, body, headers, code, mentions):
    github.pull(1)
    github.fails(2, status, body, **headers)
    github.pull(3)
    path, unanswered = refresh(queue.checkout, TODAY, github.url)
    assert unanswered is not None and unanswered.code == code and mentions in str(unanswered)
    assert github.asked == [1, 2], "nothing is asked behind a refusal"
    row = json.loads(path.read_text())
    assert list(row["pulls"]) == ["o/alpha#1"] and not row["complete"]


@pytest.mark.parametrize("status", [404, 410, 451])
def test_what_is_gone_for_good_keeps_no_other_from_being_asked(queue, github, status):
    github.pull(1)
    github.fails(2, status)
    github.pull(3)
    path, unanswered = refresh(queue.checkout, TODAY, github.url)
    assert unanswered is None and github.asked == [1, 2, 3]
    assert json.loads(path.read_text())["pulls"]["o/alpha#2"] == {"state": "gone"}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c"])
def test_a_title_with_a_line_separator_reads_back(queue, github, separator):
    for number in (1, 2, 3):
        github.pull(number, title=f"one{separator}two")
    path, _ = refresh(queue.checkout, TODAY, github.url)
    assert last_known(queue.checkout)["o/alpha#1"].title == f"one{separator}two"
    row = json.loads(path.read_text())
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    assert len(last_known(queue.checkout)) == 3, "a row that was written so before reads, too"


def test_where_it_was_merged_and_what_the_ledger_names_is_recorded(queue, github):
    github.pull(1, draft=True, base={"ref": "main"})
    github.pull(2, "closed", merged=True, base={"ref": "release/1"}, merge_commit_sha="ab" * 20)
    github.pull(3, base=None, merge_commit_sha="cd" * 20)
    github.pull(9)
    refresh(queue.checkout, TODAY, github.url, also=["o/alpha#9", "o/alpha#1"])
    assert github.asked == [1, 2, 3, 9], "each once"
    known = last_known(queue.checkout)
    assert known["o/alpha#1"].said == "open (draft) 2026-11-29" and known["o/alpha#1"].base == "main"
    assert known["o/alpha#2"].said == "merged abababababab into release/1 2026-11-29"
    assert known["o/alpha#3"].merge_commit == "", "of an open one GitHub names a trial merge"
    assert statuses(queue.checkout, TODAY)[0].pulls["o/alpha#2"] == known["o/alpha#2"].said


@pytest.fixture
def listed(queue):
    """The project has two releases beside the pin, and is on GitHub as `o/alpha`."""
    pin = queue.checkout.patches / "alpha/pin.toml"
    pin.write_text(pin.read_text().replace("https://example.org/alpha", "https://github.com/o/alpha"))
    entry = '[[releases]]\nversion = "{0}"\nfile = "alpha-{0}-py3-none-any.whl"\nsha256 = "' + "0" * 64 + '"\n'
    (pin.parent / "releases.toml").write_text("".join(entry.format(version) for version in ("1.10", "1.0", "1.9")))
    return queue


@pytest.mark.parametrize(
    ("answers", "release", "warning"),
    [
        (["ahead", "behind", "behind"], "1.9", "and 1.9 has it"),
        (["identical"], "1.0", "and 1.0 has it"),
        (["ahead", "diverged", "diverged"], "", "try the next release"),
        ([404, "behind"], "1.9", "and 1.9 has it"),  # no such tag
    ],
)
def test_the_oldest_release_that_has_a_merged_one_is_named(listed, github, answers, release, warning):
    commit = "ab" * 20
    github.pull(1)
    github.pull(2, "closed", merged=True, base={"ref": "main"}, merge_commit_sha=commit)
    github.pull(3, merge_commit_sha=commit)
    for version, answer in zip(("1.0", "1.9", "1.10"), answers, strict=False):
        found = (answer, {}, b"{}") if answer == 404 else (200, {}, json.dumps({"status": answer}).encode())
        github.compared[f"v{version}...{commit}"] = found
    _, unanswered = refresh(listed.checkout, TODAY, github.url)
    assert unanswered is None
    known = last_known(listed.checkout)
    assert known["o/alpha#2"].release == release and known["o/alpha#3"].release == ""
    said = (
        f"merged abababababab into main, in {release}, 2026-11-29"
        if release
        else "merged abababababab into main 2026-11-29"
    )
    (status,) = statuses(listed.checkout, TODAY)
    assert status.pulls["o/alpha#2"] == said
    assert status.warnings == [f"the rival o/alpha#2 was merged: {warning}"]


@pytest.mark.parametrize("answer", [(429, {"Retry-After": "9"}, b"{}"), (200, {}, b"[]")])
def test_a_comparison_that_is_refused_stops_the_asking(listed, github, answer):
    github.pull(1)
    github.pull(2, "closed", merged=True, merge_commit_sha="ab" * 20)
    github.compared["v1.0..." + "ab" * 20] = answer
    _, unanswered = refresh(listed.checkout, TODAY, github.url)
    assert unanswered is not None and set(last_known(listed.checkout)) == {"o/alpha#1"}


@pytest.mark.parametrize("columns", ["60", "80", "100", "200"])
def test_no_width_cuts_a_name_and_a_rival_that_was_not_asked_is_dated(queue, columns):
    said = queue.sm120("status", "--no-ladder", COLUMNS=columns).stdout
    assert "sent" in said and "alpha#2" in said and "alpha#3" in said
    assert "not asked" not in said and "open" in said


def test_offline_shows_the_last_known_state_with_its_date(queue, github):
    for number in (1, 2, 3):
        github.pull(number)
    path, _ = refresh(queue.checkout, TODAY, github.url)
    before = path.read_bytes()
    github.server.shutdown()
    github.server.server_close()
    later = TODAY + datetime.timedelta(days=10)
    nothing, unanswered = refresh(queue.checkout, later, github.url)
    assert nothing is None and unanswered is not None and unanswered.code == "status-offline"
    assert path.read_bytes() == before
    assert statuses(queue.checkout, later)[0].pulls["o/alpha#1"] == "open 2026-11-29"


@pytest.mark.parametrize("fault", ["silent", "cut off"])
def test_a_server_that_hangs_or_breaks_off_is_offline(github, fault):
    released = threading.Event()

    def answer(handler):
        if fault == "silent":
            released.wait(10)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")

    github.pull(1)
    github.server.RequestHandlerClass.do_GET = answer
    try:
        found, unanswered = pull_states(["o/alpha#1"], api=github.url, today=TODAY, timeout=0.3)
    finally:
        released.set()
    assert found == [] and unanswered is not None and unanswered.code == "status-offline", unanswered
    assert ("timed out" if fault == "silent" else "peer closed") in str(unanswered)


@pytest.mark.parametrize(
    ("header", "word", "tier", "errors"),
    [
        ("Pending", "merged", "core", 1),
        ("Pending", "superseded", "core", 1),
        ("Submitted o/alpha#1", "superseded", "core", 1),
        ("Merged o/alpha#1 1.1", "applies", "core", 1),
        ("Superseded o/alpha#1 1.1", "applies with closure", "core", 1),
        ("Merged o/alpha#1 1.1", "applies", "backport", 0),
        ("Merged o/alpha#1 1.1", "merged", "core", 0),
        ("Pending", "applies", "core", 0),
        ("Pending", "conflicts", "core", 0),
    ],
)
def test_what_header_and_ladder_say_of_the_pin_must_fit(mini, header, word, tier, errors):
    core = foundation.PRISTINE["alpha/core.py"]
    changed = core.replace("line_3 = 3\n", "line_3 = 33\n")
    mini.patch("sent", {"alpha/core.py": changed}, Upstream_Status=header, Tier=tier)
    (status,) = statuses(mini.checkout, TODAY, lambda project, slug: Cell(word, "", "so it is", ()))
    assert len(status.errors) == errors, status.errors
    assert all(word in error and header.split()[0] in error for error in status.errors)


def test_a_token_is_optional_and_sent_when_set(github, monkeypatch):
    github.pull(1)
    pull_states(["o/alpha#1"], api=github.url)
    monkeypatch.setenv("GITHUB_TOKEN", "not-a-real-token")
    pull_states(["o/alpha#1"], api=github.url)
    assert github.tokens == {None, "Bearer not-a-real-token"}
    with pytest.raises(Refusal, match=r"\[status-pull\]"):
        pull_states(["nonsense"], api=github.url)


@pytest.mark.parametrize(
    ("header", "state", "merged", "error"),
    [
        ("Submitted o/alpha#1", "closed", True, "Submitted, but o/alpha#1 is merged"),
        ("Submitted o/alpha#1", "closed", False, "Submitted, but o/alpha#1 is closed"),
        ("Rejected o/alpha#1", "closed", True, "Rejected, but o/alpha#1 is merged"),
        ("Merged o/alpha#1 1.1", "open", False, "Merged, but o/alpha#1 is open"),
    ],
)
def test_a_header_against_github_is_an_error(mini, github, header, state, merged, error):
    core = foundation.PRISTINE["alpha/core.py"]
    mini.patch("sent", {"alpha/core.py": core.replace("line_3 = 3\n", "line_3 = 33\n")}, Upstream_Status=header)
    github.pull(1, state, merged)
    refresh(mini.checkout, TODAY, github.url)
    (status,) = statuses(mini.checkout, TODAY)
    assert status.errors == [f"the header says {error}"]


def test_a_header_against_the_ladder_is_an_error_and_age_a_warning(queue):
    def merged(project, slug):
        return Cell("merged", "", "it applies in reverse, exactly", ())

    (status,) = statuses(queue.checkout, TODAY, merged)
    assert status.errors == [
        "the header says Submitted, but on the pinned release it is merged: it applies in reverse, exactly"
    ]
    assert statuses(queue.checkout, TODAY + datetime.timedelta(days=30))[0].warnings == []
    assert statuses(queue.checkout, TODAY + datetime.timedelta(days=31))[0].warnings == ["checked 31 days ago"]
    assert "future" in statuses(queue.checkout, TODAY - datetime.timedelta(days=1))[0].warnings[0]


@pytest.mark.parametrize(
    "row",
    [
        "not json",
        '{"date": "29 Nov", "pulls": {}}',
        '{"date": "2026-11-29", "pulls": {"nonsense": {"state": "open"}}}',
        '{"date": "2026-11-29", "pulls": {"o/alpha#1": {"state": "maybe"}}}',
    ],
)
def test_a_bad_row_is_refused_with_its_line(queue, row):
    folder = queue.checkout.patches / "status"
    folder.mkdir()
    (folder / "2026.jsonl").write_text('{"date": "2026-11-28", "pulls": {}}\n' + row + "\n")
    with pytest.raises(Refusal, match=r"\[status-row\].*2026\.jsonl:2"):
        last_known(queue.checkout)


def test_lint_warns_of_age_and_fails_on_a_contradiction(queue, github):
    path = queue.folder / "sent.patch"
    path.write_text(path.read_text().replace("Status-Checked: 2026-11-29", "Status-Checked: 2020-01-01"))
    result = queue.sm120("series", "lint")
    assert result.returncode == 0 and "warning: sent: checked" in result.stdout, result.stdout + result.stderr
    for number in (2, 3):
        github.pull(number)
    github.pull(1, "closed", merged=True)
    refresh(queue.checkout, TODAY, github.url)
    result = queue.sm120("series", "lint")
    assert result.returncode == 1 and "error: sent: the header says Submitted, but o/alpha#1 is merged" in result.stdout
