"""A TOML file as a checked model: one way of saying that it is missing, is no TOML, or is wrong in a field."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sm120.integration.common.refusal import Refusal

Model = TypeVar("Model", bound=BaseModel)


def read_manifest(path: Path, model: type[Model], kind: str, *, missing: str) -> Model:
    """Read `path` into `model`.

    Raises:
        Refusal: `KIND-missing` (saying `missing`), `KIND-syntax` with the place that the parser gives, or `KIND-field`
            naming the first wrong field.
    """
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise Refusal(f"{kind}-missing", missing, path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"{kind}-syntax", str(error), path=path) from None
    except ValidationError as error:
        raise Refusal(f"{kind}-field", first_problem(error), path=path) from None


def first_problem(error: ValidationError, whole: str = "the file") -> str:
    """The first thing a model objects to, as `field.of.field: message`; `whole` names the model itself."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
