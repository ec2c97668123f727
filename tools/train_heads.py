"""Trains the two multi-token-prediction heads of models/smollm2-135m-mtp for a frozen Llama-architecture target.

    python3 train_heads.py HF_DIR OUT_DIR GENERATION_SECONDS TRAINING_SECONDS

single: no cache of its own; attends again to the keys and values of the target's last two layers, read-only, with the
        rotary position fixed at the last committed slot
seq:    a cache of its own; slot S joins the embedding of token t[S+1] with the target's hidden h[S] and predicts t[S+2]

First the target writes both sides of many chats, then each head learns from the target's own distributions, unrolled
over five steps. HF_DIR is the bfloat16 checkpoint that gguf_to_hf.py makes. Needs one CUDA device, PyTorch, safetensors
and tokenizers. B batch, T tokens, D width, H heads, KV key/value heads, HD head size, V vocabulary, K steps.
"""
import sys, json, time, math, os, struct
import torch, torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
HF, OUT, GEN_S, TRAIN_S = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
os.makedirs(OUT, exist_ok=True)
dev = 'cuda'; torch.manual_seed(0); torch.backends.cuda.matmul.allow_tf32 = True
cfg = json.load(open(HF + '/config.json'))
D, L, H, KV = cfg['hidden_size'], cfg['num_hidden_layers'], cfg['num_attention_heads'], cfg['num_key_value_heads']
HD, V, EPS, THETA = cfg['head_dim'], cfg['vocab_size'], cfg['rms_norm_eps'], cfg['rope_theta']
W = {k: v.to(dev) for k, v in load_file(HF + '/model.safetensors').items()}
E = W['model.embed_tokens.weight']
tok = Tokenizer.from_file(HF + '/tokenizer.json')
log = open(OUT + '/log.txt', 'w')
def say(*a):
    s = ' '.join(str(x) for x in a); print(s, flush=True); log.write(s + '\n'); log.flush()
def rms(x, w): return F.rms_norm(x.float(), (x.shape[-1],), w.float(), EPS).to(x.dtype)
inv = 1.0 / THETA ** (torch.arange(0, HD, 2, device=dev, dtype=torch.float32) / HD)
def rope_tab(pos):
    a = pos.float()[:, None] * inv[None]; return torch.cos(a), torch.sin(a)
