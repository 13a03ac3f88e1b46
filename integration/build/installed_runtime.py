"""The Python that serves, and the environment in which everything that imports sglang runs."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.build.runtime_record import layer_folder, no_runtime, record_or_none
from sm120.integration.common.caches import library_caches
from sm120.integration.common.refusal import TRY_DEBUG, Refusal

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


class ScriptFailed(Refusal):
    """One of our scripts ended with an error in the runtime's Python, or did not end; a note has all that it said."""

    def __init__(self, script: Path, how: str, said: str = "") -> None:
        last = (said.strip().splitlines() or [""])[-1][:300]
        super().__init__("script-failed", f"{script.name} {how}{': ' if last else ''}{last}", fix=TRY_DEBUG)
        if said:
            self.add_note(said)


@dataclass(frozen=True)
class Runtime:
    """A folder with `bin/python`, and folders to put in front of its own packages (unpacked trees, say).

    Raises Refusal `runtime-missing` when the folder has no `bin/python`, `proof-layer` when that layer is not beside
    this package.
    """

    folder: Path
    extra_paths: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.python.is_file():
            raise no_runtime(self.folder)
        if not (PROOF_LAYER / "sitecustomize.py").is_file():
            why = "the stand-ins for a GPU are not there: they come with the source checkout, not with the wheel"
            raise Refusal("proof-layer", why, path=PROOF_LAYER, fix="run it from a clone")

    @classmethod
    def chosen(cls, folder: Path | None = None) -> "Runtime":
        """`folder`, else what SM120_RUNTIME names, else build/runtime; folders of SM120_RUNTIME_PATHS go in front."""
        extra = os.environ.get("SM120_RUNTIME_PATHS", "")
        folder = folder or Path(os.environ.get("SM120_RUNTIME") or "build/runtime")
        return cls(folder.absolute(), tuple(Path(path).absolute() for path in extra.split(os.pathsep) if path))

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
        record = record_or_none(self.folder)
        return [self.folder / "bin", *([layer_folder(self.folder, record.deps) / "bin"] if record else [])]

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
            raise ScriptFailed(script, f"did not end within {timeout:.0f} s") from None
        if done.returncode:
            raise ScriptFailed(script, f"failed with exit code {done.returncode}", f"{done.stdout}{done.stderr}")
