"""A job that plans for long: it says so, it can be cancelled and shut down meanwhile, and then no step is trained."""
import os
import signal

from harness import case
from harness_daemon import Daemon, RpcError, SIGTERM, process_state, spec, until

LAYERS, MICROS = 30, 1024  # about 60,000 tasks: some seconds of planning

PLANS_LONG = {
    "schema": "job/v1",
    "name": "plans-long",
    "model": {"type": "mlp", "input": 8, "hidden": [8] * (LAYERS - 2), "classes": 4},
    "data": {"format": "synthetic", "samples": 2 * MICROS, "val_samples": 4},
    "train": {"steps": 1, "global_batch": MICROS, "micro_batch": 1},
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "resources": {"device_memory": "64KiB", "host_memory": "2GiB"},
}


class Planning:
    """A job whose worker is stopped (SIGSTOP) while it plans, so that a case has all the time it needs."""

    def __init__(self, t, d):
        self.d, self.out = d, t.fresh("out")
        self.client = d.connect()
        self.id = d.submit(spec(self.out, base=PLANS_LONG))["id"]
        self.client.watch(id=self.id, since=0)
        self.event = self.client.wait_event("planning")
        self.pid = d.show(self.id)["pid"]
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: process_state(self.pid) == "T", "the worker is stopped")

    def thaw(self):
        os.kill(self.pid, signal.SIGCONT)

    def check_untrained(self, t):
        job = self.d.show(self.id)
        t.equal(job["step"], 0, "step")
        t.check(not os.path.exists(self.out), "there is an output")
        t.check("planned" not in [e["event"] for e in self.client.events], "it was planned")
        return job


def start(t, **options):
    d = Daemon(t, devices=1, device_memory="64KiB", host_memory="2GiB", **options)
    d.start()
    return d


@case
def test_job_says_that_it_plans(t):
    d = start(t)
    p = Planning(t, d)
    t.check(p.event["tasks"] > 2 * (LAYERS - 1) * MICROS, f"the event: {p.event}")
    t.check(p.event["planning_bytes"] > p.event["tasks"] * 1000, f"the event: {p.event}")
    t.equal(p.event["micro_batch"], 1, "micro_batch")
    job = d.show(p.id)
    t.equal((job["state"], job["reason"]), ("running", f"planning a step of {p.event['tasks']} tasks"), "state and reason")
    p.thaw()
    d.call("cancel", id=p.id)
    t.equal(d.wait_job(p.id, "cancelled")["reason"], "", "reason")


@case
def test_cancel_while_planning_ends_cancelled_with_no_step(t):
    d = start(t)
    p = Planning(t, d)
    d.call("cancel", id=p.id)
    t.equal(d.show(p.id)["state"], "stopping", "state")
    p.thaw()
    job = d.wait_job(p.id, "cancelled")
    p.client.wait_event("ended")
    t.equal(job["report"], None, "report")
    p.check_untrained(t)


@case
def test_shutdown_while_planning_queues_the_job_again(t):
    d = start(t)
    p = Planning(t, d)
    d.signal(SIGTERM)
    p.client.wait_event("stopping")
    p.thaw()
    p.client.wait_event("queued")
    d.wait(expect=0)
    t.check(not os.path.exists(p.out), "there is an output")
    d.start()
    again = d.connect()
    again.watch(id=p.id, since=0)
    again.wait_event(lambda e: e["event"] == "planning")
    d.call("cancel", id=p.id)
    t.equal(d.wait_job(p.id, "cancelled")["step"], 0, "step")


@case
def test_planning_beyond_the_lease_fails_the_job_with_what_to_do(t):
    d = start(t)
    out = t.fresh("out")
    job = d.submit(spec(out, {"resources.host_memory": "300MiB"}, PLANS_LONG))
    job = d.wait_job(job["id"], "failed")
    t.equal((job["exit"], job["error"]["path"], job["failures"]), (5, "resources.host_memory", 0), "exit, path and failures")
    t.contains(job["error"]["message"], "planning a step of", "train.micro_batch of at least", "300.00 MiB")
    t.check(not os.path.exists(out), "there is an output")
