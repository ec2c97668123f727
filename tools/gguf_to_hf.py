"""A Llama-architecture GGUF with byte-level BPE as a Hugging Face folder.

    python3 gguf_to_hf.py FILE.gguf OUT_DIR [f32|bf16]

float32 (the default) is for golden data, bfloat16 for training. Needs the gguf package.
"""
import json
import os
import struct
import sys

import numpy as np
from gguf import GGUFReader, dequantize

NAMES = {
    'attn_norm': 'input_layernorm', 'attn_q': 'self_attn.q_proj', 'attn_k': 'self_attn.k_proj',
    'attn_v': 'self_attn.v_proj', 'attn_output': 'self_attn.o_proj', 'ffn_norm': 'post_attention_layernorm',
    'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj', 'ffn_down': 'mlp.down_proj',
}
TOP = {'token_embd.weight': 'model.embed_tokens.weight', 'output_norm.weight': 'model.norm.weight', 'output.weight': 'lm_head.weight'}


def config(field, dtype, tied):
    def llama(key):
        return field('llama.' + key)
    heads = llama('attention.head_count')
    return dict(
        architectures=['LlamaForCausalLM'], model_type='llama', hidden_size=llama('embedding_length'),
        intermediate_size=llama('feed_forward_length'), num_hidden_layers=llama('block_count'),
        num_attention_heads=heads, num_key_value_heads=llama('attention.head_count_kv'),
        rms_norm_eps=llama('attention.layer_norm_rms_epsilon'), vocab_size=llama('vocab_size'),
        rope_theta=llama('rope.freq_base'), max_position_embeddings=llama('context_length'),
        tie_word_embeddings=tied, hidden_act='silu', bos_token_id=field('tokenizer.ggml.bos_token_id'),
        eos_token_id=field('tokenizer.ggml.eos_token_id'), torch_dtype=dtype, attention_bias=False, mlp_bias=False,
        head_dim=llama('embedding_length') // heads)


def unpermute(w, heads):
    """The file stores q and k rows for interleaved rotary embedding; the checkpoint has the two halves one after the other."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tensors(reader, heads, kv_heads):
    for tensor in reader.tensors:
        w = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        w = w.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        if tensor.name in TOP:
            yield TOP[tensor.name], w
            continue
        _, layer, rest = tensor.name.split('.', 2)
        base = rest[:-len('.weight')]
        if base in ('attn_q', 'attn_k'):
            w = unpermute(w, heads if base == 'attn_q' else kv_heads)
        yield f'model.layers.{layer}.{NAMES[base]}.weight', w


def to_bf16(w):
    bits = w.view(np.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, weights, dtype):
    header, blobs, offset = {}, [], 0
    for name, w in weights.items():
        blob = (to_bf16(w) if dtype == 'bf16' else w).tobytes()
        header[name] = {'dtype': dtype.upper(), 'shape': list(w.shape), 'data_offsets': [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    header['__metadata__'] = {'format': 'pt'}
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for blob in blobs:
            file.write(blob)


def tokenizer(field):
    tokens, merges = field('tokenizer.ggml.tokens'), field('tokenizer.ggml.merges')
    types = field('tokenizer.ggml.token_type')
    added = [
        dict(id=i, content=token, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        for i, (token, kind) in enumerate(zip(tokens, types)) if kind in (3, 4)]
    digits = dict(type='Digits', individual_digits=True)
    split = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(
        version='1.0', truncation=None, padding=None, added_tokens=added, normalizer=None,
        pre_tokenizer=dict(type='Sequence', pretokenizers=[digits, split]), post_processor=None,
        decoder=dict(type='ByteLevel', add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(
            type='BPE', dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
            fuse_unk=False, byte_fallback=False, vocab={token: i for i, token in enumerate(tokens)},
            merges=[merge.split(' ') for merge in merges]))


def main(source, out, dtype='f32'):
    os.makedirs(out, exist_ok=True)
    reader = GGUFReader(source)

    def field(key):
        return reader.fields[key].contents()

    heads, kv_heads = field('llama.attention.head_count'), field('llama.attention.head_count_kv')
    weights = dict(tensors(reader, heads, kv_heads))
    write_safetensors(f'{out}/model.safetensors', weights, dtype)
    settings = config(field, {'f32': 'float32', 'bf16': 'bfloat16'}[dtype], 'lm_head.weight' not in weights)
    tokens = field('tokenizer.ggml.tokens')
    files = {
        'config.json': settings, 'tokenizer.json': tokenizer(field),
        'tokenizer_config.json': dict(
            tokenizer_class='PreTrainedTokenizerFast', chat_template=field('tokenizer.chat_template'),
            eos_token=tokens[settings['eos_token_id']], bos_token=tokens[settings['bos_token_id']],
            model_max_length=settings['max_position_embeddings'])}
    for name, content in files.items():
        with open(f'{out}/{name}', 'w') as file:
            json.dump(content, file, ensure_ascii=False, indent=1 if name == 'config.json' else None)
    print(len(weights), 'tensors')


if __name__ == '__main__':
    main(*sys.argv[1:])
