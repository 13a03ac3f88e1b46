"""A patch's header as a commit message that git shows and rebases well, and back, byte for byte.

The subject is the first line, the description the body, and every other field a trailer; `Slug:` is the last.
"""

from __future__ import annotations

import re

from sm120.integration.series.patch_file import SLUG, Patch

_TRAILER = re.compile(r"[A-Z][A-Za-z-]*: .*")


def message_of(patch: Patch) -> str:
    """The commit message of `patch`; `header_of` gives its header back."""
    subject, description, trailers = "", "", []
    for field in re.findall(r"^\S.*\n(?: .*\n)*", patch.header, re.MULTILINE):
        name, _, value = field.partition(": ")
        if name == "Subject":
            subject = value.split("] ", 1)[1]
        elif name == "Description":
            first, *rest = value.splitlines()
            description = "\n".join([first, *("" if line == " ." else line[1:] for line in rest)]) + "\n"
        else:
            trailers.append(field)
    return f"{subject}\n\n{description}\n{''.join(trailers)}Slug: {patch.slug}\n"


def header_of(message: str, project: str) -> tuple[str, str] | None:
    """(slug, header) of a commit message in the form of `message_of`; None where it has no line `Slug:` at its end."""
    subject, _, body = message.strip("\n").partition("\n")
    description, _, last = body.strip("\n").rpartition("\n\n")
    lines = last.splitlines()
    found = re.fullmatch(r"Slug: (\S+)", lines[-1]) if lines else None
    if found is None or not SLUG.fullmatch(found[1]):
        return None
    if not all(_TRAILER.fullmatch(line) or line.startswith(" ") for line in lines):
        return None
    prose = [f" {line}" if line.strip() else " ." for line in description.strip("\n").splitlines()]
    header = [f"Subject: [{project}] {subject}"]
    header += [f"Description:{prose[0]}", *prose[1:]] if prose else []
    return found[1], "\n".join([*header, *lines[:-1]]) + "\n"
