"""Commands for operating a runtime: serve, check the start, size, qualify, compare, watch."""

from __future__ import annotations

import typer

from sm120.integration.profiles.cli import register as register_profiles


def register(app: typer.Typer) -> None:
    """Add these commands to the main command line."""
    register_profiles(app)
