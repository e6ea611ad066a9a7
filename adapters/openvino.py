"""OpenVINO GenAI: its continuous batching pipeline, with a draft model or with prompt lookup.

``openvino-genai`` drafts with a second model, ``openvino-genai:prompt-lookup`` with n-grams of the
sequence itself. Options: ``device`` (the OpenVINO device, CPU by default) and ``dtype`` (what it
calculates with, and keeps keys and values in: float32 by default). Probes are converted by
`openvino_probe`.

Inside this package ``import openvino`` still means the library: imports are absolute.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.adapters import openvino_texts as texts
from conformance.adapters.library import need, version_of
from conformance.contract import (
    Capabilities,
    Completion,
    Draft,
    EngineCard,
    ModelPair,
    Request,
    Verification,
)
from conformance.decoding import Dialect
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError

HOMEPAGE = "https://github.com/openvinotoolkit/openvino.genai"
PROPOSALS = 5
NGRAM = 2
BATCH = 256
BLOCK = 16  # tokens of a key-value block: 32 on a CPU, 16 on a GPU
# OpenVINO's own names are understood too; it calls what a device can do by a third set of names
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
PRECISIONS |= {name: name for name in PRECISIONS.values()}
CAPABILITIES = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
# As its LogitProcessor arranges them. Top-k keeps exactly k tokens by raw logit, and a token has to
# be strictly larger to replace an earlier one; top-p keeps adding tokens until the sum exceeds p.
DIALECT = Dialect(
    order=("top_k", "temperature", "min_p", "top_p"),
    top_p_crossing="keep",
    top_k_ties="lowest-id",
    repetition_over="all",
    presence_over="output",
)
# It has no biases, and no masks but those of a grammar, which is one of texts.
CLAIMED = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "min_new_tokens",
    "stop_strings", "grammar",
)  # fmt: skip
Piece = tuple[list[int], list[float]]  # what a step brought: tokens, and their log-probabilities


@dataclass(frozen=True, slots=True)
class Method:
    """One of the library's ways to propose tokens.

    Parameters
    ----------
    words : str
        The method as the engine card prints it.
    draft : str
        Where proposals come from, as in `Capabilities`.
    verification : str
        What `Capabilities` may claim of the rounds (see `OpenVINOEngine`).
    options : dict
        What it adds to every generation configuration of the speculative arm.
    """

    words: str
    draft: Draft
    verification: Verification
    options: dict[str, int] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "draft-model": Method("draft model", "model", "any"),
    "prompt-lookup": Method("prompt lookup", "lookup", "token", {"max_ngram_size": NGRAM}),
}


class OpenVINOEngine:
    """The continuous batching pipeline of OpenVINO GenAI, and a second one that does not speculate.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    device : str
        An OpenVINO device: ``CPU``, ``GPU``, ``GPU.1`` ...
    dtype : str
        A key of `PRECISIONS`.

    Raises
    ------
    UnknownEngineError
        If there is no such method or precision.

    Notes
    -----
    The control arm is a pipeline of its own because ``num_assistant_tokens = 0`` does not switch
    speculation off: it then takes a default, and prompt lookup refuses it.

    Rounds are read off the pieces in which a request's tokens arrive, one for each step of the
    pipeline: a piece of n tokens is n - 1 accepted proposals and one more token. How many were
    proposed is not told for a request. A draft model proposes `PROPOSALS`, or one less than is
    left; after a replacement that happens to equal the proposal it replaces, the engine leaves out
    the next draft, which cannot be seen from here. So these rounds are an estimate, never too
    small. (Its own counters are for a whole batch and leave out every request's last block.) With
    prompt lookup the proposals follow from the sequence; they are worked out, and rounds are
    withheld where what was accepted is not what should have been proposed.
    """

    def __init__(
        self, method: str = "draft-model", device: str = "CPU", dtype: str = "float32"
    ) -> None:
        if method not in METHODS:
            raise UnknownEngineError(
                f"openvino-genai has no method {method!r}; there are {', '.join(METHODS)}"
            )
        if dtype not in PRECISIONS:
            raise UnknownEngineError(
                f"openvino-genai has no dtype {dtype!r}; there are {', '.join(PRECISIONS)}"
            )
        self._method = METHODS[method]
        self._device, self._precision = device.upper(), PRECISIONS[dtype]
        self.card = EngineCard(
            name="openvino-genai" if method == "draft-model" else f"openvino-genai:{method}",
            version=version_of("openvino-genai"),
            method=self._method.words,
            homepage=HOMEPAGE,
        )
        self.capabilities = Capabilities(
            draft=self._method.draft,
            max_batch=BATCH,
            dialect=DIALECT,
            verification=self._method.verification,
            processors=CLAIMED,
            greedy_roads=("temperature-unset", "top-k-1", "do-sample-false"),
            logprobs="raw",
            lengths=True,
            ragged=True,
            long=True,
        )
        self._genai: Any = None
        self._tensor: Any = None
        self._vocab_size = 0
        self._pipelines: dict[bool, Any] = {}

    def load(self, probe: ModelPair) -> None:
        """Convert the probe, and build a pipeline for each arm.

        Raises
        ------
        EngineLoadError
            If openvino-genai is missing, or the probe lacks what the method needs, or the device
            cannot do what it is asked.
        """
        self.close()
        speculative = self._method.draft == "model"
        if speculative and probe.draft is None:
            raise EngineLoadError(f"{self.card.name} needs a probe with a draft model")
        self._genai, library = _need("openvino_genai"), _need("openvino")
        self._tensor = library.Tensor
        self._check_precision(library)
        convert = importlib.import_module("conformance.adapters.openvino_probe").convert
        self._vocab_size = probe.vocab_size
        config = self._genai.SchedulerConfig()
        config.enable_prefix_caching = False
        config.max_num_seqs = BATCH
        # room for a full batch: no prompt in two pieces, no sequence ever put off
        config.max_num_batched_tokens = BATCH * probe.context
        config.num_kv_blocks = BATCH * (probe.context // BLOCK + 1)
        common: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self._precision,
            # keys and values are kept as 8-bit integers unless told otherwise
            "KV_CACHE_PRECISION": self._precision,
        }
        if self._device == "CPU":
            # engines run side by side in worker processes; more threads get in each other's way
            common["INFERENCE_NUM_THREADS"] = 1
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            try:
                target = convert(probe.target, Path(folder) / "target")
                if speculative:
                    draft = convert(probe.draft, Path(folder) / "draft")
                    extra = {"draft_model": self._genai.draft_model(draft, self._device, **common)}
                else:
                    extra = {"prompt_lookup": True}
                for speculate, more in ((True, extra), (False, {})):
                    self._pipelines[speculate] = self._genai.ContinuousBatchingPipeline(
                        target, config, self._device, common | more
                    )
            except (RuntimeError, OSError, KeyError, ValueError) as exc:
                self.close()
                raise EngineLoadError(
                    f"openvino-genai cannot load {probe.name} on {self._device}: {_line(exc)}"
                ) from exc

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order; one batch for each arm.

        Raises
        ------
        NotSupportedError
            If a configuration is refused before anything is generated.
        """
        if not self._pipelines:
            raise EngineLoadError("generate was called before load")
        configs = [self._config(r) for r in requests]
        answers: list[Completion | None] = [None] * len(requests)
        for speculate, pipeline in self._pipelines.items():
            rows = [i for i, r in enumerate(requests) if r.speculate == speculate]
            parts = self._run(pipeline, [(requests[i].prompt, configs[i]) for i in rows])
            for i, part in zip(rows, parts, strict=True):
                tokens = [token for ids, _ in part for token in ids]
                told = [value for _, values in part for value in values]
                held = texts.held_back(requests[i].decoding.stop_strings)
                blocks = texts.blocks(tokens, [len(ids) for ids, _ in part], held)
                rounds = self._rounds(requests[i], blocks) if speculate and blocks else None
                answers[i] = Completion(
                    tokens=tuple(tokens),
                    rounds=rounds,
                    logprobs=told if requests[i].logprobs else None,
                )
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        """Forget the pipelines."""
        self._pipelines.clear()

    def _check_precision(self, library: Any) -> None:
        # a precision that a device lacks is replaced by another without a word
        try:
            able = library.Core().get_property(self._device, "OPTIMIZATION_CAPABILITIES")
        except RuntimeError as exc:
            raise EngineLoadError(f"no OpenVINO device {self._device}: {_line(exc)}") from exc
        if CAPABILITIES[self._precision] not in able:
            raise EngineLoadError(
                f"{self._device} cannot calculate in {self._precision}; it offers {', '.join(able)}"
            )

    # --- generating -------------------------------------------------------------------------------

    def _run(self, pipeline: Any, rows: list[tuple[tuple[int, ...], Any]]) -> list[list[Piece]]:
        """What every step brought of every row, until the row had ended."""
        handles = [
            pipeline.add_request(i, self._tensor([list(prompt)]), config)
            for i, (prompt, config) in enumerate(rows)
        ]
        pieces: list[list[Piece]] = [[] for _ in rows]
        running = self._genai.GenerationStatus.RUNNING
        ended: set[int] = set()
        try:
            while pipeline.has_non_finished_requests():
                pipeline.step()
                for i, handle in enumerate(handles):
                    if i not in ended:
                        pieces[i].append(_read(handle))
                    if handle.get_status() != running:
                        ended.add(i)
        except RuntimeError:
            self.close()  # what is half done would come back in the next batch
            raise
        return pieces

    def _config(self, request: Request) -> Any:
        decoding = request.decoding.taken
        if not request.prompt:
            raise NotSupportedError("openvino-genai needs a prompt of at least one token")
        for name in decoding.processors:
            if name not in CLAIMED:
                raise NotSupportedError(f"openvino-genai has no {name}")
        if decoding.min_p and decoding.top_p is not None and decoding.top_p < 1:
            raise NotSupportedError(
                "openvino-genai measures top_p by what probabilities were before min_p removed "
                "tokens, which no dialect says"
            )
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request.max_new_tokens
        config.ignore_eos = True
        # It insists on one that is not negative, and stops drafting where the draft proposes it, so
        # it must be no token of the vocabulary.
        config.eos_token_id = self._vocab_size
        config.stop_token_ids = {self._vocab_size}
        if request.decoding.road != "temperature-unset":
            config.do_sample = not decoding.greedy
        if decoding.stop:
            config.ignore_eos = False
            config.eos_token_id = decoding.stop[0]
            config.stop_token_ids = set(decoding.stop)
            config.min_new_tokens = min(decoding.min_new_tokens, request.max_new_tokens)
        texts.say(self._genai, config, decoding, self._vocab_size)
        config.repetition_penalty = decoding.repetition_penalty or 1.0
        config.presence_penalty = decoding.presence_penalty or 0.0
        config.frequency_penalty = decoding.frequency_penalty or 0.0
        config.logprobs = int(request.logprobs)
        if request.seed is not None:
            config.rng_seed = request.seed
        if not decoding.greedy:
            config.temperature = decoding.temperature
            config.top_p = 1.0 if decoding.top_p is None else decoding.top_p
            config.min_p = 0.0 if decoding.min_p is None else decoding.min_p
            if decoding.top_k is not None:
                config.top_k = int(decoding.top_k)
        if request.speculate:
            config.num_assistant_tokens = PROPOSALS
            for name, value in self._method.options.items():
                setattr(config, name, value)
        try:
            config.validate()
        except RuntimeError as exc:
            raise NotSupportedError(f"openvino-genai refuses {decoding}: {_line(exc)}") from exc
        return config

    def _rounds(
        self, request: Request, pieces: list[list[int]]
    ) -> tuple[tuple[int, int], ...] | None:
        rounds = []
        sequence, left = list(request.prompt), request.max_new_tokens
        for i, piece in enumerate(pieces):
            # the first token is never speculative, and the last never a proposal
            proposals = min(PROPOSALS, left - 1) if i else 0
            accepted = len(piece) - 1
            left -= len(piece)
            if self._method.draft == "lookup":
                found = _lookup(sequence, proposals)
                if piece[:accepted] != found[:accepted]:
                    return None
                proposals = len(found)
                # the last token of an output that a stop string cut may be a proposal as well
                accepted += i == len(pieces) - 1 and left > 0 and piece == found[: len(piece)]
            rounds.append((proposals, accepted))
            sequence += piece
        return tuple(rounds)


def _lookup(sequence: list[int], most: int) -> list[int]:
    """What prompt lookup proposes: the tokens behind the first place where the sequence's last
    `NGRAM` tokens, or else fewer, stood before.
    """
    length = len(sequence)
    size = NGRAM if length > NGRAM else length // 2
    for n in range(size, 0, -1):
        for start in range(length - n):
            if sequence[start : start + n] == sequence[length - n :]:
                return sequence[start + n :][: max(most, 0)]
    return []


def _read(handle: Any) -> Piece:
    """What a handle holds of its one sequence."""
    tokens: list[int] = []
    values: list[float] = []
    while handle.can_read():
        # nothing of the sequence is in what a stop string took everything from that was held back
        for new in handle.read().values():
            tokens += new.generated_ids
            values += new.generated_log_probs
    return tokens, values


def create(method: str = "", device: str = "CPU", dtype: str = "float32") -> OpenVINOEngine:
    """Make the engine of one method.

    Parameters
    ----------
    method : str
        A key of `METHODS`; empty for the draft model.
    device, dtype : str
        As for `OpenVINOEngine`.

    Raises
    ------
    UnknownEngineError
        If there is no such method or precision.
    """
    return OpenVINOEngine(method or "draft-model", device, dtype)


def _line(exc: Exception) -> str:
    """What the library says, without its line breaks."""
    return " ".join(str(exc).split())


def _need(module: str) -> Any:
    return need(module, "openvino-genai", "conformance setup openvino-genai")
