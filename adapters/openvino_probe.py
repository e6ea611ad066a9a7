"""A probe as OpenVINO IR: the tiny Llama written down in OpenVINO's own operations.

The usual road (torch, transformers, optimum, nncf) is an environment of 1.5 GB to trace two layers.
The graph is short enough to be written by hand, in the form that OpenVINO GenAI expects of a
language model: inputs ``input_ids``, ``attention_mask``, ``position_ids`` and ``beam_idx``, a
stateful key-value cache, and scaled dot-product attention, which the engine replaces with its
paged attention. Weights stay float32, token ids stay what they are, and nothing is added to the
vocabulary.

The engine insists on a tokenizer, although token ids are all it is given, and reads stop strings
and grammars by it. So every model gets one of its own: token i is the word ``w`` and its number,
and a blank behind it. With the blank no word begins with another: a grammar's words are tokens.

Imported only inside an environment that has ``openvino`` and ``openvino_tokenizers``; needs numpy,
which comes with them, and nothing of this package, so that it can be run alone.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any


def convert(folder: Path, into: Path) -> Path:
    """Write the model in `folder` as IR.

    Parameters
    ----------
    folder : Path
        A probe's model: ``config.json`` and ``model.safetensors`` (float32).
    into : Path
        The folder to make and write to. It takes a tenth of a second, so nothing is kept.

    Returns
    -------
    Path
        `into`, to hand to OpenVINO GenAI.

    Raises
    ------
    OSError, KeyError, ValueError
        If a file is missing or damaged, or is not a model of the kind the probes are.
    """
    ov = importlib.import_module("openvino")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = _Graph(config, _weights(folder / "model.safetensors")).model()
    into.mkdir(parents=True)
    # by default weights are written as float16
    ov.save_model(model, into / "openvino_model.xml", compress_to_fp16=False)
    words = _Words(config["vocab_size"])
    ov.save_model(words.tokenizer(), into / "openvino_tokenizer.xml")
    ov.save_model(words.detokenizer(), into / "openvino_detokenizer.xml")
    (into / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return into


def _weights(path: Path) -> dict[str, Any]:
    """Tensors of a safetensors file: a length, a JSON header, raw little-endian numbers."""
    np = importlib.import_module("numpy")
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors: dict[str, Any] = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is {entry['dtype']}, and probes are float32")
        first, last = (start + at for at in entry["data_offsets"])
        tensors[name] = np.frombuffer(raw[first:last], dtype="<f4").reshape(entry["shape"])
    return tensors


class _Words:
    """A tokenizer of the words ``w0``, ``w1`` ... with blanks between, and the way back.

    Parameters
    ----------
    size : int
        How many words there are. Any other text is the last of them.
    """

    def __init__(self, size: int) -> None:
        self._ov: Any = importlib.import_module("openvino")
        self._np: Any = importlib.import_module("numpy")
        self._op: Any = importlib.import_module("openvino.opset15")
        tokenizers = Path(importlib.import_module("openvino_tokenizers").__file__ or "").parent
        factory: Any = importlib.import_module("openvino.utils.node_factory").NodeFactory()
        factory.add_extension(next((tokenizers / "lib").glob("*openvino_tokenizers*")))
        self._make, self._size = factory.create, size

    def tokenizer(self) -> Any:
        """[B] texts -> [B, L] ids and mask"""
        op, ov = self._op, self._ov
        text = op.parameter([-1], ov.Type.string, name="string_input")
        one, none = self._ints(1), self._ints(0)
        rows = op.range(none, op.gather(op.shape_of(text, "i32"), none, none), one, "i32")
        blanks = op.constant(self._np.frombuffer(rb"\s+", self._np.uint8))
        begin, end, *parts = self._make(
            "RegexSplit",
            _outputs(rows, op.add(rows, one), op.string_tensor_unpack(text), blanks),
            {"behaviour": "remove", "invert": False, "max_splits": -1},
        ).outputs()
        known = self._texts([f"w{i}" for i in range(self._size)])
        every, other = self._ints(range(self._size)), self._ints(self._size - 1)
        ids = self._make("VocabEncoder", [*parts[:3], *known, *_outputs(every, other)], {})
        longest = op.reduce_max(op.subtract(end, begin), none)
        dense = self._make(
            "RaggedToDense",
            [begin, end, *_outputs(ids, longest, none)],
            {"pad_right": True, "pad_max_length": False},
        )
        results = []
        for name, found in zip(("input_ids", "attention_mask"), dense.outputs(), strict=False):
            wide = op.convert(found, "i64")
            wide.output(0).set_names({name})
            results.append(op.result(wide))
        return ov.Model(results, [text], "tokenizer")

    def detokenizer(self) -> Any:
        """[B, L] ids -> [B] texts"""
        op = self._op
        ids = op.parameter([-1, -1], self._ov.Type.i64, name="ids")
        words = self._texts([f"w{i} " for i in range(self._size)])
        found = self._make("VocabDecoder", [*_outputs(op.convert(ids, "i32")), *words], {})
        *places, letters = found.outputs()
        begin, end = self._make("FuzeRagged", places, {}).outputs()
        text = op.string_tensor_pack(begin, end, letters)
        text.output(0).set_names({"string_output"})
        return self._ov.Model([op.result(text)], [ids], "detokenizer")

    def _texts(self, texts: list[str]) -> list[Any]:
        """Where each text begins and ends, and all their letters."""
        np, raw = self._np, [text.encode() for text in texts]
        ends = np.cumsum([len(r) for r in raw])
        letters = self._op.constant(np.frombuffer(b"".join(raw), np.uint8))
        return _outputs(self._ints([0, *ends[:-1]]), self._ints(ends), letters)

    def _ints(self, value: Any) -> Any:
        return self._op.constant(self._np.array(value, dtype=self._np.int32))


def _outputs(*nodes: Any) -> list[Any]:
    return [output for node in nodes for output in node.outputs()]


class _Graph:
    """Builds one Llama. Shapes: B sequences, L new tokens, S tokens in all, H heads of D numbers.

    Parameters
    ----------
    config : dict
        The model's ``config.json``.
    weights : dict of str to ndarray
        Tensors under their Hugging Face names.
    """

    def __init__(self, config: dict[str, Any], weights: dict[str, Any]) -> None:
        self._ov: Any = importlib.import_module("openvino")
        self._np: Any = importlib.import_module("numpy")
        self._op: Any = importlib.import_module("openvino.opset13")
        stateful: Any = importlib.import_module("openvino.op.util")
        self._variable, self._variable_info = stateful.Variable, stateful.VariableInfo
        self._c, self._w = config, weights
        self._dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        for key in ("attention_bias", "mlp_bias", "tie_word_embeddings", "rope_scaling"):
            if config.get(key):
                raise ValueError(f"{key} = {config[key]!r} is not of this graph")
        self._assigns: list[Any] = []

    def model(self) -> Any:
        """The whole model, float32 throughout."""
        op, ov = self._op, self._ov
        ids = self._input("input_ids", [-1, -1], ov.Type.i64)
        mask = self._input("attention_mask", [-1, -1], ov.Type.i64)
        positions = self._input("position_ids", [-1, -1], ov.Type.i64)
        beams = self._input("beam_idx", [-1], ov.Type.i32)
        batch = op.gather(op.shape_of(ids, "i64"), self._ints([0]), self._ints(0))
        turn = self._turn(positions)
        hidden = self._hidden(positions, mask)

        x = op.gather(self._floats(self._w["model.embed_tokens.weight"]), ids, self._ints(0))
        for i in range(self._c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = self._norm(x, p + "input_layernorm")
            x = op.add(x, self._attend(h, i, turn, hidden, beams, batch))
            h = self._norm(x, p + "post_attention_layernorm")
            gate = op.swish(self._times(h, p + "mlp.gate_proj"))
            up = self._times(h, p + "mlp.up_proj")
            x = op.add(x, self._times(op.multiply(gate, up), p + "mlp.down_proj"))
        logits = self._times(self._norm(x, "model.norm"), "lm_head")
        logits.output(0).set_names({"logits"})
        return ov.Model(
            results=[op.result(logits)],
            sinks=self._assigns,
            parameters=[ids, mask, positions, beams],
            name="probe",
        )

    # --- attention --------------------------------------------------------------------------------

    def _attend(self, h: Any, i: int, turn: Any, hidden: Any, beams: Any, batch: Any) -> Any:
        op, c, p = self._op, self._c, f"model.layers.{i}.self_attn."
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        q = turn(self._heads(self._times(h, p + "q_proj"), heads))
        k = turn(self._heads(self._times(h, p + "k_proj"), kv_heads))
        v = self._heads(self._times(h, p + "v_proj"), kv_heads)
        k = self._repeat(self._remember(k, f"past_key_values.{i}.key", beams, batch), heads)
        v = self._repeat(self._remember(v, f"past_key_values.{i}.value", beams, batch), heads)
        out = op.scaled_dot_product_attention(q, k, v, hidden, causal=False)  # [B, H, L, D]
        out = op.transpose(out, self._ints([0, 2, 1, 3]))
        return self._times(op.reshape(out, self._ints([0, 0, -1]), True), p + "o_proj")

    def _heads(self, x: Any, heads: int) -> Any:
        x = self._op.reshape(x, self._ints([0, 0, heads, self._dim]), True)
        return self._op.transpose(x, self._ints([0, 2, 1, 3]))  # [B, H, L, D]

    def _remember(self, new: Any, name: str, beams: Any, batch: Any) -> Any:
        """What was kept under `name`, and `new` behind it; the whole is kept from now on."""
        op, kv_heads = self._op, self._c["num_key_value_heads"]
        info = self._variable_info()
        info.data_shape = self._ov.PartialShape([-1, kv_heads, -1, self._dim])
        info.data_type = self._ov.Type.f32
        info.variable_id = f"{name}.{name.replace('past_key_values', 'present')}"
        variable = self._variable(info)
        shape = op.concat([batch, self._ints([kv_heads, 0, self._dim])], 0)
        nothing = op.broadcast(self._floats(0.0), shape)
        past = op.gather(op.read_value(nothing, variable), beams, self._ints(0))
        whole = op.concat([past, new], 2)  # [B, KV, S, D]
        self._assigns.append(op.assign(whole, variable))
        return whole

    def _repeat(self, x: Any, heads: int) -> Any:
        """Each key head once for every query head that uses it. [B, KV, S, D] -> [B, H, S, D]"""
        op, kv_heads = self._op, self._c["num_key_value_heads"]
        if heads == kv_heads:
            return x
        group = heads // kv_heads
        wide = op.unsqueeze(x, self._ints(2))  # [B, KV, 1, S, D]
        size = op.shape_of(x, "i64")
        size = op.concat(
            [
                op.gather(size, self._ints([0, 1]), self._ints(0)),
                self._ints([group]),
                op.gather(size, self._ints([2, 3]), self._ints(0)),
            ],
            0,
        )
        wide = op.broadcast(wide, size, "bidirectional")
        return op.reshape(wide, self._ints([0, heads, -1, self._dim]), True)

    def _turn(self, positions: Any) -> Any:
        """The rotary embedding of these positions, halves convention. [B, H, L, D] -> the same"""
        op, np, dim = self._op, self._np, self._dim
        inverse = float(self._c["rope_theta"]) ** (-np.arange(0, dim, 2) / dim)
        at = op.unsqueeze(op.convert(positions, "f32"), self._ints(2))  # [B, L, 1]
        angle = op.multiply(at, self._floats(inverse[None, None]))  # [B, L, D / 2]
        angle = op.unsqueeze(op.concat([angle, angle], 2), self._ints(1))  # [B, 1, L, D]
        cos, sin, half = op.cos(angle), op.sin(angle), dim // 2

        def turned(x: Any) -> Any:
            first = op.slice(
                x, self._ints([0]), self._ints([half]), self._ints([1]), self._ints([3])
            )
            last = op.slice(
                x, self._ints([half]), self._ints([dim]), self._ints([1]), self._ints([3])
            )
            swapped = op.concat([op.negative(last), first], 3)
            return op.add(op.multiply(x, cos), op.multiply(swapped, sin))

        return turned

    def _hidden(self, positions: Any, mask: Any) -> Any:
        """Minus infinity wherever a key lies ahead of the query. [B, 1, L, S]

        The engine's paged attention does this by itself and drops it; the model is to be right
        without it too.
        """
        op = self._op
        seen = op.gather(op.shape_of(mask, "i64"), self._ints(1), self._ints(0))  # S
        keys = op.range(self._ints(0), seen, self._ints(1), "i64")
        keys = op.unsqueeze(keys, self._ints([0, 1, 2]))  # [1, 1, 1, S]
        queries = op.unsqueeze(positions, self._ints([1, 3]))  # [B, 1, L, 1]
        ahead = op.greater(keys, queries)
        return op.select(ahead, self._floats(float("-inf")), self._floats(0.0))

    # --- small things -----------------------------------------------------------------------------

    def _norm(self, x: Any, name: str) -> Any:
        op = self._op
        square = op.reduce_mean(op.power(x, self._floats(2.0)), self._ints([-1]), True)
        root = op.sqrt(op.add(square, self._floats(self._c["rms_norm_eps"])))
        return op.multiply(self._floats(self._w[name + ".weight"]), op.divide(x, root))

    def _times(self, x: Any, name: str) -> Any:
        return self._op.matmul(x, self._floats(self._w[name + ".weight"]), False, True)

    def _input(self, name: str, shape: list[int], kind: Any) -> Any:
        parameter = self._op.parameter(shape, kind, name=name)
        parameter.output(0).set_names({name})
        return parameter

    def _ints(self, value: Any) -> Any:
        return self._op.constant(self._np.array(value, dtype=self._np.int64))

    def _floats(self, value: Any) -> Any:
        return self._op.constant(self._np.array(value, dtype=self._np.float32))
