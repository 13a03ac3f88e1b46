"""Script for the runtime's Python: how many verify rounds a draft model needs for given tokens, by transformers alone.

    python acceptance_oracle.py REQUEST.json ANSWER.json

The request holds "draft" (a folder), "drafts" (tokens drafted a round) and "served" (pairs of prompt and generated
tokens). The answer holds the rounds of each pair. The draft of an EAGLE-style worker sees the tokens shifted by one:
its context is everything but the first token.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main(request_file: Path, answer_file: Path) -> None:
    request = json.loads(request_file.read_text())
    model = AutoModelForCausalLM.from_pretrained(request["draft"], dtype=torch.float32).eval()
    with torch.no_grad():
        counts = [rounds(model, prompt, tokens, request["drafts"]) for prompt, tokens in request["served"]]
    answer_file.write_text(json.dumps(counts))


def rounds(model: torch.nn.Module, prompt: list[int], tokens: list[int], drafts: int) -> int:
    done, count = 1, 0  # the prefill says the first token
    while done < len(tokens):
        context = [*prompt, *tokens[:done]][1:]
        accepted = 0
        while accepted < drafts and done + accepted < len(tokens):
            said = int(model(torch.tensor([context])).logits[0, -1].argmax())
            if said != tokens[done + accepted]:
                break
            context.append(said)
            accepted += 1
        done += accepted + 1
        count += 1
    return count


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
