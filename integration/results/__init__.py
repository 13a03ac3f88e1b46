"""Results as data: what was measured, under which conditions, by whom; and a comparison that knows when to refuse."""

from .record import Measurement, Result, load_result

__all__ = ["Measurement", "Result", "load_result"]
