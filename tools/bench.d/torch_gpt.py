#!/usr/bin/env python3
"""The peer of `tools/bench peers`: GPT-2 as one writes it in plain PyTorch, the fastest way that the version offers and that
computes the same in fp32, or in bf16. Prints JSON lines: first what ran, then seconds, processor seconds and loss of each step, warm-up
included.
usage: torch_gpt.py '{"layers":6,"heads":6,"width":384,"vocab":256,"context":256,"batch":8,"steps":10,"threads":2}'

"precision" is "fp32" if it is left out, or
    autocast        weights in fp32, the model under torch.autocast(bfloat16)
    bf16            weights, activations, gradients and the state of AdamW in bf16: the least work there is, but small
                    updates are lost
    bf16 master     weights, activations and gradients in bf16. AdamW updates master weights in fp32, as in tutti
Attention is F.scaled_dot_product_attention where there is one (2.0), else a masked softmax; AdamW is fused where it is for the
CPU (2.4), else foreach. "compile": true: the model through torch.compile. "plain": true: neither of the former two. The
embedding is tied to the output, dropout is 0, every token has a target.
"""
import contextlib
import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, context, sdpa):
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if not sdpa:
            mask = torch.full((context, context), -math.inf).triu(1)
            self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        rows, seq, width = x.shape
        q, k, v = (part.view(rows, seq, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            # q is scaled and not the scores, and the mask is added in place: faster than filling where it is set.
            scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(2, 3)
            scores += self.mask[:seq, :seq]
            y = F.softmax(scores, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(rows, seq, width))


class Block(nn.Module):
    def __init__(self, width, heads, context, sdpa):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads, context, sdpa)
        self.ln_2, self.fc, self.proj = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, heads, width, vocab, context, sdpa):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, context, sdpa) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.head.weight = self.wte.weight

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def adamw(parameters, plain):
    """And its name."""
    parameters = list(parameters)
    options = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    for kind in ("foreach",) if plain else ("fused", "foreach"):
        try:
            return torch.optim.AdamW(parameters, **options, **{kind: True}), kind
        except (TypeError, RuntimeError):
            pass
    return torch.optim.AdamW(parameters, **options), "single"


class Trainer:
    """Updates a model, in one of the forms of "precision". torch_mlp.py uses it too."""

    def __init__(self, model, precision, make_optimizer):
        assert precision in ("fp32", "autocast", "bf16", "bf16 master"), precision
        self.autocast, self.masters = precision == "autocast", None
        if precision == "bf16 master":
            self.masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        if precision.startswith("bf16"):
            model.to(torch.bfloat16)
        self.weights = list(model.parameters())
        self.optimizer, self.kind = make_optimizer(self.masters or self.weights)

    def forward(self):
        """A context for the forward pass and the loss."""
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else contextlib.nullcontext()

    def clear(self):
        for p in self.weights:
            p.grad = None

    def update(self):
        if self.masters:
            for master, p in zip(self.masters, self.weights):
                master.grad = p.grad.float()
        self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    sdpa = hasattr(F, "scaled_dot_product_attention") and not job.get("plain")
    model = GPT(*(job[k] for k in ("layers", "heads", "width", "vocab", "context")), sdpa)
    precision = job.get("precision", "fp32")
    trainer = Trainer(model, precision, lambda parameters: adamw(parameters, job.get("plain")))
    step_model = torch.compile(model) if job.get("compile") else model
    data = torch.randint(0, job["vocab"], (4, job["batch"], job["context"] + 1))
    compiled = ", compiled" if job.get("compile") else ""
    variant = f"{'sdpa' if sdpa else 'masked softmax'}, {trainer.kind} AdamW{compiled}"
    print(json.dumps({"torch": torch.__version__, "variant": variant, "threads": torch.get_num_threads(),
                      "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    for i in range(job["steps"]):
        rows = data[i % len(data)]
        begin, cpu = time.perf_counter(), time.process_time()
        trainer.clear()
        with trainer.forward():
            loss = step_model(rows[:, :-1], rows[:, 1:].contiguous())
        loss.backward()
        trainer.update()
        print(json.dumps({"s": time.perf_counter() - begin, "cpu": time.process_time() - cpu, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
