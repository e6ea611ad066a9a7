"""Recipes of probes: how a target and a draft are made from a seed.

Random Llama weights that depend strongly on every earlier token, an output layer scaled to a wanted
mean entropy, and a draft that is the target plus weight noise, scaled to a wanted mean total
variation between the two. The folders have the Hugging Face layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from conformance.errors import ProbeError
from conformance.forms import WINDOW
from conformance.law import Floats, softmax
from conformance.tinylm import Shape, TinyLlama, Tokens

# Tokens of a greedy output, and of one that goes far.
GREEDY_TOKENS, FAR_TOKENS = 32, 512


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a probe's weights.

    Parameters
    ----------
    name : str
        ``"near"``, ``"mid"`` ...
    draft_tv : float
        Mean total variation between the target's and the draft's law at temperature 1; 0 copies
        the target (a twin).
    seed : int
        Of every random number in the probe.
    vocab_size : int
        The target's vocabulary.
    entropy : float
        Mean entropy of the target's law at temperature 1, in nats.
    draft_vocab : {'same', 'other'}
        ``'other'`` gives the draft a larger vocabulary of its own that shares only some tokens.
    constant : tuple of two tuples of float, or None
        ``(p, q)``: target and draft whose laws are these at every prefix, for a worked example.
    last_token : bool
        Blocks that add nothing to their input, so that the law depends on the last token alone: a
        table of V rows, for engines that have no transformer. It cannot show a stale cache.
    tied : bool
        Tokens share their rows of the target's output layer, as in `TIES`, so that their logits are
        equal bit for bit. Their embeddings differ, and so do their rows in the draft.
    far : bool
        Greedy outputs are long, of `FAR_TOKENS`.
    window : int
        Attention sees so many tokens, itself included; all by default.
    looks_back : bool
        The first layer's heads look at the tokens `REACH` places back, whatever they are, so that
        the law depends on tokens that far away as much as on near ones.
    """

    name: str
    draft_tv: float
    seed: int = 20_260
    vocab_size: int = 32
    hidden: int = 64
    intermediate: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    context: int = 512
    init: float = 0.3
    entropy: float = 2.0
    draft_vocab: Literal["same", "other"] = "same"
    constant: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    last_token: bool = False
    tied: bool = False
    far: bool = False
    looks_back: bool = False
    window: int = False  # as the other switches, so that it is in no other probe's name

    @property
    def reach(self) -> tuple[int, ...]:
        """How far back each head of the first layer looks, where they look back."""
        # the last place of a window, and the first beyond it, which no head may see
        near = (16, self.window - 1, self.window, self.window - 1)
        return near if self.window else REACH

    @property
    def greedy_tokens(self) -> int:
        """Tokens of a greedy output."""
        return FAR_TOKENS if self.far else GREEDY_TOKENS

    @property
    def sees_prefix(self) -> bool:
        """Whether the law is meant to depend on every earlier token."""
        return self.constant is None and not self.last_token

    def shape(self, vocab_size: int) -> Shape:
        """The forward pass's sizes for a model of this vocabulary."""
        return Shape(
            vocab_size, self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads,
            self.context, window=self.window or None,
        )  # fmt: skip


RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe("twin", 0.0),
        Recipe("near", 0.05),
        Recipe("mid", 0.25),
        Recipe("far", 0.6),
        Recipe("other-vocabulary", 0.25, draft_vocab="other"),
        # few tokens, so that a guess at the next ones is often right: n-gram lookup then has blocks
        # of several accepted tokens, which it has not at random text in a larger vocabulary
        Recipe("small", 0.25, vocab_size=6, entropy=1.2),
        # accepted .3 + .4, rejected .3, final .3 / .7: the smallest example of the algorithm
        Recipe(
            "worked-example", 0.3, vocab_size=2, entropy=0.611, constant=((0.3, 0.7), (0.6, 0.4))
        ),
        Recipe("table", 0.25, last_token=True),
        Recipe("tied", 0.25, tied=True),
        Recipe("horizon", 0.25, context=1024, far=True),
        Recipe("long", 0.25, context=1280, looks_back=True),
        Recipe("window", 0.25, looks_back=True, window=WINDOW),
    )
}
# Tokens whose logits are equal, two, three or four at a time; far apart, so that a kernel that
# works through the vocabulary in pieces has them in different ones.
TIES = ((0, 16), (1, 17), (2, 18), (3, 19), (4, 20), (5, 21, 24), (6, 22, 25, 30))
# How far back the heads of the first layer look, where a recipe has it so: within a page, and over
# the borders at 256, 512 and 1024.
REACH = (16, 300, 600, 1040)
# In a draft of another vocabulary: how many of the target's tokens it lacks, and has of its own.
MISSING, OWN = 4, 12


