"""A malformed patch is refused with its line."""

from __future__ import annotations

import pytest

from ..mini_checkout import (
    CHANGED,
)


@pytest.mark.parametrize(
    ("fields", "code", "mention"),
    [
        ({"Subject": None}, "header-field", "required field 'Subject' is missing"),
        ({"Colour": "blue"}, "header-field", "unknown field 'Colour'"),
        ({"Upstream-Status": "Maybe"}, "header-value", "'Maybe' is not Pending | Submitted <PR>"),
        ({"Upstream-Status": "Submitted #12"}, "header-value", "a PR is owner/repo#N"),
        ({"Status-Checked": "2026-13-01"}, "header-value", "Status-Checked"),
        ({"Status-Checked": "last week"}, "header-value", "YYYY-MM-DD"),
        ({"Arch": ">=sm_120"}, "header-value", "exact, never >="),
        ({"Tier": "gold"}, "header-value", "core | extra | backport"),
        ({"Evidence": "vibes"}, "header-value", "reference, cpu, ptx, served, sm_120a"),
        ({"Probe": "tests/probes/alpha/test_other.py"}, "header-value", "test_bad_header.py"),
        ({"Subject": "[beta] core: not this project"}, "header-value", "does not start with '[alpha] '"),
        ({"Requires": "not-there"}, "series-requires", "not-there, which is not in the series"),
        ({"Kernels": "no_such_kernel"}, "kernel-missing", "kernels/no_such_kernel/kernel.toml"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_malformed_header_is_refused(built, refuses, fields, code, mention):
    built.patch("bad-header", {"alpha/core.py": CHANGED}, **fields)
    refuses(built, code, mention)


MANGLED = {
    "twice": (lambda text: text.replace("Origin: vendor\n", "Origin: vendor\nOrigin: vendor\n"), "header-twice", 4),
    "no-colon": (lambda text: text.replace("Origin: vendor\n", "Origin vendor\n"), "header-line", 3),
    "no-separator": (lambda text: text.replace("\n---\ndiff", "\ndiff"), "header-end", 1),
    "crlf": (lambda text: text.replace(" line_19 = 19\n", " line_19 = 19\r\n"), "patch-crlf", 18),
    "binary": (lambda text: text[: text.index("@@")] + "GIT binary patch\nliteral 0\n", "patch-binary", 15),
    "short-index": (lambda text: text.replace("index ", "index 12..34 #", 1), "patch-form", 12),
    "dotdot": (lambda text: text.replace("a/alpha/core.py", "a/../core.py"), "patch-path", 11),
    "absolute": (lambda text: text.replace("b/alpha/core.py", "/etc/passwd"), "patch-path", 11),
    "dotgit": (lambda text: text.replace(" b/alpha/core.py\nindex", " b/.git/config\nindex"), "patch-path", 11),
    "no-diff": (lambda text: text[: text.index("diff --git")], "patch-form", 11),
    "wrong-counts": (lambda text: text.replace("@@ -18,7 +18,7 @@", "@@ -18,9 +18,9 @@"), "patch-syntax", 11),
}


@pytest.mark.parametrize(("mangle", "code", "line"), MANGLED.values(), ids=MANGLED)
def test_malformed_file_is_refused_with_its_line(built, refuses, mangle, code, line):
    path = built.patch("bad-file", {"alpha/core.py": CHANGED})
    text = path.read_text()
    assert mangle(text) != text
    path.write_bytes(mangle(text).encode())
    message = refuses(built, code)
    assert f"bad-file.patch:{line}:" in message


def test_not_utf8_is_refused(built, refuses):
    path = built.patch("bad-bytes", {"alpha/core.py": CHANGED})
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    refuses(built, "patch-encoding", "bad-bytes.patch")
