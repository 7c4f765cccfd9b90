"""Machines: --probe, --backend and --machine, on a computer without a GPU or where none is looked for."""
import json
import os

from files import SMALL, TINY, job, outcome, read_json, same_outcome, write_job
from harness import case

GIB = 1 << 30
MIB = 1 << 20
RESERVE = 256 * MIB
ELSEWHERE = {"schema": "machine/v1", "backend": "cuda", "host_memory_bytes": 64 * GIB,
             "devices": [{"memory_bytes": 16 * GIB, "name": "paper"},
                         {"memory_bytes": 16 * GIB, "free_bytes": 2 * GIB},
                         {"memory_bytes": 16 * GIB, "free_bytes": 3 * GIB}]}


def environment(t, **more):
    """A cache of the case's own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    return {**env, "XDG_CACHE_HOME": t.path("cache"), **more}


def write_machine(t, machine, name="machine.json"):
    path = t.path(name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(machine if isinstance(machine, str) else json.dumps(machine))
    return path


def no_cuda(t):
    """Why not, in one sentence; a case that needs its absence is skipped where there is one."""
    found = t.worker("--probe", "--json", env=environment(t)).json()
    cuda = [b for b in found["backends"] if b["name"] == "cuda"][0]
    if cuda["usable"]:
        t.skip("there is a GPU")
    t.check(cuda["usable"] is False and cuda["reason"], f"no reason: {cuda}")
    return cuda["reason"]


# ---- --probe ----

@case
def test_probe_says_which_backend_and_why(t):
    why = no_cuda(t)
    found = t.worker("--probe", "--json", env=environment(t)).json()
    t.equal((found["ok"], found["backend"]), (True, "cpu"), "the backend")
    t.equal(found["backend_reason"], "cuda cannot be used here: " + why, "the reason")
    t.equal([b["name"] for b in found["backends"]], ["cpu", "cuda"], "backends")
    t.equal((found["machine"]["schema"], found["machine"]["backend"], found["machine"]["devices"]),
            ("machine/v1", "cpu", []), "the machine")
    t.check(found["machine"]["host_memory_bytes"] > 0, "no host memory")
    run = t.worker("--probe", env=environment(t))
    t.contains(run.out, f"backend cpu: cuda cannot be used here: {why}\n", f"cannot be used: {why}\n", "virtual")
    t.equal(run.err, "", "standard error")
    t.check(not os.path.exists(t.path("cache")), "looking has written something")


@case
def test_probe_of_the_cpu_looks_for_nothing_else(t):
    for options, env in ((["--backend", "cpu"], {}), ([], {"TUTTI_BACKEND": "cpu"})):
        found = t.worker("--probe", "--json", *options, env=environment(t, **env)).json()
        t.equal((found["backend"], found["backend_reason"]), ("cpu", "it was asked for"), "backend")
        t.equal(found["backends"][1]["usable"], None, "cuda, which nobody looked for")


@case
def test_missing_backend_is_an_error_that_says_why(t):
    why, path = no_cuda(t), write_job(t, TINY)
    for verb in (["--probe"], ["--check", path], ["--plan", path], ["--run", path, "--output", t.path("out")]):
        for options, env in ((["--backend", "cuda"], {}), ([], {"TUTTI_BACKEND": "cuda"})):
            run = t.worker(*verb, *options, expect=2, env=environment(t, **env))
            t.equal((run.out, run.err), ("", f"tutti-worker: --backend: cuda cannot be used here: {why}\n"), verb[0])
    found = t.worker("--probe", "--backend", "cuda", "--json", expect=2, env=environment(t)).json()
    t.equal((found["ok"], found["exit"], found["errno"]), (False, 2, "ENODEV"), "as JSON")
    t.check(not os.path.exists(t.path("out")), "the output was made")


@case
def test_file_goes_over_the_environment(t):
    run = t.worker("--probe", "--machine", write_machine(t, ELSEWHERE), "--json", env=environment(t, TUTTI_BACKEND="cpu"))
    t.equal(run.json()["backend"], "cuda", "backend")


@case
def test_wrong_names_of_backends_are_refused(t):
    t.contains(t.worker("--probe", "--backend", "cdua", expect=2).err, '--backend: unknown name "cdua"',
               'did you mean "cuda"')
    t.contains(t.worker("--probe", expect=2, env=environment(t, TUTTI_BACKEND="gpu")).err, "TUTTI_BACKEND", '"gpu"')


@case
def test_options_of_probe_are_checked(t):
    path, machine = write_job(t, TINY), write_machine(t, ELSEWHERE)
    t.contains(t.worker("--check", path, "--measure", expect=2).err, "--measure: does not go with --check; it goes with --probe")
    t.contains(t.worker("--probe", "--dump", expect=2).err, "goes with --plan")
    t.contains(t.worker("--probe", "--check", path, expect=2).err, "only one of")
    t.contains(t.worker("--probe", "--measure", "--machine", machine, expect=2).err, "--measure", "--machine")


# ---- --measure and its cache ----

def measure(t, **env):
    return t.worker("--probe", "--measure", "--backend", "cpu", "--json", env=environment(t, **env))


RATES = ("link_bytes_per_s", "peer_bytes_per_s")


@case
def test_measured_rates_are_kept(t):
    first = measure(t).json()
    machine = first["machine"]
    t.check(min(machine["link_bytes_per_s"]["in"], machine["link_bytes_per_s"]["out"], machine["peer_bytes_per_s"]) > 1,
            f"rates: {machine}")
    t.equal((first["measured"], os.path.dirname(first["cache"])), (True, t.path("cache", "tutti")), "the cache")
    t.equal(os.listdir(t.path("cache", "tutti")), [os.path.basename(first["cache"])], "files in the cache")
    t.equal(read_json(first["cache"]), machine, "what is in the cache")
    again = t.worker("--probe", "--backend", "cpu", "--json", env=environment(t)).json()
    t.equal({k: again["machine"][k] for k in RATES}, {k: machine[k] for k in RATES}, "rates of a later run")
    t.equal((again["measured"], again["cache"]), (True, first["cache"]), "where they are from")
    t.contains(t.worker("--probe", "--backend", "cpu", env=environment(t)).out, "measured before")


@case
def test_damaged_cache_is_ignored_and_made_anew(t):
    first = measure(t).json()
    with open(first["cache"], "rb") as f:
        good = f.read()
    for bad in (b"", good[:-20], b"[]", b"\xff" * 100, good.replace(b"machine/v1", b"machine/v9")):
        with open(first["cache"], "wb") as f:
            f.write(bad)
        run = t.worker("--probe", "--backend", "cpu", "--json", env=environment(t))
        t.equal((run.json()["measured"], run.json()["cache"]), (False, None), "with a damaged cache")
        t.contains(run.err, first["cache"], "is not used", "--measure", what="the warning")
        t.equal(len(run.err.splitlines()), 1, "lines of the warning")
    t.equal(measure(t).json()["measured"], True, "measured again")
    t.equal(read_json(first["cache"])["schema"], "machine/v1", "the cache")


@case
def test_unwritable_cache_is_only_a_warning(t):
    with open(t.path("cache"), "w", encoding="utf-8"):
        pass  # a file where a directory should be
    run = measure(t)
    t.equal((run.json()["measured"], run.json()["cache"]), (True, None), "the result")
    t.contains(run.err, "could not be saved", t.path("cache"))
    env = environment(t)
    del env["XDG_CACHE_HOME"], env["HOME"]
    run = t.worker("--probe", "--measure", "--backend", "cpu", "--json", env=env)
    t.equal((run.json()["measured"], run.json()["cache"]), (True, None), "without a home")
    t.contains(run.err, "XDG_CACHE_HOME")


@case
def test_topology_file_is_written_and_read(t):
    path = t.path("m.json")
    t.worker("--probe", "--measure", "--backend", "cpu", "--out", path, env=environment(t))
    found = t.worker("--probe", "--machine", path, "--json", env=environment(t)).json()
    t.equal(found["machine"], read_json(path), "the machine of the file")
    t.contains(found["backend_reason"], "topology file")
    plan = t.worker("--plan", write_job(t, SMALL), "--machine", path, "--json").json()
    t.equal((plan["backend"], plan["verified"]), ("cpu", True), "a plan for it")
    t.contains(t.worker("--probe", "--out", t.path("none", "m.json"), expect=1).err, "cannot be written")
    t.check(not [n for n in os.listdir(t.dir) if n.endswith(".tmp")], "left behind")


# ---- --machine ----

@case
def test_plan_for_a_machine_elsewhere_needs_no_device(t):
    path, machine = write_job(t, SMALL), write_machine(t, ELSEWHERE)
    for options in (["--machine", machine], ["--machine", json.dumps(ELSEWHERE)],
                    ["--machine", machine, "--backend", "cuda"]):
        plan = t.worker("--plan", path, *options, "--json").json()
        t.equal((plan["backend"], plan["verified"]), ("cuda", True), "the plan")
        t.contains(plan["backend_reason"], "topology file")
    t.contains(t.worker("--plan", path, "--machine", machine).out, "backend cuda: the topology file says so\n")
    t.contains(t.worker("--check", path, "--machine", machine).out, "backend  cuda: the topology file says so\n")


@case
def test_job_gets_the_devices_with_the_most_free_memory(t):
    machine = write_machine(t, ELSEWHERE)
    for n, least in ((1, 16 * GIB), (2, 3 * GIB), (3, 2 * GIB)):
        out = t.path(f"plan{n}.json")
        spec = write_job(t, job(SMALL, {"resources": {"devices": n}}))
        t.worker("--plan", spec, "--machine", machine, "--out", out)
        leases = [d[0] for d in read_json(out)["devices"]]
        t.equal((len(leases), min(leases)), (n, least - RESERVE), "bytes of the devices, less the reserve")
    spec = write_job(t, job(SMALL, {"resources": {"devices": {"min": 1, "max": 9}}}))
    t.equal(t.worker("--check", spec, "--machine", machine, "--json").json()["devices"], 3, "as many as there are")


@case
def test_more_memory_than_is_free_is_refused_and_named(t):
    machine = write_machine(t, ELSEWHERE)
    spec = write_job(t, job(SMALL, {"resources": {"devices": 2, "device_memory": "4GiB"}}))
    run = t.worker("--check", spec, "--machine", machine, expect=5)
    t.contains(run.err, "resources.device_memory: asks for 4.00 GiB on 2 devices", "device 0 (paper) has 16.00 GiB",
               "device 2 has 3.00 GiB of 16.00 GiB free")
    t.worker("--check", spec, "--machine", machine, "--devices", 1)
    t.worker("--check", spec, "--machine", machine, "--device-memory", "3GiB")
    found = t.worker("--check", spec, "--machine", machine, "--device-memory", "1GiB", "--json").json()
    t.equal(found["device_bytes"], GIB, "what was asked for")
    full = {**ELSEWHERE, "devices": [{"memory_bytes": 16 * GIB, "free_bytes": 100 * MIB}]}
    run = t.worker("--check", write_job(t, SMALL), "--machine", json.dumps(full), expect=5)
    t.contains(run.err, "too little is free", "256.00 MiB", "device 0 has 100.00 MiB of 16.00 GiB free")


@case
def test_more_devices_than_there_are_is_refused(t):
    machine = write_machine(t, ELSEWHERE)
    for options in (["--devices", 4], []):
        spec = write_job(t, job(SMALL, {} if options else {"resources": {"devices": 4}}))
        run = t.worker("--check", spec, "--machine", machine, *options, expect=5)
        t.contains(run.err, "resources.devices: asks for 4 devices; this machine has 3 of cuda")


@case
def test_run_with_a_machine_that_is_not_here_is_refused(t):
    no_cuda(t)
    run = t.worker("--run", write_job(t, TINY), "--machine", write_machine(t, ELSEWHERE), "--output", t.path("out"),
                   expect=2)
    t.contains(run.err, "--machine: describes a machine with cuda, which cannot be used here")
    t.check(not os.path.exists(t.path("out")), "the output was made")


@case
def test_run_on_listed_cpu_devices_has_the_same_bits(t):
    machine = {"schema": "machine/v1", "backend": "cpu", "link_bytes_per_s": "1GB",
               "devices": [{"memory_bytes": MIB}, {"memory_bytes": 2 * MIB, "index": 5}]}
    spec = write_job(t, job(SMALL, {"resources": {"devices": 2}}))
    t.worker("--run", spec, "--output", t.path("a"), "--quiet")
    t.worker("--run", spec, "--output", t.path("b"), "--quiet", "--machine", json.dumps(machine))
    same_outcome(t, t.path("b"), outcome(t.path("a")), "with a topology file")
    found = read_json(t.path("b", "result.json"))
    t.equal([d["capacity_bytes"] for d in found["devices"]], [MIB, 2 * MIB], "capacities")
    t.equal((found["backend"], found["backend_reason"]), ("cpu", "the topology file says so"), "backend")


@case
def test_cores_of_a_file_are_shared_by_the_devices(t):
    machine = {"schema": "machine/v1", "backend": "cpu", "host_memory_bytes": GIB, "devices": []}
    spec = write_job(t, SMALL)

    def step_s(**more):
        return t.worker("--plan", spec, "--devices", 2, "--policy", "resident", "--json", "--machine",
                        json.dumps({**machine, **more})).json()["iteration_s"]

    apart = step_s()
    t.equal(step_s(cores=64, device_cores=1), apart, "with more than anybody wants")
    t.check(step_s(cores=1) > apart, "two devices on one core are as fast as on two")
    t.check(step_s(cores=2) > apart, "two devices that want both cores are as fast as with two each")
    found = t.worker("--probe", "--machine", json.dumps({**machine, "cores": 2, "device_cores": 1}), "--json").json()
    t.equal((found["machine"]["cores"], found["machine"]["device_cores"]), (2, 1), "as it was read")


WRONG = [
    ("cores", {**ELSEWHERE, "cores": 2, "device_cores": 3}, "device_cores: ", "at most 2"),
    ("unknown key", {**ELSEWHERE, "link_bytes_per_sec": 1}, "link_bytes_per_sec: ", 'did you mean "link_bytes_per_s"'),
    ("in a device", {**ELSEWHERE, "devices": [{"memory_bytes": 1}]}, "devices[0].memory_bytes: ", "at least 256"),
    ("schema", {**ELSEWHERE, "schema": "job/v1"}, "schema: ", "machine/v1"),
    ("not JSON", "{", "", "ends too early"),
    ("empty", "", "", ""),
]


@case(each=WRONG)
def test_wrong_topology_file_is_refused_with_its_place(t, value):
    _, machine, path, says = value
    file = write_machine(t, machine)
    run = t.worker("--check", write_job(t, TINY), "--machine", file, expect=2)
    t.contains(run.err, f"tutti-worker: {file}:", path, says)
    t.equal(len(run.err.splitlines()), 1, "lines")


@case
def test_missing_topology_file_and_other_backend_are_refused(t):
    path = write_job(t, TINY)
    t.contains(t.worker("--check", path, "--machine", t.path("none"), expect=2).err, t.path("none"), "cannot be read")
    t.contains(t.worker("--check", path, "--machine", t.dir, expect=2).err, t.dir, "cannot be read")
    run = t.worker("--check", path, "--machine", write_machine(t, ELSEWHERE), "--backend", "cpu", expect=2)
    t.contains(run.err, "--backend: is cpu, but --machine describes a machine with cuda")


# ---- what every verb says ----

@case
def test_backend_and_reason_are_in_every_result(t):
    path, env = write_job(t, TINY), environment(t)
    why = "it was asked for"
    for verb in ("--check", "--plan", "--run"):
        options = ["--output", t.path("out"), "--backend", "cpu"]
        found = t.worker(verb, path, *options, "--json", "--quiet", env=env).json()
        t.equal((found["backend"], found["backend_reason"]), ("cpu", why), verb)
    t.contains(t.worker("--run", path, "--output", t.path("out"), "--backend", "cpu", env=env).out, f"cpu: {why}\n")
