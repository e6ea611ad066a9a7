"""What adapters share: the version of the library they wrap, and its modules, imported when asked
for.

Standard library and this suite's contract alone, like the adapters themselves.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from conformance.contract import Logprobs
from conformance.errors import EngineLoadError, UnknownEngineError

MOST_THREADS = 1024
# What the option ``logprobs`` of an engine may be.
LOGPROBS: dict[str, Logprobs] = {"raw": "raw", "processed": "processed"}


def version_of(distribution: str) -> str:
    """Version of an installed distribution; in words, if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def need(module: str, engine: str, remedy: str) -> Any:
    """Import a module of the library that an engine wraps.

    Parameters
    ----------
    module : str
        What to import.
    engine : str
        Which engine needs it.
    remedy : str
        What to do if it is missing.

    Raises
    ------
    EngineLoadError
        If it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise EngineLoadError(
            f"the {engine} engine needs {module}, which cannot be imported ({exc}); {remedy}"
        ) from exc


def threads_of(text: str) -> int:
    """Read an engine's option ``threads``.

    Raises
    ------
    UnknownEngineError
        If it is no number of threads.
    """
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_THREADS):
        raise UnknownEngineError(
            f"threads must be a whole number from 1 to {MOST_THREADS}, not {text!r:.100}"
        )
    return int(text[:9])
