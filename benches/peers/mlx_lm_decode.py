"""Decodes one prompt greedily with mlx-lm in float32 and prints one JSON line.

Usage: mlx_lm_decode.py HF_FOLDER TOKENS PROMPT_IDS   (PROMPT_IDS: comma-separated)
Run by compare.py, which puts the same OpenBLAS in front of the library that MLX bundles.
"""

import json
import sys
import time

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm import load
from mlx_lm.generate import generate_step

mx.set_default_device(mx.cpu)
folder, tokens, prompt = sys.argv[1], int(sys.argv[2]), [int(x) for x in sys.argv[3].split(",")]
model, _ = load(folder)
model.update(tree_map(lambda p: p.astype(mx.float32), model.parameters()))
mx.eval(model.parameters())

ids, first = [], None
for token, _ in generate_step(mx.array(prompt), model, max_tokens=tokens):
    ids.append(int(token))
    first = first or time.perf_counter()
seconds = time.perf_counter() - first
# The first token belongs to prefill, so its successors are what the clock saw.
print(json.dumps({"ids": ids, "tokens_per_second": (len(ids) - 1) / seconds}))
