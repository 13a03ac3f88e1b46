"""The ledger refuses rows that contradict themselves or name what is not there."""

from __future__ import annotations

import datetime

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream.ledger import ledger_findings, load_ledger

from .. import mini_checkout as foundation

GOOD = """[[change]]
name = "a-change"
project = "alpha"
what = "it works"
upstream = ["o/alpha#1"]
first_release = "1.0"
pins = { "0.9" = "needed", "1.0" = "taken" }
no_probe = "needs a device"
evidence = "read in the wheel"
checked = 2026-11-29
"""


def write(mini, text: str) -> None:
    (mini.checkout.patches / "ledger.toml").write_text(text)


def test_a_sound_row_is_read(mini):
    write(mini, GOOD)
    (row,) = load_ledger(mini.checkout)
    assert row.pins["1.0"] == "taken" and row.checked.isoformat() == "2026-11-29"


@pytest.mark.parametrize(
    ("old", "new", "code", "mentions"),
    [
        ('project = "alpha"', 'project = "beta"', "ledger-row", "no project is called 'beta'"),
        ('no_probe = "needs a device"\n', "", "ledger-row", "no probe guards it"),
        (
            'no_probe = "needs a device"',
            'probe = "tests/upstream_probes/alpha/test_x.py"',
            "ledger-row",
            "does not exist",
        ),
        ('"1.0" = "taken"', '"1.0" = "needed"', "ledger-row", "no patch carries it"),
        ('"0.9" = "needed"', '"0.9" = "taken"', "ledger-row", "before 1.0"),
        (', "1.0" = "taken"', "", "ledger-row", "no verdict for the pinned 1.0"),
        ('"0.9" = "needed"', '"new" = "needed"', "ledger-row", "not a version"),
        ("checked = 2026-11-29", 'patches = ["gone"]\nchecked = 2026-11-29', "ledger-row", "no series has"),
        ("o/alpha#1", "alpha 1", "ledger-field", "upstream"),
        ('"taken" }', '"done" }', "ledger-field", "pins"),
        ("2026-11-29", '"someday"', "ledger-field", "checked"),
        ("what =", "colour =", "ledger-field", "what"),
        ("[[change]]", "[[change]", "ledger-syntax", "line 1"),
    ],
)
def test_a_bad_row_is_refused(mini, old, new, code, mentions):
    assert old in GOOD
    write(mini, GOOD.replace(old, new))
    with pytest.raises(Refusal) as refused:
        load_ledger(mini.checkout)
    assert refused.value.code == code and mentions in str(refused.value), str(refused.value)


def test_a_name_stands_once(mini):
    write(mini, GOOD + GOOD)
    with pytest.raises(Refusal, match="stands there twice"):
        load_ledger(mini.checkout)


NEEDED = GOOD.replace('first_release = "1.0"\n', "").replace(
    '"1.0" = "taken" }\nno_probe = "needs a device"', '"1.0" = "needed" }\npatches = ["sent"]'
)


@pytest.fixture
def one_patch(mini):
    core = foundation.PRISTINE["alpha/core.py"]
    mini.patch("sent", {"alpha/core.py": core.replace("line_3 = 3\n", "line_3 = 33\n")})
    return mini


def test_a_patch_without_a_row_is_refused(one_patch):
    write(one_patch, GOOD)
    with pytest.raises(Refusal, match="no row says what sent is for"):
        load_ledger(one_patch.checkout)
    write(one_patch, NEEDED)
    assert load_ledger(one_patch.checkout)[0].patches == ["sent"]


def test_headers_alone_say_who_the_rivals_of_a_patch_are(one_patch):
    patch = one_patch.checkout.patches / "alpha/sent.patch"
    patch.write_text(patch.read_text().replace("\nStatus-Checked", "\nRivals: o/alpha#4, o/alpha#5\nStatus-Checked", 1))
    write(one_patch, NEEDED.replace("checked =", 'related = ["o/alpha#6"]\nchecked ='))
    (row,) = load_ledger(one_patch.checkout)
    assert row.rivals == ["o/alpha#4", "o/alpha#5"] and row.related == ["o/alpha#6"]
    assert row.pulls[-3:] == ["o/alpha#4", "o/alpha#5", "o/alpha#6"]
    write(one_patch, NEEDED.replace("checked =", 'rivals = ["o/alpha#4"]\nchecked ='))
    with pytest.raises(Refusal, match="the headers of its patches do"):
        load_ledger(one_patch.checkout)


@pytest.mark.parametrize("word", ["merged", "superseded", "applies", "conflicts", None])
def test_the_matrix_contradicts_a_row_and_age_is_a_warning(one_patch, word):
    write(one_patch, NEEDED)
    rows = load_ledger(one_patch.checkout)
    checked = rows[0].checked
    found = {("alpha", "sent", "1.0"): word}
    warnings, errors = ledger_findings(rows, checked + datetime.timedelta(30), lambda *key: found.get(key))
    assert warnings == []
    contradicted = [f"a-change: needed on 1.0 says the ledger, {word} says the matrix"]
    assert errors == (contradicted if word in ("merged", "superseded") else [])
    warnings, _ = ledger_findings(rows, checked + datetime.timedelta(31), lambda *key: None)
    assert warnings == ["a-change: checked 31 days ago"]
