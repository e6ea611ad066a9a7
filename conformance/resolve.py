"""From the name a person types to an engine.

``reference``, ``exact:NAME``, ``faulty:NAME``, ``transformers[:METHOD]``; an entry point in the
group ``conformance.engines``; ``package.module:Class``; ``path/to/file.py:Class``. Each may be
followed by options: ``vllm:ngram,dtype=bfloat16``. Nothing of an engine is imported before it is
asked for, and then only in the engine's own process, whose Python may have none of this suite's
dependencies: this module needs the standard library alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from conformance.builtin import BUILTINS, builtin_verifier
from conformance.contract import Engine
from conformance.errors import ConformanceError, EngineLoadError, UnknownEngineError

ENTRY_POINTS = "conformance.engines"


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
    base, options = split_options(name)
    head, _, method = base.partition(":")
    try:
        verifier = builtin_verifier(base)
        if verifier is not None:
            _no_options(name, options)
            return verifier.make()
        if head in BUILTINS:
            return _builtin(head, method, options)
        for point in entry_points(group=ENTRY_POINTS):
            if point.name in (base, head):
                given = (method,) if point.name != base and method else ()
                return _call(name, point.load(), given, options)
        module, colon, attribute = base.rpartition(":")
        if colon and attribute.isidentifier():
            return _construct(_import(module), attribute, options)
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


def split_options(name: str) -> tuple[str, dict[str, str]]:
    """Take the options off a name.

    Examples
    --------
    >>> split_options("vllm:ngram,device=cpu,dtype=bfloat16")
    ('vllm:ngram', {'device': 'cpu', 'dtype': 'bfloat16'})
    >>> split_options("faulty:lenient=0.9")
    ('faulty:lenient=0.9', {})
    """
    base, *rest = name.split(",")
    pairs = [re.fullmatch(r"([A-Za-z_]\w*)=(.*)", part) for part in rest]
    if not all(pairs):  # a comma in the name of a file
        return name, {}
    return base, {pair[1]: pair[2] for pair in pairs if pair}


def is_verifier(made: object) -> bool:
    """Whether an object is a verifier rather than an engine."""
    try:
        return not hasattr(made, "generate") and hasattr(made, "verify")
    except Exception:  # a property that raises is reported where its part is needed
        return False


def _builtin(head: str, method: str, options: dict[str, str]) -> object:
    factory: Callable[..., object] = getattr(
        importlib.import_module(BUILTINS[head].module), BUILTINS[head].factory
    )
    if BUILTINS[head].methods == ("",):
        if method:
            raise UnknownEngineError(f"engine {head} has no methods, got {method!r}")
        return _call(head, factory, (), options)
    return _call(head, factory, (method,), options)


def _call(
    name: str, factory: Callable[..., object], given: tuple[str, ...], options: dict[str, str]
) -> object:
    """Construct with options as keyword arguments; one that the factory does not take is refused
    by name.
    """
    if options:
        known = inspect.signature(factory).parameters.values()
        takes = [p.name for p in known if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes = takes[len(given) :]
        unknown = [key for key in options if key not in takes]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known):
            has = f"it has {', '.join(takes)}" if takes else "it has none"
            raise UnknownEngineError(f"engine {name} has no option {', '.join(unknown)}; {has}")
    return factory(*given, **options)


def _no_options(name: str, options: dict[str, str]) -> None:
    if options:
        raise UnknownEngineError(f"{name}: a verifier takes no options")


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


def _construct(module: object, attribute: str, options: dict[str, str]) -> object:
    try:
        made = getattr(module, attribute)
    except AttributeError:
        raise UnknownEngineError(
            f"{getattr(module, '__name__', module)} has no {attribute!r}"
        ) from None
    try:
        return _call(attribute, made, (), options) if callable(made) else made
    except UnknownEngineError as exc:
        if options and "has no option" in str(exc):
            raise
        # the name was right; what it builds on is missing
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
