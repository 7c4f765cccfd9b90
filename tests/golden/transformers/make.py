#!/usr/bin/env python3
"""Makes the golden vectors of this folder with PyTorch and the transformers package (pip: torch transformers safetensors
numpy): what a GPT-2 and a Llama model compute, and how they train, by somebody else's code.

    python3 make.py [FOLDER]      default: the folder of this file

Writes
    gpt2/, llama/       tiny models as save_pretrained leaves them: config.json, model.safetensors (float32)
    llama-bf16/         the same llama, rounded to bfloat16, in shards with an index
    tokens.bin          641 token ids below 96, in llm.c's format (256 int32 of header, then uint16)
    gpt2.logits.npy, llama.logits.npy
                        float32 [2, 16, 96]: of the first two samples
    golden.json         shapes, optimizer, and the loss and gradient norm of ten steps of each run
    precision.json      the losses of ten steps in float32, bfloat16 and float16, from 40 initial states of each model

Sample i is tokens[16 i ... 16 i + 16), its targets are the same moved on by one; step s takes samples 4 s ... 4 s + 3. Biases
and norms are moved away from 0 and 1 at the beginning, so that one that is left out, or put in another's place, shows.
Losses are before the update of their step. "losses" are those of float32, "losses_float64" of the same run in float64,
which tells how far rounding alone leads (RMS norms and rotary angles are in float32 there, too). One thread, fixed seeds; other
versions of the packages differ in last digits.

Training in 16 bits (precision.json): the weights that PyTorch computes with, its activations and the gradients of one
micro-batch are 16-bit numbers: model.to(dtype), not autocast. The gradients of the micro-batches of a step are turned into
float32 and summed there, clipped there, and AdamW updates float32 master weights; the 16-bit weights are these, rounded.
As transformers does, logits are turned into float32 for the loss. float16 scales the loss by 1024. No gradient overflows at
that: this script fails if one does. The runs in float32 are the same loop without rounding. Initial state k of a model
has the values of each tensor of its folder moved on by 1009 k places, cyclically. So state 0 is the folder, and no
further files are needed. There are so many because two ways of rounding lead to distances from float32 that differ by
a fifth, either way, over five states. Last digits of 16-bit losses depend on the processor: products of those with
AVX512_BF16 differ from others'.
"""
import copy
import json
import pathlib
import shutil
import struct
import sys

import numpy
import torch
import transformers

VOCAB, LENGTH, BATCH, STEPS = 96, 16, 4, 10
STATES, MOVE, MICRO_BATCH, LOSS_SCALE = 40, 1009, 2, 1024.0  # of precision.json
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}


def make_tokens():
    """Not uniform: each token follows from the last one, more often than not, so that there is something to learn."""
    state, tokens = 20240520, [7]
    while len(tokens) < BATCH * STEPS * LENGTH + 1:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        noise = state >> 33
        tokens.append((5 * tokens[-1] + 11) % VOCAB if noise % 4 else noise // 4 % VOCAB)
    return tokens


def write_tokens(path, tokens):
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))


def make_gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=VOCAB, n_positions=24, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        bos_token_id=None, eos_token_id=None))


def make_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=56,
        vocab_size=VOCAB, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None))


def shake(model):
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p += 0.1 * torch.randn(p.shape)
            else:
                p *= 5  # of 0.02: logits that are not all the same
    return model


def rounded(model):
    """The same with weights that are values of bfloat16; what is computed from the config stays as it is."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    return model


def batch(tokens, step):
    first = [(BATCH * step + i) * LENGTH for i in range(BATCH)]
    x = torch.tensor([tokens[a:a + LENGTH] for a in first])
    y = torch.tensor([tokens[a + 1:a + LENGTH + 1] for a in first])
    return x, y


def adamw(parameters):
    decayed = [p for p in parameters if p.dim() >= 2]
    rest = [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]},
                              {"params": rest, "weight_decay": 0.0}],
                             lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"])


def train(model, tokens, smoothing):
    optimizer = adamw(list(model.parameters()))
    losses, norms = [], []
    model.train()
    for step in range(STEPS):
        x, y = batch(tokens, step)
        logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1), label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["grad_clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def run(model, tokens, smoothing):
    losses, norms = train(copy.deepcopy(model), tokens, smoothing)
    exact, _ = train(copy.deepcopy(model).double(), tokens, smoothing)
    return {"label_smoothing": smoothing, "losses": losses, "losses_float64": exact, "grad_norms": norms}


def moved(model, k):
    """Initial state k: every tensor's values moved on by k * MOVE places. A tied weight is one tensor."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.flatten().roll(k * MOVE).reshape(p.shape))
    return model


