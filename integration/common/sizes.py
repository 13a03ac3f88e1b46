"""Numbers of bytes as people write them."""

from __future__ import annotations

import math
import re

from sm120.integration.common.refusal import Refusal

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """'96GiB', '97887 MiB', '1.5e9': bytes. Raises Refusal `plan-size` for anything else, and for what is not > 0."""
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = match[2].upper() if match else ""
    try:
        value = float(match[1]) * UNITS[unit] if match else 0.0
    except (KeyError, ValueError):
        value = 0.0
    if match and not match[2] and 1 <= value < 1 << 20:
        raise Refusal("plan-size", f"{text!r} would be that many bytes", fix=f"{text.strip()}GiB, or a number of bytes")
    if not 1 <= value < math.inf:
        raise Refusal("plan-size", f"{text!r} is no size", fix="a number with GiB, GB, MiB or MB, such as 96GiB")
    return int(value)
