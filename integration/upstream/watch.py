"""Look for releases of the pinned projects that are not listed yet, and try the series on them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.pip import pip, reason
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import load_pin
from sm120.integration.upstream.bump import Plan, plan_bump
from sm120.integration.upstream.matrix import Table, make_matrix
from sm120.integration.upstream.releases import Release, load_releases, local_release

TOOLCHAIN = ("torch", "triton")


@dataclass(frozen=True)
class News:
    """A new release: how the series fares on it, and on the newest listed one."""

    release: Release
    plan: Plan
    before: Table


@dataclass(frozen=True)
class Companion:
    """A version of what is installed beside a project that is newer than the pin's, where the project has none."""

    project: str
    distribution: str
    pinned: str
    versions: list[str]


def new_versions(checkout: Checkout, project: str) -> list[str]:
    """Final and post-releases on pip's index that are newer than the pin and not listed, oldest first.

    Raises:
        Refusal: `watch-index` when pip gives no answer.
    """
    pin = load_pin(checkout.patches / project)
    listed = [Version(release.version) for release in load_releases(checkout.patches / project)]
    # Between listed releases, too: a post-release of the pin may come after the next one was listed.
    floor = Version(pin.version)
    return [str(one) for one in index_versions(pin.distribution) if one > floor and one not in listed]


def new_companions(checkout: Checkout, project: str) -> list[Companion]:
    """The pin's companions that have newer versions: a release that is half published shows here first.

    Raises:
        Refusal: `watch-index`.
    """
    found = []
    for companion in load_pin(checkout.patches / project).companions:
        newer = [one for one in index_versions(companion.distribution) if one > Version(companion.version)]
        if newer:
            found.append(Companion(project, companion.distribution, companion.version, list(map(str, newer))))
    return found


def new_toolchain(checkout: Checkout) -> list[Companion]:
    """What every kernel is compiled against or by (`TOOLCHAIN`), where the index has newer than the CUDA lock.

    Raises:
        Refusal: `watch-index`.
    """
    path = checkout.locks / "cuda.txt"
    locked = dict(re.findall(r"(?m)^([\w.-]+)==([\w.+!]+)", path.read_text())) if path.is_file() else {}
    found = []
    for name in TOOLCHAIN:
        if name in locked:
            newer = [str(one) for one in index_versions(name) if one > Version(locked[name])]
            if newer:
                found.append(Companion("the runtime", name, locked[name], newer))
    return found


def index_versions(distribution: str) -> list[Version]:
    """Versions of `distribution` that pip's index has for this Python, without pre-releases, oldest first.

    Raises:
        Refusal: `watch-index` when pip gives no answer.
    """
    answer = pip("index", "versions", distribution, doing="asking the index", where=Path(tempfile.gettempdir()))
    found = re.search(r"Available versions: (.+)", answer.stdout)
    if answer.returncode != 0 or not found:
        raise Refusal("watch-index", f"{distribution}: {reason(answer, 'no versions')}")
    versions = set()
    for text in found[1].split(","):
        try:
            version = Version(text.strip())
        except InvalidVersion:
            continue
        if not version.is_prerelease and version.local is None:
            versions.add(version)
    return sorted(versions)


def try_release(checkout: Checkout, project: str, version: str) -> News:
    """Download a wheel of the new release and plan a bump to it; nothing in `patches/` changes.

    Raises:
        Refusal: `release-unfetched`; as `plan_bump`.
    """
    with unlisted_release(checkout, project, version) as (release, wheel):
        plan = plan_bump(checkout, project, release, wheel=wheel)
    return News(release, plan, make_matrix(checkout, project))


@contextmanager
def unlisted_release(checkout: Checkout, project: str, version: str) -> Iterator[tuple[Release, Path]]:
    """A release that `releases.toml` does not list, from the index: its entry, and its wheel for as long as this lasts.

    Raises:
        Refusal: `release-unfetched` when no index has a wheel of it for this Python.
    """
    pin = load_pin(checkout.patches / project)
    with tempfile.TemporaryDirectory(prefix="sm120-release-") as name:
        wanted = f"{pin.distribution}=={version}"
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "-d", name]
        answer = pip("download", *options, wanted, doing=f"fetching {wanted}", where=Path(name))
        wheels = list(Path(name).glob("*.whl"))
        if answer.returncode != 0 or not wheels:
            raise Refusal("release-unfetched", f"{wanted}: {reason(answer, 'no wheel')}")
        yield local_release(wheels[0], version, pin.distribution), wheels[0]


def report(news: list[News], companions: Sequence[Companion] = (), refused: Sequence[Refusal] = ()) -> str:
    """The issue's text: what changes for each patch against the newest listed release, and the lines to list it."""
    names = [f"{one.plan.project} {one.release.version}" for one in news]
    names += [f"{one.distribution} {version}" for one in companions for version in one.versions]
    parts = [f"# Released: {', '.join(names) or 'not known'}\n"]
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
    for companion in companions:
        parts.append(f"## {companion.distribution} {', '.join(companion.versions)}\n")
        parts.append(f"Installed beside {companion.project}, which has {companion.pinned}.\n")
    if refused:
        parts.append("## Not answered\n")
        parts += [f"* {refusal}" for refusal in refused]
    return "\n".join(parts)
