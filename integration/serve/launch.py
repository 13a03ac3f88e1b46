"""`sm120 serve`: check, derive the namespace, show what matters, become the server."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from sm120.integration.build import models
from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.build.runtime_record import read_record
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace import namespace_store as store
from sm120.integration.serve.namespace.checkpoint import HashCache, read_checkpoint
from sm120.integration.serve.namespace.namespace_identity import identity
from sm120.integration.serve.preflight import Check, ask_machine, preflight, visible_to
from sm120.integration.serve.profile import Profile
from sm120.integration.serve.server_arguments import Machine, arguments, environment, serving

# What a reader wants to see before waiting for a large model to load.
TELLING = (
    "context-length", "quantization", "kv-cache-dtype", "attention-backend", "prefill-attention-backend",
    "decode-attention-backend", "linear-attn-prefill-backend", "linear-attn-decode-backend", "moe-runner-backend",
    "speculative-algorithm", "speculative-num-draft-tokens", "speculative-attention-mode", "gdn-mtp-cache-mode",
    "max-running-requests", "max-mamba-cache-size", "page-size", "hicache-size", "hicache-ratio",
    "hicache-mem-layout", "hicache-storage-backend",
)  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A start that was checked but not made."""

    profile: Profile
    runtime: Path
    storage: Path | None
    machine: Machine
    checks: list[Check]
    host: str
    port: int

    def words(self, model: str | None = None) -> list[str]:
        """The command line: `bin/serve` of the runtime and every argument."""
        tail = arguments(self.profile, self.machine, host=self.host, port=self.port, model=model)
        return [str(self.runtime / "bin" / "serve"), *tail]

    def surroundings(self, pages: Path | None = None) -> dict[str, str]:
        """All of the server's environment: what this process has, the proof layer's on a CPU, the profile's on top."""
        extra = environment(self.profile, pages)
        return Runtime(self.runtime.absolute()).environment(extra) if self.profile.on_cpu else {**os.environ, **extra}

    def printed(self) -> str:
        """The command line for a shell, one option a line, the environment in front."""
        storage = Path("NAMESPACE/pages") if self.profile.needs.storage else None
        head = [f"{name}={shlex.quote(value)}" for name, value in environment(self.profile, storage).items()]
        lines: list[str] = []
        for word in self.words()[1:]:
            if word.startswith("--"):
                lines.append(word)
            else:
                lines[-1] += f" {shlex.quote(word)}"
        return " \\\n  ".join([*head, self.words()[0], *lines])


def prepare(checkout: Checkout, profile: Profile, *, host: str, port: int) -> Prepared:
    """Ask the machine everything; nothing is created but a probe file that is removed again."""
    storage = Path(profile.paths.storage) if profile.paths.storage else None
    if storage is None and profile.needs.made_model:
        storage = checkout.build / "serve" / profile.name / "storage"
    machine = ask_machine(storage)
    seen = visible_to(profile)
    checks = preflight(profile, runtime=checkout.runtime, storage=storage, gpus=seen, machine=machine)
    return Prepared(profile, checkout.runtime, storage, machine, checks, host, port)


def namespace(prepared: Prepared, model: Path) -> store.Namespace:
    """Create or check the namespace of what this server will store."""
    assert prepared.storage is not None
    profile, record = prepared.profile, read_record(prepared.runtime)
    cache = HashCache(prepared.storage / ".hashes.json")
    checkpoints = {"target": read_checkpoint(model, cache)}
    if profile.paths.draft:
        checkpoints["draft"] = read_checkpoint(Path(profile.paths.draft), cache)
    try:
        meaning = serving(profile, prepared.machine, record.versions.get("torch", "unknown"), prepared.surroundings())
    except ValidationError as error:
        raise Refusal("profile-schema", first_problem(error, "the identity of what is stored")) from None
    wanted = identity(checkpoints, record.identity, meaning)
    return store.open_namespace(prepared.storage, profile.label, wanted)


def launch(checkout: Checkout, prepared: Prepared, say: Callable[[str], None] = print) -> NoReturn:
    """Replace this process by the server. A CPU profile goes through the proof layer."""
    profile = prepared.profile
    if profile.needs.made_model and profile.on_cpu:
        wanted = models.DENSE if profile.needs.made_model == "dense" else models.HYBRID
        kept = checkout.build / "serve" / profile.name / "models"
        model = models.make(Runtime(prepared.runtime.absolute()), wanted, kept)
    else:
        model = Path(str(profile.paths.model))
    pages = None
    if profile.needs.storage:
        pages = namespace(prepared, model).pages
        say(f"namespace {pages}")
    words = prepared.words(str(model))
    os.execve(words[0], words, prepared.surroundings(pages))
