"""How an engine's process is started: with which Python, or which program.

Three ways. Beside the suite: its own Python. In a virtual environment of its own: that Python, and
the host as a file, which finds this suite's modules but not its dependencies. Any other program:
``exec:PROGRAM ARGUMENTS``, which speaks the host protocol itself.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

from conformance import environments
from conformance.builtin import BUILTINS, VERIFIERS
from conformance.errors import UnknownEngineError
from conformance.resolve import split_options

PROGRAM = "exec:"
KEY_VARIABLE = "CONFORMANCE_API_KEY"
KEYED = ("openai", "served")  # engines that send it to a server
# What an engine's process imports of this suite. Each is told to it by its place, since an editable
# install may spread them, and nothing else of ours is in its way.
PACKAGES = ("conformance", "conformance.adapters", "conformance.verifier", "conformance.faults")


def command(name: str, python: str | None = None) -> list[str]:
    """The command line that starts the process of an engine.

    Parameters
    ----------
    name : str
        As typed.
    python : str, optional
        The engine's Python; by default that of its own environment if it has one, else ours.

    Raises
    ------
    UnknownEngineError
        If a program is named that is not there.
    """
    if name.startswith(PROGRAM):
        return _program(name)
    chosen = python or environment(name) or sys.executable
    if chosen == sys.executable:
        return [chosen, "-P", "-m", "conformance.adapters.host"]
    host = importlib.util.find_spec("conformance.adapters.host")
    assert host is not None
    assert host.origin is not None
    places = [f"--package={package}={_place(package)}" for package in PACKAGES]
    return [chosen, "-P", host.origin, *places]


def variables(name: str) -> dict[str, str]:
    """The environment variables of an engine's process: ours, without what is not its business."""
    # one thread each: the workers share the machine's cores between them
    kept = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    if split_options(name)[0].partition(":")[0] not in KEYED:
        kept.pop(KEY_VARIABLE, None)
    return kept


def environment(name: str) -> str | None:
    """The Python of the engine's own environment, where that is what should run it."""
    base, _ = split_options(name)
    head = base.partition(":")[0]
    if head not in BUILTINS or not BUILTINS[head].own_environment:
        return None
    made = environments.python_of(head)
    # one that is installed beside the suite is there because somebody wants it judged there
    needed = VERIFIERS[base] if base in VERIFIERS else BUILTINS[head]
    return None if made is None or needed.installed else str(made)


def missing(name: str, python: str | None = None) -> str | None:
    """What to do about an engine whose environment was not made; None if nothing is missing."""
    head = split_options(name)[0].partition(":")[0]
    if python or head not in BUILTINS or not BUILTINS[head].own_environment:
        return None
    if environment(name) or BUILTINS[head].installed:
        return None
    return f"{head} has no environment yet: run 'conformance setup {head}', or give --python"


def _program(name: str) -> list[str]:
    try:
        words = shlex.split(name.removeprefix(PROGRAM))
    except ValueError as exc:
        raise UnknownEngineError(f"{name}: {exc}") from exc
    if not words:
        raise UnknownEngineError("exec: needs a program, as in exec:path/to/engine")
    return words


def _place(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))
