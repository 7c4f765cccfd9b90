"""What a job leaves: result.json when something went wrong, and the weights, which --export takes out. And specs that
come from standard input."""
import json
import os
import shutil

from files import SMALL, crc32c, job, leftovers, read_json, read_safetensors, sha256, write_job
from harness import case

# ---- result.json ----

def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))


@case
def test_failure_of_run_is_in_the_output_until_a_run_goes_well(t):
    out, diverges = t.path("out"), job(SMALL, {"optimizer": {"type": "sgd", "lr": 1e30}})
    run = t.worker("--run", write_job(t, diverges), "--output", out, "--quiet", "--json", expect=1)
    r, found = run.json(), read_json(os.path.join(out, "result.json"))
    t.equal(found, {**r, "steps": found["steps"]}, "result.json and what was printed")
    t.equal(found["steps"], 1, "steps that went well")
    t.worker("--run", write_job(t, job(diverges, {"train.on_nonfinite": "skip"})), "--output", out, "--quiet")
    t.equal(read_json(os.path.join(out, "result.json"))["ok"], True, "result.json: ok")
    t.equal(leftovers(out), [], "left behind")


@case
def test_complete_job_whose_last_checkpoint_is_damaged_keeps_its_result(t):
    out, path = t.path("out"), write_job(t, SMALL)
    t.worker("--run", path, "--output", out, "--quiet")
    before = sha256(os.path.join(out, "result.json"))
    flip(os.path.join(out, "checkpoints", "step-5", "model.safetensors"), -1)
    t.worker("--run", path, "--output", out, "--quiet", expect=1)
    t.equal(sha256(os.path.join(out, "result.json")), before, "result.json")


# ---- standard input ----

def from_input(t, text, *options, expect=0):
    with open(t.path("input"), "w", encoding="utf-8") as f:
        f.write(text)
    run = t.command(["sh", "-c", '"$0" "$@" < "' + t.path("input") + '"', t.program, *map(str, options)])
    t.equal(run.code, expect, "exit code")
    return run


@case
def test_spec_from_standard_input_with_a_directory(t):
    text = "// a comment\n" + json.dumps(SMALL)
    r = from_input(t, text, "--check", "-", "--dir", t.dir, "--json").json()
    t.equal((r["ok"], r["output"], r["devices_asked"]), (True, t.path("runs", "small"), {"min": 1, "max": 1}), "check")
    t.equal(from_input(t, text, "--plan", "-", "--json").json()["verified"], True, "verified")
    r = from_input(t, "{", "--check", "-", "--json", expect=2).json()
    t.contains(r["path"] + r["message"], "standard input", what="the error")
    path = write_job(t, job(SMALL, {"resources.devices": {"min": 2, "max": 4}}))
    here = t.worker("--check", path, "--json", cwd=t.dir).json()
    t.equal(here["output"], os.path.join(os.path.realpath(t.dir), "runs", "small"), "output of a relative path")
    t.equal(here["devices_asked"], {"min": 2, "max": 4}, "devices_asked")


# ---- export ----

def trained(t):
    out = t.path("out")
    t.worker("--run", write_job(t, job(SMALL, {"checkpoint": {"every": {"steps": 2}, "keep": 9}})), "--output", out,
             "--quiet")
    return out


@case
def test_export_writes_the_weights_of_a_finished_job(t):
    out, file = trained(t), t.path("weights.safetensors")
    r = t.worker("--export", out, "--out", file, "--json").json()
    result = read_json(os.path.join(out, "result.json"))
    t.equal((r["ok"], r["file"], r["step"]), (True, file, 5), "report")
    t.equal((r["weights_hash"], r["bytes"]), (result["weights_hash"], os.path.getsize(file)), "hash and bytes")
    weights, metadata = read_safetensors(file)
    t.equal((r["tensors"], metadata["step"]), (len(weights), "5"), "tensors")
    t.equal(r["parameters"], sum(len(values) for _, values in weights.values()), "parameters")
    t.equal(sha256(file), sha256(os.path.join(out, "model.safetensors")), "the file")
    t.contains(t.worker("--export", out, "--out", file, "--force").out, result["weights_hash"], what="the text")
    t.equal([n for n in os.listdir(t.dir) if "tmp" in n], [], "left behind")


@case(each=[("2", 2), ("last", 5), ("best", None)])
def test_export_writes_the_weights_of_a_checkpoint(t, value):
    word, step = value
    out, file = trained(t), t.path("w")
    if step is None:  # 2 was not evaluated
        evals = {s: read_json(os.path.join(out, "checkpoints", f"step-{s}", "state.json"))["metrics"] for s in (4, 5)}
        step = max(evals, key=lambda s: (evals[s]["val/accuracy"], -evals[s]["val/loss"]))
    r = t.worker("--export", out, "--out", file, "--step", word, "--json").json()
    t.equal(r["step"], step, "step")
    t.equal(sha256(file), sha256(os.path.join(out, "checkpoints", f"step-{step}", "model.safetensors")), "the file")


