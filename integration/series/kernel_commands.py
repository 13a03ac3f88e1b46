"""`sm120 kernel`: begin a kernel module. `sm120 series lint` checks all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console

app = typer.Typer(no_args_is_help=True, help="Begin a kernel module.")
console = make_console()


@app.callback()
def kernel() -> None:
    """Begin a kernel module; `sm120 series lint` checks every kernel.toml."""


@app.command("new")
def kernel_new(name: Annotated[str, typer.Argument(help="the folder's name, such as block_topk")]) -> None:
    """Make kernels/NAME: a small Triton kernel with reference, tests, budget and bench, to be turned into yours."""
    from sm120.integration.series.kernel_scaffold import new_kernel

    checkout = find_checkout()
    for path in new_kernel(checkout.kernels, name):
        console.print(str(path.relative_to(checkout.root)), markup=False)
    console.print(
        f"next: make test KERNEL={name}; then docs/kernel-developer.md, from `Make it yours` on", markup=False
    )
