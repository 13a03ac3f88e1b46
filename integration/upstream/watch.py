"""Look for releases of the pinned projects that are not listed yet, and try the series on them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import load_pin
from sm120.integration.upstream.bump import Plan, plan_bump
from sm120.integration.upstream.matrix import Table, make_matrix
from sm120.integration.upstream.releases import Release, load_releases


@dataclass(frozen=True)
class News:
    """A new release: how the series fares on it, and on the newest listed one."""

    release: Release
    plan: Plan
    before: Table


def new_versions(checkout: Checkout, project: str) -> list[str]:
    """Final releases that pip's index has and that are newer than every listed one, oldest first.

    Raises:
        Refusal: `watch-index` when pip gives no answer.
    """
    pin = load_pin(checkout.patches / project)
    listed = [Version(release.version) for release in load_releases(checkout.patches / project)]
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", pin.distribution]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    found = re.search(r"Available versions: (.+)", result.stdout)
    if result.returncode != 0 or not found:
        words = (result.stderr.strip().splitlines() or ["no versions"])[-1]
        raise Refusal("watch-index", f"{pin.distribution}: {words}")
    versions = []
    for text in found[1].split(","):
        try:
            version = Version(text.strip())
        except InvalidVersion:
            continue
        if version > max(listed) and not version.is_prerelease:
            versions.append(version)
    return [str(version) for version in sorted(versions)]


def try_release(checkout: Checkout, project: str, version: str) -> News:
    """Download a wheel of the new release and plan a bump to it; nothing in `patches/` changes.

    Raises:
        Refusal: `release-unfetched`; as `plan_bump`.
    """
    pin = load_pin(checkout.patches / project)
    with tempfile.TemporaryDirectory(prefix="sm120-watch-") as name:
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "-d", name, f"{pin.distribution}=={version}"]
        result = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(name).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            words = (result.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise Refusal("release-unfetched", f"{pin.distribution}=={version}: {words}")
        digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        release = Release(version=version, file=wheels[0].name, sha256=digest)
        plan = plan_bump(checkout, project, release, wheel=wheels[0])
    return News(release, plan, make_matrix(checkout, project))


def report(news: list[News]) -> str:
    """The issue's text: what changed for each patch against the newest listed release, and the lines to list it."""
    names = ", ".join(f"{one.plan.project} {one.release.version}" for one in news)
    parts = [f"# Released: {names}\n"]
    for one in news:
        newest = one.before.versions[-1]
        words = {row.slug: row.cells[newest].word for row in one.before.rows}
        parts.append(f"## {one.plan.project} {one.release.version}\n")
        parts.append(f"| patch | on {newest} | on {one.release.version} | why |\n| --- | --- | --- | --- |")
        for outcome in one.plan.outcomes:
            parts.append(f"| {outcome.slug} | {words.get(outcome.slug, '')} | {outcome.kind} | {outcome.why} |")
        parts.append("\nTo list it, in `releases.toml`:\n")
        lines = ["[[releases]]", f'version = "{one.release.version}"', f'file = "{one.release.file}"']
        parts.append("```toml\n" + "\n".join([*lines, f'sha256 = "{one.release.sha256}"']) + "\n```")
        parts.append(f"\nThen `sm120 bump {one.plan.project} {one.release.version} --probes --time-machine`.\n")
    return "\n".join(parts)
