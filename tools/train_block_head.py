"""Trains a small block head on a Llama target in the Hugging Face folder layout, on text that the target writes.

    python3 train_block_head.py TARGET_DIR OUT_DIR [--taps 0,2] [--start 0,1,3] [--inner 128] [--block 4] [--minutes 5]

The head fills a block of mask positions in one forward (the idea of DFlash, arXiv 2602.06036): its input is the
embedding of the current token and `block` − 1 mask embeddings; its layers attend what each earlier slot has, the
token's embedding and the states of the tapped target layers, and the whole block in both directions. Row j predicts
the token after slot p + j, where p is the slot of the current token.

OUT_DIR gets config.json, model.safetensors (bfloat16) and expected.safetensors: `tokens` [33], `taps` [32,E·t],
`anchors` [3] the slots p of current tokens, and `logits` [3,block,V], computed in float32 on the CPU from the stored
weights. Needs torch and safetensors.
"""
import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

PROMPT, LENGTH = 8, 96
TEMPERATURES = (0.0, 0.7, 1.0)


def rms(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def rope(x, positions, base):
    """[B,H,L,D] at positions [B,L] or [L], half-split."""
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * speeds
    angles = angles[:, None] if angles.dim() == 3 else angles
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def mlp(w, at, x):
    return F.linear(F.silu(F.linear(x, w[at + '.gate_proj.weight'])) * F.linear(x, w[at + '.up_proj.weight']),
                    w[at + '.down_proj.weight'])


def attend(q, k, v, mask=None, causal=False):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2).flatten(2)


class Target:
    """The target, with the states after each layer."""

    def __init__(self, folder, device):
        self.config = json.load(open(os.path.join(folder, 'config.json')))
        self.w = {k: v.float().to(device) for k, v in load_file(os.path.join(folder, 'model.safetensors')).items()}
        self.embed = self.w['model.embed_tokens.weight']
        self.unembed = self.w.get('lm_head.weight', self.embed)

    def forward(self, ids, caches=None):
        c, w = self.config, self.w
        offset = 0 if not caches else caches[0][0].shape[2]
        positions = torch.arange(offset, offset + ids.shape[1], device=ids.device)
        x, states, kept = self.embed[ids], [], []
        for i in range(c['num_hidden_layers']):
            at = f'model.layers.{i}'
            y = rms(x, w[at + '.input_layernorm.weight'], c['rms_norm_eps'])
            q, k, v = (split(F.linear(y, w[f'{at}.self_attn.{n}_proj.weight']), h) for n, h in (
                ('q', c['num_attention_heads']), ('k', c['num_key_value_heads']), ('v', c['num_key_value_heads'])))
            q, k = rope(q, positions, c['rope_theta']), rope(k, positions, c['rope_theta'])
            if caches:
                k, v = torch.cat([caches[i][0], k], 2), torch.cat([caches[i][1], v], 2)
            kept.append((k, v))
            out = attend(q, k, v, causal=ids.shape[1] > 1)
            x = x + F.linear(out, w[at + '.self_attn.o_proj.weight'])
            x = x + mlp(w, at + '.mlp', rms(x, w[at + '.post_attention_layernorm.weight'], c['rms_norm_eps']))
            states.append(x)
        logits = F.linear(rms(x, w['model.norm.weight'], c['rms_norm_eps']), self.unembed)
        return logits, states, kept

    @torch.no_grad()
    def write(self, count, generator):
        """Continuations [count,LENGTH] of random prompts, a third at each temperature."""
        v, device = self.config['vocab_size'], self.embed.device
        ids = torch.randint(v, (count, PROMPT), generator=generator, device=device)
        temperatures = torch.tensor(TEMPERATURES, device=device)[torch.arange(count, device=device) % 3][:, None]
        out, caches = [ids], None
        while len(out) <= LENGTH - PROMPT:
            logits, _, caches = self.forward(ids, caches)
            noise = -torch.log(torch.empty_like(logits[:, -1]).exponential_(generator=generator))
            ids = (logits[:, -1] + temperatures * noise).argmax(-1, keepdim=True)
            out.append(ids)
        return torch.cat(out, 1)


