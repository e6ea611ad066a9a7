"""MLX-LM: speculative decoding of Apple's array framework, which runs on Linux's CPU too.

``mlx-lm`` drafts with a second model. Inside this package ``import mlx_lm`` still means the
library: imports are absolute. The module imports neither mlx nor mlx_lm; `MlxLmEngine.load` does.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from conformance.adapters.library import need, version_of
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import Decoding, Dialect
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError

HOMEPAGE = "https://github.com/ml-explore/mlx-lm"
# Where p and q are not compared a long block hardly ever survives (the library proposes 2).
PROPOSALS = 3
# Small enough that progress is seen: requests run one by one.
BATCH = 64
METHODS: dict[str, str] = {"draft-model": "draft model"}
# Filters look at the law before temperature, one after the other, and temperature comes last. Top-k
# keeps exactly k tokens: which of those tied at the edge is a partition's business, but equal
# logits do not occur in the probes.
# Penalties count prompt and output alike; how many of the last tokens is for the caller to say.
DIALECT = Dialect(
    order=("top_p", "min_p", "top_k", "temperature"),
    top_k_ties="lowest-id",
    repetition_over="all",
    presence_over="all",
)
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
# A bias of minus infinity bans a token. There is no least length.
CLAIMED = ("logit_bias", *PENALTIES, "banned", "allowed", "stop")


class MlxLmEngine:
    """`speculative_generate_step` of MLX-LM; its control arm is `generate_step`.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    device : str
        ``cpu``, or ``gpu`` where there is one that MLX knows.

    Raises
    ------
    UnknownEngineError
        If there is no such method or device.

    Notes
    -----
    One sequence at a time. The library draws from one global stream, which is begun anew at every
    request's seed.

    It accepts a proposal where the target, sampling at that place by itself, drew the same token,
    so that p and q are never compared and what is emitted was always drawn by the target. It tells
    of every token whether a draft proposed it; blocks are rebuilt from that, see `blocks`.

    Stop tokens are the tokenizer's, and looked at by `stream_generate` alone, which wraps both
    steps. Penalties and biases are the list of processors that the library makes for its server.
    """

    def __init__(self, method: str = "draft-model", *, device: str = "cpu") -> None:
        if method not in METHODS:
            raise UnknownEngineError(
                f"mlx-lm has no method {method!r}; there are {', '.join(METHODS)}"
            )
        if device not in ("cpu", "gpu"):
            raise UnknownEngineError(f"mlx-lm has no device {device!r}; there are cpu and gpu")
        self._device = device
        self.card = EngineCard(
            name="mlx-lm", version=version_of("mlx-lm"), method=METHODS[method], homepage=HOMEPAGE
        )
        self.capabilities = Capabilities(
            max_batch=BATCH,
            dialect=DIALECT,
            verification="token",
            processors=CLAIMED,
            greedy_roads=("temperature-0", "temperature-unset", "top-k-1"),
            lengths=True,
            long=True,
        )
        self._mx: Any = None
        self._steps: Any = None
        self._target: Any = None
        self._draft: Any = None
        self._vocab_size = 0
        self._context = 0
        self._folder: Path | None = None
        self._samplers: dict[Decoding, Any] = {}
        self._tokenizers: dict[tuple[int, ...], Any] = {}

    def load(self, probe: ModelPair) -> None:
        """Load both models.

        Raises
        ------
        EngineLoadError
            If mlx or mlx_lm is missing, the probe has no draft, or a model cannot be loaded.
        """
        self.close()
        if probe.draft is None:
            raise EngineLoadError("mlx-lm needs a probe with a draft model")
        self._mx = _need("mlx.core")
        # the library takes the default device when it is imported
        self._mx.set_default_device(getattr(self._mx, self._device))
        self._steps = _need("mlx_lm.generate")
        target, self._draft = self._model(probe.target), self._model(probe.draft)
        self._target, self._vocab_size = target, probe.vocab_size
        self._context, self._folder = probe.context, probe.target

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order.

        Raises
        ------
        NotSupportedError
            If the library refuses the configuration.
        """
        if self._target is None:
            raise EngineLoadError("generate was called before load")
        for r in requests:
            if not r.prompt:
                raise NotSupportedError("mlx-lm needs a prompt of at least one token")
            if (r.decoding.top_k or 0) >= self._vocab_size:
                raise NotSupportedError(
                    f"mlx-lm refuses a top_k of {r.decoding.top_k} for {self._vocab_size} tokens"
                )
        return [self._one(r) for r in requests]

    def close(self) -> None:
        """Forget the models."""
        self._target = self._draft = None
        self._samplers.clear()
        self._tokenizers.clear()

    def _one(self, request: Request) -> Completion:
        decoding, speculate = request.decoding, request.speculate
        prompt = self._mx.array(request.prompt)  # [L]
        options: dict[str, Any] = {
            "max_tokens": request.max_new_tokens,
            # without one the library takes its own
            "sampler": None if decoding.road == "temperature-unset" else self._sampler(decoding),
            "logits_processors": self._processors(decoding),
        }
        if speculate:
            options["num_draft_tokens"] = PROPOSALS
        if request.seed is not None:
            self._mx.random.seed(request.seed)
        if decoding.stop:
            draft = self._draft if speculate else None
            stream = self._steps.stream_generate(
                self._target, self._tokenizer(decoding.stop), prompt, draft_model=draft, **options
            )
            told = [(int(answer.token), bool(answer.from_draft)) for answer in stream]
        elif speculate:
            told = [
                (int(token), bool(from_draft))
                for token, _, from_draft in self._steps.speculative_generate_step(
                    prompt, self._target, self._draft, **options
                )
            ]
        else:
            plain = self._steps.generate_step(prompt, self._target, **options)
            told = [(int(token), False) for token, _ in plain]
        rounds = blocks((drafted for _, drafted in told), request.max_new_tokens)
        tokens = tuple(token for token, _ in told)
        return Completion(tokens=tokens, rounds=rounds if speculate else None)

    def _processors(self, decoding: Decoding) -> list[Any]:
        make = importlib.import_module("mlx_lm.sample_utils").make_logits_processors
        vocab = set(range(self._vocab_size))
        kept = vocab & set(decoding.allowed or vocab) - set(decoding.banned)
        biases = {token: float(bias) for token, bias in decoding.logit_bias}
        biases |= dict.fromkeys(sorted(vocab - kept), -math.inf)
        penalties = {name: getattr(decoding, name) for name in PENALTIES}
        # by default the last 20 tokens are looked at
        sizes = {name.replace("penalty", "context_size"): self._context for name in PENALTIES}
        made: list[Any] = make(logit_bias=biases, **penalties, **sizes)
        return made

    def _tokenizer(self, stop: tuple[int, ...]) -> Any:
        if stop not in self._tokenizers:
            load = _need("mlx_lm.tokenizer_utils").load
            assert self._folder is not None
            try:
                self._tokenizers[stop] = load(self._folder, eos_token_ids=list(stop))
            except (OSError, ValueError) as exc:
                raise EngineLoadError(f"mlx-lm cannot load the tokenizer: {exc}") from exc
        return self._tokenizers[stop]

    def _sampler(self, decoding: Decoding) -> Any:
        if decoding not in self._samplers:
            make = importlib.import_module("mlx_lm.sample_utils").make_sampler
            asked = decoding.taken
            # 0 switches each of them off
            self._samplers[decoding] = make(
                temp=0.0 if asked.greedy else float(asked.temperature),
                top_p=float(asked.top_p or 0.0),
                min_p=float(asked.min_p or 0.0),
                top_k=int(asked.top_k or 0),
            )
        return self._samplers[decoding]

    @staticmethod
    def _model(folder: Path) -> Any:
        # by way of its own loader, without the tokenizer: prompts are token ids already
        load = _need("mlx_lm.utils").load_model
        try:
            model, _ = load(folder, trust_remote_code=False)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as exc:
            raise EngineLoadError(f"mlx-lm cannot load {folder}: {exc}") from exc
        return model


