"""What must hold of local updates: which loss trains which weights, with which values, and when.

The numbers are held against plain Python and finite differences. Where two jobs must compute the same, they are compared to
the bit. cases_invariants.py has random jobs, machines and kills."""
import math
import random
import struct

import reference
from files import DELETE, checkpoint_steps, job, separable, write_idx_pair, write_job
from harness import case, once
from methods import (JOB, MOMENTUM, STILL, TIGHT, all_tensors, bits, bits_without_spec, block_losses, change_weight,
                     figures, go_back, local, same_bits, sil, state, tensors, train, training)

F32 = struct.Struct("<f")
CUTS = [[0, 1], [2, 4]]  # of the model of JOB, which has the dense layers 0 to 3 and the loss 4


def single(x):
    return F32.unpack(F32.pack(x))[0]


def close(t, found, want, what, relative=2e-4):
    t.check(abs(found - want) <= 1e-6 + relative * abs(want), f"{what}: found {found}, want {want}")


# ---- the ends of the scale: one block, and one block for each layer ----

CHAIN = {"type": "chain", "input": 9, "layers": [
    {"op": "linear", "out": 8}, {"op": "gelu"}, {"op": "layernorm"}, {"op": "dropout", "p": 0.2},
    {"repeat": 2, "block": [{"op": "linear", "out": 8, "activation": "tanh"}]}, {"op": "linear", "out": 4}]}
GPT = {"type": "gpt2", "layers": 3, "heads": 2, "width": 16, "vocab": 50, "context": 8, "tied": False, "dropout": 0.1}
TOKENS = {"format": "synthetic", "samples": 24, "val_samples": 6, "seed": 3, "noise": 0.1}
JOBS = {
    "mlp, dropout and clipping": {"model.dropout": 0.2, "train.grad_clip": 0.1},
    "chain, skip, cosine": {"model": CHAIN, "train.on_nonfinite": "skip",
                            "schedule": {"type": "cosine", "warmup_steps": 2}},
    "mlp, momentum, replicas": {"optimizer": MOMENTUM, "train.replicas": 3},
    "gpt2": {"model": GPT, "data": TOKENS, "train.global_batch": 6, "train.micro_batch": 3},
}
ONE_BLOCK = {
    "mlp, dropout and clipping": [local("chunked", 1), local("chunked", 1, resident_steps=3), sil(1, kappa=5)],
    "chain, skip, cosine": [local("overlapping", [[0, 6]]), sil(1)],
    "mlp, momentum, replicas": [local("chunked", [[0, 4]]), sil([])],
    "gpt2": [local("overlapping", 1), local("chunked", 1)],
}


@case(each=list(JOBS))
def test_one_block_or_partition_is_backpropagation(t, name):
    spec = job(JOB, JOBS[name])
    want = bits_without_spec(train(t, spec, "backprop"))
    for i, method in enumerate(ONE_BLOCK[name]):
        for options in ([], [*TIGHT[:2], "--delay-seed", 3]):
            found = bits_without_spec(train(t, job(spec, {"method": method}), f"out-{i}", *options))
            for key, value in want.items():
                t.equal(found[key], value, f"{method} {options}: {key}")


@case
def test_two_blocks_are_not_backpropagation(t):
    """The comparison above can tell methods apart."""
    methods = [{"type": "backprop"}, local("chunked", 2), local("overlapping", 2), local("greedy"), sil(2)]
    weights = [bits_without_spec(train(t, job(JOB, {"method": m}), f"out-{i}"))["hash"] for i, m in enumerate(methods)]
    t.equal(len(set(weights)), len(weights), f"different weights: {weights}")


GREEDY = {
    "mlp": ({}, [[0, 0], [1, 1], [2, 4]]),
    "chain": ({"model": CHAIN}, [[0, 1], [2, 4], [5, 7]]),
    "gpt2": (JOBS["gpt2"], [[0, 2], [3, 3], [4, 6]]),
}


@case(each=list(GREEDY))
def test_blocks_listed_one_by_one_are_greedy(t, name):
    changes, blocks = GREEDY[name]
    spec = job(JOB, changes)
    greedy = bits_without_spec(train(t, job(spec, {"method": local("greedy")}), "greedy"))
    listed = bits_without_spec(train(t, job(spec, {"method": local("chunked", blocks)}), "listed", *TIGHT[:2]))
    t.equal(len(training(greedy["figures"])[0]["blocks"]), 3, "blocks")
    for key, value in greedy.items():
        t.equal(listed[key], value, f"{blocks}: {key}")


