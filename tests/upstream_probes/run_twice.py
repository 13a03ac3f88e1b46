"""Run guards on the release as it is, then once more in the same process with fixes undone.

    python run_twice.py REPORT REPORT_UNDONE ROW,ROW… FILE…

The second run finds every upstream module imported, so it costs little more than its tests. Exits 1 when the first run
is not green; what the second must be is for whoever asks.
"""

import sys

import pytest
from mutants import MUTANTS, undo


def run(report: str, files: list[str]) -> int:
    options = ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={report}"]
    return int(pytest.main([*options, *files]))


if __name__ == "__main__":
    plain, undone, rows, *files = sys.argv[1:]
    code = run(plain, files)
    undo([mutant for mutant in MUTANTS if mutant.row in rows.split(",")])
    run(undone, files)
    sys.exit(code)
