"""``conformance probe``: the files of a probe, for a server to serve."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import click

_WRITE = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("gguf_probe", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.write_gguf(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
"""


@click.command("probe")
@click.argument("name")
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to; made where missing.",
)
@click.option("--gguf", is_flag=True, help="Write target.gguf and draft.gguf as well.")
def probe_command(name: str, folder: Path, gguf: bool) -> None:
    """Write the models of probe NAME (mid, small ...) to a folder.

    They are tiny random Llama models in the Hugging Face layout: target and draft. Start a server
    on them to judge it over HTTP, or use them to look into what a report says.
    """
    from conformance.errors import ProbeError  # noqa: PLC0415
    from conformance.probes import load_probe  # noqa: PLC0415

    probe = load_probe(name)
    try:
        for part in ("target", "draft"):
            shutil.copytree(probe.folder / part, folder / part, dirs_exist_ok=True)
            click.echo(folder / part)
    except OSError as exc:
        raise ProbeError(f"cannot write {folder}: {exc}") from exc
    for part in ("target", "draft") if gguf else ():
        _write_gguf(folder / part, folder / f"{part}.gguf")
        click.echo(folder / f"{part}.gguf")


def _write_gguf(model: Path, path: Path) -> None:
    """Convert with whichever Python has the gguf package."""
    from conformance.environments import python_of  # noqa: PLC0415
    from conformance.errors import SetupError  # noqa: PLC0415

    here = importlib.util.find_spec("gguf") is not None
    python = sys.executable if here else python_of("xllamacpp")
    if python is None:
        raise SetupError(
            "GGUF files need the package gguf: pip install gguf, or 'conformance setup xllamacpp'"
        )
    converter = importlib.util.find_spec("conformance.adapters.gguf_probe")
    assert converter is not None
    assert converter.origin is not None
    command = [str(python), "-P", "-c", _WRITE, converter.origin, str(model), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"cannot write {path}: {done.stderr.strip()[-1000:]}")
