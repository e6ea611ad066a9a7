"""Asking a server for text prompts, and reading its answers as symbols.

Symbols are token ids where the server gives them, else the code points of its text. Either is a
function of what was drawn, so that arms with the same law have the same law of symbols. The model
ends by itself: the end of the output is one more symbol.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from conformance.adapters import openai_logprobs as logprobs
from conformance.adapters import openai_styles as styles
from conformance.adapters.openai import OWNERS, REFUSALS, VERSIONS
from conformance.adapters.openai_http import Http, Json, Secret, StatusError
from conformance.adapters.openai_processors import roads
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import BadAnswerError, EngineLoadError, NotSupportedError
from conformance.served.target import Target

Unit = Literal["token", "character"]
SPECULATIVE, CONTROL, AGAIN = ARMS = ("speculative", "control", "control-again")
END = -1
CHARACTERS = 4  # looked at, of each token asked for
LARGEST_ID = 2**31
# The likeliest tokens that such a server tells at a place, if nothing was said: vLLM's own limit.
MOST_TOLD = {"vllm": 20, "llama": 64, "sglang": 64}
# What a server says of an answer that the model ended by itself, and of one that was cut.
ENDED, CUT = ("stop", "eos", "eos_token", "end_of_text", "stop_sequence"), "length"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: to which arm, and what."""

    arm: str
    text: str
    seed: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Symbols, `END` last where the model ended by itself; tokens (drafted, accepted) if told."""

    symbols: tuple[int, ...]
    counts: tuple[int, int] | None = None


class Source(Protocol):
    """What answers; a server, or what stands in for one."""

    def ask(self, decoding: Decoding, asks: Sequence[Ask]) -> list[Answer]:
        """Answer every request, in order."""
        ...

    def counted(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted in the speculative arm since the start, if that is known."""
        ...

    def close(self) -> None:
        """Free what it took."""
        ...


@dataclass(frozen=True, slots=True)
class TopAsk:
    """One question: a prompt, tokens after it, and how many more to answer with."""

    text: str
    prefix: tuple[int, ...]
    seed: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class TopAnswer:
    """Token ids, the likeliest tokens at each of their places, and whether the model ended."""

    tokens: tuple[int, ...]
    tops: tuple[logprobs.Top, ...]
    ended: bool = False


@runtime_checkable
class TopSource(Protocol):
    """A control server that tells its likeliest tokens, or what stands in for one."""

    def tops(self, decoding: Decoding, asks: Sequence[TopAsk]) -> list[TopAnswer]:
        """Answer every question, in order, drawing from this decoding."""
        ...


@dataclass(frozen=True, slots=True)
class Met:
    """What a server said of itself, and in which style both arms answer.

    `logprobs` is how many of the likeliest tokens the control server tells, and `no_law` why none.
    """

    version: str
    model: str
    style: str
    logprobs: int = 0
    no_law: str = ""

    @property
    def unit(self) -> Unit:
        """What a symbol is."""
        return "character" if self.style == "text" else "token"


def width(unit: Unit, tokens: int) -> int:
    """Symbols looked at in an answer of so many tokens."""
    return tokens * CHARACTERS if unit == "character" else tokens


