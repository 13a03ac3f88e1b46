"""What every test process gets, whoever starts it."""

from __future__ import annotations

import os

import pytest

# Consoles take their width once, when they are made: wide enough that no table breaks a line that a test looks for.
os.environ["COLUMNS"] = "400"
# Where these are set, pytest spells out how two long lists differ, in quadratic time: minutes in a test whose
# comparison is meant to fail, past every time limit. A test must say the same with and without them.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)


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
