"""One patch file: its header, its diff, and everything that can be refused without an upstream tree.

A patch file is a DEP-3 style header, a line `---`, and a diff in git's canonical form. quilt and GNU patch read it
as it is.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import unidiff

from sm120.integration.common.refusal import Refusal, there_are

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SEPARATOR = "---\n"

REQUIRED_FIELDS = (
    "Subject",
    "Description",
    "Origin",
    "Upstream-Status",
    "Status-Checked",
    "Arch",
    "Tier",
    "Probe",
    "Evidence",
)
OPTIONAL_FIELDS = ("Rivals", "Requires", "Kernels")

_PR = r"[\w.-]+/[\w.-]+#\d+"
# A gpu rung names its device and date: «gpu RTX PRO 6000 2026-12-01».
_RUNG = r"(reference|cpu|ptx|served|sm_120a|gpu [\w .()-]+ \d{4}-\d{2}-\d{2})"
FIELD_FORMS = {
    "Subject": (r"\[\w+\] [^:]+: .+", "[project] area: imperative summary"),
    "Origin": (rf"vendor|upstream, ([0-9a-f]{{40}}|{_PR})", "vendor | upstream, <commit or owner/repo#N>"),
    "Upstream-Status": (
        rf"Pending|Submitted {_PR}|(Merged|Superseded) {_PR} \S+|Rejected {_PR}|Inappropriate \S.*",
        "Pending | Submitted <PR> | Merged <PR> <release> | Superseded <PR> <release> | Rejected <PR>"
        " | Inappropriate <reason>; a PR is owner/repo#N",
    ),
    "Rivals": (rf"{_PR}(, {_PR})*", "owner/repo#N, …"),
    "Status-Checked": (r"\d{4}-\d{2}-\d{2}", "YYYY-MM-DD"),
    "Requires": (r"[a-z0-9-]+(, [a-z0-9-]+)*", "slug, …"),
    "Kernels": (r"[a-z0-9_]+(, [a-z0-9_]+)*", "kernel, …"),
    "Arch": (r"any|sm_\d+", "any | sm_120 (exact, never >=)"),
    "Tier": (r"core|extra|backport", "core | extra | backport"),
    "Probe": (r"tests/probes/\w+/test_\w+\.py", "tests/probes/PROJECT/test_SLUG.py"),
    "Evidence": (rf"{_RUNG}(, {_RUNG})*", "rungs that hold: reference, cpu, ptx, served, sm_120a, gpu <device> <date>"),
}


@dataclass(frozen=True)
class Patch:
    """A parsed patch that passed every check of this module."""

    path: Path
    project: str
    fields: dict[str, str]
    header: str
    """Header text as it stands in the file, up to, not including, the line of the separator."""
    diff: str
    diff_line: int
    """1-based line in the file where the diff starts."""
    files: unidiff.PatchSet

    @property
    def slug(self) -> str:
        return self.path.stem

    @property
    def subject(self) -> str:
        return self.fields["Subject"]

    @property
    def description(self) -> str:
        """The description as prose: a line `.` stands for an empty one, as in DEP-3."""
        return "\n".join("" if line == "." else line for line in self.fields["Description"].splitlines())

    @property
    def requires(self) -> list[str]:
        return _names(self.fields.get("Requires", ""))

    @property
    def kernels(self) -> list[str]:
        return _names(self.fields.get("Kernels", ""))

    @property
    def rivals(self) -> list[str]:
        return _names(self.fields.get("Rivals", ""))

    @property
    def evidence(self) -> list[str]:
        return _names(self.fields["Evidence"])

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def touched(self) -> list[str]:
        """Paths in the wheel tree that this patch changes, creates, deletes, or renames from or to."""
        names = {name for file in self.files for name in (file.source_file, file.target_file)}
        return sorted({name[2:] for name in names if name != "/dev/null"})

    @property
    def created(self) -> list[str]:
        return [file.path for file in self.files if file.is_added_file]

    def hunk_line(self, target: str, source_line: int) -> int:
        """Line in the patch file of the hunk of `target` that starts at `source_line` of the old file."""
        for file in self.files:
            if file.path == target:
                for hunk in file:
                    if hunk.source_start == source_line:
                        return self.diff_line + (hunk[0].diff_line_no or 2) - 2
        return self.diff_line


def parse_patch(path: Path) -> Patch:
    """Read and check one patch file.

    Raises:
        Refusal: `patch-missing`, `patch-encoding`, `patch-crlf`, `header-*`, `patch-binary`, `patch-path`,
            `patch-form` or `patch-syntax`, each with the file and line.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise Refusal("patch-missing", "no such patch file", path=path) from None
    except UnicodeDecodeError as error:
        raise Refusal("patch-encoding", f"not UTF-8: {error}", path=path) from None
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if line.endswith("\r\n"):
            raise Refusal(
                "patch-crlf", "line ends with CRLF", path=path, line=number, fix=f"sed -i 's/\\r$//' {path.name}"
            )
    if not SLUG.fullmatch(path.stem):
        raise Refusal("patch-name", f"{path.stem!r} is not lower-case words joined by '-'", path=path)
    if SEPARATOR not in lines:
        raise Refusal("header-end", "no line '---' between header and diff", path=path, line=1)
    separator = lines.index(SEPARATOR)
    fields = _parse_header(path, lines[:separator])
    diff_lines = lines[separator + 1 :]
    _check_diff_text(path, diff_lines, first=separator + 2)
    diff = "".join(diff_lines)
    try:
        files = unidiff.PatchSet(diff)
    except unidiff.UnidiffParseError as error:
        raise Refusal("patch-syntax", f"not a unified diff: {error}", path=path, line=separator + 2) from None
    if not files:
        raise Refusal("patch-empty", "the diff changes no file", path=path, line=separator + 1)
    return Patch(path, path.parent.name, fields, "".join(lines[:separator]), diff, separator + 2, files)


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _parse_header(path: Path, lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    where: dict[str, int] = {}
    current = None
    for number, line in enumerate(lines, 1):
        if line.startswith(" ") and current:
            fields[current] += "\n" + line.strip()
            continue
        match = re.fullmatch(r"([A-Z][A-Za-z-]*): (.*)\n", line)
        if not match:
            raise Refusal("header-line", f"not 'Field: value': {line.rstrip()!r}", path=path, line=number)
        current, value = match.groups()
        if current not in REQUIRED_FIELDS + OPTIONAL_FIELDS:
            known = REQUIRED_FIELDS + OPTIONAL_FIELDS
            raise Refusal(
                "header-field", f"unknown field {current!r}{there_are(current, known)}", path=path, line=number
            )
        if current in fields:
            raise Refusal(
                "header-twice", f"{current!r} stands at line {where[current]} already", path=path, line=number
            )
        fields[current], where[current] = value.strip(), number
    for name in REQUIRED_FIELDS:
        if name not in fields:
            raise Refusal("header-field", f"required field {name!r} is missing", path=path, line=1)
    for name, value in fields.items():
        if name in FIELD_FORMS and not re.fullmatch(FIELD_FORMS[name][0], value, re.DOTALL):
            raise Refusal(
                "header-value", f"{name}: {value!r} is not {FIELD_FORMS[name][1]}", path=path, line=where[name]
            )
        if not value:
            raise Refusal("header-value", f"{name} is empty", path=path, line=where[name])
    try:
        datetime.date.fromisoformat(fields["Status-Checked"])
    except ValueError as error:
        raise Refusal("header-value", f"Status-Checked: {error}", path=path, line=where["Status-Checked"]) from None
    project = path.parent.name
    if not fields["Subject"].startswith(f"[{project}] "):
        raise Refusal("header-value", f"Subject does not start with '[{project}] '", path=path, line=where["Subject"])
    expected_probe = f"tests/probes/{project}/test_{path.stem.replace('-', '_')}.py"
    if fields["Probe"] != expected_probe:
        raise Refusal(
            "header-value", f"Probe is {fields['Probe']!r}, not {expected_probe!r}", path=path, line=where["Probe"]
        )
    return fields


def _check_diff_text(path: Path, lines: list[str], *, first: int) -> None:
    """Refuse what git would accept but a reviewer, quilt or another platform would not."""
    if not lines or not lines[0].startswith("diff --git "):
        raise Refusal(
            "patch-form", "the diff does not start with 'diff --git'", path=path, line=first, fix="sm120 series refresh"
        )
    in_hunk_old = in_hunk_new = 0
    for number, line in enumerate(lines, first):
        if in_hunk_old > 0 or in_hunk_new > 0:
            in_hunk_old -= line[:1] in (" ", "-", "\n")
            in_hunk_new -= line[:1] in (" ", "+", "\n")
            continue
        if hunk := re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            in_hunk_old, in_hunk_new = (1 if count is None else int(count) for count in hunk.groups())
        elif line.startswith(("GIT binary patch", "Binary files ")):
            raise Refusal("patch-binary", "binary patches cannot be reviewed; refused", path=path, line=number)
        elif line.startswith("index ") and not re.match(r"index [0-9a-f]{40}\.\.[0-9a-f]{40}( \d{6})?\n", line):
            raise Refusal(
                "patch-form", "index line without full hashes", path=path, line=number, fix="sm120 series refresh"
            )
        elif re.match(r"(new file mode|new mode|old mode|deleted file mode) (?!100644|100755)", line):
            raise Refusal("patch-path", f"{line.strip()}: only regular files", path=path, line=number)
        elif line.startswith(("--- ", "+++ ", "rename ", "copy ", "diff --git ")):
            _check_paths(path, number, line)


def _check_paths(path: Path, number: int, line: str) -> None:
    for token in line.split()[1:]:
        if token in ("/dev/null", "--git", "from", "to"):
            continue
        name = token.strip('"')
        if name.startswith(("a/", "b/")):
            name = name[2:]
        elif line.startswith(("--- ", "+++ ", "diff ")):
            raise Refusal("patch-path", f"{token!r} has no a/ or b/ prefix", path=path, line=number)
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or ".git" in parts or not parts:
            raise Refusal("patch-path", f"{name!r} leaves the tree", path=path, line=number)