class Server:
    """Both arms, over HTTP; see `Source`.

    Parameters
    ----------
    target : Target
        Where they are.
    met : Met, optional
        As `meet` found them; it is called if this is left out.
    """

    def __init__(self, target: Target, met: Met | None = None) -> None:
        self.target = target
        self._http = Http([target.url, target.control], target.limits, Secret.from_environment())
        self._lengths: dict[str, int] = {}
        self._ids: dict[str, tuple[int, ...] | None] = {}  # of prompts, as far as they were told
        self._control: tuple[int, int] | None = None
        try:
            self.met = met or self._meet()
        except BaseException:
            self.close()
            raise

    def ask(self, decoding: Decoding, asks: Sequence[Ask]) -> list[Answer]:
        """Send every request, and read the answers.

        Raises
        ------
        ConformanceError
            At the first that is refused, not answered, or answered with something that is no
            answer.
        """
        answers = self._http.post_all([self._job(self.met, decoding, a) for a in asks])
        read = []
        for a, answer in zip(asks, answers, strict=True):
            try:
                read.append(self._read(self.met, answer, a))
            except BadAnswerError as exc:
                said = self._http.quoted(json.dumps(answer))
                raise BadAnswerError(
                    f"{a.arm}: {self._http.quoted(exc)}. The answer was {said}"
                ) from None
        return read

    def tops(self, decoding: Decoding, asks: Sequence[TopAsk]) -> list[TopAnswer]:
        """The likeliest tokens, from the control server; see `TopSource`.

        Raises
        ------
        ConformanceError
            If a request is not answered, or with something that is no answer.
        """
        if self.met.style != "llama":  # the others go on after token ids only
            unknown = {a.text for a in asks if a.prefix} - self._ids.keys()
            first = [TopAsk(text, (), None, 1) for text in sorted(unknown)]
            self._tops(self.met, Decoding(), first)
        return self._tops(self.met, decoding, asks)

    def counted(self) -> tuple[int, int] | None:
        """From a page of metrics, as vLLM has it; None where both arms are one server."""
        if self.target.switch is not None:
            return None
        pages = (self._http.get(styles.join(url, "../metrics")) for url in self._urls)
        spec, control = (styles.metrics(page or b"") for page in pages)
        if self._control is None:
            self._control = control
        elif control is not None and control[0] > self._control[0]:
            raise BadAnswerError("the metrics of the control server say that it drafts")
        return spec

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    # --- who is there -----------------------------------------------------------------------------

    @property
    def _urls(self) -> tuple[str, str]:
        return self.target.url, self.target.control

    def _meet(self) -> Met:
        versions, model, tried = [], self.target.model, [self.target.style]
        for url in dict.fromkeys(self._urls):
            about = _object(self._http.get(styles.join(url, "/models"))).get("data")
            listed = [m for m in about if isinstance(m, dict)] if isinstance(about, list) else []
            names = [str(m.get("id", "")) for m in listed]
            if not model and len(names) != 1:
                told = self._http.quoted(names) if names else "no model it names"
                raise EngineLoadError(f"{url} serves {told}; say which with the option model")
            model = model or names[0]
            owner = next((str(m.get("owned_by", "")) for m in listed if m.get("id") == model), "")
            owner = owner or (str(listed[0].get("owned_by", "")) if listed else "")
            place, key = VERSIONS.get(owner, ("../version", "version"))
            version = _object(self._http.get(styles.join(url, place))).get(key, "unknown")
            versions.append(f"{owner} {version}" if owner in OWNERS else str(version))
            if self.target.style == "auto" and url == self.target.url:
                tried = [OWNERS.get(owner, "vllm"), "text"]
        known = self._http.quoted(" and ".join(dict.fromkeys(versions)))
        return self._first_that_works(known, model, tried)

    def _first_that_works(self, version: str, model: str, tried: Sequence[str]) -> Met:
        """The first style in which both arms answer a short request; nothing of it is evidence."""
        why = []
        for style in tried:
            met = Met(version, model, style)
            asks = [Ask(arm, self.target.prompts[0], None, 4) for arm in (SPECULATIVE, CONTROL)]
            try:
                jobs = [self._job(met, Decoding(greedy=True), a) for a in asks]
                for a, answer in zip(asks, self._http.post_all(jobs), strict=True):
                    self._read(met, answer, a)
            except (StatusError, BadAnswerError) as exc:
                if isinstance(exc, StatusError) and exc.status not in REFUSALS:
                    raise
                why.append(f"as {style}: {self._http.quoted(exc)}")
            else:
                return self._with_logprobs(met)
        raise EngineLoadError(f"the servers do not answer a plain completion; {'; '.join(why)}")

    def _with_logprobs(self, met: Met) -> Met:
        """Whether the control server tells its likeliest tokens, by one short request."""
        wanted, processed = self.target.logprobs, self.target.processed
        if wanted == 0:
            return replace(met, no_law="option logprobs says not to ask for them")
        if met.style not in MOST_TOLD:
            why = "answers are read as text, and log-probabilities are of tokens"
        elif processed and met.style == "sglang":
            why = "such a server has none after filters (option processed)"
        else:
            told = replace(met, logprobs=wanted or MOST_TOLD[met.style])
            try:
                self._tops(told, Decoding(), [TopAsk(self.target.prompts[0], (), None, 1)])
            except (StatusError, BadAnswerError) as exc:
                if isinstance(exc, StatusError) and exc.status not in REFUSALS:
                    raise
                why = self._http.quoted(exc)
            else:
                return told
        if wanted or processed:
            raise EngineLoadError(f"the log-probabilities asked for cannot be had: {why}")
        return replace(met, no_law=why)

    # --- requests and answers ---------------------------------------------------------------------

    def _job(self, met: Met, decoding: Decoding, a: Ask) -> tuple[str, Json]:
        url = self.target.address(a.arm)
        body = request_body(met, decoding, a)
        if self.target.switch is not None and a.arm != SPECULATIVE:
            styles.put(body, *self.target.switch)
        path = "/completions" if met.style == "text" else styles.STYLES[met.style].path
        return styles.join(url, path), body

    def _tops(self, met: Met, decoding: Decoding, asks: Sequence[TopAsk]) -> list[TopAnswer]:
        jobs = []
        for a in asks:
            url, body = self._job(met, decoding, Ask(CONTROL, a.text, a.seed, a.tokens))
            body = logprobs.with_logprobs(body, met.style, met.logprobs, self.target.processed)
            if a.prefix:
                ids = self._ids.get(a.text)
                body = logprobs.after_prefix(body, met.style, a.text, ids, a.prefix)
            jobs.append((url, body))
        answers = self._http.post_all(jobs) if jobs else []
        return [self._read_tops(met, x, a) for x, a in zip(answers, asks, strict=True)]

    def _read_tops(self, met: Met, answer: Json, a: TopAsk) -> TopAnswer:
        counts = styles.drafted_and_accepted(answer)
        if counts is not None and counts[0]:
            raise BadAnswerError("an answer of the control arm counts drafted tokens")
        if not a.prefix:
            self._ids[a.text] = logprobs.prompt_ids(answer, met.style)
        symbols = read_ids(met, answer, a.tokens)
        tokens = tuple(t for t in symbols if t != END)
        tops = logprobs.read_tops(answer, met.style, met.logprobs)
        if not len(tokens) <= len(tops) <= len(tokens) + 1:  # one more at an end that is no token
            raise BadAnswerError(
                f"log-probabilities of {len(tops)} places for {len(tokens)} tokens"
            )
        return TopAnswer(tokens, tuple(tops), END in symbols)

    def _read(self, met: Met, answer: Json, a: Ask) -> Answer:
        read = read_text if met.style == "text" else read_ids
        symbols = read(met, answer, a.tokens)
        counts = styles.drafted_and_accepted(answer)
        if a.arm != SPECULATIVE and counts is not None and counts[0]:
            raise BadAnswerError(
                "an answer of the control arm counts drafted tokens: it speculates although it "
                "should not"
            )
        seen = styles.prompt_tokens(answer)
        if seen is not None and self._lengths.setdefault(a.text, seen) != seen:
            raise BadAnswerError(
                f"the prompt had {seen} tokens here and {self._lengths[a.text]} in another answer: "
                "the arms do not see the same prompt"
            )
        return Answer(symbols, counts if a.arm == SPECULATIVE else None)