def blocks(from_draft: Iterable[bool], wanted: int) -> tuple[tuple[int, int], ...]:
    """(drafted, accepted) of every block, from who proposed each token.

    A block emits what was accepted and then one token of the target's own, except that the last
    one may end at its last accepted token. It proposes `PROPOSALS` tokens, or as many as are still
    wanted: the library never drafts beyond that, so that an accepted token is never cut off.

    Examples
    --------
    >>> blocks([True, True, False, False, True], wanted=5)
    ((3, 2), (2, 0), (1, 1))
    """
    rounds: list[tuple[int, int]] = []
    begun = accepted = 0
    for end, drafted in enumerate(from_draft, start=1):
        accepted += drafted
        if not drafted:
            rounds.append((min(PROPOSALS, wanted - begun), accepted))
            begun, accepted = end, 0
    if accepted:
        rounds.append((min(PROPOSALS, wanted - begun), accepted))
    return tuple(rounds)


def create(method: str = "", *, device: str = "cpu") -> MlxLmEngine:
    """Make the engine.

    Parameters
    ----------
    method : str
        A key of `METHODS`; empty for the draft model.
    device : str
        See `MlxLmEngine`.

    Raises
    ------
    UnknownEngineError
        If there is no such method or device.
    """
    return MlxLmEngine(method or "draft-model", device=device)


def _need(module: str) -> Any:
    return need(module, "mlx-lm", "on Linux: pip install 'mlx[cpu]' mlx-lm")
