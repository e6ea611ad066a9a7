"""Start llama.cpp's own server on a probe, and print its address: PROBE KIND [KEY].

KIND is exact, made-up, ngram or control. Run by the Python of the xllamacpp engine; ends with its
standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import xllamacpp as x

from conformance.adapters.gguf_probe import gguf_file

probe, kind, *key = sys.argv[1:]
p = x.CommonParams()
p.model.path = str(gguf_file(Path(probe) / "target"))
p.hostnames = ["127.0.0.1"]
p.n_parallel = p.n_threads_http = 8
p.n_ctx = 512 * p.n_parallel
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
p.verbosity = -1
p.cache_ram_mib = 0
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
if key:
    p.api_keys = key
if kind == "ngram":
    p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    p.speculative.ngram_simple.size_n, p.speculative.ngram_simple.size_m = 1, 4
elif kind != "control":
    p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    draft = p.speculative.draft
    draft.mparams.path = str(gguf_file(Path(probe) / "draft"))
    draft.probabilistic, draft.n_max = True, 4
    draft.cache_type_k = draft.cache_type_v = x.ggml_type.GGML_TYPE_F32
if kind == "made-up":  # accepts a proposal with this probability, whatever it is
    p.speculative.synth_rates = [0.9, 0.8, 0.7, 0.6]
server = x.Server(p)
print(server.listening_address, flush=True)
sys.stdin.read()
