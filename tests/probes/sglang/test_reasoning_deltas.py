"""Probe of reasoning-deltas: reasoning is told from content alike in whatever deltas a stream comes."""

import random

import pytest
from sglang.srt.parser.reasoning_parser import ReasoningParser

CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"

# Output of a model, whether its template opened <think> → reasoning, content.
STREAMS = {
    "whole": ("<think>\na < b\n</think>\n\nhi", False, ("\na < b\n", "\n\nhi")),
    "opened by the template": ("a </thin\n</think>\n\nhi", True, ("a </thin\n", "\n\nhi")),
    "no reasoning": ("a < b <thin", False, ("", "a < b <thin")),
    "content first": ("hi <think>no</think> yes", False, ("no", "hi  yes")),
    "cut": ("<think>\nab </thi", False, ("\nab </thi", "")),
    "call instead of an end": (f"<think>ab\n{CALL}", False, ("ab\n", CALL)),
    "call before the end": (f"<think>ab {CALL}c</think>d", False, ("ab ", f"{CALL}c</think>d")),
    "call before the end, opened": (f"ab {CALL}c</think>d", True, ("ab ", f"{CALL}c</think>d")),
    "call after the end": (f"<think>ab</think>\n{CALL}", False, ("ab", f"\n{CALL}")),
    "twice": ("<think>a</think>b<think>c</think>d", False, ("a", "b<think>c</think>d")),
}


def parse(text, cuts, opened, stream_reasoning):
    parser = ReasoningParser("qwen3", stream_reasoning, opened)
    reasoning = content = ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts = [parser.parse_stream_chunk(text[start:end])]
        if end == len(text):
            parts.append(parser.parse_stream_end())
        for thought, said in parts:
            reasoning += thought or ""
            content += said or ""
    return reasoning, content


@pytest.mark.parametrize("stream_reasoning", [True, False], ids=["streamed", "at_once"])
@pytest.mark.parametrize("name", STREAMS)
def test_the_parts_do_not_depend_on_the_deltas(name, stream_reasoning):
    text, opened, parts = STREAMS[name]
    rng = random.Random(name)
    cuts = [list(range(size, len(text), size)) for size in range(1, len(text) + 1)]
    cuts += [sorted(rng.sample(range(1, len(text)), rng.randint(1, 8))) for _ in range(100)]
    for each in cuts:
        assert parse(text, each, opened, stream_reasoning) == parts, f"cut at {each}"
