"""A probe's safetensors model as a GGUF file, for engines built on llama.cpp.

Pure conversion: it knows the two formats and no engine. Weights stay float32, and every one of the
model's V token ids keeps its logit. Needs the PyPI packages ``gguf``, ``numpy`` and
``safetensors``, which the engine's own environment brings.

A model that cannot be read or converted raises one of `ERRORS`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

ERRORS = (OSError, ValueError, KeyError, ImportError)

# GGUF's name of every tensor, by its name in the Hugging Face layout.
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INSIDE = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
FORMAT = 1  # part of the file name: raise it whenever the conversion writes another file
EVERY = 8192  # more tokens than a probe has room for, where llama.cpp asks how many to look at
# What metadata can name a token as, so that llama.cpp ends a sequence with it.
ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def gguf_file(folder: Path, cache: Path | None = None, ends: tuple[int, ...] = ()) -> Path:
    """The model of a folder as a GGUF file, written on first use.

    Parameters
    ----------
    folder : Path
        Holds ``config.json`` and ``model.safetensors`` (float32, Llama).
    cache : Path, optional
        Where the file is kept: by default a folder beside the probes, or of this user's under the
        system's temporary folder. The name carries the checksum of what the file was made from.
    ends : tuple of int
        Tokens that end a sequence, as many as `ENDS` has names; none by default.
    """
    key = hashlib.sha256(b"%d" % FORMAT)
    if ends:
        key.update(repr(ends).encode())
    for name in ("config.json", "model.safetensors"):
        key.update(hashlib.sha256((folder / name).read_bytes()).digest())
    root = cache or _own_folder()
    path = root / f"{key.hexdigest()[:24]}.gguf"
    if path.exists():
        return path
    root.mkdir(parents=True, exist_ok=True)
    # written under another name and renamed: several processes may load the same probe
    handle, name = tempfile.mkstemp(suffix=".part", dir=root)
    os.close(handle)
    part = Path(name)
    try:
        write_gguf(folder, part, ends)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def write_gguf(folder: Path, path: Path, ends: tuple[int, ...] = ()) -> None:
    """Write the model of `folder` to `path`; `ends` as in `gguf_file`."""
    numpy = importlib.import_module("numpy")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = _read(folder / "model.safetensors")
    names = _names(config)
    if config["model_type"] != "llama" or set(tensors) != set(names):
        raise ValueError(f"the model in {folder} is no plain Llama with an output layer of its own")
    other = {str(t.dtype) for t in tensors.values()} - {"float32"}
    if other:
        raise ValueError(f"the model in {folder} has weights of {', '.join(other)}, not float32")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    gguf = importlib.import_module("gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    _describe(writer, gguf, config)
    for role, token in zip(ENDS[: len(ends)], ends, strict=True):
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token)
    for name, target in names.items():
        projection, tensor = name.split(".")[-2], tensors[name]
        if projection in heads:
            tensor = _interleave(tensor, heads[projection])
        writer.add_tensor(target, numpy.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def word_ids(text: str) -> list[int]:
    """The token ids of a text made of the vocabulary that `write_gguf` writes.

    Raises
    ------
    ValueError
        If the text holds anything else.
    """
    if not text:
        return []
    first, *ids = text.split("w")
    if first:
        raise ValueError(f"{text!r} does not begin with a word of the vocabulary")
    return [int(i) for i in ids]


def _read(path: Path) -> Any:
    load_file = importlib.import_module("safetensors.numpy").load_file
    try:
        return load_file(path)
    except OSError:
        raise
    except Exception as exc:  # the library's own error derives from nothing more telling
        raise ValueError(f"cannot read {path}: {exc}") from exc


def _names(config: dict[str, Any]) -> dict[str, str]:
    names = dict(OUTSIDE)
    for i in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{i}.{hf}": f"blk.{i}.{gg}" for hf, gg in INSIDE.items()}
    return names


def _describe(writer: Any, gguf: Any, config: dict[str, Any]) -> None:
    """Sizes, and a vocabulary of exactly V ordinary words.

    Of llama.cpp's tokenizers only this one has no special tokens by default; the others take some
    ids for the beginning, the end or padding, and then an ordinary word would end a sequence.
    """
    size, dim = config["vocab_size"], config["hidden_size"] // config["num_attention_heads"]
    writer.add_name("probe")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(_rope_base(config))
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"w{i}" for i in range(size)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * size)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _rope_base(config: dict[str, Any]) -> float:
    """The base of rotary embedding, wherever a config says it; a scaled one is not converted."""
    told = config.get("rope_parameters") or {}
    scaled = config.get("rope_scaling") or (
        told if told.get("rope_type", "default") != "default" else None
    )
    if scaled:
        raise ValueError(f"its rotary embedding is scaled ({scaled}), which is not converted")
    base = config.get("rope_theta", told.get("rope_theta"))
    if not isinstance(base, int | float):
        raise ValueError("the model's config.json has no rope_theta")
    return float(base)


def _interleave(weight: Any, heads: int) -> Any:
    """Reorder a projection's rows: from rotating halves to rotating neighbours.

    In the Hugging Face layout rotary embedding turns coordinate i of a head with i + dim / 2;
    llama.cpp turns 2 i with 2 i + 1.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _own_folder() -> Path:
    """Where files are kept: what is in there is trusted, so nobody else may write to it."""
    chosen = os.environ.get("CONFORMANCE_CACHE")
    if chosen:
        return Path(chosen) / "gguf"
    folder = Path(tempfile.gettempdir()) / f"specdec-conformance-gguf-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder
