"""The proof on a real runtime: it holds, and it stops holding when a page comes back wrong from storage."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sm120.integration.build.installed_runtime import PROOF_LAYER, Runtime
from sm120.integration.cli import app
from sm120.integration.prove.served_proof import prove

pytestmark = [pytest.mark.served, pytest.mark.slow, pytest.mark.timeout(1200)]

FAULTS = Path(__file__).parent / "faults"
STAND_INS = PROOF_LAYER / "stand_ins"
NOT_STAND_INS = ("__init__", "hook")


def proof(runtime: Runtime, work: Path, **what: bool) -> tuple[int, dict]:
    file = work / "proof.json"
    code = prove(runtime, json=file, work=work, **what)
    return code, json.loads(file.read_text())


def test_dense_is_equal_from_every_tier(runtime: Runtime, work: Path) -> None:
    code, told = proof(runtime, work)
    assert [row["problems"] for row in told["rows"]] == [[], [], [], []]
    assert [row["cached"] for row in told["rows"]] == [
        {"device": 0, "host": 0, "storage": 0},
        {"device": 192, "host": 0, "storage": 0},
        {"device": 0, "host": 192, "storage": 0},
        {"device": 0, "host": 0, "storage": 192},
    ]
    assert code == 0 and told["ok"]


def test_speculation_changes_no_token(runtime: Runtime, work: Path) -> None:
    code, told = proof(runtime, work, caching=False, speculation=True)
    assert {row["step"].split(",")[0] for row in told["rows"]} == {"no speculation", "STANDALONE", "DFLASH"}
    assert [row["problems"] for row in told["rows"]] == [[]] * 12
    assert code == 0
    # Every stand-in was loaded by a real upstream module, and none refused it.
    assert told["stand_ins"] == sorted(path.stem for path in STAND_INS.glob("*.py") if path.stem not in NOT_STAND_INS)


def test_hybrid_is_equal_from_every_tier(runtime: Runtime, work: Path) -> None:
    code, told = proof(runtime, work, caching=False, hybrid=True)
    assert [row["problems"] for row in told["rows"]] == [[], [], [], []]
    assert told["rows"][3]["cached"] == {"device": 0, "host": 0, "storage": 128}
    assert code == 0


def test_zeroed_pages_from_storage_are_reported(runtime: Runtime, work: Path) -> None:
    """The mutation twin of the dense proof: the same command, one fault, exit code 1 and the right row named."""
    file = work / "faulty.json"
    options = ["prove", "--runtime", str(runtime.folder), "--work", str(work), "--json", str(file)]
    options += ["--fault", str(FAULTS / "corrupt_reads.py")]
    for path in runtime.extra_paths:
        options += ["--path", str(path)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 1, result.output
    rows = json.loads(file.read_text())["rows"]
    assert [row["ok"] for row in rows] == [True, True, True, False]
    assert rows[3]["cached"]["storage"] == 192
    assert not rows[3]["verdict"]["equal"]
    assert "storage hit after a restart: tokens differ" in result.output
