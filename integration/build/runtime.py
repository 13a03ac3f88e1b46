"""`make runtime`: pins → patched wheels → an installed runtime that says what it is.

Layout under `build/`:
    trees/       pristine and patched trees       wheels/    patched wheels, one folder per version
    deps/        dependency layers, one per lock  runtimes/  installed runtimes, one per identity
    runtime →    the current runtime; this link is moved last, in one step
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from sm120.integration.build import launcher
from sm120.integration.build.fetch import fetch, sha256_of
from sm120.integration.build.identity import Recipe, digest, load_recipe, runtime_ingredients
from sm120.integration.build.lock import PYTHONS, WITH_DEPENDENCIES, locked
from sm120.integration.build.runtime_record import FILE as RECORD
from sm120.integration.build.runtime_record import (
    Ingredients,
    InstalledOverlay,
    InstalledPatch,
    InstalledProject,
    InstalledWheel,
    RuntimeRecord,
    layer_folder,
    no_runtime,
    read_record,
    record_or_none,
    write_record,
)
from sm120.integration.build.toolkit import lay_out
from sm120.integration.build.tree import patched_tree, pristine_tree, release_folder, sweep_unfinished
from sm120.integration.build.wheels import repack
from sm120.integration.common.caches import user_cache
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.disk import refuse_if_full
from sm120.integration.common.pip import pip, reason
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.common.tool_output import tool_lines
from sm120.integration.series.pin import select_artifact

Report = Callable[[str], None]
KEPT_RUNTIMES = 2
PROOF = "proof.json"
LAYER_COMPLETE = "complete"
# In a layer: the files that came without a hash in the lock, by their sha256.
UNHASHED = "unhashed.json"


def build_runtime(
    checkout: Checkout, flavor: str = "auto", report: Report = print, prove: Callable[[Path, Path], int] | None = None
) -> Path:
    """Build or find the runtime for the pins, series and kernels of `checkout`.

    `flavor` names a lock in `integration/locks/`: `cpu` (the smallest set that serves) or `cuda` (everything that the
    pins ask for); `auto` is `cuda` where an NVIDIA driver is loaded, else `cpu`. `prove(home, json)` says with 0 that
    the runtime in `home` serves and writes its rows to `json`; it runs once per runtime, before the link moves.
    Returns `build/runtime`.

    Raises:
        Refusal: whatever is wrong; the previous runtime is then still in place.
    """
    flavor = resolve_flavor(flavor)
    lock = checkout.locks / f"{flavor}.txt"
    if not lock.is_file():
        known = sorted(path.stem for path in checkout.locks.glob("*.txt"))
        raise Refusal("runtime-flavor", f"no lock for {flavor!r}{there_are(flavor, known)}", path=lock)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python not in PYTHONS:
        raise Refusal("lock-python", f"no lock serves Python {python}; served: {', '.join(PYTHONS)}", path=lock)
    recipes = [load_recipe(checkout, project) for project in checkout.projects()]
    ingredients = runtime_ingredients(recipes, flavor, lock)
    identity = digest(ingredients)
    home = checkout.build / "runtimes" / f"{flavor}-{identity[:12]}"
    proven = (home / PROOF).is_file()
    if is_complete(home, identity) and _points_to(checkout.runtime, home) and (proven or prove is None):
        if not _is_plain(home):
            link_layer(home, layer_folder(home, read_record(home).deps))
        _write_launchers(home)
        report(f"runtime {home.name} is up to date" + (" and proven" if proven else ""))
        return checkout.runtime

    if prove is not None:
        check_headers()
    with build_lock(checkout, report):
        sweep_unfinished(checkout.build / "trees")
        sweep_unfinished(checkout.build / "wheels")
        with ThreadPoolExecutor(max_workers=2) as pool:
            wheels = list(pool.map(lambda recipe: build_wheel(checkout, recipe, report), recipes))
        if not is_complete(home, identity):
            deps = _dependency_layer(checkout, flavor, lock, report)
            report("installing the patched wheels")
            _install(checkout, home, deps, recipes, wheels, ingredients, identity)
        if prove is not None and not (home / PROOF).is_file():
            _prove(home, prove)
        _point(checkout.runtime, home)
        _prune(checkout, home)
    report(f"runtime {home.name} is in place")
    return checkout.runtime


def _prove(home: Path, prove: Callable[[Path, Path], int]) -> None:
    rows = home / f"{PROOF}.tmp"
    if prove(home, rows) != 0:
        raise Refusal(
            "proof-failed",
            "the runtime is installed, but its proof does not hold; build/runtime still is what it was before",
            path=home,
            fix="see the table above and the logs in build/prove/last",
        )
    rows.replace(home / PROOF)


def check_headers() -> None:
    """What SGLang includes when it compiles the hash of its page names, at the first request that looks in storage.

    Raises:
        Refusal: `headers-missing`, in a second instead of after a build whose proof restores nothing.
    """
    include = sysconfig.get_path("include")
    source = "#include <Python.h>\n#include <openssl/sha.h>\nint main() { return SHA256 == nullptr; }\n"
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    fix = "Debian: apt-get install g++ python3-dev libssl-dev"
    with tempfile.TemporaryDirectory() as folder:
        command = [*compiler, f"-I{include}", "-x", "c++", "-", "-lcrypto", "-o", str(Path(folder) / "a.out")]
        try:
            done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=120)
        except FileNotFoundError:
            raise Refusal("headers-missing", f"there is no C++ compiler {compiler[0]}", fix=fix) from None
    if done.returncode != 0:
        said = next(
            (line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line), done.stderr
        )
        raise Refusal("headers-missing", f"SGLang compiles its page hashes, and this does not: {said.strip()}", fix=fix)


def resolve_flavor(flavor: str) -> str:
    if flavor != "auto":
        return flavor
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def build_wheel(checkout: Checkout, recipe: Recipe, report: Report) -> Path:
    """The patched wheel of one project, built only when no complete one is there."""
    folder = checkout.build / "wheels" / recipe.name
    if wheel := next(folder.glob("*.whl"), None):
        return wheel
    started = time.monotonic()
    pristine = pristine_of(checkout, recipe, report)
    tree = patched_tree(pristine, recipe.series, recipe.overlay, checkout.build / "trees" / recipe.name)
    wheel = repack(tree, recipe.series.pin, recipe.local_version, folder)
    count = len(recipe.series.patches)
    report(f"{recipe.name}: {count} patches, {len(recipe.overlay)} overlay files, {time.monotonic() - started:.1f} s")
    _drop_old(checkout.build / "trees", recipe, keep=tree.name)
    _drop_old(checkout.build / "wheels", recipe, keep=folder.name)
    return wheel


def pristine_of(checkout: Checkout, recipe: Recipe, report: Report = print) -> Path:
    """The unpacked release that `recipe` patches."""
    destination = release_folder(checkout.build / "trees", recipe.series.project, recipe.artifact)
    if destination.is_dir():
        return destination
    report(f"fetching {recipe.artifact.file}")
    return pristine_tree(fetch(recipe.artifact, checkout.cache), recipe.artifact, destination)


def is_complete(home: Path, identity: str) -> bool:
    """Whether `home` was installed to the end (`runtime.json` is written last) and what it runs on is there."""
    record = record_or_none(home)
    return record is not None and record.identity == identity and has_layer(home, record.deps)


def has_layer(home: Path, deps: str) -> bool:
    """Whether the dependency layer `deps` beside the runtimes is there and was installed to the end."""
    return (layer_folder(home, deps) / LAYER_COMPLETE).is_file()


@contextmanager
def build_lock(checkout: Checkout, report: Report) -> Iterator[None]:
    """One build at a time per checkout; the lock goes with the process, however it ends."""
    checkout.build.mkdir(parents=True, exist_ok=True)
    with (checkout.build / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another build runs in this checkout: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(python: Path, *arguments: str, doing: str) -> None:
    """Install with our pip into another interpreter's environment.

    Raises:
        Refusal: `pip-failed` with its own reason; `lock-hash`, `lock-unavailable`; `disk-full`.
    """
    answer = pip("install", "--quiet", *arguments, doing=doing, where=python.parents[1], python=python)
    if answer.returncode != 0:
        if mismatch := hash_mismatch(answer.stderr):
            raise Refusal("lock-hash", f"{doing}: {mismatch}", fix="do not install it; compare with the project's page")
        if "No matching distribution found" in answer.stderr:
            raise Refusal(
                "lock-unavailable", f"{doing}: {reason(answer)}", fix="check the network and `pip config list`"
            )
        command = " ".join(map(str, answer.args))
        raise Refusal("pip-failed", f"{doing}: {reason(answer)}", fix=f"the command was: {command}")


def _dependency_layer(checkout: Checkout, flavor: str, lock: Path, report: Report) -> Path:
    """A venv with exactly the lock's packages, shared by runtimes, so that a changed patch costs seconds."""
    key = digest([sha256_of(lock), platform.python_version(), platform.machine()])[:12]
    home = checkout.build / "deps" / f"{flavor}-{key}"
    complete = home / LAYER_COMPLETE
    if complete.is_file():
        return home
    shutil.rmtree(home, ignore_errors=True)
    text = lock.read_text()
    unhashed = [
        line.removeprefix(WITH_DEPENDENCIES).strip() for line in text.splitlines() if line.startswith(WITH_DEPENDENCIES)
    ]
    report(f"installing {len(locked(text)) + len(unhashed)} locked packages ({flavor})")
    started = time.monotonic()
    _make_venv(home)
    python = home / "bin" / "python"
    came: dict[str, str] = {}
    for requirement in unhashed:
        answer = home / "report.json"
        install(python, requirement, "--report", str(answer), doing=f"installing {requirement}")
        came |= files_that_came(answer, but=locked(text))
        answer.unlink()
    (home / UNHASHED).write_text(json.dumps(came, indent=1) + "\n")
    # The lock is complete, so pip resolves nothing: what is listed is what is installed.
    # Forced, as pip checks no hash of what came above in the locked version.
    options = ["--no-deps", "--require-hashes", "--force-reinstall"]
    install(python, *options, "-r", str(lock), doing=f"installing {lock.name}")
    lay_out(home, site_packages(home))
    complete.write_text(f"{time.monotonic() - started:.0f} s\n")
    report(f"dependencies are in after {time.monotonic() - started:.0f} s")
    return home


