"""Probe of tool-call-deltas: a stream of qwen3_coder tool calls is well formed in whatever deltas it comes."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, Tool
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

TOOLS = [
    Tool(
        type="function",
        function={
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}},
        },
    )
    for name, properties in {
        "grep": {"pattern": "string", "n": "integer", "options": "object", "exact": "boolean"},
        "now": {},
    }.items()
]


def call(name, **parameters):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


SHORT = call("grep", pattern="*.md")
NESTED = call("grep", pattern='a<b && "q" {x}', n="3", options='{"a": [1, {"b": "</para"}], "ü": "é😀"}', exact="True")
GREP = ("grep", {"pattern": "*.md"})
NESTED_CALL = (
    "grep",
    {"pattern": 'a<b && "q" {x}', "n": 3, "options": {"a": [1, {"b": "</para"}], "ü": "é😀"}, "exact": True},
)
NOW = ("now", {})

# Output of a model → the message that it means: content, calls.
MESSAGES = {
    "one call": (SHORT, "", [GREP]),
    "two calls": (f"{SHORT}\n{NESTED}", "", [GREP, NESTED_CALL]),
    "three calls on one line": (SHORT + NESTED + call("now"), "", [GREP, NESTED_CALL, NOW]),
    "text before": (f"I look < there.\n\n{SHORT}", "I look < there.\n\n", [GREP]),
    "text between": (f"{SHORT}\nThen:\n{NESTED}", "\nThen:\n", [GREP, NESTED_CALL]),
    "text after": (f"{SHORT}\nDone <3 <tool", "\nDone <3 <tool", [GREP]),
    "text everywhere": (f"日本 <\n{SHORT} mid {call('now')}\n😀", "日本 <\n mid \n😀", [GREP, NOW]),
    "whitespace around": (f"\n{SHORT}\n\n", "\n", [GREP]),
    "no text, no call": ("", "", []),
    "only text": ("a < b </tool_ <function", "a < b </tool_ <function", []),
    "without the block": (SHORT.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>") + " ok", " ok", [GREP]),
    "two without the block": (
        "\n".join(part.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>") for part in (SHORT, call("now"))),
        "",
        [GREP, NOW],
    ),
    "function not closed": (SHORT.replace("</function>\n", ""), "", [GREP]),
    "parameters not closed": (NESTED.replace("</parameter>\n", ""), "", [NESTED_CALL]),
    "cut in a value": (SHORT[: SHORT.index("d\n</parameter>")], "", [("grep", {"pattern": "*.m"})]),
    "cut in a parameter's tag": (SHORT[: SHORT.index("tern>")], "", [("grep", {})]),
    "cut after a parameter": (SHORT[: SHORT.index("\n</function>")], "", [GREP]),
    "cut in the second call": (f"{SHORT}\n{NESTED[:60]}", "", [GREP, ("grep", {"pattern": 'a<b && "q" {'})]),
    "cut in the name": (SHORT[:20], "", []),
    "cut in the block's tag": ("hm <tool_c", "hm <tool_c", []),
    "junk in a block": ("<tool_call>\njunk\n</tool_call> hi", " hi", []),
}


def stream(text, cuts):
    """The chat API's chunks for `text` in deltas that end at `cuts`, by the served code, as its client reads them."""
    chat = OpenAIServingChat.__new__(OpenAIServingChat)
    chat.tool_call_parser = "qwen3_coder"
    chat.tokenizer_manager = SimpleNamespace(tokenizer=None)
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "?"}], tools=[tool.model_dump() for tool in TOOLS]
    )
    parsers, seen, deltas = {}, {}, []

    async def run():
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            chunks = chat._process_tool_call_stream(
                0,
                text[start:end],
                parsers,
                {"meta_info": {"id": "i"}},
                request,
                seen,
                created=0,
                flush=end == len(text),
            )
            async for chunk in chunks:
                deltas.append(json.loads(chunk.removeprefix("data: "))["choices"][0]["delta"])

    asyncio.run(run())
    return deltas


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def read(deltas):
    """The message, as a client that ends a call at content or at the next call puts it together.

    Raises:
        AssertionError: a call's arguments are not whole when it ends, or arguments come for no open call.
    """
    content, calls, open_call = "", [], None
    for delta in deltas:
        if delta.get("content"):
            content += delta["content"]
            assert open_call is None or is_json(calls[open_call][1]), (
                f"content {delta['content']!r} inside {calls[open_call]}"
            )
            open_call = None
        for part in delta.get("tool_calls") or ():
            function = part["function"]
            if function.get("name"):
                assert open_call is None or is_json(calls[open_call][1]), f"a call inside {calls[open_call]}"
                open_call = part["index"]
                assert open_call == len(calls) and part["id"]
                calls.append([function["name"], function.get("arguments") or ""])
            else:
                assert part["index"] == open_call, f"{function} of call {part['index']}, open is {open_call}"
                calls[open_call][1] += function["arguments"]
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


def every_size(text):
    return [list(range(size, len(text), size)) for size in range(1, max(len(text), 2))]


def random_sizes(text, seed, count):
    rng = random.Random(seed)
    top = max(len(text) - 1, 0)
    return [sorted(rng.sample(range(1, top + 1), rng.randint(0, min(top, 9)))) for _ in range(count)]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_does_not_depend_on_the_deltas(name):
    text, content, calls = MESSAGES[name]
    cuts = every_size(text) + random_sizes(text, name, 500)
    for each in cuts:
        try:
            assert read(stream(text, each)) == (content, calls)
        except AssertionError as error:
            raise AssertionError(f"cut at {each}: {error}") from error


def test_a_block_that_spans_two_calls_ends_the_first_before_anything_else():
    text = f"{SHORT}\n{NESTED}"
    first, second = text.index("</parameter>") + 12, text.index("<function", 30)
    deltas = stream(text, [first, second])
    assert [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[:4]] == [
        "",
        "{",
        '"pattern": "*.md"',
        "}",
    ]
    assert not any(delta.get("content") for delta in deltas)
