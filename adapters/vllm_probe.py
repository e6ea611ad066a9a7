"""A probe with wider attention heads and the same logits, for vLLM's CPU attention.

Its kernels take heads of 32 dimensions or more; the probes have 16. Padding with zeros changes no
logit if three things are seen to:

* Scores are divided by the root of the head's size. Sizes grow by powers of four, so that queries
  make up for it with a power of two, which float32 multiplies by exactly.
* Rotation pairs dimension j with j + d/2, so each half is padded by itself.
* The speed of pair j is theta^(-2j/d): theta is raised to the power that d grows by.

Pure conversion: it knows no engine and nothing else of this suite. Needs torch and safetensors,
which the engine brings.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

NARROWEST = 32
KNOWN = ("llama", "mistral")  # a Mistral is a Llama with a window
HEADS = ("q_proj", "k_proj", "v_proj", "o_proj")


def widened(folder: Path, into: Path) -> Path:
    """The model of a folder with heads of `NARROWEST` or more dimensions.

    Parameters
    ----------
    folder : Path
        Holds ``config.json`` and ``model.safetensors`` (Llama).
    into : Path
        Where a converted model is written; nothing is where none is needed.

    Returns
    -------
    Path
        `folder` if its heads are wide enough, else `into`.

    Raises
    ------
    ValueError
        If the model cannot be read or is no plain Llama.
    """
    library = importlib.import_module("safetensors")
    formats = importlib.import_module("safetensors.torch")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        narrow = int(
            config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        )
        wide = narrow
        while 0 < wide < NARROWEST:
            wide *= 4
        if wide == narrow:
            return folder
        config["rope_theta"] = _theta(config) ** (wide // narrow)
        weights = formats.load_file(folder / "model.safetensors")
        for name, weight in weights.items():
            if (part := name.split(".")[-2]) in HEADS:
                weights[name] = _wider(part, weight, narrow, wide)
    except (OSError, ValueError, LookupError, TypeError, library.SafetensorError) as exc:
        raise ValueError(f"cannot widen the heads of the model in {folder}: {exc}") from exc
    into.mkdir(parents=True)
    config.pop("rope_parameters", None)
    (into / "config.json").write_text(json.dumps(config | {"head_dim": wide}), "utf-8")
    formats.save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    return into


def _theta(config: dict[str, Any]) -> float:
    """The base of a plain rotary embedding.

    Raises
    ------
    ValueError
        If the model is no Llama or Mistral, or one whose attention has more to it than this file
        knows.
    """
    rope = config.get("rope_parameters") or config
    plain = rope.get("rope_type", "default") == "default" and not config.get("rope_scaling")
    if config["model_type"] not in KNOWN or config.get("attention_bias") or not plain:
        raise ValueError("it is no plain Llama")
    return float(rope.get("rope_theta", 10_000.0))


def _wider(part: str, weight: Any, narrow: int, wide: int) -> Any:
    """One projection: [heads * narrow, hidden] to [heads * wide, hidden]; turned for the output."""
    torch = importlib.import_module("torch")
    if part == "o_proj":
        return _wider("v_proj", weight.T, narrow, wide).T.contiguous()
    split = weight.reshape(-1, 2, narrow // 2, weight.shape[-1])  # [heads, halves, narrow / 2, .]
    out = torch.nn.functional.pad(split, (0, 0, 0, (wide - narrow) // 2))
    if part == "q_proj":
        out = out * (wide // narrow) ** 0.5
    return out.reshape(-1, weight.shape[-1])
