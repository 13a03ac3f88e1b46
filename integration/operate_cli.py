"""Commands for operating a runtime: serve, check the start, size, qualify, compare, watch."""

from __future__ import annotations

import typer

from sm120.integration.measure.qualify_commands import register as register_qualify
from sm120.integration.measure.results_commands import register as register_results
from sm120.integration.serve.metrics.metrics_page import register as register_metrics
from sm120.integration.serve.plan_commands import register as register_plan
from sm120.integration.serve.serve_commands import register as register_profiles
from sm120.integration.serve.startup.startup_commands import register as register_startup


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
