#!/usr/bin/env python3
"""The peer of `tools/bench train` and `peers`: the same MLP and optimizer in PyTorch. Prints samples/s; with --json, as
torch_gpt.py does, JSON lines: what ran, then seconds and processor seconds of each step, warm-up included.
usage: torch_mlp.py BATCH STEPS THREADS WIDTH DEPTH [PRECISION] [--json]        PRECISION as in torch_gpt.py"""
import json
import sys
import time

sys.dont_write_bytecode = True
import torch
from torch_gpt import Trainer

as_json = sys.argv[-1] == "--json"
precision = "fp32" if len(sys.argv) - as_json < 7 else sys.argv[6]
batch, steps, threads, width, depth = map(int, sys.argv[1:6])
torch.set_num_threads(threads)
torch.manual_seed(1)
sizes = [784] + [width] * depth
layers = []
for a, b in zip(sizes, sizes[1:]):
    layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def adamw(parameters):
    """The fastest that there is, and its name."""
    for kind in ("fused", "foreach"):
        try:
            return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, **{kind: True}), kind
        except (TypeError, RuntimeError):
            pass
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01), "single"


trainer = Trainer(model, precision, adamw)
loss = torch.nn.CrossEntropyLoss()
x, y = torch.rand(batch, 784), torch.randint(0, 10, (batch,))
if precision.startswith("bf16"):
    x = x.to(torch.bfloat16)


def step():
    trainer.clear()
    with trainer.forward():
        value = loss(model(x), y)
    value.backward()
    trainer.update()


if as_json:
    print(json.dumps({"torch": torch.__version__, "variant": f"{trainer.kind} AdamW",
                      "threads": torch.get_num_threads(),
                      "parameters": sum(p.numel() for p in model.parameters())}))
    for _ in range(steps):
        start, cpu = time.perf_counter(), time.process_time()
        step()
        print(json.dumps({"s": time.perf_counter() - start, "cpu": time.process_time() - cpu}))
else:
    for _ in range(5):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    print(batch * steps / (time.perf_counter() - start))