def files_that_came(report: Path, but: Container[str]) -> dict[str, str]:
    """File -> sha256 of what pip's `report` says was installed, without the projects that a lock pins (`but`)."""
    came = {}
    for one in json.loads(report.read_text())["install"]:
        if canonicalize_name(one["metadata"]["name"]) not in but:
            info = one["download_info"]
            address = urlsplit(info["url"])
            sha256 = info.get("archive_info", {}).get("hashes", {}).get("sha256")
            if sha256 is None and address.scheme == "file":
                sha256 = sha256_of(Path(unquote(address.path)))
            came[unquote(address.path.rsplit("/", 1)[1])] = sha256 or "unknown"
    return came


def hash_mismatch(said: str) -> str | None:
    """`name==version expected … got …` where pip refused a file for its bytes, or a line that has no hash."""
    if "Hashes are required in --require-hashes mode" in said:
        return "a line of the lock has no hash"
    if "DO NOT MATCH THE HASHES" not in said:
        return None
    said = said[said.index("DO NOT MATCH THE HASHES") :]
    name = re.search(r"(?m)^\s+(\S+==\S+)", said)
    expected = re.findall(r"Expected sha256 (\w+)|(?:or) (\w{64})", said)
    got = re.search(r"Got\s+(\w+)", said)
    one_of = "" if len(expected) == 1 else f", none of the {len(expected)} that the lock has"
    return f"{name[1] if name else 'a file'} has sha256 {got[1] if got else 'unknown'}{one_of}"