def make(recipe: Recipe, folder: Path) -> None:
    """Make both models in `folder`.

    Raises
    ------
    ProbeError
        If the wanted entropy or total variation cannot be reached.
    """
    rng = np.random.default_rng(recipe.seed)
    if recipe.constant is not None:
        names = [f"w{i}" for i in range(recipe.vocab_size)]
        for model, law in zip(("target", "draft"), recipe.constant, strict=True):
            _write_model(recipe, folder / model, _constant_weights(recipe, law, rng), names)
        return
    target = _random_weights(recipe, recipe.vocab_size, rng)
    if recipe.last_token:
        _silence_blocks(target)
    if recipe.looks_back:
        _look_back(recipe, target)
    if recipe.tied:
        for equal in TIES:
            target["lm_head.weight"][list(equal)] = target["lm_head.weight"][equal[0]]
    sample = random_tokens(recipe)
    head = target["lm_head.weight"].copy()
    shape = recipe.shape(recipe.vocab_size)

    def entropy_at(scale: float) -> float:
        target["lm_head.weight"] = (head * np.float32(scale)).astype(np.float32)
        return mean_entropy(TinyLlama(shape, target).logits(sample))

    entropy_at(_bisect(entropy_at, recipe.entropy, low=1e-3, high=10.0, increasing=False))
    draft = _perturbed(recipe, target, sample, rng)
    words = [f"w{i}" for i in range(recipe.vocab_size)]
    draft_words = words
    if recipe.draft_vocab == "other":
        draft = _other_vocabulary(draft, rng)
        draft_words = words[: recipe.vocab_size - MISSING] + [f"x{i}" for i in range(OWN)]
    _write_model(recipe, folder / "target", target, words)
    _write_model(recipe, folder / "draft", draft, draft_words)


