"""What a job needs of a machine: the client passes it with the submit, the worker replaces it, the daemon keeps and shows it.
It is a prediction, so it changes neither leases nor who runs."""
import json

from cases_client import tutti
from cases_protocol import PLANNED, Puppet, idle_daemon, refused
from files import write_job
from harness import case
from harness_daemon import SIGKILL, SIGTERM, Daemon, spec, until

MOST = 2**53 - 1
NEEDS = {"steps": 300, "step_ns": 12000000, "times": "analytic", "device_bytes": [50000000, 40000000],
         "host_bytes": {"planning": 1, "loading": 2, "running": 3, "saving": 4}}
HUGE = {"steps": MOST, "step_ns": MOST, "times": "measured", "device_bytes": [MOST] * 64,
        "host_bytes": {"planning": MOST, "loading": MOST, "running": MOST, "saving": MOST}}


def submit(d, out, **more):
    return d.call("submit", spec=spec(out), dir=d.t.dir, **more)["id"]


def known(j):
    return j["needs"], j["predicted_left_s"]


@case
def test_needs_of_the_submit_are_kept_and_those_of_the_worker_replace_them(t):
    d = idle_daemon(t)
    running, waiting, unknown = submit(d, "a", needs=NEEDS), submit(d, "b", needs=NEEDS), submit(d, "c")
    for number in (SIGKILL, SIGTERM):
        t.equal(known(d.show(waiting)), (NEEDS, 3.6), "a queued job")
        t.equal(known(d.show(unknown)), (None, None), "a job that came without needs")
        d.restart(number)
    p = Puppet(d, running, attempt=d.show(running)["attempt"])
    t.equal(known(d.show(running)), (NEEDS, 3.6), "a job that is not planned")
    planned = {**NEEDS, "step_ns": 500000000, "device_bytes": [7], "times": "measured"}
    p.tell("planned", **PLANNED, needs=planned)
    until(lambda: d.show(running)["needs"] == planned, "needs of the worker")
    p.tell("progress", step=290, total_steps=300)
    until(lambda: d.show(running)["predicted_left_s"] == 5, "time left after 290 of 300 steps")
    d.restart()
    t.equal(d.show(running)["needs"], planned, "with another daemon")
    t.equal(known(d.show(waiting)), (NEEDS, 3.6), "the other job")
    d.call("cancel", id=waiting)
    t.equal(known(d.show(waiting)), (NEEDS, None), "a cancelled job")
    d.call("cancel", id=running, now=True)
    until(lambda: known(d.show(running)) == (planned, None), "end")
    p.link.close()
    d.stop()


@case
def test_wrong_needs_are_refused_with_their_place(t):
    d = idle_daemon(t)
    wrong = [("needs", []), ("needs", None), ("needs.steps", {**NEEDS, "steps": -1}), ("needs.steps", {}),
             ("needs.step_ns", {**NEEDS, "step_ns": MOST + 1}), ("needs.times", {**NEEDS, "times": "guessed"}),
             ("needs.device_bytes", {**NEEDS, "device_bytes": [1] * 65}),
             ("needs.device_bytes[1]", {**NEEDS, "device_bytes": [1, "2"]}),
             ("needs.host_bytes", {**NEEDS, "host_bytes": 5}), ("needs.more", {**NEEDS, "more": 1})]
    for path, needs in wrong:
        refused(t, lambda: submit(d, "x", needs=needs), -32602, "EINVAL", path)
    t.equal(d.call("list")["jobs"], [], "jobs")
    d.stop()


@case
def test_false_needs_change_no_lease(t):
    """A user can send any numbers. The job gets the lease that it would get without them, and wrong needs of a worker are
    ignored."""
    leases = []
    for name, more in (("d", {}), ("e", {"needs": HUGE})):
        d = idle_daemon(t, name=name)
        job = submit(d, name, **more)
        p = Puppet(d, job)
        leases.append(p.given["lease"])
        for needs in (None, 5, [], {}, {**NEEDS, "steps": "x"}, {**NEEDS, "device_bytes": []}):
            p.tell("planned", **PLANNED, needs=needs)
        p.tell("progress", step=1, total_steps=3)
        until(lambda: d.show(job)["step"] == 1, "progress")
        t.equal(d.show(job)["needs"], more.get("needs"), "the needs")
        p.outcome(report={}, step=3)
        d.stop()
        d.t.command(["rm", d.t.path(f"secret-{job}-1")])
    t.equal(leases[1], leases[0], "the lease")


@case
def test_client_passes_what_the_check_found_and_shows_it(t):
    d = Daemon(t, devices=2, device_memory="1MiB").start()
    path = write_job(t, spec("out"))
    checked = json.loads(tutti(t, "check", path, "--json", "--devices", 2, "--device-memory", "1MiB", "--backend", "cpu").out)
    tutti(t, "submit", path, d=d)
    tutti(t, "wait", 1, d=d)
    shown = json.loads(tutti(t, "show", 1, "--json", d=d).out)
    t.equal(shown["needs"]["steps"], checked["steps"], "steps")
    t.equal(shown["needs"]["device_bytes"], shown["plan"]["device_peak_bytes"], "the devices, as planned")
    t.equal(round(shown["needs"]["step_ns"] * 1e-9, 9), round(shown["plan"]["iteration_s"], 9), "the time of a step")
    t.contains(tutti(t, "show", 1, d=d).out, "predicted", "per step", "of its device", "planning", "loading", "saving")
    d.stop()


@case
def test_submit_without_a_check_has_no_needs_until_it_is_planned(t):
    d = idle_daemon(t)
    for words, there in (((), True), (("--no-check",), False)):
        job = int(tutti(t, "submit", "-q", *words, write_job(t, spec("out")), d=d).out)
        needs = d.show(job)["needs"]
        t.equal(needs is not None, there, f"needs after submit {words}")
        t.contains(tutti(t, "show", job, d=d).out, "queued" if job > 1 else "job 1")
    for huge in (HUGE, {**HUGE, "step_ns": 0}):
        job = submit(d, "huge", needs=huge)
        t.contains(tutti(t, "show", job, d=d).out, "predicted", "8.00 PiB")
    d.stop()
