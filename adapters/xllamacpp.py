"""llama.cpp's server, in process: the PyPI package ``xllamacpp``.

``xllamacpp`` drafts with a second model and verifies by rejection sampling; ``xllamacpp:match``
drafts that model's most likely tokens and keeps those that the target then samples itself; the
``ngram-...`` methods draft with n-grams and match too; ``xllamacpp:synthetic`` accepts at random,
which is wrong on purpose. The module imports nothing of the engine; `XllamacppEngine.load` does.

Inside this package ``import xllamacpp`` still means the library: imports are absolute.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.adapters import gguf_probe
from conformance.adapters import xllamacpp_extra as extra
from conformance.adapters.library import LOGPROBS, need, threads_of, version_of
from conformance.adapters.xllamacpp_methods import CACHES, METHODS, ORDERS, layers_of
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import Decoding, Dialect
from conformance.errors import EngineLoadError, UnknownEngineError

HOMEPAGE = "https://github.com/xorbitsai/xllamacpp"
RANDOM_SEED = 2**32 - 1  # as the engine takes it
SLOTS = 8  # sequences advanced together; more waiting threads wake each other at every token
BATCH = 128  # requests of one call; so many that slots hardly ever wait for the next call

# Tokens that end an output are the model's business, not a request's: see `XllamacppEngine`. There
# is no least length.
CLAIMED = (
    "logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty", "banned",
    "allowed", "stop", "grammar",
)  # fmt: skip


class XllamacppEngine:
    """llama.cpp's server, asked in process.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    order : {'temperature-last', 'temperature-first'}
        The order of samplers to ask for.
    threads : str
        Threads that each server computes with: 1, since engines run side by side in worker
        processes.
    gpu_layers : str
        Layers of target and draft that a GPU computes, ``"all"`` or a number; none by default.
    cache : {'float32', 'float16', 'bfloat16'}
        Type of the cached keys and values.
    window : str
        How many of the last tokens penalties count; 0 for all, where the engine's default is 64.
    logprobs : {'raw', 'processed'}
        Which log-probabilities are asked for: before sampling, or after (post_sampling_probs).
    spare : str
        Places of the context that requests are to leave. An output that would fill its last place
        ends a few tokens early if it is speculated, and only then; with one left all is well.

    Raises
    ------
    UnknownEngineError
        If there is no such method, order, cache or kind of log-probabilities, or a number is none.

    Notes
    -----
    A server speculates always or never: there is one for each arm. Several prompts in one call
    would share one seed, and with it one random stream; so every request is a call of its own,
    from as many threads as the server has slots, and the server batches what is in flight.

    Prompt caching is left on, as it is by default: a slot that goes on from a stale cache would be
    a fault of the engine. Keys and values are float32 and flash attention is off: by default both
    round to float16, which moves log-probabilities by .02 and is no fault of speculation. Another
    cache, or a GPU, which multiplies in less than single precision, is declared to do so.

    A request can name texts that end it, but no tokens; those are declared by the model. So stop
    tokens are asked for with a copy of the model that declares them, and servers of its own.
    """

    def __init__(
        self,
        method: str = "draft-model",
        order: str = "temperature-last",
        threads: str = "1",
        gpu_layers: str = "0",
        cache: str = "float32",
        window: str = "0",
        logprobs: str = "raw",
        spare: str = "0",
    ) -> None:
        for what, said, known in (
            ("method", method, METHODS),
            ("order", order, ORDERS),
            ("cache", cache, CACHES),
            ("logprobs", logprobs, LOGPROBS),
        ):
            if said not in known:
                raise UnknownEngineError(
                    f"xllamacpp has no {what} {said!r}; there are {', '.join(known)}"
                )
        for what, said in (("window", window), ("spare", spare)):
            if not (said.isascii() and said.isdigit() and len(said) < 10):
                raise UnknownEngineError(f"xllamacpp has no {what} {said!r}: a whole number, or 0")
        self._method = METHODS[method]
        self._samplers, self._window = ORDERS[order], int(window)
        self._said = logprobs
        self._threads, self._layers = threads_of(threads), layers_of(gpu_layers)
        self._cache = f"GGML_TYPE_{CACHES[cache]}"
        self.card = EngineCard(
            name="xllamacpp" if method == "draft-model" else f"xllamacpp:{method}",
            version=version_of("xllamacpp"),
            method=self._method.words,
            homepage=HOMEPAGE,
            rule="lossy: accepts at fixed rates" if self._method.rates else "exact",
        )
        # top-k is a partial sort: exactly k tokens, which of several equal ones is left open
        self.capabilities = Capabilities(
            draft=self._method.draft,
            max_batch=BATCH,
            dialect=Dialect(
                order=self._samplers,
                top_p_crossing="keep",
                top_k_ties="lowest-id",
                repetition_over="all",
                presence_over="all",
                penalty_window=self._window or None,
                grammar=extra.GRAMMAR,
            ),
            verification="token",
            precision="float32" if cache == "float32" and not self._layers else "lower",
            processes=1 if self._layers else None,
            processors=CLAIMED,
            greedy_roads=("temperature-0", "top-k-1"),
            typical_p=True,
            logprobs=LOGPROBS[logprobs],
            lengths=True,
            ragged=True,
            unseeded=True,
            long=True,
            spare=int(spare),
        )
        self._library: Any = None
        self._probe: ModelPair | None = None
        self._servers: dict[tuple[bool, tuple[int, ...]], Any] = {}  # by arm, and stop tokens
        self._pool: ThreadPoolExecutor | None = None

    def load(self, probe: ModelPair) -> None:
        """Start a server for each arm.

        Raises
        ------
        EngineLoadError
            If the engine or a package of the conversion is missing, or a model cannot be loaded.
        """
        self.close()
        if self._method.draft == "model" and probe.draft is None:
            raise EngineLoadError(f"{self.card.name} needs a probe with a draft model")
        # an assertion of the engine would start a debugger on the whole process otherwise
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        self._library, self._probe = _need("xllamacpp"), probe
        self._check_device(self._library)
        for speculate in (True, False):
            self._start(speculate, ())
        self._pool = ThreadPoolExecutor(SLOTS, thread_name_prefix="xllamacpp")

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order.

        Raises
        ------
        NotSupportedError
            If `xllamacpp_extra.refuse` says so.
        """
        if self._pool is None:
            raise EngineLoadError("generate was called before load")
        for r in requests:
            extra.refuse(r, self._said)
        for arm in dict.fromkeys((r.speculate, r.decoding.stop) for r in requests):
            self._start(*arm)
        began = time.perf_counter()
        return list(self._pool.map(lambda r: self._one(r, began), requests))

    def close(self) -> None:
        """Stop the servers."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None
        self._servers.clear()

    def _start(self, speculate: bool, ends: tuple[int, ...]) -> None:
        """Start an arm's server for those stop tokens, unless it runs."""
        if (speculate, ends) in self._servers:
            return
        assert self._probe is not None
        try:
            with _own_signals():
                parameters = self._parameters(self._library, self._probe, speculate, ends)
                self._servers[speculate, ends] = self._library.Server(parameters)
        except RuntimeError as exc:
            self.close()
            raise EngineLoadError(f"llama.cpp cannot load {self._probe.name}: {exc}") from exc

    # --- one request ------------------------------------------------------------------------------

    def _one(self, request: Request, began: float) -> Completion:
        # a chunk a token: the counters in them tell the rounds
        chunks: list[tuple[str, float]] = []
        self._servers[request.speculate, request.decoding.stop].handle_completions(
            self._ask(request), lambda chunk: chunks.append((chunk, time.perf_counter() - began))
        )
        tokens: list[int] = []
        times: list[float] = []
        counters: list[tuple[int, int]] = []
        told: list[float] = []
        for chunk, at in ((json.loads(text), at) for text, at in chunks):
            if "error" in chunk:
                raise RuntimeError(f"llama.cpp answers {json.dumps(chunk['error'])}")
            new = gguf_probe.word_ids(chunk["choices"][0]["text"])
            tokens += new
            told += extra.told(chunk["choices"][0], len(new))
            times += [at] * len(new)
            timings = chunk["timings"]
            counters += [(timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))] * len(new)
        over = bool(tokens) and tokens[-1] in request.decoding.stop
        if len(tokens) != request.max_new_tokens and not over:
            raise RuntimeError(
                f"llama.cpp made {len(tokens)} tokens of {request.max_new_tokens} wanted"
            )
        rounds = _rounds(counters) if request.speculate else None
        return Completion(
            tokens=tuple(tokens),
            rounds=rounds,
            times=times,
            logprobs=told if request.logprobs else None,
        )

    def _ask(self, request: Request) -> str:
        """The request as JSON; whatever is not said falls back to defaults that are not neutral."""
        decoding = request.decoding
        return json.dumps(
            {
                "prompt": request.prompt,
                "max_tokens": request.max_new_tokens,
                # without one it takes another each time; greedy decoding needs none
                "seed": RANDOM_SEED if request.seed is None else request.seed,
                "samplers": extra.samplers(self._samplers),
                **extra.settings(decoding.taken),
                **self._processors(decoding),
                **extra.asked(decoding, self._said, self._probe.vocab_size if self._probe else 0),
                "stream": True,
                "timings_per_token": True,
            }
        )

    def _processors(self, decoding: Decoding) -> dict[str, Any]:
        biases: dict[int, float | bool] = {t: float(bias) for t, bias in decoding.logit_bias}
        if decoding.banned or decoding.allowed:
            assert self._probe is not None
            vocab = set(range(self._probe.vocab_size))
            kept = vocab & set(decoding.allowed or vocab) - set(decoding.banned)
            # a bias of false is minus infinity
            biases |= dict.fromkeys(sorted(vocab - kept), False)
        return {
            "logit_bias": list(biases.items()),
            "repeat_penalty": float(decoding.repetition_penalty or 1.0),
            "presence_penalty": float(decoding.presence_penalty or 0.0),
            "frequency_penalty": float(decoding.frequency_penalty or 0.0),
            "repeat_last_n": self._window or gguf_probe.EVERY,
        }

    # --- loading ----------------------------------------------------------------------------------

    def _parameters(
        self, library: Any, probe: ModelPair, speculate: bool, ends: tuple[int, ...]
    ) -> Any:
        p = library.CommonParams()
        p.model.path = _converted(probe.target, ends)
        p.special = True  # tokens that end an output are part of it
        p.n_parallel = SLOTS
        p.n_ctx = SLOTS * probe.context
        # flash attention rounds to float16 whatever the type of the cache is
        p.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.cache_type_k = p.cache_type_v = getattr(library.ggml_type, self._cache)
        # by default a build with a GPU takes as many layers as fit
        p.n_gpu_layers = self._layers
        p.no_kv_offload = p.no_op_offload = not self._layers
        # prompts of finished requests are not kept beside the slots: that grows to gigabytes
        p.cache_ram_mib = 0
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = self._threads
        p.verbosity = -1
        # the server listens on the loopback as well, where nobody else is to ask it anything
        p.api_keys = [secrets.token_hex(16)]
        p.n_threads_http = 1
        if speculate:
            self._speculation(library, p.speculative, probe, ends)
        return p

    def _check_device(self, library: Any) -> None:
        """Refuse layers on a GPU that is not there: the engine would compute them on the CPU."""
        found = library.get_device_info() if self._layers else []
        kinds = [str(d["type"]).rpartition("_TYPE_")[2].partition(":")[0] for d in found]
        if self._layers and not {"GPU", "IGPU"} & set(kinds):
            raise EngineLoadError(
                f"option gpu_layers: xllamacpp sees no GPU here, only {', '.join(kinds)}; its "
                "builds for GPUs are other packages (see its homepage)"
            )

    def _speculation(
        self, library: Any, parameters: Any, probe: ModelPair, ends: tuple[int, ...]
    ) -> None:
        kind = f"COMMON_SPECULATIVE_TYPE_{self._method.kind}"
        try:
            parameters.types = [getattr(library.common_speculative_type, kind)]
            group = getattr(parameters, self._method.group)
        except AttributeError as exc:
            raise EngineLoadError(
                f"xllamacpp {self.card.version} has no {self.card.method}: {exc}"
            ) from exc
        if self._method.rates:
            parameters.synth_rates = list(self._method.rates)
        for name, value in self._method.options.items():
            setattr(group, name, value)
        if self._method.draft == "model":
            assert probe.draft is not None
            group.mparams.path = _converted(probe.draft, ends)
            group.cache_type_k = group.cache_type_v = getattr(library.ggml_type, self._cache)
            group.n_gpu_layers = self._layers
            group.cpuparams.n_threads = group.cpuparams_batch.n_threads = self._threads


