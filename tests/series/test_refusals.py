"""Every bad input is refused by name, with file and line, and costs nothing that was there before."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from ..mini_checkout import PRISTINE, git_diff, header

CHANGED = PRISTINE["alpha/core.py"].replace("line_20 = 20", "line_20 = 2020")


def test_wrong_hash_is_refused(built, refuses):
    pin = built.folder / "pin.toml"
    built.release(version="1.1")
    good = pin.read_text().split('sha256 = "')[1][:64]
    pin.write_text(pin.read_text().replace(good, "0" * 64))
    refuses(built, "artifact-hash", "alpha-1.1-py3-none-any.whl", good)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_download_is_refused(built, refuses, damage):
    built.release(version="1.1")
    wheel = built.releases / "alpha-1.1-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 0xFF
    wheel.write_bytes(data)
    refuses(built, "artifact-hash", "alpha-1.1-py3-none-any.whl")


def test_pinned_archive_that_belies_its_record_is_refused(built, refuses):
    """The hash is that of the pin, and still a member is not what the wheel's own RECORD says."""
    built.release(version="1.1")
    wheel = built.releases / "alpha-1.1-py3-none-any.whl"
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members["alpha/core.py"] += b"import os\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    pin = built.folder / "pin.toml"
    pin.write_text(pin.read_text().replace(good, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    refuses(built, "artifact-corrupt", "alpha-1.1", "alpha/core.py")


def test_damaged_cache_entry_is_fetched_again(mini):
    assert mini.build().returncode == 0
    (cached,) = Path(mini.environment["SM120_CACHE"]).rglob("*.whl")
    cached.write_bytes(cached.read_bytes()[:100])
    subprocess.run(["rm", "-rf", str(mini.checkout.build)], check=True)
    assert mini.build().returncode == 0
    assert mini.checkout.runtime.exists()


def test_no_network_is_refused(built, refuses, tmp_path):
    built.release(version="1.1")
    (tmp_path / "empty").mkdir()
    refuses(built, "artifact-unavailable", "alpha==1.1", "check the network", PIP_FIND_LINKS=str(tmp_path / "empty"))


def test_cached_artifact_needs_no_network(mini, tmp_path):
    assert mini.build().returncode == 0
    subprocess.run(["rm", "-rf", str(mini.checkout.build)], check=True)
    (tmp_path / "empty").mkdir()
    result = mini.build(PIP_FIND_LINKS=str(tmp_path / "empty"))
    assert result.returncode == 0, result.stderr


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


@pytest.mark.parametrize(
    ("series", "code", "line"),
    [
        ("first-change.patch\nghost.patch\n", "patch-missing", 2),
        ("first-change.patch\nfirst-change.patch\n", "series-twice", 2),
        ("", "series-unlisted", None),
        ("first-change.patch -p0\n", "series-line", 1),
        ("../first-change.patch\n", "series-line", 1),
    ],
    ids=["missing", "duplicate", "unlisted", "option", "folder"],
)
def test_bad_series_is_refused(built, refuses, series, code, line):
    (built.folder / "series").write_text(series)
    message = refuses(built, code)
    assert line is None or f"series:{line}:" in message


def test_hunk_that_needs_fuzz_is_refused(built, refuses):
    other = {**PRISTINE, "alpha/core.py": PRISTINE["alpha/core.py"].replace("line_18 = 18", "line_18 = 'moved'")}
    path = built.patch(
        "needs-fuzz", {"alpha/core.py": other["alpha/core.py"].replace("= 20\n", "= 2020\n")}, base=other
    )
    hunk = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("@@"))
    refuses(built, "patch-conflict", f"needs-fuzz.patch:{hunk}:", "alpha/core.py line 18", "no fuzz is allowed")


@pytest.fixture(params=["global", "environment"])
def lax(request, tmp_path) -> dict[str, str]:
    """A user's git that takes any white space for any other, by a file or by variables."""
    if request.param == "environment":
        key = {"GIT_CONFIG_KEY_0": "apply.ignoreWhitespace", "GIT_CONFIG_VALUE_0": "change"}
        return {"GIT_CONFIG_COUNT": "1", **key}
    (tmp_path / "gitconfig").write_text("[apply]\n\tignoreWhitespace = change\n\twhitespace = fix\n")
    return {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig")}


def test_other_white_space_is_refused_whatever_the_users_git_ignores(built, refuses, lax, tmp_path):
    spaced = PRISTINE["alpha/core.py"].replace("line_18 = 18", "line_18  =  18")
    changed = {"alpha/core.py": spaced.replace("= 20\n", "= 2020\n")}
    built.patch("spaced", changed, base={**PRISTINE, "alpha/core.py": spaced})
    refuses(built, "patch-conflict", "spaced.patch:", "alpha/core.py line 18", **lax)
    refresh = built.sm120("series", "refresh", **lax)
    assert refresh.returncode == 2 and "[patch-conflict]" in refresh.stderr, refresh.stdout
    mine = tmp_path / "mine"
    shutil.copytree(built.pristine, mine)
    applied = built.sm120("series", "apply", "alpha", str(mine), **lax)
    assert applied.returncode == 2 and "[patch-conflict]" in applied.stderr, applied.stdout


def test_drifted_hunk_is_refused_until_refreshed(built, refuses):
    shifted = {**PRISTINE, "alpha/core.py": PRISTINE["alpha/core.py"].replace("line_2 = 2\n", "")}
    path = built.patch(
        "drifted", {"alpha/core.py": shifted["alpha/core.py"].replace("= 20\n", "= 2020\n")}, base=shifted
    )
    refuses(built, "patch-drift", "drifted.patch:", "matches at line 18, not 17", "sm120 series refresh alpha")
    assert built.sm120("series", "refresh", "--check").returncode == 1
    assert built.sm120("series", "refresh").stdout == "rewritten: drifted\n"
    assert "@@ -18,7 +18,7 @@" in path.read_text()
    assert built.build().returncode == 0


def test_refresh_refuses_fuzz_and_writes_nothing(built):
    add_fuzzy_patch(built)
    before = {path: path.read_bytes() for path in built.folder.iterdir()}
    result = built.sm120("series", "refresh")
    assert result.returncode == 2 and "[patch-conflict]" in result.stderr
    assert {path: path.read_bytes() for path in built.folder.iterdir()} == before


def test_two_patches_on_one_new_file_are_refused(built, refuses):
    built.patch("new-one", {"alpha/new.py": "one = 1\n"})
    built.patch("new-two", {"alpha/new.py": "two = 2\n"})
    refuses(built, "series-create-twice", "new-two creates alpha/new.py, which new-one creates already")


def test_creating_a_file_that_upstream_has_is_refused(built, refuses):
    base = {name: text for name, text in PRISTINE.items() if name != "alpha/tool.sh"}
    built.patch("takes-place", {"alpha/tool.sh": "other\n"}, base=base)
    refuses(built, "patch-exists", "alpha/tool.sh")


def test_changing_a_file_that_upstream_lacks_is_refused(built, refuses):
    base = {**PRISTINE, "alpha/gone.py": "x = 1\n"}
    built.patch("lost", {"alpha/gone.py": "x = 2\n"}, base=base)
    refuses(built, "patch-conflict", "alpha/gone.py, which the tree lacks")


def test_symlinks_are_refused(built, refuses):
    diff = (
        "diff --git a/alpha/link b/alpha/link\nnew file mode 120000\n"
        f"index {'0' * 40}..{'1' * 40}\n--- /dev/null\n+++ b/alpha/link\n"
        "@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n"
    )
    (built.folder / "links.patch").write_text(header("alpha", "links") + "---\n" + diff)
    with (built.folder / "series").open("a") as series:
        series.write("links.patch\n")
    refuses(built, "patch-path", "new file mode 120000: only regular files")


@pytest.mark.parametrize(
    ("overlay", "code", "mention"),
    [
        ({"target": "../outside.cuh"}, "overlay-path", "'../outside.cuh' is not a plain path"),
        ({"target": "/etc/outside.cuh"}, "overlay-path", "'/etc/outside.cuh' is not a plain path"),
        ({"target": "alpha/core.py"}, "overlay-exists", "upstream already has alpha/core.py"),
        ({"target": "alpha/core.py/inside.cuh"}, "overlay-path", "goes through 'core.py'"),
        ({"source": "../../secret.txt"}, "overlay-path", "'../../secret.txt' is not a plain path"),
        ({"source": "missing.cuh"}, "overlay-missing", "'missing.cuh'"),
        ({"source": "link.cuh"}, "overlay-missing", "'link.cuh' is not a regular file"),
        ({"colour": "blue"}, "kernel-field", "colour"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_overlay_is_refused(built, refuses, overlay, code, mention):
    add_kernel(built, **overlay)
    os.symlink("/etc/hostname", built.checkout.kernels / "packing" / "link.cuh")
    built.patch("hook", {"alpha/core.py": CHANGED}, Kernels="packing")
    refuses(built, code, mention, "packing/kernel.toml")


def test_overlay_twice_on_one_target_is_refused(built, refuses):
    add_kernel(built, "packing")
    add_kernel(built, "packing_again")
    built.patch("hook", {"alpha/core.py": CHANGED}, Kernels="packing, packing_again")
    refuses(built, "overlay-twice", "placed by packing too")


def test_unknown_flavor_is_refused(built):
    result = built.sm120("runtime", "--flavor", "rocm")
    assert result.returncode == 2 and "[runtime-flavor]" in result.stderr and "none" in result.stderr


def test_a_probe_that_is_not_there_is_refused(built):
    """Nothing was run: that must not read as red and green."""
    result = built.sm120("probe", "frist-change")
    assert result.returncode == 2 and "[unknown-slug]" in result.stderr, result.stdout + result.stderr
    assert "did you mean first-change?" in result.stderr


def test_folder_in_the_way_of_the_runtime_is_left_alone(mini, refuses):
    mini.checkout.runtime.mkdir(parents=True)
    (mini.checkout.runtime / "mine.txt").write_text("precious")
    result = mini.build()
    assert result.returncode == 2 and "[runtime-in-the-way]" in result.stderr
    assert (mini.checkout.runtime / "mine.txt").read_text() == "precious"


def test_unserved_python_is_refused(built, refuses):
    built.release(version="1.1")
    pin = built.folder / "pin.toml"
    pin.write_text(pin.read_text().replace('python = "py3"', 'python = "cp27"'))
    refuses(built, "artifact-unsupported", "cp27/any")


def test_git_diff_is_what_the_fixtures_say():
    assert git_diff(PRISTINE, {"alpha/core.py": CHANGED}).count("\n+") == 2


def add_kernel(mini, name: str = "packing", **changes: str) -> None:
    folder = mini.checkout.kernels / name
    folder.mkdir()
    (folder / "packing.cuh").write_text("// device code\n")
    entry = {"project": "alpha", "source": "packing.cuh", "target": "alpha/data/packing.cuh"} | changes
    table = "".join(f'{key} = "{value}"\n' for key, value in entry.items())
    (folder / "kernel.toml").write_text(
        f'name = "{name}"\nsummary = "packs"\ncapabilities = [[12, 0]]\n[[overlay]]\n{table}'
    )


def add_fuzzy_patch(mini) -> Path:
    """A patch whose context differs from the release in one line: `patch` would take it with fuzz 1."""
    other = PRISTINE["alpha/core.py"].replace("line_18 = 18", "line_18 = 'moved'")
    changed = {"alpha/core.py": other.replace("= 20\n", "= 2020\n")}
    return mini.patch("needs-fuzz", changed, base={**PRISTINE, "alpha/core.py": other})
