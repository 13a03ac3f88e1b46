"""One result file. Its JSON schema is result.schema.json beside this file, written from these classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER / "published"

Kind = Literal[
    "cold prefill",
    "radix reuse",
    "storage restore",
    "concurrent storage restore",
    "decode per stream",
    "decode makespan",
    "needles",
    "tool calls exact",
    "tool calls semantic",
    "reasoning score",
    "reasoning tokens",
    "reasoning time",
    "vision positions exact",
    "vision positions semantic",
    "trace decode per stream",
    "trace decode in band",
    "trace makespan",
    "token pool",
]
UNITS: dict[str, str] = {
    "cold prefill": "tok/s",
    "radix reuse": "s",
    "storage restore": "s",
    "concurrent storage restore": "tokens",
    "decode per stream": "tok/s",
    "decode makespan": "tok/s",
    "needles": "share",
    "tool calls exact": "share",
    "tool calls semantic": "share",
    "reasoning score": "share",
    "reasoning tokens": "tokens",
    "reasoning time": "s",
    "vision positions exact": "share",
    "vision positions semantic": "share",
    "trace decode per stream": "tok/s",
    "trace decode in band": "tok/s",
    "trace makespan": "tok/s",
    "token pool": "tokens",
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Measurement(_Strict):
    """One number, or the reason why there is none. `None` among the conditions is "not published".

    `outcome` is for what the endpoint itself declined: a level that it refuses, a kind of input that it does not take.
    """

    kind: Kind
    value: float | None
    unit: str
    refused: str | None = None
    outcome: Literal["refused", "not supported"] | None = None
    concurrency: int | None = Field(None, ge=1)
    context_tokens: int | None = Field(None, ge=0)
    new_tokens: int | None = Field(None, ge=1)
    restored_tokens: int | None = Field(None, ge=0)
    effort: str | None = None
    trace: str | None = None
    context_band: tuple[int, int] | None = None
    overlap: Literal["alone", "others decoding", "others prefilling"] | None = None
    values: list[float] = []
    note: str = ""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Measurement:
        if (self.value is None) == (self.refused is None):
            raise ValueError("needs exactly one of value and refused")
        if self.unit != UNITS[self.kind]:
            raise ValueError(f"unit of {self.kind} is {self.unit!r}, must be {UNITS[self.kind]!r}")
        if self.value is not None and self.value < 0:
            raise ValueError(f"value is {self.value}, must not be negative")
        if self.outcome and self.value is not None:
            raise ValueError(f"outcome is {self.outcome!r} beside a value, needs one of them")
        if self.context_band and not 0 <= self.context_band[0] < self.context_band[1]:
            raise ValueError(f"context_band is {self.context_band}, needs a first below its end")
        return self

    def shown(self) -> str:
        """The number with its unit, or in a word why there is none."""
        return f"{self.value:,.3f} {self.unit}" if self.value is not None else self.outcome or "not measured"


class Conditions(_Strict):
    """What a number depends on beside the request."""

    device: str | None
    power_limit_w: float | None = None
    model: str | None
    weights: str | None = None
    speculation: str | None = None
    runtime: str | None
    profile: str | None = None
    sampling: str | None = None
    note: str = ""


class Result(_Strict):
    """A file of the catalog. `source` says who answers for the numbers."""

    schema_: Literal["sm120-result-1"] = Field(alias="schema")
    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    source: Literal["measured here", "reported by others"]
    date: str | None
    conditions: Conditions
    measurements: list[Measurement]

    def as_json(self) -> str:
        return json.dumps(self.model_dump(by_alias=True), indent=1) + "\n"


def load_result(path: Path) -> Result:
    """Read and check one result; `path` may be the folder of a qualification.

    Raises:
        Refusal: `result-schema` naming the file and the key.
    """
    file = path / "result.json" if path.is_dir() else path
    if not file.is_file() and not path.suffix and (PUBLISHED / f"{path.name}.json").is_file():
        file = PUBLISHED / f"{path.name}.json"
    try:
        return Result.model_validate_json(file.read_text(), strict=True)
    except OSError as error:
        fix = f"a file, a qualification's folder, or one of {', '.join(published())}"
        raise Refusal("result-schema", f"cannot be read: {error.strerror}", path=file, fix=fix) from None
    except UnicodeDecodeError as error:
        raise Refusal("result-schema", f"is not UTF-8: {error}", path=file) from None
    except ValidationError as error:
        raise Refusal("result-schema", first_problem(error), path=file) from None


def published() -> list[str]:
    """Ids of the results that ship here."""
    return sorted(path.stem for path in PUBLISHED.glob("*.json"))


def schema_text() -> str:
    """The JSON schema of a result file."""
    return json.dumps(Result.model_json_schema(by_alias=True), indent=1, sort_keys=True) + "\n"