def create(
    method: str = "draft-model",
    order: str = "temperature-last",
    threads: str = "1",
    gpu_layers: str = "0",
    cache: str = "float32",
    window: str = "0",
    logprobs: str = "raw",
    spare: str = "0",
) -> XllamacppEngine:
    """Make the engine of one method.

    Parameters
    ----------
    method : str
        A key of `METHODS`; empty for the draft model.
    order : str
        A key of `ORDERS`.
    threads, gpu_layers, cache, window, logprobs, spare : str
        As for `XllamacppEngine`.

    Raises
    ------
    UnknownEngineError
        If an option means nothing.
    """
    options = (order, threads, gpu_layers, cache, window, logprobs, spare)
    return XllamacppEngine(method or "draft-model", *options)


def _rounds(counters: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The rounds behind the totals (drafted, accepted) that came with every token.

    All tokens of a round come with the totals after it, and a round that accepts n tokens makes
    n + 1; so a token at which nothing was counted is a plain step.
    """
    rounds: list[tuple[int, int]] = []
    at, before = 0, (0, 0)
    while at < len(counters):
        drafted, accepted = (now - then for now, then in zip(counters[at], before, strict=True))
        rounds.append((drafted, accepted))
        before = counters[at]
        at += accepted + 1
    return tuple(rounds)


def _converted(folder: Path, ends: tuple[int, ...] = ()) -> str:
    try:
        return str(gguf_probe.gguf_file(folder, ends=ends))
    except gguf_probe.ERRORS as exc:
        raise EngineLoadError(f"cannot write the model in {folder} as GGUF: {exc}") from exc


@contextmanager
def _own_signals() -> Iterator[None]:
    """The process keeps its handlers: a server takes interrupts for itself, and outlives them."""
    kept = {}
    if threading.current_thread() is threading.main_thread():
        kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _need(module: str) -> Any:
    return need(module, "xllamacpp", "conformance setup xllamacpp")
