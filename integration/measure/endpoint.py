"""One request to an OpenAI-compatible endpoint, streamed, with the time of everything that came back."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import httpx

from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.degeneration import degeneration

CacheState = Literal["cold", "device", "host", "storage", "mixed", "cached, tier unknown", "not known"]


@dataclass
class Answer:
    """What came back. Times are seconds of one clock (`time.monotonic`); `None` is "the endpoint did not say"."""

    sent: float
    first: float
    last: float
    prompt_tokens: int | None
    completion_tokens: int | None
    first_tokens: int | None
    cached_tokens: int | None
    tiers: dict[str, int] | None
    text: str
    finish: str | None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    reasoning: str = ""

    @property
    def seconds_to_first(self) -> float:
        return self.first - self.sent

    @property
    def cache_state(self) -> CacheState:
        """Where the prompt's prefix came from, as far as the endpoint tells."""
        if self.cached_tokens is None:
            return "not known"
        if self.cached_tokens == 0:
            return "cold"
        used = [tier for tier, tokens in (self.tiers or {}).items() if tokens]
        if not used:
            return "cached, tier unknown"
        return used[0] if len(used) == 1 else "mixed"  # type: ignore[return-value]


class NotAnswered(Exception):
    """The endpoint refused a request or broke off; the message is what it said, `status` its HTTP status if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)

    @property
    def declined(self) -> bool:
        """Whether the endpoint understood and will not: not a fault, a limit of rate, or a lack of rights."""
        return self.status in (400, 404, 405, 415, 422, 501)


class Endpoint:
    """`url` ends before /v1. Every request and answer is appended to `record`, failed ones too.

    An answer whose text fell apart counts as none, unless `random_weights` says that no text can be expected.
    """

    def __init__(
        self, url: str, record: Path, *, timeout: float = 600, model: str | None = None, random_weights: bool = False
    ) -> None:
        self.random_weights = random_weights
        self.url = url.rstrip("/").removesuffix("/v1")
        self.record = record
        self._lock = Lock()
        try:
            self._client = httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)
        except httpx.InvalidURL as error:
            raise Refusal("qualify-endpoint", f"{url!r} is no address: {error}", fix="--url http://HOST:PORT") from None
        self.model = model or self._first_model()

    def context_length(self) -> int | None:
        """Tokens of the longest request, where /v1/models says so (SGLang and vLLM: `max_model_len`)."""
        models = self._said("/v1/models").get("data") or [{}]
        mine = next((model for model in models if model.get("id") == self.model), models[0])
        return _count(mine.get("max_model_len"))

    def pool_tokens(self) -> int | None:
        """Tokens of all requests at once, where the server says so (SGLang: /server_info)."""
        return _count(self._said("/server_info").get("max_total_num_tokens"))

    def takes_images(self) -> bool | None:
        """Whether the model takes images, where the server says so (SGLang: /model_info)."""
        said = self._said("/model_info").get("has_image_understanding")
        return said if isinstance(said, bool) else None

    def _said(self, path: str) -> dict[str, Any]:
        try:
            answer = self._client.get(path)
            said = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            said = None
        return said if isinstance(said, dict) else {}

    def _first_model(self) -> str:
        try:
            answer = self._client.get("/v1/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise Refusal("qualify-endpoint", f"{self.url}/v1/models: {error!r}", fix="start a server") from None

    def complete(self, prompt: str, tokens: int, **extra: Any) -> Answer:
        """Complete `prompt` greedily with up to `tokens` tokens; `ignore_eos=True` asks for exactly that many."""
        return self._stream("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **extra})

    def chat(self, messages: list[dict[str, Any]], tokens: int, **extra: Any) -> Answer:
        """One chat turn."""
        body = {"messages": messages, "max_tokens": tokens, "temperature": 0, **extra}
        return self._stream("/v1/chat/completions", body)

    def flush(self) -> bool:
        """Ask SGLang to drop its device and host caches; False where the endpoint has no such thing."""
        try:
            return self._client.post("/flush_cache", params={"timeout": 30}).status_code == 200
        except httpx.HTTPError:
            return False

    def _stream(self, path: str, body: dict[str, Any]) -> Answer:
        body = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_cached_tokens_details": True,
            **body,
        }
        answer = Answer(time.monotonic(), 0.0, 0.0, None, None, None, None, None, "", None)
        error: str | None = None
        try:
            with self._client.stream("POST", path, json=body) as reply:
                if reply.status_code != 200:
                    reply.read()
                    raise NotAnswered(f"{path}: {reply.status_code} {reply.text[:300]}", reply.status_code)
                for line in reply.iter_lines():
                    if line.startswith("data:") and line[5:].strip() != "[DONE]":
                        take(answer, json.loads(line[5:]), time.monotonic())
            if not answer.first:
                raise NotAnswered(f"{path}: the stream had no token")
            broken = None if self.random_weights else degeneration(answer.reasoning + answer.text, asked_text(body))
            if broken:
                raise NotAnswered(f"the text fell apart: {broken}")
            return answer
        except (httpx.HTTPError, ValueError) as broken:
            error = repr(broken)
            raise NotAnswered(f"{path}: {broken!r}") from None
        except NotAnswered as refused:
            error = str(refused)
            raise
        finally:
            entry = {"path": path, "request": body, "answer": asdict(answer), "error": error}
            with self._lock, self.record.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def asked_text(body: dict[str, Any]) -> str:
    """All text of a request: the prompt, or what every message says."""
    parts = [str(body.get("prompt", ""))]
    for message in body.get("messages", []):
        content = message.get("content") or ""
        parts += [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
    return "\n".join(parts)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def take(answer: Answer, event: dict[str, Any], now: float) -> None:
    """Add one event of a stream to `answer`. Raises NotAnswered for an event that is an error."""
    if "error" in event:
        raise NotAnswered(str(event["error"])[:300])
    usage = event.get("usage") or {}
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        text = choice.get("text") or delta.get("content") or reasoning
        if text or delta.get("tool_calls") or usage.get("completion_tokens"):
            if not answer.first:
                answer.first = now
                answer.first_tokens = usage.get("completion_tokens") or None
            answer.last = now
        answer.text += choice.get("text") or delta.get("content") or ""
        answer.reasoning += reasoning
        answer.finish = choice.get("finish_reason") or answer.finish
        for call in delta.get("tool_calls") or []:
            _add_call(answer.tool_calls, call)
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
        answer.completion_tokens = usage.get("completion_tokens", answer.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            answer.cached_tokens = int(details["cached_tokens"])
    tiers = (event.get("sglext") or {}).get("cached_tokens_details")
    if isinstance(tiers, dict):
        answer.tiers = {tier: int(tiers.get(tier) or 0) for tier in ("device", "host", "storage")}


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    index = int(delta.get("index") or 0)
    while len(calls) <= index:
        calls.append({"name": "", "arguments": ""})
    function = delta.get("function") or {}
    calls[index]["name"] += function.get("name") or ""
    calls[index]["arguments"] += function.get("arguments") or ""
