"""What a statement imports, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded_by(statement: str, *modules: str) -> list[str]:
    """Which of some modules are loaded once a statement has run in a fresh interpreter."""
    asked = f"print(json.dumps([m for m in {modules!r} if m in sys.modules]))"
    code = f"import json, sys\n{statement}\n{asked}"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    found: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return found
