"""Whether ``conformance bench`` gives the numbers that a bare script gives.

``PYTHONPATH=tests python -P -m benchmarks.confirm_bench [ENGINE...]`` makes a pair of random
Llamas, a target of 23 million weights and a draft of .7 million, asks the same prompts by the bare
loops ``bare/pair_NAME.py`` and by bench, the bare loop before and after, and prints both side by
side.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from conformance import launch
from conformance.bench.asking import WorkerAsker
from conformance.bench.intervals import Measured, median
from conformance.bench.plan import Settings
from conformance.bench.run import run_bench
from conformance.decoding import Decoding
from conformance.reports.bench_model import CellModel

BARE = Path(__file__).parent / "bare"
ENGINES = ("transformers", "xllamacpp")
VOCAB, CONTEXT = 2048, 1024
PROMPT, TOKENS, REPEATS, WARMUP = 64, 64, 30, 3
SPREAD = 0.5  # standard deviation of a logit: two such laws share some 70 % of their mass


@dataclass(frozen=True, slots=True)
class Size:
    """How large a random Llama is."""

    hidden: int
    layers: int
    heads: int


TARGET, DRAFT = Size(512, 8, 8), Size(128, 1, 4)


def write_llama(folder: Path, size: Size, rng: np.random.Generator) -> None:
    """A random Llama in the Hugging Face layout, in float32."""
    h, f = size.hidden, 2 * size.hidden
    shapes = {
        "self_attn.q_proj": (h, h),
        "self_attn.k_proj": (h, h),
        "self_attn.v_proj": (h, h),
        "self_attn.o_proj": (h, h),
        "mlp.gate_proj": (f, h),
        "mlp.up_proj": (f, h),
        "mlp.down_proj": (h, f),
    }

    def normal(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        drawn = rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return drawn.astype(np.float32)

    weights = {"model.embed_tokens.weight": normal(VOCAB, h, np.sqrt(h))}
    for i in range(size.layers):
        p = f"model.layers.{i}."
        weights |= {f"{p}{name}.weight": normal(*shape) for name, shape in shapes.items()}
        weights |= {
            f"{p}{name}.weight": np.ones(h, np.float32)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    weights["model.norm.weight"] = np.ones(h, np.float32)
    weights["lm_head.weight"] = normal(VOCAB, h, SPREAD)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": h,
        "intermediate_size": f,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": h // size.heads,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def bare(engine: str, folder: Path, prompts: Path) -> list[tuple[float, float]]:
    """Seconds with speculation and without, of every pair."""
    python = launch.environment(engine) or sys.executable
    script = BARE / f"pair_{engine}.py"
    words = [python, "-P", str(script), str(folder), str(prompts), str(TOKENS), str(WARMUP)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    pairs: list[tuple[float, float]] = json.loads(done.stdout.strip().splitlines()[-1])["pairs"]
    return pairs


def ours(engine: str, folder: Path, prompts: Path) -> CellModel:
    """What bench says of the same."""
    settings = Settings(
        (engine,),
        (Decoding(),),
        batches=(1,),
        new_tokens=TOKENS,
        prompts=prompts,
        repeats=REPEATS,
        warmup=WARMUP,
        seconds=600.0,
        models=(folder / "target", folder / "draft"),
        memory=False,
    )
    report = run_bench(settings, lambda name: WorkerAsker(name, 300.0), lambda _: None)
    return report.cells[0]


def rows(
    engine: str, folder: Path, prompts: Path
) -> list[tuple[str, Measured, Measured, Measured]]:
    """Who says it: seconds a token with speculation, without, and the ratio."""
    before = bare(engine, folder, prompts)
    cell = ours(engine, folder, prompts)
    after = bare(engine, folder, prompts)
    assert cell.status == "measured", cell.why
    seconds = {arm.arm: arm.seconds for arm in cell.arms}
    mine = list(zip(seconds["speculative"], seconds["control"], strict=True))
    assert cell.cost is not None
    print(cell.sentence, cell.cost.sentence, f"others used {cell.others} processors", sep="\n")
    if cell.acceptance is not None:
        print(f"accepted {cell.acceptance.rate}, at most {cell.acceptance.most}")
    said = (("bare, before", before), ("bench", mine), ("bare, after", after))
    return [(who, *_measured(pairs)) for who, pairs in said]


def _measured(pairs: Sequence[tuple[float, float]]) -> tuple[Measured, Measured, Measured]:
    found = (
        median([s / TOKENS for s, _ in pairs]),
        median([c / TOKENS for _, c in pairs]),
        median([c / s for s, c in pairs]),
    )
    spec, control, ratio = found
    assert spec is not None
    assert control is not None
    assert ratio is not None
    return spec, control, ratio


def main(engines: Sequence[str]) -> None:
    """Compare, engine by engine."""
    rng = np.random.default_rng(20_261)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_llama(folder / "target", TARGET, rng)
        write_llama(folder / "draft", DRAFT, rng)
        prompts = folder / "prompts.jsonl"
        drawn = rng.integers(VOCAB, size=(REPEATS + WARMUP, PROMPT)).tolist()
        prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in drawn))
        for engine in engines:
            print(f"{engine}: ms a token with speculation, without; ratio (95 %)")
            for who, *numbers in rows(engine, folder, prompts):
                spec, control, ratio = (
                    f"{m.estimate * k:.4g} ({(m.low or 0) * k:.4g} to {(m.high or 0) * k:.4g})"
                    for m, k in zip(numbers, (1e3, 1e3, 1.0), strict=True)
                )
                print(f"  {who:14} {spec:32} {control:32} {ratio}")


if __name__ == "__main__":
    main(sys.argv[1:] or ENGINES)