def _make_venv(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    # The interpreter behind our own venv, so that the runtime does not hang on the tool's environment.
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    result = subprocess.run([str(base), "-m", "venv", "--without-pip", str(home)], capture_output=True, text=True)
    if result.returncode != 0:
        said = (result.stdout + result.stderr).strip()
        refuse_if_full(said, "making an environment", home)
        raise Refusal("venv-failed", said, fix="install Python's venv module")


def site_packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def plain_path(folder: Path) -> Path:
    """`folder`, or a link to it whose name no shell splits: torch links C++ with `-L` and its own path, unquoted."""
    if _is_plain(folder):
        return folder
    name = digest(str(folder.absolute()))[:12]
    places = [Path(tempfile.gettempdir()) / f"sm120-{os.getuid()}" / name]
    if shared := user_cache():
        places.insert(0, shared / "sm120" / "places" / name)
    link = next((place for place in places if _is_plain(place)), None)
    if link is None:
        return folder
    link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if link.is_symlink() and link.readlink() == folder.absolute():
        return link
    aside = link.with_name(f"{name}.{os.getpid()}")
    aside.symlink_to(folder.absolute())
    aside.replace(link)
    return link


def _is_plain(path: Path) -> bool:
    return re.fullmatch(r"[\w@%+=:,./-]+", str(path)) is not None


def link_layer(home: Path, deps: Path) -> None:
    """Make the packages of the layer `deps` importable in the venv `home`, behind its own."""
    # addsitedir, not a bare path line: the layer's own .pth files must be read too.
    line = f"import site; site.addsitedir({str(site_packages(plain_path(deps)))!r})\n"
    path = site_packages(home) / "dependency_layer.pth"
    if path.is_file() and path.read_text() == line:
        return
    # In one step: a Python that starts at this moment reads the file whole.
    with tempfile.TemporaryDirectory(prefix=".layer-", dir=path.parent) as aside:
        (Path(aside) / path.name).write_text(line)
        (Path(aside) / path.name).replace(path)


def link_test_layer(checkout: Checkout) -> Path:
    """Give the tool's own environment the current runtime's dependency layer: kernel tests and probes need torch.

    Returns the layer's folder.

    Raises:
        Refusal: `runtime-missing` when there is no runtime yet, or its layer is gone; `runtime-record`.
    """
    deps = read_record(checkout.runtime).deps
    layer = layer_folder(checkout.runtime, deps)
    if not has_layer(checkout.runtime, deps):
        raise no_runtime(layer, "the runtime's dependency layer is not there")
    link_layer(Path(sys.prefix), layer)
    return layer


def _install(
    checkout: Checkout,
    home: Path,
    deps: Path,
    recipes: list[Recipe],
    wheels: list[Path],
    ingredients: dict[str, Any],
    identity: str,
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    _make_venv(home)
    companions = [
        fetch(select_artifact(c.artifacts, what=c.distribution, path="pin.toml"), checkout.cache)
        for recipe in recipes
        for c in recipe.series.pin.companions
    ]
    link_layer(home, deps)
    files = [str(path) for path in [*wheels, *companions]]
    install(
        home / "bin" / "python",
        *("--no-deps", "--no-index", "--no-compile", *files),
        doing="installing the patched wheels",
    )
    _write_launchers(home)
    record = RuntimeRecord(
        identity=identity,
        ingredients=Ingredients(**ingredients),
        deps=deps.name,
        projects={r.series.project: _project_record(home, r, w) for r, w in zip(recipes, wheels, strict=True)},
        versions=_installed_versions(home),
        unhashed=json.loads((deps / UNHASHED).read_text()),
        host_compiler=next(iter(tool_lines([os.environ.get("CXX", "c++"), "--version"])), None),
        nvcc=next(reversed(tool_lines(["nvcc", "--version"])), None),
    )
    write_record(home, record)


def _project_record(home: Path, recipe: Recipe, wheel: Path) -> InstalledProject:
    """What doctor needs to tell which patches and overlay files an installed runtime really contains."""
    installed = site_packages(home)
    touched = {target for patch in recipe.series.patches for target in patch.touched}
    files = {}
    for target in sorted(touched | {file.target for file in recipe.overlay}):
        path = installed / target
        files[target] = sha256_of(path) if path.is_file() else None
    return InstalledProject(
        version=recipe.version,
        wheel=InstalledWheel(file=wheel.name, sha256=sha256_of(wheel)),
        patches=[
            InstalledPatch(slug=patch.slug, sha256=patch.sha256, tier=patch.fields["Tier"], files=patch.touched)
            for patch in recipe.series.patches
        ],
        overlay=[
            InstalledOverlay(kernel=file.kernel, target=file.target, sha256=file.sha256) for file in recipe.overlay
        ],
        files=files,
        imports=recipe.series.pin.imports,
    )


def _installed_versions(home: Path) -> dict[str, str]:
    names = ("torch", "triton", "transformers", "sglang", "flashinfer-python", "nixl-cu13", "nixl", "apache-tvm-ffi")
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    result = subprocess.run([str(home / "bin" / "python"), "-c", code, *names], capture_output=True, text=True)
    if result.returncode != 0:
        raise Refusal("venv-failed", f"the new runtime's Python does not run: {result.stderr.strip()}", path=home)
    return json.loads(result.stdout)


def _write_launchers(home: Path) -> None:
    """`bin/serve` for SGLang's server and `bin/with-runtime` for any other command, both by way of `launcher.py`."""
    # -E and -S: nothing of the user's Python runs before the environment is made, and it is made in 50 ms.
    for name in ("serve", "with-runtime"):
        text = (
            "#!/bin/sh\n"
            'here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit\n'
            f'exec "$here/bin/python" -E -S "$here/launcher.py" {name} "$@"\n'
        )
        _replace(home / "bin" / name, text, 0o755)
    _replace(home / "launcher.py", Path(launcher.__file__).read_text(), 0o644)


def _replace(path: Path, text: str, mode: int) -> None:
    if path.is_file() and path.read_text() == text:
        return
    # In one step: a server may be starting through the old one.
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text)
    aside.chmod(mode)
    aside.replace(path)


def _points_to(link: Path, home: Path) -> bool:
    return link.is_symlink() and link.resolve() == home.resolve()


def _point(link: Path, home: Path) -> None:
    """Move the link in one step: there is no moment without a runtime."""
    if link.exists() and not link.is_symlink():
        raise Refusal("runtime-in-the-way", "is not a link that this tool made", path=link, fix="move it away")
    aside = Path(tempfile.mktemp(prefix=".runtime.tmp-", dir=link.parent))
    aside.symlink_to(os.path.relpath(home, link.parent))
    aside.replace(link)


def _prune(checkout: Checkout, current: Path) -> None:
    """Keep the current runtime and the newest others, and the dependency layers that those use.

    One that was never proven, or whose proof failed, is kept only where no proven one wants its place.
    """

    def worth(home: Path) -> tuple[bool, bool, float]:
        return (home / PROOF).is_file(), (home / RECORD).is_file(), home.stat().st_mtime

    runtimes = sorted((checkout.build / "runtimes").iterdir(), key=worth, reverse=True)
    kept = [current, *[path for path in runtimes if path != current][: KEPT_RUNTIMES - 1]]
    for path in runtimes:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
    used = {record.deps for record in map(record_or_none, kept) if record is not None}
    for layer in (checkout.build / "deps").iterdir():
        if layer.name not in used:
            shutil.rmtree(layer, ignore_errors=True)


def _drop_old(folder: Path, recipe: Recipe, keep: str) -> None:
    prefix = f"{recipe.series.project}-{recipe.series.pin.version}+"
    for entry in folder.glob(f"{prefix}*"):
        if entry.name != keep:
            shutil.rmtree(entry, ignore_errors=True)