def rope(x, cs):  # x [B,h,T,HD]
    c, s = cs; c, s = c.to(x.dtype), s.to(x.dtype); a, b = x[..., :HD // 2], x[..., HD // 2:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)
def heads(x, n): return x.view(x.shape[0], x.shape[1], n, HD).transpose(1, 2)
@torch.no_grad()
def target(t):
    x = E[t]; T = t.shape[1]; cs = rope_tab(torch.arange(T, device=dev)); kvs = {}
    for i in range(L):
        p = f'model.layers.{i}.'; h = rms(x, W[p + 'input_layernorm.weight'])
        q = rope(heads(h @ W[p + 'self_attn.q_proj.weight'].T, H), cs)
        k = rope(heads(h @ W[p + 'self_attn.k_proj.weight'].T, KV), cs)
        v = heads(h @ W[p + 'self_attn.v_proj.weight'].T, KV)
        if i >= L - 2: kvs[i] = (k, v)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(x.shape[0], T, H * HD)
        x = x + o @ W[p + 'self_attn.o_proj.weight'].T
        h = rms(x, W[p + 'post_attention_layernorm.weight'])
        x = x + (F.silu(h @ W[p + 'mlp.gate_proj.weight'].T) * (h @ W[p + 'mlp.up_proj.weight'].T)) @ W[p + 'mlp.down_proj.weight'].T
    return rms(x, W['model.norm.weight']), kvs
# ---------------- self-generated corpus (the model writes both sides of the chat) ----------------
TM = 640
def generate(B):
    Kc = torch.zeros(L, B, KV, TM, HD, device=dev, dtype=torch.bfloat16); Vc = torch.zeros_like(Kc)
    enc = lambda s: tok.encode(s, add_special_tokens=False).ids
    sysm = enc('<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n')
    fu, fa = enc('\n<|im_start|>user\n'), enc('\n<|im_start|>assistant\n'); im_end = enc('<|im_end|>')[0]
    n = max(len(fu), len(fa)); tab = torch.tensor([fa + [-1] * (n - len(fa)), fu + [-1] * (n - len(fu))], device=dev)
    flen = torch.tensor([len(fa), len(fu)], device=dev)
    cur = torch.zeros(B, dtype=torch.long, device=dev); pos = torch.zeros(1, dtype=torch.long, device=dev); ar = torch.arange(TM, device=dev)
    temp = torch.tensor([0.3, 0.7, 1.0, 1.0], device=dev)[torch.arange(B, device=dev) % 4][:, None]
    role = torch.zeros(B, dtype=torch.long, device=dev); ptr = torch.full((B,), -1, dtype=torch.long, device=dev)
    out = torch.zeros(B, dtype=torch.long, device=dev)
    def step():
        x = E[cur][:, None]; a = pos.float()[:, None] * inv[None]; cs = (torch.cos(a), torch.sin(a)); bias = torch.where(ar <= pos, 0., float('-inf'))
        for i in range(L):
            p = f'model.layers.{i}.'; h = rms(x, W[p + 'input_layernorm.weight'])
            q = rope(heads(h @ W[p + 'self_attn.q_proj.weight'].T, H), cs); k = rope(heads(h @ W[p + 'self_attn.k_proj.weight'].T, KV), cs); v = heads(h @ W[p + 'self_attn.v_proj.weight'].T, KV)
            Kc[i].index_copy_(2, pos, k); Vc[i].index_copy_(2, pos, v)
            qg = q.reshape(B, KV, H // KV, HD); s = (qg @ Kc[i].transpose(-1, -2)).float() / math.sqrt(HD) + bias
            o = (s.softmax(-1).to(x.dtype) @ Vc[i]).reshape(B, 1, H * HD)
            x = x + o @ W[p + 'self_attn.o_proj.weight'].T; h = rms(x, W[p + 'post_attention_layernorm.weight'])
            x = x + (F.silu(h @ W[p + 'mlp.gate_proj.weight'].T) * (h @ W[p + 'mlp.up_proj.weight'].T)) @ W[p + 'mlp.down_proj.weight'].T
        lg = (rms(x, W['model.norm.weight'])[:, 0] @ E.T).float()
        t = torch.where((role == 0)[:, None], torch.ones_like(temp), temp)
        top, idx = lg.topk(256, -1); pr = (top / t).softmax(-1); keep = pr.cumsum(-1) - pr < 0.95; pr = pr * keep
        g = -torch.empty_like(pr).exponential_().log(); smp = idx.gather(-1, (pr.log() + g).argmax(-1, keepdim=True))[:, 0]
        # role 0 = user is speaking: after its end force the assistant header, and the reverse
        forced = tab[role].gather(1, ptr.clamp(min=0)[:, None])[:, 0]
        nxt = torch.where(ptr >= 0, forced, smp)
        started = (ptr < 0) & (nxt == im_end)
        newptr = torch.where(ptr >= 0, ptr + 1, torch.where(started, torch.zeros_like(ptr), ptr))
        done = (ptr >= 0) & (newptr >= flen[role])
        role.copy_(torch.where(done, 1 - role, role)); ptr.copy_(torch.where(done, torch.full_like(ptr, -1), newptr)); out.copy_(nxt)
    toks = torch.zeros(B, TM, dtype=torch.long, device=dev)
    with torch.no_grad():
        st = torch.cuda.Stream(); st.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(st):
            for _ in range(2): step()
        torch.cuda.current_stream().wait_stream(st); g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g): step()
        t0 = time.time(); batches = []
        while time.time() - t0 < GEN_S:
            role.zero_(); ptr.fill_(-1)
            for p in range(TM - 1):
                if p < len(sysm): cur.fill_(sysm[p]); role.zero_(); ptr.fill_(-1)
                else: cur.copy_(out)
                toks[:, p] = cur; pos.fill_(p); g.replay()
            toks[:, TM - 1] = out; batches.append(toks.to(torch.int32).cpu().clone())
        torch.cuda.synchronize(); say('generated', len(batches), 'batches', f'{time.time()-t0:.0f}s', sum(b.numel() for b in batches) / 1e6, 'M tokens')
    return torch.cat(batches)
cf = OUT + '/corpus.pt'
if os.path.exists(cf): corpus = torch.load(cf)
else:
    corpus = generate(1024); torch.save(corpus, cf)
for r in (0, 5, 1030): say('SAMPLE', repr(tok.decode(corpus[r % len(corpus)].tolist(), skip_special_tokens=False)[90:700]))
corpus = corpus[torch.randperm(len(corpus))]; held, train = corpus[:256], corpus[256:]
NV = 8192
cnt = torch.bincount(train.flatten(), minlength=V); d2t = cnt.argsort(descending=True)[:NV].sort().values.to(dev)
say('draft vocab coverage', (cnt[d2t.cpu()].sum() / cnt.sum()).item())
Ed = E[d2t].clone(); t2d = torch.full((V,), -1, dtype=torch.long, device=dev); t2d[d2t] = torch.arange(NV, device=dev)
K = 5
def param(*s, std=None): return torch.nn.Parameter(torch.randn(*s, device=dev) * (std if std else s[-1] ** -0.5))
ones = lambda n: torch.nn.Parameter(torch.ones(n, device=dev))
def lin(x, w): return x @ w.to(x.dtype).T
class Single(torch.nn.Module):
    NL, M = 2, 1024
    def __init__(s):
        super().__init__(); P = {}
        P['pre_projection.weight'] = param(D, 2 * D); P['post_projection.weight'] = param(D, D); P['norm.weight'] = ones(D)
        for i in range(s.NL):
            q = f'layers.{i}.'
            for n in ('input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm', 'post_feedforward_layernorm'): P[q + n + '.weight'] = ones(D)
            P[q + 'self_attn.q_proj.weight'] = param(H * HD, D); P[q + 'self_attn.o_proj.weight'] = param(D, H * HD); P[q + 'self_attn.q_norm.weight'] = ones(HD)
            P[q + 'mlp.gate_proj.weight'] = param(s.M, D); P[q + 'mlp.up_proj.weight'] = param(s.M, D); P[q + 'mlp.down_proj.weight'] = param(D, s.M)
        s.P = torch.nn.ParameterDict({k.replace('.', '/'): v for k, v in P.items()})
    def __getitem__(s, k): return s.P[k.replace('.', '/')]
    def step(s, emb, hid, kvs, cs, mask):
        x = lin(torch.cat([emb, hid], -1), s['pre_projection.weight']); B, T, _ = x.shape
        for i in range(s.NL):
            q_ = f'layers.{i}.'; k, v = kvs[L - s.NL + i]
            h = rms(x, s[q_ + 'input_layernorm.weight']); q = rope(rms(heads(lin(h, s[q_ + 'self_attn.q_proj.weight']), H), s[q_ + 'self_attn.q_norm.weight']), cs)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=mask is None, attn_mask=mask, enable_gqa=True).transpose(1, 2).reshape(B, T, H * HD)
            x = x + rms(lin(o, s[q_ + 'self_attn.o_proj.weight']), s[q_ + 'post_attention_layernorm.weight'])
            h = rms(x, s[q_ + 'pre_feedforward_layernorm.weight'])
            x = x + rms(lin(F.silu(lin(h, s[q_ + 'mlp.gate_proj.weight'])) * lin(h, s[q_ + 'mlp.up_proj.weight']), s[q_ + 'mlp.down_proj.weight']), s[q_ + 'post_feedforward_layernorm.weight'])
        return lin(rms(x, s['norm.weight']), s['post_projection.weight'])  # in target hidden space: logits = out @ E^T, and the next step's hidden
    def unroll(s, t, hid, kvs):
        T = t.shape[1]; n = T - K - 1; outs = []; cs = rope_tab(torch.arange(n, device=dev)); kv = {i: (k[:, :, :n], v[:, :, :n]) for i, (k, v) in kvs.items()}; h = hid[:, :n]
        for j in range(1, K + 1): h = s.step(E[t[:, j:j + n]], h, kv, cs, None); outs.append(h)
        return outs
