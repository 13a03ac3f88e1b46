"""A small checkout with a release made on the spot, so that every refusal is tested on the real commands in seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import build_runtime
from sm120.integration.build.tree import release_folder
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal

PRISTINE = {
    "alpha/__init__.py": "VERSION = 1\n",
    "alpha/core.py": "".join(f"line_{n} = {n}\n" for n in range(40)),
    "alpha/data/kernel.cu": "".join(f"// row {n}\n" for n in range(30)),
    "alpha/tool.sh": "#!/bin/sh\necho alpha\n",
}
# The patches that most tests want: one hunk elsewhere, and one more.
HOOK = PRISTINE["alpha/core.py"].replace("line_30 = 30", "line_30 = 'hook'")
CHANGED = PRISTINE["alpha/core.py"].replace("line_20 = 20", "line_20 = 2020")


def header(project: str, slug: str, **changes: str | None) -> str:
    """A valid patch header; `changes` replace (or with None drop) fields, `_` in their names standing for `-`."""
    fields = {
        "Subject": f"[{project}] core: change {slug}",
        "Description": "without it the test has nothing to change",
        "Origin": "vendor",
        "Upstream-Status": "Pending",
        "Status-Checked": "2026-11-29",
        "Arch": "any",
        "Tier": "core",
        "Probe": f"tests/probes/{project}/test_{slug.replace('-', '_')}.py",
        "Evidence": "cpu",
    }
    for name, value in changes.items():
        fields[name.replace("_", "-")] = value  # type: ignore[assignment]
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None)


@dataclass
class Mini:
    """A checkout with one project `alpha`, whose wheel is in a folder that pip is pointed at."""

    checkout: Checkout
    releases: Path
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.checkout.patches / "alpha"

    @property
    def pristine(self) -> Path:
        """Where the pinned release is unpacked."""
        return release_folder(self.checkout.build / "trees", "alpha", load_recipe(self.checkout, "alpha").artifact)

    def sm120(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from sm120.integration.cli import main; main()", *arguments],
            cwd=self.checkout.root,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def build(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Build in this process (a refusal is reported as the command line does it); `sm120` is the slow, full way."""
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (self.environment | environment).items():
                patch.setenv(name, value)
            try:
                build_runtime(self.checkout, "none", lines.append)
            except Refusal as refusal:
                return subprocess.CompletedProcess([], 2, "\n".join(lines), f"error: {refusal}\n")
        return subprocess.CompletedProcess([], 0, "\n".join(lines), "")

    def patch(
        self, slug: str, changes: dict[str, str | None], *, base: dict[str, str] | None = None, **fields: str | None
    ):
        """Add a patch that turns `base` (default: the release) into `base | changes`, and list it in the series."""
        text = header("alpha", slug, **fields) + "---\n" + git_diff(base or PRISTINE, changes)
        (self.folder / f"{slug}.patch").write_text(text)
        with (self.folder / "series").open("a") as series:
            series.write(f"{slug}.patch\n")
        return self.folder / f"{slug}.patch"

    def release(self, files: dict[str, str] | None = None, version: str = "1.0") -> None:
        """Put a wheel of `files` into the release folder and pin it."""
        shutil.rmtree(self.releases / f".alpha-{version}", ignore_errors=True)
        wheel = make_wheel(self.releases, "alpha", version, files or PRISTINE)
        (self.folder / "pin.toml").write_text(
            f'project = "alpha"\ndistribution = "alpha"\nversion = "{version}"\n'
            f'repository = "https://example.org/alpha"\ngit_tag = "v{version}"\nimports = ["alpha"]\n'
            '[[paths]]\nwheel = "alpha/"\nupstream = "python/alpha/"\n'
            f'[[artifacts]]\npython = "py3"\nmachine = "any"\nfile = "{wheel.name}"\n'
            f'sha256 = "{hashlib.sha256(wheel.read_bytes()).hexdigest()}"\n'
        )


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    return make_mini(tmp_path)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    made = make_mini(tmp_path_factory.mktemp("template"))
    made.patch("first-change", {"alpha/core.py": PRISTINE["alpha/core.py"].replace("line_5 = 5", "line_5 = 55")})
    result = made.build()
    assert result.returncode == 0, result.stdout + result.stderr
    return made


