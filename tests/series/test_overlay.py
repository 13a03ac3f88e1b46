"""An overlay file goes where it may, once."""

from __future__ import annotations

import os

import pytest

from ..mini_checkout import (
    CHANGED,
    add_kernel,
)


@pytest.mark.parametrize(
    ("overlay", "code", "mention"),
    [
        ({"target": "../outside.cuh"}, "overlay-path", "'../outside.cuh' is not a plain path"),
        ({"target": "/etc/outside.cuh"}, "overlay-path", "'/etc/outside.cuh' is not a plain path"),
        ({"target": "alpha/core.py"}, "overlay-exists", "upstream already has alpha/core.py"),
        ({"target": "alpha/core.py/inside.cuh"}, "overlay-path", "goes through 'core.py'"),
        ({"source": "../../secret.txt"}, "overlay-path", "'../../secret.txt' is not a plain path"),
        ({"source": "missing.cuh"}, "overlay-missing", "'missing.cuh'"),
        ({"source": "link.cuh"}, "overlay-missing", "'link.cuh' is not a regular file"),
        ({"colour": "blue"}, "kernel-field", "colour"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_overlay_is_refused(built, refuses, overlay, code, mention):
    add_kernel(built, **overlay)
    os.symlink("/etc/hostname", built.checkout.kernels / "packing" / "link.cuh")
    built.patch("hook", {"alpha/core.py": CHANGED}, Kernels="packing")
    refuses(built, code, mention, "packing/kernel.toml")


def test_overlay_twice_on_one_target_is_refused(built, refuses):
    add_kernel(built, "packing")
    add_kernel(built, "packing_again")
    built.patch("hook", {"alpha/core.py": CHANGED}, Kernels="packing, packing_again")
    refuses(built, "overlay-twice", "placed by packing too")
