"""Real pools and files in the patched runtime's Python: no fault ever gives wrong state; fio-sized transfers arrive."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120.integration.common.checkout import find_checkout
from sm120.integration.prove.nixl_check.nixl_matrix import QUEUES, run_matrix
from sm120.integration.prove.persistence.faults import NEED_CHECKSUM, failures, run_faults
from sm120.integration.prove.persistence.storage_bench import SHORT_SIZES, run_bench
from sm120.integration.upstream.releases import load_releases, release_tree

pytestmark = [pytest.mark.served, pytest.mark.slow, pytest.mark.timeout(900)]


def test_faults_cost_a_prefill_and_nothing_more(runtime, tmp_path):
    rows = run_faults(runtime, tmp_path)
    assert failures(rows) == []
    # The same judge sees wrong state where nothing guards against it: it is not blind.
    assert {row.fault for row in rows if row.wrong} == set(NEED_CHECKSUM)
    assert all(row.full for row in rows if row.fault == "two-servers")
    assert all(row.full and row.miss for row in rows if row.fault == "full-file-system")


def test_bench_moves_every_page(runtime, tmp_path):
    fio = shutil.which("fio") is not None  # the comparison needs it, the pages do not
    timings = run_bench(runtime, tmp_path, sizes=SHORT_SIZES, rounds=2, processes=2, fio=fio)
    assert len({timing.variant for timing in timings}) == len(timings)
    assert {timing.variant for timing in timings} >= {"zero-copy", "bounce", "bounce, padded"}
    assert fio == any(timing.variant == "fio" for timing in timings)
    assert all(len(timing.write) == len(timing.read) == 2 * 2 and timing.rate("read") > 0 for timing in timings)
    if not fio:
        pytest.skip("every page arrived; no fio on PATH, so nothing was compared with the disk's own speed")


def test_installed_nixl_has_a_safe_queue(runtime, tmp_path):
    quick = ["round-trip", "short-read", "read-only-descriptor", "crossed-completion", "misaligned-direct-io"]
    extra = os.pathsep.join(map(str, runtime.extra_paths))
    matrix = run_matrix(runtime.python, tmp_path, cases=quick, pythonpath=extra or None)
    assert matrix.recommended() == "uring", matrix.rows
    # POSIX AIO never recovers from one failed request in this version: the suite must say so.
    assert matrix.failures("posix_aio", guarded=False)


def skip_unless_it_loads(runtime, release):
    """Releases are listed by one wheel each, and its extension modules load in one Python on one machine only."""
    ask = "import platform, sys; print('cp%d%d' % sys.version_info[:2], platform.machine())"
    python, machine = subprocess.check_output([runtime.python, "-c", ask], text=True).split()
    wheel = release.artifact
    if wheel.python not in (python, "py3") or wheel.machine not in (machine, "any"):
        pytest.skip(f"{wheel.file} is for {wheel.python}/{wheel.machine}, the runtime is {python}/{machine}")


@pytest.mark.long
def test_old_nixl_is_found_out(runtime, tmp_path):
    """Red twin: the oldest listed release has defects on every queue."""
    checkout = find_checkout(Path(__file__))
    oldest = load_releases(checkout.patches / "nixl")[0]
    skip_unless_it_loads(runtime, oldest)
    cases = ["short-read", "no-space", "crossed-completion"]
    matrix = run_matrix(runtime.python, tmp_path, cases=cases, pythonpath=str(release_tree(checkout, "nixl", oldest)))
    assert matrix.version == oldest.version
    # None is recommended where nothing ran, too.
    assert all(matrix.ran(queue) and matrix.failures(queue, guarded=False) for queue in QUEUES), matrix.rows
    assert matrix.recommended() is None, matrix.rows
