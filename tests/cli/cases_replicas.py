"""Jobs with replicas: part of the spec, so part of what a result depends on; not of where they run."""
import os

from cases_svg import check_picture
from files import (DELETE, POLICIES, SMALL, check_output, checkpoint_steps, job, leftovers, outcome, plan_program, plan_rows,
                   read_json, same_outcome, steps_in_metrics, write_job)
from harness import case, once

REPLICAS = job(SMALL, {"train.replicas": 2, "train.micro_batch": 4, "train.grad_clip": 0.5, "model.dropout": 0.1})


@case
def test_replicas_bits_same_on_any_devices_and_memory(t):
    path, expected = write_job(t, REPLICAS), None
    for devices in (1, 2, 4):
        for update in ("host", "device"):
            options = ["--devices", devices, "--optimizer-on", update]
            least = t.worker("--check", path, "--json", *options).json()["least_device_bytes"]
            for memory in (least, 1 << 20):
                out = t.fresh("out")
                r = t.worker("--run", path, "--output", out, "--quiet", "--json", *options, "--device-memory", memory,
                             "--delay-seed", devices).json()
                t.equal((r["replicas"], r["micro_batch"]), (2, 4), "the report")
                if expected is None:
                    expected = outcome(out)
                same_outcome(t, out, expected, f"{options} {memory}")


@case
def test_replicas_change_the_order_of_sums_and_no_more(t):
    hashes, first = set(), None
    for replicas in (1, 2, 3):
        out = t.fresh("out")
        r = t.worker("--run", write_job(t, job(REPLICAS, {"train.replicas": replicas})), "--output", out, "--quiet",
                     "--json").json()
        hashes.add(r["weights_hash"])
        first = first or r["loss"]
        t.check(abs(r["loss"] - first) < 1e-4 * first, f"the loss with {replicas} replicas is {r['loss']}, with 1 {first}")
    t.equal(len(hashes), 3, "different weights")


@case
def test_replicas_are_resolved_once(t):
    out = t.path("out")
    t.worker("--run", write_job(t, job(REPLICAS, {"train.steps": 2})), "--quiet", "--output", out)
    before = read_json(os.path.join(out, "resolved.json"))
    t.equal(before["train"]["replicas"], 2, "resolved.json")
    r = t.worker("--run", write_job(t, job(REPLICAS, {"train.replicas": "auto"})), "--quiet", "--json", "--output",
                 out).json()
    t.equal((r["replicas"], r["resumed_from"]), (2, 2), "what auto means then")
    run = t.worker("--run", write_job(t, job(REPLICAS, {"train.replicas": 3})), "--quiet", "--output", out, expect=2)
    t.contains(run.err, "another spec", what="the message")


@case
def test_micro_batch_auto_divides_what_a_replica_has(t):
    r = t.worker("--check", write_job(t, job(REPLICAS, {"train.micro_batch": "auto", "train.replicas": 4})), "--json").json()
    t.equal(r["resolved"]["replicas"], 4, "replicas")
    t.check(24 // 4 % r["resolved"]["micro_batch"] == 0, f"micro_batch is {r['resolved']['micro_batch']}")
    text = t.worker("--check", write_job(t, REPLICAS)).out
    t.contains(text, "in micro-batches of 4 by 2 replicas", what="the page")


# ---- on any number of devices ----

FOUR = job(REPLICAS, {"train.replicas": 4, "train.micro_batch": 3})


def reference(t):
    """The outcome of FOUR on one device where everything fits."""

    def make():
        out = t.fresh("reference")
        t.worker("--run", write_job(t, FOUR), "--output", out, "--quiet", "--policy", "resident", "--devices", 1, "--threads", 1)
        return outcome(out)

    return once("four replicas", make)


@case(each=POLICIES)
def test_four_replicas_are_the_same_bits_on_one_to_four_devices(t, policy):
    path = write_job(t, FOUR)
    for devices in (1, 2, 3, 4):
        options = ["--devices", devices, "--policy", policy]
        least = t.worker("--check", path, "--json", *options).json()["least_device_bytes"]
        for memory in (least, 2 * least, 1 << 20):
            out = t.fresh("out")
            r = t.worker("--run", path, "--output", out, "--quiet", "--json", *options, "--device-memory", memory, "--delay-seed",
                         devices).json()
            t.equal((r["replicas"], len(r["devices"])), (4, devices), "the report")
            same_outcome(t, out, reference(t), f"{options} {memory}")
            t.check("val_loss" in r, "no evaluation")


@case
def test_killed_replicas_go_on_elsewhere_to_the_same_bits(t):
    path, out, plain = write_job(t, job(FOUR, {"train.steps": 60})), t.path("out"), t.path("plain")
    for devices, goal in ((4, 10), (2, 25), (1, 35), (3, 45)):
        live = t.start("--run", path, "--output", out, "--quiet", "--devices", devices, "--device-memory", "96KiB", "--delay-seed",
                       devices)
        live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal}")
        live.kill()
        check_output(out)
        t.check(checkpoint_steps(out), "no checkpoint")
    r = t.worker("--run", path, "--output", out, "--quiet", "--json", "--devices", 2).json()
    t.check(r["resumed_from"] >= 40 or r["steps"] == 60, f"resumed from {r['resumed_from']}")
    t.worker("--run", path, "--output", plain, "--quiet", "--devices", 1)
    same_outcome(t, out, outcome(plain), "killed and gone on")
    t.equal(leftovers(out), [], "left behind")


# ---- the plan ----

DATA_PARALLEL = ["--devices", 2, "--device-memory", "1MiB"]
FORMS = {"auto": [], "harmony-dp": ["--policy", "harmony-dp"]}
CHOOSES = {"auto": ("auto", "harmony-dp"), "harmony-dp": ("harmony-dp",)}  # a plan bears the name of the policy that made it


