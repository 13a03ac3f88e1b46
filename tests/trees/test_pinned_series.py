"""Each real series is canonical, complete, and means the same to quilt."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120.integration.series.canonical import canonical_patches
from sm120.integration.series.commit_message import header_of, message_of
from sm120.integration.series.overlay import load_manifest
from sm120.integration.series.quilt import export_quilt
from sm120.integration.upstream.patch_table import project_readme, replace_table


def test_every_patch_is_in_canonical_form(recipe, pristine):
    for patch, text in canonical_patches(recipe.series, pristine, recipe.overlay):
        assert patch.path.read_bytes() == text.encode(errors="surrogateescape"), f"sm120 series refresh: {patch.slug}"


def test_every_header_is_a_commit_message_that_git_shows_whole(recipe):
    for patch in recipe.series.patches:
        message = message_of(patch)
        subject, blank, *_ = message.splitlines()
        assert len(subject) < 72 and not blank, f"{patch.slug}: {subject}"
        assert header_of(message, patch.project) == (patch.slug, patch.header)


def test_no_patch_or_overlay_file_mentions_this_project(recipe):
    """A reviewer upstream must not meet our names; an exported patch stands alone."""
    for patch in recipe.series.patches:
        added = [line for line in patch.diff.splitlines() if line.startswith("+")]
        assert not [line for line in added if "sm120_runtime" in line or "sm120-runtime" in line or "sm120." in line]
    for file in recipe.overlay:
        text = file.source.read_text()
        assert "sm120-runtime" not in text and "import sm120" not in text and "from sm120" not in text, file.source


def test_no_patch_gates_on_a_capability_range(recipe):
    """`>= (10, 0)` has taken SM120 for SM100 in several engines: patches name exact capabilities."""
    for patch in recipe.series.patches:
        for line in patch.diff.splitlines():
            if line.startswith("+") and "capability" in line.lower():
                assert ">=" not in line, f"{patch.slug}: {line}"


@pytest.mark.skipif(shutil.which("quilt") is None, reason="needs Debian's quilt")
def test_real_quilt_gives_the_same_tree(recipe, pristine, patched, tmp_path):
    """Debian's quilt on the pristine release, fuzz 0, gives our patched tree byte for byte."""
    touched = {target for patch in recipe.series.patches for target in patch.touched}
    theirs = tmp_path / "quilt"
    for target in touched:  # quilt only reads what the series touches; the rest of the tree is compared below
        if (pristine / target).is_file():
            (theirs / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pristine / target, theirs / target)
    theirs.mkdir(exist_ok=True)
    export_quilt(recipe.series, recipe.overlay, theirs / "patches")
    environment = os.environ | {"QUILT_PATCHES": "patches", "QUILTRC": "-"}
    result = subprocess.run(
        ["quilt", "push", "-a", "--fuzz=0"], cwd=theirs, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "offset" not in result.stdout
    shutil.rmtree(theirs / "patches")
    shutil.rmtree(theirs / ".pc", ignore_errors=True)
    expected = digests(pristine) | digests(theirs)
    for target in touched:
        if not (theirs / target).exists():
            expected.pop(target)
    assert digests(patched) == expected


def digests(tree: Path) -> dict[str, str]:
    found = {}
    for path in tree.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            found[str(path.relative_to(tree))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_kernels_and_patches_name_each_other(recipe, checkout):
    """`Kernels:` in a header and `[patches]` in a kernel.toml say the same thing from two sides."""
    project = recipe.series.project
    headers = {(name, patch.slug) for patch in recipe.series.patches for name in patch.kernels}
    manifests = [load_manifest(path.parent) for path in checkout.kernels.glob("*/kernel.toml")]
    assert {(kernel.name, slug) for kernel in manifests for slug in kernel.patches.get(project, [])} == headers


def test_the_readme_shows_the_patches_there_are(checkout):
    readme = checkout.root / "README.md"
    assert readme.read_text() == replace_table(readme.read_text(), checkout), "run: sm120 readme"
    for project in checkout.projects():
        generated = project_readme(checkout, project)
        assert (checkout.patches / project / "README.md").read_text() == generated, "run: sm120 readme"
