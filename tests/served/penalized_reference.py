"""Script for the runtime's Python: is every served token the greedy choice after penalties, by transformers alone?

    python penalized_reference.py REQUEST.json ANSWER.json

The request holds "model" (a folder), "eos", and "served": of each request its prompt, sampling parameters, tokens and
their log-probabilities. The answer holds, for each, the largest distance of the token from the best choice and the
largest error of its log-probability. Counting is over the output, as the serving API defines it: additive penalties,
then the repetition penalty by sign, then biases.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main(request_file: Path, answer_file: Path) -> None:
    request = json.loads(request_file.read_text())
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32).eval()
    with torch.no_grad():
        answers = [distances(model, request["eos"], **one) for one in request["served"]]
    answer_file.write_text(json.dumps(answers))


def distances(model, eos: int, prompt: list[int], sampling: dict, tokens: list[int], logprobs: list[float]) -> dict:
    rows = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :].double()
    choice = error = 0.0
    for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        row = penalized(rows[i].clone(), tokens[:i], eos, sampling).log_softmax(-1)
        choice = max(choice, float(row.max() - row[token]))
        error = max(error, abs(float(row[token]) - logprob))
    return {"choice": choice, "logprob": error}


def penalized(row: torch.Tensor, output: list[int], eos: int, sampling: dict) -> torch.Tensor:
    for token in set(output):
        row[token] -= sampling.get("frequency_penalty", 0) * output.count(token) + sampling.get("presence_penalty", 0)
    if len(output) < sampling.get("min_new_tokens", 0):
        row[eos] = -torch.inf
    for token in set(output):
        repetition = sampling.get("repetition_penalty", 1)
        row[token] = row[token] * repetition if row[token] < 0 else row[token] / repetition
    for token, bias in sampling.get("logit_bias", {}).items():
        row[int(token)] += bias
    return row


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
