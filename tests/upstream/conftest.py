"""The small checkout of the foundation's tests serves these too."""

from __future__ import annotations

from ..foundation import conftest as foundation

mini = foundation.mini
