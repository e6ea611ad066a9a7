"""What an engine author writes: nouns, never tests.

An `Engine` is the whole thing that generates from a prompt. It says who it is (`EngineCard`), what
it can do (`Capabilities`), loads a `ModelPair`, and answers `Request` objects with `Completion`
objects. Nothing here imports a model library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from conformance.decoding import FILTERS, Decoding, Dialect

Verification = Literal["any", "token"]
Precision = Literal["float64", "float32", "bfloat16", "float16", "lower"]
Logprobs = Literal["none", "raw", "processed"]
Draft = Literal["model", "lookup", "early-exit", "other-vocabulary", "none"]


@dataclass(frozen=True, slots=True)
class EngineCard:
    """Who the engine is.

    Parameters
    ----------
    name : str
        The name it is known by, and the one reports print.
    version : str
        Version of the engine itself (not of the adapter).
    method : str
        The speculation method in words: ``"draft model"``, ``"prompt lookup"`` ...
    homepage : str
        Where its source or documentation is.
    rule : str
        The acceptance rule it declares: ``"exact"`` unless it says otherwise.
    """

    name: str
    version: str = "unknown"
    method: str = "draft model"
    homepage: str = ""
    rule: str = "exact"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine claims to do; only claims are put to the test.

    Parameters
    ----------
    draft : {'model', 'lookup', 'early-exit', 'other-vocabulary', 'none'}
        Where proposals come from; decides which probe is loaded and which direction the
        draft-aware tests look in.
    control : bool
        Whether the engine can be asked to generate without speculation (``speculate=False``).
    max_batch : int
        How many requests one `Engine.generate` call may carry, however many answers they want.
    dialect : Dialect
        How it applies the decoding.
    sampling, greedy, top_k, top_p, min_p : bool
        Decodings it supports. What is not claimed is listed as NOT SUPPORTED, never as passed.
    verification : {'any', 'token'}
        ``"token"`` says that the rounds reported are exact and that proposals are verified one
        after the other, as in Leviathan et al. (2023): whether an output token is the first of a
        block, a later one, or the bonus is settled before it is drawn, so each kind is also judged
        by itself. Where a block is decided on as a whole, or rounds are an estimate, ``"any"`` is
        the safe claim.
    precision : {'float32', 'float64', 'bfloat16', 'float16', 'lower'}
        What the forward pass computes in. Below single precision the law itself is rounded; how
        far is then measured on the control arm, which must be there.
    processes : int or None
        How many copies of the engine may run side by side on one machine: 1 where one takes all
        its cores or memory, or is a server that others share. None sets no limit.
    processors : tuple of str
        What else of a decoding it supports, by the names of `Decoding`: ``"logit_bias"``,
        ``"repetition_penalty"``, ``"presence_penalty"``, ``"frequency_penalty"``, ``"banned"``,
        ``"allowed"``, ``"stop"``, ``"min_new_tokens"``, ``"grammar"``. An engine that
        claims ``"stop"`` answers with fewer tokens than were asked for where the last of them is a
        stop token.
    reproducible : bool
        Whether a request with the same seed is answered alike every time, whatever shares its
        batch.
    greedy_roads : tuple of str
        Which ways of asking for greedy decoding it has of `conformance.decoding.ROADS`; a request
        names one in `Decoding.road`, and the engine has to take that way.
    typical_p, epsilon_cutoff, eta_cutoff : bool
        Further filters it supports.
    logprobs : {'none', 'raw', 'processed'}
        Which log-probabilities of its tokens it returns where they are asked for: none; those of
        the softmax of the target's logits as they are (``"raw"``); or those of the law that tokens
        are drawn from, after processors, temperature and filters, where greedy decoding has no
        temperature and no filter (``"processed"``).
    lengths : bool
        Whether prompts may have any length from one token on, and outputs any number of tokens, as
        long as both together are within `ModelPair.context`.
    ragged : bool
        Whether the requests of one `Engine.generate` call may differ in these lengths.
    mixed : bool
        Whether they may differ in `Request.speculate` as well, and advance together all the same.
    unseeded : bool
        Whether a request may have no seed: its random numbers are then its own, and others each
        time. Asked of in calls whose requests differ.
    several : bool
        Whether a request may ask for several answers (`Request.answers`), independent of one
        another; all requests of one call need not ask for as many.
    sliding : bool
        Whether it takes models with sliding-window attention: the Hugging Face layout of Mistral,
        with ``sliding_window`` in ``config.json``.
    long : bool
        Whether it goes on beyond a thousand tokens of context.
    spare : int
        Places of `ModelPair.context` that prompt and output must leave, of an engine that cannot
        fill it; 0 to 256. By default they go to its last place.
    """

    draft: Draft = "model"
    control: bool = True
    max_batch: int = 64
    dialect: Dialect = field(default_factory=Dialect)
    sampling: bool = True
    greedy: bool = True
    top_k: bool = True
    top_p: bool = True
    min_p: bool = True
    verification: Verification = "any"
    precision: Precision = "float32"
    processes: int | None = None
    processors: tuple[str, ...] = ()
    reproducible: bool = False
    greedy_roads: tuple[str, ...] = ()
    typical_p: bool = False
    epsilon_cutoff: bool = False
    eta_cutoff: bool = False
    logprobs: Logprobs = "none"
    lengths: bool = False
    ragged: bool = False
    mixed: bool = False
    unseeded: bool = False
    several: bool = False
    sliding: bool = False
    long: bool = False
    spare: int = 0

    @property
    def low_precision(self) -> bool:
        """Whether rounding moves the law by more than single precision would."""
        return self.precision not in ("float64", "float32")

    def refuses(self, decoding: Decoding) -> str | None:
        """Name the first thing in `decoding` that is not claimed, or None."""
        for name in decoding.processors:
            if name not in self.processors:
                return name
        if self.logprobs == "none" and decoding.logprobs:
            return "logprobs"
        return self._refuses_law(decoding)

    def _refuses_law(self, decoding: Decoding) -> str | None:
        if decoding.greedy:
            if decoding.road and decoding.road not in self.greedy_roads:
                return f"the road {decoding.road} to greedy decoding"
            return None if self.greedy else "greedy"
        if not self.sampling:
            return "sampling"
        for name in FILTERS:
            if getattr(decoding, name) is not None and not getattr(self, name):
                return name
        return None


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A target and a draft on disk, in the Hugging Face layout (config.json, model.safetensors,
    tokenizer.json).

    Parameters
    ----------
    name : str
        The probe's name.
    target : Path
        Folder of the target model.
    draft : Path or None
        Folder of the draft model; None where the method needs none.
    vocab_size : int
        The target's vocabulary size V; valid token ids are 0 .. V - 1.
    context : int
        Longest prompt plus output, in tokens.
    """

    name: str
    target: Path
    draft: Path | None
    vocab_size: int
    context: int


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    Parameters
    ----------
    prompt : tuple of int
        Token ids.
    max_new_tokens : int
        Exactly this many tokens are wanted, or fewer, the last of which is in `decoding.stop`: the
        probes have no end-of-sequence token of their own.
    decoding : Decoding
        The configuration to sample with.
    seed : int or None
        Distinct for every request of an arm, in [0, 2**31); those of other arms and cases are
        drawn apart from them, so that a few may be the same. None for greedy decoding, and for some
        requests where `Capabilities.unseeded` is claimed.
    speculate : bool
        False asks for the control arm: the same engine with speculation off.
    times : bool
        Whether `Completion.times` is wanted, where the engine can tell them.
    answers : int
        How many answers are wanted, at least 1; more where `Capabilities.several` is claimed. Each
        is a `Completion`, and all draw independently. An engine may count up from the seed for
        them: the next seed of a call that asks for several is at least as far away as they are
        many.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    decoding: Decoding
    seed: int | None = None
    speculate: bool = True
    times: bool = False
    answers: int = 1

    @property
    def logprobs(self) -> bool:
        """Whether `Completion.logprobs` is wanted."""
        return self.decoding.logprobs


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request, or one of its answers.

    Parameters
    ----------
    tokens : sequence of int
        The new token ids, prompt excluded.
    finish_reason : str
        ``"length"`` for every probe request.
    rounds : sequence of (int, int) or None
        ``(drafted, accepted)`` for every block, in order, where the engine can tell. Without it,
        and without `counts`, nothing shows that speculation happened, and the verdict cannot be
        EXACT.
    counts : (int, int) or None
        Tokens drafted and accepted, of an engine that counts them but does not tell its blocks.
        Only the sum over one `Engine.generate` call is used: an engine that counts by batch tells
        it with the first completion, and nothing with the others.
    times : sequence of float or None
        When each token was there, in seconds since the call of `Engine.generate` began; read only
        where `Request.times` asks for it. Tokens of one block come at the same moment.
    logprobs : sequence of float or None
        The log-probability of each token, in nats, as `Capabilities.logprobs` says; read only where
        `Request.logprobs` asks for it, and then to be there.
    """

    tokens: Sequence[int]
    finish_reason: str = "length"
    rounds: Sequence[tuple[int, int]] | None = None
    counts: tuple[int, int] | None = None
    times: Sequence[float] | None = None
    logprobs: Sequence[float] | None = None


@runtime_checkable
class Engine(Protocol):
    """The contract. Construct without arguments; everything heavy belongs in `load`."""

    card: EngineCard
    capabilities: Capabilities

    def load(self, probe: ModelPair) -> None:
        """Load the pair; called once before any request, again if the probe changes."""
        ...

    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """Answer every request, in order; raise `NotSupportedError` to refuse a configuration.

        Of a request for several answers all are given, one after the other, before those of the
        next.
        """
        ...

    def close(self) -> None:
        """Free what `load` took."""
        ...
