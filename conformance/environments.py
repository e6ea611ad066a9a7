"""Virtual environments of engines that cannot, or should not, be installed beside the suite.

Each is made by ``conformance setup NAME`` from pinned requirements that come with the suite, in the
user's data folder, and found again by the engine's name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import platformdirs

from conformance.builtin import BUILTINS
from conformance.errors import SetupError, UnknownEngineError

FOLDER_VARIABLE = "CONFORMANCE_ENGINES"
DONE = "conformance-ready.txt"


def folder_of(name: str) -> Path:
    """Where the environment of an engine is, or would be: under ``$CONFORMANCE_ENGINES``, or the
    user's data folder.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    root = Path(chosen) if chosen else platformdirs.user_data_path("specdec-conformance", False)
    return root / "engines" / name if not chosen else root / name


def python_of(name: str) -> Path | None:
    """The Python of an engine's own environment; None if it was not made, or not to its end."""
    folder = folder_of(name)
    return _python(folder) if (folder / DONE).exists() else None


def requirements_of(name: str) -> list[tuple[Path, bool]]:
    """Files of pinned requirements, in the order of their installation, and whether their own
    dependencies are left out.

    Raises
    ------
    UnknownEngineError
        If the engine has no environment of its own.
    """
    if name not in BUILTINS or not BUILTINS[name].own_environment:
        own = [n for n, b in BUILTINS.items() if b.own_environment]
        raise UnknownEngineError(
            f"no engine {name!r} has an environment of its own; there are {', '.join(own)}"
        )
    folder = Path(str(files("conformance.adapters"))) / "requirements"
    bare = folder / f"{name}.no-deps.txt"
    found = [(folder / f"{name}.txt", False)]
    return found + ([(bare, True)] if bare.exists() else [])


def make(name: str, python: str | None = None, told: Callable[[str], None] = print) -> Path:
    """Make, or make anew, the environment of an engine.

    Parameters
    ----------
    name : str
        A built-in engine.
    python : str, optional
        The Python to make it with; the suite's own by default.
    told : callable
        Given every step in words.

    Returns
    -------
    Path
        Its Python.

    Raises
    ------
    UnknownEngineError
        If the engine has no environment of its own.
    SetupError
        If a step fails; what was made so far is left to be looked at, and is not used.
    """
    needed, folder = requirements_of(name), folder_of(name)
    wanted = "".join(path.read_text(encoding="utf-8") for path, _ in needed)
    done = folder / DONE
    if done.exists() and done.read_text(encoding="utf-8") == wanted and _python(folder).exists():
        told(f"{name} is ready in {folder}")
        return _python(folder)
    told(f"making {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if python is None:
            venv.create(folder, with_pip=True)
        else:
            _step([python, "-m", "venv", str(folder)])
    except (OSError, subprocess.CalledProcessError) as exc:
        raise SetupError(f"cannot make {folder}: {exc}") from exc
    pip = [str(_python(folder)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for path, bare in needed:
        told(f"installing {path.name}")
        _step([*pip, *(["--no-deps"] if bare else []), "-r", str(path)])
    done.write_text(wanted, encoding="utf-8")
    told(f"{name} is ready in {folder}")
    return _python(folder)


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _step(command: list[str]) -> None:
    # constraints of the caller's own environment are not this one's
    env = {k: v for k, v in os.environ.items() if k not in ("PIP_CONSTRAINT", "PYTHONPATH")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise SetupError(f"{' '.join(command)} failed with status {done.returncode}:\n{said}")
