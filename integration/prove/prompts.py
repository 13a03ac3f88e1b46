"""Prompts as token ids: bytes drawn from a seed, so that no two prompts share a prefix."""

import random


def prompt(number: int, tokens: int) -> list[int]:
    """Prompt `number`, `tokens` long; the same on every machine."""
    return random.Random(f"prompt {number}").choices(range(256), k=tokens)
