"""What every test process gets, whoever starts it."""

from __future__ import annotations

import os

# Consoles take their width once, when they are made: wide enough that no table breaks a line that a test looks for.
os.environ["COLUMNS"] = "400"
# Where these are set, pytest spells out how two long lists differ, in quadratic time: minutes in a test whose
# comparison is meant to fail, past every time limit. A test must say the same with and without them.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)
