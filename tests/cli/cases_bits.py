"""One resolved spec, one result: the bits do not depend on where and how a job runs."""
import os
import random

from files import (DELETE, POLICIES, SMALL, TINY, check_checkpoint, job, outcome, read_json, read_safetensors, same_outcome,
                   write_job)
from harness import case, once, spread

PLENTY = 1 << 20

CHAIN = {
    "type": "chain",
    "input": 40,
    "layers": [
        {"op": "linear", "out": 24},
        {"op": "gelu"},
        {"repeat": 2, "block": [{"op": "linear", "out": 24, "activation": "tanh"}, {"op": "dropout", "p": 0.2}]},
        {"op": "linear", "out": 4, "bias": False},
    ],
}

# What a job may have that could depend on the order of work.
JOBS = {
    "adamw": {},
    "dropout and clipping": {"model.dropout": 0.3, "train.grad_clip": 0.2},
    "dropout": {"model.dropout": 0.1, "train.micro_batch": 4},
    "sgd with momentum, clipping": {"optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
                                    "train.grad_clip": 0.5, "train.micro_batch": 12},
    "plain sgd, one micro-batch, no bias": {"optimizer": {"type": "sgd", "lr": 0.1}, "train.micro_batch": 24,
                                            "model.bias": False},
    "chain, cosine, skip": {"model": CHAIN, "schedule": {"type": "cosine", "warmup_steps": 2, "min_lr_ratio": 0.1},
                            "train.on_nonfinite": "skip", "train.micro_batch": 6},
    "mse, micro-batches of 1": {"model.loss": "mse", "train.global_batch": 5, "train.micro_batch": 1,
                                "model.activation": "gelu", "train.steps": 4},
}


def spec_of(name):
    return job(SMALL, JOBS[name])


def reference(t, name):
    """The outcome on one device where everything fits, with one thread."""

    def make():
        out = t.fresh("reference")
        t.worker("--run", write_job(t, spec_of(name)), "--output", out, "--quiet", "--policy", "resident",
                 "--devices", 1, "--threads", 1)
        for step in (4,) if name != "mse, micro-batches of 1" else ():
            check_checkpoint(out, step)
        return outcome(out)

    return once(("bits", name), make)


def least_bytes(t, path, *options):
    return t.worker("--check", path, "--json", *options).json()["least_device_bytes"]


def run_and_compare(t, path, expected, what, *options):
    out = t.fresh("out")
    run = t.worker("--run", path, "--output", out, "--quiet", "--json", *options)
    t.equal(run.json()["weights_hash"], expected["weights_hash"], f"{what}: weights_hash on standard output")
    same_outcome(t, out, expected, what)
    return run.json()


@case(each=spread((f"{name}; policy {policy}", name, policy) for name in JOBS for policy in POLICIES))
def test_bits_same_on_any_devices_and_memory(t, value):
    _, name, policy = value
    expected, path = reference(t, name), write_job(t, spec_of(name))
    rng = random.Random(f"{name} {policy}")
    turn = list(JOBS).index(name)  # so that the jobs together cover every number of devices with both updates
    for devices in (1, 2, 3, 4):
        update = ("host", "device")[(devices + turn) % 2]
        options = ["--policy", policy, "--devices", devices, "--optimizer-on", update]
        least = least_bytes(t, path, *options)
        for memory in (least, rng.randrange(least, 3 * least), PLENTY)[: 3 if devices == 1 + turn % 4 else 2]:
            more = [*options, "--device-memory", memory, "--threads", rng.choice((1, 2))]
            result = run_and_compare(t, path, expected, " ".join(map(str, more)), *more)
            for device in result["devices"]:
                t.check(device["peak_bytes"] <= device["capacity_bytes"] <= memory, f"peak: {result['devices']}")


