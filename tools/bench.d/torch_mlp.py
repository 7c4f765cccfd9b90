#!/usr/bin/env python3
"""The peer of `tools/bench train`: the same MLP and optimizer in PyTorch. Prints samples/s.
usage: torch_mlp.py BATCH STEPS THREADS WIDTH DEPTH"""
import sys
import time

import torch

batch, steps, threads, width, depth = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(1)
sizes = [784] + [width] * depth
layers = []
for a, b in zip(sizes, sizes[1:]):
    layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
options = {"lr": 1e-3, "weight_decay": 0.01}
try:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True, **options)
except TypeError:
    optimizer = torch.optim.AdamW(model.parameters(), **options)
loss = torch.nn.CrossEntropyLoss()
x, y = torch.rand(batch, 784), torch.randint(0, 10, (batch,))


def step():
    optimizer.zero_grad(set_to_none=True)
    loss(model(x), y).backward()
    optimizer.step()


for _ in range(5):
    step()
start = time.perf_counter()
for _ in range(steps):
    step()
print(batch * steps / (time.perf_counter() - start))
