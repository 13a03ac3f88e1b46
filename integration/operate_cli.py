"""Commands for operating a runtime: serve, check the start, size, qualify, compare, watch."""

from __future__ import annotations

import typer

from sm120.integration.metrics.serve import register as register_metrics
from sm120.integration.profiles.cli import register as register_profiles
from sm120.integration.profiles.plan_cli import register as register_plan
from sm120.integration.qualify.cli import register as register_qualify
from sm120.integration.results.cli import register as register_results
from sm120.integration.startup.cli import register as register_startup


def register(app: typer.Typer) -> None:
    """Add these commands to the main command line."""
    for each in (
        register_profiles,
        register_startup,
        register_plan,
        register_qualify,
        register_results,
        register_metrics,
    ):
        each(app)