class Seq(torch.nn.Module):
    M = 1536
    def __init__(s):
        super().__init__(); P = {}
        P['fc.weight'] = param(D, 2 * D); P['pre_fc_norm_embedding.weight'] = ones(D); P['pre_fc_norm_hidden.weight'] = ones(D); P['norm.weight'] = ones(D)
        q = 'layers.0.'
        for n in ('input_layernorm', 'post_attention_layernorm'): P[q + n + '.weight'] = ones(D)
        P[q + 'self_attn.q_proj.weight'] = param(H * HD, D); P[q + 'self_attn.k_proj.weight'] = param(KV * HD, D); P[q + 'self_attn.v_proj.weight'] = param(KV * HD, D); P[q + 'self_attn.o_proj.weight'] = param(D, H * HD)
        P[q + 'mlp.gate_proj.weight'] = param(s.M, D); P[q + 'mlp.up_proj.weight'] = param(s.M, D); P[q + 'mlp.down_proj.weight'] = param(D, s.M)
        s.P = torch.nn.ParameterDict({k.replace('.', '/'): v for k, v in P.items()})
    def __getitem__(s, k): return s.P[k.replace('.', '/')]
    def pre(s, emb, hid): return lin(torch.cat([rms(emb, s['pre_fc_norm_embedding.weight']), rms(hid, s['pre_fc_norm_hidden.weight'])], -1), s['fc.weight'])
    def unroll(s, t, hid, kvs):
        q_ = 'layers.0.'; T = t.shape[1]; n = T - K - 1; B = t.shape[0]; h = hid[:, :n]; outs = []; ks, vs = [], []
        i = torch.arange(n, device=dev)
        for j in range(1, K + 1):
            cs = rope_tab(i + j - 1); x = s.pre(E[t[:, j:j + n]], h); y = rms(x, s[q_ + 'input_layernorm.weight'])
            q = rope(heads(lin(y, s[q_ + 'self_attn.q_proj.weight']), H), cs); k = rope(heads(lin(y, s[q_ + 'self_attn.k_proj.weight']), KV), cs); v = heads(lin(y, s[q_ + 'self_attn.v_proj.weight']), KV)
            ks.append(k); vs.append(v)
            if j == 1: o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            else:  # committed slots through the anchor come from step 1, later ones from this chain's own steps
                g = H // KV; qg = q.reshape(B, KV, g, n, HD)
                s0 = (qg @ ks[0][:, :, None].transpose(-1, -2)).float() / math.sqrt(HD)
                s0 = s0.masked_fill(i[None, :] > i[:, None], float('-inf'))
                ex = torch.stack([(qg * kk[:, :, None]).sum(-1).float() / math.sqrt(HD) for kk in ks[1:]], -1)
                a = torch.cat([s0, ex], -1).softmax(-1).to(q.dtype)
                o = a[..., :n] @ vs[0][:, :, None]
                for m, vv in enumerate(vs[1:]): o = o + a[..., n + m, None] * vv[:, :, None]
                o = o.reshape(B, H, n, HD)
            x = x + lin(o.transpose(1, 2).reshape(B, n, H * HD), s[q_ + 'self_attn.o_proj.weight'])
            y = rms(x, s[q_ + 'post_attention_layernorm.weight'])
            x = x + lin(F.silu(lin(y, s[q_ + 'mlp.gate_proj.weight'])) * lin(y, s[q_ + 'mlp.up_proj.weight']), s[q_ + 'mlp.down_proj.weight'])
            h = rms(x, s['norm.weight']); outs.append(h)
        return outs
