"""Refresh follows lines that moved, and nothing else."""

from __future__ import annotations

from ..mini_checkout import (
    PRISTINE,
    add_fuzzy_patch,
)


def test_drifted_hunk_is_refused_until_refreshed(built, refuses):
    shifted = {**PRISTINE, "alpha/core.py": PRISTINE["alpha/core.py"].replace("line_2 = 2\n", "")}
    path = built.patch(
        "drifted", {"alpha/core.py": shifted["alpha/core.py"].replace("= 20\n", "= 2020\n")}, base=shifted
    )
    refuses(built, "patch-drift", "drifted.patch:", "matches at line 18, not 17", "sm120 series refresh alpha")
    assert built.sm120("series", "refresh", "--check").returncode == 1
    assert built.sm120("series", "refresh").stdout == "rewritten: drifted\n"
    assert "@@ -18,7 +18,7 @@" in path.read_text()
    assert built.build().returncode == 0


def test_refresh_refuses_fuzz_and_writes_nothing(built):
    add_fuzzy_patch(built)
    before = {path: path.read_bytes() for path in built.folder.iterdir()}
    result = built.sm120("series", "refresh")
    assert result.returncode == 2 and "[patch-conflict]" in result.stderr
    assert {path: path.read_bytes() for path in built.folder.iterdir()} == before
