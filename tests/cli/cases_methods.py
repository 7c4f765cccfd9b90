"""The methods local and sil as their user sees them: keys and refusals, what a plan and a report say, what is exported."""
import json
import os

from files import DELETE, SMALL, job, read_json, read_safetensors, write_job
from harness import case

LOCAL = job(SMALL, {"method": {"type": "local", "scheme": "chunked", "blocks": 2}})
SIL = job(SMALL, {"method": {"type": "sil", "partitions": 2}})


def run(t, spec, *options, out="out", **more):
    path = t.path(out)
    t.worker("--run", write_job(t, spec), "--output", path, "--quiet", *options, **more)
    return path


# ---- export ----

@case
def test_export_drops_the_heads_or_keeps_them(t):
    out = run(t, LOCAL)
    plain, both = t.path("plain.safetensors"), t.path("both.safetensors")
    result = t.worker("--export", out, "--out", plain, "--json").json()
    t.equal(result["weights_hash"], read_json(os.path.join(out, "result.json"))["weights_hash"], "hash of the model")
    t.worker("--export", out, "--out", both, "--heads")
    model, _ = read_safetensors(plain)
    all_of_it, _ = read_safetensors(both)
    added = {name: v for name, v in all_of_it.items() if name not in model}
    t.check(not any(name.startswith("heads.") for name in model), "a head in the plain export")
    t.equal(sorted(added), ["heads.0.out.bias", "heads.0.out.weight"], "tensors of heads")
    t.equal({name: all_of_it[name] for name in model}, model, "the model's tensors")
    t.equal(added, read_safetensors(os.path.join(out, "checkpoints", "step-5", "method.safetensors"))[0], "the heads")


@case
def test_export_of_heads_is_refused_without_heads(t):
    for spec, out in ((SMALL, "backprop"), (SIL, "sil")):
        run(t, spec, out=out)
        r = t.worker("--export", t.path(out), "--out", t.path("w"), "--heads", "--json", expect=2).json()
        t.contains(r["path"] + ": " + r["message"], "--heads: there are no heads", what=out)
        t.check(not os.path.exists(t.path("w")), f"{out}: a file was written")
    r = t.worker("--export", t.path("sil"), "--hf", t.path("w"), "--heads", "--json", expect=2).json()
    t.contains(r["message"], "no place for heads", what="the message with --hf")


# ---- what is reported ----

@case
def test_report_has_the_work_beside_that_of_backpropagation(t):
    """By the formulas of the layers: a dense layer takes 2 FLOP per weight and row forward, and 4 backward."""
    model = {"type": "mlp", "input": 32, "hidden": [64, 64, 64], "classes": 8}
    base = job(SMALL, {"model": model})
    backprop = read_json(os.path.join(run(t, base, out="backprop"), "result.json"))["flops"]
    t.equal((backprop["total"], backprop["sequential"]), (backprop["backprop"],) * 2, "backpropagation")
    dense = 6 * 24 * 5 * (32 * 64 + 2 * 64 * 64 + 64 * 8)
    t.check(dense <= backprop["total"] < 1.1 * dense, f"{dense} in dense layers, {backprop['total']} in all")
    work = {}
    for scheme in ({"scheme": "chunked", "blocks": 2}, {"scheme": "greedy"}, {"scheme": "overlapping", "blocks": 2}):
        spec = job(base, {"method": {"type": "local", **scheme}})
        f = work[scheme["scheme"]] = read_json(os.path.join(run(t, spec, out=scheme["scheme"]), "result.json"))["flops"]
        t.equal(f["backprop"], backprop["total"], f"{scheme}: backpropagation")
        t.check(f["total"] > backprop["total"], f"{scheme}: heads cost something")
        t.check(f["sequential"] < backprop["total"], f"{scheme}: blocks work side by side")
    t.check(work["greedy"]["sequential"] < work["chunked"]["sequential"], "shorter blocks have less to do in a row")
    t.check(work["overlapping"]["total"] > work["chunked"]["total"], "a shared layer is taken backward twice")
    sil = read_json(os.path.join(run(t, job(base, {"method": {"type": "sil"}}), out="sil"), "result.json"))["flops"]
    t.equal(sil["total"], sil["sequential"], "phases come one after another")


@case
def test_blocks_are_reported_and_evaluated_on_request(t):
    for heads in (False, True):
        out = run(t, job(LOCAL, {"eval.heads": heads}), out=f"out-{heads}")
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        steps = [m for m in lines if "loss" in m]
        t.equal([[b["block"] for b in m["blocks"]] for m in steps], [[0, 1]] * 5, "blocks of steps")
        t.check(all(m["blocks"][1]["loss"] == m["loss"] for m in steps), "the loss is that of the last block")
        evals = [m for m in lines if "val/loss" in m]
        t.equal(["blocks" in m for m in evals], [heads] * 2, "blocks of evaluations")
        for m in evals if heads else []:
            t.equal(m["blocks"][1], {"block": 1, "loss": m["val/loss"], "accuracy": m["val/accuracy"]}, "last block")
        blocks = read_json(os.path.join(out, "result.json"))["blocks"]
        t.equal(blocks, [{k: b[k] for k in ("block", "loss", "accuracy")} for b in steps[-1]["blocks"]], "the report")


@case
def test_learning_of_labels_is_judged_without_evaluations(t):
    spec = job(SIL, {"eval": DELETE, "train.steps": 20, "data.val_samples": DELETE, "method.kappa": 1000})
    out = run(t, spec)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        judged = [m for m in map(json.loads, f) if "labels" in m]
    t.equal([m["step"] for m in judged], list(range(2, 21, 2)), "steps of judgements")
    t.check(all(m["val/nearest_label_accuracy"] is None for m in judged), "nobody counted the nearest labels")
    labels = read_json(os.path.join(out, "result.json"))["labels"]
    t.equal([(m["verdict"], "advice" in m) for m in labels], [("dead", True)], "the verdict in the report")
