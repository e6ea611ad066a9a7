"""Servers that speak OpenAI's completions protocol: vLLM, SGLang, TensorRT-LLM, llama-server ...

The user starts the server on a probe's files, with speculation on; a second server, or a switch in
the request, is the control arm. Token ids and the exact law are known, as for any engine::

    openai,url=http://127.0.0.1:8000/v1,control=http://127.0.0.1:8001/v1
    openai,url=http://127.0.0.1:8080/v1,control=off-switch,switch=speculative.n_max=0

A key is read from the environment variable ``CONFORMANCE_API_KEY``, and from nowhere else. How
requests are sent, and which are sent again, is in `conformance.adapters.openai_http`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast, get_args

from conformance.adapters import openai_several as several
from conformance.adapters import openai_told as told
from conformance.adapters.library import LOGPROBS
from conformance.adapters.openai_http import Http, Json, Limits, Secret, StatusError, address
from conformance.adapters.openai_processors import roads
from conformance.adapters.openai_styles import (
    STYLES,
    Style,
    Terms,
    join,
    limits_of,
    metrics,
    put,
    read,
    same_server,
    switch_of,
    words_of,
)
from conformance.contract import (
    Capabilities,
    Completion,
    Draft,
    EngineCard,
    ModelPair,
    Precision,
    Request,
)
from conformance.decoding import Decoding, Dialect, Warp
from conformance.errors import (
    BadAnswerError,
    EngineLoadError,
    InvalidDecodingError,
    NotSupportedError,
    UnknownEngineError,
)

HOMEPAGE = "https://platform.openai.com/docs/api-reference/completions"
OFF_SWITCH = "off-switch"
METHODS: dict[Draft, str] = {"model": "draft model", "lookup": "prompt lookup", "none": "none"}
# A batch is one call of `generate`; it is seen as progress, and counted as a whole.
ROUNDS_OF_REQUESTS = 16
# The server has read the request and will not have it; it is a refusal if it comes at once.
REFUSALS = (400, 404, 405, 415, 422, 501)
# Which are tried, for what the user typed or, with "auto", for what the server says owns the model.
TRIED: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "llama": ("llama",),
    "sglang": ("sglang",),
    "openai": ("openai", "text"),
}
OWNERS = {"vllm": "vllm", "llamacpp": "llama", "sglang": "sglang"}
# Where a server tells its version, by owner.
VERSIONS = {"llamacpp": ("../props", "build_info"), "sglang": ("../server_info", "version")}


@dataclass(slots=True)
class _Met:
    """What a server said of itself."""

    model: str
    version: str
    tried: tuple[str, ...]
    arms: dict[bool, tuple[str, Style]] = field(default_factory=dict)  # by Request.speculate


class OpenAIEngine:
    """A server, and what was typed after its name; see `create`.

    Notes
    -----
    Card and capabilities ask the server who it is, since its dialect depends on it. Every request
    is one POST with a seed of its own: several prompts in one POST share a seed in vLLM and
    llama.cpp, and then their random numbers. The first request of a decoding and an arm goes alone,
    so that a server which refuses it is heard before it has answered any.

    Drafts are counted by what the answers say (llama-server, SGLang, TensorRT-LLM, and vLLM started
    with ``--per-request-spec-decode-metrics``), or else by the difference that a batch makes to
    vLLM's metrics; nobody else may then use the server.
    """

    def __init__(
        self,
        urls: dict[bool, str],
        switch: tuple[list[str], object] | None,
        options: dict[str, str],
        limits: Limits,
        draft: Draft,
        order: tuple[Warp, ...] | None,
    ) -> None:
        self._urls, self._switch, self._options = urls, switch, options
        self._limits, self._draft, self._order = limits, draft, order
        self._http: Http | None = None
        self._met: _Met | None = None
        self._terms: Terms | None = None
        self._answered: set[tuple[Decoding, bool]] = set()
        self._counted: tuple[int, int] | None = None

    @property
    def card(self) -> EngineCard:
        """Who the server says it is."""
        version = self._meet().version if self._urls else "unknown"
        method = f"{METHODS[self._draft]}, over HTTP"
        return EngineCard("openai", version, method, HOMEPAGE)

    @property
    def capabilities(self) -> Capabilities:
        """What can be asked of such a server."""
        style = STYLES[(self._meet().tried if self._urls else ("vllm",))[0]]
        only = style.only
        return Capabilities(
            draft=self._draft,
            control=False in self._urls,
            max_batch=ROUNDS_OF_REQUESTS * self._limits.concurrency,
            dialect=Dialect(
                order=self._order or style.order,
                top_k_ties=style.ties,
                presence_over=style.presence_over,
            ),
            top_k=not only or "top_k" in only,
            min_p=not only or "min_p" in only,
            precision=cast(Precision, self._options["precision"]),
            processes=1,
            processors=style.processors,
            logprobs=told.kind(style, self._options["logprobs"]),
            greedy_roads=roads(style.only),
            several=several.has(style),
        )

    def load(self, probe: ModelPair) -> None:
        """Meet the server, and find out by one short request to each arm how it answers.

        Raises
        ------
        EngineLoadError
            If there is no address, no server, no tokenizer, or no style that fits.
        """
        self.close()
        met = self._meet()
        self._terms = Terms(met.model, self.capabilities.dialect.order, words_of(probe.target))
        trial = (0, 1 % probe.vocab_size)
        for speculate in self._urls:  # long enough to see that a control arm speculates
            request = Request(trial, 8, Decoding(greedy=True), None, speculate)
            met.arms[speculate] = self._style_of(request, met.tried)
        self._counted = metrics(self._get("../metrics"))

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order.

        Raises
        ------
        NotSupportedError
            If the server refuses the first request of its kind, or cannot be asked for it.
        EngineFailure
            If it does not answer.
        BadAnswerError
            If its answer is none.
        """
        if self._terms is None or self._met is None:
            raise EngineLoadError("generate was called before load")
        for r in requests:
            self._check(r)
        answers: dict[int, list[Completion]] = {}
        first = {(r.decoding, r.speculate): i for i, r in reversed(list(enumerate(requests)))}
        for kind, i in first.items():
            if kind not in self._answered:
                try:
                    answers |= self._ask(requests, [i])
                except StatusError as exc:
                    if exc.status in REFUSALS:
                        raise NotSupportedError(f"the server refuses {kind[0]}: {exc}") from None
                    raise
                self._answered.add(kind)
        answers |= self._ask(requests, [i for i in range(len(requests)) if i not in answers])
        completions = [answer for i in range(len(requests)) for answer in answers[i]]
        whose = [r for r in requests for _ in range(r.answers)]
        asked = [i for i, r in enumerate(whose) if r.speculate]
        if self._counted and asked and all(c.counts is None for c in completions):
            first_one = completions[asked[0]]
            completions[asked[0]] = replace(first_one, counts=self._difference())
        return completions

    def close(self) -> None:
        """Close every connection, and forget the server."""
        if self._http is not None:
            self._http.close()
        self._http = self._met = self._terms = self._counted = None
        self._answered.clear()

    # --- who is there -----------------------------------------------------------------------------

    def _meet(self) -> _Met:
        """Ask the server for its models and its version, once."""
        if self._met is not None:
            return self._met
        if not self._urls:
            raise EngineLoadError(
                "the openai engine needs the server's address: openai,url=http://127.0.0.1:8000/v1"
            )
        if self._http is None:
            secret = Secret.from_environment()
            self._http = Http(list(self._urls.values()), self._limits, secret)
        listed = _object(self._get("/models")).get("data")
        models = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        names = [str(m.get("id", "")) for m in models]
        model = self._options["model"] or (names[0] if len(names) == 1 else "")
        if not model:
            listed = self._http.quoted(names) if names else "no model it names"
            raise EngineLoadError(f"the server serves {listed}; say which with the option model")
        # a name may be one that is not listed
        owned = [m for m in models if m.get("id") == model] or models
        owner = str(owned[0].get("owned_by", "")) if owned else ""
        place, name = VERSIONS.get(owner, ("../version", "version"))
        version = _object(self._get(place)).get(name, "unknown")
        known = self._http.quoted(f"{owner} {version}".strip() if owner in OWNERS else version)
        style = self._options["style"]
        style = OWNERS.get(owner, "") if style == "auto" else style
        tried = TRIED[style] if style else ("vllm", *TRIED["openai"])
        self._met = _Met(model, known, tried)
        return self._met

    def _get(self, path: str) -> bytes:
        assert self._http is not None
        return self._http.get(join(self._urls[True], path)) or b""

    def _style_of(self, request: Request, tried: Sequence[str]) -> tuple[str, Style]:
        """The first style in which the server answers; nothing of it is evidence."""
        why = []
        for name in tried:
            place = (join(self._urls[request.speculate], STYLES[name].path), STYLES[name])
            assert self._met is not None
            self._met.arms[request.speculate] = place
            try:
                self._ask([request], [0])
            except (StatusError, BadAnswerError) as exc:
                if isinstance(exc, StatusError) and exc.status not in REFUSALS:
                    raise
                why.append(f"as {name}: {exc}")
            else:
                return place
        raise EngineLoadError(f"the server gives no token ids to work with; {'; '.join(why)}")

    # --- requests and answers ---------------------------------------------------------------------

    def _check(self, r: Request) -> None:
        if r.speculate not in self._urls:
            raise NotSupportedError("there is no control arm; it is given by the option control")
        if not r.prompt:
            raise NotSupportedError("a server needs a prompt of at least one token")
        assert self._met is not None
        style = self._met.arms[r.speculate][1]
        for name in ("top_k", "min_p"):
            if getattr(r.decoding, name) is not None and style.only and name not in style.only:
                raise NotSupportedError(f"the protocol of this server has no {name}")
        if r.answers > 1 and not several.has(style):
            raise NotSupportedError(
                "of such a server it is not known that it gives several answers"
            )
        for name in (*r.decoding.processors, r.decoding.road):
            if name and name not in (*style.processors, *roads(style.only)):
                raise NotSupportedError(f"the protocol of this server has no {name}")

    def _ask(
        self, requests: Sequence[Request], chosen: Sequence[int]
    ) -> dict[int, list[Completion]]:
        """Send the chosen requests and read their answers, by place."""
        assert self._http is not None
        assert self._met is not None
        assert self._terms is not None
        jobs = []
        for i in chosen:
            url, style = self._met.arms[requests[i].speculate]
            body = several.asked(style.ask(requests[i], self._terms), requests[i])
            body = told.asked(body, requests[i], style, self._options["logprobs"])
            if self._switch is not None and not requests[i].speculate:
                put(body, *self._switch)
            jobs.append((url, body))
        answers = self._http.post_all(jobs) if jobs else []
        completions: dict[int, list[Completion]] = {}
        for i, answer in zip(chosen, answers, strict=True):
            style = self._met.arms[requests[i].speculate][1]
            try:
                completions[i] = [
                    told.told(read(one, requests[i], style, self._terms), one, requests[i], style)
                    for one in several.apart(answer, requests[i])
                ]
            except BadAnswerError as exc:
                said = self._http.quoted(json.dumps(answer))
                raise BadAnswerError(f"{self._http.quoted(exc)}. The answer was {said}") from None
        return completions

    # --- counters that the server keeps -----------------------------------------------------------

    def _difference(self) -> tuple[int, int] | None:
        """What was drafted and accepted since this was asked last; None if nobody can tell."""
        before, self._counted = self._counted, metrics(self._get("../metrics"))
        if before is None or self._counted is None:
            return None
        drafted, accepted = (now - then for now, then in zip(self._counted, before, strict=True))
        return (drafted, accepted) if 0 <= accepted <= drafted else None