def set_evaluation(out, step, loss, accuracy):
    """Gives a checkpoint this evaluation, as if its job had found it."""
    path = os.path.join(out, "checkpoints", f"step-{step}", "state.json")
    state = read_json(path)
    state.update({"metrics": {"val/loss": loss, "val/accuracy": accuracy}, "self_crc32c": "00000000"})
    state["self_crc32c"] = state.pop("self_crc32c")  # the last one
    raw = (json.dumps(state, separators=(",", ":")) + "\n").encode()
    with open(path, "wb") as f:
        f.write(raw.replace(b'00000000"}\n', crc32c(raw).encode() + b'"}\n'))


@case(each=[("by loss", "val/loss", 4, "val/loss"), ("by accuracy", "val/accuracy", 5, "val/accuracy"),
            ("not said", None, 5, "val/accuracy")])
def test_export_of_the_best_goes_by_what_the_job_calls_best(t, value):
    _, best, step, by = value
    out, rules = t.path("out"), {"every": {"steps": 2}, "keep": 9}
    if best is not None:
        rules["best"] = best
    t.worker("--run", write_job(t, job(SMALL, {"checkpoint": rules})), "--output", out, "--quiet")
    set_evaluation(out, 2, 3.0, 0.1)
    set_evaluation(out, 4, 0.5, 0.8)  # the smallest loss
    set_evaluation(out, 5, 0.7, 0.9)  # the greatest accuracy
    r = t.worker("--export", out, "--out", t.path("w"), "--step", "best", "--json").json()
    t.equal((r["step"], r["best_by"]), (step, by), "step and metric")
    text = t.worker("--export", out, "--out", t.path("w"), "--step", "best", "--force").out
    t.contains(text, f"after step {step} (best by {by})", what="the text")


@case
def test_export_of_the_best_goes_by_what_the_job_said_last(t):
    out, rules = t.path("out"), {"every": {"steps": 2}, "keep": 9, "best": "val/accuracy"}
    t.worker("--run", write_job(t, job(SMALL, {"checkpoint": rules})), "--output", out, "--quiet")
    rules["best"] = "val/loss"
    t.worker("--run", write_job(t, job(SMALL, {"checkpoint": rules, "train.steps": 6})), "--output", out, "--quiet")
    for step, loss, accuracy in ((2, 3.0, 0.1), (4, 0.5, 0.8), (5, 0.7, 0.9), (6, 0.6, 0.7)):
        set_evaluation(out, step, loss, accuracy)
    r = t.worker("--export", out, "--out", t.path("w"), "--step", "best", "--json").json()
    t.equal((r["step"], r["best_by"]), (4, "val/loss"), "step and metric")


@case
def test_export_of_a_job_that_has_not_ended_takes_the_newest_checkpoint(t):
    out = trained(t)
    os.remove(os.path.join(out, "result.json"))  # its model.safetensors may be of an earlier, shorter run
    shutil.rmtree(os.path.join(out, "checkpoints", "step-5"))
    t.equal(t.worker("--export", out, "--out", t.path("w"), "--json").json()["step"], 4, "step")


@case
def test_export_replaces_nothing_without_force(t):
    out, file = trained(t), write_job(t, SMALL, "precious")
    before = sha256(file)
    t.contains(t.worker("--export", out, "--out", file, expect=2).err, file, "--force", what="standard error")
    t.equal(sha256(file), before, "the file")
    t.worker("--export", out, "--out", file, "--force")
    read_safetensors(file)


@case(each=[("no directory", "nowhere", [], 6), ("an empty directory", "empty", [], 6),
            ("no such step", "out", ["--step", 3], 6), ("no number", "out", ["--step", "-1"], 2),
            ("another word", "out", ["--step", "bset"], 2)])
def test_export_of_what_is_not_there_is_refused(t, value):
    _, name, options, code = value
    if name == "out":
        trained(t)
    os.makedirs(t.path("empty"))
    r = t.worker("--export", t.path(name), "--out", t.path("w"), "--json", *options, expect=code).json()
    t.equal((r["ok"], r["exit"]), (False, code), "the JSON error")
    t.check(not os.path.exists(t.path("w")), "a file was written")


@case
def test_export_into_no_directory_is_refused(t):
    run = t.worker("--export", trained(t), "--out", t.path("no", "w"), expect=2)
    t.contains(run.err, t.path("no", "w"), what="standard error")


@case
def test_export_needs_a_file(t):
    t.contains(t.worker("--export", t.dir, expect=2).err, "--out", what="standard error")


@case(each=[("model of the job", [], "model.safetensors", -1), ("header", [], "model.safetensors", 9),
            ("checkpoint", ["--step", 4], "checkpoints/step-4/model.safetensors", -1),
            ("state", ["--step", 4], "checkpoints/step-4/state.json", 20)])
def test_export_of_damaged_weights_names_the_file(t, value):
    _, options, name, at = value
    out = trained(t)
    flip(os.path.join(out, name), at)
    run = t.worker("--export", out, "--out", t.path("w"), *options, expect=1)
    t.contains(run.err, os.path.join(out, name), what="standard error")
    t.check(not os.path.exists(t.path("w")), "damaged weights were exported")
    t.equal([n for n in os.listdir(t.dir) if n.endswith(".tmp")], [], "left behind")
