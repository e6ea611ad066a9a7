"""OpenVINO GenAI by itself: the loop that the adapter is measured against.

Run by the python of the engine's own environment, with nothing of this package in the loop:
``python openvino-genai.py PROBE --requests 2048 --tokens 8``. Prints one line of JSON. Only loading
takes something from here: the probe is converted by ``adapters/openvino_probe.py``, run as a file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

CONVERTER = Path(__file__).resolve().parents[3] / "adapters" / "openvino_probe.py"


def main() -> None:
    """Time `requests` requests in batches, after one batch that is not counted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("probe", type=Path)
    parser.add_argument("--requests", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=4)
    parser.add_argument("--proposals", type=int, default=5)
    parser.add_argument("--method", choices=("draft-model", "prompt-lookup"), default="draft-model")
    args = parser.parse_args()

    spec = importlib.util.spec_from_file_location("openvino_probe", CONVERTER)
    probe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probe)
    config = json.loads((args.probe / "target" / "config.json").read_text())
    words, context = config["vocab_size"], config["max_position_embeddings"]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_seqs = args.batch
    scheduler.max_num_batched_tokens = args.batch * context
    scheduler.num_kv_blocks = args.batch * (context // 16 + 1)
    common = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "INFERENCE_NUM_THREADS": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        target = probe.convert(args.probe / "target", Path(folder) / "target")
        if args.method == "draft-model":
            draft = probe.convert(args.probe / "draft", Path(folder) / "draft")
            extra = {"draft_model": openvino_genai.draft_model(draft, "CPU", **common)}
        else:
            extra = {"prompt_lookup": True}
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            target, scheduler, "CPU", {**common, **extra}
        )

    rng = np.random.default_rng(0)
    seconds = tokens = 0
    for batch in range(-1, args.requests // args.batch):
        ids = rng.integers(words, size=(args.batch, args.prompt)).tolist()
        begun = time.perf_counter()
        prompts = [openvino.Tensor([row]) for row in ids]
        configs = []
        for i in range(args.batch):
            one = openvino_genai.GenerationConfig()
            one.max_new_tokens, one.ignore_eos, one.do_sample = args.tokens, True, True
            one.eos_token_id, one.stop_token_ids = words, {words}
            one.rng_seed = (batch + 1) * args.batch + i
            one.num_assistant_tokens = args.proposals
            if args.method == "prompt-lookup":
                one.max_ngram_size = 2
            configs.append(one)
        results = pipeline.generate(prompts, configs)
        if batch >= 0:  # the one before is for warming up
            seconds += time.perf_counter() - begun
            tokens += sum(len(r.m_generation_ids[0]) for r in results)
    print(
        json.dumps(
            {
                "engine": "openvino-genai",
                "requests": args.requests // args.batch * args.batch,
                "tokens": tokens,
                "seconds": round(seconds, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
