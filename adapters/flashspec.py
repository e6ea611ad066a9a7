"""flashspec: speculative sampling in plain torch, six ways.

``flashspec`` drafts with a second model, one request at a time; ``flashspec:batch`` does so for
many rows at once, which is another loop of the library; ``flashspec:prompt-lookup`` drafts with
n-grams of the sequence itself; ``flashspec:composite`` is the library's own default, a lookup
where there is something to look up and the model otherwise; ``flashspec:bandit`` lets its UCB1
selector choose among three drafts by their speed; ``flashspec:typical`` accepts what is typical
enough, which the library itself documents as lossy.

Inside this package ``import flashspec`` still means the library: imports are absolute. The module
imports neither torch nor flashspec; `FlashspecEngine.load` does.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from conformance.adapters.library import need, version_of
from conformance.contract import Capabilities, Completion, Draft, EngineCard, ModelPair, Request
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError

HOMEPAGE = "https://github.com/Mattral/FlashSpec"
PROPOSALS = 5
NGRAM = 2
# The bandit's arms: (drafter, proposals); drafter 0 is the model, drafter 1 the lookup.
ARMS = ((0, PROPOSALS), (0, 2), (1, PROPOSALS))
# Accept what is within -log(.5) nats of the entropy. At the library's default of 1 nothing is ever
# accepted, and its lossy rule would pass for an exact one.
TYPICAL_P = 0.5
# Small enough that progress is seen: most methods go through a batch one by one.
BATCH = 64
# A lookup for a key that no sequence is long enough to hold finds nothing, ever.
NEVER = 1_000_000_000

Drafter = Literal["model", "lookup"]


@dataclass(frozen=True, slots=True)
class Method:
    """One of the library's ways to propose and accept tokens.

    Parameters
    ----------
    words : str
        The method as the engine card prints it.
    draft : str
        Where proposals come from, as in `Capabilities`.
    drafters : tuple of {'model', 'lookup'}
        The drafters handed to the library, in order.
    strategy : str
        Its ``drafter_strategy``.
    arms : tuple of (int, int)
        (drafter, proposals) of every arm its bandit chooses from; empty for one fixed arm.
    rows : bool
        Whether requests that are alike share a call.
    variant : str
        Its acceptance rule where it samples.
    """

    words: str
    draft: Draft = "model"
    drafters: tuple[Drafter, ...] = ("model",)
    strategy: str = "bandit"
    arms: tuple[tuple[int, int], ...] = ()
    rows: bool = False
    variant: Literal["rejection", "typical"] = "rejection"


METHODS: dict[str, Method] = {
    "draft-model": Method("draft model"),
    "batch": Method("draft model, many rows at once", rows=True),
    "prompt-lookup": Method("prompt lookup", "lookup", ("lookup",)),
    "composite": Method("prompt lookup, else draft model", strategy="auto"),
    "bandit": Method("bandit over drafts", drafters=("model", "lookup"), arms=ARMS),
    "typical": Method("draft model, typical acceptance", variant="typical"),
}


class FlashspecEngine:
    """`SpeculativeEngine` of flashspec.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    device : str
        Torch's name of the device both models are put on.
    dtype : str
        ``float32``, ``bfloat16`` or ``float16``. The law is that of the weights in full precision.

    Raises
    ------
    UnknownEngineError
        If there is no such method.

    Notes
    -----
    The library is seeded by its configuration and not by the call, so each request has a
    configuration and an engine of its own (about 0.3 ms); models, and what a bandit has learnt,
    are shared. Rows of one call of ``batch`` share a stream, begun at the first row's seed.

    It warps by temperature alone. Its configuration has a ``top_p``, which only typical acceptance
    reads, as another quantity: with exact rejection it changes nothing, without a word. The
    configuration swallows ``top_k`` and ``min_p`` too, and penalties and biases, of which it has
    none. None of them is claimed here. Stop tokens it has, for every call.

    It has no plain loop. The control arm is its own plain step, which it takes where a lookup has
    nothing to propose: one token from the target's first row, in its own code. That step still
    forwards one filler token and drops it from the cache, so that a fault in dropping would show
    in both arms.
    """

    def __init__(
        self, method: str = "draft-model", *, device: str = "cpu", dtype: str = "float32"
    ) -> None:
        if method not in METHODS:
            raise UnknownEngineError(
                f"flashspec has no method {method!r}; there are {', '.join(METHODS)}"
            )
        self._method = METHODS[method]
        self._device, self._dtype = device, dtype
        self.card = EngineCard(
            name="flashspec" if method == "draft-model" else f"flashspec:{method}",
            version=version_of("flashspec"),
            method=self._method.words,
            homepage=HOMEPAGE,
            rule="exact" if self._method.variant == "rejection" else "typical acceptance (lossy)",
        )
        self.capabilities = Capabilities(
            draft=self._method.draft,
            max_batch=BATCH,
            top_k=False,
            top_p=False,
            min_p=False,
            # the rounds of many rows are read off their tokens; see `_Steps`
            verification="any" if self._method.rows else "token",
            processors=("stop",),
            greedy_roads=("temperature-0",),
            lengths=True,
            long=True,
        )
        self._torch: Any = None
        self._library: Any = None
        self._target: Any = None
        self._drafters: list[Any] = []
        self._never: Any = None
        self._bandit: Any = None
        self._steps = _Steps()

    def load(self, probe: ModelPair) -> None:
        """Load the target, and what the method drafts with.

        Raises
        ------
        EngineLoadError
            If torch, transformers or flashspec is missing, or a model cannot be loaded.
        """
        self.close()
        if "model" in self._method.drafters and probe.draft is None:
            raise EngineLoadError(f"{self.card.name} needs a probe with a draft model")
        self._torch = _need("torch")
        self._library = _need("flashspec")
        parts, bandits = _need("flashspec.engine"), _need("flashspec.bandit")
        # workers are processes; more threads only get in each other's way
        self._torch.set_num_threads(1)
        where = self._torch.device(self._device)
        model, dtype = self._model(probe.target)
        self._target = parts.TargetModel("target", where, dtype, model=model)
        for kind in self._method.drafters:
            if kind == "lookup":
                self._drafters.append(parts.NgramDrafter(max_ngram=NGRAM))
            else:
                model, dtype = self._model(probe.draft)
                self._drafters.append(parts.HuggingFaceDrafter("draft", where, dtype, model=model))
        self._never = parts.NgramDrafter(max_ngram=NEVER, min_ngram=NEVER)
        if self._method.arms:
            self._bandit = bandits.UCB1Selector(n_arms=len(self._method.arms))
        if self._method.rows:
            self._steps.watch(self._target)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer every request, in order.

        Raises
        ------
        NotSupportedError
            If a request asks for a filter, a penalty, a bias or a mask, none of which the library
            would apply.
        """
        if self._target is None:
            raise EngineLoadError("generate was called before load")
        for r in requests:
            if not r.prompt:
                raise NotSupportedError("flashspec needs a prompt of at least one token")
            if r.decoding.truncates or set(r.decoding.processors) - {"stop"}:
                raise NotSupportedError(
                    f"flashspec samples with a temperature alone and cannot apply {r.decoding}"
                )
        answers: dict[int, Completion] = {}
        alike: dict[tuple[int, int, Decoding], list[int]] = defaultdict(list)
        with _quiet():
            for i, r in enumerate(requests):
                if r.speculate and self._method.rows:
                    alike[len(r.prompt), r.max_new_tokens, r.decoding].append(i)
                else:
                    answers[i] = self._one(r)
            for rows in alike.values():
                answers |= zip(rows, self._rows([requests[i] for i in rows]), strict=True)
        return [answers[i] for i in range(len(requests))]

    def close(self) -> None:
        """Forget the models."""
        self._target = self._never = self._bandit = None
        self._drafters = []

    # --- calls ------------------------------------------------------------------------------------

    def _one(self, request: Request) -> Completion:
        result = self._run([request])
        # the control arm's are all (0, 0), and say that nothing was drafted
        rounds = tuple((step.proposed, step.accepted) for step in result.arm_steps)
        return Completion(tokens=_unfilled(result.output_ids.tolist())[0], rounds=rounds)

    def _rows(self, requests: list[Request]) -> list[Completion]:
        if len(requests) == 1:
            return [self._one(requests[0])]
        self._steps.seen.clear()
        tokens = _unfilled(self._run(requests).output_ids.tolist())
        rounds = self._steps.rounds([r.prompt for r in requests], tokens)
        return [
            Completion(tokens=row, rounds=None if rounds is None else tuple(rounds[i]))
            for i, row in enumerate(tokens)
        ]

    def _run(self, requests: list[Request]) -> Any:
        first = requests[0]
        engine = self._engine(first.decoding, first.seed, first.speculate)
        prompts = self._torch.tensor([r.prompt for r in requests])  # [B, L]
        return engine.generate(
            prompts, max_new_tokens=first.max_new_tokens, eos_token_ids=first.decoding.stop
        )

    def _engine(self, decoding: Decoding, seed: int | None, speculate: bool) -> Any:
        """An engine of the library: its seed and temperature are fixed when it is made."""
        library, method = self._library, self._method
        temperature = 0.0 if decoding.greedy else float(decoding.temperature)
        sampling: dict[str, Any] = {"gamma": PROPOSALS if speculate else 1, "seed": seed}
        sampling |= {"temperature": temperature}
        if not decoding.road:  # of a temperature of 0 alone it makes the variant itself
            sampling["variant"] = "greedy"
        if not decoding.greedy:
            sampling["variant"] = method.variant if speculate else "rejection"
            if sampling["variant"] == "typical":
                sampling["top_p"] = TYPICAL_P
        options: dict[str, Any] = {
            "device": self._device,
            "dtype": self._dtype,
            "compile": False,
            "sampling": library.SamplingConfig(**sampling),
        }
        if not speculate:
            options |= {"drafter_strategy": "bandit", "bandit": library.BanditConfig(n_arms=1)}
            return library.SpeculativeEngine(
                library.FlashSpecConfig(**options), [self._never], self._target
            )
        for drafter in self._drafters:
            # drafts are drawn at their own temperature, which would stay at 1
            if hasattr(drafter, "set_temperature"):
                drafter.set_temperature(temperature)
        options["drafter_strategy"] = method.strategy
        arms = None
        if method.strategy == "bandit":
            options["bandit"] = library.BanditConfig(n_arms=len(method.arms) or 1)
        if method.arms:
            spec = importlib.import_module("flashspec.engine").ArmSpec
            arms = [spec(*arm) for arm in method.arms]
        return library.SpeculativeEngine(
            library.FlashSpecConfig(**options), self._drafters, self._target, self._bandit, arms
        )

    def _model(self, folder: Path | None) -> tuple[Any, Any]:
        """A model, and its type of number.

        The library would load it too, but a target only through another package (accelerate).
        """
        models = _need("transformers")
        dtype = getattr(self._torch, self._dtype, None)
        if dtype is None:
            raise EngineLoadError(f"torch has no dtype {self._dtype!r}")
        bars = models.utils.logging.is_progress_bar_enabled()
        models.utils.logging.disable_progress_bar()
        try:
            model = models.AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
        except (OSError, ValueError, RuntimeError) as exc:
            raise EngineLoadError(f"flashspec cannot load {folder}: {exc}") from exc
        finally:
            if bars:
                models.utils.logging.enable_progress_bar()
        return model.eval(), dtype


