"""Texts that are made to be sent share no beginning."""

from __future__ import annotations

import pytest

from sm120.integration.measure.texts import needle_text, text


def test_texts_share_no_beginning():
    texts = [text(str(seed), 200) for seed in range(50)]
    assert len({one[:24] for one in texts}) == 50 and text("1", 200) == texts[1]
    for depth in (0.0, 0.5, 1.0):
        prompt, number = needle_text("s", 1000, depth)
        assert prompt.count(number) == 1
        assert abs(prompt.index(number) / len(prompt) - depth) < 0.2
    with pytest.raises(ValueError, match="depth is 1.5"):
        needle_text("s", 100, 1.5)
