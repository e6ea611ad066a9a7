"""Everything that Python does to the world outside while a block runs: nothing may be started,
nobody asked, and nothing written where it does not belong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

STARTS = (
    "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork",
    "pty.spawn", "ctypes.dlopen",
)  # fmt: skip
TALKS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
LOADS = ("pickle.find_class", "marshal.loads", "exec", "compile")
HARMLESS = (["uname", "-p"],)  # what `platform` asks for the name of the processor

_events: list[tuple[str, tuple[object, ...]]] | None = None


def _hook(event: str, given: tuple[object, ...]) -> None:
    if _events is not None and event in (*STARTS, *TALKS, *LOADS, "open", "import"):
        _events.append((event, given))


sys.addaudithook(_hook)  # for good: there is no taking it off


class Seen:
    """What happened."""

    def __init__(self, events: list[tuple[str, tuple[object, ...]]]) -> None:
        self.events = events

    @property
    def outside(self) -> list[tuple[str, tuple[object, ...]]]:
        """What was started or asked."""
        return [
            (event, given)
            for event, given in self.events
            if event in (*STARTS, *TALKS, "pickle.find_class")
            and not (event == "subprocess.Popen" and given[1] in HARMLESS)
        ]

    def opened(self, words: str) -> list[str]:
        """Files that were opened, with these words in their name."""
        return [str(g[0]) for e, g in self.events if e == "open" and words in str(g[0])]

    @property
    def written(self) -> list[str]:
        """Files that were opened to be written."""
        return [
            str(given[0])
            for event, given in self.events
            if event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+")
        ]


@contextmanager
def watched() -> Iterator[Seen]:
    """Watch a block."""
    global _events  # noqa: PLW0603 - a hook has no other place
    _events = events = []
    try:
        yield Seen(events)
    finally:
        _events = None
