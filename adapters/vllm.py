"""vLLM: speculative decoding, three ways.

``vllm`` (or ``vllm:ngram``) drafts with n-grams of the sequence itself, ``vllm:draft-model`` with
tokens sampled from a second model, and ``vllm:draft-model-greedy`` with that model's argmax, which
vLLM then verifies without the draft's law. The module imports neither torch nor vLLM;
`VllmEngine.load` does.

Inside this package ``import vllm`` still means the library: imports are absolute.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.adapters import vllm_extra as extra
from conformance.adapters.library import LOGPROBS
from conformance.adapters.vllm_library import (
    HOMEPAGE,
    is_refusal,
    library,
    passed,
    register_once,
    version,
)
from conformance.adapters.vllm_probe import widened
from conformance.adapters.vllm_watch import Counters, Rounds, watch
from conformance.contract import Capabilities, Completion, Draft, EngineCard, ModelPair, Request
from conformance.decoding import Dialect
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError

PROPOSALS = 3
BATCH = 256
KV_CACHE_BYTES = 2**28  # a batch of 256 tokens each, for target and draft; vLLM writes to all of it
# below this vLLM takes this instead, with a warning
LOWEST_TEMPERATURE = 0.01
# Speculation refuses a logit_bias by itself, and says so. What is banned is left out of a list of
# allowed tokens: the library's list of banned ones is of texts, for a tokenizer.
CLAIMED = (
    "logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty", "banned",
    "allowed", "stop", "min_new_tokens", "grammar", "stop_strings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One of the library's ways to propose tokens.

    Parameters
    ----------
    words : str
        The method as the engine card prints it.
    draft : str
        Where proposals come from, as in `Capabilities`.
    config : dict
        Its ``speculative_config``, less the draft's folder.
    """

    words: str
    draft: Draft
    config: dict[str, str | int]


METHODS: dict[str, Method] = {
    "ngram": Method(
        "n-gram lookup",
        "lookup",
        {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1},
    ),
    "draft-model": Method(
        "draft model, sampled",
        "model",
        {"method": "draft_model", "draft_sample_method": "probabilistic"},
    ),
    "draft-model-greedy": Method(
        "draft model, its argmax",
        "model",
        {"method": "draft_model", "draft_sample_method": "greedy"},
    ),
}


