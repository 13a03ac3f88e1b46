"""The watch's issue says what changes for each patch, and how to list the release."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream.bump import Outcome, Plan
from sm120.integration.upstream.matrix import Cell, Row, Table
from sm120.integration.upstream.releases import Release
from sm120.integration.upstream.watch import News, new_companions, new_toolchain, new_versions, report

from .. import mini_checkout as foundation

PAGES = Path(__file__).parent / "index_pages"
"""What the index said of each project on 2026-12-01, cut to the newest releases."""


def test_the_report_shows_both_releases():
    release = Release(version="1.2", file="alpha-1.2-py3-none-any.whl", sha256="a" * 64)
    plan = Plan("alpha", "1.0", "1.2", release.file, release.sha256, [], [Outcome("mine", "merged", "it is there")])
    cell = Cell("applies", "", "", ())
    table = Table("alpha", "1.0", ["1.0", "1.1"], {}, [Row("mine", "[alpha] core: mine", {"1.0": cell, "1.1": cell})])
    text = report([News(release, plan, table)])
    assert text.startswith("# Released: alpha 1.2\n")
    assert "| mine | applies | merged | it is there |" in text
    assert f'version = "1.2"\nfile = "alpha-1.2-py3-none-any.whl"\nsha256 = "{"a" * 64}"' in text


def test_an_index_without_an_answer_is_refused(mini, monkeypatch):
    (mini.folder / "releases.toml").write_text(
        f'[[releases]]\nversion = "1.0"\nfile = "alpha-1.0-py3-none-any.whl"\nsha256 = "{"0" * 64}"\n'
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mini.checkout.root / "nowhere"))
    with pytest.raises(Refusal, match=r"\[watch-index\]"):
        new_versions(mini.checkout, "alpha")


@pytest.fixture
def recorded_index(monkeypatch):
    """pip sees the recorded pages and nothing else."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", PAGES.as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")


def test_every_release_that_was_out_on_that_day_is_seen(recorded_index):
    checkout = Checkout(Path(__file__).parents[2])
    assert new_versions(checkout, "flashinfer") == ["0.7.2.post1"], "a post-release of the pin, beside a listed 0.7.4"
    assert new_versions(checkout, "nixl") == new_versions(checkout, "sglang") == []
    half_published = [(one.distribution, one.pinned, one.versions) for one in new_companions(checkout, "nixl")]
    assert half_published == [("nixl", "1.5.1", ["1.5.2"])]
    toolchain = [(one.distribution, one.pinned, one.versions) for one in new_toolchain(checkout)]
    assert toolchain == [("torch", "2.14.1", ["2.15.0"]), ("triton", "3.8.0", ["3.9.0"])]


@pytest.fixture
def two_projects(mini):
    """alpha 1.0, of which the index also has 1.0.post1, 1.1 and a pre-release; beta, which no index has."""
    wheel = mini.releases / "alpha-1.0-py3-none-any.whl"
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = f'[[releases]]\nversion = "1.0"\nfile = "{wheel.name}"\nsha256 = "{sha256}"\n'
    (mini.folder / "releases.toml").write_text(entry)
    for version in ("1.0.post1", "1.1", "1.2rc1", "0.9"):
        foundation.make_wheel(mini.releases, "alpha", version, foundation.PRISTINE)
    beta = mini.checkout.patches / "beta"
    beta.mkdir()
    (beta / "series").write_text("")
    (beta / "pin.toml").write_text((mini.folder / "pin.toml").read_text().replace("alpha", "beta"))
    (beta / "releases.toml").write_text(entry.replace("alpha", "beta"))
    (mini.folder / "series").write_text("")
    mini.patch("mine", {"alpha/core.py": foundation.PRISTINE["alpha/core.py"].replace("line_5 = 5\n", "line_5 = 55\n")})
    probe = mini.checkout.root / "tests" / "probes" / "alpha" / "test_mine.py"
    probe.parent.mkdir(parents=True)
    probe.write_text("def test_mine():\n    assert True\n")
    return mini