def losses(outs, hid, t, want=False):
    n = outs[0].shape[1]; tot = 0; acc, agree, mn = [], [], []
    for j, o in enumerate(outs, 1):
        with torch.no_grad(): tl = (hid[:, j:j + n] @ Ed.T).float(); tp = tl.softmax(-1)
        lg = (o @ Ed.T).float(); lp = lg.log_softmax(-1); tot = tot + 0.85 ** (j - 1) * -(tp * lp).sum(-1).mean()
        if want:
            with torch.no_grad():
                agree.append(lg.argmax(-1) == tl.argmax(-1)); mn.append(torch.minimum(tp, lp.exp()).sum(-1))
    return tot, agree, mn
def evaluate(m):
    A = [0.] * K; S = [0.] * K; C = 0
    with torch.no_grad(), torch.autocast('cuda', torch.bfloat16):
        for b in held.split(32):
            t = b.long().to(dev); hid, kvs = target(t); _, ag, mn = losses(m.unroll(t, hid, kvs), hid, t, True); c = None; s = None
            for j in range(K):
                c = ag[j] if c is None else c & ag[j]; s = mn[j] if s is None else s * mn[j]
                A[j] += c[:, 64:].float().sum().item(); S[j] += s[:, 64:].sum().item()
            C += ag[0][:, 64:].numel()
    return [round(a / C, 3) for a in A], [round(a / C, 3) for a in S]
