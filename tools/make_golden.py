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

WINDOWS = ['sliding_attention', 'sliding_attention', 'full_attention'] * 2
GEMMA4_ROPES = dict(
    full_attention=dict(rope_theta=1000000.0, rope_type='proportional', partial_rotary_factor=0.25),
    sliding_attention=dict(rope_theta=10000.0, rope_type='default'))


def qwen3():
    return 'qwen3', dict(BASE, model_type='qwen3', architectures=['Qwen3ForCausalLM'], tie_word_embeddings=True)


def gemma3():
    return 'gemma3_text', dict(
        BASE, model_type='gemma3_text', architectures=['Gemma3ForCausalLM'], num_hidden_layers=6, sliding_window=8,
        sliding_window_pattern=3, query_pre_attn_scalar=16, rope_local_base_freq=10000.0, rope_theta=1000000.0)


def gemma4():
    return 'gemma4_text', dict(
        BASE, model_type='gemma4_text', architectures=['Gemma4ForCausalLM'], num_hidden_layers=6, sliding_window=8,
        layer_types=WINDOWS, global_head_dim=32, num_global_key_value_heads=1, num_kv_shared_layers=0,
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCABULARY, final_logit_softcapping=30.0,
        use_double_wide_mlp=False, attention_k_eq_v=False, enable_moe_block=False, tie_word_embeddings=True,
        rope_parameters=GEMMA4_ROPES)


def qwen3_5():
    text = dict(
        BASE, model_type='qwen3_5_text', tie_word_embeddings=True,
        layer_types=['linear_attention'] * 3 + ['full_attention'], full_attention_interval=4,
        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        linear_conv_kernel_dim=4, attn_output_gate=True,
        rope_parameters=dict(rope_theta=10000.0, partial_rotary_factor=0.5, rope_type='default'), partial_rotary_factor=0.5)
    return 'qwen3_5', dict(model_type='qwen3_5', architectures=['Qwen3_5ForConditionalGeneration'], text_config=text)


# Name: (module of mlx_lm.models with the configuration, quantization).
CASES = {
    'llama': (llama(), None),
    'llama-rope3': (llama(tie_word_embeddings=False, attention_bias=True, rope_theta=500000.0, rope_scaling=ROPE3), None),
    'llama-q4': (llama(), dict(group_size=32, bits=4)),
    'qwen3': (qwen3(), None),
    'gemma3': (gemma3(), None),
    'gemma4': (gemma4(), None),
    'qwen3_5': (qwen3_5(), None),
}


def initial(path, x, norms):
    """The value of a parameter; norms differ from the neutral one, so that a forgotten norm shows."""
    if not mx.issubdtype(x.dtype, mx.floating):
        return x
    if 'norm' in path and path.endswith('weight'):
        return mx.random.normal(x.shape) * 0.1 + norms
    if path.endswith('A_log') or path.endswith('dt_bias'):
        return mx.random.uniform(0.1, 1.0, x.shape)
    if x.ndim == 1 and 'scalar' in path:
        return mx.ones(x.shape)
    return mx.random.normal(x.shape) * 0.12


def build(name, module, config, quantization):
    models = importlib.import_module('mlx_lm.models.' + module)
    args = models.ModelArgs.from_dict(config)
    mx.random.seed(sum(map(ord, name)))
    model = models.Model(args)
    # Gemma 3 stores norms as w - 1.
    norms = 0.0 if 'gemma3' in module else 1.0
    model.update(tree_map_with_path(lambda path, x: initial(path, x, norms), model.parameters()))
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
