"""Print, as Markdown, which sampling parameter each verify path samples with; docs/speculation.md keeps the tables.

    PYTHONPATH=TREE:integration/proof TRITON_INTERPRET=1 SGLANG_USE_CPU_ENGINE=0 python tests/differential/verdicts.py

TREE is an unpacked sglang, pristine or patched. A cell is "as plain" when the distributions that the path hands to its
sampler are those of plain decoding, row by row, and otherwise the largest difference of a probability.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "probes" / "sglang"))


def main() -> None:
    from check_sampling_parameters import KINDS, scenario
    from verify_paths import PATHS, published_config

    print("| parameter | " + " | ".join(PATHS) + " |")
    print("|---" * (len(PATHS) + 1) + "|")
    with published_config():
        for kind in KINDS:
            cells = []
            for path in PATHS:
                worst = max(scenario(kind, path, seed) for seed in range(3))
                cells.append("as plain" if worst < 1e-5 else f"**off by {worst:.2f}**")
            print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
