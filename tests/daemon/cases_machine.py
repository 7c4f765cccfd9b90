"""What a daemon hands out: virtual devices, a topology file, what the probe says; and when that fails.

Machines with GPUs are made of paper: a worker program that answers --probe with what the case wants, and is a puppet
otherwise (cases_protocol.py).
"""
import json
import os
import sys

from cases_protocol import Puppet, puppets
from harness import case
from harness_daemon import Daemon, check_done, spec, until
import harness_daemon

MIB, GIB = 1 << 20, 1 << 30
RESERVE = 256 * MIB
PAPER = {"schema": "machine/v1", "backend": "cuda", "host_memory_bytes": 32 * GIB,
         "devices": [{"index": 0, "memory_bytes": 16 * GIB, "free_bytes": 15 * GIB, "name": "paper A", "bus_id": "0000:01:00.0"},
                     {"index": 3, "memory_bytes": 16 * GIB, "free_bytes": 2 * GIB, "name": "paper B"},
                     {"index": 4, "memory_bytes": 16 * GIB, "free_bytes": 10 * MIB}]}
CPU = {"schema": "machine/v1", "backend": "cpu", "host_memory_bytes": GIB, "link_bytes_per_s": "1GB",
       "devices": [{"memory_bytes": 64 * MIB}, {"memory_bytes": 32 * MIB, "name": "small", "index": 9}]}
FOUND = {"devices": None, "device_memory": None, "host_memory": None}  # no options: what is found


def paper_worker(t, answer, code=0, name="paper-worker"):
    """--probe: prints `answer` (a string as it is) and notes its arguments; --serve: a puppet."""
    path, puppet = t.path(name), puppets(t)
    text = answer if isinstance(answer, str) else json.dumps(answer)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"""#!{sys.executable} -IS
import os, sys, time
if "--probe" in sys.argv:
    open({t.path('probed')!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
    print({text!r})
    sys.exit({code})
os.execv({puppet!r}, [{puppet!r}, *sys.argv[1:]])
""")
    os.chmod(path, 0o755)
    return path


def changing_worker(t, machine):
    """A paper worker whose machine can be changed by `becomes`."""
    becomes(t, machine)
    path, puppet = t.path("changing-worker"), puppets(t)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"""#!{sys.executable} -IS
import os, sys
if "--probe" in sys.argv:
    open({t.path('probed')!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
    text = open({t.path('answer')!r}).read()
    print(text)
    sys.exit(0 if text.startswith("{{") else 1)
os.execv({puppet!r}, [{puppet!r}, *sys.argv[1:]])
""")
    os.chmod(path, 0o755)
    return path


def becomes(t, machine):
    """What probes find from now on; a string: what they print, before they fail."""
    with open(t.path("answer.new"), "w", encoding="utf-8") as f:
        f.write(machine if isinstance(machine, str) else json.dumps(found(machine)))
    os.rename(t.path("answer.new"), t.path("answer"))


def with_free(*free):
    """PAPER with other numbers of free bytes; None: that device is gone."""
    devices = [{**x, "free_bytes": n} for x, n in zip(PAPER["devices"], free) if n is not None]
    return {**PAPER, "devices": devices}


def found(machine=PAPER, reason="2 usable cuda devices found: paper A"):
    return {"ok": True, "backend": machine["backend"], "backend_reason": reason, "machine": machine}


def probed(t):
    try:
        with open(t.path("probed"), encoding="utf-8") as f:
            return f.read().splitlines()
    except OSError:
        return []


