"""Run a function just before or just after a named module is imported, without importing it."""

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class StandInRefused(RuntimeError):
    """Upstream no longer has what a stand-in replaces.

    Not an ImportError: upstream guards many optional imports with `except ImportError` and would go on without us.
    """


def before(module_name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register `action()` to run when `module_name` is about to be executed for the first time."""

    def register(action: Callable[[], None]) -> Callable[[], None]:
        _before.setdefault(module_name, []).append(action)
        return action

    return register


def after(module_name: str) -> Callable[[Callable[[ModuleType], None]], Callable[[ModuleType], None]]:
    """Register `action(module)` to run when `module_name` has been executed for the first time.

    If the module is already imported, the action runs at once.
    """

    def register(action: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        if module_name in sys.modules:
            _run(action, module_name, sys.modules[module_name])
        else:
            _after.setdefault(module_name, []).append(action)
        return action

    return register


def replace(owner: Any, name: str, value: Any) -> Any:
    """Set `owner.name` to `value` and return what was there; raise StandInRefused if nothing was there."""
    try:
        old = getattr(owner, name)
    except AttributeError:
        label = getattr(owner, "__module__", None) if isinstance(owner, type) else None
        label = f"{label}.{owner.__qualname__}" if label else getattr(owner, "__name__", repr(owner))
        raise StandInRefused(
            f"{label} has no attribute {name!r}: upstream changed under this stand-in; read upstream's new code and "
            f"rework or delete the stand-in"
        ) from None
    setattr(owner, name, value)
    return old


def install_finder() -> None:
    """Put the finder first on sys.meta_path, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


_before: dict[str, list[Callable[[], None]]] = {}
_after: dict[str, list[Callable[[ModuleType], None]]] = {}


class _Finder:
    """Finds nothing itself: asks the other finders and adds our actions to the loader that they return."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _before and name not in _after:
            return None
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is None:
            raise StandInRefused(f"{name} is a namespace package: it runs no code that a stand-in could follow")
        execute = loader.exec_module

        # On the instance, not by a wrapper class: the loader keeps its type, and inspect and Triton read sources by it.
        def exec_module(module: ModuleType) -> None:
            for action in _before.pop(name, []):
                _run(action, name)
            execute(module)
            for action in _after.pop(name, []):
                _run(action, name, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run(action: Callable[..., None], module_name: str, *arguments: ModuleType) -> None:
    stand_in = action.__module__.rpartition(".")[2]
    try:
        action(*arguments)
    except StandInRefused as refused:
        message = f"stand-in {stand_in} ({action.__name__}) for {module_name}: {refused}"
        # Upstream may swallow the exception (optional features, plugin loaders); the log must still show it.
        print(f"proof: REFUSED: {message}", file=sys.stderr, flush=True)
        raise StandInRefused(message) from None
    log = os.environ.get("PROOF_LOG")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {stand_in} {module_name}\n")
