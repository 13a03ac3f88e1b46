"""A pull request's text fills the project's own template; what it does not mean stays as the project wrote it."""

from __future__ import annotations

from sm120.integration.upstream.pr_body import DEFAULT_TEMPLATE, NOTHING_RELATED, fill_template, reflowed

SECTIONS = {name: f"[{name}]" for name in ("motivation", "changes", "evidence", "speed", "related")}

# The shapes of the three projects' templates, in our words.
SGLANG = """<!-- thanks
# not a heading -->

## Motivation

<!-- why -->

## Modifications

<!-- what -->

## Accuracy Tests

<!-- results -->

## Speed Tests and Profiling

<!-- numbers -->

## Checklist

- [ ] formatted
- [ ] tests added
"""

FLASHINFER = """## 📌 Description

<!-- what and why -->

## 🔍 Related Issues

## 🚀 Pull Request Checklist

### ✅ Pre-commit Checks

- [ ] hooks installed

## 🧪 Tests

- [ ] tests pass

## Experimental

```lane
# not a heading
```

## Reviewer Notes
"""

NIXL = "## What?\n_describe_\n\n## Why?\n\n## How?\n"


def order(text: str, *parts: str) -> None:
    places = [text.index(part) for part in parts]
    assert places == sorted(places), text


def test_sglang():
    text = fill_template(SGLANG, SECTIONS)
    order(text, "## Motivation", "[motivation]", "## Modifications", "[changes]", "## Accuracy Tests", "[evidence]")
    order(text, "## Speed Tests", "[speed]", "## Checklist", "- [ ] formatted", "- [ ] tests added")
    order(text, "[changes]", "[related]", "## Accuracy Tests")
    assert "<!-- why -->" not in text
    text = fill_template(SGLANG, SECTIONS | {"related": NOTHING_RELATED})
    assert NOTHING_RELATED not in text, "a template that does not ask is not told that there is nothing"


def test_flashinfer():
    text = fill_template(FLASHINFER, SECTIONS)
    order(
        text, "Description", "[motivation]", "[changes]", "Related Issues", "[related]", "Checklist", "hooks installed"
    )
    order(text, "🧪 Tests", "[evidence]", "- [ ] tests pass", "```lane", "# not a heading", "Reviewer Notes")


def test_nixl():
    text = fill_template(NIXL, SECTIONS)
    order(text, "## What?", "[changes]", "## Why?", "[motivation]", "[evidence]", "## How?")


def test_without_a_template_everything_has_a_place():
    text = fill_template(DEFAULT_TEMPLATE, SECTIONS)
    order(text, "[motivation]", "[changes]", "[evidence]", "[related]")


def test_a_template_without_any_known_heading_loses_nothing():
    text = fill_template("Tell us everything.\n", SECTIONS)
    assert "Tell us everything." in text and all(f"[{name}]" in text for name in ("motivation", "changes", "evidence"))


def test_hints_make_way_and_paragraphs_are_one_line():
    text = fill_template("## What?\n_Describe it,\nat length._\n\n## Why?\n_Justify it._\nA rule of ours.\n", SECTIONS)
    assert "Describe" not in text and "Justify" not in text and "A rule of ours." in text
    assert reflowed("one\ntwo\n\n* a\n* b\n\nthree") == "one two\n\n* a\n* b\n\nthree"
