"""What upstream's page of arguments must say of a new one is read from its declaration."""

from __future__ import annotations

import re

from sm120.integration.common.checkout import find_checkout
from sm120.integration.series.pin import FieldTable
from sm120.integration.series.series import load_series
from sm120.integration.upstream.field_table import documentation

SERIES = load_series(find_checkout().patches / "sglang")


def test_every_argument_that_the_series_adds_is_described():
    lines = [line for patch in SERIES.patches for line in documentation(SERIES.pin, patch)]
    flags = [re.fullmatch(r"document in docs/\S+\.mdx: (--[a-z0-9-]+): .{20,} Default .+\.", line)[1] for line in lines]
    assert sorted(flags) == [
        "--gdn-mtp-cache-mode",
        "--gdn-recover-overlap",
        "--qsa-sparse-kernels",
        "--speculative-draft-json-model-override-args",
    ]
    (mode,) = (line for line in lines if "--gdn-mtp-cache-mode: " in line)
    assert mode.endswith("Default 'full'; options full, none.")


def test_a_project_without_such_a_page_says_nothing():
    table = FieldTable(file="a.py", fields="sglang/srt/arg_groups/fields/")
    pin = SERIES.pin.model_copy(update={"field_table": table})
    assert not any(documentation(pin, patch) for patch in SERIES.patches)
    assert not any(documentation(pin.model_copy(update={"field_table": None}), patch) for patch in SERIES.patches)
