"""What a build is made of, as one hash: of a project's patched wheel, and of a runtime."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120.integration.common.checkout import Checkout
from sm120.integration.series.overlay import OverlayFile, load_overlay
from sm120.integration.series.pin import Artifact, select_artifact
from sm120.integration.series.series import Series, load_series

# Raise when the way a wheel or a runtime is put together changes, so that old builds are not taken for new ones.
LAYOUT = 1


def digest(value: Any) -> str:
    """sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    ).hexdigest()


@dataclass(frozen=True)
class Recipe:
    """Everything that decides one project's patched wheel."""

    series: Series
    artifact: Artifact
    overlay: list[OverlayFile]

    def ingredients(self) -> dict[str, Any]:
        return {
            "layout": LAYOUT,
            "artifact": self.artifact.sha256,
            "overlay": [{"kernel": f.kernel, "target": f.target, "sha256": f.sha256} for f in self.overlay],
            "patches": [{"slug": p.slug, "sha256": p.sha256} for p in self.series.patches],
        }

    @property
    def local_version(self) -> str:
        """`sm120.h` + 8 hex digits; the letter keeps PEP 440 from reading an all-digit hash as a number."""
        return f"sm120.h{digest(self.ingredients())[:8]}"

    @property
    def version(self) -> str:
        return f"{self.series.pin.version}+{self.local_version}"

    @property
    def name(self) -> str:
        return f"{self.series.project}-{self.version}"


def load_recipe(checkout: Checkout, project: str) -> Recipe:
    """Read and check the pin, series and overlay of `project`.

    Raises:
        Refusal: whatever is wrong with them.
    """
    series = load_series(checkout.patches / project)
    artifact = select_artifact(
        series.pin.artifacts, what=f"{project} {series.pin.version}", path=checkout.patches / project / "pin.toml"
    )
    return Recipe(series, artifact, load_overlay(checkout.kernels, series.kernels, project))


def runtime_ingredients(recipes: list[Recipe], flavor: str, lock: Path) -> dict[str, Any]:
    """Everything that decides a runtime."""
    return {
        "layout": LAYOUT,
        "flavor": flavor,
        "lock": hashlib.sha256(lock.read_bytes()).hexdigest(),
        "python": f"{sys.implementation.name} {platform.python_version()}",
        "machine": platform.machine(),
        "projects": {recipe.series.project: recipe.ingredients() for recipe in recipes},
        "companions": [a.sha256 for recipe in recipes for c in recipe.series.pin.companions for a in c.artifacts],
    }
