"""A series: the ordered patches of one project, checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.series.patch_file import SLUG, Patch, parse_patch
from sm120.integration.series.pin import Pin, load_pin
from sm120.integration.series.switch import switch


@dataclass(frozen=True)
class Series:
    """The patches of one project in the order in which they apply."""

    folder: Path
    pin: Pin
    patches: list[Patch]

    @property
    def project(self) -> str:
        return self.pin.project

    @property
    def kernels(self) -> list[str]:
        """Kernels whose overlay these patches need, in order of first use."""
        return list(dict.fromkeys(name for patch in self.patches for name in patch.kernels))

    def patch(self, slug: str) -> Patch:
        """The patch called `slug`.

        Raises:
            Refusal: `unknown-slug`, listing the slugs there are.
        """
        for patch in self.patches:
            if patch.slug == slug:
                return patch
        known = [patch.slug for patch in self.patches]
        raise Refusal(
            "unknown-slug", f"{slug!r} is not in the series{there_are(slug, known)}", path=self.folder / "series"
        )


def load_series(folder: Path) -> Series:
    """Read and check `folder/series`, its pin and every patch it names.

    Raises:
        Refusal: from the pin, from a patch, or `series-missing`, `series-line`, `series-twice`, `series-unlisted`,
            `series-requires`, `series-create-twice`.
    """
    pin = load_pin(folder)
    path = folder / "series"
    if not path.is_file():
        raise Refusal("series-missing", "no series file", path=path)
    lines: dict[str, int] = {}
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        entry = raw.strip()
        if not entry or entry.startswith("#"):
            continue
        name, extension = entry[:-6], entry[-6:]
        if extension != ".patch" or not SLUG.fullmatch(name):
            raise Refusal(
                "series-line", f"{entry!r} is not 'slug.patch' (no options, no folders)", path=path, line=number
            )
        if name in lines:
            raise Refusal("series-twice", f"{entry} stands at line {lines[name]} already", path=path, line=number)
        if not (folder / entry).is_file():
            raise Refusal("patch-missing", f"{entry} is not in {folder}", path=path, line=number)
        lines[name] = number
    for file in sorted(folder.glob("*.patch")):
        if file.stem not in lines:
            raise Refusal("series-unlisted", "patch file is not in the series", path=file, fix=f"add it to {path}")
    patches = [parse_patch(folder / f"{name}.patch") for name in lines]
    _check_order(path, lines, patches)
    return Series(folder, pin, patches)


def write_patches(folder: Path, texts: dict[str, bytes], slugs: list[str] | None = None) -> None:
    """Put the patches `texts` (by slug) into `folder`; with `slugs` these, in this order, are all of its series then.

    Everything happens in one step (see switch.py): a full disk or a killed process leaves the old series or the new one.

    Raises:
        Refusal: what a patch or a series is refused for; `folder` is then untouched.
    """
    texts = {slug: text for slug, text in texts.items() if slugs is None or slug in slugs}
    put = {folder / f"{slug}.patch": text for slug, text in texts.items()}
    delete: list[Path] = []
    if slugs is not None:
        comments = [line for line in (folder / "series").read_text().splitlines() if line.startswith("#")]
        put[folder / "series"] = ("\n".join([*comments, *(f"{slug}.patch" for slug in slugs)]) + "\n").encode()
        delete = [path for path in folder.glob("*.patch") if path.stem not in slugs]

    def check(copy: Path) -> None:
        for slug in texts:
            parse_patch(copy / f"{slug}.patch")

    switch(folder, put, delete, check=check)


def _check_order(path: Path, lines: dict[str, int], patches: list[Patch]) -> None:
    seen: set[str] = set()
    creators: dict[str, str] = {}
    for patch in patches:
        for needed in patch.requires:
            if needed not in seen:
                state = "comes later" if needed in lines else "is not in the series"
                raise Refusal(
                    "series-requires",
                    f"{patch.slug} requires {needed}, which {state}",
                    path=path,
                    line=lines[patch.slug],
                )
        for target in patch.created:
            if target in creators:
                raise Refusal(
                    "series-create-twice",
                    f"{patch.slug} creates {target}, which {creators[target]} creates already",
                    path=patch.path,
                    line=patch.diff_line,
                )
            creators[target] = patch.slug
        seen.add(patch.slug)
