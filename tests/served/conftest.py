"""What every served test starts from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120.integration import build
from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.refusal import Refusal
from sm120.integration.prove import recipes

PLE = Path(__file__).parent / "ple"


@pytest.fixture(scope="session", autouse=True)
def _forked_children() -> None:
    """Of the 31 s that the start of a server costs, 20 go into what its two other processes import again."""
    os.environ["PROOF_FORK"] = "1"


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """The runtime that SM120_RUNTIME names, or build/runtime; a served test without one fails, it does not skip."""
    try:
        return Runtime.chosen()
    except Refusal as error:
        pytest.fail(f"served tests need a built runtime: {error}; `make runtime` builds build/runtime", pytrace=False)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, storage and logs of this session's proofs; the models are made once."""
    return tmp_path_factory.mktemp("prove")


@dataclass(frozen=True)
class PleModel:
    """A tiny Qwen4-Exp, whose first layer has n-gram and short-conv side states, and what serves it on a CPU."""

    folder: Path
    hooks: tuple[Path, ...]
    environment: Mapping[str, str]


@pytest.fixture(scope="session")
def ple_model(runtime: Runtime, work: Path) -> PleModel:
    folder = work / "models" / "ple"
    runtime.run_script(PLE / "make_ple_model.py", str(folder), str(Path(build.__file__).parent))
    # The mixers of its residual streams would be compiled at every start.
    environment = recipes.HYBRID_ENVIRONMENT | {"TORCHDYNAMO_DISABLE": "1"}
    return PleModel(folder, (PLE / "float16_dense.py",), environment)