class Head(torch.nn.Module):
    """`start` names the target layer that each layer begins as; its MLP keeps the `inner` units that weigh most."""

    def __init__(self, target, taps, start, inner, block):
        super().__init__()
        c, layers = target.config, len(start)
        width = c['hidden_size'] * (1 + len(taps))
        e, size = c['hidden_size'], c['head_dim']
        q, kv = c['num_attention_heads'] * size, c['num_key_value_heads'] * size
        self.config = dict(
            model_type='foretoken_block', block_size=block, target_layer_ids=taps, hidden_size=e, num_hidden_layers=layers,
            intermediate_size=inner, num_attention_heads=c['num_attention_heads'],
            num_key_value_heads=c['num_key_value_heads'], head_dim=size, rms_norm_eps=c['rms_norm_eps'],
            rope_theta=c['rope_theta'], target_vocab_size=c['vocab_size'])
        shapes = {'mask_embedding': (e,), 'context_norm.weight': (width,), 'norm.weight': (e,)}
        for i in range(layers):
            at = f'layers.{i}'
            shapes |= {
                f'{at}.input_layernorm.weight': (e,), f'{at}.post_attention_layernorm.weight': (e,),
                f'{at}.self_attn.q_proj.weight': (q, e), f'{at}.self_attn.k_proj.weight': (kv, e),
                f'{at}.self_attn.context_k_proj.weight': (kv, width), f'{at}.self_attn.context_v_proj.weight': (kv, width),
                f'{at}.self_attn.v_proj.weight': (kv, e), f'{at}.self_attn.o_proj.weight': (e, q),
                f'{at}.mlp.gate_proj.weight': (inner, e), f'{at}.mlp.up_proj.weight': (inner, e),
                f'{at}.mlp.down_proj.weight': (e, inner)}
        self.names = list(shapes)
        scale = lambda n, s: torch.ones(s) if 'norm' in n else torch.randn(s) / s[-1] ** 0.5
        values = {n: scale(n, s) for n, s in shapes.items()}
        values['norm.weight'] = target.w['model.norm.weight'].clone()
        for i, layer in enumerate(start):
            at, source = f'layers.{i}', f'model.layers.{layer}'
            values |= {n: self.begin(target.w, source, n[len(at):], inner)
                       for n in shapes if n.startswith(at + '.') and source + n[len(at):] in target.w}
            # What the target's layer reads at a slot is the embedding, or the state after the layer before it.
            part = min(range(len(taps) + 1), key=lambda t: abs(([-1] + taps)[t] - (layer - 1)))
            for name in 'kv':
                narrow = target.w[f'{source}.self_attn.{name}_proj.weight'] * target.w[f'{source}.input_layernorm.weight']
                wide = torch.zeros(kv, width, device=narrow.device)
                wide[:, part * e:(part + 1) * e] = narrow
                values[f'{at}.self_attn.context_{name}_proj.weight'] = wide
        self.values = torch.nn.ParameterList([values[n] for n in shapes])

    @staticmethod
    def begin(w, at, part, inner):
        value = w[at + part]
        if '.mlp.' not in part:
            return value.clone()
        norms = [w[f'{at}.mlp.{n}_proj.weight'].norm(dim=d) for n, d in (('gate', 1), ('up', 1), ('down', 0))]
        kept = (norms[0] * norms[1] * norms[2]).topk(inner).indices
        return (value[:, kept] if 'down_proj' in part else value[kept]).clone()

    def tensors(self):
        return dict(zip(self.names, self.values))

    def forward(self, target, ids, taps, anchors):
        """`ids` [B,S], `taps` [B,S,E·t], `anchors` [B,M] → logits [B,M,N,V]."""
        c, w, n = self.config, self.tensors(), self.config['block_size']
        heads, kv, eps = c['num_attention_heads'], c['num_key_value_heads'], c['rms_norm_eps']
        (b, m), s, device = anchors.shape, taps.shape[1], taps.device
        # Each part of a slot is divided by its own root mean square.
        parts = torch.cat([target.embed[ids[:, :s]], taps], -1).unflatten(-1, (-1, c['hidden_size']))
        context = rms(parts, w['context_norm.weight'].unflatten(0, parts.shape[2:]), eps).flatten(2)
        current = target.embed[ids.gather(1, anchors)][:, :, None]
        x = torch.cat([current, w['mask_embedding'].expand(b, m, n - 1, -1)], 2).flatten(1, 2)
        slots = torch.arange(s, device=device)
        places = (anchors[..., None] + torch.arange(n, device=device)).flatten(1)
        block = torch.arange(m, device=device).repeat_interleave(n)
        earlier = slots < anchors.repeat_interleave(n, 1)[..., None]
        mask = torch.cat([earlier, (block[:, None] == block).expand(b, -1, -1)], -1)[:, None]
        for i in range(c['num_hidden_layers']):
            at = f'layers.{i}.self_attn'
            y = rms(x, w[f'layers.{i}.input_layernorm.weight'], eps)
            inner = lambda n: split(F.linear(y, w[f'{at}.{n}_proj.weight']), kv)
            outer = lambda n: split(F.linear(context, w[f'{at}.context_{n}_proj.weight']), kv)
            q = rope(split(F.linear(y, w[at + '.q_proj.weight']), heads), places, c['rope_theta'])
            k = torch.cat([rope(outer('k'), slots, c['rope_theta']), rope(inner('k'), places, c['rope_theta'])], 2)
            out = attend(q, k, torch.cat([outer('v'), inner('v')], 2), mask)
            x = x + F.linear(out, w[at + '.o_proj.weight'])
            x = x + mlp(w, f'layers.{i}.mlp', rms(x, w[f'layers.{i}.post_attention_layernorm.weight'], eps))
        return F.linear(rms(x, w['norm.weight'], eps), target.unembed).unflatten(1, (m, n))


def anchors_of(count, block, generator, device, per_sequence=16):
    return torch.randint(PROMPT, LENGTH - block, (count, per_sequence), generator=generator, device=device)


