"""A tiny model is described, or refused."""

from __future__ import annotations

import pytest

from sm120.integration.build import models


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"family": "mixture", "dtype": "float32"}, "model family 'mixture': use dense, hybrid or dflash"),
        ({"family": "dense", "dtype": "bfloat16"}, "model dtype 'bfloat16': use float16 or float32"),
        ({"family": "dense", "dtype": "float32", "mtp": True}, "an MTP head belongs to a hybrid, not to 'dense'"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.Model(seed=1, context=1.0, **values)
