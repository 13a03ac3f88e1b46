"""The watch's issue says what changes for each patch, and how to list the release."""

from __future__ import annotations

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream.bump import Outcome, Plan
from sm120.integration.upstream.matrix import Cell, Row, Table
from sm120.integration.upstream.releases import Release
from sm120.integration.upstream.watch import News, new_versions, report


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
