"""What the op would launch on a device: arguments that marshal, match the kernel's signature and cover every word."""

from __future__ import annotations

import ctypes
import re
import tomllib
from pathlib import Path

import pytest
import torch

from sm120.kernels._lib import fatbin
from sm120.kernels.xqa_mask import op

FOLDER = Path(__file__).parent.parent
OFFSETS = torch.tensor([0, 3, 11], dtype=torch.int32)
PLANS = {
    "xqa_mask_chain": {},
    "xqa_mask_tree": {"parents": torch.zeros(11, dtype=torch.int32)},
    "xqa_mask_matrix": {"ancestors": torch.zeros(11, 33, dtype=torch.bool)},
}
C_TYPES = {"int64_t": ctypes.c_int64, "int": ctypes.c_int32}


def plan(kernel: str, cu_seqlens: torch.Tensor | None = OFFSETS) -> tuple[str, int, list]:
    trees = {"parents": None, "ancestors": None, **PLANS[kernel]}
    out = torch.zeros(11, 4, dtype=torch.uint16)
    return op.launch_plan(out, cu_seqlens, batch=2, q_len=33, full=False, **trees)


@pytest.mark.parametrize("kernel", PLANS)
def test_arguments_have_the_types_of_the_kernel_s_parameters(kernel: str) -> None:
    name, _, arguments = plan(kernel)
    assert name == kernel
    source = (FOLDER / "xqa_mask.cuh").read_text()
    parameters = re.search(rf"{kernel}\(([^)]*)\)", source)[1].split(",")
    assert len(arguments) == len(parameters)
    for argument, parameter in zip(arguments, parameters, strict=True):
        expected = int if "*" in parameter else C_TYPES[parameter.split()[0]]
        assert type(argument) is expected, parameter


@pytest.mark.parametrize("kernel", PLANS)
def test_they_marshal(kernel: str) -> None:
    assert len(fatbin.marshal(plan(kernel)[2])[1]) == len(plan(kernel, None)[2])


@pytest.mark.parametrize(("kernel", "words_per_block"), [("xqa_mask_chain", 128), ("xqa_mask_matrix", 4)])
def test_blocks_cover_every_word_once(kernel: str, words_per_block: int) -> None:
    _, blocks, _ = plan(kernel)
    assert (blocks - 1) * words_per_block < 11 * 2 <= blocks * words_per_block


def test_no_rows_launch_nothing() -> None:
    assert op.launch_plan(torch.zeros(0, 2, dtype=torch.uint16), None, None, None, 0, 8, False)[1] == 0


def test_kernel_toml_and_op_agree() -> None:
    manifest = tomllib.loads((FOLDER / "kernel.toml").read_text())
    assert [tuple(pair) for pair in manifest["capabilities"]] == op.CAPABILITIES
    assert {row["threads"] for row in manifest["budget"]} == {op.BLOCK_THREADS}
    for row in manifest["overlay"]:
        assert (FOLDER / row["source"]).is_file() and not row["target"].startswith("/")
