"""`sm120 lock`: the dependency layers by exact version and sha256, made from the direct pins in `locks/FLAVOR.in`.

A lock serves every Python of `PYTHONS` and machine of `MACHINES`: it has the hash of every file that the index has for
a version. docs/decisions/0210-locks-are-made.md says why uv resolves, and what has no hash.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from sm120.integration.build.identity import digest
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.common.uv import uv, uv_reason
from sm120.integration.series.pin import load_pin

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
# A comment in an input and its lock: this requirement first, with whatever it asks for, without a hash. An index that
# serves torch only as a CUDA build brings the libraries that it links in this way; a CPU build asks for nothing more.
WITH_DEPENDENCIES = "# with dependencies:"
# A line of an input: what the pinned releases ask for is resolved; without it the input is complete.
RESOLVED = "# resolve what the pins ask for"
GLIBC_MINORS = range(17, 36)
ANOTHER_INDEX = "use an index that does, `pip config list` says which one is asked"
SERVED = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}


@dataclass(frozen=True)
class LockInput:
    """The direct pins of one flavor, as `name==version`."""

    requirements: list[str]
    unhashed: list[str]
    resolved: bool


def flavors(checkout: Checkout) -> list[str]:
    """Flavors that have an input."""
    return sorted(path.stem for path in checkout.locks.glob("*.in"))


def make_lock(checkout: Checkout, flavor: str, upgrade: bool = False) -> str:
    """The text of a new lock of `flavor`. What the old lock pins stays where the input allows it, unless `upgrade`.

    Raises:
        Refusal: `lock-input`, `lock-resolver` (no network, no such version, no solution), `uv-missing`.
    """
    source = read_input(checkout, flavor)
    pins = pinned(checkout) if source.resolved else []
    old = checkout.locks / f"{flavor}.txt"
    with tempfile.TemporaryDirectory(prefix="sm120-lock-") as name:
        folder = Path(name)
        after = f"3.{int(PYTHONS[-1].split('.')[1]) + 1}"
        environments = [
            f"sys_platform == 'linux' and platform_machine == '{machine}' and python_full_version < '{after}'"
            for machine in MACHINES
        ]
        # uv reads the environments from a project's file only.
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "lock"\nversion = "0"\nrequires-python = ">={PYTHONS[0]}"\n'
            f"[tool.uv]\nenvironments = {environments}\n"
        )
        (folder / "pins.in").write_text("\n".join([*pins, *source.requirements]) + "\n")
        if old.is_file():
            (folder / "lock.txt").write_text("\n".join(locked(old.read_text()).values()) + "\n")
        common = ["--universal", f"--python-version={PYTHONS[0]}", "--quiet", "--no-annotate", "--no-header"]
        common += [] if source.resolved else ["--no-deps"]
        left_out = [f"--no-emit-package={pin.split('==')[0]}" for pin in pins]
        _resolve(folder, flavor, "--generate-hashes", *common, *left_out, *["--upgrade"] * upgrade, "-o", "lock.txt")
        _resolve(folder, flavor, *common, *left_out, "-c", "lock.txt", "--format=pylock.toml", "-o", "pylock.toml")
        body = without_plain_markers((folder / "lock.txt").read_text())
        files = tomllib.loads((folder / "pylock.toml").read_text()).get("packages", [])
    if bare := sorted(set(locked(body)) - set(locked(_hashed(body)))):
        raise Refusal("lock-resolver", f"{flavor}: the index names no sha256 for {', '.join(bare)}", fix=ANOTHER_INDEX)
    head = [
        f"# Made by `sm120 lock` from {flavor}.in: change that file. Python {', '.join(PYTHONS)} on {' and '.join(MACHINES)}.",
        f"# inputs: {_inputs(source, pins)}",
        f"# content: {digest(body)}",
        *(f"# no wheel: {line}" for line in without_wheel(files)),
        *(f"{WITH_DEPENDENCIES} {requirement}" for requirement in source.unhashed),
    ]
    return "\n".join([*head, "", body])


def stale(checkout: Checkout, flavor: str) -> list[str]:
    """Why the lock of `flavor` is not the one of its input and the pins; nothing where it is. Asks no index.

    Raises:
        Refusal: `lock-input`.
    """
    source = read_input(checkout, flavor)
    path = checkout.locks / f"{flavor}.txt"
    if not path.is_file():
        return ["there is no lock"]
    text = path.read_text()
    pins = pinned(checkout) if source.resolved else []
    said = dict(re.findall(r"(?m)^# (inputs|content): ([0-9a-f]{64})$", text))
    have = locked(text)
    wrong = []
    for requirement in source.requirements:
        name, _, version = requirement.partition("==")
        got = have.get(canonicalize_name(name), "").partition("==")[2]
        if got != version:
            wrong.append(f"{name} is {got or 'not there'}, {flavor}.in has {version}")
    if said.get("inputs") != _inputs(source, pins) and not wrong:
        wrong.append(f"made from another {flavor}.in, other pins or for other Pythons")
    body = text.partition("\n\n")[2]
    if said.get("content") != digest(body):
        wrong.append("edited after it was made")
    return wrong


def read_input(checkout: Checkout, flavor: str) -> LockInput:
    """The direct pins in `FLAVOR.in`.

    Raises:
        Refusal: `lock-input` where there is no such file, or a line is not one exact version, or a name comes twice.
    """
    path = checkout.locks / f"{flavor}.in"
    if not path.is_file():
        raise Refusal("lock-input", f"no input for {flavor!r}{there_are(flavor, flavors(checkout))}", path=path)
    requirements: dict[str, str] = {}
    unhashed: list[str] = []
    resolved = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        plain = line.strip()
        if plain.startswith(WITH_DEPENDENCIES):
            plain = plain.removeprefix(WITH_DEPENDENCIES).strip()
            unhashed.append(_exact(plain, path, number))
            continue
        resolved |= plain == RESOLVED
        plain = plain.partition("#")[0].strip()
        if not plain:
            continue
        requirement = _exact(plain, path, number)
        name = canonicalize_name(requirement.split("==")[0])
        if name in requirements:
            raise Refusal("lock-input", f"{name} is there twice", path=path, line=number)
        requirements[name] = requirement
    return LockInput([requirements[name] for name in sorted(requirements)], unhashed, resolved)


def locked(text: str) -> dict[str, str]:
    """Canonical name -> `name==version` of each requirement in a lock."""
    found = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)==([^\s\\;]+)", text)
    return {str(canonicalize_name(name)): f"{name}=={version}" for name, version in found}


def pinned(checkout: Checkout) -> list[str]:
    """What the runtime takes from its pins and not from a lock, as `name==version`."""
    found = []
    for project in checkout.projects():
        pin = load_pin(checkout.patches / project)
        found.append(f"{pin.distribution}=={pin.version}")
        found += [f"{one.distribution}=={one.version}" for one in pin.companions]
    return found


def without_plain_markers(body: str) -> str:
    """`body` without the markers that hold wherever the lock serves; what is left says something."""

    def short(line: re.Match[str]) -> str:
        marker = Marker(line[2])
        always = all(
            marker.evaluate({**SERVED, "python_version": python, "python_full_version": f"{python}.0", **machine})
            for python in PYTHONS
            for machine in ({"platform_machine": name} for name in MACHINES)
        )
        return f"{line[1]} \\" if always else line[0]

    return re.sub(r"(?m)^([^\s#][^;\n]*) ; (.+) \\$", short, body)


def without_wheel(packages: list[dict]) -> Iterator[str]:
    """`name version (Python 3.13 on aarch64)` for each package of a pylock that must be compiled from its source."""
    tags = {(python, machine): _tags(python, machine) for python in PYTHONS for machine in MACHINES}
    for package in packages:
        files = [wheel.get("name") or wheel["url"].rsplit("/", 1)[1] for wheel in package.get("wheels", [])]
        fits = frozenset(chain.from_iterable(parse_wheel_filename(file.replace("%2B", "+"))[3] for file in files))
        lacks = [
            where for where, served in tags.items() if where[1] in _machines(package) and not fits.intersection(served)
        ]
        if lacks:
            where = ", ".join(f"Python {python} on {machine}" for python, machine in lacks)
            yield f"{package['name']} {package['version']} ({where})"


def _machines(package: dict) -> list[str]:
    """Machines on which a package of a pylock is installed."""
    named = [machine for machine in MACHINES if machine in package.get("marker", "")]
    return named or list(MACHINES)


def _tags(python: str, machine: str) -> frozenset:
    version = tuple(int(part) for part in python.split("."))
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    interpreter = f"cp{version[0]}{version[1]}"
    return frozenset([*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)])


def _resolve(folder: Path, flavor: str, *options: str) -> None:
    answer = uv("pip", "compile", "pins.in", *options, doing=f"resolving {flavor}", folder=folder)
    if answer.returncode != 0:
        raise Refusal(
            "lock-resolver",
            f"{flavor}: {uv_reason(answer)}",
            fix=f"check the network and `pip config list`, or change integration/locks/{flavor}.in",
        )


def _hashed(body: str) -> str:
    """The lines of `body` that go on with a hash."""
    return "\n".join(re.findall(r"(?m)^[^\s#].*(?= \\\n    --hash=sha256:)", body))


def _exact(text: str, path: Path, line: int) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    operators = [(one.operator, "*" in one.version) for one in requirement.specifier] if requirement else []
    if requirement is None or operators != [("==", False)] or requirement.marker or requirement.url:
        raise Refusal("lock-input", f"not one exact version (name==version): {text}", path=path, line=line)
    return f"{requirement.name}{requirement.specifier}"


def _inputs(source: LockInput, pins: list[str]) -> str:
    return digest([source.requirements, source.unhashed, pins, PYTHONS, MACHINES])
