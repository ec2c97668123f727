"""Makes gguf-blocks.safetensors: random blocks of every GGUF type that is read, and their values.

Run with the packages gguf 0.17.1 and safetensors installed: python make_gguf_blocks.py
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize
from safetensors.numpy import save_file

BLOCKS = 3
# Where a block keeps its 16-bit floats; they must be finite.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}

rng, tensors = np.random.default_rng(7), {}
for name, places in HALVES.items():
    _, size = GGML_QUANT_SIZES[T[name]]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in places:
        halves = rng.normal(0, 0.1, BLOCKS).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(BLOCKS, 2)
    tensors[f"{name}.bytes"] = blocks.reshape(-1)
    tensors[f"{name}.values"] = dequantize(blocks, T[name]).reshape(-1).astype(np.float32)
save_file(tensors, "gguf-blocks.safetensors")
