"""An OpenAI-compatible endpoint whose cache, report and speed a test decides. It runs no model."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Behaviour:
    """`report` is honest, none, always zero, or always all; `chat` is a reply of tool calls or None for an error.

    `talk` answers a chat without tools: a body becomes `(status, text)` of an error, or a dict of text, reasoning,
    prompt_tokens, tokens and finish.
    """

    def __init__(self) -> None:
        self.report = "honest"
        self.tiers = True
        self.flush = True
        self.storage = True
        self.echo_needle = True
        self.stop_early = False
        self.one_piece = False
        self.first_batch = 1
        self.token_seconds = 0.002
        self.text = ""
        self.start_seconds = 0.0
        self.chat = None
        self.talk = None
        # What it says of itself: path → answer; other paths are not found.
        self.says = {"/v1/models": {"data": [{"id": "double"}]}}
        self.device: set[str] = set()
        self.disk: set[str] = set()


@contextmanager
def endpoint_double(behaviour: Behaviour):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            said = behaviour.says.get(self.path)
            self.json(404 if said is None else 200, said)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if self.path.startswith("/flush_cache"):
                behaviour.device.clear()
                return self.json(200 if behaviour.flush else 404, {})
            talks = behaviour.talk is not None and "tools" not in body
            if self.path == "/v1/chat/completions" and behaviour.chat is None and not talks:
                return self.json(400, {"error": "no chat template"})
            said = behaviour.talk(body) if self.path == "/v1/chat/completions" and talks else None
            if isinstance(said, tuple):
                return self.json(said[0], {"error": said[1]})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            if said is not None:
                return self.talk(said)
            if self.path == "/v1/chat/completions":
                return self.chat(body)
            return self.completion(body)

        def talk(self, said):
            if said.get("reasoning"):
                self.event({"choices": [{"delta": {"reasoning_content": said["reasoning"]}}]})
            finish = said.get("finish", "stop")
            self.event({"choices": [{"delta": {"content": said["text"]}, "finish_reason": finish}]})
            usage = {"prompt_tokens": said.get("prompt_tokens"), "completion_tokens": said.get("tokens")}
            self.event({"choices": [], "usage": usage})

        def chat(self, body):
            calls = behaviour.chat(body["messages"][-1]["content"])
            for index, (name, arguments) in enumerate(calls):
                half = len(arguments) // 2
                for piece in ({"name": name, "arguments": arguments[:half]}, {"arguments": arguments[half:]}):
                    self.event({"choices": [{"delta": {"tool_calls": [{"index": index, "function": piece}]}}]})
            if not calls:
                self.event({"choices": [{"delta": {"content": "Morning"}}]})
            self.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})

        def completion(self, body):
            prompt, tokens = body["prompt"], body["max_tokens"]
            size = len(prompt)
            kept = {"device": behaviour.device, "storage": behaviour.disk}
            found = {name: max(map(len, filter(prompt.startswith, kept[name].copy())), default=0) for name in kept}
            tier = "device" if found["device"] else "storage" if found["storage"] else None
            behaviour.device.add(prompt)
            if behaviour.storage:
                behaviour.disk.add(prompt)
            cached = min(size - 1, found[tier]) if tier else 0
            told = {"honest": cached, "zero": 0, "all": size, "none": None}[behaviour.report]
            # Words that repeat nothing: a text that falls apart is no answer.
            text = behaviour.text or " ".join(f"{number * 7919 % 99991:05d}" for number in range(tokens))
            if behaviour.echo_needle and "engraved on the harbour bell is " in prompt:
                text = " " + prompt.split("engraved on the harbour bell is ")[1].split(".")[0] + "."
            time.sleep(behaviour.start_seconds)
            made = 0
            want = tokens // 2 if behaviour.stop_early else tokens
            details = {} if told is None else {"prompt_tokens_details": {"cached_tokens": told}}
            while made < want:
                step = want if behaviour.one_piece else behaviour.first_batch if not made else 1
                made = min(want, made + step)
                piece = text if made == want else ""
                usage = {"prompt_tokens": size, "completion_tokens": made}
                self.event({"choices": [{"text": piece}], "usage": usage})
                time.sleep(behaviour.token_seconds)
            if behaviour.tiers and told is not None:
                split = {name: cached if tier == name else 0 for name in ("device", "host", "storage")}
                self.event({"choices": [], "sglext": {"cached_tokens_details": split}})
            self.event({"choices": [], "usage": {"prompt_tokens": size, "completion_tokens": made, **details}})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, value):
            self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
            self.wfile.flush()

        def json(self, code, value):
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
