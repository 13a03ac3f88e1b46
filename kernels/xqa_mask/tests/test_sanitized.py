"""The CPU tests once more, with the kernels built under AddressSanitizer and UBSan."""

from __future__ import annotations

from pathlib import Path

import pytest
from xqa_mask_host_build import FOLDER, LIBRARY_VARIABLE

from sm120.kernels._kit import host_library, sanitizers

HERE = Path(__file__).parent
# what reads and writes most; wrong twins are left out, several of which are wrong by going out of bounds
SELECTION = "(every_word or past_the_last or wrong_offsets) and not rejected"


@pytest.fixture(scope="module")
def library() -> Path:
    return host_library.compile_library(FOLDER / "tests" / "xqa_mask_host.cpp", include=[FOLDER], sanitize=True)


def test_the_kernels_touch_nothing_but_their_tensors(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    arguments = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        SELECTION,
        str(HERE / "test_kernel_on_cpu.py"),
    ]
    done = sanitizers.run_python(arguments, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not any(finding in done.stderr for finding in sanitizers.FINDINGS)
    assert " passed" in done.stdout


WRITES_PAST = """
import sys
from pathlib import Path
import numpy
from sm120.kernels._kit.host_library import HostLibrary
out = numpy.zeros(5 * 8 * 2, numpy.uint16)
offsets = numpy.arange(0, 41, 8, dtype=numpy.int32)
HostLibrary(Path(sys.argv[1])).call("xqa_mask_ragged_host", out, offsets, 5 * 8 + int(sys.argv[2]), 5, 8)
print("no finding")
"""


@pytest.mark.parametrize(("extra", "clean"), [(0, True), (1, False)])
def test_one_row_too_many_is_a_finding(library: Path, extra: int, clean: bool) -> None:
    done = sanitizers.run_python(["-c", WRITES_PAST, str(library), str(extra)], timeout=300)
    assert ("no finding" in done.stdout) == clean, done.stderr[-3000:]
    assert clean or "AddressSanitizer" in done.stderr
