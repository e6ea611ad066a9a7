"""From the name a person types to an engine.

``reference``, ``exact:NAME``, ``faulty:NAME``, ``transformers[:METHOD]``; an entry point in the
group ``conformance.engines``; ``package.module:Class``; ``path/to/file.py:Class``. Nothing of an
engine is imported before it is asked for, and then only in a worker process.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from conformance.contract import Engine
from conformance.errors import ConformanceError, EngineLoadError, UnknownEngineError
from conformance.verifier.builtin import builtin_verifier

ENTRY_POINTS = "conformance.engines"


@dataclass(frozen=True, slots=True)
class Builtin:
    """An engine that comes with the suite.

    Parameters
    ----------
    module, factory : str
        Where its factory is; it is called with the method, the text after the colon.
    methods : tuple of str
        Methods that can be named; the empty string is the default one.
    summary : str
        For ``conformance engines``.
    requires : str
        The distribution that must be installed, empty if none.
    """

    module: str
    factory: str
    methods: tuple[str, ...]
    summary: str
    requires: str = ""

    @property
    def installed(self) -> str | None:
        """Version of the required distribution; None if it is missing."""
        if not self.requires:
            return version("specdec-conformance")
        try:
            return version(self.requires)
        except PackageNotFoundError:
            return None


BUILTINS: dict[str, Builtin] = {
    "transformers": Builtin(
        "conformance.adapters.transformers",
        "create",
        ("", "prompt-lookup", "early-exit", "universal"),
        "Hugging Face transformers, assisted generation",
        requires="transformers",
    ),
    "reference": Builtin(
        "conformance.adapters.reference",
        "reference",
        ("",),
        "this suite's own exact engine",
    ),
    "faulty": Builtin(
        "conformance.adapters.reference",
        "faulty",
        ("accept-all", "lenient=0.9", "resample-from-p"),
        "the reference made wrong on purpose; 'conformance faults' lists all",
    ),
    "exact": Builtin(
        "conformance.adapters.exact_rules",
        "exact",
        (
            *("sample-and-match", "without-q", "argmax-draft", "top-k-tree", "damaged-draft"),
            *("block-verification", "variable-length"),
        ),
        "other exact rules, which must pass",
    ),
}


def resolve(name: str) -> Engine:
    """Construct the engine called `name`, without loading a model.

    Raises
    ------
    UnknownEngineError
        If nothing has that name.
    EngineLoadError
        If it exists but cannot be imported or constructed, or lacks part of the contract.
    """
    return check_engine(name, construct(name))


def construct(name: str) -> object:
    """Construct whatever is called `name`: an engine, or a verifier.

    Raises
    ------
    UnknownEngineError
        If nothing has that name.
    EngineLoadError
        If it exists but cannot be imported or constructed.
    """
    head, _, method = name.partition(":")
    try:
        verifier = builtin_verifier(name)
        if verifier is not None:
            return verifier.make()
        if head in BUILTINS:
            return _builtin(head, method)
        for point in entry_points(group=ENTRY_POINTS):
            if point.name in (name, head):
                factory = point.load()
                made: object = factory(method) if point.name != name and method else factory()
                return made
        module, colon, attribute = name.rpartition(":")
        if colon and attribute.isidentifier():
            return _construct(_import(module), attribute)
    except ConformanceError:
        raise
    except Exception as exc:  # an engine's own code runs here and may raise anything
        raise EngineLoadError(
            f"engine {name!r} cannot be constructed: {type(exc).__name__}: {exc}"
        ) from exc
    raise UnknownEngineError(
        f"no engine named {name!r}. Built in: {', '.join(BUILTINS)}; or give package.module:Class "
        "or path/to/file.py:Class"
    )


def _builtin(head: str, method: str) -> object:
    factory: Callable[..., object] = getattr(
        importlib.import_module(BUILTINS[head].module), BUILTINS[head].factory
    )
    if BUILTINS[head].methods == ("",):
        if method:
            raise UnknownEngineError(f"engine {head} has no methods, got {method!r}")
        return factory()
    return factory(method)


def _import(module: str) -> object:
    if not module.endswith(".py"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as exc:
            if exc.name and module.split(".", maxsplit=1)[0] == exc.name:
                raise UnknownEngineError(
                    f"no module named {module!r}; is its package installed, or is it a file? "
                    "Then write path/to/file.py:Class"
                ) from exc
            raise
    path = Path(module).resolve()
    if not path.is_file():
        raise UnknownEngineError(f"no file {module}")
    name = f"conformance_engine_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownEngineError(f"{module} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # dataclasses and pickling look their module up by name
    sys.path.insert(0, str(path.parent))  # the file may import its neighbours
    spec.loader.exec_module(loaded)
    return loaded


def _construct(module: object, attribute: str) -> object:
    try:
        made = getattr(module, attribute)
    except AttributeError:
        raise UnknownEngineError(
            f"{getattr(module, '__name__', module)} has no {attribute!r}"
        ) from None
    try:
        return made() if callable(made) else made
    except UnknownEngineError as exc:  # the name was right; what it builds on is missing
        raise EngineLoadError(f"{attribute} cannot be constructed: {exc}") from exc


def check_engine(name: str, engine: object) -> Engine:
    """Return the engine, or say what it lacks.

    Raises
    ------
    EngineLoadError
        If part of the contract is missing.
    """
    try:
        missing = [
            part
            for part in ("card", "capabilities", "load", "generate", "close")
            if not hasattr(engine, part)
        ]
    except Exception as exc:  # a property is an engine's own code and may raise anything
        raise EngineLoadError(
            f"engine {name!r} cannot be constructed: {type(exc).__name__}: {exc}"
        ) from exc
    if missing:
        raise EngineLoadError(
            f"engine {name!r} lacks {', '.join(missing)}; see conformance.contract.Engine"
        )
    assert isinstance(engine, Engine)
    return engine
