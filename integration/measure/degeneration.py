"""Whether a generated text fell apart: runs, loops, too few characters, broken UTF-8, a script that nobody asked for.

A server whose kernels go wrong answers in time and with the right number of tokens. What such texts have in common shows
in the characters, whatever the model and the prompt; what is merely wrong does not show here.
"""

from __future__ import annotations

import math
import unicodedata
import zlib
from collections import Counter
from itertools import pairwise

# Below this many characters a text says too little: answers such as "4471." pass.
SHORT = 64
RUN = 32
LOOP_CHARACTERS, LOOP_TIMES = 160, 6
# Ten times smaller than itself: English is at 2 to 3, tables and code stay below 7.
SQUEEZED, SQUEEZED_FROM = 10.0, 1000
ENTROPY = 2.0
SCRIPT_SHARE, SCRIPT_LETTERS = 0.1, 20
REPLACEMENT = "\ufffd"


def degeneration(text: str, prompt: str = "") -> str | None:
    """Why `text` is no answer to anything, in a few words; None when nothing of it shows. A prompt may ask for a script."""
    if len(text) < SHORT:
        return None
    for found in (_broken(text), _run(text), _loop(text), _poor(text), _script(text, prompt)):
        if found:
            return found
    return None


def _broken(text: str) -> str | None:
    count = text.count(REPLACEMENT)
    # One may be a character that was cut off where the text ends.
    return f"{count} characters are no valid UTF-8" if count > max(2, len(text) // 200) else None


def _run(text: str) -> str | None:
    longest, current, which = 1, 1, ""
    for before, after in pairwise(text):
        current = current + 1 if after == before else 1
        if current > longest and not after.isspace() and after not in "-=_*#.│─":
            longest, which = current, after
    words = text.split()
    repeated = _longest_run(words)
    if longest >= RUN:
        return f"{longest} times {which!r} in a row"
    return f"{repeated[0]} times {repeated[1]!r} in a row" if repeated[0] >= RUN else None


def _longest_run(words: list[str]) -> tuple[int, str]:
    best, current = (1, words[0] if words else ""), 1
    for before, after in pairwise(words):
        current = current + 1 if after == before else 1
        best = max(best, (current, after)) if current > best[0] else best
    return best


def _loop(text: str) -> str | None:
    """A piece that fills the end of the text over and over, however long it is."""
    tail = text[-6000:][::-1]
    same = _same_prefix(tail)
    for period in range(1, len(tail) // LOOP_TIMES + 1):
        covered = same[period] + period
        if covered >= max(LOOP_CHARACTERS, LOOP_TIMES * period):
            piece = tail[:period][::-1]
            return f"the last {covered} characters repeat {piece[:40]!r}"
    return None


def _same_prefix(text: str) -> list[int]:
    """For each place the length of the longest piece from there that begins the text (the Z function)."""
    size, left, right = len(text), 0, 0
    same = [0] * size
    for place in range(1, size):
        length = min(right - place, same[place - left]) if place < right else 0
        while place + length < size and text[length] == text[place + length]:
            length += 1
        same[place] = length
        if place + length > right:
            left, right = place, place + length
    return same


def _poor(text: str) -> str | None:
    counts = Counter(text)
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    if entropy < ENTROPY:
        return f"{entropy:.1f} bits a character"
    if len(text) >= SQUEEZED_FROM:
        raw = text.encode(errors="replace")
        ratio = len(raw) / len(zlib.compress(raw, 9))
        if ratio > SQUEEZED:
            return f"repeats itself: {ratio:.0f} times smaller when compressed"
    return None


def _script(text: str, prompt: str) -> str | None:
    asked = set(_scripts(prompt))
    found = _scripts(text)
    letters = sum(found.values())
    for script, count in found.most_common():
        if script not in asked and script != "LATIN" and count >= max(SCRIPT_LETTERS, SCRIPT_SHARE * letters):
            return f"{count} of {letters} letters are {script}, which the prompt does not use"
    return None


def _scripts(text: str) -> Counter[str]:
    names = (unicodedata.name(character, "").split(" ")[0] for character in text if character.isalpha())
    # Greek letters stand in formulas, CJK has names of several words.
    return Counter(name for name in names if name and name != "GREEK")
