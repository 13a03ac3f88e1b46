"""Every `kernel.toml` checked, whether or not a patch names its kernel; what does nothing is said."""

from __future__ import annotations

from pathlib import Path

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.overlay import load_manifest, load_overlay
from sm120.integration.series.series import Series


def kernel_folders(kernels: Path) -> list[Path]:
    """The folders of `kernels` that hold a kernel: `_lib`, `_kit` and `_template` do not."""
    return sorted(path for path in kernels.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))


def lint_kernels(kernels: Path, series: list[Series]) -> list[str]:
    """Check every kernel's manifest, the files that it places, and that it lists the patches that name it.

    Returns warnings: a kernel that no patch names, an overlay for a project none of whose patches does.

    Raises:
        Refusal: from `load_manifest` and `load_overlay`, and `kernel-project`, `kernel-patches`.
    """
    warnings = []
    projects = {one.project: one for one in series}
    for folder in kernel_folders(kernels):
        manifest, path = load_manifest(folder), folder / "kernel.toml"
        placed = dict.fromkeys(entry.project for entry in manifest.overlay)
        for project in [*placed, *manifest.patches]:
            if project not in projects:
                known = ", ".join(sorted(projects))
                raise Refusal("kernel-project", f"project {project!r} is none of {known}", path=path)
            load_overlay(kernels, [folder.name], project)
        naming = {
            name: [patch.slug for patch in one.patches if folder.name in patch.kernels]
            for name, one in projects.items()
        }
        for project, slugs in naming.items():
            listed = manifest.patches.get(project, [])
            if sorted(listed) != sorted(slugs):
                raise Refusal(
                    "kernel-patches",
                    f"lists {_list(listed)} of {project}, but `Kernels:` of {_list(slugs)} names it",
                    path=path,
                    fix="let [patches] and the patches' headers say the same",
                )
        if not any(naming.values()):
            warnings.append(f"{folder.name}: no patch names it, so nothing of it ships")
        else:
            unused = [project for project in placed if not naming[project]]
            warnings += [f"{folder.name}: no {project} patch names it, so its overlay is unused" for project in unused]
    return warnings


def _list(slugs: list[str]) -> str:
    return ", ".join(sorted(slugs)) or "no patch"
