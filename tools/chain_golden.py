"""Golden hidden states of both draft heads, each step fed with the true next tokens.

    python3 chain_golden.py HF_DIR HEADS_DIR TOKENS.safetensors OUT_DIR

HF_DIR is the float32 checkpoint that gguf_to_hf.py makes; TOKENS is any file with `tokens`, for instance an older
golden file. Needs mlx[cpu] and mlx-lm.
"""
import sys

import mlx.core as mx

from reference_speculation import Target, heads

ANCHORS, STEPS = [24, 50, 80], 5

if __name__ == '__main__':
    mx.set_default_device(mx.cpu)
    hf_dir, head_dir, tokens, out_dir = sys.argv[1:5]
    target, ids = Target(hf_dir), mx.load(tokens)['tokens'].tolist()
    for name, head in heads(target, head_dir).items():
        outs, tops = [], []
        for slot in ANCHORS:
            cache = target.cache()
            hidden = target.hidden(ids[:slot + 1], cache)
            chain = list(head.chain(ids, hidden, slot, cache, STEPS))
            outs.append(mx.stack(chain))
            tops.append(mx.array([head.top(out) for out in chain], mx.int32))
        hidden = target.hidden(ids, target.cache())
        mx.save_safetensors(f'{out_dir}/golden-{name}.safetensors', dict(
            tokens=mx.array(ids, mx.int32), anchors=mx.array(ANCHORS, mx.int32), target_hidden=hidden[0],
            target_top_id=target.top(hidden[0]).astype(mx.int32), chain_hidden=mx.stack(outs), chain_top_id=mx.stack(tops)))
