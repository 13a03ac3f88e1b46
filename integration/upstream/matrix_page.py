"""The matrix as one self-contained HTML page: readable at a glance, every cell opens to the rungs behind it."""

from __future__ import annotations

import datetime
from html import escape

from sm120.integration.series.patch_file import Patch
from sm120.integration.upstream.matrix import WORDS, Cell, Table

MEANING = {
    "applies": "needed, and it applies as it is",
    "applies with closure": "needed, and it applies after the patches that it requires",
    "conflicts": "needed or unknown, and it does not apply",
    "partly": "upstream has a part of this change; what it lacks first is named",
    "disputed": "the text says that upstream has it, its probe fails there",
    "merged": "upstream has this change",
    "superseded": "upstream fixed it by other code: the probe passes on the unpatched release",
    "n/a": "an older release without the code that it changes",
}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --applies: #2e7d32; --applies-with-closure: #558b2f;
  --conflicts: #c62828; --partly: #a85b00; --disputed: #b71c1c; --merged: #1565c0; --superseded: #6a1b9a; --n-a: #757575; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid var(--line); padding: .35rem .5rem; text-align: left; vertical-align: top; }
thead th { position: sticky; top: 0; background: Canvas; }
th.pinned { text-decoration: underline; }
tbody th { font-weight: 600; white-space: nowrap; }
tbody th small { display: block; font-weight: 400; white-space: normal; }
summary { cursor: pointer; color: #fff; border-radius: .3rem; padding: .1rem .5rem; display: inline-block; }
summary.why { color: inherit; padding: 0; font-weight: 400; }
details p, details li { font-size: .85rem; margin: .2rem 0; overflow-wrap: anywhere; }
details ul { padding-left: 1rem; margin: .2rem 0; }
.legend { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; padding: 0; list-style: none; }
.legend b { color: #fff; border-radius: .3rem; padding: .05rem .5rem; }
"""


def page(tables: list[Table], today: datetime.date, patches: dict[str, Patch] | None = None) -> str:
    """The whole page as HTML without anything to load; `patches`, by slug, tell what each is for and who else has it."""
    colours = "".join(f".{_class(word)} {{ background: var(--{_class(word)}); }}\n" for word in WORDS)
    legend = "".join(f'<li><b class="{_class(word)}">{word}</b> {MEANING[word]}</li>' for word in WORDS)
    body = "".join(_table(table, patches or {}) for table in tables)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Patches and releases</title><style>{STYLE}{colours}</style></head><body>"
        f"<h1>Which patches are needed on which release</h1><p>Made {today.isoformat()} from the released wheels. "
        "The pinned release is underlined. Open a cell to see why.</p>"
        f'<ul class="legend">{legend}</ul>{body}</body></html>\n'
    )


def _table(table: Table, patches: dict[str, Patch]) -> str:
    head = "".join(_head(table, version) for version in table.versions)
    rows = []
    for row in table.rows:
        what = escape(row.subject.split("] ", 1)[-1])
        cells = "".join(f"<td>{_cell(row.cells[version])}</td>" for version in table.versions)
        about = _about(patches[row.slug]) if row.slug in patches else ""
        rows.append(f"<tr><th>{escape(row.slug)}<small>{what}</small>{about}</th>{cells}</tr>")
    title = f"{escape(table.project)} {escape(table.pinned)}"
    return (
        f'<h2 id="{escape(table.project)}">{title}</h2>'
        f"<table><thead><tr><th>patch</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _about(patch: Patch) -> str:
    """Tier, what its header says of upstream, rivals and evidence; its reason opens."""
    rivals = ", ".join(_pull(pull) for pull in patch.rivals) or "none known"
    upstream = escape(patch.fields["Upstream-Status"])
    return (
        f"<small>{escape(patch.fields['Tier'])} · {upstream}, checked {escape(patch.fields['Status-Checked'])}"
        f" · rivals: {rivals} · evidence: {escape(', '.join(patch.evidence))}</small>"
        f"<details><summary class='why'>why</summary><small>{escape(patch.description)}</small></details>"
    )


def _pull(pull: str) -> str:
    repository, _, number = pull.partition("#")
    return f'<a href="https://github.com/{escape(repository)}/pull/{escape(number)}">{escape(pull)}</a>'


def _head(table: Table, version: str) -> str:
    pinned = ' class="pinned"' if version == table.pinned else ""
    yanked = f" <small>withdrawn: {escape(table.yanked[version])}</small>" if version in table.yanked else ""
    return f"<th{pinned}>{escape(version)}{yanked}</th>"


def _cell(cell: Cell) -> str:
    words = {True: "yes", False: "no", None: "cannot tell"}
    rungs = "".join(f"<li>{rung.name}: {words[rung.holds]}, {escape(rung.detail)}</li>" for rung in cell.rungs)
    where = f"<p>{escape(cell.where)}</p>" if cell.where else ""
    return (
        f'<details><summary class="{_class(cell.word)}">{cell.word}</summary>'
        f"{where}<p>{escape(cell.why)}</p><ul>{rungs}</ul></details>"
    )


def _class(word: str) -> str:
    return word.replace(" ", "-").replace("/", "-")
