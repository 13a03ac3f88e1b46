"""What every test process gets, whoever starts it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
import sys
from pathlib import Path

import pytest

from sm120.integration.common.caches import library_caches

ROOT = Path(__file__).parent

# Consoles take their width once, when they are made: wide enough that no table breaks a line that a test looks for.
os.environ["COLUMNS"] = "800"
# Where these are set, pytest spells out how two long lists differ, in quadratic time: minutes in a test whose
# comparison is meant to fail, past every time limit. A test must say the same with and without them.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)


def find_tools() -> None:
    """Put what the tests' environment brings on PATH behind what the machine has: ninja, and nvcc if it has none.

    `make test` installs them; a test that looks for a program need not know where it came from.
    """
    brought = [Path(sys.prefix) / "bin"]
    if shutil.which("nvcc") is None:
        toolkit = site_packages(Path(sys.prefix)) / "nvidia" / "cu13"
        if (toolkit / "bin" / "nvcc").is_file():
            brought.append(toolkit / "bin")
            if not (toolkit / "lib64").exists() and os.access(toolkit, os.W_OK):
                (toolkit / "lib64").symlink_to("lib")  # nvcc links from lib64, which the packages call lib
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*path, *(str(folder) for folder in brought if str(folder) not in path)])


def find_runtime() -> None:
    """Name the runtime that `make runtime` built to the tests, where nobody named another, and let torch be imported."""
    if not (ROOT / "build" / "runtime" / "runtime.json").is_file():
        return
    runtime = os.environ.setdefault("SM120_RUNTIME", str(ROOT / "build" / "runtime"))
    for name in ("SM120_SGLANG", "SM120_FLASHINFER"):
        os.environ.setdefault(name, str(site_packages(Path(runtime))))

    from sm120.integration.build.runtime import link_test_layer
    from sm120.integration.common.checkout import Checkout
    from sm120.integration.common.refusal import Refusal

    try:
        link_test_layer(Checkout(ROOT))
    except (Refusal, OSError):
        return  # what needs torch says so itself
    if importlib.util.find_spec("torch") is None:  # linked just now, and Python reads .pth files when it starts
        site.addsitedir(str(site_packages(Path(sys.prefix))))


def site_packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


find_tools()
find_runtime()
os.environ.update(library_caches(ROOT / "build" / "cache"))


class FailuresAtOnce:
    """Prints why a test failed when it has failed: a long run that is killed never gets to its summary."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter

    @pytest.hookimpl(trylast=True)  # after its F
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reporter.write_line(f"\n{report.when} of {report.nodeid} failed:\n{report.longreprtext}")


@pytest.hookimpl(trylast=True)  # xdist has told by then whether there are workers
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.getoption("numprocesses", None):
        config.pluginmanager.register(FailuresAtOnce(reporter), "failures-at-once")