for name, cls in (('single', Single), ('seq', Seq)):
    torch.manual_seed(1); m = cls(); npar = sum(p.numel() for p in m.parameters()); LR = 2e-3
    opt = torch.optim.AdamW(m.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.01); t0 = time.time(); it = 0; B = 48 if name == 'single' else 32
    while True:
        perm = torch.randperm(len(train)); stop = False
        for b in perm.split(B):
            el = (time.time() - t0) / TRAIN_S
            if el >= 1: stop = True; break
            for gp in opt.param_groups: gp['lr'] = LR * min(1, (it + 1) / 100) * (0.5 * (1 + math.cos(math.pi * el)) * 0.98 + 0.02)
            t = train[b].long().to(dev); hid, kvs = target(t)
            with torch.autocast('cuda', torch.bfloat16): loss, _, _ = losses(m.unroll(t, hid, kvs), hid, t)
            opt.zero_grad(set_to_none=True); loss.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0); opt.step(); it += 1
            if it % 200 == 0: say(name, it, f'{loss.item():.3f}', f'{time.time()-t0:.0f}s')
        if stop: break
    a, s = evaluate(m); say('RESULT', name, 'params', npar, 'iters', it, 'greedy chain acceptance', a, 'sampling chain acceptance', s)
    sd = {k.replace('/', '.'): v.detach().to(torch.bfloat16).contiguous() for k, v in m.P.items()}; sd['draft_token_ids'] = d2t.to(torch.int32)
    save_file({k: v.cpu() for k, v in sd.items()}, f'{OUT}/mtp-{name}.safetensors')
    # golden chain in float32 on a fixed sequence: inputs and outputs for an independent implementation to reproduce
    with torch.no_grad():
        for k in list(W): W[k] = W[k].float()
        E = W['model.embed_tokens.weight']; Ed = E[d2t]
        for k in m.P: m.P[k].data = m.P[k].data.to(torch.bfloat16).float()
        t = held[:1, :96].long().to(dev); hid, kvs = target(t); outs = m.unroll(t, hid, kvs)
        save_file({'tokens': t[0].to(torch.int32).cpu(), 'target_hidden': hid[0].cpu(), 'target_top_id': (hid[0] @ E.T).argmax(-1).to(torch.int32).cpu(), **{f'step{j+1}': o[0].contiguous().cpu() for j, o in enumerate(outs)}, **{f'step{j+1}_top_id': d2t[(o[0] @ Ed.T).argmax(-1)].to(torch.int32).cpu() for j, o in enumerate(outs)}}, f'{OUT}/golden-{name}.safetensors')
        for k in list(W): W[k] = W[k].to(torch.bfloat16)
        E = W['model.embed_tokens.weight']; Ed = E[d2t].clone()
say('done')
