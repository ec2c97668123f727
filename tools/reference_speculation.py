"""Greedy speculative decoding of SmolLM2 with both draft heads, written apart from the Rust code.

    python3 reference_speculation.py HF_DIR HEADS_DIR OUT.json

HF_DIR is the float32 checkpoint that gguf_to_hf.py makes. Everything runs in float32 on the CPU and draws nothing, so
ids and rounds can be compared exactly. Needs mlx[cpu] and mlx-lm. Notation: t[i] is the token at slot i, h[i] the
target's hidden state there after its final norm, E its embedding matrix.
"""
import json
import sys

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 576, 30, 9, 3, 64
EPSILON, ROPE_BASE = 1e-5, 100000.0
DEPTH, BUDGET, END_TOKENS = 4, 128, {2, 0}
PROMPTS = [
    'Explain how a bicycle stays upright.',
    'Write a Python function that returns the n-th Fibonacci number.',
    'List five healthy breakfast ideas.',
    'What is the capital of France, and why is it famous?',
]


def rms(x, weight):
    return mx.fast.rms_norm(x, weight, EPSILON)


def split(x, heads):
    return x.reshape(1, -1, heads, HEAD_SIZE).transpose(0, 2, 1, 3)


def rope(x, offset):
    return mx.fast.rope(x, HEAD_SIZE, traditional=False, base=ROPE_BASE, scale=1.0, offset=offset)


def attention(q, k, v, mask=None):
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=HEAD_SIZE ** -0.5, mask=mask)
    return out.transpose(0, 2, 1, 3).reshape(1, q.shape[2], -1)


def mlp(x, w, prefix):
    gate = x @ w[prefix + 'mlp.gate_proj.weight'].T
    return (gate * mx.sigmoid(gate) * (x @ w[prefix + 'mlp.up_proj.weight'].T)) @ w[prefix + 'mlp.down_proj.weight'].T


class Target:
    """The language model in float32."""

    def __init__(self, folder):
        self.model, self.tokenizer = load(folder)
        self.model.update(tree_map(lambda p: p.astype(mx.float32), self.model.parameters()))
        mx.eval(self.model.parameters())
        self.embeddings = self.model.model.embed_tokens.weight

    def cache(self):
        return make_prompt_cache(self.model)

    def hidden(self, ids, cache):
        return self.model.model(mx.array([ids]), cache=cache)

    def top(self, hidden):
        return mx.argmax(hidden @ self.embeddings.T, -1)


class Head:
    """What both kinds share: weights, and draft logits over the rows of E that belong to the draft vocabulary."""

    def __init__(self, target, path):
        stored = mx.load(path)
        self.w = {k: v.astype(mx.float32) if v.dtype == mx.bfloat16 else v for k, v in stored.items()}
        self.embeddings, self.ids = target.embeddings, self.w['draft_token_ids']
        self.rows = self.embeddings[self.ids]
        self.start()

    def top(self, out):
        return self.ids[mx.argmax(out @ self.rows.T)].item()


class Single(Head):
    """No cache of its own: every step sits at the last committed slot and reads the target's last layers."""

    def start(self):
        self.hid, self.front = None, 0

    def committed(self, ids, hidden, slot):
        self.front, self.hid = slot + len(ids), hidden[:, -1:]

    def step(self, embedding, hid, cache, anchor):
        w = self.w
        x = mx.concatenate([embedding, hid], -1) @ w['pre_projection.weight'].T
        for i in range(2):
            p, c = f'layers.{i}.', cache[LAYERS - 2 + i]
            y = rms(x, w[p + 'input_layernorm.weight'])
            q = split(y @ w[p + 'self_attn.q_proj.weight'].T, HEADS)
            q = rope(rms(q, w[p + 'self_attn.q_norm.weight']), anchor)
            o = attention(q, c.keys[..., :c.offset, :], c.values[..., :c.offset, :])
            x = x + rms(o @ w[p + 'self_attn.o_proj.weight'].T, w[p + 'post_attention_layernorm.weight'])
            y = rms(x, w[p + 'pre_feedforward_layernorm.weight'])
            x = x + rms(mlp(y, w, p), w[p + 'post_feedforward_layernorm.weight'])
        return rms(x, w['norm.weight']) @ w['post_projection.weight'].T

    def propose(self, current, count, cache):
        drafts, hid, token = [], self.hid, current
        for _ in range(count):
            hid = self.step(self.embeddings[mx.array([[token]])], hid, cache, self.front - 1)
            token = self.top(hid[0, 0])
            drafts.append(token)
        return drafts

    def chain(self, ids, hidden, slot, cache, steps):
        """The outs of each step when it is fed with the true next tokens."""
        self.start()
        self.committed(ids[:slot + 1], hidden, 0)
        hid = hidden[:, -1:]
        for j in range(1, steps + 1):
            hid = self.step(self.embeddings[mx.array([[ids[slot + j]]])], hid, cache, slot)
            yield hid[0, 0]


