"""Hunks are applied where they say, without fuzz and without drift, all or none."""

from __future__ import annotations

import shutil

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import site_packages

from ..mini_checkout import (
    HOOK,
    PRISTINE,
    add_kernel,
    header,
    snapshot,
)


def test_a_users_attributes_do_not_change_a_line_end(mini, tmp_path):
    """Git reads them from their usual place even where it reads no configuration."""
    (tmp_path / "config" / "git").mkdir(parents=True)
    (tmp_path / "config" / "git" / "attributes").write_text("* text eol=crlf\n")
    mini.patch("hook", {"alpha/core.py": HOOK, "alpha/new.py": "new = 1\n"})
    assert mini.build(XDG_CONFIG_HOME=str(tmp_path / "config"), HOME=str(tmp_path)).returncode == 0
    installed = site_packages(mini.checkout.runtime)
    assert (installed / "alpha/core.py").read_bytes() == HOOK.encode()
    assert (installed / "alpha/new.py").read_bytes() == b"new = 1\n"
    refresh = mini.sm120("series", "refresh", "--check", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert refresh.returncode == 0, refresh.stdout + refresh.stderr


def test_apply_patches_a_users_tree_or_leaves_it_alone(built, tmp_path):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/tool.sh": None}, Kernels="packing")
    assert built.sm120("series", "refresh").returncode == 0
    assert built.build().returncode == 0
    mine = tmp_path / "mine"
    shutil.copytree(built.pristine, mine)
    (mine / "alpha/notes.txt").write_text("mine")
    assert built.sm120("series", "apply", "alpha", str(mine)).returncode == 0
    (mine / "alpha/notes.txt").unlink()
    recipe = load_recipe(built.checkout, "alpha")
    assert snapshot(mine) == snapshot(built.checkout.build / "trees" / recipe.name)

    patched = snapshot(mine)
    again = built.sm120("series", "apply", "alpha", str(mine))
    assert again.returncode == 2 and "[overlay-exists]" in again.stderr
    (mine / "alpha/data/packing.cuh").unlink()
    again = built.sm120("series", "apply", "alpha", str(mine))
    assert again.returncode == 2 and "[patch-conflict]" in again.stderr
    assert snapshot(mine) == {name: data for name, data in patched.items() if not name.endswith("packing.cuh")}


def test_hunk_that_needs_fuzz_is_refused(built, refuses):
    other = {**PRISTINE, "alpha/core.py": PRISTINE["alpha/core.py"].replace("line_18 = 18", "line_18 = 'moved'")}
    path = built.patch(
        "needs-fuzz", {"alpha/core.py": other["alpha/core.py"].replace("= 20\n", "= 2020\n")}, base=other
    )
    hunk = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("@@"))
    refuses(built, "patch-conflict", f"needs-fuzz.patch:{hunk}:", "alpha/core.py line 18", "no fuzz is allowed")


@pytest.fixture(params=["global", "environment"])
def lax(request, tmp_path) -> dict[str, str]:
    """A user's git that takes any white space for any other, by a file or by variables."""
    if request.param == "environment":
        key = {"GIT_CONFIG_KEY_0": "apply.ignoreWhitespace", "GIT_CONFIG_VALUE_0": "change"}
        return {"GIT_CONFIG_COUNT": "1", **key}
    (tmp_path / "gitconfig").write_text("[apply]\n\tignoreWhitespace = change\n\twhitespace = fix\n")
    return {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig")}


def test_other_white_space_is_refused_whatever_the_users_git_ignores(built, refuses, lax, tmp_path):
    spaced = PRISTINE["alpha/core.py"].replace("line_18 = 18", "line_18  =  18")
    changed = {"alpha/core.py": spaced.replace("= 20\n", "= 2020\n")}
    built.patch("spaced", changed, base={**PRISTINE, "alpha/core.py": spaced})
    refuses(built, "patch-conflict", "spaced.patch:", "alpha/core.py line 18", **lax)
    refresh = built.sm120("series", "refresh", **lax)
    assert refresh.returncode == 2 and "[patch-conflict]" in refresh.stderr, refresh.stdout
    mine = tmp_path / "mine"
    shutil.copytree(built.pristine, mine)
    applied = built.sm120("series", "apply", "alpha", str(mine), **lax)
    assert applied.returncode == 2 and "[patch-conflict]" in applied.stderr, applied.stdout


def test_creating_a_file_that_upstream_has_is_refused(built, refuses):
    base = {name: text for name, text in PRISTINE.items() if name != "alpha/tool.sh"}
    built.patch("takes-place", {"alpha/tool.sh": "other\n"}, base=base)
    refuses(built, "patch-exists", "alpha/tool.sh")


def test_changing_a_file_that_upstream_lacks_is_refused(built, refuses):
    base = {**PRISTINE, "alpha/gone.py": "x = 1\n"}
    built.patch("lost", {"alpha/gone.py": "x = 2\n"}, base=base)
    refuses(built, "patch-conflict", "alpha/gone.py, which the tree lacks")


def test_symlinks_are_refused(built, refuses):
    diff = (
        "diff --git a/alpha/link b/alpha/link\nnew file mode 120000\n"
        f"index {'0' * 40}..{'1' * 40}\n--- /dev/null\n+++ b/alpha/link\n"
        "@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n"
    )
    (built.folder / "links.patch").write_text(header("alpha", "links") + "---\n" + diff)
    with (built.folder / "series").open("a") as series:
        series.write("links.patch\n")
    refuses(built, "patch-path", "new file mode 120000: only regular files")
