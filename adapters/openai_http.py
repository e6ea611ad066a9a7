"""HTTP for engines that are servers: one POST for each request, several in flight.

What is asked again and what is not, and why
--------------------------------------------
A request may be sent again only where no answer can have been drawn. Otherwise a server that fails
on some answers would be asked until it likes one, and the answers that are left are not those it
draws: a fault could be hidden, or made. A seed is no help, since a server is free to ignore it. So
these, and nothing else, are asked again, the same bytes, at most `Limits.retries` times:

* a connection that could not be opened: nothing was sent;
* 429: the server refuses to take the request;
* 503 with a ``Retry-After`` header: the server sheds load, and says when to come back.

A 503 without it, 500, 502 and 504 may be a proxy's word for an engine that died over its answer. A
connection that breaks and a time-out may come after the answer was drawn. Each of them ends the
case as ERROR, as an engine does that raises. An answer of status 200 is never asked for again,
whatever it holds. A GET draws nothing, and is asked again freely.

The key
-------
It is read from the environment alone, sent in the ``Authorization`` header to the addresses the
user gave and nowhere else (redirects are not followed), and cut out of every text that came from a
server before that text is put into a message.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import ipaddress
import json
import logging
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from string import ascii_lowercase, ascii_uppercase
from typing import Any
from urllib.parse import quote, urlsplit

from conformance.errors import BadAnswerError, EngineFailure, EngineLoadError, UnknownEngineError

Json = dict[str, Any]
KEY_VARIABLE = "CONFORMANCE_API_KEY"
LIBRARIES = ("httpx2", "httpx")  # the same interface; the first is the one that is maintained
LARGEST_ANSWER = 8 * 2**20  # bytes; a page of metrics has a fraction of it
LONGEST_WAIT = 120.0  # seconds that a Retry-After may ask for
FIRST_WAIT, WAIT_AT_MOST = 0.25, 15.0
SECONDS_TO_CONNECT = 10.0
# Shorter than any server keeps an idle connection: one that closes while a request is on its way
# would look like an engine that died over its answer.
KEEP_IDLE = 2.0
QUOTED = 300  # characters of a server's text in a message
PIECE = 8  # so many characters of the key in a row are taken for the key
HIDDEN = "[key]"
LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # and no letter gets longer


class StatusError(EngineFailure):
    """An answer of another status than 200, and that status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Secret:
    """The key, which no `repr` shows; an empty one is none, and sends no header.

    Raises
    ------
    EngineLoadError
        If it cannot be sent in a header.
    """

    def __init__(self, key: str = "") -> None:
        if not all("!" <= c <= "~" for c in key):
            raise EngineLoadError(
                f"{KEY_VARIABLE} holds characters that no HTTP header can carry (white space, "
                "perhaps a line end, or no ASCII)"
            )
        self._key = key
        forms = [quote(key, safe="")]
        for before in range(3):  # what base64 makes of a key depends on what stands before it
            packed = base64.b64encode(bytes(before) + key.encode()).decode().rstrip("=")
            forms.append(packed[(0, 2, 3)[before] : -2])
        self._pieces = {
            form[i : i + PIECE].translate(LOWER)
            for form in [key, *(f for f in forms if len(f) >= PIECE)]
            for i in range(max(1, len(form) - PIECE + 1))
            if key
        }

    def __repr__(self) -> str:
        return HIDDEN

    @classmethod
    def from_environment(cls) -> Secret:
        """The key in ``$CONFORMANCE_API_KEY``."""
        return cls(os.environ.get(KEY_VARIABLE, "").strip(" "))

    def headers(self) -> dict[str, str]:
        """What goes with every request."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def redact(self, text: str) -> str:
        """Cut out the key, as it is, as in a URL or in base64, and long pieces of any of them."""
        low, hidden = text.translate(LOWER), [False] * len(text)
        for piece in self._pieces:
            at = low.find(piece)
            while at >= 0:
                hidden[at : at + len(piece)] = [True] * len(piece)
                at = low.find(piece, at + 1)
        shown = [
            HIDDEN if gone and not (i and hidden[i - 1]) else "" if gone else c
            for i, (c, gone) in enumerate(zip(text, hidden, strict=True))
        ]
        return "".join(shown)


@dataclass(frozen=True, slots=True)
class Limits:
    """How a server is asked.

    Parameters
    ----------
    concurrency : int
        Requests in flight.
    timeout : float
        Seconds for one request, from opening the connection to the last byte.
    retries : int
        How often a request that was not taken is sent again.
    rate : float
        Requests a second at most; 0 sets no limit.
    """

    concurrency: int = 16
    timeout: float = 60.0
    retries: int = 5
    rate: float = 0.0


def address(text: str, option: str) -> str:
    """Check an address and return it without its last slash.

    Raises
    ------
    UnknownEngineError
        If it is no plain ``http(s)://host[:port]/path``. The message does not repeat it: what is
        wrong with it may be a password.
    """
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(c in text for c in "@?#\\") or not text.isprintable() or " " in text:
        raise UnknownEngineError(
            f"option {option} must be http://host:port/v1 or https://host/v1, without user name, "
            f"password or query; a key is read from the environment variable {KEY_VARIABLE}"
        )
    return text.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Http:
    """A client of the user's addresses.

    Parameters
    ----------
    urls : sequence of str
        Every address that will be asked, as `address` returns them.
    limits : Limits
    secret : Secret

    Raises
    ------
    EngineLoadError
        If no HTTP library is installed.
    """

    def __init__(self, urls: Sequence[str], limits: Limits, secret: Secret) -> None:
        self._library = _library()
        self._limits, self._secret = limits, secret
        self._runner = asyncio.Runner()
        self._gate = _Gate(limits.rate)
        self._jitter = random.Random()
        self._client = self._library.AsyncClient(
            headers=secret.headers() | {"Accept-Encoding": "identity"},
            follow_redirects=False,
            # `asyncio.timeout` is what bounds a request: the library's bounds every single read,
            # and a server that sends a byte now and then would never reach it
            timeout=self._library.Timeout(None, connect=SECONDS_TO_CONNECT),
            limits=self._library.Limits(
                max_connections=None,
                max_keepalive_connections=limits.concurrency,
                keepalive_expiry=KEEP_IDLE,
            ),
            # no proxy of the environment stands between this machine and itself
            mounts={f"all://{_host(url)}": None for url in urls if is_loopback(url)},
        )

    def get(self, url: str) -> bytes | None:
        """The body at an address that draws nothing; None if there is none.

        Raises
        ------
        EngineFailure
            If the server cannot be reached, or refuses the key.
        """
        try:
            return self._runner.run(self._send("GET", url, None))
        except StatusError as exc:
            if exc.status in (401, 403):
                raise
            return None

    def post_all(self, jobs: Sequence[tuple[str, Json]]) -> list[Json]:
        """Send every body to its address, and return the answers in order.

        Raises
        ------
        EngineFailure, BadAnswerError
            At the first that is not answered, or by no JSON object; the others are given up.
        """
        try:
            return self._runner.run(self._all(jobs))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def close(self) -> None:
        """Close every connection."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    def quoted(self, text: object) -> str:
        """A server's words for a message: in one line, not without end, and without the key."""
        plain = self._secret.redact(str(text)[: 20 * QUOTED])
        plain = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
        return plain if len(plain) <= QUOTED else plain[:QUOTED] + "..."

    async def _all(self, jobs: Sequence[tuple[str, Json]]) -> list[Json]:
        answers: list[Json] = [{} for _ in jobs]
        waiting = iter(enumerate(jobs))

        async def work() -> None:
            for i, (url, body) in waiting:
                data = json.dumps(body, allow_nan=False).encode()
                answers[i] = self._object(url, await self._send("POST", url, data))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._limits.concurrency, len(jobs))):
                group.create_task(work())
        return answers

    async def _send(self, verb: str, url: str, data: bytes | None) -> bytes:
        for attempt in range(self._limits.retries + 1):
            last = attempt == self._limits.retries
            await self._gate.enter()
            try:
                async with asyncio.timeout(self._limits.timeout):
                    status, headers, body = await self._exchange(verb, url, data)
            except TimeoutError:
                raise EngineFailure(
                    f"{url} did not answer within {self._limits.timeout:g} seconds"
                ) from None
            except (self._library.ConnectError, self._library.ConnectTimeout) as exc:
                if last or "CERTIFICATE" in str(exc):
                    raise EngineFailure(f"cannot connect to {url}: {self.quoted(exc)}") from None
                await asyncio.sleep(self._wait(attempt))
                continue
            except (self._library.HTTPError, self._library.InvalidURL) as exc:
                kind = type(exc).__name__
                raise EngineFailure(f"{url} broke off: {kind}: {self.quoted(exc)}") from None
            if status == 200:
                return body
            asked = headers.get("retry-after")
            if last or not (status == 429 or (status == 503 and (asked or verb == "GET"))):
                raise self._refusal(url, status, body)
            self._gate.hold(self._asked(url, asked, attempt))
        raise AssertionError("unreachable")

    async def _exchange(self, verb: str, url: str, data: bytes | None) -> tuple[int, Any, bytes]:
        """One request, and all of its answer."""
        kind = {"Content-Type": "application/json"} if data is not None else {}
        async with self._client.stream(verb, url, content=data, headers=kind) as answer:
            packed = answer.headers.get("content-encoding", "identity")
            if packed.strip().lower() not in ("identity", ""):  # a few bytes may unpack to any
                raise BadAnswerError(f"{url} packs its answer, which was not asked for")
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > LARGEST_ANSWER:
                    most = f"{LARGEST_ANSWER:,} bytes"
                    raise BadAnswerError(f"{url} answered more than {most}, and was cut off")
            return answer.status_code, answer.headers, bytes(body)

    def _object(self, url: str, body: bytes) -> Json:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as exc:
            said = self.quoted(body.decode("utf-8", "replace"))
            raise BadAnswerError(f"{url} answered no JSON ({self.quoted(exc)}): {said!r}") from None
        if not isinstance(answer, dict):
            raise BadAnswerError(f"{url} answered a JSON {type(answer).__name__}, not an object")
        return answer

    def _refusal(self, url: str, status: int, body: bytes) -> StatusError:
        if status in (401, 403):  # such an answer likes to repeat a part of the key
            sent = "refuses the key in" if self._secret.headers() else "wants a key: set"
            return StatusError(f"{url} answered {status} and {sent} {KEY_VARIABLE}", status)
        if 300 <= status < 400:
            told = "a redirection, which is not followed; give the address that it leads to"
            return StatusError(f"{url} answered {status}, {told}", status)
        try:
            said = json.loads(body)
            said = said.get("error", said.get("message", said)) if isinstance(said, dict) else said
            said = said.get("message", said) if isinstance(said, dict) else said
        except (ValueError, RecursionError):
            said = body.decode("utf-8", "replace")
        return StatusError(f"{url} answered {status}: {self.quoted(said)}", status)

    def _wait(self, attempt: int) -> float:
        """Longer every time, and not the same for all that wait."""
        return float(min(FIRST_WAIT * 2**attempt, WAIT_AT_MOST) * self._jitter.uniform(0.5, 1.0))

    def _asked(self, url: str, header: str | None, attempt: int) -> float:
        """How long to stay away: as long as the server says, or else as `_wait` does."""
        seconds = _seconds(header)
        seconds = self._wait(attempt) if seconds is None else seconds
        if seconds > LONGEST_WAIT:
            raise EngineFailure(
                f"{url} asks to come back in {seconds:g} seconds; {LONGEST_WAIT:g} are waited at "
                "most. Ask less of it: options rate and concurrency"
            )
        return seconds


class _Gate:
    """Lets requests pass one after the other: no faster than the rate, none while held."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._next = self._held = 0.0

    async def enter(self) -> None:
        now = asyncio.get_running_loop().time
        while (begin := max(self._next, self._held)) > now():
            self._next = begin + self._gap
            await asyncio.sleep(begin - now())
            if begin >= self._held:
                return
        self._next = now() + self._gap

    def hold(self, seconds: float) -> None:
        self._held = max(self._held, asyncio.get_running_loop().time() + seconds)


def _seconds(header: str | None) -> float | None:
    """What a Retry-After header says: seconds, or a date."""
    said = (header or "").strip()
    if said.isdecimal():
        return float(said[:12])
    try:
        when = parsedate_to_datetime(said)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (when - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def _host(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def _library() -> Any:
    for name in LIBRARIES:
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue
        # at their finest these write down the headers of answers, which may repeat the key
        for logger in (name, name.replace("httpx", "httpcore")):
            logging.getLogger(logger).setLevel(logging.WARNING)
        return found
    raise EngineLoadError(
        "the openai engine needs httpx2, or httpx; pip install 'specdec-conformance[openai]'"
    )