@case(each=["chunked", "greedy", "overlapping"])
def test_heads_are_no_part_of_the_trained_model(t, scheme):
    spec = job(JOB, {"method": local(scheme, None if scheme == "greedy" else 2)})
    heads = {name.split(".")[0] for name in tensors(train(t, spec), 7, "method")}
    t.equal(heads, {"heads"}, "what the method has added")
    plain = train(t, JOB, "plain")
    t.equal({k: v[0] for k, v in tensors(t.path("out"), 7).items()}, {k: v[0] for k, v in tensors(plain, 7).items()},
            "names and shapes of the model")


# ---- against plain Python ----

def idx_spec(t, **changes):
    """A job on images in the order of the file, and its samples as plain Python sees them."""
    rng, side, n = random.Random(5), 4, 24
    images, labels = separable(n, 3, side, rng)
    files = write_idx_pair(t, "train", images, labels, side)
    samples = [([b / 255 for b in images[i * side * side : (i + 1) * side * side]], labels[i]) for i in range(n)]
    return job({
        "schema": "job/v1", "model": {"type": "mlp", "input": [side, side], "hidden": [9, 8, 7], "classes": 3},
        "data": {"format": "idx", "train": files, "shuffle": False},
        "train": {"steps": 6, "global_batch": 12, "micro_batch": 4, "replicas": 1, "grad_clip": 0.4},
        "optimizer": {"type": "adamw", "lr": 0.02, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1},
        "checkpoint": {"every": {"steps": 1}, "keep": 99}}, changes), samples


def batch_of(samples, step, size):
    """The samples of step `step`, counted from 1, of a job that does not shuffle."""
    return [samples[((step - 1) * size + i) % len(samples)] for i in range(size)]


class Blocks:
    """Local updates in plain Python, from the weights of a checkpoint on. `blocks`: the first and the last dense layer of
    each. `heads`: for each block but the last, the names of the layers of its head."""

    def __init__(self, model, added, blocks, heads):
        self.layers = reference.layers_of(model)
        self.heads = [[reference.layer_of(added, name) for name in names] for names in heads] + [[]]
        self.names, self.blocks = heads + [[]], blocks

    def block_gradients(self, b, samples):
        """The loss of block b, and the gradients of its layers and its head, by name."""
        first, last = self.blocks[b]
        inside = []
        for x, label in samples:
            inputs, _ = reference.forward(self.layers, x)
            inside.append((inputs[first], label))
        loss, grads = reference.gradients(self.layers[first : last + 1] + self.heads[b], inside)
        names = [f"layers.{i}" for i in range(first, last + 1)] + self.names[b]
        return loss, reference.flatten(grads, names)

    def owner(self, name):
        """The block to which a parameter belongs: the first that has it."""
        place, number = name.split(".")[:2]
        if place == "heads":
            return int(number)
        return next(b for b, (_, last) in enumerate(self.blocks) if int(number) <= last)

    def step(self, samples):
        """The losses of all blocks, and the gradients by name: the mean where two blocks share a layer."""
        losses, found = [], {}
        for b in range(len(self.blocks)):
            loss, grads = self.block_gradients(b, samples)
            losses.append(loss)
            for name, g in grads.items():
                found.setdefault(name, []).append(g)
        return losses, {name: [sum(v) / len(gs) for v in zip(*gs)] for name, gs in found.items()}

    def norms(self, grads):
        sums = [0.0] * len(self.blocks)
        for name, g in grads.items():
            sums[self.owner(name)] += sum(v * v for v in g)
        return [math.sqrt(s) for s in sums]


SCHEMES = {
    "greedy": (local("greedy"), [[0, 0], [1, 1], [2, 3]], [["heads.0.out"], ["heads.1.out"]]),
    "chunked": (local("chunked", CUTS), [[0, 1], [2, 3]], [["heads.0.out"]]),
    "overlapping": (local("overlapping", [[0, 1], [1, 2], [2, 4]]), [[0, 1], [1, 2], [2, 3]],
                    [["heads.0.out"], ["heads.1.out"]]),
    "hidden head": (local("chunked", CUTS, head={"hidden": 5}), [[0, 1], [2, 3]], [["heads.0.hidden", "heads.0.out"]]),
    "rates": (local("overlapping", [[0, 2], [1, 4]], each=[{"lr": 0.05}, {"lr": 0.01}]), [[0, 2], [1, 3]],
              [["heads.0.out"]]),
}


