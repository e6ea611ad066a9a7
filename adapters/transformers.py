"""Hugging Face transformers: assisted generation, four ways.

``transformers`` drafts with a second model, ``transformers:prompt-lookup`` with n-grams of the
sequence itself, ``transformers:early-exit`` with the target's own first layers, and
``transformers:universal`` with a model of another vocabulary. The module imports neither torch nor
transformers; `TransformersEngine.load` does.

Inside this package ``import transformers`` still means the library: imports are absolute.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.adapters import transformers_config as words
from conformance.adapters import transformers_extra as extra
from conformance.adapters.library import LOGPROBS, need, threads_of, version_of
from conformance.adapters.transformers_watch import Clock, Rounds, streamer
from conformance.contract import (
    Capabilities,
    Completion,
    Draft,
    EngineCard,
    ModelPair,
    Precision,
    Request,
)
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError

HOMEPAGE = "https://github.com/huggingface/transformers"
PROPOSALS = 5
# Small enough that progress is seen: the speculative arm goes through a batch one by one.
BATCH = 64
DTYPES: dict[str, Precision] = {d: d for d in ("float32", "bfloat16", "float16")}


@dataclass(frozen=True, slots=True)
class Method:
    """One of the library's ways to propose tokens.

    Parameters
    ----------
    words : str
        The method as the engine card prints it.
    draft : str
        Where proposals come from, as in `Capabilities`.
    options : dict
        What it adds to every generation configuration of the speculative arm.
    """

    words: str
    draft: Draft
    options: dict[str, int] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "draft-model": Method("draft model", "model"),
    "prompt-lookup": Method(
        "prompt lookup",
        "lookup",
        {"prompt_lookup_num_tokens": PROPOSALS, "max_matching_ngram_size": 2},
    ),
    "early-exit": Method("early exit", "early-exit"),
    "universal": Method("draft model of another vocabulary", "other-vocabulary"),
}


class TransformersEngine:
    """Assisted generation of Hugging Face transformers.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    device : str
        A torch device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
    dtype : str
        Of the weights and the forward pass: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    threads : str
        Threads that torch computes with: 1, since engines run side by side in worker processes.
    logprobs : {'processed', 'raw'}
        Which of the library's scores log-probabilities are taken from.

    Raises
    ------
    UnknownEngineError
        If there is no such method, dtype or kind of scores, or `threads` is no number.

    Notes
    -----
    The speculative arm refuses batches, so requests run one by one, each with its own seed. The
    control arm runs in batches: rows of one batch share a stream, begun at the first row's seed.

    The library applies a decoding to the draft's logits twice: its inner `generate` is handed both
    the list of warps and the configuration that makes them. A draft is still judged by the law it
    was drawn from, so this moves acceptance, not the output.
    """

    def __init__(
        self,
        method: str = "draft-model",
        device: str = "cpu",
        dtype: str = "float32",
        threads: str = "1",
        logprobs: str = "processed",
    ) -> None:
        if logprobs not in extra.FIELDS:
            raise UnknownEngineError(
                f"transformers has no logprobs={logprobs}; there are {', '.join(extra.FIELDS)}"
            )
        if dtype not in DTYPES:
            raise UnknownEngineError(
                f"transformers is run in {', '.join(DTYPES)}, not in {dtype!r}"
            )
        if method not in METHODS:
            raise UnknownEngineError(
                f"transformers has no method {method!r}; there are {', '.join(METHODS)}"
            )
        self._method = METHODS[method]
        self.card = EngineCard(
            name="transformers" if method == "draft-model" else f"transformers:{method}",
            version=version_of("transformers"),
            method=self._method.words,
            homepage=HOMEPAGE,
        )
        self.capabilities = Capabilities(
            draft=self._method.draft,
            max_batch=BATCH,
            verification="token",
            precision=DTYPES[dtype],
            processes=None if device == "cpu" else 1,
            processors=words.claimed(self._method.draft),
            reproducible=True,
            greedy_roads=words.ROADS,
            typical_p=True,
            epsilon_cutoff=True,
            eta_cutoff=True,
            logprobs=LOGPROBS[logprobs],
            lengths=True,
            sliding=True,
            long=True,
        )
        self._device, self._dtype, self._threads = device, dtype, threads_of(threads)
        self._said = logprobs
        self._torch: Any = None
        self._library: Any = None
        self._target: Any = None
        self._folder: Path | None = None
        self._texts: Any = None  # a tokenizer, for stop strings
        self._layers = 0
        self._rounds = Rounds()
        self._began = 0.0
        self._configs: dict[tuple[Decoding, int, bool], Any] = {}
        # One assistant for each do_sample: sampling with another vocabulary prunes the output
        # layer of the assistant it is given, in place, and greedy decoding then reads wrong ids.
        self._helpers: dict[bool, dict[str, Any]] = {True: {}, False: {}}

    def load(self, probe: ModelPair) -> None:
        """Load the target, and what the method drafts with.

        Raises
        ------
        EngineLoadError
            If torch or transformers is missing, or the probe lacks what the method needs.
        """
        self.close()
        draft = self._method.draft
        if draft in ("model", "other-vocabulary") and probe.draft is None:
            raise EngineLoadError(f"{self.card.name} needs a probe with a draft model")
        self._torch, self._library = _need("torch"), _need("transformers")
        self._torch.set_num_threads(self._threads)
        with _quiet(self._library):
            self._target = self._model(probe.target)
            self._folder, self._texts = probe.target, None
            self._layers = self._target.config.num_hidden_layers
            if draft == "early-exit" and self._layers < 2:
                raise EngineLoadError("early exit needs a target of at least two layers")
            if draft == "model":
                helper = {"assistant_model": self._model(probe.draft)}
                self._helpers = {True: helper, False: helper}
            elif draft == "other-vocabulary":
                # tokenizers too: the library caches its vocabulary mapping by tokenizer
                self._helpers = {
                    do_sample: {
                        "assistant_model": self._model(probe.draft),
                        "tokenizer": self._tokenizer(probe.target),
                        "assistant_tokenizer": self._tokenizer(probe.draft),
                    }
                    for do_sample in (True, False)
                }
        self._rounds.watch(self._target)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order.

        Raises
        ------
        NotSupportedError
            If transformers refuses the configuration before it generates anything.
        """
        if self._target is None:
            raise EngineLoadError("generate was called before load")
        answers: dict[int, Completion] = {}
        alike: dict[tuple[int, int, Decoding, bool], list[int]] = defaultdict(list)
        self._began = time.perf_counter()
        with _quiet(self._library), self._torch.inference_mode():
            for i, r in enumerate(requests):
                if not r.prompt:
                    raise NotSupportedError("transformers needs a prompt of at least one token")
                if r.speculate:
                    answers[i] = self._speculate(r)
                elif r.decoding.stop_strings:
                    # rows that have ended are padded after end tokens alone, and else go on
                    answers[i] = self._control([r])[0]
                else:
                    alike[len(r.prompt), r.max_new_tokens, r.decoding, r.times].append(i)
            for rows in alike.values():
                answers |= zip(rows, self._control([requests[i] for i in rows]), strict=True)
        return [answers[i] for i in range(len(requests))]

    def close(self) -> None:
        """Forget the models."""
        self._target = None
        self._helpers = {True: {}, False: {}}
        self._configs.clear()

    # --- the two arms -----------------------------------------------------------------------------

    def _speculate(self, request: Request) -> Completion:
        self._rounds.clear()
        clock = Clock(self._began) if request.times else None
        helpers = self._helpers[not request.decoding.taken.greedy] | streamer(clock)
        output = self._run([request], helpers)
        tokens = self._tokens([request], output)[0]
        told = self._logprobs([request], output)
        return Completion(
            logprobs=None if told is None else told[0],
            tokens=tokens,
            rounds=tuple(self._rounds.done),
            times=None if clock is None else clock.times,
        )

    def _control(self, requests: list[Request]) -> list[Completion]:
        clock = Clock(self._began) if requests[0].times else None
        output = self._run(requests, streamer(clock))
        times = None if clock is None else clock.times
        told = self._logprobs(requests, output)
        return [
            Completion(
                tokens=row,
                times=None if times is None else times[: len(row)],
                logprobs=None if told is None else told[i],
            )
            for i, row in enumerate(self._tokens(requests, output))
        ]

    def _tokens(self, requests: list[Request], output: Any) -> list[tuple[int, ...]]:
        rows = extra.sequences(output)[:, len(requests[0].prompt) :].tolist()
        return [words.ended(row, requests[0].decoding) for row in rows]

    def _logprobs(self, requests: list[Request], output: Any) -> list[list[float]] | None:
        if not requests[0].logprobs:
            return None
        return extra.logprobs(self._torch, output, self._said, len(requests[0].prompt))

    def _run(self, requests: list[Request], helpers: dict[str, Any]) -> Any:
        first = requests[0]
        prompts = self._torch.tensor([r.prompt for r in requests], device=self._device)  # [B, L]
        config = self._config(first.decoding, first.max_new_tokens, first.speculate)
        if first.decoding.stop_strings:
            if self._texts is None:
                self._texts = words.for_stop_strings(self._tokenizer(self._folder))
            helpers = {"tokenizer": self._texts} | helpers
        if first.seed is not None:
            self._torch.manual_seed(first.seed)
        try:
            # Without a mask the library looks for padding among the prompt's tokens.
            return self._target.generate(
                prompts,
                attention_mask=self._torch.ones_like(prompts),
                generation_config=config,
                **extra.grammar(first.decoding, prompts.shape[1], self._target.config.vocab_size),
                **helpers,
            )
        except ValueError as exc:
            # a loop that has begun and then fails is an engine that failed, not one that refuses
            if self._rounds.begun if first.speculate else _passed(exc, "_sample"):
                raise
            raise NotSupportedError(f"transformers refuses {first.decoding}: {exc}") from exc
        finally:
            # a draft that fails on its early exit leaves the target cut short
            if self._target.config.num_hidden_layers != self._layers:
                self._target.config.num_hidden_layers = self._layers

    def _config(self, decoding: Decoding, max_new_tokens: int, speculate: bool) -> Any:
        """The generation configuration."""
        key = (decoding, max_new_tokens, speculate)
        if key not in self._configs:
            said = words.options(decoding, max_new_tokens, self._target.config.vocab_size)
            said |= extra.returned(decoding, self._said)
            if speculate:
                said |= self._method.options
                if self._method.draft == "early-exit":
                    said["assistant_early_exit"] = self._layers // 2
            try:
                self._configs[key] = self._library.GenerationConfig(**said)
            except ValueError as exc:
                raise NotSupportedError(f"transformers refuses {decoding}: {exc}") from exc
        return self._configs[key]

    # --- loading ----------------------------------------------------------------------------------

    def _model(self, folder: Path | None) -> Any:
        try:
            model = self._library.AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=getattr(self._torch, self._dtype),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            ).eval()
            model = model.to(self._device)
        except (OSError, ValueError, RuntimeError) as exc:
            raise EngineLoadError(f"transformers cannot load {folder}: {exc}") from exc
        # What a request leaves unsaid is filled in from here, so nothing of the file may stay. The
        # length of a draft is read from the drafting model: the defaults stop a draft as soon as
        # its confidence falls below .4, and hardly any long block would be seen.
        model.generation_config = self._library.GenerationConfig(
            num_assistant_tokens=PROPOSALS,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        return model

    def _tokenizer(self, folder: Path | None) -> Any:
        try:
            return self._library.AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=False, local_files_only=True
            )
        except (OSError, ValueError) as exc:
            raise EngineLoadError(f"transformers cannot load the tokenizer: {exc}") from exc


def create(
    method: str = "draft-model",
    device: str = "cpu",
    dtype: str = "float32",
    threads: str = "1",
    logprobs: str = "processed",
) -> TransformersEngine:
    """Make the engine of one method.

    Parameters
    ----------
    method : str
        A key of `METHODS`; empty for the draft model.
    device, dtype, threads, logprobs : str
        As for `TransformersEngine`.

    Raises
    ------
    UnknownEngineError
        If there is no such method.
    """
    return TransformersEngine(method or "draft-model", device, dtype, threads, logprobs)


def _need(module: str) -> Any:
    return need(module, "transformers", "pip install 'specdec-conformance[transformers]'")


def _passed(exc: BaseException, function: str) -> bool:
    """Whether an exception came through a function of that name."""
    frame = exc.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name == function:
            return True
        frame = frame.tb_next
    return False


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Errors only, and no progress bars; as it was before, afterwards."""
    log = library.utils.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()