@case(each=list(JOBS))
def test_bits_same_with_random_delays(t, name):
    expected, path = reference(t, name), write_job(t, spec_of(name))
    for seed in range(1, 4):
        memory = least_bytes(t, path, "--devices", seed)
        run_and_compare(t, path, expected, f"--delay-seed {seed}", "--delay-seed", seed, "--devices", seed,
                        "--device-memory", memory, "--threads", 1 + seed % 2)


@case
def test_bits_same_with_paced_copies(t):
    name = "dropout and clipping"
    expected, path = reference(t, name), write_job(t, spec_of(name))
    run_and_compare(t, path, expected, "paced", "--devices", 3, "--policy", "stream", "--device-memory", "64KiB",
                    "--link", "30MB", "--peer", "10MB")


@case
def test_bits_differ_when_the_job_does(t):
    """The comparison above can tell jobs apart."""
    seen = {}
    for name in JOBS:
        seen.setdefault(reference(t, name)["weights_hash"], []).append(name)
    seed = t.fresh("seed")
    t.worker("--run", write_job(t, job(SMALL, {"init.seed": 8})), "--output", seed, "--quiet")
    seen.setdefault(outcome(seed)["weights_hash"], []).append("another seed")
    t.equal([names for names in seen.values() if len(names) > 1], [], "jobs with equal weights")


@case
def test_bits_same_as_from_memory_and_resources_sections(t):
    """The spec says where to run in place of the command line."""
    name = "dropout and clipping"
    expected = reference(t, name)
    for memory, resources in (
        ({"policy": "stream", "optimizer_on": "device"}, {"devices": 3, "device_memory": "64KiB"}),
        ({"policy": "harmony-pp", "optimizer_on": "host"}, {"devices": {"min": 1, "max": 2}, "device_memory": 65536,
                                                            "host_memory": "1MB"}),
        ({"policy": "auto"}, {"devices": "auto", "device_memory": "auto", "host_memory": "auto"}),
    ):
        path = write_job(t, job(spec_of(name), {"memory": memory, "resources": resources}))
        result = run_and_compare(t, path, expected, f"{memory} {resources}")
        if memory["policy"] != "auto":
            t.equal(result["policy"], memory["policy"], "policy")
            t.equal(len(result["devices"]), 3 if resources["devices"] == 3 else 2, "devices")


@case(each=POLICIES)
def test_least_capacity_runs_and_less_does_not(t, policy):
    name = "dropout and clipping"
    path = write_job(t, spec_of(name))
    for devices in (1, 2, 3):
        options = ["--policy", policy, "--devices", devices]
        least = least_bytes(t, path, *options)
        run_and_compare(t, path, reference(t, name), f"{least} bytes", *options, "--device-memory", least)
        out = t.fresh("less")
        refused = t.worker("--run", path, "--output", out, *options, "--device-memory", least - 1, "--json", expect=5)
        t.equal(refused.json()["least_device_bytes"], least, "least_device_bytes")
        t.check(not os.path.exists(os.path.join(out, "metrics.jsonl")), "a job that does not fit began to train")


@case
def test_bytes_moved_are_those_of_the_plan(t):
    path = write_job(t, job(SMALL, {"eval": {"every": {"steps": 100}}}))
    for policy in POLICIES:
        out = t.fresh("out")
        r = t.worker("--run", path, "--output", out, "--json", "--quiet", "--policy", policy, "--devices", 2,
                     "--device-memory", PLENTY).json()
        with open(os.path.join(out, "metrics.jsonl")) as f:
            first = f.readline()
        for way in ("in", "out", "peer"):
            t.contains(first, f'"{way}_bytes":{r["step_bytes"][way]},', what="metrics")
            t.check(r["counted_bytes"][way] >= r["steps"] * r["step_bytes"][way],
                    f"{policy}: fewer bytes {way} than the plan says: {r}")
        t.equal(read_json(os.path.join(out, "result.json"))["step_bytes"], r["step_bytes"], "result.json")


