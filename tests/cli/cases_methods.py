"""The methods local and sil as their user sees them: keys and refusals, what a plan and a report say, what is exported."""
import os

from files import SMALL, job, read_json, read_safetensors, write_job
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
