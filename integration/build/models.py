"""Tiny random-weight models, made once per cache folder by the runtime's own transformers."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sm120.integration.build.installed_runtime import Runtime

_SCRIPT = Path(__file__).with_name("make_model.py")


@dataclass(frozen=True)
class Model:
    """What to make: `family` is dense (Qwen3), hybrid (Qwen3.5 text: gated delta net + full attention) or dflash
    (draft).

    `context` scales what the layers add to the token map that all models share (see make_model.py): about 2 makes
    outputs depend on the whole prompt, about 0.5 makes a draft. `mtp` adds a NEXTN head to a hybrid. `config` replaces
    values of the model's configuration. float16 or float32 only: bfloat16 is wrong under Triton's interpreter.
    """

    family: str
    seed: int
    dtype: str
    context: float
    mtp: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family not in ("dense", "hybrid", "dflash"):
            raise ValueError(f"model family {self.family!r}: use dense, hybrid or dflash")
        if self.dtype not in ("float16", "float32"):
            raise ValueError(f"model dtype {self.dtype!r}: use float16 or float32")
        if self.mtp and self.family != "hybrid":
            raise ValueError(f"an MTP head belongs to a hybrid, not to {self.family!r}")


DENSE = Model("dense", seed=1, dtype="float32", context=2.0)
STANDALONE_DRAFT = Model("dense", seed=2, dtype="float32", context=0.5, config={"num_hidden_layers": 2})
DFLASH_DRAFT = Model("dflash", seed=3, dtype="float32", context=0.5)

# The gated delta net's chunk kernel refuses float32.
HYBRID = Model("hybrid", seed=4, dtype="float16", context=3.0, mtp=True)
HYBRID_STANDALONE_DRAFT = replace(STANDALONE_DRAFT, dtype="float16")
HYBRID_DFLASH_DRAFT = replace(DFLASH_DRAFT, dtype="float16")


def make(runtime: Runtime, model: Model, cache: Path) -> Path:
    """Return the folder of `model` inside `cache`, making it first if it is not there.

    The folder's name carries a hash of the description and of the script, so a change of either makes a new one. Raises
    RuntimeError with the script's output when it fails; nothing half-written is left under the final name.
    """
    spec = asdict(model)
    text = json.dumps(spec, sort_keys=True)
    digest = hashlib.sha256(text.encode() + _SCRIPT.read_bytes()).hexdigest()[:12]
    final = cache.absolute() / f"{model.family}-{digest}"
    if final.is_dir():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    try:
        (aside / "spec.json").write_text(text)
        runtime.run_script(_SCRIPT, str(aside / "model"), str(aside / "spec.json"))
        try:
            os.rename(aside / "model", final)
        except OSError:
            # Another process was faster; its bytes are the same.
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final
