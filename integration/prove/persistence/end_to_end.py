"""One table per model: the same prompts served cold and from every tier, across restarts, kill -9 and namespaces."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from sm120.integration.build import models
from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.storage import Storage, probe
from sm120.integration.prove import recipes
from sm120.integration.prove.caching import NEW_TOKENS, wait_until_written
from sm120.integration.prove.prompts import prompt
from sm120.integration.prove.server import Argument, Reply, Server

PROMPTS = 3


@dataclass(frozen=True)
class Line:
    """One reply: where its prompt tokens came from, and whether it equals the cold reply to the same prompt."""

    step: str
    prompt: int
    prompt_tokens: int
    device: int
    host: int
    storage: int
    equal: bool

    @property
    def recomputed(self) -> int:
        return self.prompt_tokens - self.device - self.host - self.storage


class EndToEnd:
    """Serves `PROMPTS` prompts of `prompt_tokens` tokens through every step and keeps one line per reply.

    `pressure` other prompts of that length must be enough to push them out of the device pool. `storage` is namespace
    A; namespace B is a folder beside it.
    """

    def __init__(
        self,
        runtime: Runtime,
        model: Path,
        arguments: Mapping[str, Argument],
        storage: Storage,
        work: Path,
        *,
        prompt_tokens: int,
        pressure: int,
        environment: Mapping[str, str] | None = None,
        hooks: Sequence[Path] = (),
        progress: Callable[[Line], None] = lambda line: None,
    ) -> None:
        self.runtime, self.model, self.arguments = runtime, model, arguments
        self.storage, self.work, self.hooks, self.progress = storage, work, hooks, progress
        self.prompt_tokens, self.pressure = prompt_tokens, pressure
        self.environment = environment or {}
        self.cold: dict[int, tuple[int, ...]] = {}
        self.lines: list[Line] = []

    def run(self, *, damage: bool, short: bool = False) -> list[Line]:
        """All steps; `damage` adds one more server over pages with a flipped bit, which needs page checksums.

        `short` ends after the restart, before kill -9 and namespaces: two servers instead of four.
        """
        originals = range(PROMPTS)
        with self.server("first", self.storage) as server:
            self.ask(server, "cold", originals)
            self.ask(server, "device hit", [PROMPTS - 1])
            for number in range(self.pressure):
                server.generate(prompt(100 + number, self.prompt_tokens), 1)
            self.ask(server, "host hit", [0])
            wait_until_written(self.storage)
        late = [PROMPTS]
        with self.server("restarted", self.storage) as server:
            self.ask(server, "storage hit after restart, three at once", originals, at_once=True)
            self.ask(server, "device hit after restore", [0])
            if short:
                return self.lines
            # Killed as soon as the last reply is there: its pages are still on their way to the disk.
            self.ask(server, "cold, then kill -9 during write-back", late)
            server.kill()
        other = replace(self.storage, folder=self.storage.folder.with_name(self.storage.folder.name + "-b"))
        with self.server("other-namespace", other) as server:
            self.ask(server, "namespace B", [0])
        with self.server("back", self.storage) as server:
            self.ask(server, "back in namespace A", originals)
            self.ask(server, "after kill -9", late)
            wait_until_written(self.storage)
        if not damage:
            return self.lines
        if not flip_one_bit_everywhere(self.storage.folder):
            raise Refusal("fault-unstaged", "there is no page to flip a bit of", path=self.storage.folder)
        with self.server("damaged", self.storage) as server:
            self.ask(server, "one bit flipped in every file", [0, PROMPTS])
        return self.lines

    def server(self, name: str, storage: Storage) -> Server:
        return Server(
            self.runtime,
            self.model,
            self.arguments,
            log=self.work / f"{name}.log",
            environment={**storage.environment(), **self.environment},
            hooks=self.hooks,
        )

    def ask(self, server: Server, step: str, numbers: Sequence[int], *, at_once: bool = False) -> None:
        def one(number: int) -> Reply:
            return server.generate(prompt(number, self.prompt_tokens), NEW_TOKENS)

        with ThreadPoolExecutor(len(numbers) if at_once else 1) as pool:
            replies = list(pool.map(one, numbers))
        for number, reply in zip(numbers, replies, strict=True):
            cold = self.cold.setdefault(number, reply.tokens)
            device, host, stored = (reply.cached(tier) for tier in ("device", "host", "storage"))
            equal = reply.tokens == cold
            self.lines.append(Line(step, number, self.prompt_tokens, device, host, stored, equal))
            self.progress(self.lines[-1])


def flip_one_bit_everywhere(folder: Path) -> int:
    """Flip the first bit of every stored page, sizes and attributes unchanged; returns how many files that were."""
    files = [path for path in folder.glob("[0-9a-f][0-9a-f]/*") if path.is_file()]
    for path in files:
        with path.open("r+b") as file:
            first = file.read(1)[0]
            file.seek(0)
            file.write(bytes([first ^ 0x80]))
    return len(files)


@dataclass(frozen=True)
class Setup:
    """A tiny model with the arguments, prompt length and pressure that make it use every tier on a CPU."""

    model: models.Model
    arguments: Mapping[str, Argument]
    page_size: int
    prompt_tokens: int
    pressure: int
    environment: Mapping[str, str]


SETUPS = {
    "dense": Setup(models.DENSE, recipes.DENSE, 16, 96, 8, {}),
    "hybrid": Setup(models.HYBRID, recipes.HYBRID_PAGED, 64, 130, 4, recipes.HYBRID_ENVIRONMENT),
}


def run_setup(
    name: str,
    runtime: Runtime,
    work: Path,
    *,
    damage: bool,
    short: bool = False,
    progress: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """Run one of SETUPS with page checksums on, in a new folder below `work`; `damage` and `short` as of EndToEnd.run."""
    setup = SETUPS[name]
    work.mkdir(parents=True, exist_ok=True)
    model = models.make(runtime, setup.model, work / "models")
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    storage = probe(folder / "namespace-a")
    arguments = {**setup.arguments, **recipes.hicache(storage, page_size=setup.page_size)}
    config = json.loads(storage.extra_config()) | {"page_checksum": True}
    arguments["hicache-storage-backend-extra-config"] = json.dumps(config)
    return EndToEnd(
        runtime,
        model,
        arguments,
        storage,
        folder,
        prompt_tokens=setup.prompt_tokens,
        pressure=setup.pressure,
        environment=setup.environment,
        progress=progress,
    ).run(damage=damage, short=short)


def table(name: str, lines: Sequence[Line]) -> Table:
    made = Table(title=f"{name}: where the prompt's tokens came from, {os.cpu_count()} cores, through the proof layer")
    for column in ("step", "prompt", "tokens", "device", "host", "storage", "recomputed", "equal to cold"):
        made.add_column(column, justify="left" if column == "step" else "right")
    for line in lines:
        counts = (line.prompt, line.prompt_tokens, line.device, line.host, line.storage, line.recomputed)
        made.add_row(line.step, *map(str, counts), "yes" if line.equal else "NO")
    return made


def failures(lines: Sequence[Line]) -> list[str]:
    """What the table must not show: unequal tokens, a tier that was never used, a namespace that leaks."""
    unequal = [line for line in lines if not line.equal]
    found = [f"{line.step}, prompt {line.prompt}: tokens differ from the cold reply" for line in unequal]
    for step, tier, wanted in (
        ("cold", "storage", False),
        ("device hit", "device", True),
        ("host hit", "host", True),
        ("storage hit after restart, three at once", "storage", True),
        ("namespace B", "storage", False),
        ("back in namespace A", "storage", True),
        ("one bit flipped in every file", "storage", False),
    ):
        for line in lines:
            if line.step == step and (getattr(line, tier) > 0) != wanted:
                found.append(f"{step}, prompt {line.prompt}: {getattr(line, tier)} tokens from {tier}")
    return found
