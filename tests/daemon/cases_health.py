"""Devices that fail under a worker: which are marked, who still gets them, what clears a mark, and what users are told.

The machines are of paper and the workers puppets (cases_machine.py), so a case says which device breaks when.
"""
import json

from cases_machine import FOUND, GIB, PAPER, becomes, changing_worker, found, paper_worker, probed
from cases_protocol import Puppet
from harness import case
from harness_daemon import Daemon, spec, until
import harness_daemon

ECC = "uncorrectable ECC error encountered"
TWO = {**PAPER, "devices": PAPER["devices"][:2]}  # numbers 0 and 3; the first has more memory
ONE = {**PAPER, "devices": PAPER["devices"][1:2]}
DELAY_MS = 100  # of restarts, so that a failed device stays failed for a minute


def daemon(t, machine=TWO, **options):
    return Daemon(t, worker=paper_worker(t, found(machine)), **{**FOUND, "restart_delay": DELAY_MS, **options}).start()


def breaks(p, *indices, reason=ECC, **more):
    """The worker tells that it failed because these devices did."""
    p.outcome("failed", 1, error={"errno": "EIO", "path": "", "message": "the devices failed in step 7"}, retry=True,
              failed_devices={"indices": list(indices), "reason": reason}, **more)


def states(d):
    return [(x["state"], x["errors"]) for x in d.call("devices")["devices"]]


def fail_the_only_device(t, d):
    """Of a job with three restarts; its id."""
    job = d.submit(spec("x"))["id"]
    for attempt in (1, 2, 3):
        p = Puppet(d, job, attempt)
        t.equal(p.given["lease"]["indices"], [3], f"device of attempt {attempt}: there is no other")
        breaks(p, 3)
        t.equal(states(d), [("suspect" if attempt < 3 else "failed", attempt)], f"state after error {attempt}")
    return job


@case
def test_failed_device_is_marked_and_the_next_attempt_goes_elsewhere(t):
    d = daemon(t)
    with d.connect() as c:
        fresh = c.call("devices")["devices"][0]
        t.equal((fresh["state"], fresh["errors"], fresh["since_ms"], fresh["error_job"], fresh["reason"]), ("ok", 0, None, None, ""),
                "a device that nothing is wrong with")
        job = c.call("submit", spec=spec("x"), dir=t.dir)["id"]
        p = Puppet(d, job)
        t.equal(p.given["lease"]["indices"], [0], "device of the first attempt: the largest")
        breaks(p, 0)
        marked = c.call("devices")["devices"]
        t.equal([(x["state"], x["errors"], x["error_job"], x["reason"]) for x in marked],
                [("suspect", 1, job, ECC), ("ok", 0, None, "")], "the marks")
        t.check(marked[0]["since_ms"] >= c.call("show", id=job)["submitted_ms"], f"since: {marked[0]}")
        q = Puppet(d, job, 2)
        t.equal(q.given["lease"]["indices"], [3], "device of the second attempt: the other, though it is smaller")
        q.outcome()
        t.equal(states(d), [("suspect", 1), ("ok", 0)], "a job done elsewhere clears nothing")
    t.contains(d.log(), f"device 0 (paper A) is suspect, errors in a row: 1; job {job} reported: {ECC}")
    d.stop()


@case
def test_suspect_device_is_used_where_the_others_do_not_suffice_and_a_success_clears_it(t):
    d = daemon(t)
    first = d.submit(spec("x"))["id"]
    breaks(Puppet(d, first), 0)
    p = Puppet(d, first, 2)
    p.outcome()
    d.wait_job(first, "done")
    until(lambda: d.call("devices")["devices"][1]["job"] is None, "free device")
    some = d.submit(spec("some", {"resources": {"devices": {"min": 1, "max": 2}}}))["id"]
    p = Puppet(d, some)
    t.equal(p.given["lease"]["indices"], [3], "devices of a job that can do without it")
    p.outcome()
    d.wait_job(some, "done")
    both = d.submit(spec("both", {"resources": {"devices": 2}}))["id"]
    p = Puppet(d, both)
    t.equal(p.given["lease"]["indices"], [0, 3], "devices of a job that cannot")
    p.outcome()
    d.wait_job(both, "done")
    t.equal(states(d), [("ok", 0), ("ok", 0)], "after a job has completed on it")
    t.contains(d.log(), f"device 0 is ok again: job {both} has completed on it")
    d.stop()


@case
def test_only_device_is_tried_again_and_out_of_service_after_three_errors(t):
    d = daemon(t, ONE)
    job = fail_the_only_device(t, d)
    other = d.submit(spec("other"))["id"]
    for waiting in (job, other):
        j = until(lambda i=waiting: "out of service" in d.show(i)["reason"] and d.show(i), f"reason of job {waiting}")
        t.equal((j["state"], j["reason"]), ("queued", f"waits for 1 device: device 0 (paper B) is out of service (3 errors, the last: {ECC})"),
                "a job that needs it")
    d.restart()
    t.equal(states(d), [("ok", 0)], "after a restart of the daemon")
    p = Puppet(d, job, 4)
    p.outcome()
    q = Puppet(d, other)
    q.outcome()
    d.wait_job(other, "done")
    d.stop()