def _random_weights(
    recipe: Recipe, vocab_size: int, rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    kv = recipe.kv_heads * recipe.hidden // recipe.heads
    h, f = recipe.hidden, recipe.intermediate

    def normal(*size: int) -> NDArray[np.float32]:
        return (rng.standard_normal(size) * recipe.init).astype(np.float32)

    weights = {"model.embed_tokens.weight": normal(vocab_size, h)}
    for i in range(recipe.layers):
        p = f"model.layers.{i}."
        weights |= {
            p + "self_attn.q_proj.weight": normal(h, h),
            p + "self_attn.k_proj.weight": normal(kv, h),
            p + "self_attn.v_proj.weight": normal(kv, h),
            p + "self_attn.o_proj.weight": normal(h, h),
            p + "mlp.gate_proj.weight": normal(f, h),
            p + "mlp.up_proj.weight": normal(f, h),
            p + "mlp.down_proj.weight": normal(h, f),
            p + "input_layernorm.weight": np.ones(h, np.float32),
            p + "post_attention_layernorm.weight": np.ones(h, np.float32),
        }
    weights["model.norm.weight"] = np.ones(h, np.float32)
    weights["lm_head.weight"] = normal(vocab_size, h)
    return weights


def _silence_blocks(weights: dict[str, NDArray[np.float32]]) -> None:
    """Make attention and MLP add nothing: what comes out is the last token's embedding, normed."""
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = np.zeros_like(weight)


def _look_back(recipe: Recipe, weights: dict[str, NDArray[np.float32]]) -> None:
    """Make each head of the first layer look so many places back.

    One number of every embedding is the same, and queries and keys are made of it alone. Rotary
    embeddings turn both by their places, and queries are turned back beforehand by the distance, so
    that their product is largest at the key that is so far away.
    """
    weights["model.embed_tokens.weight"][:, 0] = 2.0
    width = recipe.hidden // recipe.heads
    half = width // 2
    angle = recipe.shape(recipe.vocab_size).rope_theta ** (-np.arange(half) / half)
    for name in ("q_proj", "k_proj"):
        weights[f"model.layers.0.self_attn.{name}.weight"][:] = 0.0
    keys = weights["model.layers.0.self_attn.k_proj.weight"].reshape(-1, width, recipe.hidden)
    keys[:, :half, 0] = 1.0
    queries = weights["model.layers.0.self_attn.q_proj.weight"].reshape(-1, width, recipe.hidden)
    for query, back in zip(queries, recipe.reach, strict=True):
        query[:half, 0], query[half:, 0] = np.cos(back * angle), -np.sin(back * angle)


def _constant_weights(
    recipe: Recipe, law: tuple[float, ...], rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """A Llama whose law is `law` at every prefix: blocks that add nothing, equal embeddings."""
    weights = _random_weights(recipe, recipe.vocab_size, rng)
    _silence_blocks(weights)
    weights["model.embed_tokens.weight"] = np.ones_like(weights["model.embed_tokens.weight"])
    # the final norm turns the all-ones vector into itself, so each row sums to its logit
    logits = np.log(np.array(law))[:, None] / recipe.hidden
    weights["lm_head.weight"] = np.repeat(logits, recipe.hidden, axis=1).astype(np.float32)
    return weights


def _perturbed(
    recipe: Recipe, target: dict[str, NDArray[np.float32]], sample: Tokens, rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """The target plus weight noise that makes the mean TV the recipe's."""
    shape = recipe.shape(recipe.vocab_size)
    exact = TinyLlama(shape, target).logits(sample)
    noise = {
        name: rng.standard_normal(w.shape).astype(np.float32) * np.float32(w.std())
        for name, w in target.items()
    }  # norms have no spread and stay as they are

    def at(scale: float) -> dict[str, NDArray[np.float32]]:
        return {n: (w + np.float32(scale) * noise[n]).astype(np.float32) for n, w in target.items()}

    if recipe.draft_tv == 0:
        return at(0.0)
    return at(
        _bisect(
            lambda s: mean_tv(exact, TinyLlama(shape, at(s)).logits(sample)),
            recipe.draft_tv,
            low=1e-4,
            high=30.0,
            increasing=True,
        )
    )


def _other_vocabulary(
    draft: dict[str, NDArray[np.float32]], rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    other = dict(draft)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        shared = draft[name][:-MISSING]
        own = rng.standard_normal((OWN, shared.shape[1])) * shared.std()
        other[name] = np.concatenate([shared, own.astype(np.float32)])
    return other


def _write_model(
    recipe: Recipe, folder: Path, weights: dict[str, NDArray[np.float32]], words: list[str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shape = recipe.shape(len(words))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    if shape.window is not None:  # a Llama with a window is a Mistral
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": shape.window,
        }
    # one word a token, split at white space: text and ids map one to one
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words)},
            "unk_token": words[-1],
        },
    }
    files = {
        "config.json": config,
        "generation_config.json": {},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.context,
            "unk_token": words[-1],
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# --- measures -------------------------------------------------------------------------------------


def random_tokens(recipe: Recipe, rows: int = 64, length: int = 24) -> Tokens:
    """Token sequences that a probe is measured on. [rows, length]"""
    rng = np.random.default_rng([recipe.seed, 1])
    return rng.integers(0, recipe.vocab_size, size=(rows, length))


def mean_entropy(logits: Floats) -> float:
    """Mean entropy in nats at temperature 1."""
    p = softmax(logits)
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum(-1).mean())


def mean_tv(a: Floats, b: Floats) -> float:
    """Mean total variation at temperature 1."""
    return float(0.5 * np.abs(softmax(a) - softmax(b)).sum(-1).mean())


def _bisect(
    function: Callable[[float], float], wanted: float, *, low: float, high: float, increasing: bool
) -> float:
    """Solve function(x) = wanted on a log scale, rounded so that last bits do not matter."""
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        if (function(middle) < wanted) == increasing:
            low = middle
        else:
            high = middle
    x = float(f"{np.sqrt(low * high):.5g}")
    if abs(function(x) - wanted) > 0.05 * wanted:
        raise ProbeError(
            f"the recipe cannot reach {wanted}: the closest is {function(x):.3f}; change the recipe"
        )
    return x
