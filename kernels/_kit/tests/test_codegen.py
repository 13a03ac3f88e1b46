"""Offline compilation to sm_120a and what is read from the result, on kernels whose machine code is known."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import subprocess
from pathlib import Path

import pytest

from sm120.kernels._kit import compilers, host_library, machine_code, static_estimate
from sm120.kernels._kit.occupancy import occupancy

HERE = Path(__file__).parent
needs_nvcc = pytest.mark.skipif(compilers.missing_nvcc() is not None, reason=str(compilers.missing_nvcc()))


@functools.cache
def examples() -> compilers.Cubin:
    return compilers.nvcc(HERE / "codegen_examples.cu")


@needs_nvcc
def test_a_wide_copy_is_one_16_byte_load_and_store_in_a_loop() -> None:
    code = machine_code.inspect(examples())["wide_copy"]
    assert code.widths == {"LDG.16": 1, "STG.16": 1}
    assert code.spills == code.local_bytes == code.stack_bytes == 0
    assert len(code.loops) == 1
    assert machine_code.histogram(code.loops[0])["ldg"] == 1


@needs_nvcc
def test_local_memory_and_shared_memory_are_seen() -> None:
    kernels = machine_code.inspect(examples())
    assert kernels["indexed_local"].stack_bytes >= 256 and kernels["indexed_local"].spills > 0
    assert kernels["shared_tile"].shared_bytes == 256


@needs_nvcc
@pytest.mark.parametrize(
    ("kernel", "budget", "says"),
    [
        ("wide_copy", {"registers": 4}, "wide_copy: registers .* budget 4"),
        ("indexed_local", {}, "indexed_local: spill_bytes .* budget 0"),
        ("shared_tile", {"shared_bytes": 128}, "shared_tile: shared_bytes 256, budget 128"),
        ("shared_tile", {"narrowest_global_access": 16}, "LDG.4-byte global accesses, budget at least 16"),
    ],
)
def test_a_kernel_over_its_budget_is_refused(kernel: str, budget: dict, says: str) -> None:
    code = machine_code.inspect(examples())[kernel]
    generous = {"kernel": kernel, "threads": 64, "registers": 255, "spill_bytes": 0, "shared_bytes": 1024}
    with pytest.raises(AssertionError, match=says):
        static_estimate.check_budget(generous | budget, code)


@needs_nvcc
def test_a_tile_that_fits_no_block_is_refused() -> None:
    code = machine_code.inspect(examples())["shared_tile"]
    budget = {"registers": 255, "spill_bytes": 0, "shared_bytes": 10**6}
    with pytest.raises(AssertionError, match="do not fit in a block"):
        static_estimate.check_budget(budget, code, dynamic_shared_bytes=228 * 1024)


@needs_nvcc
def test_a_golden_record_notices_a_changed_kernel(tmp_path: Path) -> None:
    code = machine_code.inspect(examples())["wide_copy"]
    row = static_estimate.record(code, examples(), threads=256, bytes_moved=32)
    golden = tmp_path / "static_roofline.json"
    static_estimate.write_golden(golden, [row])
    assert "static estimate" in golden.read_text()
    static_estimate.check_golden(golden, [row])
    with pytest.raises(AssertionError, match="registers is 99"):
        static_estimate.check_golden(golden, [row | {"registers": 99}])
    with pytest.raises(AssertionError, match="hot_loop"):
        static_estimate.check_golden(golden, [row | {"hot_loop": {"instructions": 99, "by_class": {}}}])
    with pytest.raises(AssertionError, match="built"):
        static_estimate.check_golden(golden, [])
    with pytest.raises(static_estimate.OtherToolchain, match="nvcc 99"):
        static_estimate.check_golden(golden, [row | {"registers": 99, "toolchain": "nvcc 99"}])


@needs_nvcc
def test_a_source_that_does_not_compile_reports_the_compiler(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void k() { nothing(); }")
    with pytest.raises(compilers.CompileError, match="nothing"):
        compilers.nvcc(source)


@pytest.mark.parametrize("size", [0, 1, 2, 300])
def test_data_of_a_binding_is_written_into_no_shared_object(size: int) -> None:
    def write(program: None, buffer: bytes) -> None:  # as C does: whatever object this is
        ctypes.memmove(ctypes.cast(buffer, ctypes.c_void_p), b"\x07" * 300, size)

    assert compilers._filled_by(write, None, size) == b"\x07" * size
    every = bytes(range(256))
    assert [every[code : code + 1][0] for code in range(256)] == list(range(256)), (
        "Python's own b'…' of one byte changed"
    )


@pytest.mark.skipif(compilers.missing_nvrtc() is not None, reason=str(compilers.missing_nvrtc()))
def test_nvrtc_makes_the_same_accesses(tmp_path: Path) -> None:
    code = machine_code.inspect(compilers.nvrtc(HERE / "codegen_examples.cu"))["wide_copy"]
    assert b"  "[:1][0] == 0x20, "the empty log was written into the shared b' '"
    assert code.widths == {"LDG.16": 1, "STG.16": 1}
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void k() { nothing(); }")
    with pytest.raises(compilers.CompileError, match="nothing"):
        compilers.nvrtc(source)


def test_triton_compiles_offline_and_vectorises_aligned_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # as in the interpreter's tests: must not reach the compiler
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{__import__('os').environ.get('PYTHONPATH', '')}")
    signature = {"x": "*bf16", "y": "*bf16", "n": "i32", "factor": "fp32"}
    compile_ = functools.partial(
        compilers.triton, "triton_example", "scale", signature=signature, constexprs={"BLOCK": 1024}
    )
    wide = machine_code.only(compile_(aligned=["x", "y", "n"]))
    assert set(wide.widths) == {"LDG.16", "STG.16"}
    narrow = machine_code.only(compile_())
    assert set(narrow.widths) == {"LDG.2", "STG.2"}
    with pytest.raises(compilers.CompileError, match="the kernel has"):
        compilers.triton("triton_example", "scale", signature={"x": "*bf16"})


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "warps", "limit"),
    [
        (21, 128, 0, 48, "warps"),
        (128, 128, 13440, 16, "registers"),
        (190, 128, 22784, 8, "registers"),
        (172, 256, 41472, 8, "registers"),
        (64, 256, 0, 32, "registers"),
        (16, 32, 0, 24, "blocks"),
        (32, 64, 50000, 4, "shared memory"),
    ],
)
def test_occupancy_of_known_kernels(registers: int, threads: int, shared: int, warps: int, limit: str) -> None:
    found = occupancy(registers, threads, shared)
    assert (found.warps, found.limit) == (warps, limit)


def test_occupancy_agrees_with_nvidia_s_own_header(tmp_path: Path) -> None:
    cases = [(r, t, s) for r in (16, 40, 96, 168, 255) for t in (32, 96, 128, 256) for s in (0, 1000, 22784, 101376)]
    program = tmp_path / "occupancy"
    source = HERE / "occupancy_of_header.cpp"
    subprocess.run(
        ["g++", f"-I{host_library.cuda_include()}", str(source), "-o", str(program)], check=True, timeout=120
    )
    lines = "\n".join(f"{r} {t} {s}" for r, t, s in cases)
    out = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=True, timeout=60).stdout
    theirs = [int(line) for line in out.split()]
    assert [occupancy(*case).blocks for case in cases] == theirs


def test_a_kernel_that_cannot_be_launched_has_no_occupancy() -> None:
    with pytest.raises(ValueError, match="no room for a block of 1024"):
        occupancy(255, 1024, 0)
    with pytest.raises(ValueError, match="shared_bytes: got 101377"):
        occupancy(32, 32, 101377)


def test_an_incomplete_budget_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.toml"
    path.write_text('[[budget]]\nkernel = "k"\nregisters = 3\n')
    with pytest.raises(ValueError, match=r"kernel\.toml: budget 'k' lacks"):
        static_estimate.budgets(path)


def test_a_cubin_with_several_kernels_is_not_the_only_one() -> None:
    if compilers.missing_nvcc() is not None:
        pytest.skip(str(compilers.missing_nvcc()))
    with pytest.raises(ValueError, match="needs exactly one"):
        machine_code.only(examples())
    with pytest.raises((ValueError, RuntimeError)):
        machine_code.inspect(dataclasses.replace(examples(), data=b"not a cubin"))
