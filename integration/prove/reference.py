"""The independent judge: transformers on the same weights, in a process of its own."""

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.build.installed_runtime import Runtime

_SCRIPT = Path(__file__).with_name("transformers_tokens.py")

# Log-probability by which a served token may fall short of the reference's best one and still count as a tie.
# float32 against float32 differs by rounding only; float16 activations move a logit by a few hundredths.
TIE = {"float32": 1e-3, "float16": 5e-2}


@dataclass(frozen=True)
class Verdict:
    """How served tokens stand against the reference: equal, equal but for ties, or different from some position on."""

    equal: bool
    ties: int
    first_difference: int | None

    def __str__(self) -> str:
        if not self.equal:
            return f"NO, from token {self.first_difference}"
        return "yes" if not self.ties else f"yes ({self.ties} tie{'s' if self.ties > 1 else ''})"


def judge(tokens: Sequence[int], shortfall: Sequence[float], *, wanted: int, tolerance: float) -> Verdict:
    """Judge served tokens by their teacher-forced shortfall (see transformers_tokens.py).

    A token within `tolerance` of the best one is a tie; after one, the rest is judged given the served choice. Too few
    or too many tokens are a difference at the first missing or surplus one; NaN is a difference.
    """
    ties = 0
    for position, value in enumerate(shortfall[:wanted]):
        if math.isnan(value) or value > tolerance:
            return Verdict(False, ties, position)
        ties += value > 0
    if len(tokens) != wanted:
        return Verdict(False, ties, min(len(tokens), wanted))
    return Verdict(True, ties, None)


def verdicts(
    runtime: Runtime,
    model: Path,
    prompts: Sequence[Sequence[int]],
    served: Sequence[tuple[int, Sequence[int]]],
    *,
    new_tokens: int,
    tolerance: float,
) -> tuple[list[Verdict], list[list[int]]]:
    """Judge each pair (index of the prompt, served tokens); return the verdicts and the reference's continuations."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(
            json.dumps(
                {
                    "model": str(model),
                    "new_tokens": new_tokens,
                    "prompts": [list(prompt) for prompt in prompts],
                    "served": [(index, list(tokens)) for index, tokens in served],
                }
            )
        )
        runtime.run_script(_SCRIPT, str(request), str(answer))
        told = json.loads(answer.read_text())
    judged = [
        judge(tokens, shortfall, wanted=new_tokens, tolerance=tolerance)
        for (_, tokens), shortfall in zip(served, told["shortfall"], strict=True)
    ]
    return judged, told["greedy"]
