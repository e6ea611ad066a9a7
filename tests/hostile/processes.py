"""Engines that break the process they live in, each in one way."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from engines import Altered  # a file's neighbours can be imported

from conformance import ModelPair, Request

MARK = "HOSTILE_ENGINE_FILE"  # environment variable naming a file to leave a process id in


class Exits(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        os._exit(3)


class KillsItself(Altered):
    """At a moment of its own choosing, from another thread."""

    batch = 1

    def load(self, probe: ModelPair) -> None:
        super().load(probe)
        threading.Thread(target=self._later, daemon=True).start()

    @staticmethod
    def _later() -> None:
        time.sleep(random.uniform(0, 0.02))
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, requests: Sequence[Request]) -> None:
        time.sleep(0.01)


class Segfaults(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        ctypes.string_at(0)


class Hangs(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        time.sleep(10**6)


class Stops(Altered):
    """Stops reading: more is asked of it than fits into the pipe."""

    batch = 1024

    def load(self, probe: ModelPair) -> None:
        super().load(probe)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()


class ClosesItsOutput(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        os.closerange(3, 256)
        time.sleep(10**6)


def _pipes() -> list[int]:
    """Descriptors of pipes beyond the standard three: where the answers go is among them."""
    links = {fd: f"/proc/self/fd/{fd}" for fd in range(3, 64)}
    return [fd for fd, at in links.items() if os.path.lexists(at) and "pipe" in os.readlink(at)]


class WritesToEveryPipe(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        for fd in _pipes():
            try:
                os.write(fd, b"loading: 3%|\n")
            except OSError:
                continue


class ForgesAnError(Altered):
    """Names something of the errors' module that is no error."""

    def before(self, requests: Sequence[Request]) -> None:
        for fd in _pipes():
            try:
                os.write(fd, json.dumps({"error": "annotations"}).encode() + b"\n")
            except OSError:
                continue


class LeavesAServer(Altered):
    """Starts a process, like engines that are servers, and dies without ending it."""

    def before(self, requests: Sequence[Request]) -> None:
        server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ[MARK]).write_text(str(server.pid))
        os._exit(1)


class NoisyButRight(Altered):
    """Prints, writes to the standard descriptors, asks for input, and loses a thread."""

    def before(self, requests: Sequence[Request]) -> None:
        print('{"completions": []}')
        os.write(1, b'{"error": "NotSupportedError", "message": "no"}\n\xff\xfe\x00')
        assert os.read(0, 1) == b""
        sys.stdout.flush()
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        print("\x1b[31mto the other stream", file=sys.stderr)

    def close(self) -> None:
        raise RuntimeError("on the way out")
