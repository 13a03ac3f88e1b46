"""What a proof cost and what it passed through, beside its rows."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sm120.integration.prove.server import Server


@dataclass
class Summary:
    """Seconds to start and memory of each server; the stand-ins that any process loaded."""

    stand_in_log: Path
    storage: str = ""
    start_seconds: dict[str, float] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)

    def started(self, name: str, server: Server) -> None:
        self.start_seconds[name] = server.start_seconds

    def ended(self, name: str, server: Server) -> None:
        """Record the memory of a server that still runs, after its last request."""
        self.memory_bytes[name] = server.memory_bytes()

    def stand_ins(self) -> list[str]:
        """Names of the stand-ins that at least one process loaded."""
        if not self.stand_in_log.exists():
            return []
        lines = self.stand_in_log.read_text().splitlines()
        return sorted(Counter(line.split()[1] for line in lines if len(line.split()) == 3))

    def environment(self) -> dict[str, str]:
        """Makes every child tell which stand-ins it loads."""
        return {"PROOF_LOG": os.fspath(self.stand_in_log)}
