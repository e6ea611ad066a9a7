"""From a typed name to an engine, or to a sentence that says what is wrong with the name."""

from __future__ import annotations

import importlib.metadata
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.adapters.reference import ReferenceEngine
from conformance.builtin import BUILTINS
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.resolve import ENTRY_POINTS, resolve

ENGINE = """
    from conformance.adapters.reference import ReferenceEngine

    class Mine(ReferenceEngine):
        pass

    instance = Mine()

    class NoClose:
        card = capabilities = None
        def load(self, probe): ...
        def generate(self, requests): ...

    class NeedsArguments(ReferenceEngine):
        def __init__(self, path): ...

    class Wrapper(ReferenceEngine):
        def __init__(self):
            from conformance.resolve import resolve
            self.inner = resolve("an-engine-that-is-not-there")

    class Shy(ReferenceEngine):
        @property
        def card(self):
            raise RuntimeError("not before load")
        @card.setter
        def card(self, value): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "my_engine.py"
    path.write_text(textwrap.dedent(ENGINE), encoding="utf-8")
    before, modules = list(sys.path), set(sys.modules)
    yield path
    sys.path[:] = before  # resolve makes a file's neighbours importable, in a process of its own
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_built_in_names() -> None:
    assert resolve("reference").card.name == "reference"
    assert resolve("faulty:lenient=0.8").card.name == "faulty:lenient=0.8"
    assert "deliberately wrong" in resolve("faulty:accept-all").card.rule


@pytest.mark.parametrize("name", BUILTINS)
def test_every_built_in_has_its_requirement_named(name: str) -> None:
    assert BUILTINS[name].summary
    assert BUILTINS[name].methods


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no-such-engine", "no engine named 'no-such-engine'. Built in: .*reference"),
        ("", "no engine named ''"),
        (":", "no engine named ':'"),
        ("reference:fast", "engine reference has no methods, got 'fast'"),
        ("faulty:imaginary", "no fault named 'imaginary'"),
        ("faulty:lenient=2", r"takes a number in \(0, 1\], not '2'"),
        ("transformers:imaginary", "imaginary"),
        ("no_such_module:Engine", "no module named 'no_such_module'"),
        ("no/such/file.py:Engine", "no file no/such/file.py"),
        ("no/such/file.py", "no engine named 'no/such/file.py'"),
        ("conformance.adapters.reference:Missing", "has no 'Missing'"),
        ("conformance.adapters.reference:not-a-name", "no engine named"),
    ],
)
def test_names_that_mean_nothing(name: str, sentence: str) -> None:
    with pytest.raises(UnknownEngineError, match=sentence):
        resolve(name)


def test_module_and_class() -> None:
    engine = resolve("conformance.adapters.reference:ReferenceEngine")
    assert isinstance(engine, ReferenceEngine)


def test_module_and_factory() -> None:
    assert resolve("conformance.adapters.reference:reference").card.name == "reference"


def test_file_and_class(file: Path) -> None:
    assert type(resolve(f"{file}:Mine")).__name__ == "Mine"


def test_a_relative_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert type(resolve("my_engine.py:Mine")).__name__ == "Mine"


def test_an_instance_serves_too(file: Path) -> None:
    assert type(resolve(f"{file}:instance")).__name__ == "Mine"


def test_a_file_may_import_its_neighbours(file: Path) -> None:
    user = file.with_name("second.py")
    user.write_text("from my_engine import Mine\n", encoding="utf-8")
    assert type(resolve(f"{user}:Mine")).__name__ == "Mine"


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("NoClose", "lacks close; see conformance.contract.Engine"),
        ("NeedsArguments", "cannot be constructed: TypeError: .*path"),
        ("Wrapper", "Wrapper cannot be constructed: no engine named 'an-engine-that-is-not-there'"),
        ("Shy", "cannot be constructed: RuntimeError: not before load"),
    ],
)
def test_classes_that_are_no_engines(file: Path, attribute: str, sentence: str) -> None:
    with pytest.raises(EngineLoadError, match=sentence):
        resolve(f"{file}:{attribute}")


def test_a_class_that_is_not_there(file: Path) -> None:
    with pytest.raises(UnknownEngineError, match="has no 'Yours'"):
        resolve(f"{file}:Yours")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("def broken(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_imported(file: Path, source: str, sentence: str) -> None:
    file.write_text(source, encoding="utf-8")
    with pytest.raises(EngineLoadError, match=sentence):
        resolve(f"{file}:Mine")


def test_a_missing_dependency_is_not_a_wrong_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module exists; what it needs does not. That is not the caller's mistake."""
    (file.parent / "needy_engine.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(file.parent)
    with pytest.raises(EngineLoadError, match="no_such_dependency"):
        resolve("needy_engine:Mine")


class _Point:
    """An entry point, with what it loads given directly."""

    def __init__(self, name: str, loads: object) -> None:
        self.name, self.loads = name, loads

    def load(self) -> object:
        if isinstance(self.loads, Exception):
            raise self.loads
        return self.loads


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(method: str = "default") -> ReferenceEngine:
        return ReferenceEngine(name=f"registered {method}")

    points = [
        _Point("theirs", factory),
        _Point("reference", factory),
        _Point("broken", ImportError("libcuda.so.1: cannot open shared object file")),
        _Point("empty", object),
    ]

    def entry_points(group: str) -> list[_Point]:
        assert group == ENTRY_POINTS
        return points

    monkeypatch.setattr("conformance.resolve.entry_points", entry_points)


@pytest.mark.usefixtures("registered")
def test_entry_points() -> None:
    assert resolve("theirs").card.name == "registered default"
    assert resolve("theirs:lookup").card.name == "registered lookup"
    with pytest.raises(EngineLoadError, match=r"ImportError: libcuda\.so\.1"):
        resolve("broken")
    with pytest.raises(EngineLoadError, match="lacks card, capabilities, load, generate, close"):
        resolve("empty")


@pytest.mark.usefixtures("registered")
def test_nobody_can_take_a_built_in_name() -> None:
    """An installed package must not be able to be judged in the reference's place."""
    assert resolve("reference").card.name == "reference"


def test_a_requirement_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("conformance.builtin.version", version)
    assert BUILTINS["transformers"].installed is None
