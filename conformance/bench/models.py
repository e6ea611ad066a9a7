"""Which models are timed: a probe, or the user's own target and draft."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from conformance.contract import Capabilities, ModelPair
from conformance.errors import PlanError, ProbeError
from conformance.probes import default_cache, load_probe
from conformance.recipes import Recipe, make
from conformance.tinylm import TinyLlama

LARGEST_CONFIG = 2**20  # bytes
LONGEST_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
# Only a plain Llama is what `TinyLlama` computes.
PLAIN: dict[str, tuple[object, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "rope_parameters": (None,),
    "tie_word_embeddings": (False, None),
}
MOST_PARAMETERS = 100_000_000  # in float64 that is 800 MB


@dataclass(frozen=True, slots=True)
class Models:
    """A target and a draft, with what is said of them in a report.

    Parameters
    ----------
    pair : ModelPair
        What engines are given.
    probe : str or None
        Name of the probe; None for the user's own models.
    """

    pair: ModelPair
    probe: str | None

    @property
    def target_bytes(self) -> int:
        """Size of the target's files."""
        return _size(self.pair.target)

    @property
    def draft_bytes(self) -> int | None:
        """Size of the draft's files."""
        return None if self.pair.draft is None else _size(self.pair.draft)

    def alone(self) -> ModelPair | None:
        """The draft in the target's place, to be timed by itself."""
        draft = self.pair.draft
        if draft is None:
            return None
        vocab, context = _sizes(draft)
        return ModelPair(f"{self.pair.name}, draft alone", draft, draft, vocab, context)

    def with_stand_in(self) -> ModelPair:
        """The target with the smallest draft that engines load: one layer, equal logits.

        Raises
        ------
        ProbeError
            If it cannot be made.
        """
        pair = self.pair
        law = (1.0 / pair.vocab_size,) * pair.vocab_size
        recipe = Recipe(
            "stand-in", 0.0, vocab_size=pair.vocab_size, hidden=64, intermediate=64, layers=1,
            heads=2, kv_heads=2, context=pair.context, constant=(law, law),
        )  # fmt: skip
        # not a probe: nothing is judged with it, and measuring it would take what V x V takes
        folder = default_cache() / f"stand-in-{pair.vocab_size}-{pair.context}"
        done = folder / "made"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_suffix(".lock")):
                if not done.exists():
                    make(recipe, folder)
                    done.touch()
        except OSError as exc:
            raise ProbeError(f"cannot write {folder}: {exc.strerror or exc}") from exc
        name = f"{pair.name}, stand-in for the draft"
        return ModelPair(name, pair.target, folder / "draft", pair.vocab_size, pair.context)


def models_for(
    capabilities: Capabilities, own: tuple[Path, Path] | None, probe: str | None
) -> Models:
    """What to time an engine with.

    Raises
    ------
    PlanError
        If a folder has no readable ``config.json`` that says how large the vocabulary is.
    ProbeError
        If there is no such probe.
    """
    if own is None:
        from conformance.plan import probe_for  # noqa: PLC0415 - heavy, and for probes alone

        name = probe_for(capabilities, probe)
        return Models(load_probe(name).pair, name)
    target, draft = (folder.resolve() for folder in own)
    vocab, context = _sizes(target)
    _sizes(draft)  # so that a wrong folder is found before an engine is started
    name = f"{target.name} with {draft.name}"
    return Models(ModelPair(name, target, draft, vocab, context), None)


def exact_model(folder: Path) -> tuple[TinyLlama | None, str]:
    """The model in float64 where this suite can compute it, else why not."""
    try:
        config = _config(folder)
        for key, plain in PLAIN.items():
            if config.get(key) not in plain:
                return None, f"{key} is {config.get(key)!r:.60}"
        if config.get("head_dim") not in (
            None,
            config["hidden_size"] // config["num_attention_heads"],
        ):
            return None, "its heads have a width of their own"
        if _size(folder) > 4 * MOST_PARAMETERS:
            return None, "it is too large to be computed in float64 here"
        return TinyLlama.load(folder), ""
    except (PlanError, ProbeError, KeyError, TypeError, ZeroDivisionError):
        return None, "its weights are not those of a plain Llama in one file"


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise PlanError(f"{path} is too large for a model's config.json")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise PlanError(
            f"cannot read {path}: {exc.strerror or exc}; --models wants two folders in the Hugging "
            "Face layout"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise PlanError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise PlanError(f"{path} is not a JSON object")
    return config


def _sizes(folder: Path) -> tuple[int, int]:
    """Vocabulary and context of a model."""
    config = _config(folder)
    text = config.get("text_config")
    places = [config, *([text] if isinstance(text, dict) else [])]

    def positive(keys: tuple[str, ...]) -> int:
        for place in places:
            for key in keys:
                value = place.get(key)
                if type(value) is int and 0 < value < 2**31:
                    return value
        raise PlanError(f"{folder / 'config.json'} does not say {keys[0]}")

    return positive(("vocab_size",)), positive(LONGEST_CONTEXT)


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*") if f.is_file())