def create(
    method: str = "",
    *,
    url: str = "",
    control: str = "",
    switch: str = "",
    model: str = "",
    style: str = "auto",
    draft: str = "model",
    order: str = "",
    precision: str = "float32",
    concurrency: str = "16",
    timeout: str = "60",
    retries: str = "5",
    rate: str = "0",
    logprobs: str = "raw",
) -> OpenAIEngine:
    """Make the engine of one server; nothing is asked of it yet.

    Parameters
    ----------
    method : str
        Nothing: how the server drafts is said with `draft`.
    url : str
        Address of the server that speculates, with the ``/v1`` it usually ends in.
    control : str
        Address of the same server without speculation; or ``off-switch``, if requests to `url` can
        switch it off; or nothing, and there is no control arm.
    switch : str
        ``PATH=VALUE``: what a request of the control arm adds to its body to switch speculation
        off. ``/`` in the path leads into objects; the value is JSON, or else text.
    model : str
        The name that the model is served under; needed if the server has several.
    style : {'auto', 'vllm', 'llama', 'sglang', 'openai'}
        How token ids are asked for and returned. ``auto`` goes by what the server says it is.
    draft : {'model', 'lookup', 'none'}
        What the server was started with.
    order : str
        Order of the warps if it is not the usual one of such a server, such as
        ``top_k+top_p+min_p+temperature``.
    precision : str
        What the server computes in, if not in single precision, as in `Capabilities`.
    logprobs : {'raw', 'processed'}
        Which log-probabilities the server was started to return (vLLM), or is to be asked for
        (llama-server).
    concurrency, timeout, retries, rate : str
        See `conformance.adapters.openai_http.Limits`.

    Raises
    ------
    UnknownEngineError
        If an option means nothing.
    """
    if method:
        raise UnknownEngineError("openai has no methods; what it drafts with is the option draft")
    if style != "auto" and style not in TRIED:
        raise UnknownEngineError(f"option style must be auto, {', '.join(TRIED)}")
    if draft not in METHODS:
        raise UnknownEngineError(f"option draft must be {', '.join(METHODS)}")
    if precision not in get_args(Precision):
        raise UnknownEngineError(f"option precision must be {', '.join(get_args(Precision))}")
    if (control == OFF_SWITCH) != bool(switch):
        raise UnknownEngineError(
            "control=off-switch goes with switch=PATH=VALUE, such as switch=speculative.n_max=0"
        )
    urls = {True: address(url, "url")} if url else {}
    if control and urls:
        urls[False] = urls[True] if control == OFF_SWITCH else address(control, "control")
        if control != OFF_SWITCH and same_server(url, control):
            raise UnknownEngineError(
                "url and control are the same server, whose control arm would speculate as well: "
                "give one that does not; or, if a field of a request switches speculation off, "
                "control=off-switch and switch=PATH=VALUE"
            )
    limits = limits_of(concurrency, timeout, retries, rate)
    if logprobs not in LOGPROBS:
        raise UnknownEngineError(f"option logprobs must be {' or '.join(LOGPROBS)}")
    options = {"model": model, "style": style, "precision": precision, "logprobs": logprobs}
    return OpenAIEngine(
        urls,
        switch_of(switch) if switch else None,
        options,
        limits,
        draft,
        _order(order) if order else None,
    )


def _order(text: str) -> tuple[Warp, ...]:
    try:
        return Dialect(order=tuple(cast(Warp, w) for w in re.split(r"[+>:/ ]+", text))).order
    except InvalidDecodingError as exc:
        raise UnknownEngineError(f"option order: {exc}") from None


def _object(body: bytes) -> Json:
    """The JSON object in a body that may hold anything, or an empty one."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
