"""Script for the runtime's Python: what transformers says about prompts, and about the tokens that a server gave.

    python transformers_tokens.py REQUEST.json ANSWER.json

The request holds "model" (a folder), "new_tokens", "prompts" (lists of token ids) and "served" (pairs of a prompt's
index and the tokens to judge). The answer holds the greedy continuation of every prompt, and for each served pair the
log- probability by which each of its tokens falls short of the best one, given the prompt and the served tokens before
it (teacher forcing): 0.0 is the argmax. Everything is computed in float32, whatever the weights' dtype.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def main(request_file: Path, answer_file: Path) -> None:
    request = json.loads(request_file.read_text())
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32).eval()
    prompts = request["prompts"]
    with torch.no_grad():
        answer = {
            "greedy": [greedy(model, prompt, request["new_tokens"]) for prompt in prompts],
            "shortfall": [shortfall(model, prompts[index], tokens) for index, tokens in request["served"]],
        }
    answer_file.write_text(json.dumps(answer))


def greedy(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def shortfall(model: Any, prompt: list[int], tokens: list[int]) -> list[float]:
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]  # [T, V]
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return (logprobs.max(dim=1).values - chosen).tolist()


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
