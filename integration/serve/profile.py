"""One profile: its TOML file checked against a schema, then the user's file, then `--set`."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.serve.argument_names import unknown_argument

FOLDER = Path(__file__).parent / "profiles"
SCHEMA = "sm120-profile-1"
Scalar = bool | int | float | str


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Needs(_Table):
    """What must be there: descriptions of checkpoints, sizes on disk, on the host and on the GPU."""

    model: str | None = None
    draft: str | None = None
    made_model: Literal["dense", "hybrid"] | None = None
    storage: bool = False
    disk_gb: float = Field(0, ge=0)
    memory_gb: float = Field(0, ge=0)
    gpu_memory_gib: float = Field(0, ge=0)
    # Of the published checkpoints, for plans before one is there: what lies on the GPU, and a table on the host.
    weights_gib: float = Field(0, ge=0)
    table_gb: float = Field(0, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> Needs:
        if (self.model is None) == (self.made_model is None):
            raise ValueError("needs exactly one of model (a checkpoint) and made_model (made on the spot)")
        return self


class Paths(_Table):
    """Where this user's things are; nothing of it is in the repository."""

    model: str | None = None
    draft: str | None = None
    storage: str | None = None


class Rope(_Table):
    """Rotary settings merged into the checkpoint's own, for the target and for the draft."""

    target: dict[str, Any] = {}
    draft: dict[str, Any] = {}


class Planner(_Table):
    """Geometry for the capacity calculator where no config.json is given."""

    draft_kv_layers: int = Field(default=0, ge=0)
    draft_kv_heads: int = Field(default=0, ge=0)
    draft_head_dim: int = Field(default=0, ge=0)
    model: dict[str, Any] = {}


class Profile(_Table):
    """A profile after the schema check. `server` maps argument names without dashes to scalars or lists of them."""

    schema_: Literal["sm120-profile-1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    summary: str
    capability: str = Field(pattern=r"^(cpu|\d+\.\d+)$")
    runtime: Literal["any", "cpu", "cuda"]
    label: str = Field(pattern=r"^[a-z0-9_]+$")
    needs: Needs
    paths: Paths = Paths()
    server: dict[str, Scalar | list[Scalar]]
    rope: Rope = Rope()
    model_settings: dict[str, Any] = Field({}, alias="model_config")
    storage: dict[str, Any] = {}
    environment: dict[str, str] = {}
    planner: Planner = Planner()
    expect: dict[str, Scalar | list[str]] = {}

    @field_validator("server")
    @classmethod
    def _argument_names(cls, server: dict[str, Any]) -> dict[str, Any]:
        for name in server:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ValueError(f"argument {name!r} must be spelled like a server argument without its dashes")
            if name in OWNED:
                raise ValueError(f"argument {name!r} is not a profile's to give: {OWNED[name]}")
            if why := unknown_argument(name):
                raise ValueError(why)
        return server

    @property
    def on_cpu(self) -> bool:
        return self.capability == "cpu"

    def argument(self, name: str, default: Any = None) -> Any:
        """Value of a server argument, or `default` where the profile gives none."""
        return self.server.get(name, default)


OWNED = {
    "model-path": "set paths.model",
    "speculative-draft-model-path": "set paths.draft",
    "json-model-override-args": "set model_config.* and rope.target.*",
    "speculative-draft-json-model-override-args": "set rope.draft.*",
    "hicache-storage-backend-extra-config": "set storage.*",
}


def profile_names() -> list[str]:
    """Names of the profiles that ship here."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def user_file(name: str) -> Path:
    """The user's settings for a profile: below SM120_CONFIG, else the XDG configuration folder."""
    folder = os.environ.get("SM120_CONFIG")
    if folder:
        return Path(folder) / f"{name}.toml"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sm120" / f"{name}.toml"


def load_profile(name: str, settings: list[str] | None = None) -> Profile:
    """The profile `name` (one that ships here, or a path to a TOML file) with the user's file and `settings` over it.

    A setting is KEY=VALUE: a server argument (`max-running-requests=2`), or a dotted key of a table
    (`paths.model=/models/x`, `storage.page_checksum=false`). VALUE is TOML; what is no TOML is a string. `KEY=` with
    nothing behind it takes a server argument away.

    Raises:
        Refusal: `profile-unknown`, `profile-schema` (naming file and key) and `profile-setting`.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise Refusal("profile-unknown", f"no profile {name!r}{there_are(name, profile_names())}", fix="sm120 profiles")
    tables = _read(path)
    user = user_file(str(tables.get("name", "")))
    if user.is_file():
        extra = _read(user)
        for table, value in extra.items():
            if table not in ("paths", "server", "storage", "environment", "rope", "model_config", "planner"):
                raise Refusal("profile-schema", f"{table!r} is not a table that a user's file may have", path=user)
            if not isinstance(value, dict):
                raise Refusal("profile-schema", f"{table} is {value!r}, must be a table", path=user)
        tables = _merged(tables, extra)
        path = user
    for setting in settings or []:
        _apply(tables, setting)
    try:
        return Profile.model_validate(tables)
    except ValidationError as error:
        raise Refusal("profile-schema", first_problem(error, "profile"), path=path) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Refusal("profile-schema", f"not a TOML file: {error}", path=path) from None


def _merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _apply(tables: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not separator or not re.fullmatch(r"[a-z][A-Za-z0-9_.-]*", key):
        raise Refusal("profile-setting", f"{setting!r} is not KEY=VALUE")
    parts = key.split(".")
    if len(parts) == 1:
        parts = ["server", key.replace("_", "-")]
    if parts[0] == "server" and len(parts) == 2 and parts[1] not in OWNED and (why := unknown_argument(parts[1])):
        raise Refusal("profile-setting", why, fix="--set NAME=VALUE with a name of sglang.launch_server --help")
    if parts[0] not in ("paths", "server", "storage", "environment", "rope", "model_config", "planner"):
        raise Refusal("profile-setting", f"{key}: {parts[0]!r} is no table that can be set", fix="paths., storage., …")
    table = tables
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise Refusal("profile-setting", f"{key}: {part!r} is a value, not a table")
    if not text:
        table.pop(parts[-1], None)
        return
    table[parts[-1]] = text if parts[0] in ("paths", "environment") else _value(text)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
