"""Jobs with replicas: part of the spec, so part of what a result depends on; not of where they run."""
import os

from files import SMALL, job, outcome, read_json, same_outcome, write_job
from harness import case

REPLICAS = job(SMALL, {"train.replicas": 2, "train.micro_batch": 4, "train.grad_clip": 0.5, "model.dropout": 0.1})
NO_PLANS = "plans for jobs with replicas are not made yet"


@case(defect=NO_PLANS)
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


@case(defect=NO_PLANS)
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


@case(defect=NO_PLANS)
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


@case(defect=NO_PLANS)
def test_micro_batch_auto_divides_what_a_replica_has(t):
    r = t.worker("--check", write_job(t, job(REPLICAS, {"train.micro_batch": "auto", "train.replicas": 4})), "--json").json()
    t.equal(r["resolved"]["replicas"], 4, "replicas")
    t.check(24 // 4 % r["resolved"]["micro_batch"] == 0, f"micro_batch is {r['resolved']['micro_batch']}")
    text = t.worker("--check", write_job(t, REPLICAS)).out
    t.contains(text, "in micro-batches of 4 by 2 replicas", what="the page")