def operand_bytes(plan, operand):
    """The byte range that an operand covers: all of the tensor, or the part that it names."""
    one = plan_rows(plan, "operands", [operand])[0]
    return one.get("begin", 0), one.get("end", plan_rows(plan, "tensors", [plan["tensors"][one["tensor"]]])[0]["bytes"])


def moved_by(plan, program):
    """Bytes over links of one run of a program of a plan file, by way."""
    sums = {"in": 0, "out": 0, "peer": 0}
    for instr in plan_program(plan, program):
        way = {"FETCH": "in", "SPILL": "out", "SEND": "peer"}.get(instr["kind"])
        if way:
            begin, end = operand_bytes(plan, instr["operands"][0])
            sums[way] += end - begin
    return sums


@case(each=list(FORMS))
def test_bytes_of_replicas_are_those_of_the_plan(t, policy):
    path, out = write_job(t, job(FOUR, {"eval": DELETE, "checkpoint": DELETE, "data.val_samples": DELETE})), t.path("out")
    options = [*DATA_PARALLEL, *FORMS[policy]]
    t.worker("--plan", path, *options, "--out", t.path("plan.json"))
    plan = read_json(t.path("plan.json"))
    t.equal((plan["n_replicas"], plan["n_devices"]), (4, 2), "the plan")
    t.check(plan["policy"] in CHOOSES[policy], f"{policy} chose {plan['policy']}")
    t.worker("--run", path, "--output", out, "--quiet", *options)
    r = read_json(os.path.join(out, "result.json"))
    cycle, *once_each = (moved_by(plan, name) for name in ("cycle", "entry", "flush", "exit"))  # flush: the last checkpoint
    for way in ("in", "out", "peer"):
        t.equal(r["step_bytes"][way], cycle[way], f"a step's bytes {way}")
        t.equal(r["counted_bytes"][way], r["steps"] * cycle[way] + sum(p[way] for p in once_each), f"counted bytes {way}")


@case(each=list(FORMS))
def test_file_of_a_data_parallel_plan_has_shares(t, policy):
    """What of it is read again, tests/unit/test_explain.c shows."""
    t.worker("--plan", write_job(t, FOUR), *DATA_PARALLEL, *FORMS[policy], "--out", t.path("plan.json"))
    plan = read_json(t.path("plan.json"))
    shares = {}
    for instr in plan_program(plan, "cycle"):
        if instr["kind"] == "RED":
            key = instr["layer"], instr["replica"]
            shares.setdefault(key, []).append(operand_bytes(plan, instr["operands"][0]))
    t.equal(len(shares), 4 * 3, "layers times replicas that are added")
    for (layer, replica), parts in shares.items():
        bytes_of = [w["bytes"] for w in plan_rows(plan, "tensors") if w["kind"] == "W" and w["layer"] == layer][0]
        t.equal([b for a, b in sorted(parts)][:-1], [a for a, b in sorted(parts)][1:], f"parts of layer {layer}, replica {replica}")
        t.equal((min(parts)[0], max(parts)[1]), (0, bytes_of), f"parts of layer {layer}")
    t.check(any(len(parts) == 2 for parts in shares.values()), "no layer is shared")
    dump = t.worker("--plan", write_job(t, FOUR), *DATA_PARALLEL, *FORMS[policy], "--dump").out
    t.contains(dump, "RED", "SEND", "replicas 4", what="the dump")


@case(each=list(FORMS))
def test_picture_and_trace_of_a_data_parallel_plan(t, policy):
    texts = check_picture(t, 2, "--plan", write_job(t, FOUR), *DATA_PARALLEL, *FORMS[policy], "--profile", "none")
    t.check({"RED", "send"} <= set(texts), f"the legend lacks reductions or sends: {texts}")


@case
def test_trace_of_a_run_with_replicas_has_measured_and_predicted(t):
    path, out = write_job(t, FOUR), t.path("out")
    r = t.worker("--run", path, "--output", out, "--json", "--quiet", *DATA_PARALLEL).json()
    t.worker("--plan", path, *DATA_PARALLEL, "--out", t.path("plan.json"), "--output", t.path("nothing"))
    cycle = plan_program(read_json(t.path("plan.json")), "cycle")
    events = read_json(os.path.join(out, "trace.json"))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    t.equal(len(spans) % sum(instr["kind"] != "DROP" for instr in cycle), 0, "whole runs of the cycle")
    t.check(any(e["name"].startswith("RED") for e in spans), "no reduction in the trace")
    copied = [e for e in spans if e["name"].startswith("COPY")]
    one = [e for e in spans if e["cat"] == "move" and e["args"]["run"] == 0 and e not in copied]
    t.equal(sum(e["args"]["bytes"] for e in one), 2 * sum(r["step_bytes"][way] for way in ("in", "out", "peer")),
            "bytes of one step, measured and predicted")


@case
def test_all_policies_plan_a_job_with_replicas(t):
    path = write_job(t, FOUR)
    for devices in (1, 2, 3):
        where = ["--devices", devices, "--device-memory", "1MiB"]
        listed = t.worker("--plan", path, *where, "--policy", "all", "--json").json()
        t.equal([p["policy"] for p in listed], POLICIES, "policies")
        t.check(all(p["verified"] for p in listed), "not verified")
        for p in listed:
            alone = t.worker("--plan", path, *where, "--policy", p["policy"], "--json", "--no-what-if").json()
            t.equal(alone["iteration_s"], p["iteration_s"], p["policy"])
        table = t.worker("--plan", path, *where, "--policy", "all").out
        t.contains(table, *POLICIES, what="the table")
