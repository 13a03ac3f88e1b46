"""Every mistake in a kernel.toml is refused by name, also where no patch names the kernel; what does nothing is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.kernel_lint import kernel_folders, lint_kernels
from sm120.integration.series.series import load_series

CHECKOUT = find_checkout(Path(__file__).parent)
HEAD = 'name = "scale"\nsummary = "s"\ncapabilities = [[12, 0]]\n'
OVERLAY = '[[overlay]]\nproject = "sglang"\nsource = "scale.py"\ntarget = "sglang/scale.py"\n'
BUDGET = '[[budget]]\nkernel = "k"\nthreads = 1\nregisters = 1\nspill_bytes = 0\nshared_bytes = 0\n'


def one_series(project: str = "sglang", **kernels_of: list[str]):
    patches = [SimpleNamespace(slug=slug, kernels=names) for slug, names in kernels_of.items()]
    return SimpleNamespace(project=project, patches=patches)


def kernels(folder: Path, toml: str) -> Path:
    for name in ("scale", "_lib", "__pycache__"):
        (folder / name).mkdir()
    (folder / "scale" / "kernel.toml").write_text(toml)
    (folder / "scale" / "scale.py").write_text("")
    (folder / "scale" / "link.py").symlink_to("scale.py")
    (folder / "evil.py").write_text("")
    return folder


WRONG = {
    "unknown_field": (HEAD + 'owner = "me"\n', "kernel-field", "owner: Extra inputs are not permitted"),
    "misspelled_overlay": (HEAD + OVERLAY.replace("overlay", "overlays"), "kernel-field", "overlays: Extra inputs"),
    "field_of_an_overlay": (HEAD + OVERLAY + 'mode = "copy"\n', "kernel-field", "overlay.0.mode: Extra inputs"),
    "field_of_a_budget": (HEAD + BUDGET + "speed = 3\n", "kernel-field", "budget.0.speed: Extra inputs"),
    "budget_without_registers": (HEAD + BUDGET.replace("registers = 1\n", ""), "kernel-field", "budget.0.registers"),
    "another_name": (HEAD.replace("scale", "scales"), "kernel-field", "name is 'scales' in the folder 'scale'"),
    "no_toml": (HEAD + "[[", "kernel-syntax", ""),
    "missing_source": (
        HEAD + OVERLAY.replace("scale.py", "other.py", 1),
        "overlay-missing",
        "'other.py' is not a regular",
    ),
    "linked_source": (
        HEAD + OVERLAY.replace("scale.py", "link.py", 1),
        "overlay-missing",
        "'link.py' is not a regular",
    ),
    "escaping_source": (
        HEAD + OVERLAY.replace("scale.py", "../evil.py", 1),
        "overlay-path",
        "'../evil.py' is not a plain",
    ),
    "escaping_target": (HEAD + OVERLAY.replace("sglang/scale.py", "../evil.py"), "overlay-path", "target '../evil.py'"),
    "target_twice": (HEAD + OVERLAY + OVERLAY, "overlay-twice", "sglang/scale.py is placed by scale too"),
    "unknown_project": (
        HEAD + OVERLAY.replace('"sglang"', '"vllm"'),
        "kernel-project",
        "'vllm' is none of nixl, sglang",
    ),
    "patches_that_do_not_name_it": (
        HEAD + '[patches]\nsglang = ["fast"]\n',
        "kernel-patches",
        "lists fast of sglang, but",
    ),
}


@pytest.mark.parametrize(("toml", "code", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_refused(toml: str, code: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal) as refused:
        lint_kernels(kernels(tmp_path, toml), [one_series(), one_series("nixl")])
    assert refused.value.code == code and says in str(refused.value) and "scale/kernel.toml" in str(refused.value)


def test_a_patch_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="lists no patch of sglang, but `Kernels:` of fast names it"):
        lint_kernels(kernels(tmp_path, HEAD + OVERLAY), [one_series(fast=["scale"])])


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scale").mkdir()
    with pytest.raises(Refusal, match="no such kernel"):
        lint_kernels(tmp_path, [one_series()])


def test_what_does_nothing_is_said(tmp_path: Path) -> None:
    folder = kernels(tmp_path, HEAD + OVERLAY)
    assert lint_kernels(folder, [one_series()]) == ["scale: no patch names it, so nothing of it ships"]
    (folder / "scale" / "kernel.toml").write_text(HEAD + OVERLAY + '[patches]\nnixl = ["drain"]\n')
    said = lint_kernels(folder, [one_series(), one_series("nixl", drain=["scale"])])
    assert said == ["scale: no sglang patch names it, so its overlay is unused"]


def test_the_kernels_of_this_checkout_are_clean() -> None:
    series = [load_series(CHECKOUT.patches / project) for project in CHECKOUT.projects()]
    assert lint_kernels(CHECKOUT.kernels, series) == []
    assert {"mrope", "qsa"} <= {folder.name for folder in kernel_folders(CHECKOUT.kernels)}