def train_in(dtype, model, tokens):
    """The losses of ten steps with weights and activations of this type, and float32 master weights."""
    scale = LOSS_SCALE if dtype == torch.float16 else 1.0
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    model = copy.deepcopy(model).to(dtype)
    weights, optimizer, losses = list(model.parameters()), adamw(masters), []
    model.train()
    for step in range(STEPS):
        x, y = batch(tokens, step)
        for master in masters:
            master.grad = torch.zeros_like(master)
        mean = 0.0
        for first in range(0, BATCH, MICRO_BATCH):
            rows = slice(first, first + MICRO_BATCH)
            logits = model(x[rows]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), y[rows].reshape(-1)) * (MICRO_BATCH / BATCH)
            (loss * scale).backward()
            for master, w in zip(masters, weights):
                master.grad += w.grad.float() / scale
                w.grad = None
            mean += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(masters, OPTIMIZER["grad_clip"])
        if not torch.isfinite(norm):
            sys.exit(f"a gradient in {dtype} is not finite: LOSS_SCALE is too large")
        optimizer.step()
        with torch.no_grad():
            for master, w in zip(masters, weights):
                w.copy_(master)  # rounds to the nearest, ties to even
        losses.append(round(mean, 7))
    return losses


def precision_runs(model, tokens):
    """Of each precision, the losses from each initial state."""
    return {name: [train_in(dtype, moved(model, k), tokens) for k in range(STATES)] for name, dtype in PRECISIONS.items()}


def write_precision(path, about, runs):
    """The losses from one initial state are one line."""
    lines = [json.dumps(about, indent=1)[:-2] + ',\n "runs": {']
    for i, (name, losses) in enumerate(runs.items()):
        lines.append(f'  "{name}": {{')
        for j, (precision, states) in enumerate(losses.items()):
            lines.append(f'   "{precision}": [')
            lines.append(",\n".join("    " + json.dumps(state) for state in states))
            lines.append("   ]" + "," * (j + 1 < len(losses)))
        lines.append("  }" + "," * (i + 1 < len(runs)))
    path.write_text("\n".join([*lines, " }", "}"]) + "\n")


def write_logits(path, model, tokens):
    model.eval()
    with torch.no_grad():
        logits = model(batch(tokens, 0)[0][:2]).logits
    numpy.save(path, logits.float().numpy())


def write_model(folder, model, **options):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in folder.iterdir():
        file.chmod(0o644)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1337)
    transformers.logging.set_verbosity_error()
    tokens, gpt2, llama = make_tokens(), shake(make_gpt2()), shake(make_llama())
    write_tokens(out / "tokens.bin", tokens)
    write_model(out / "gpt2", gpt2)
    write_model(out / "llama", llama)
    write_model(out / "llama-bf16", copy.deepcopy(llama).bfloat16(), max_shard_size="20KB")
    write_logits(out / "gpt2.logits.npy", gpt2, tokens)
    write_logits(out / "llama.logits.npy", llama, tokens)
    made_with = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    golden = {
        "made_with": made_with,
        "tokens": {"count": len(tokens), "length": LENGTH, "batch": BATCH, "steps": STEPS},
        "optimizer": {**OPTIMIZER, "type": "adamw", "decayed": "matrices and embeddings; not biases and norms"},
        "runs": {"gpt2": run(gpt2, tokens, 0.0), "gpt2-smoothed": run(gpt2, tokens, 0.1), "llama": run(llama, tokens, 0.0),
                 "llama-bf16": run(rounded(llama), tokens, 0.0)},
    }
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    about = {"made_with": made_with, "states": STATES, "move": MOVE, "micro_batch": MICRO_BATCH, "loss_scale": LOSS_SCALE}
    write_precision(out / "precision.json", about,
                    {"gpt2": precision_runs(gpt2, tokens), "llama": precision_runs(llama, tokens)})


if __name__ == "__main__":
    main()