def request_body(met: Met, decoding: Decoding, a: Ask) -> Json:
    """What is sent: the adapter's body with a text for a prompt, and an end that is allowed.

    Raises
    ------
    NotSupportedError
        If the protocol cannot ask for it.
    """
    if refused := refusal(met, decoding):
        raise NotSupportedError(f"the protocol of this server has no {refused}")
    style = styles.STYLES["openai" if met.style == "text" else met.style]
    request = Request((), a.tokens, decoding, None if decoding.greedy else a.seed, True)
    body = style.ask(request, styles.Terms(met.model, style.order, ()))
    if met.style == "sglang":
        del body["input_ids"]
        body["text"] = a.text
        body["sampling_params"]["ignore_eos"] = False
    else:
        body["prompt"] = a.text
        if "ignore_eos" in body:
            body["ignore_eos"] = False
    return body


def refusal(met: Met, decoding: Decoding) -> str | None:
    """What cannot be asked for, if anything."""
    style = styles.STYLES["openai" if met.style == "text" else met.style]
    has = {*style.processors, *roads(style.only)} - {"allowed", "banned", "stop"}
    for name in (*decoding.processors, decoding.road):  # masks: of an unknown vocabulary
        if name and name not in has:
            return name
    if met.style == "text":
        return next((n for n in ("top_k", "min_p") if getattr(decoding, n) is not None), None)
    return None


def read_ids(met: Met, answer: Json, tokens: int) -> tuple[int, ...]:
    """Token ids, and `END` where there are fewer than were asked for.

    Raises
    ------
    BadAnswerError
        If there are none, or too many, or they are no ids.
    """
    style = styles.STYLES[met.style]
    ids: Any = style.read(answer, styles.Terms(met.model, style.order, ()))
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < LARGEST_ID for i in ids):
        raise BadAnswerError("an answer has no token ids where such a server puts them")
    if len(ids) > tokens:
        raise BadAnswerError(f"an answer has {len(ids)} tokens where {tokens} were asked for")
    return tuple(ids) if len(ids) == tokens else (*ids, END)


def read_text(met: Met, answer: Json, tokens: int) -> tuple[int, ...]:
    """Code points, as many as are looked at, and `END` where the model ended before.

    An answer that was cut at its last token may be shorter: a text is a function of the tokens, so
    where it is cut has the same law in both arms if they have.

    Raises
    ------
    BadAnswerError
        If there is no text, or no reason why it ends.
    """
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    text = first.get("text") if isinstance(first, dict) else None
    if not isinstance(text, str):
        raise BadAnswerError("an answer has no single text")
    assert isinstance(first, dict)
    reason = first.get("finish_reason")
    if reason != CUT and reason not in ENDED:
        raise BadAnswerError(f"an answer ended for a reason that is none: {reason!r:.60}")
    points = tuple(map(ord, text))
    return (points if reason == CUT else (*points, END))[: width("character", tokens)]


def _object(body: bytes | None) -> Json:
    try:
        read = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
