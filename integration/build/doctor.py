"""`sm120 doctor`: what this machine is, what the installed runtime really contains, what is missing for SM120."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from sm120.integration.build.compilers import compile_needs
from sm120.integration.build.fetch import sha256_of
from sm120.integration.build.launcher import available_memory, inspect
from sm120.integration.build.runtime import has_layer, site_packages
from sm120.integration.build.runtime_record import RuntimeRecord, layer_folder, read_record, record_or_none
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.disk import free_bytes
from sm120.integration.common.gpus import gpus, visible
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.tool_output import tool_lines

SM120 = "12.0"


@dataclass
class Diagnosis:
    """Everything that doctor found; `drift` and `broken` make it exit with 1, `missing` does not."""

    machine: list[tuple[str, str]] = field(default_factory=list)
    runtime: list[tuple[str, str]] = field(default_factory=list)
    patches: list[tuple[str, str, str]] = field(default_factory=list)
    """(project, patch or overlay file, present | drifted: file, …)"""
    drift: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps(self.__dict__, indent=1)


def diagnose(checkout: Checkout) -> Diagnosis:
    found = Diagnosis()
    _machine(checkout, found)
    record = _load_record(checkout, found)
    if record:
        _contents(checkout, record, found)
    return found


def _machine(checkout: Checkout, found: Diagnosis) -> None:
    found.machine.append(("system", f"{platform.system()} {platform.release()} {platform.machine()}"))
    found.machine.append(("python", platform.python_version()))
    found.machine.append(("free disk", f"{free_bytes(checkout.build) / 2**30:.0f} GiB"))
    found.machine.append(("memory", _memory()))
    found_gpus = gpus()
    if found_gpus is None:
        found.machine.append(("NVIDIA driver", "none (a normal state: everything but speed and CUDA code runs)"))
        found.missing.append("an NVIDIA driver and a GPU of compute capability exactly 12.0")
    else:
        seen = visible(found_gpus, os.environ)
        for gpu in found_gpus:
            hidden = "" if gpu in seen else ", hidden by CUDA_VISIBLE_DEVICES"
            said = f"{gpu.name}, compute capability {gpu.capability}, {gpu.memory}, driver {gpu.driver}{hidden}"
            found.machine.append((f"GPU {gpu.number}", said))
        if not any(gpu.capability == SM120 for gpu in seen):
            have = ", ".join(gpu.capability for gpu in seen) or "none that CUDA_VISIBLE_DEVICES shows"
            found.missing.append(f"a GPU of compute capability exactly {SM120}; here: {have}")
    found.machine.append(("git", _version_line(["git", "--version"]) or "none"))
    layer = _layer(checkout)
    for need in compile_needs(os.environ, layer):
        found.machine.append((need.name, need.found))
        if not need.ok:
            found.missing.append(f"{need.need}: JIT kernels cannot be built ({need.found})")
    if layer is not None and (layer / "toolkit").is_dir() and (wrong := inspect(layer / "toolkit").wrong):
        found.drift.append(f"{layer / 'toolkit'} is not one whole toolkit ({'; '.join(wrong)}): make runtime")


def _layer(checkout: Checkout) -> Path | None:
    """The dependency layer of the installed runtime, where its record reads."""
    record = record_or_none(checkout.runtime)
    has = record is not None and has_layer(checkout.runtime, record.deps)
    return layer_folder(checkout.runtime, record.deps) if record and has else None


def _load_record(checkout: Checkout, found: Diagnosis) -> RuntimeRecord | None:
    try:
        record = read_record(checkout.runtime)
    except Refusal as refusal:
        if refusal.code != "runtime-missing":
            found.drift.append(f"{refusal.path} does not read ({refusal.what}): {refusal.fix}")
            return None
        found.runtime.append(("runtime", "none installed"))
        found.missing.append(f"an installed runtime: {refusal.fix}")
        return None
    found.runtime += [("identity", record.identity[:12]), ("flavor", record.flavor), *sorted(record.versions.items())]
    if record.flavor == "cpu":
        found.missing.append("the cuda flavor of the runtime: make runtime RUNTIME=cuda")
    return record


def _contents(checkout: Checkout, record: RuntimeRecord, found: Diagnosis) -> None:
    """Compare what is installed with `runtime.json`, file by file; nothing is taken on trust from version strings."""
    home = checkout.runtime.resolve()
    installed = site_packages(home)
    if not has_layer(home, record.deps):
        layer = layer_folder(home, record.deps)
        found.drift.append(f"the packages that the runtime runs on are not there ({layer}): make runtime")
    for project, inside in sorted(record.projects.items()):
        drifted = {
            target
            for target, expected in inside.files.items()
            if (sha256_of(installed / target) if (installed / target).is_file() else None) != expected
        }
        for patch in inside.patches:
            bad = sorted(drifted.intersection(patch.files))
            found.patches.append((project, patch.slug, f"drifted: {', '.join(bad)}" if bad else "present"))
        for file in inside.overlay:
            state = "drifted" if file.target in drifted else "present"
            found.patches.append((project, f"{file.kernel} → {file.target}", state))
        for target in sorted(drifted):
            found.drift.append(f"{project}: {target} is not the file that was installed")
        for target in _record_drift(installed, inside.wheel.file, exclude=drifted):
            found.drift.append(f"{project}: {target} differs from the wheel's RECORD")


def _record_drift(installed: Path, wheel: str, exclude: set[str]) -> list[str]:
    """Files whose bytes are not those of the wheel's RECORD; what installing itself rewrites has no hash there."""
    name, version = wheel.split("-")[:2]
    record = installed / f"{name}-{version}.dist-info" / "RECORD"
    if not record.is_file():
        return [f"{record.name} of {name} {version}"]
    bad = []
    with record.open(newline="") as file:
        for target, expected, _ in csv.reader(file):
            if not expected or target in exclude or target.startswith("../"):
                continue
            path = installed / target
            if not path.is_file():
                bad.append(target)
                continue
            with path.open("rb") as content:
                got = hashlib.file_digest(content, "sha256").digest()
            if expected != "sha256=" + base64.urlsafe_b64encode(got).decode().rstrip("="):
                bad.append(target)
    return bad


def _memory() -> str:
    available = available_memory()
    return "unknown" if available is None else f"{available / 2**30:.0f} GiB available"


def _version_line(command: list[str], containing: str = "") -> str | None:
    return next((line for line in tool_lines(command) if containing in line), None)


def exit_code(found: Diagnosis) -> int:
    return 1 if found.drift else 0