class Seq(Head):
    """A cache of its own. Slot s pairs the token t[s+1] with h[s], so a pair is complete one token after its slot."""

    def start(self):
        self.k = self.v = self.tail = self.held = None
        self.done = self.front = 0

    def forward(self, ids, hid, slot):
        w, p = self.w, 'layers.0.'
        embedding = rms(self.embeddings[mx.array([ids])], w['pre_fc_norm_embedding.weight'])
        x = mx.concatenate([embedding, rms(hid, w['pre_fc_norm_hidden.weight'])], -1) @ w['fc.weight'].T
        y = rms(x, w[p + 'input_layernorm.weight'])
        q = rope(split(y @ w[p + 'self_attn.q_proj.weight'].T, HEADS), slot)
        k = rope(split(y @ w[p + 'self_attn.k_proj.weight'].T, KV_HEADS), slot)
        v = split(y @ w[p + 'self_attn.v_proj.weight'].T, KV_HEADS)
        self.k = k if self.k is None else mx.concatenate([self.k[:, :, :slot], k], 2)
        self.v = v if self.v is None else mx.concatenate([self.v[:, :, :slot], v], 2)
        x = x + attention(q, self.k, self.v, 'causal') @ w[p + 'self_attn.o_proj.weight'].T
        x = x + mlp(rms(x, w[p + 'post_attention_layernorm.weight']), w, p)
        return rms(x, w['norm.weight'])

    def committed(self, ids, hidden, slot):
        start = self.done - slot + 1
        if start < len(ids):
            hid = mx.concatenate([self.tail, hidden[:, :-1]], 1) if start == 0 else hidden[:, start - 1:-1]
            rest = ids[max(start, 0):]
            if rest:
                self.held = self.forward(rest, hid, self.done)[:, -1:]
                self.done += len(rest)
        self.front, self.tail = slot + len(ids), hidden[:, -1:]

    def propose(self, current, count, cache):
        if self.front - 1 == self.done:
            self.held = self.forward([current], self.tail, self.done)[:, -1:]
            self.done += 1
        drafts, hid = [], self.held
        for i in range(count):
            if i:
                hid = self.forward([drafts[-1]], hid, self.front - 1 + i)
            drafts.append(self.top(hid[0, 0]))
        return drafts

    def chain(self, ids, hidden, slot, cache, steps):
        """The outs of each step when it is fed with the true next tokens."""
        self.start()
        self.committed(ids[:slot + 1], hidden, 0)
        for j in range(1, steps + 1):
            if j == 1:
                hid = self.forward([ids[slot + 1]], self.tail, self.done)[:, -1:]
            else:
                hid = self.forward([ids[slot + j]], hid, slot + j - 1)
            yield hid[0, 0]


def decode(target, ids, head, depth, budget, ends):
    """The ids that greedy decoding emits, and [drafted, accepted] of each round."""
    cache, slot = target.cache(), 0
    if head:
        head.start()
    if len(ids) > 1:
        hidden = target.hidden(ids[:-1], cache)
        mx.eval(hidden, [layer.state for layer in cache])
        if head:
            head.committed(ids[:-1], hidden, 0)
        slot = len(ids) - 1
    current, out, rounds = ids[-1], [], []
    while len(out) < budget:
        left = budget - len(out)
        drafts = head.propose(current, min(depth, left - 1), cache) if head and left > 1 else []
        hidden = target.hidden([current] + drafts, cache)
        wanted = target.top(hidden[0]).tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == wanted[accepted]:
            accepted += 1
        run = drafts[:accepted]
        stop = next((i for i, token in enumerate(run) if token in ends), None)
        # An end token stops the run and is not committed itself.
        keep = accepted if stop is None else stop
        emitted = run + [wanted[accepted]] if stop is None else run[:stop + 1]
        trim_prompt_cache(cache, len(drafts) - keep)
        if head:
            head.committed([current] + drafts[:keep], hidden[:, :1 + keep], slot)
        slot += 1 + keep
        rounds.append([len(drafts), accepted if stop is None else stop + 1])
        out += emitted
        current = out[-1]
        if current in ends:
            break
    return out, rounds


def heads(target, folder):
    return {'single': Single(target, f'{folder}/mtp-single.safetensors'), 'seq': Seq(target, f'{folder}/mtp-seq.safetensors')}


def trace(target, head_dir):
    rows = []
    for prompt in PROMPTS:
        chat = [{'role': 'user', 'content': prompt}]
        ids = target.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        ids = list(ids['input_ids'] if hasattr(ids, 'keys') else ids)
        plain, _ = decode(target, ids, None, 0, BUDGET, END_TOKENS)
        row = dict(prompt=prompt, prompt_ids=ids, plain=plain)
        for name, head in heads(target, head_dir).items():
            out, rounds = decode(target, ids, head, DEPTH, BUDGET, END_TOKENS)
            assert out == plain, (name, prompt)
            row[name] = dict(
                depth=DEPTH, rounds=rounds, drafted=sum(d for d, _ in rounds), accepted=sum(a for _, a in rounds),
                tokens_per_round=round(len(out) / len(rounds), 3))
        print(prompt[:40], len(plain), *(f"{n}: {row[n]['accepted']}/{row[n]['drafted']}" for n in ('single', 'seq')), flush=True)
        rows.append(row)
    return rows


if __name__ == '__main__':
    mx.set_default_device(mx.cpu)
    with open(sys.argv[3], 'w') as file:
        json.dump(trace(Target(sys.argv[1]), sys.argv[2]), file)
