"""The Python that serves, and the environment in which everything that imports sglang runs."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.common.caches import library_caches

PROOF_LAYER = Path(__file__).resolve().parents[1] / "prove" / "cpu_layer"

# What a CPU needs that is not the choice of one recipe. No name below reaches a wheel.
CPU_ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # The CPU engine wants sgl_kernel's C++ operators, which exist nowhere as a wheel; without it the GPU code path
    # runs.
    "SGLANG_USE_CPU_ENGINE": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # A server that crashes would otherwise sit for 65 s, waiting for dumps that only a GPU makes.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}


class ScriptFailed(RuntimeError):
    """One of our scripts ended with an error in the runtime's Python, or did not end; the message has its output."""


class UnusableFolder(ValueError):
    """A folder that was named is no runtime, or not one that a proof may empty."""


@dataclass(frozen=True)
class Runtime:
    """A folder with `bin/python`, and folders to put in front of its own packages (unpacked trees, say).

    Raises UnusableFolder when the folder has no `bin/python` or the proof layer is not beside this package.
    """

    folder: Path
    extra_paths: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.python.is_file():
            raise UnusableFolder(f"runtime {self.folder}: no bin/python there; build one with `make runtime`")
        if not (PROOF_LAYER / "sitecustomize.py").is_file():
            raise UnusableFolder(
                f"no proof layer at {PROOF_LAYER}: it ships with the source checkout, not with the wheel"
            )

    @classmethod
    def from_environment(cls) -> "Runtime":
        """The runtime that SM120_RUNTIME names, with the folders of SM120_RUNTIME_PATHS (os.pathsep between) in front.

        Raises ValueError when SM120_RUNTIME is not set or names no runtime.
        """
        folder = os.environ.get("SM120_RUNTIME")
        if not folder:
            raise ValueError("SM120_RUNTIME is not set: it must name a runtime folder, such as build/runtime")
        extra = os.environ.get("SM120_RUNTIME_PATHS", "")
        return cls(Path(folder).absolute(), tuple(Path(path).absolute() for path in extra.split(os.pathsep) if path))

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def environment(self, extra: Mapping[str, str] | None = None, hooks: Sequence[Path] = ()) -> dict[str, str]:
        """The full environment of a child: ours, the CPU settings, the proof layer, `extra` last.

        `hooks` are extra hook files for the proof layer (deliberate faults); they join those of PROOF_EXTRA.
        """
        environment = dict(os.environ) | library_caches(self.folder.resolve().parents[1] / "cache")
        # Three processes import 6,000 modules at every start; without cached bytecode that alone takes half a minute.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if self.extra_paths:
            # Unpacked trees stay as they were unpacked.
            environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), f"sm120-bytecode-{os.getuid()}"))
        environment.update(CPU_ENVIRONMENT)
        environment["PATH"] = os.pathsep.join([*map(str, self._tools()), os.environ.get("PATH", os.defpath)])
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (PROOF_LAYER, *self.extra_paths)))
        inherited = [path for path in environment.get("PROOF_EXTRA", "").split(os.pathsep) if path]
        environment["PROOF_EXTRA"] = os.pathsep.join([*inherited, *(str(hook.absolute()) for hook in hooks)])
        environment.update(extra or {})
        return environment

    def _tools(self) -> list[Path]:
        """What `bin/serve` puts on PATH, too: SGLang compiles its page hashes with the layer's ninja."""
        try:
            deps = json.loads((self.folder / "runtime.json").read_text())["deps"]
        except (OSError, ValueError, KeyError, TypeError):
            return [self.folder / "bin"]
        return [self.folder / "bin", self.folder.resolve().parents[1] / "deps" / deps / "bin"]

    def run_script(self, script: Path, *arguments: str, timeout: float = 300) -> None:
        """Run one of our scripts with the runtime's Python; raise ScriptFailed with its output if it fails or hangs."""
        try:
            done = subprocess.run(
                [str(self.python), str(script), *arguments],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ScriptFailed(f"{script.name} did not end within {timeout:.0f} s") from None
        if done.returncode:
            raise ScriptFailed(f"{script.name} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