class _Steps:
    """Watches what one target is asked to score, on that instance alone and without changing it.

    Of a call with many rows the library tells a step's mean. Each step scores all unfinished rows
    of one length, in order, so that contexts and proposals tell whose they are; a proposal that the
    output repeats was accepted, because exact rejection never puts it back. Where contexts and
    output disagree with that reading, there are no rounds rather than wrong ones.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []

    def watch(self, target: Any) -> None:
        """Observe every block that `target` scores from now on."""
        score = target.score_draft

        @functools.wraps(score)
        def score_draft(input_ids: Any, draft_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen.append((input_ids, draft_token_ids))
            return score(input_ids, draft_token_ids, *args, **kwargs)

        target.score_draft = score_draft

    def rounds(
        self, prompts: Sequence[tuple[int, ...]], tokens: Sequence[Sequence[int]]
    ) -> list[list[tuple[int, int]]] | None:
        """(drafted, accepted) per block of every row; None where they cannot be told."""
        whole = [[*p, *t] for p, t in zip(prompts, tokens, strict=True)]
        length = [len(p) for p in prompts]
        rounds: list[list[tuple[int, int]]] = [[] for _ in prompts]
        for input_ids, draft_token_ids in self.seen:
            contexts, drafts = input_ids.tolist(), draft_token_ids.tolist()
            start = len(contexts[0])
            rows = [i for i, row in enumerate(whole) if length[i] == start < len(row)]
            if [whole[i][:start] for i in rows] != contexts:
                return None
            for i, draft in zip(rows, drafts, strict=True):
                accepted = 0
                for drafted, token in zip(draft, whole[i][start:], strict=False):
                    if drafted != token:
                        break
                    accepted += 1
                rounds[i].append((len(draft), accepted))
                length[i] = min(start + accepted + 1, len(whole[i]))
        done = all(n == len(row) for n, row in zip(length, whole, strict=True))
        return rounds if done else None


def create(method: str = "", *, device: str = "cpu", dtype: str = "float32") -> FlashspecEngine:
    """Make the engine of one method.

    Parameters
    ----------
    method : str
        A key of `METHODS`; empty for the draft model.
    device, dtype : str
        See `FlashspecEngine`.

    Raises
    ------
    UnknownEngineError
        If there is no such method.
    """
    return FlashspecEngine(method or "draft-model", device=device, dtype=dtype)


def _unfilled(rows: list[list[int]]) -> list[tuple[int, ...]]:
    """Rows without the -1 with which the library fills those that have ended."""
    return [tuple(token for token in row if token >= 0) for row in rows]


def _need(module: str) -> Any:
    return need(module, "flashspec", "pip install 'specdec-conformance[flashspec]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Errors only: every engine made would say that one arm is no bandit, or which arm it took."""
    log = logging.getLogger("flashspec")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