def write_machine(t, machine):
    path = t.path("machine.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(machine if isinstance(machine, str) else json.dumps(machine))
    return path


# ---- what the probe says ----

@case
def test_found_devices_are_handed_out_less_the_reserve(t):
    d = Daemon(t, worker=paper_worker(t, found()), **FOUND).start()
    answer = d.call("devices")
    t.equal((answer["backend"], answer["backend_reason"]), ("cuda", "2 usable cuda devices found: paper A"), "backend")
    t.equal((answer["auto"], answer["host_memory_bytes"]), (False, 32 * GIB), "auto and host memory")
    t.equal([(x["index"], x["memory_bytes"], x["free_bytes"], x["total_bytes"], x["name"], x["bus_id"], x["job"])
             for x in answer["devices"]],
            [(0, 15 * GIB - RESERVE, 15 * GIB, 16 * GIB, "paper A", "0000:01:00.0", None),
             (1, 2 * GIB - RESERVE, 2 * GIB, 16 * GIB, "paper B", "", None), (2, 0, 10 * MIB, 16 * GIB, "", "", None)],
            "devices")
    t.equal([x["index"] for x in answer["machine"]["devices"]], [0, 3, 4], "the backend's numbers")
    t.equal(probed(t), ["--probe --json"], "arguments of the probe")
    t.contains(d.log(), "backend cuda: 2 usable cuda devices found", "device 4 () is not handed out")
    d.stop()


@case
def test_lease_names_backend_and_devices(t):
    d = Daemon(t, worker=paper_worker(t, found()), **FOUND).start()
    with d.connect() as c:
        big = c.call("submit", spec=spec("big", {"resources": {"device_memory": 4 * GIB}}), dir=t.dir)["id"]
        p = Puppet(d, big)
        t.equal(p.given["lease"], {"devices": 1, "device_bytes": 4 * GIB, "host_bytes": 32 * GIB // 3, "backend": "cuda",
                                   "indices": [0], "all_devices": 3, "host_bytes_each": 32 * GIB // 3}, "lease of a job that asks for memory")
        any_ = c.call("submit", spec=spec("any"), dir=t.dir)["id"]
        q = Puppet(d, any_)
        t.equal((q.given["lease"]["indices"], q.given["lease"]["device_bytes"]), ([3], 2 * GIB - RESERVE),
                "of one that takes what there is")
        t.equal([x["job"] for x in c.call("devices")["devices"]], [big, any_, None], "owners")
        p.outcome()
        q.outcome()
    d.stop()


@case
def test_what_the_devices_cannot_do_is_refused_at_submit(t):
    d = Daemon(t, worker=paper_worker(t, found()), **FOUND).start()
    for resources, path, words in (({"devices": 4}, "resources.devices", "has 3"),
                                   ({"devices": 3}, "resources.device_memory", "3 devices; enough memory is free on only 2 here"),
                                   ({"device_memory": 15 * GIB}, "resources.device_memory", str(15 * GIB - RESERVE)),
                                   ({"devices": 2, "device_memory": 4 * GIB}, "resources.device_memory", "only 1 here")):
        try:
            d.submit(spec("x", {"resources": resources}))
            t.check(False, f"{resources} was taken")
        except harness_daemon.RpcError as e:
            t.equal((e.errno, e.path), ("ENOSPC", path), str(e))
            t.contains(e.message, words)
    d.stop()


@case
def test_options_limit_what_was_found(t):
    d = Daemon(t, worker=paper_worker(t, found()), backend="cuda", devices=2, device_memory="1GiB", host_memory="2GiB").start()
    answer = d.call("devices")
    t.equal([x["memory_bytes"] for x in answer["devices"]], [GIB, GIB], "memory of the devices")
    t.equal(answer["host_memory_bytes"], 2 * GIB, "host memory")
    t.equal([x["free_bytes"] - RESERVE for x in answer["machine"]["devices"]], [GIB, GIB], "the machine to check against")
    t.equal(probed(t), ["--probe --json --backend cuda"], "arguments of the probe")
    run = Daemon(t, name="many", worker=paper_worker(t, found()), backend="cuda", devices=4).try_start()
    t.equal(run.code, 1, "exit code with too many devices")
    t.contains(run.err, "--devices: is 4, but this machine has 3 of cuda")
    d.stop()


@case
def test_devices_of_adopted_workers_count_as_ours(t):
    d = Daemon(t, worker=paper_worker(t, found()), **FOUND).start()
    job = d.submit(spec("x", {"resources": {"device_memory": 4 * GIB}}))["id"]
    Puppet(d, job)
    used = json.loads(json.dumps(PAPER))
    used["devices"][0]["free_bytes"] = GIB  # the worker's arena
    paper_worker(t, found(used))
    d.restart()
    memory = [x["memory_bytes"] for x in d.call("devices")["devices"]]
    t.equal(memory, [16 * GIB - RESERVE, 2 * GIB - RESERVE, 0], "what is handed out")
    with d.connect() as c:
        c.call("cancel", id=job, now=True)
    d.wait_job(job, "cancelled")
    d.stop()


# ---- looked at again ----

LOOKS = {**FOUND, "restart_delay": 0}  # before every start, and at every tick while a job waits for memory


@case
def test_memory_that_others_took_is_seen_before_a_job_starts(t):
    d = Daemon(t, worker=changing_worker(t, PAPER), **LOOKS).start()
    becomes(t, with_free(GIB, 2 * GIB, 10 * MIB))
    job = d.submit(spec("big", {"resources": {"device_memory": 4 * GIB}}))["id"]
    j = until(lambda: "has" in d.show(job)["reason"] and d.show(job), "reason")
    t.equal((j["state"], j["attempt"], j["reason"]),
            ("queued", 0, "waits for 1 device with 4.00 GiB: device 0 (paper A) has 768.00 MiB for jobs, "
             "device 1 (paper B) has 1.75 GiB for jobs, device 2 has 0 B for jobs"), "the job")
    t.equal([x["free_bytes"] for x in d.call("devices")["devices"]], [GIB, 2 * GIB, 10 * MIB], "what is free")
    t.equal(d.call("devices")["machine"]["devices"][0]["free_bytes"], 15 * GIB, "what a job may hope for")
    small = d.submit(spec("small"))["id"]
    p = Puppet(d, small)
    t.equal((p.given["lease"]["indices"], p.given["lease"]["device_bytes"]), ([3], 2 * GIB - RESERVE), "the job behind it")
    becomes(t, with_free(9 * GIB, 1, 1))
    q = Puppet(d, job)
    t.equal((q.given["lease"]["indices"], q.given["lease"]["device_bytes"]), ([0], 4 * GIB), "when there is room again")
    t.equal([x["free_bytes"] for x in d.call("devices")["devices"]][:2], [9 * GIB, 2 * GIB], "a device in use was not looked at")
    p.outcome()
    q.outcome()
    t.contains(d.log(), "device 0 (paper A) has 768.00 MiB for jobs now", "device 0 (paper A) has 8.75 GiB for jobs now",
               f"job {job}: waits for 1 device")
    d.stop()


@case
def test_only_devices_that_no_job_has_are_asked(t):
    d = Daemon(t, worker=changing_worker(t, PAPER), **LOOKS).start()
    t.equal(probed(t), ["--probe --json"], "at the start")
    p = Puppet(d, d.submit(spec("a"))["id"])
    t.equal(probed(t)[1:], ["--probe --json --only 0,3,4"], "before the first job")
    q = Puppet(d, d.submit(spec("b"))["id"])
    t.equal(probed(t)[2:], ["--probe --json --only 3,4"], "before the second")
    p.outcome()
    q.outcome()
    d.stop()


@case
def test_topology_file_is_not_looked_at_again(t):
    d = Daemon(t, worker=changing_worker(t, PAPER), machine=write_machine(t, PAPER), **LOOKS).start()
    before = probed(t)
    Puppet(d, d.submit(spec("x"))["id"]).outcome()
    t.equal(probed(t), before, "probes after the start")
    d.stop()


@case
def test_device_that_was_looked_at_lately_is_not_looked_at_again(t):
    d = Daemon(t, worker=changing_worker(t, PAPER), **{**FOUND, "restart_delay": 3600000}).start()
    Puppet(d, d.submit(spec("a"))["id"]).outcome()
    Puppet(d, d.submit(spec("b"))["id"]).outcome()
    t.equal(probed(t), ["--probe --json"], "probes within an hour")
    d.stop()


@case(each=["", "no JSON", json.dumps({"ok": True, "backend": "cuda", "machine": {}})])
def test_probe_that_fails_later_changes_nothing(t, value):
    d = Daemon(t, worker=changing_worker(t, PAPER), **LOOKS).start()
    becomes(t, value)
    p = Puppet(d, d.submit(spec("x"))["id"])
    t.equal(p.given["lease"]["device_bytes"], 15 * GIB - RESERVE, "what the job gets: as before")
    t.contains(d.log(), "the devices could not be probed: ")
    p.outcome()
    d.stop()


@case
def test_device_that_has_another_number_now_is_the_same(t):
    """The driver counts anew when a device is lost; what it is called is told by its uuid."""
    a, b = ({**x, "uuid": u} for x, u in zip(PAPER["devices"], ("GPU-a", "GPU-b")))
    d = Daemon(t, worker=changing_worker(t, {**PAPER, "devices": [a, b]}), **LOOKS).start()
    becomes(t, {**PAPER, "devices": [{**b, "index": 0, "free_bytes": 3 * GIB}]})
    p = Puppet(d, d.submit(spec("x"))["id"])
    t.equal((p.given["lease"]["indices"], p.given["lease"]["device_bytes"]), ([0], 3 * GIB - RESERVE), "its number and memory")
    t.equal([(x["name"], x["memory_bytes"]) for x in d.call("devices")["devices"]],
            [("paper A", 0), ("paper B", 3 * GIB - RESERVE)], "the one that is gone has nothing")
    p.outcome()
    becomes(t, {**PAPER, "devices": [{**b, "index": 7, "free_bytes": 0}]})  # nobody asked number 7
    until(lambda: d.call("devices")["devices"][1]["job"] is None, "free device")
    p = Puppet(d, d.submit(spec("y"))["id"])
    t.equal((p.given["lease"]["indices"], p.given["lease"]["device_bytes"]), ([7], 3 * GIB - RESERVE), "with what was known")
    p.outcome()
    d.stop()


# ---- without devices ----

@case
def test_options_for_virtual_devices_need_no_probe(t):
    for options in ({"devices": 3, "device_memory": None}, {"devices": None}, {**FOUND, "backend": "cpu"},
                    {"devices": "auto"}):
        d = Daemon(t, name="v", worker=paper_worker(t, found()), env={"TUTTI_BACKEND": "cuda"}, **options).start()
        t.equal(d.call("devices")["backend"], "cpu", f"backend with {options}")
        d.stop()
    t.equal(probed(t), [], "probes")


FAILURES = [
    ("it fails", "", 1, "ended with code 1"),
    ("it says nothing", "", 0, "without a result"),
    ("it says no JSON", "{", 0, "without a result"),
    ("it says why not", json.dumps({"ok": False, "exit": 2, "path": "x", "message": "no way"}), 2, "no way"),
    ("its machine is wrong", json.dumps({"ok": True, "backend": "cuda", "machine": {}}), 0, "schema"),
    ("it is killed", None, None, "signal 9"),
]


@case(each=FAILURES)
def test_failed_probe_is_told_and_cpu_served(t, value):
    name, answer, code, why = value
    worker = paper_worker(t, answer, code) if answer is not None else t.path("w")
    if name == "it is killed":
        with open(worker, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nkill -9 $$\n")
        os.chmod(worker, 0o755)
    d = Daemon(t, worker=worker, **FOUND).start()
    found_ = d.call("devices")
    t.equal((found_["backend"], len(found_["devices"])), ("cpu", 2), "what is served")
    t.contains(found_["backend_reason"], "could not be probed", why)
    t.contains(d.log(), "serving cpu devices", why)
    d.stop()
    run = Daemon(t, name="insists", worker=worker, **FOUND, backend="cuda").try_start()
    t.equal(run.code, 1, "exit code of one that was told cuda")
    t.contains(run.err, why)


@case
def test_this_machine_is_looked_at(t):
    d = Daemon(t, **FOUND).start()
    found_ = d.call("devices")
    if found_["backend"] != "cpu":
        t.skip("there is a GPU")
    t.contains(found_["backend_reason"], "cuda cannot be used here: ")
    t.equal((found_["auto"], len(found_["devices"]), "machine" in found_), (False, 2, False), "what is served")
    d.stop()
    run = Daemon(t, name="insists", **FOUND, backend="cuda").try_start()
    t.equal(run.code, 1, "exit code with --backend cuda")
    t.contains(run.err, "--backend: cuda cannot be used here: ")


@case
def test_wrong_options_are_refused(t):
    run = Daemon(t, backend="cdua").try_start()
    t.equal(run.code, 2, "exit code")
    t.contains(run.err, '--backend: unknown name "cdua"; did you mean "cuda"?')
    run = Daemon(t, **FOUND, env={"TUTTI_BACKEND": "gpu"}).try_start()
    t.equal(run.code, 2, "exit code")
    t.contains(run.err, "TUTTI_BACKEND")
    t.equal(Daemon(t, machine="").try_start().code, 2, "exit code with an empty --machine")


# ---- --machine ----

@case
def test_topology_file_is_handed_out_and_jobs_run_by_it(t):
    d = Daemon(t, machine=write_machine(t, CPU), env={"TUTTI_BACKEND": "cuda"}, **FOUND).start()
    answer = d.call("devices")
    t.equal((answer["backend"], answer["backend_reason"], answer["host_memory_bytes"]),
            ("cpu", "the topology file says so", GIB), "the machine")
    t.equal([(x["name"], x["memory_bytes"]) for x in answer["devices"]], [("", 64 * MIB), ("small", 32 * MIB)], "devices")
    s = spec("out", {"resources": {"devices": 2}})
    job = d.submit(s)["id"]
    j = check_done(t, d, job, s)
    t.equal([x["capacity_bytes"] for x in j["report"]["devices"]], [32 * MIB, 32 * MIB], "capacities: what both have")
    t.equal((j["report"]["backend"], j["report"]["backend_reason"]), ("cpu", "the topology file says so"), "backend")
    d.stop()


@case
def test_lease_carries_the_topology_file(t):
    d = Daemon(t, machine=write_machine(t, CPU), worker=paper_worker(t, found(CPU)), **FOUND).start()
    p = Puppet(d, d.submit(spec("x"))["id"])
    t.equal((p.given["lease"]["backend"], p.given["lease"]["indices"]), ("cpu", [0]), "backend and devices")
    t.equal(p.given["lease"]["machine"]["devices"][1]["name"], "small", "the machine")
    t.equal(p.given["lease"]["machine"]["link_bytes_per_s"], {"in": 10**9, "out": 10**9}, "its links")
    p.outcome()
    d.stop()


@case
def test_wrong_topology_file_ends_the_daemon_with_its_place(t):
    path = write_machine(t, {**CPU, "device": []})
    run = Daemon(t, machine=path, **FOUND).try_start()
    t.equal(run.code, 1, "exit code")
    t.contains(run.err, path, "device: ", 'did you mean "devices"')
    run = Daemon(t, machine=t.path("none"), **FOUND).try_start()
    t.equal(run.code, 1, "exit code")
    t.contains(run.err, t.path("none"), "cannot be read")


# ---- the client ----

@case
def test_client_shows_devices_and_checks_against_them(t):
    if harness_daemon.TUTTI is None:
        t.skip("no client")
    d = Daemon(t, worker=paper_worker(t, found()), **FOUND).start()
    env = {**d.environment(), "TUTTI_SOCKET": d.socket, "TUTTI_WORKER": harness_daemon.WORKER}

    def tutti(*words, expect=0):
        run = t.command([harness_daemon.TUTTI, *map(str, words)], env=env, cwd=t.dir)
        t.equal(run.code, expect, f"exit code of {words}")
        return run

    t.contains(tutti("devices").out, "backend cuda, host memory 32.00 GiB\nbecause 2 usable cuda devices found: paper A\n",
               "0000:01:00.0", "14.75 GiB", "15.00 GiB", "16.00 GiB", "paper B")
    with open(t.path("job.json"), "w", encoding="utf-8") as f:
        json.dump(spec("out"), f)
    t.contains(tutti("submit", "job.json", "--backend", "cpu", expect=2).err, "the daemon hands out cuda devices")
    t.contains(tutti("submit", "job.json", "--backend", "gpu", expect=2).err, "must be auto, cpu or cuda")
    t.contains(tutti("submit", "job.json", "--devices", 4, expect=5).err, "resources.devices")
    t.equal(tutti("submit", "-q", "job.json", "--backend", "cuda", "--device-memory", "4GiB").out, "1\n", "its id")
    Puppet(d, 1).outcome()
    d.stop()


@case
def test_client_plans_for_elsewhere_and_runs_by_a_file(t):
    if harness_daemon.TUTTI is None:
        t.skip("no client")
    env = {**os.environ, "TUTTI_WORKER": harness_daemon.WORKER, "TUTTID": harness_daemon.TUTTID, "XDG_RUNTIME_DIR": t.dir,
           "TUTTI_BACKEND": "cpu"}  # a file goes over that
    with open(t.path("job.json"), "w", encoding="utf-8") as f:
        json.dump(spec("out"), f)

    def tutti(*words, expect=0):
        run = t.command([harness_daemon.TUTTI, *map(str, words)], env=env, cwd=t.dir)
        t.equal(run.code, expect, f"exit code of {words}")
        return run

    plan = tutti("plan", "job.json", "--machine", write_machine(t, PAPER), "--json").json()
    t.equal((plan["backend"], plan["verified"]), ("cuda", True), "a plan for elsewhere")
    t.equal(tutti("check", "job.json", "--machine", t.path("machine.json"), "--json").json()["backend"], "cuda", "a check")
    write_machine(t, CPU)
    last = json.loads(tutti("run", "job.json", "--machine", "machine.json", "--json").out.splitlines()[-1])
    t.equal((last["state"], last["report"]["backend_reason"]), ("done", "the topology file says so"), "a run by a file")
    t.equal([x["capacity_bytes"] for x in last["report"]["devices"]], [64 * MIB], "its device")
    last = json.loads(tutti("run", "job.json", "--output", "b", "--backend", "cpu", "--json").out.splitlines()[-1])
    t.equal((last["state"], last["report"]["backend_reason"]), ("done", "it was asked for"), "a run on cpu")
    t.equal(tutti("run", "job.json", "--output", "c", "--backend", "cdua", expect=2).out, "", "of a wrong backend")
