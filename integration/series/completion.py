"""What the shell offers where a patch or a project is wanted."""

from __future__ import annotations

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.refusal import Refusal


def slugs(incomplete: str) -> list[str]:
    """The slugs that begin with `incomplete`; none outside a checkout."""
    return [name for name in _slugs() if name.startswith(incomplete)]


def projects(incomplete: str) -> list[str]:
    """The projects that begin with `incomplete`."""
    try:
        return [name for name in find_checkout().projects() if name.startswith(incomplete)]
    except Refusal:
        return []


def slugs_and_projects(incomplete: str) -> list[str]:
    return slugs(incomplete) + projects(incomplete)


def _slugs() -> list[str]:
    try:
        checkout = find_checkout()
        lines = [
            line.split("#")[0].strip()
            for project in checkout.projects()
            for line in (checkout.patches / project / "series").read_text().splitlines()
        ]
    except (Refusal, OSError):
        return []
    return [line.removesuffix(".patch") for line in lines if line]
