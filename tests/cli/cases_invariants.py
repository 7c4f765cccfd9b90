"""Random jobs with the methods `local` and `sil`: however a job runs, it gives the bits of sequential execution.

Each case draws a job, and runs it one step at a time with everything resident on one device. Then it draws machines: a policy,
a number of devices, memory from the least up, where updates are computed, threads, delays, and a number of steps in a cycle. The
job runs there again, in most cases killed at random steps and resumed on another machine. Every byte of every checkpoint and
every figure must be the same.

TUTTI_CASES=200 tries 200 jobs, and TUTTI_CASES=-5 at most 5 (as in tests/cases.h). cases_local.py and cases_sil.py have what the
methods must compute.
"""
import os
import random

from cases_bits import PLENTY, POLICIES, least_bytes
from files import checkpoint_steps, job, read_json, write_job
from harness import case, random_cases
from methods import JOB, bits, kill_after, local, same_bits, sil, train

STEPS_OF_A_CYCLE = (1, 2, 3, 5, 16)


# ---- jobs ----

def draw_mlp(rng):
    """A model, and the number of units into which methods can cut it. The classifier belongs to the last unit."""
    n = rng.randrange(2, 6)
    return {"type": "mlp", "input": rng.choice([7, 12]), "hidden": [rng.randrange(3, 24) for _ in range(n)], "classes": 4,
            "activation": rng.choice(["relu", "gelu", "tanh"]), "dropout": rng.choice([0, 0, 0.2])}, n


def draw_chain(rng):
    layers, units = [], rng.randrange(2, 5)
    for _ in range(units):
        layers.append({"op": "linear", "out": rng.randrange(4, 20), "bias": rng.random() < 0.8})
        layers += rng.sample([{"op": "gelu"}, {"op": "dropout", "p": 0.3}, {"op": "layernorm"}], rng.randrange(3))
    return {"type": "chain", "input": 9, "layers": [*layers, {"op": "linear", "out": 4}]}, units


def draw_gpt(rng):
    n = rng.randrange(2, 4)
    return {"type": rng.choice(["gpt2", "llama"]), "layers": n, "heads": 2, "width": 8, "vocab": 30, "context": 5,
            "tied": False}, n


def draw_optimizer(rng):
    return rng.choice([{"type": "adamw", "lr": 0.01}, {"type": "adamw", "lr": 0.003, "weight_decay": 0.1},
                       {"type": "sgd", "lr": 0.01, "momentum": 0.9}, {"type": "sgd", "lr": 0.02}])


def draw_local(rng, units):
    """A number of blocks that the model allows, and now and then a rate for each."""
    scheme = rng.choice(["chunked", "chunked", "greedy", "overlapping"])
    most = units - (scheme == "overlapping")
    n = units if scheme == "greedy" else rng.randrange(min(2, most), most + 1)
    method = local(scheme, None if scheme == "greedy" else n)
    if scheme != "greedy" and rng.random() < 0.3:
        method["each"] = [rng.choice([{}, {"lr": 0.02}, {"schedule": {"type": "linear", "warmup_steps": 2}}])
                          for _ in range(n)]
    if n > 1 and rng.random() < 0.3:
        method["head"] = {"hidden": rng.randrange(3, 9)}
    return method


def draw_sil(rng, units):
    n = rng.randrange(1, min(units, 4) + 1)
    method = sil(n, kappa=rng.choice([1.0, 3.0, 10.0]), recovery_epochs=rng.choice([0, 0, 1]))
    if rng.random() < 0.35:
        method["concurrent"] = True
    elif rng.random() < 0.5:
        method["each"] = [rng.choice([{}, {"global_batch": 10, "micro_batch": 5, "replicas": 1}, {"steps": 5},
                                      {"optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.9}}]) for _ in range(n)]
    return method


def draw_job(rng):
    kind = rng.choice(["local", "local", "sil"])
    model, units = rng.choice([draw_mlp, draw_chain] + [draw_gpt] * (kind == "local"))(rng)
    batch, micro, replicas = rng.choice([(12, 4, 1), (12, 2, 3), (6, 6, 1), (8, 1, 2), (9, 3, 1)])
    spec = job(JOB, {"model": model, "init.seed": rng.randrange(1000), "optimizer": draw_optimizer(rng),
                     "train": {"steps": rng.choice([7, 11, 13]), "global_batch": batch, "micro_batch": micro,
                               "replicas": replicas},
                     "data.samples": rng.choice([36, 41, 60]),
                     "method": draw_local(rng, units) if kind == "local" else draw_sil(rng, units),
                     "eval.every": {"steps": rng.choice([4, 5, 9])}, "checkpoint.every": {"steps": rng.choice([3, 7, 8])}})
    for key, value, chance in (("grad_clip", 0.3, 0.5), ("label_smoothing", 0.1, 0.2), ("on_nonfinite", "skip", 0.2)):
        if rng.random() < chance:
            spec["train"][key] = value
    return spec


def with_steps(spec, k):
    """The job with k steps in a cycle."""
    if spec["method"]["type"] == "sil":
        return job(spec, {"memory.cycle_steps": k})
    return spec if spec["method"]["scheme"] == "overlapping" else job(spec, {"method.resident_steps": k})


# ---- machines ----

def draw_machine(t, rng, path):
    options = ["--policy", rng.choice([*POLICIES, "blocks"]), "--devices", rng.randrange(1, 5), "--optimizer-on",
               rng.choice(["auto", "host", "device"])]
    least = least_bytes(t, path, *options)
    return [*options, "--device-memory", rng.choice([least, rng.randrange(least, 3 * least), PLENTY]),
            "--threads", rng.choice([1, 2]), *(["--delay-seed", rng.randrange(1, 1000)] if rng.random() < 0.4 else [])]


def run_anyhow(t, rng, spec):
    """Runs a job on drawn machines, killed up to three times. Returns the output directory and how it ran."""
    out, how, lines = t.fresh("out"), [], 0
    for _ in range(rng.choice([0, 1, 1, 3]) + 1):
        k = rng.choice([*STEPS_OF_A_CYCLE, "auto"])
        path = write_job(t, with_steps(spec, k))
        options = draw_machine(t, rng, path)
        how.append(" ".join(map(str, [f"k={k}", *options])))
        lines += rng.randrange(1, 9)
        t.notes[1:] = ["# ran with: " + "; ".join(how)]
        if not kill_after(t, path, out, lines, *options):
            break
    t.worker("--run", path, "--output", out, "--quiet", *options)
    for device in read_json(os.path.join(out, "result.json"))["devices"]:
        t.check(device["peak_bytes"] <= device["capacity_bytes"], f"peak: {device}")
    return out, "; ".join(how)


@case(each=range(1, random_cases(24) + 1))
def test_random_job_has_the_bits_of_sequential_execution(t, seed):
    rng = random.Random(seed)
    spec = draw_job(rng)
    t.notes.append(f"# job: {spec}")
    reference = train(t, with_steps(spec, 1), "reference", "--policy", "resident", "--threads", 1)
    want = bits(reference)
    t.equal(len(checkpoint_steps(reference)), len({m["step"] for m in want["figures"]} & set(checkpoint_steps(reference))),
            "checkpoints at steps with figures")
    for _ in range(2):
        out, how = run_anyhow(t, rng, spec)
        same_bits(t, out, want, how)
