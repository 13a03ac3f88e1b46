"""Resolve a server's arguments as on an RTX PRO 6000, and print what they have become.

    python resolve.py NAME,… ARGUMENT…      prints a JSON object of the named fields

Run by the runtime's Python, with the CPU layer's folder in CPU_LAYER: of its stand-ins only torchvision's is used, as
others change what is resolved. The card is what torch and NVML say of it: capability 12.0, 96,609 MiB, 188 SMs, all free.
"""

import argparse
import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

MIB = 96_609
CARD = SimpleNamespace(
    name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    major=12,
    minor=0,
    total_memory=MIB * 2**20,
    multi_processor_count=188,
    shared_memory_per_block_optin=101_376,
    shared_memory_per_multiprocessor=102_400,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=1_536,
    warp_size=32,
    L2_cache_size=128 * 2**20,
    is_integrated=False,
    uuid="GPU-00000000-0000-0000-0000-000000000000",
)


class Kernels(MetaPathFinder, Loader):
    """sgl_kernel, whose libraries want a driver: anything can be imported from it, and nothing is called."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "sgl_kernel" else None

    def create_module(self, spec):
        return MagicMock(__path__=[], __version__="0.4.10")

    def exec_module(self, module):
        pass


def show_the_card() -> None:
    """Before sglang is imported: it asks at import, and remembers."""
    sys.path.append(os.environ["CPU_LAYER"])
    from stand_ins import torchvision_ops  # noqa: F401
    from stand_ins.hook import install_finder

    install_finder()
    sys.meta_path.insert(0, Kernels())
    torch.version.cuda = torch.version.cuda or "13.0"
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (12, 0),
        "get_device_name": lambda device=None: CARD.name,
        "get_device_properties": lambda device=None: CARD,
        "mem_get_info": lambda device=None: (CARD.total_memory, CARD.total_memory),
        "set_device": lambda device: None,
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def main(names: list[str], line: list[str]) -> dict[str, object]:
    show_the_card()
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import common

    # It asks nvidia-smi.
    common.get_device_memory_capacity = lambda device=None: MIB
    common.get_nvgpu_memory_capacity = lambda: MIB
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    arguments = ServerArgs.from_cli_args(parser.parse_args(line))
    arguments.resolve_once()
    found = arguments.resolved_dict()
    return {name: found[name] for name in names}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1].split(","), sys.argv[2:]), default=str))
