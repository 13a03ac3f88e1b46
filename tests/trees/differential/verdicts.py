"""Print, as Markdown, which sampling parameter each verify path samples with; docs/speculation.md keeps the tables.

    PYTHONPATH=TREE:integration/prove/cpu_layer TRITON_INTERPRET=1 SGLANG_USE_CPU_ENGINE=0 python tests/trees/differential/verdicts.py

TREE is an unpacked sglang, pristine or patched. A cell is empty when the distributions that the path hands to its
sampler and the log-probabilities that it reports are those of plain decoding, row by row, and otherwise the largest
difference of a probability, or of a log-probability. A parameter without a difference is named below the table. The last
one says whether the request's seed decides the draws.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "probes" / "sglang"))


def main() -> None:
    from check_sampling_parameters import KINDS, worst
    from check_seeds import decides
    from verify_paths import PATHS, published_config

    print("| parameter | " + " | ".join(PATHS) + " |")
    print("|---" * (len(PATHS) + 1) + "|")
    alike = []

    def row(parameter: str, cells: list[str]) -> None:
        if any(cells):
            print(f"| {parameter} | " + " | ".join(cells) + " |", flush=True)
        else:
            alike.append(parameter)

    with published_config():
        for kind in KINDS:
            cells = []
            for path in PATHS:
                difference = worst(kind, path)
                if difference.probability >= 1e-5:
                    cells.append(f"off by {difference.probability:.2f}")
                elif difference.logprob >= 1e-3:
                    cells.append(f"log-probability off by {difference.logprob:.2f}")
                else:
                    cells.append("")
            row(kind, cells)
    row("sampling_seed, deterministic inference", ["" if decides(path) else "ignored" for path in PATHS])
    print(f"\nAs plain on every path: {'; '.join(alike)}.")


if __name__ == "__main__":
    main()
