"""One real server as a child process: start it, ask it, stop it by pid or kill it, read its log."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.server_command import Argument, command_line, free_port

# One value of a command-line option: True is a bare flag, False and None leave it out, a sequence repeats the values.


class ServerFailed(Refusal):
    """The server died, never became healthy, or answered an error; a note has the tail of its log."""

    def __init__(self, what: str, log: Path | None = None, tail: str = "") -> None:
        last = (tail.strip().splitlines() or [""])[-1][:300]
        said = f": {last}" if log and last else ""
        super().__init__(
            "server-failed", f"{' '.join(what.split())}{said}", path=log, fix="read its log" if log else None
        )
        if tail:
            self.add_note(tail)


@dataclass(frozen=True)
class Reply:
    """One finished generation as the HTTP API told it."""

    tokens: tuple[int, ...]
    seconds: float
    meta: dict[str, Any]

    def cached(self, tier: str) -> int:
        """Prompt tokens taken from `tier`: "device", "host" or "storage"; 0 where the server reports none."""
        return int((self.meta.get("cached_tokens_details") or {}).get(tier) or 0)

    @property
    def accept_length(self) -> float | None:
        """Tokens committed per verify round, as the server counts them; None without speculation."""
        rounds = self.meta.get("spec_verify_ct")
        return self.meta["completion_tokens"] / rounds if rounds else None


class Server:
    """`python -m sglang.launch_server` on 127.0.0.1, in a process group of its own.

    As a context manager it starts on entry and stops on exit. `arguments` are command-line options without their
    dashes (underscores become dashes), `environment` and `hooks` go to `Runtime.environment`. `start` raises
    ServerFailed when the server dies or is not healthy within `start_timeout` seconds; nothing is left running then.
    """

    def __init__(
        self,
        runtime: Runtime,
        model: Path,
        arguments: Mapping[str, Argument],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        hooks: Sequence[Path] = (),
        start_timeout: float = 240,
        request_timeout: float = 240,
        module: str = "sglang.launch_server",
    ) -> None:
        self.log = log
        self.start_timeout = start_timeout
        self.request_timeout = request_timeout
        self.port = free_port()
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        own: dict[str, Argument] = {"model-path": str(model), "device": "cpu", "host": "127.0.0.1", "port": self.port}
        self._command = [str(runtime.python), "-m", module, *command_line({**own, **arguments})]
        self._environment = runtime.environment(environment, hooks)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Pid of the server, which is also the id of its process group."""
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process.pid

    def start(self) -> "Server":
        """Start and wait until /health answers 200."""
        began = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_healthy(began + self.start_timeout)
        except BaseException:
            self.kill()
            raise
        self.start_seconds = time.monotonic() - began
        return self

    def stop(self, timeout: float = 30) -> None:
        """Ask the server to end (SIGTERM to it alone), then kill what is left of its group after `timeout` seconds."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group with SIGKILL (nothing is flushed) and wait until no process of it is left."""
        if self._process is None:
            return
        group = self._process.pid
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                break
            # Reaps the leader; until then it keeps the group alive as a zombie.
            self._process.poll()
            if not _alive(group):
                break
            time.sleep(0.05)
        else:
            raise ServerFailed(f"process group {group} survived SIGKILL for 30 s")
        self._process.wait(30)
        self._process = None

    def generate(self, prompt: Sequence[int], new_tokens: int, **body: Any) -> Reply:
        """Generate greedily from token ids; `body` adds to the request or replaces its parts."""
        return self.generate_batch([prompt], new_tokens, **body)[0]

    def generate_batch(self, prompts: Sequence[Sequence[int]], new_tokens: int, **body: Any) -> list[Reply]:
        """Generate greedily from several prompts in one request (one batch on the server)."""
        request = {
            "input_ids": [list(prompt) for prompt in prompts],
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
            **body,
        }
        began = time.monotonic()
        answers = self.request("POST", "/generate", json=request)
        seconds = time.monotonic() - began
        return [Reply(tuple(answer["output_ids"]), seconds, answer["meta_info"]) for answer in answers]

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Any other HTTP call; returns the decoded JSON (or the text, where it is not JSON)."""
        try:
            with httpx.Client(base_url=self.url, timeout=self.request_timeout, trust_env=False) as client:
                response = client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self.failed(f"{method} {path}: {error!r}") from error
        if response.status_code != 200:
            raise self.failed(f"{method} {path}: {response.status_code} {response.text}")
        try:
            return response.json()
        except json.JSONDecodeError:
            return response.text

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def failed(self, what: str) -> ServerFailed:
        """What went wrong, with the end of the log."""
        return ServerFailed(what, self.log, self.log_tail())

    def memory_bytes(self) -> int:
        """Proportional resident memory of the whole process group, in bytes."""
        total = 0
        for member in _members(self.pid):
            try:
                rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
            except (OSError, ProcessLookupError):
                continue
            total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
        return total

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_healthy(self, deadline: float) -> None:
        assert self._process is not None
        with httpx.Client(base_url=self.url, timeout=20, trust_env=False) as client:
            while time.monotonic() < deadline:
                code = self._process.poll()
                if code is not None:
                    raise self.failed(f"the server ended with code {code} before it was healthy")
                try:
                    if client.get("/health").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.25)
        raise self.failed(f"the server was not healthy after {self.start_timeout:.0f} s")


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _members(group: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    members.append(int(entry.name))
            except ProcessLookupError:
                continue
    return members
