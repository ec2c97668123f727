"""Tiny random models in the MLX/Hugging Face folder layout, with the logits that mlx-lm computes (float32, CPU).

    python3 make_golden.py OUT_DIR [NAME...]

Each folder gets config.json, model.safetensors and expected.safetensors: `tokens` [40], `logits` [40,160] and
`greedy_after_12` [24], the greedy ids after the first 12 tokens. Needs mlx[cpu] and mlx-lm.
"""
import importlib
import json
import os
import sys

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models.cache import make_prompt_cache

VOCABULARY = 160
BASE = dict(
    hidden_size=64, num_hidden_layers=4, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
    rms_norm_eps=1e-6, vocab_size=VOCABULARY, max_position_embeddings=512, head_dim=16, rope_theta=10000.0)


def llama(**changes):
    config = dict(BASE, model_type='llama', architectures=['LlamaForCausalLM'], tie_word_embeddings=True)
    return 'llama', dict(config, **changes)


ROPE3 = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)

# Name: (module of mlx_lm.models with the configuration, quantization).
CASES = {
    'llama': (llama(), None),
    'llama-rope3': (llama(tie_word_embeddings=False, attention_bias=True, rope_theta=500000.0, rope_scaling=ROPE3), None),
    'llama-q4': (llama(), dict(group_size=32, bits=4)),
}


def initial(path, x):
    """The value of a parameter; norms differ from one, so that a forgotten norm shows."""
    if not mx.issubdtype(x.dtype, mx.floating):
        return x
    if 'norm' in path and path.endswith('weight'):
        return mx.random.normal(x.shape) * 0.1 + 1.0
    return mx.random.normal(x.shape) * 0.12


def build(name, module, config, quantization):
    models = importlib.import_module('mlx_lm.models.' + module)
    args = models.ModelArgs.from_dict(config)
    mx.random.seed(sum(map(ord, name)))
    model = models.Model(args)
    model.update(tree_map_with_path(initial, model.parameters()))
    if quantization:
        nn.quantize(model, **quantization)
    mx.eval(model.parameters())
    return model


def greedy(model, ids, count):
    cache, out = make_prompt_cache(model), []
    logits = model(mx.array([ids]), cache=cache)[:, -1]
    for _ in range(count):
        top = mx.argmax(logits, -1)
        out.append(top.item())
        logits = model(top[:, None], cache=cache)[:, -1]
    return out


def chunked(model, ids):
    cache, outs, begin = make_prompt_cache(model), [], 0
    for end in (19, 20, 25, 26, 40):
        outs.append(model(mx.array([ids[begin:end]]), cache=cache)[0])
        begin = end
    return mx.concatenate(outs, 0)


def write(folder, name, module, config, quantization):
    model = build(name, module, config, quantization)
    ids = [(i * 37 + 11) % VOCABULARY for i in range(40)]
    logits = model(mx.array([ids]), cache=make_prompt_cache(model))[0]
    difference = mx.abs(logits - chunked(model, ids)).max().item()
    after = greedy(model, ids[:12], 24)
    os.makedirs(folder, exist_ok=True)
    with open(folder + '/config.json', 'w') as file:
        json.dump(dict(config, quantization=quantization) if quantization else config, file, indent=1)
    mx.save_safetensors(folder + '/model.safetensors', dict(tree_flatten(model.parameters())), metadata={'format': 'mlx'})
    mx.save_safetensors(folder + '/expected.safetensors', dict(
        tokens=mx.array(ids, mx.int32), logits=logits.astype(mx.float32), greedy_after_12=mx.array(after, mx.int32)))
    print(f'{name}: chunks differ from one forward by {difference:.2e}')


if __name__ == '__main__':
    mx.set_default_device(mx.cpu)
    for name in sys.argv[2:] or CASES:
        (module, config), quantization = CASES[name]
        write(f'{sys.argv[1]}/{name}', name, module, config, quantization)
