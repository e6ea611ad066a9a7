"""A tiny Llama in numpy: the probes' forward pass, in float64 and without a model library.

The law must not depend on the engine under test, and judging must not need torch. The forward pass
of a two-layer Llama is short enough to be its own implementation; the tests hold it against
transformers'. A `Cache` lets many sequences of different accepted lengths advance together:
positions are written in place, and a key is seen only by queries at or after its position, so
rolling back is no more than writing there again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from conformance.contract import Precision
from conformance.errors import ProbeError
from conformance.law import Floats

Tokens = NDArray[np.int64]
BEYOND = 64  # positions behind the context's end, for proposals of a last block that is cut


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a Llama configuration that the forward pass needs."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    context: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    window: int | None = None  # tokens that attention sees, itself included; None for all

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


@dataclass(slots=True)
class Cache:
    """Keys and values of B sequences, written in place. [layers, B, context, kv_heads, head_dim]"""

    keys: NDArray[np.floating]
    values: NDArray[np.floating]

    def repeat(self, rows: NDArray[np.intp]) -> Cache:
        """A cache whose sequence i is a copy of sequence ``rows[i]`` of this one."""
        return Cache(self.keys[:, rows], self.values[:, rows])


def round_to(w: NDArray[np.float32], precision: Precision) -> NDArray[np.float32]:
    """Round to the nearest value of a precision, ties to even; others than bfloat16 and float16
    leave float32 weights as they are.

    Examples
    --------
    >>> round_to(np.array([1.00390625, 1.01171875], np.float32), "bfloat16").tolist()
    [1.0, 1.015625]
    """
    if precision == "float16":
        return w.astype(np.float16).astype(np.float32)
    if precision != "bfloat16":
        return w
    bits = np.ascontiguousarray(w, dtype=np.float32).view(np.uint32)
    half = ((bits >> 16) & 1) + np.uint32(0x7FFF)  # adding it carries into the 16 bits kept
    return ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)


class TinyLlama:
    """A Llama small enough that its law is exact and cheap.

    Parameters
    ----------
    shape : Shape
        Sizes.
    weights : dict of str to ndarray
        Tensors under their Hugging Face names.
    dtype : dtype
        float64 for laws; float32 to measure rounding noise.
    """

    def __init__(
        self,
        shape: Shape,
        weights: dict[str, NDArray[np.floating]],
        dtype: type[np.floating] = np.float64,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._w = {name: np.asarray(w, dtype=dtype) for name, w in weights.items()}
        inverse = shape.rope_theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
        places = shape.context + BEYOND
        angle = np.outer(np.arange(places), inverse)  # [places, head_dim / 2]
        self._cos = np.concatenate([np.cos(angle)] * 2, axis=-1).astype(dtype)
        self._sin = np.concatenate([np.sin(angle)] * 2, axis=-1).astype(dtype)

    @classmethod
    def load(
        cls,
        folder: Path,
        dtype: type[np.floating] = np.float64,
        precision: Precision = "float32",
    ) -> TinyLlama:
        """Read ``config.json`` and ``model.safetensors``, the weights rounded to a precision.

        Raises
        ------
        ProbeError
            If a file is missing or damaged.
        """
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            weights = load_file(folder / "model.safetensors")
            shape = Shape(
                vocab_size=config["vocab_size"],
                hidden=config["hidden_size"],
                intermediate=config["intermediate_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                kv_heads=config["num_key_value_heads"],
                context=config["max_position_embeddings"],
                rope_theta=config["rope_theta"],
                norm_eps=config["rms_norm_eps"],
                window=config.get("sliding_window"),
            )
            rounded = {name: round_to(w, precision) for name, w in weights.items()}
            return cls(shape, rounded, dtype)
        except (OSError, ValueError, KeyError, SafetensorError) as exc:
            raise ProbeError(
                f"cannot read the model in {folder}: {exc}; delete the folder and it is made anew"
            ) from exc

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for `batch` sequences of at most `length` tokens."""
        s = self.shape
        size = (s.layers, batch, length or s.context, s.kv_heads, s.head_dim)
        return Cache(np.zeros(size, dtype=self.dtype), np.zeros(size, dtype=self.dtype))

    def logits(self, tokens: Tokens, layers: int | None = None) -> Floats:
        """Teacher-forced logits of whole sequences, [B, L] -> [B, L, V]."""
        start = np.zeros(len(tokens), dtype=np.int64)
        return self.advance(tokens, self.new_cache(len(tokens), tokens.shape[1]), start, layers)

    def advance(
        self,
        tokens: Tokens,
        cache: Cache,
        start: Tokens,
        layers: int | None = None,
        rows: NDArray[np.intp] | None = None,
        window: Tokens | None = None,
    ) -> Floats:
        """Feed `tokens` at positions ``start .. start + m - 1`` of each sequence.

        Parameters
        ----------
        tokens : (B, m) int64
            The next m tokens of each sequence.
        cache : Cache
            Holds everything before `start`; is written at the new positions.
        start : (B,) int64
            Where each sequence's new tokens begin; sequences may differ.
        layers : int, optional
            Stop after this many layers (an early-exit draft).
        rows : (B,) int, optional
            Which sequences of the cache these are; all of them, in order, by default.
        window : (B,) int64, optional
            How many tokens attention sees, itself included; by default the model's own number.

        Returns
        -------
        (B, m, V) ndarray
            Logits of the token after each position.
        """
        s, w = self.shape, self._w
        batch, m = tokens.shape
        at = start[:, None] + np.arange(m)  # [B, m]
        used = slice(0, batch) if rows is None else rows  # a slice copies nothing
        rows = np.arange(batch) if rows is None else rows
        seen = np.arange(int(at.max()) + 1)  # key positions that any query may look at
        hidden_keys = seen[None, None, :] > at[:, :, None]  # [B, m, S]
        if s.window is not None:
            reach = np.full(batch, s.window) if window is None else window
            hidden_keys |= seen[None, None, :] <= (at - reach[:, None])[:, :, None]
        # tokens of all sequences in one matrix: one large product is faster than many small ones
        x = w["model.embed_tokens.weight"][tokens.ravel()]  # [B m, hidden]
        for i in range(s.layers if layers is None else layers):
            p = f"model.layers.{i}."
            h = self._norm(x, w[p + "input_layernorm.weight"])
            q = (h @ w[p + "self_attn.q_proj.weight"].T).reshape(batch, m, s.heads, s.head_dim)
            k = (h @ w[p + "self_attn.k_proj.weight"].T).reshape(batch, m, s.kv_heads, s.head_dim)
            v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(batch, m, s.kv_heads, s.head_dim)
            cache.keys[i, rows[:, None], at] = self._rotate(k, at)
            cache.values[i, rows[:, None], at] = v
            mixed = self._attend(
                self._rotate(q, at),
                cache.keys[i, used, : len(seen)],
                cache.values[i, used, : len(seen)],
                hidden_keys,
            )
            x = x + mixed.reshape(batch * m, -1) @ w[p + "self_attn.o_proj.weight"].T
            h = self._norm(x, w[p + "post_attention_layernorm.weight"])
            gate = h @ w[p + "mlp.gate_proj.weight"].T
            up = h @ w[p + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
        x = self._norm(x, w["model.norm.weight"])
        return np.asarray(x @ w["lm_head.weight"].T).reshape(batch, m, -1)

    def _norm(self, x: NDArray[np.floating], weight: NDArray[np.floating]) -> NDArray[np.floating]:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean_square + self.dtype(self.shape.norm_eps)) * weight)

    def _rotate(self, x: NDArray[np.floating], at: Tokens) -> NDArray[np.floating]:
        # rotary position embedding, halves convention: x [B, m, heads, head_dim]
        half = x.shape[-1] // 2
        turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return np.asarray(x * self._cos[at][:, :, None] + turned * self._sin[at][:, :, None])

    def _attend(
        self,
        q: NDArray[np.floating],
        k: NDArray[np.floating],
        v: NDArray[np.floating],
        hidden_keys: NDArray[np.bool_],
    ) -> NDArray[np.floating]:
        batch, m, heads, dim = q.shape
        group = heads // k.shape[2]  # grouped-query attention: heads sharing one key head
        q = q.reshape(batch, m, -1, group, dim).transpose(0, 2, 3, 1, 4)  # [B, kv, g, m, d]
        q = q.reshape(batch, -1, group * m, dim)
        score = q @ k.transpose(0, 2, 3, 1) / self.dtype(np.sqrt(dim))  # [B, kv, g m, S]
        score = score.reshape(batch, -1, group, m, k.shape[1])
        score = np.where(hidden_keys[:, None, None], self.dtype(-np.inf), score)
        score = np.exp(score - score.max(axis=-1, keepdims=True))
        score /= score.sum(axis=-1, keepdims=True)
        out = score.reshape(batch, -1, group * m, k.shape[1]) @ v.transpose(0, 2, 1, 3)
        out = out.reshape(batch, -1, group, m, dim).transpose(0, 3, 1, 2, 4)
        return np.asarray(out.reshape(batch, m, heads * dim))