@case(each=list(SCHEMES))
def test_blocks_train_as_in_plain_python(t, name):
    """Losses, norms of gradients and weights of every step. Each block has its own norm to clip and its own rate. All blocks
    compute with the weights from before the step."""
    method, blocks, heads = SCHEMES[name]
    spec, samples = idx_spec(t, method=method)
    still = {**method, **({"each": [{"lr": STILL}] * len(blocks)} if "each" in method else {})}
    start = train(t, job(spec, {"train.steps": 1, "optimizer": {"type": "sgd", "lr": STILL}, "method": still}), "start")
    plain = Blocks(tensors(start, 1), tensors(start, 1, "method"), blocks, heads)
    out = train(t, spec, "out", *TIGHT[:2])
    lines, o, clip = training(figures(out)), spec["optimizer"], spec["train"]["grad_clip"]
    rates = [e["lr"] for e in method.get("each", [{"lr": o["lr"]}] * len(blocks))]
    weights = {k: list(v[1]) for k, v in {**tensors(start, 1), **tensors(start, 1, "method")}.items()}
    moments = {k: ([0.0] * len(v), [0.0] * len(v)) for k, v in weights.items()}
    clipped = 0
    for step in range(1, 7):
        losses, grads = plain.step(batch_of(samples, step, 12))
        norms = plain.norms(grads)
        for b, m in enumerate(lines[step - 1]["blocks"]):
            close(t, float(m["loss"]), losses[b], f"step {step}: loss of block {b}")
            close(t, float(m["grad_norm"]), norms[b], f"step {step}: norm of block {b}", 1e-3)
        t.equal(lines[step - 1]["loss"], lines[step - 1]["blocks"][-1]["loss"], "the loss of the job")
        for key, g in grads.items():
            b = plain.owner(key)
            g = [v * min(1.0, clip / norms[b]) for v in g]
            clipped += norms[b] > clip
            m, s = moments[key]
            weights[key] = reference.adamw(weights[key], g, m, s, step, {**o, "lr": rates[b]})
            moments[key] = ([o["betas"][0] * x + (1 - o["betas"][0]) * d for x, d in zip(m, g)],
                            [o["betas"][1] * x + (1 - o["betas"][1]) * d * d for x, d in zip(s, g)])
        # AdamW divides by the size of the gradient, so tiny gradients would part the two: go on from the same weights.
        found = {**tensors(out, step), **tensors(out, step, "method")}
        t.equal(sorted(found), sorted(weights), "names of the weights")
        far = sum(abs(x - y) > 1e-4 for key in weights for x, y in zip(found[key][1], weights[key]))
        total = sum(map(len, weights.values()))
        t.check(far <= total // 100, f"step {step}: {far} of {total} weights differ")
        weights = {k: list(v[1]) for k, v in found.items()}
        optimizer = tensors(out, step, "optimizer")
        moments = {k: (list(optimizer[k + ".exp_avg"][1]), list(optimizer[k + ".exp_avg_sq"][1])) for k in weights}
        plain = Blocks(tensors(out, step), tensors(out, step, "method"), blocks, heads)
    t.check(clipped > 0, "no gradient was clipped")


@case(each=["greedy", "hidden head", "overlapping"])
def test_evaluations_of_heads_are_as_in_plain_python(t, name):
    """Loss and accuracy of every head on the validation samples, and of the model at the end."""
    method, blocks, heads = SCHEMES[name]
    spec, samples = idx_spec(t, method=method)
    spec = job(spec, {"data.val": spec["data"]["train"], "eval": {"every": {"steps": 3}, "heads": True}})
    out = train(t, spec, "out", *TIGHT[:2])
    for m in [m for m in figures(out) if "val/loss" in m]:
        plain = Blocks(tensors(out, m["step"]), tensors(out, m["step"], "method"), blocks, heads)
        t.equal(len(m["blocks"]), len(blocks), "blocks")
        for b, found in enumerate(m["blocks"]):
            loss, right = reference.evaluate(plain.layers[: blocks[b][1] + 1] + plain.heads[b], samples)
            close(t, float(found["loss"]), loss, f"step {m['step']}: loss of block {b}")
            t.equal(float(found["accuracy"]), right, f"step {m['step']}: accuracy of block {b}")
        t.equal((m["val/loss"], m["val/accuracy"]), (m["blocks"][-1]["loss"], m["blocks"][-1]["accuracy"]), "the model")
    t.equal([m["step"] for m in figures(out) if "val/loss" in m], [3, 6], "evaluations")


# ---- gradients end at the block ----

DIFFERENCES = {
    "chunked": ([[0, 0], [1, 2], [3, 4]], {"layers.0.weight": [0], "layers.1.weight": [1], "layers.2.bias": [1],
                                          "layers.3.weight": [2], "heads.0.out.weight": [0], "heads.1.out.bias": [1]}),
    "overlapping": ([[0, 1], [1, 2], [2, 4]], {"layers.0.weight": [0], "layers.1.weight": [0, 1], "layers.1.bias": [0, 1],
                                              "layers.2.weight": [1, 2], "layers.3.weight": [2], "heads.0.out.weight": [0],
                                              "heads.1.out.weight": [1]}),
}


@case(each=list(DIFFERENCES))
def test_gradients_are_finite_differences_of_the_own_loss(t, scheme):
    """One weight of a checkpoint is changed, and the next step tells the losses. The gradient of a weight is the difference of
    the loss of its own block, or the mean of those of both blocks that share the weight. The losses of earlier blocks do not
    change in any bit. The losses of later blocks do change, and yet nothing of them is in the gradient."""
    blocks, weights = DIFFERENCES[scheme]
    spec = job(JOB, {"method": local(scheme, blocks), "model.activation": "tanh", "optimizer": MOMENTUM, "eval": DELETE,
                     "data": {"format": "synthetic", "samples": 24, "seed": 3, "noise": 0.5},
                     "train.steps": 3, "checkpoint.every": {"steps": 1}})
    path, out, rng, h = write_job(t, spec), train(t, spec), random.Random(scheme), 0.02
    before, after = tensors(out, 2, "optimizer"), tensors(out, 3, "optimizer")
    usual = [float(b["loss"]) for b in training(figures(out))[2]["blocks"]]
    values = {**tensors(out, 2), **tensors(out, 2, "method")}
    foreign = 0
    for name, own in weights.items():
        old = values[name][1]
        momentum = [x - 0.5 * y for x, y in zip(after[name + ".momentum_buffer"][1], before[name + ".momentum_buffer"][1])]
        index = max(rng.sample(range(len(old)), min(len(old), 12)), key=lambda i, m=momentum: abs(m[i]))
        losses = []
        for sign in (1, -1):
            go_back(out, 2)
            change_weight(out, 2, name, index, old[index] + sign * h)
            t.worker("--run", path, "--output", out, "--quiet")
            losses.append([float(b["loss"]) for b in training(figures(out))[2]["blocks"]])
        go_back(out, 2)
        change_weight(out, 2, name, index, old[index])
        slopes = [(x - y) / (2 * h) for x, y in zip(*losses)]
        for b, slope in enumerate(slopes):
            if b < min(own):
                t.equal([x[b] for x in losses], [usual[b]] * 2, f"{name}: loss of block {b}, which is before")
            elif b > max(own) and not name.startswith("heads"):
                foreign += abs(slope) > 1e-3
        want = sum(slopes[b] for b in own) / len(own)
        t.check(abs(momentum[index] - want) <= 2e-4 + 0.01 * abs(want),
                f"{name}[{index}]: gradient {momentum[index]}, differences of all blocks {slopes}")
        t.check(abs(want) > 1e-4, f"{name}[{index}]: the gradient {want} is too small to tell anything")
    t.check(foreign >= 2, "no later loss depends on the changed weights, so the test says nothing")


@case(each=["rate", "width", "smaller"])
def test_later_blocks_change_nothing_in_earlier_ones(t, what):
    """To the bit, whatever the later block does and wherever it runs."""
    spec = job(JOB, {"model.dropout": 0.1, "train.grad_clip": 0.5, "method": local("chunked", CUTS)})
    other = {"rate": {"method.each": [{}, {"lr": 0.3}]}, "width": {"model.hidden": [16, 14, 33]},
             "smaller": {"model.hidden": [16, 14, 1], "method.resident_steps": 3}}[what]
    one, two = train(t, spec, "one"), train(t, job(spec, other), "two", *TIGHT)
    a, b = training(figures(one)), training(figures(two))
    t.equal([m["blocks"][0] for m in a], [m["blocks"][0] for m in b], "figures of block 0")
    t.check(block_losses(a, 1) != block_losses(b, 1), "block 1 has not changed")
    for step in checkpoint_steps(one):
        mine = {f: {k: v for k, v in x.items() if k.split(".")[:2] in (["layers", "0"], ["layers", "1"], ["heads", "0"])}
                for f, x in all_tensors(one, step).items()}
        theirs = {f: {k: v for k, v in all_tensors(two, step)[f].items() if k in x} for f, x in mine.items()}
        t.equal(len(mine["optimizer"]), 2 * len(mine["model"]) + 2 * len(mine["method"]), "tensors of block 0")
        t.equal(theirs, mine, f"block 0 at step {step}")


@case(each=["chunked", "overlapping", "greedy"])
def test_blocks_pass_on_the_outputs_from_before_the_update(t, scheme):
    """With rates that ruin the first block at once. The first loss of the last block is that of backpropagation, to the bit,
    since both compute it with the initial weights."""
    changes = {"optimizer": {"type": "sgd", "lr": 50.0}, "train.steps": 3, "eval": DELETE}
    first = training(figures(train(t, job(JOB, changes), "backprop")))[0]["loss"]
    method = local(scheme, None if scheme == "greedy" else 2, **({} if scheme == "overlapping" else {"resident_steps": 3}))
    for options in ([], TIGHT):
        lines = training(figures(train(t, job(JOB, {**changes, "method": method}), "out", *options)))
        t.equal(lines[0]["loss"], first, f"{scheme} {options}: first loss of the last block")
        t.check(float(lines[1]["loss"]) > 3, f"the update of step 1 has ruined nothing: {lines[1]}")


# ---- overlapping blocks ----

@case(each=[["--devices", 1], [*TIGHT, "--delay-seed", 5], ["--devices", 1, "--policy", "lru", "--optimizer-on", "host"],
            ["--devices", 3, "--policy", "blocks"]])
def test_shared_layers_take_the_mean_of_both_gradients(t, options):
    """The momentum after the first step is the gradient. Two chunked jobs, one with the shared layer at the end of the lower
    block and one with it at the beginning of the upper block, give the two gradients; the mean of them is exact to the bit."""
    def gradients(name, method, *more):
        out = train(t, job(JOB, {"optimizer": MOMENTUM, "train.steps": 1, "eval": DELETE, "model.dropout": 0.1,
                                 "method": method}), name, *more)
        return {k.removesuffix(".momentum_buffer"): v[1] for k, v in tensors(out, 1, "optimizer").items()}, figures(out)

    def jobs():
        return (gradients("lower", local("chunked", [[0, 1], [2, 4]])), gradients("upper", local("chunked", [[0, 0], [1, 4]])))

    (lower, low), (upper, up) = once("gradients of a shared layer", jobs)
    both, lines = gradients("both", local("overlapping", [[0, 1], [1, 4]]), *options)
    norm = 0.0
    for name in both:
        if name.startswith("layers.1."):
            want = tuple(single(single(a + b) * 0.5) for a, b in zip(lower[name], upper[name]))
            t.check(lower[name] != upper[name], f"{name}: the two gradients are equal")
        else:
            want = lower[name] if name.startswith(("layers.0.", "heads.0.")) else upper[name]
        t.equal(both[name], want, f"gradient of {name}")
        norm += sum(v * v for v in want) if not name.startswith(("layers.2.", "layers.3.")) else 0.0
    t.equal(both.keys(), lower.keys(), "names")
    losses = [m["loss"] for m in lines[0]["blocks"]]
    t.equal(losses, [low[0]["blocks"][0]["loss"], up[0]["blocks"][1]["loss"]], "losses")
    # The clipping norm of the lower block is that of the mean.
    clip = math.sqrt(norm) / 3
    clipped = train(t, job(JOB, {"optimizer": MOMENTUM, "train.steps": 1, "eval": DELETE, "model.dropout": 0.1,
                                 "train.grad_clip": clip, "method": local("overlapping", [[0, 1], [1, 4]])}), "clipped",
                    *options)
    close(t, float(figures(clipped)[0]["blocks"][0]["grad_norm"]), math.sqrt(norm), "norm of block 0", 1e-5)
    for name, v in tensors(clipped, 1, "optimizer").items():
        for x, y in zip(v[1], both[name.removesuffix(".momentum_buffer")]):
            if not name.startswith(("layers.2.", "layers.3.")):
                close(t, x, y / 3, f"clipped gradient of {name}", 1e-5)


# ---- divergence ----

FAST = {"lr": 1e30}


@case(each=[("a block", [{}, FAST], "first in layer 3 (dense)"), ("a head", [FAST, {}], "first in heads.0.out (dense)")])
def test_divergence_names_the_layer(t, value):
    """Its number in the model: the heads stand between the blocks, and a layer of a head has a name."""
    _, each, where = value
    for changes in ({}, {"train.grad_clip": 1.0}):
        spec = job(JOB, {"method": local("chunked", CUTS, each=each), **changes})
        run = t.worker("--run", write_job(t, spec), "--output", t.fresh("out"), "--quiet", expect=1)
        t.contains(run.err, "not finite at step 2", where, what=f"the message with {changes}")


# ---- any number of steps that a block stays ----

@case(each=[1, 2, 3, 5, 16])
def test_resident_steps_do_not_change_bits(t, k):
    """The numbers of steps between evaluations, between checkpoints and to the end have no common divisor with k."""
    spec = job(JOB, {"train.steps": 37, "eval.every": {"steps": 17}, "checkpoint.every": {"steps": 19},
                     "train.grad_clip": 0.3, "method": local("greedy")})

    def sequential():
        return bits(train(t, job(spec, {"method.resident_steps": 1}), "sequential", "--policy", "resident"))

    want = once("37 steps of greedy blocks", sequential)
    t.equal([m["step"] for m in want["figures"] if "val/loss" in m], [17, 34, 37], "evaluations")
    for options in (["--policy", "blocks", "--device-memory", "8KiB"], [*TIGHT, "--delay-seed", k], ["--devices", 3]):
        out = train(t, job(spec, {"method.resident_steps": k}), "out", *options)
        same_bits(t, out, want, f"k = {k}, {options}")
        t.equal(checkpoint_steps(out), [19, 37], "checkpoints")


# ---- divergence ----

@case(each=[0, 1])
def test_message_names_the_block_that_has_diverged(t, block):
    """The rate of one block ruins it. With block 0 ruined, its own loss is named and not that of the block behind it."""
    rates = [{}, {}]
    rates[block] = {"lr": 1e30}
    for changes in ({}, {"train.grad_clip": 1.0}):
        spec = job(JOB, {"method": local("chunked", CUTS, each=rates), "model.activation": "gelu", **changes})
        r = t.worker("--run", write_job(t, spec), "--output", t.fresh("out"), "--quiet", "--json", expect=1).json()
        t.contains(r["message"], f" of block {block} is not finite at step 2", what=f"the message with {changes}")


# ---- checkpoints ----

@case(each=[("adamw, clipping", {"train.grad_clip": 0.2}),
            ("momentum, clipping", {"optimizer": MOMENTUM, "train.grad_clip": 0.2}),
            ("plain sgd, skip", {"optimizer": {"type": "sgd", "lr": 0.1}, "train.on_nonfinite": "skip"}),
            ("a ruined block", {"train.on_nonfinite": "skip", "method.each": [{}, {}, {"lr": 1e30}]})])
def test_a_run_may_start_at_every_checkpoint(t, value):
    """On another machine, and with another number of steps that a block stays. A block whose updates are all skipped counts its
    updates on its own."""
    name, changes = value
    spec = job(JOB, {"method": local("chunked", 3, resident_steps=1), "checkpoint.every": {"steps": 2}, **changes})
    out = train(t, spec)
    if name == "a ruined block":
        t.equal([g["t"] for g in state(out, 7)["groups"]], [7, 7, 1], "updates of the blocks")
    want, rng = bits(out), random.Random(str(changes))
    for step in reversed(checkpoint_steps(out)[:-1]):
        go_back(out, step)
        path = write_job(t, job(spec, {"method.resident_steps": rng.choice([1, 2, 3])}))
        t.worker("--run", path, "--output", out, "--quiet", *rng.choice([TIGHT, ["--devices", 3, "--delay-seed", step]]))
        same_bits(t, out, want, f"from the checkpoint of step {step}")