def test_one_projects_refusal_hides_no_news_and_every_release_is_tried(two_projects, tmp_path):
    text = tmp_path / "news.md"
    result = two_projects.sm120("watch", "--report", str(text))
    assert result.returncode == 3, result.stdout + result.stderr
    assert "alpha: 1.0.post1, 1.1\n" in result.stdout and "[watch-index] beta" in result.stderr
    news = text.read_text()
    assert news.startswith("# Released: alpha 1.0.post1, alpha 1.1\n")
    assert "| mine | applies | clean | as it is |" in news and "## Not answered\n" in news and "watch-index" in news


def test_a_refusal_alone_is_an_error_and_not_silence(two_projects):
    for path in two_projects.releases.glob("alpha-1*.whl"):
        if path.name != "alpha-1.0-py3-none-any.whl":
            path.unlink()
    result = two_projects.sm120("watch")
    assert result.returncode == 2 and "alpha: nothing new" in result.stdout, result.stdout + result.stderr


def test_a_release_that_is_not_listed_is_bumped_to_by_its_version(two_projects):
    shutil.rmtree(two_projects.checkout.patches / "beta")  # a bump asks what the others require, and no index has beta
    result = two_projects.sm120("bump", "alpha", "1.1")
    assert result.returncode == 0, result.stdout + result.stderr
    result = two_projects.sm120("bump", "alpha", "1.1", "--accept")
    assert result.returncode == 0, result.stdout + result.stderr
    assert 'version = "1.1"' in (two_projects.folder / "pin.toml").read_text()
    assert 'version = "1.1"' in (two_projects.folder / "releases.toml").read_text()
    result = two_projects.sm120("bump", "alpha", "7.7")
    assert result.returncode == 2 and "[release-unfetched]" in result.stderr, result.stderr


def test_another_distributions_wheel_is_refused(two_projects, tmp_path):
    wheel = foundation.make_wheel(tmp_path / "other", "alpha_meta", "1.1", foundation.PRISTINE)
    before = (two_projects.folder / "pin.toml").read_bytes()
    result = two_projects.sm120("bump", "alpha", "1.1", "--wheel", str(wheel))
    assert result.returncode == 2 and "[release-wheel]" in result.stderr and "not a wheel of alpha" in result.stderr
    assert (two_projects.folder / "pin.toml").read_bytes() == before


def test_the_status_page_says_what_each_patch_is_for_who_else_has_it_and_what_shows_it(two_projects):
    two_projects.patch(
        "sent",
        {"alpha/data/kernel.cu": foundation.PRISTINE["alpha/data/kernel.cu"].replace("// row 3\n", "// row <3>\n")},
        Rivals="o/alpha#2, o/alpha#3",
        Evidence="cpu, served",
        Description="without it <b>rows</b> are lost",
    )
    (two_projects.checkout.root / "tests" / "probes" / "alpha" / "test_sent.py").write_text("def test_sent(): pass\n")
    page = two_projects.checkout.root / "site" / "index.html"
    result = two_projects.sm120("matrix", "alpha", "--html", str(page))
    assert result.returncode == 0, result.stdout + result.stderr
    text = page.read_text()
    assert '<a href="https://github.com/o/alpha/pull/2">o/alpha#2</a>' in text and "evidence: cpu, served" in text
    assert "&lt;b&gt;rows&lt;/b&gt; are lost" in text and "rivals: none known" in text
    assert ">applies</summary>" in text


def test_the_workflow_names_actions_by_commit_keeps_no_credentials_and_writes_in_jobs_without_our_code():
    text = (Path(__file__).parents[2] / ".github" / "workflows" / "watch.yml").read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one) for one in used), used
    assert text.count("actions/checkout@") == text.count("persist-credentials: false") == 1
    assert "\npermissions: {}\n" in text
    jobs = re.split(r"(?m)^  (?=\w+:\n    )", text.partition("\njobs:\n")[2])
    writing = [job for job in jobs if ": write" in job]
    assert len(writing) == 2 and not any("checkout" in job or "sm120" in job for job in writing)
