"""Run the probes of a project on its pristine and on its patched tree: red there, green here."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.build.runtime import link_test_layer, site_packages
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.patch_file import Patch


@dataclass(frozen=True)
class ProbeResult:
    """Counts of one probe file on one tree, and the first line of each failure."""

    passed: int
    failed: int
    errors: int
    skipped: int
    failures: tuple[str, ...]

    @property
    def red(self) -> bool:
        """Failed for the right reason: a test failed, and none broke while it was set up or collected."""
        return self.failed > 0 and self.errors == 0

    @property
    def green(self) -> bool:
        return self.passed > 0 and not (self.failed or self.errors or self.skipped)


def run_probes(checkout: Checkout, patches: list[Patch], tree: Path, *, timeout: float = 900) -> dict[str, ProbeResult]:
    """Run the probes of `patches` with `tree` first on the import path.

    The interpreter is the one that runs us; behind `tree` come the runtime's patched wheels (a probe of one project may
    use another) and the proof layer. Returns results by slug.

    Raises:
        Refusal: `probe-missing`, `probe-crashed` when pytest itself gave no report.
    """
    files = {patch.slug: checkout.root / patch.fields["Probe"] for patch in patches}
    return run_files(checkout, files, tree, timeout=timeout)


def run_files(
    checkout: Checkout,
    files: dict[str, Path],
    tree: Path,
    *,
    timeout: float = 900,
    say_skipped: Callable[[str], None] | None = None,
) -> dict[str, ProbeResult]:
    """Run these probe files as `run_probes` does; results by the names that `files` gives them.

    `say_skipped` is told each test that was skipped, and why.
    """
    for name, file in files.items():
        if not file.is_file():
            raise Refusal("probe-missing", f"{name} has no probe", path=file)
    environment = tree_environment(checkout, tree)
    with tempfile.TemporaryDirectory(prefix="sm120-probe-") as name:
        report = Path(name) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # One file that cannot be imported on this tree must not keep the others from running.
        command += ["--continue-on-collection-errors", "-o", "junit_family=xunit1"]
        command += [str(file) for file in files.values()]
        try:
            result = subprocess.run(
                command, cwd=checkout.root, env=environment, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise Refusal("probe-crashed", f"the probes did not end within {timeout:.0f} s", path=tree) from None
        if not report.is_file():
            said = (result.stdout + result.stderr)[-2000:]
            absent = "No module named pytest" in said
            fix = "make build/dev/.installed brings it" if absent else None
            raise Refusal("probe-crashed", f"pytest gave no report: {said}", path=tree, fix=fix)
        for case in ElementTree.parse(report).iter("testcase"):
            if say_skipped and (outcome := case.find("skipped")) is not None:
                say_skipped(f"{case.get('name')}: {outcome.get('message')}")
        return read_report(report, files, checkout.root)


def read_report(report: Path, files: dict[str, Path], root: Path) -> dict[str, ProbeResult]:
    """What pytest's JUnit `report` (family xunit1) says of each of `files`, which lie below `root`, by their names."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    return {name: _count(file, cases, root) for name, file in files.items()}


def tree_environment(checkout: Checkout, tree: Path) -> dict[str, str]:
    """The environment in which `sys.executable -m pytest` imports upstream packages from `tree` first.

    Behind `tree` come the runtime's patched wheels and the proof layer; torch comes from the runtime's dependency
    layer, which is linked into the tool's environment here. What makes pytest report otherwise on CI is left out: it
    would spell out how two long lists differ, which takes minutes where a probe is red on purpose.
    """
    layer = link_test_layer(checkout)
    return dict(
        {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")},
        PYTHONPATH=os.pathsep.join(map(str, [tree, site_packages(checkout.runtime), checkout.proof])),
        # SGLang compiles some C++ when it is first asked for, with ninja, which the layer has.
        PATH=os.pathsep.join([os.environ.get("PATH", os.defpath), str(layer / "bin")]),
        PYTHONPYCACHEPREFIX=str(checkout.build / "pycache"),  # fast the second time, and the trees stay as they are
        SGLANG_USE_CPU_ENGINE="0",
        TRITON_INTERPRET="1",
        CUDA_VISIBLE_DEVICES="",  # a probe says the same on a machine with a card
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="2",
        OPENBLAS_NUM_THREADS="1",
    )


def probe_modules(checkout: Checkout, patch: Patch) -> list[Path]:
    """The probe's file, then the modules beside it that it imports, and those that they import."""
    path = checkout.root / patch.fields["Probe"]
    found, todo = [path], [path]
    while todo:
        for name in _imported(todo.pop().read_text()):
            beside = path.parent / f"{name}.py"
            if beside.is_file() and beside not in found:
                found.append(beside)
                todo.append(beside)
    return found


def _imported(text: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return names


def _count(file: Path, cases: list[ElementTree.Element], root: Path) -> ProbeResult:
    relative = str(file.relative_to(root))
    counts = {"failure": 0, "error": 0, "skipped": 0, "passed": 0}
    failures = []
    for case in cases:
        if not _is_of(case, relative):
            continue
        outcome = next((child for child in case if child.tag in counts), None)
        counts[outcome.tag if outcome is not None else "passed"] += 1
        if outcome is not None and outcome.tag != "skipped":
            failures.append(f"{case.get('name')}: {_reason(outcome)}")
    return ProbeResult(counts["passed"], counts["failure"], counts["error"], counts["skipped"], tuple(failures))


def _is_of(case: ElementTree.Element, relative: str) -> bool:
    """Whether `case` is a test of the file `relative` or its collection; whole names only: many begin as another does."""
    module = relative.removesuffix(".py").replace("/", ".")
    name, classname = case.get("name") or "", case.get("classname") or ""
    return (
        case.get("file") == relative
        or name in (relative, module)
        or name.startswith(f"{relative}::")
        or classname == module
        or classname.startswith(f"{module}.")
    )


def _reason(outcome: ElementTree.Element) -> str:
    """The first line of a failure; of a file that did not import, the exception that stopped it."""
    raised = [line[1:].strip() for line in (outcome.text or "").splitlines() if line.startswith("E ")]
    said = (outcome.get("message") or "").strip().splitlines() or [""]
    reason = raised[-1] if outcome.tag == "error" and raised else said[0]
    return without_paths(reason)


def without_paths(line: str) -> str:
    """`line` without the ` (/…)` in which Python says where a module lies: that differs from machine to machine."""
    return re.sub(r" \(/[^)]*\)", "", line)
