"""Cut model outputs into deltas of every size, and at random, and count the streams that a client misreads.

    PYTHONPATH=TREE:integration/prove/cpu_layer SGLANG_USE_CPU_ENGINE=0 python tests/trees/differential/streams.py [RANDOM]

TREE is an unpacked sglang, pristine or patched; RANDOM how many random cuttings each output gets beside those into equal
deltas (500). The outputs and what they mean are those of the probes of tool-call-deltas and reasoning-deltas, and both
together: reasoning, then calls. Exit 1 when one is misread: another message, a call whose arguments end early, or content
inside a call.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "probes" / "sglang"))


def main(count: int) -> int:
    import test_reasoning_deltas as reasoning
    import test_tool_call_deltas as calls
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    def both(text: str, cuts: list[int]) -> tuple[str, object]:
        """The reasoning, and the message: what the one parser leaves is the other one's text, delta by delta."""
        parser = ReasoningParser("qwen3", True, False)
        thought, said, ends = "", "", []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            parts = [parser.parse_stream_chunk(text[start:end])]
            if end == len(text):
                parts.append(parser.parse_stream_end())
            for thinks, says in parts:
                thought += thinks or ""
                said += says or ""
                ends.append(len(said))
        return thought, calls.read(calls.stream(said, sorted({e for e in ends if 0 < e < len(said)})))

    subjects: dict[str, list[tuple[str, Callable[[list[int]], object], object]]] = {
        "tool calls": [
            (text, lambda cuts, text=text: calls.read(calls.stream(text, cuts)), (content, found))
            for text, content, found in calls.MESSAGES.values()
        ],
        "reasoning": [
            (text, lambda cuts, a=(text, opened, at_once): reasoning.parse(a[0], cuts, a[1], not a[2]), parts)
            for text, opened, parts in reasoning.STREAMS.values()
            for at_once in (False, True)
        ],
        "reasoning, then calls": [
            (
                whole := f"<think>\nWhich? a < b\n</think>{text}",
                lambda cuts, text=whole: both(text, cuts),
                ("\nWhich? a < b\n", (content, found)),
            )
            for text, content, found in calls.MESSAGES.values()
        ],
    }
    streams = wrong = 0
    for name, outputs in subjects.items():
        ran = misread = 0
        for text, meaning, want in outputs:
            for cuts in cuttings(text, count):
                ran += 1
                try:
                    misread += meaning(cuts) != want
                except (AssertionError, ValueError):
                    misread += 1
        print(f"{name}: {len(outputs)} outputs, {ran} streams, {misread} malformed", flush=True)
        streams, wrong = streams + ran, wrong + misread
    print(f"{streams} streams, {wrong} malformed")
    return int(wrong > 0)


def cuttings(text: str, count: int) -> list[list[int]]:
    """Where deltas end: of each size from one character to everything, and `count` at random places."""
    rng = random.Random(text)
    inside = range(1, len(text))
    equal = [list(range(size, len(text), size)) for size in range(1, max(len(text), 1) + 1)]
    return equal + [sorted(rng.sample(inside, rng.randint(0, min(len(inside), 9)))) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