class VllmEngine:
    """`LLM.generate` of vLLM, in this process.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    dtype : str
        Of weights and cache: ``float32``, ``bfloat16`` or ``float16``. The law is that of the
        weights in full precision.
    seeds : {'request', 'none'}
        Whether every request carries its seed, which the samplers draw from row by row, or none
        does and all rows of a batch share the engine's stream. These are two paths in vLLM.
    repair : {'no', 'yes'}
        ``yes`` replaces two functions of the CPU backend of 0.32: one hands the samplers of the
        speculative arm uninitialised memory for temperature, top_k and top_p, one fails on a
        top_k where nothing was proposed. An experiment, to see what else there is; by default
        nothing of vLLM that computes is changed.
    logprobs : {'raw', 'processed'}
        Its ``logprobs_mode``.

    Raises
    ------
    UnknownEngineError
        If there is no such method, or an option has no such value.

    Notes
    -----
    The control arm is a second `LLM` without a ``speculative_config``: speculation cannot be
    switched off by the request.

    A seeded request seeds verification alone: a sampled draft draws from the engine's stream
    whatever the request says. That stream begins at the same place in every process, so it is
    begun anew for every batch, at a place that is no request's seed.

    ``min_p`` is refused by vLLM where it speculates, and is not claimed.
    """

    def __init__(
        self,
        method: str = "ngram",
        dtype: str = "float32",
        seeds: str = "request",
        repair: str = "no",
        logprobs: str = "raw",
    ) -> None:
        if method not in METHODS:
            raise UnknownEngineError(
                f"vllm has no method {method!r}; there are {', '.join(METHODS)}"
            )
        _one_of("dtype", dtype, ("float32", "bfloat16", "float16"))
        _one_of("seeds", seeds, ("request", "none"))
        _one_of("repair", repair, ("no", "yes"))
        _one_of("logprobs", logprobs, tuple(extra.MODES))
        self._said = logprobs
        self._method, self._dtype = METHODS[method], dtype
        self._seeded, self._repair = seeds == "request", repair == "yes"
        self.card = EngineCard(
            name="vllm" if method == "ngram" else f"vllm:{method}",
            version=version() + (" with two functions repaired" if self._repair else ""),
            method=self._method.words,
            homepage=HOMEPAGE,
        )
        self.capabilities = Capabilities(
            draft=self._method.draft,
            max_batch=BATCH,
            # temperature first; then min_p, which speculation refuses; top_p is of what top_k left
            dialect=Dialect(order=("temperature", "min_p", "top_k", "top_p")),
            min_p=False,
            verification="token",
            processors=CLAIMED,
            greedy_roads=("temperature-0", "top-k-1"),
            logprobs=LOGPROBS[logprobs],
            lengths=True,
            ragged=True,
            unseeded=True,
            several=True,
            sliding=True,
            long=True,
        )
        self._vocab_size = 0
        self._torch: Any = None
        self._library: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._options: dict[bool, dict[str, Any]] = {}  # of both arms' LLM
        # by whether they speculate, and whether they have a tokenizer, which a grammar needs
        self._arms: dict[tuple[bool, bool], Any] = {}
        self._rounds: dict[bool, Rounds | Counters] = {}

    def load(self, probe: ModelPair) -> None:
        """Load both arms.

        Raises
        ------
        EngineLoadError
            If torch or vLLM is missing or refuses the models, or the probe lacks a draft.
        """
        self.close()
        if self._method.draft == "model" and probe.draft is None:
            raise EngineLoadError(f"{self.card.name} needs a probe with a draft model")
        self._vocab_size = probe.vocab_size
        self._torch, self._library = library(self._repair)
        register_once()
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-vllm-")
        speculative: dict[str, Any] = self._method.config | {"num_speculative_tokens": PROPOSALS}
        if self._method.draft == "model":
            speculative["model"] = self._wide(probe.draft)
        control = {
            "model": self._wide(probe.target),
            "trust_remote_code": False,
            "generation_config": "vllm",
            "logprobs_mode": extra.MODES[self._said],
            "enforce_eager": True,
            "dtype": self._dtype,
            "max_model_len": probe.context,
            "max_num_seqs": BATCH,
            # a prompt read in pieces ends a seeded request on the CPU: "CPU Generator does not use
            # offset"
            "enable_chunked_prefill": False,
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
        }
        counting = {"speculative_config": speculative, "disable_log_stats": False}
        self._options = {False: control, True: control | counting}
        for speculate in (False, True):
            self._arm(speculate, texts=False)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order.

        Raises
        ------
        NotSupportedError
            If vLLM refuses a configuration before it generates anything.
        """
        if not self._options:
            raise EngineLoadError("generate was called before load")
        params = [self._params(r) for r in requests]
        answers: dict[int, list[Completion]] = {}
        kinds = [(r.speculate, extra.of_texts(r.decoding)) for r in requests]
        for kind in sorted(set(kinds), reverse=True):
            rows = [i for i, k in enumerate(kinds) if k == kind]
            done = iter(self._run(*kind, [requests[i] for i in rows], [params[i] for i in rows]))
            answers |= {i: [next(done) for _ in range(requests[i].answers)] for i in rows}
        return [answer for i in range(len(requests)) for answer in answers[i]]

    def close(self) -> None:
        """Forget the models."""
        self._drop()
        self._options = {}
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # --- the two arms -----------------------------------------------------------------------------

    def _run(
        self, speculate: bool, texts: bool, requests: list[Request], params: list[Any]
    ) -> list[Completion]:
        llm = self._arm(speculate, texts)
        # seeds of requests are below 2**31, and torch's generator looks at 32 bits
        first = requests[0].seed
        self._torch.manual_seed(2**31 + (secrets.randbits(31) if first is None else first))
        rounds = self._rounds[texts] if speculate else None
        if rounds is not None:
            rounds.clear()
        try:
            prompts = [{"prompt_token_ids": list(r.prompt)} for r in requests]
            outputs = llm.generate(prompts, params, use_tqdm=False)
        except Exception as exc:
            # what fails on its way leaves requests behind, which the next call would go on with
            if passed(exc, "step"):
                self._drop()
            elif is_refusal(exc):
                raise NotSupportedError(f"vllm refuses {requests[0].decoding}: {exc}") from exc
            raise
        names, made = extra.several(outputs)
        tokens = [tuple(output.token_ids) for output in made]
        plain = [Completion(tokens=t) for t in tokens]
        done = plain if rounds is None else rounds.completions(names, tokens)
        return [
            replace(c, logprobs=extra.told(output)) for c, output in zip(done, made, strict=True)
        ]

    def _params(self, request: Request) -> Any:
        decoding = request.decoding.taken
        if not request.prompt:
            raise NotSupportedError("vllm needs a prompt of at least one token")
        if decoding.min_p is not None:
            raise NotSupportedError("vllm takes no min_p where it speculates")
        if not decoding.greedy and decoding.temperature < LOWEST_TEMPERATURE:
            raise NotSupportedError(f"vllm raises a temperature below {LOWEST_TEMPERATURE}")
        options = dict(
            temperature=0.0 if decoding.greedy else float(decoding.temperature),
            top_k=0 if decoding.top_k is None else int(decoding.top_k),
            top_p=1.0 if decoding.top_p is None else float(decoding.top_p),
            min_p=0.0,
            seed=request.seed if self._seeded else None,
            max_tokens=request.max_new_tokens,
            n=request.answers,
            ignore_eos=True,
            **self._processors(request),
            **extra.asked(self._library, request, self._vocab_size),
        )
        try:
            return self._library.SamplingParams(**options)
        except ValueError as exc:
            raise NotSupportedError(f"vllm refuses {decoding}: {exc}") from exc

    def _processors(self, request: Request) -> dict[str, Any]:
        decoding = request.decoding
        options: dict[str, Any] = {
            "repetition_penalty": float(decoding.repetition_penalty or 1.0),
            "presence_penalty": float(decoding.presence_penalty or 0.0),
            "frequency_penalty": float(decoding.frequency_penalty or 0.0),
            "min_tokens": min(decoding.min_new_tokens, request.max_new_tokens),
            "stop_token_ids": list(decoding.stop),
        }
        if decoding.banned or decoding.allowed:
            vocab = set(range(self._vocab_size))
            kept = vocab & set(decoding.allowed or vocab) - set(decoding.banned)
            options["allowed_token_ids"] = sorted(kept)
        if decoding.logit_bias:
            options["logit_bias"] = {token: float(bias) for token, bias in decoding.logit_bias}
        return options

    def _wide(self, folder: Path | None) -> str:
        """A model as vLLM's attention can take it."""
        assert folder is not None
        assert self._folder is not None
        try:
            made = widened(folder, Path(self._folder.name) / folder.name)
            extra.with_tokenizer(folder, made)
            return str(made)
        except (OSError, ValueError) as exc:
            raise EngineLoadError(f"vllm cannot load {folder}: {exc}") from exc

    def _arm(self, speculate: bool, texts: bool) -> Any:
        """The LLM of an arm, loaded anew if it failed."""
        if (speculate, texts) not in self._arms:
            options = self._options[speculate] | {"skip_tokenizer_init": not texts}
            try:
                llm = self._library.LLM(**options)
            except Exception as exc:  # vLLM raises many kinds, its own and others'
                raise EngineLoadError(
                    f"vllm cannot load {self._options[speculate]['model']}: {exc}"
                ) from exc
            self._arms[speculate, texts] = llm
            if speculate:
                self._rounds[texts] = watch(llm)
        return self._arms[speculate, texts]

    def _drop(self) -> None:
        """Forget the arms: they share a state of the process, which ending one takes away."""
        for llm in self._arms.values():
            llm.llm_engine.engine_core.shutdown()
        self._arms.clear()
        self._rounds.clear()


def create(
    method: str = "",
    dtype: str = "float32",
    seeds: str = "request",
    repair: str = "no",
    logprobs: str = "raw",
) -> VllmEngine:
    """Make the engine of one method.

    Parameters
    ----------
    method : str
        A key of `METHODS`; empty for n-grams.
    dtype, seeds, repair, logprobs : str
        As of `VllmEngine`.

    Raises
    ------
    UnknownEngineError
        If there is no such method, or an option has no such value.
    """
    return VllmEngine(method or "ngram", dtype, seeds, repair, logprobs)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UnknownEngineError(f"vllm has no {option}={value}; there are {', '.join(allowed)}")