def wanted(logits, anchors, block):
    """Target logits [B,M,N,V] at the slots of each block."""
    places = (anchors[..., None] + torch.arange(block, device=anchors.device)).flatten(1)
    rows = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1]))
    return rows.unflatten(1, (anchors.shape[1], block))


@torch.no_grad()
def measure(target, head, generator, zeroed, count=1536):
    """Shares of rows whose draft is the target's token: by best tokens, and with shared noise at temperature 1."""
    ids = target.write(count, generator)
    logits, states, _ = target.forward(ids)
    taps = torch.cat([states[i] for i in head.config['target_layer_ids']], -1)
    anchors = anchors_of(count, head.config['block_size'], generator, ids.device)
    drafts = head(target, ids, taps * 0 if zeroed else taps, anchors)
    rows = wanted(logits, anchors, head.config['block_size'])
    noise = -torch.log(torch.empty_like(rows).exponential_(generator=generator))
    best = (drafts.argmax(-1) == rows.argmax(-1)).float()
    shared = ((drafts + noise).argmax(-1) == (rows + noise).argmax(-1)).float()
    kind = lambda i: [round(x, 3) for x in best[i::3].mean((0, 1)).tolist()]
    return dict(best={str(t): kind(i) for i, t in enumerate(TEMPERATURES)},
                shared=[round(x, 3) for x in shared[2::3].mean((0, 1)).tolist()])


def train(target, head, options, device):
    generator = torch.Generator(device).manual_seed(options.seed)
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    block, start, step, shown = options.block, time.time(), 0, 0
    fade = options.fade ** torch.arange(block, device=device)
    while (share := (time.time() - start) / (60 * options.minutes)) < 1:
        pool = target.write(options.pool, generator)
        # New anchors make old text worth a few readings.
        for ids in pool.repeat(options.readings, 1).split(options.batch):
            with torch.no_grad():
                logits, states, _ = target.forward(ids)
                taps = torch.cat([states[i] for i in options.taps], -1) * (0 if options.blind else 1)
            anchors = anchors_of(len(ids), block, generator, device)
            drafts = head(target, ids, taps, anchors).log_softmax(-1)
            rows = wanted(logits, anchors, block)
            loss = -(rows.softmax(-1) * drafts).sum(-1) - options.sharp * drafts.gather(-1, rows.argmax(-1, True))[..., 0]
            loss = (loss.mean((0, 1)) * fade).sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            for group in optimizer.param_groups:
                group['lr'] = options.rate * min(1.0, (step + 1) / 200) * max(0.0, 1 - share)
            optimizer.step()
            step += 1
        if time.time() - shown > 20:
            shown = time.time()
            held = torch.Generator(device).manual_seed(10_000)
            print(f'{options.out}: {step} steps, loss {loss.item():.3f}', measure(target, head, held, options.blind), flush=True)


def save(target, head, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'config.json'), 'w') as file:
        json.dump(head.config, file, indent=1)
        file.write('\n')
    stored = {k: v.detach().to('cpu', torch.bfloat16).contiguous() for k, v in head.tensors().items()}
    save_file(stored, os.path.join(folder, 'model.safetensors'))
    with torch.no_grad():
        for parameter, value in zip(head.values, stored.values()):
            parameter.copy_(value.float())


@torch.no_grad()
def expected(target, head, folder):
    ids = target.write(3, torch.Generator('cpu').manual_seed(7))[2:, :33]
    _, states, _ = target.forward(ids)
    taps = torch.cat([states[i] for i in head.config['target_layer_ids']], -1)[:, :32]
    anchors = torch.tensor([[1, 17, 32]])
    logits = head(target, ids, taps, anchors)[0]
    save_file(dict(tokens=ids[0].int(), taps=taps[0].contiguous(), anchors=anchors[0].int(), logits=logits.contiguous()),
              os.path.join(folder, 'expected.safetensors'))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('target')
    parser.add_argument('out')
    numbers = lambda text: [int(i) for i in text.split(',')]
    parser.add_argument('--taps', type=numbers, default=[0, 2])
    parser.add_argument('--start', type=numbers, default=[0, 1, 3])
    parser.add_argument('--blind', action='store_true', help='train without taps, for comparison')
    for name, default in dict(inner=128, block=4, batch=512, pool=8192, readings=4, seed=1).items():
        parser.add_argument('--' + name, type=int, default=default)
    for name, default in dict(minutes=5.0, rate=2e-3, fade=0.5, sharp=0.25).items():
        parser.add_argument('--' + name, type=float, default=default)
    options = parser.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    target = Target(options.target, device)
    head = Head(target, options.taps, options.start, options.inner, options.block).to(device)
    train(target, head, options, device)
    save(target, head, options.out)
    for zeroed in (False, True):
        held = torch.Generator(device).manual_seed(20_000)
        print(f'{options.out}: held out, taps {"zeroed" if zeroed else "as trained"}', measure(target, head, held, zeroed))
    expected(Target(options.target, 'cpu'), head.cpu(), options.out)


if __name__ == '__main__':
    main()