@pytest.fixture
def built(template: Mini, tmp_path: Path) -> Mini:
    """A mini checkout with one patch and a good runtime in place (a copy of one that was built once)."""
    shutil.copytree(template.checkout.root.parent, tmp_path, dirs_exist_ok=True, symlinks=True)
    return at(tmp_path)


def make_mini(home: Path) -> Mini:
    made = at(home)
    root = made.checkout.root
    for folder in ("patches/alpha", "kernels", "integration/locks", "integration/prove/cpu_layer"):
        (root / folder).mkdir(parents=True)
    (root / "integration" / "locks" / "none.txt").write_text("# the tiny release needs nothing\n")
    (root / "patches" / "alpha" / "series").write_text("")
    made.releases.mkdir()
    made.release()
    return made


def at(home: Path) -> Mini:
    environment = dict(
        os.environ,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(home / "releases"),
        SM120_CACHE=str(home / "cache"),
        COLUMNS="200",
    )
    return Mini(Checkout(home / "checkout"), home / "releases", environment)


@pytest.fixture
def refuses() -> Callable[..., str]:
    """Check that a build is refused by name, with exit code 2, and that the runtime before it is still in place."""

    def check(mini: Mini, code: str, *mentions: str, **environment: str) -> str:
        before = runtime_state(mini)
        result = mini.build(**environment)
        assert result.returncode == 2, result.stdout + result.stderr
        assert f"[{code}]" in result.stderr, result.stderr
        for mention in mentions:
            assert mention in result.stderr, result.stderr
        assert "Traceback" not in result.stderr
        assert runtime_state(mini) == before
        return result.stderr

    return check


def runtime_state(mini: Mini) -> tuple[str, str] | None:
    link = mini.checkout.runtime
    if not link.exists():
        return None
    return str(link.resolve()), (link / "runtime.json").read_text()


def git_diff(base: dict[str, str], changes: dict[str, str | None]) -> str:
    """The canonical diff from `base` to `base | changes`; None deletes."""
    import tempfile

    from sm120.integration.common.git import git
    from sm120.integration.series.canonical import DIFF

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        git(folder, "init", "--quiet")
        for files in (base, changes):
            for target, text in files.items():
                path = folder / target
                if text is None:
                    path.unlink()
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
            git(folder, "add", "--all")
            git(folder, "commit", "--quiet", "--allow-empty", "-m", "state")
        return git(folder, *DIFF, "HEAD^", "HEAD")


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A real wheel, packed by the `wheel` package."""
    tree = folder / f".{name}-{version}"
    for target, text in files.items():
        path = tree / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = tree / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    subprocess.run(
        [sys.executable, "-m", "wheel", "pack", str(tree), "--dest-dir", str(folder)], check=True, capture_output=True
    )
    return folder / f"{name}-{version}-py3-none-any.whl"


def snapshot(tree: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).digest()
        for path in tree.rglob("*")
        if path.is_file()
    }


def add_kernel(mini, name: str = "packing", **changes: str) -> None:
    folder = mini.checkout.kernels / name
    folder.mkdir()
    (folder / "packing.cuh").write_text("// device code\n")
    entry = {"project": "alpha", "source": "packing.cuh", "target": "alpha/data/packing.cuh"} | changes
    table = "".join(f'{key} = "{value}"\n' for key, value in entry.items())
    (folder / "kernel.toml").write_text(
        f'name = "{name}"\nsummary = "packs"\ncapabilities = [[12, 0]]\n[[overlay]]\n{table}'
    )


def add_fuzzy_patch(mini) -> Path:
    """A patch whose context differs from the release in one line: `patch` would take it with fuzz 1."""
    other = PRISTINE["alpha/core.py"].replace("line_18 = 18", "line_18 = 'moved'")
    changed = {"alpha/core.py": other.replace("= 20\n", "= 2020\n")}
    return mini.patch("needs-fuzz", changed, base={**PRISTINE, "alpha/core.py": other})
