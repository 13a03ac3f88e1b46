"""What a server said while it started, held against what its profile meant."""

from sm120.integration.serve.startup.startup_check import Row, assert_startup, passed

__all__ = ["Row", "assert_startup", "passed"]