@case
def test_failed_device_comes_back_when_a_probe_finds_it(t):
    """After its rest of 600 restart delays, here 0.6 s; a job that waits for it has it looked at every tick, of 0.2 s."""
    d = Daemon(t, worker=changing_worker(t, ONE), **{**FOUND, "restart_delay": 1}).start()
    job = d.submit(spec("x"))["id"]
    for attempt in (1, 2):
        breaks(Puppet(d, job, attempt), 3)
    p = Puppet(d, job, 3)
    becomes(t, {**PAPER, "devices": PAPER["devices"][:1]})  # the other device of PAPER: this one is gone
    breaks(p, 3)
    before = len(probed(t))
    until(lambda: len(probed(t)) > before + 10, "looks")  # longer than its rest
    t.equal((states(d), d.show(job)["attempt"]), ([("failed", 3)], 3), "while probes do not find it")
    becomes(t, ONE)
    p = Puppet(d, job, 4)
    t.equal(states(d), [("suspect", 2)], "when they do")
    t.contains(d.log(), "device 0 works again in a probe: it is suspect now, no longer failed")
    p.outcome()
    d.wait_job(job, "done")
    t.equal(states(d), [("ok", 0)], "after a success")
    d.stop()


@case
def test_success_in_between_starts_the_count_again(t):
    d = daemon(t, ONE)
    for _ in range(2):
        job = d.submit(spec("x"))["id"]
        for attempt in (1, 2):
            breaks(Puppet(d, job, attempt), 3)
        t.equal(states(d), [("suspect", 2)], "after two errors")
        Puppet(d, job, 3).outcome()
        d.wait_job(job, "done")
        t.equal(states(d), [("ok", 0)], "after a success")
    d.stop()


@case
def test_job_that_needs_a_failed_device_holds_up_nobody(t):
    d = daemon(t)
    big = d.submit(spec("big", {"resources": {"device_memory": 4 * GIB}}))["id"]  # only the first device has that
    for attempt in (1, 2, 3):
        breaks(Puppet(d, big, attempt), 0)
    both = d.submit(spec("both", {"resources": {"devices": 2}}))["id"]
    small = d.submit(spec("small"))["id"]
    p = Puppet(d, small)
    t.equal(p.given["lease"]["indices"], [3], "device of the job behind them")
    until(lambda: "out of service" in d.show(big)["reason"], "reason of the job that had the device")  # when its worker is gone
    t.contains(d.show(big)["reason"], "waits for 1 device with 4.00 GiB: device 0 (paper A) is out of service", "device 1 (paper B) has 1.75 GiB")
    t.contains(d.show(both)["reason"], "waits for 2 devices: device 0 (paper A) is out of service")
    p.outcome()
    d.stop()


@case(each=[("nothing", None), ("null", {"failed_devices": None}), ("text", {"failed_devices": "0"}),
            ("no list", {"failed_devices": {"indices": 0}}), ("not leased", {"failed_devices": {"indices": [0, 4, 2**53, -1, "3", None]}}),
            ("elsewhere", {"failed_devices": {"index": [3]}})])
def test_what_is_no_device_of_the_job_is_not_marked(t, value):
    _, more = value
    d = daemon(t, ONE)
    job = d.submit(spec("x"))["id"]
    Puppet(d, job).outcome("failed", 1, error={"errno": "EIO", "path": "", "message": "a disk"}, retry=True, **(more or {}))
    t.equal(states(d), [("ok", 0)], "the device")
    Puppet(d, job, 2).outcome()
    d.stop()


@case
def test_one_outcome_is_one_error(t):
    d = daemon(t, ONE)
    job = d.submit(spec("x"))["id"]
    breaks(Puppet(d, job), 3, 3, 3, 3, reason="\x1b[31m" + "x" * 10000)
    t.equal(states(d), [("suspect", 1)], "the device")
    reason = d.call("devices")["devices"][0]["reason"]
    t.check(len(reason) < 128 and reason.startswith("\\u001b[31mx") and reason.endswith("..."), f"reason: {reason}")
    Puppet(d, job, 2).outcome()
    d.stop()


@case
def test_cancelled_job_marks_too(t):
    d = daemon(t, ONE)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    d.call("cancel", id=job)
    breaks(p, 3)
    d.wait_job(job, "cancelled")
    t.equal(states(d), [("suspect", 1)], "the device")
    d.stop()


@case
def test_client_shows_marks(t):
    if harness_daemon.TUTTI is None:
        t.skip("no client")
    d = daemon(t, ONE)
    env = {**d.environment(), "TUTTI_SOCKET": d.socket, "TUTTI_WORKER": harness_daemon.WORKER}

    def tutti(*words):
        run = t.command([harness_daemon.TUTTI, *words], env=env, cwd=t.dir)
        t.equal(run.code, 0, f"exit code of {words}")
        return run.out

    t.contains(tutti("devices"), " ok ")
    job = fail_the_only_device(t, d)
    text = tutti("devices")
    t.contains(text, " failed ", "device 0 is failed since 20", f": 3 errors, the last in job {job}: {ECC}; it is out of service\n")
    x = json.loads(tutti("devices", "--json"))["devices"][0]
    t.equal((x["state"], x["errors"], x["error_job"], x["reason"]), ("failed", 3, job, ECC), "as JSON")
    d.call("cancel", id=job)
    d.stop()