@case(each=["auto", "host", "device"])
def test_report_compares_with_the_bound_and_with_lru(t, update):
    """Beside the bytes of a step stand the least that state and stash could be, and what a plan of lru moves."""
    path = write_job(t, SMALL)
    where = ["--devices", 2, "--optimizer-on", update]
    memory = least_bytes(t, path, *where)
    where += ["--device-memory", memory]
    fits = t.worker("--plan", path, "--policy", "lru", "--json", *where, expect=None)
    if fits.code == 5:  # "auto" puts the update of lru on the device; where that does not fit, the host does it
        t.equal(update, "auto", "optimizer_on")
        fits = t.worker("--plan", path, "--policy", "lru", "--json", *where[:2], *where[4:], "--optimizer-on", "host")
    lru = fits.json()
    out = t.fresh("out")
    r = t.worker("--run", path, "--output", out, "--quiet", "--json", *where).json()
    t.equal(r["lru_bytes"], {way: lru[f"{name}_bytes"] for way, name in
                             (("in", "host_in"), ("out", "host_out"), ("peer", "peer"))}, "lru_bytes")
    plan = t.worker("--plan", path, "--json", *where).json()
    moved = sum(r["step_bytes"][k] for k in ("state_in", "state_out", "stash_in", "stash_out"))
    t.equal(r["bound_bytes"], plan["bound_bytes"], "bound_bytes")
    t.check(0 < r["bound_bytes"] <= moved, f"bound {r['bound_bytes']}, moved {moved}")
    written = read_json(os.path.join(out, "result.json"))
    t.equal((written["bound_bytes"], written["lru_bytes"]), (r["bound_bytes"], r["lru_bytes"]), "result.json")
    run = t.worker("--run", path, "--output", t.fresh("text"), "--quiet", *where)
    t.contains(run.out, "bound     at least ", f", {moved / r['bound_bytes']:.2f} times that", "lru       in ",
               what="the report")


@case
def test_report_does_not_compare_huge_plans(t):
    model = {"type": "chain", "input": 4,
             "layers": [{"op": "linear", "out": 4}, {"repeat": 1100, "block": [{"op": "relu"}]}]}
    path = write_job(t, job(TINY, {"model": model, "train": {"steps": 1, "global_batch": 2}}))
    r = t.worker("--run", path, "--output", t.fresh("out"), "--quiet", "--json").json()
    t.equal(r["lru_bytes"], None, "lru_bytes")
    t.contains(r["lru_reason"], "on 1102 layers", what="lru_reason")
    run = t.worker("--run", path, "--output", t.fresh("text"), "--quiet")
    t.contains(run.out, "lru       not compared: ", what="the report")


@case
def test_learning_rate_of_the_step_is_what_is_applied(t):
    """Plain SGD moves weights by lr times a gradient. Two jobs alike up to step 1 and with lr and 2 lr in step 2."""
    lr, weights = 0.01, []
    for name, optimizer, schedule in (("constant", lr, {"type": "constant"}),
                                      ("warm-up", 2 * lr, {"type": "constant", "warmup_steps": 2})):
        spec = job(TINY, {"train.steps": 2, "train.grad_clip": DELETE, "optimizer": {"type": "sgd", "lr": optimizer},
                          "schedule": schedule, "checkpoint": {"every": {"steps": 1}, "keep": 2}})
        out = t.path(name)
        t.worker("--run", write_job(t, spec), "--quiet", "--output", out)
        weights.append([read_safetensors(os.path.join(out, "checkpoints", f"step-{s}", "model.safetensors"))[0]
                        for s in (1, 2)])
    (a1, a2), (b1, b2) = weights
    t.equal(a1, b1, "weights after step 1")
    moved = 0
    for name in a1:
        for before, once, twice in zip(a1[name][1], a2[name][1], b2[name][1]):
            t.check(abs((twice - before) - 2 * (once - before)) < 1e-6, f"{name}: {before} became {once} and {twice}")
            moved += abs(once - before) > 1e-5
    t.check(moved > 10, f"only {moved} weights moved")
