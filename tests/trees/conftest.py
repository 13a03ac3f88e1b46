"""The real series on the real pinned releases; `make runtime` has unpacked and patched them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.build.identity import Recipe, load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.build.tree import patched_tree
from sm120.integration.common.checkout import Checkout, find_checkout

CHECKOUT = find_checkout(Path(__file__).parent)


@pytest.fixture(scope="session")
def checkout() -> Checkout:
    return CHECKOUT


@pytest.fixture(scope="session", params=CHECKOUT.projects())
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return load_recipe(CHECKOUT, request.param)


@pytest.fixture(scope="session")
def pristine(recipe: Recipe) -> Path:
    return pristine_of(CHECKOUT, recipe)


@pytest.fixture(scope="session")
def patched(recipe: Recipe, pristine: Path) -> Path:
    return patched_tree(pristine, recipe.series, recipe.overlay, CHECKOUT.build / "trees" / recipe.name)
