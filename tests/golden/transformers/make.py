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

Sample i is tokens[16 i ... 16 i + 16), its targets are the same moved on by one; step s takes samples 4 s ... 4 s + 3. Biases
and norms are moved away from 0 and 1 at the beginning, so that one that is left out, or put in another's place, shows.
Losses are before the update of their step. "losses" are those of float32, "losses_float64" of the same run in float64,
which tells how far rounding alone leads (RMS norms and rotary angles are in float32 there, too). One thread, fixed seeds; other
versions of the packages differ in last digits.
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


def train(model, tokens, smoothing):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]},
                                   {"params": rest, "weight_decay": 0.0}],
                                  lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"])
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
    golden = {
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "tokens": {"count": len(tokens), "length": LENGTH, "batch": BATCH, "steps": STEPS},
        "optimizer": {**OPTIMIZER, "type": "adamw", "decayed": "matrices and embeddings; not biases and norms"},
        "runs": {"gpt2": run(gpt2, tokens, 0.0), "gpt2-smoothed": run(gpt2, tokens, 0.1), "llama": run(llama, tokens, 0.0),
                 "llama-bf16": run(rounded(llama), tokens, 0.0)},
    }
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
