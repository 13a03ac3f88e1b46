"""A recorded session of an agent, told again to an endpoint by several clients at once."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered
from sm120.integration.measure.texts import text

HARBOUR = Path(__file__).parent / "harbour_trace.json"


class Turn(BaseModel):
    """What comes in, and what the agent said to it when it was recorded.

    `weight` is this turn's part of the text by which a replay lengthens the trace; `wait_s` passes before it is sent,
    as a tool's work does.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["user", "tool"]
    text: str = Field(min_length=1)
    weight: int = Field(0, ge=0)
    wait_s: float = Field(0.0, ge=0, le=60, allow_inf_nan=False)
    new_tokens: int = Field(ge=2)
    assistant: str = Field(min_length=1)


class Trace(BaseModel):
    """A file of turns. `digest` is of the file, so that two traces of one name are told apart."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    system: str = Field(min_length=1)
    turns: list[Turn] = Field(min_length=2)
    digest: str = Field("", exclude=True)


@dataclass(frozen=True)
class Told:
    """One request of a replay."""

    session: int
    turn: int
    asked: int
    answer: Answer


def load_trace(file: Path = HARBOUR) -> Trace:
    """Read and check a trace.

    Raises:
        Refusal: `qualify-trace` naming the file and the key.
    """
    try:
        data = file.read_bytes()
        trace = Trace.model_validate_json(data, strict=True)
    except OSError as error:
        raise Refusal("qualify-trace", f"cannot be read: {error.strerror}", path=file) from None
    except ValidationError as error:
        raise Refusal("qualify-trace", first_problem(error, "trace"), path=file) from None
    return trace.model_copy(update={"digest": hashlib.sha256(data).hexdigest()[:8]})


def prompts(trace: Trace, characters: int, *, seed: str, session: int) -> list[str]:
    """The prompt of every turn; each begins with the one before it and with what the agent said to that.

    All sessions of one `seed` share the system text and nothing behind it. Turns with a weight are lengthened with
    new text, so that the last prompt has about `characters` characters.
    """
    # The seed comes first: no replay finds its prompts in the cache of another.
    so_far = f"[replay {seed}]\n[system]\n{trace.system}\n[session {session}]\n"
    bare = len(so_far) + sum(len(turn.text) + len(turn.assistant) + 32 for turn in trace.turns)
    total = sum(turn.weight for turn in trace.turns)
    built = []
    for number, turn in enumerate(trace.turns):
        more = max(0, characters - bare) * turn.weight // total if total else 0
        found = "\n" + text(f"{seed} session {session} turn {number}", more) if more else ""
        so_far += f"[{turn.role}]\n{turn.text}{found}\n[assistant]\n"
        built.append(so_far)
        so_far += f"{turn.assistant}\n"
    return built


def replay(
    endpoint: Endpoint, trace: Trace, concurrency: int, characters: int, *, seed: str, waits: bool = True
) -> list[Told]:
    """Tell the trace in `concurrency` sessions that start at one moment; a session sends a turn when the last is done.

    What the endpoint says is timed and dropped: the next prompt holds what was recorded, so every endpoint is asked
    the same.

    Raises:
        ValueError: `concurrency` or `characters` below 1.
        NotAnswered: one request failed; the other sessions end with the turn that they are at.
    """
    for name, value in (("concurrency", concurrency), ("characters", characters)):
        if value < 1:
            raise ValueError(f"{name} is {value}, needs at least 1")
    barrier, broken = threading.Barrier(concurrency), threading.Event()

    def one(session: int) -> list[Told]:
        told = []
        built = prompts(trace, characters, seed=seed, session=session)
        barrier.wait(60)
        for number, (turn, prompt) in enumerate(zip(trace.turns, built, strict=True)):
            if waits:
                time.sleep(turn.wait_s)
            if broken.is_set():
                break
            try:
                answer = endpoint.complete(prompt, turn.new_tokens, ignore_eos=True)
            except NotAnswered:
                broken.set()
                raise
            told.append(Told(session, number, turn.new_tokens, answer))
        return told

    with ThreadPoolExecutor(concurrency) as pool:
        return [told for session in pool.map(one, range(concurrency)) for told in session]
