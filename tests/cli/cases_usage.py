"""The command line itself: help, version, wrong options; what --check and --plan print."""
import json
import os
import re

from files import SMALL, TINY, job, plan_program, plan_rows, read_json, write_job
from harness import case

OPTIONS = ["--check", "--plan", "--run", "--probe", "--backend", "--machine", "--measure", "--devices",
           "--device-memory", "--host-memory", "--policy", "--optimizer-on", "--threads", "--link",
           "--peer", "--delay-seed", "--plan-profile", "--time", "--profile", "--objective", "--batch", "--micro-batch",
           "--micro-batches", "--update", "--output", "--json", "--quiet", "--dump", "--out", "--svg", "--trace", "--trace-steps", "--help", "--version",
           "--rules", "--form", "--micro-batch-fwd", "--micro-batch-bwd", "--packs-fwd", "--packs-bwd", "--task-overhead",
           "--replicas"]


VERBS = ["--check", "--export", "--plan", "--plan-profile", "--probe", "--rules", "--run", "--sample", "--serve", "--time"]


def refused(t, *options, says=(), **popen):
    """A mistake on the command line: exit code 2, nothing on standard output, one line that begins with the name."""
    run = t.worker(*options, expect=2, **popen)
    t.equal(run.out, "", "standard output")
    t.contains(run.err, *says, what="standard error")
    lines = run.err.splitlines()
    t.check(len(lines) == 1 and lines[0].startswith("tutti-worker: "), f"not one line of the program's: {lines}")
    return run


# ---- help and version ----

@case
def test_help_names_every_option(t):
    run = t.worker("--help")
    t.equal(run.err, "", "standard error")
    t.contains(run.out, "usage: tutti-worker", *OPTIONS, "auto, blocks, harmony-dp, harmony-pp, lru, resident, stream", what="help")
    t.check(all(len(line) <= 110 for line in run.out.splitlines()), "a line of the help is longer than 110")


@case
def test_help_wins_over_what_comes_after(t):
    t.equal(t.worker("--help", "--bogus").out, t.worker("--help").out, "help")


@case
def test_version_is_one_line(t):
    run = t.worker("--version")
    t.check(re.fullmatch(r"tutti-worker \d+\.\d+\.\d+\n", run.out), f"found {run.out!r}")
    t.equal(run.err, "", "standard error")


# ---- mistakes ----

@case
def test_no_verb_prints_usage_and_fails(t):
    for options in ([], ["--devices", "2"]):
        run = t.worker(*options, expect=2)
        t.equal(run.out, "", "standard output")
        t.contains(run.err, "usage: tutti-worker", what="standard error")
    t.contains(t.worker("--json", expect=2).json()["message"], *VERBS, "is needed", what="the message")


@case
def test_two_verbs_are_refused(t):
    path = write_job(t, TINY)
    for first, second in (("--check", "--run"), ("--run", "--plan"), ("--plan", "--plan")):
        refused(t, first, path, second, path, says=["only one of", *VERBS, "found " + " and ".join(sorted((first, second)))])


@case
def test_extra_argument_is_refused(t):
    refused(t, "--check", write_job(t, TINY), "extra", says=['unexpected argument "extra"', "--help"])


VALUES = [
    ("--policy", "strem", 'did you mean "stream"'),
    ("--policy", "Resident", 'did you mean "resident"'),
    ("--policy", "zzz", 'unknown name "zzz"'),
    ("--optimizer-on", "hots", 'did you mean "host"'),
    ("--objective", "tme", 'did you mean "time"'),
    ("--batch", "0", "from 1 to"),
    ("--micro-batch", "few", '"few"'),
    ("--micro-batches", "1,,2", "1,2,4,8"),
    ("--micro-batches", "2,2", "ascend"),
    ("--micro-batches", "", "1,2,4,8"),
    ("--micro-batches", "-1", "1,2,4,8"),
    ("--devices", "0", "from 1 to"),
    ("--devices", "-1", "from 1 to"),
    ("--devices", "2.5", '"2.5"'),
    ("--devices", "99999999999999999999", "from 1 to"),
    ("--devices", "", "whole number"),
    ("--threads", "0", "from 1 to"),
    ("--threads", "two", '"two"'),
    ("--delay-seed", "-1", '"-1"'),
    ("--trace-steps", "-1", "from 0 to"),
    ("--device-memory", "-5", "is not a size"),
    ("--device-memory", "lots", "is not a size"),
    ("--device-memory", "9 bananas", "no known unit"),
    ("--device-memory", "99999999999999999999GB", "99999999999999999999GB"),
    ("--host-memory", "", "size"),
    ("--link", "fast", "is not a size"),
    ("--peer", "1e400", "1e400"),
]


@case(each=[(f"{option} {word}", option, word, says) for option, word, says in VALUES])
def test_wrong_value_of_an_option_is_refused(t, value):
    _, option, word, says = value
    verb = {"--batch": "--plan-profile", "--micro-batch": "--plan-profile", "--micro-batches": "--time",
            "--trace-steps": "--run"}.get(option, "--check")
    run = refused(t, verb, write_job(t, TINY), option, word, says=[says])
    t.check(run.err.startswith(f"tutti-worker: {option}: "), "the option is not named")


@case
def test_unknown_option_is_refused_in_one_line(t):
    refused(t, "--check", write_job(t, TINY), "--bogus", says=["--bogus", "--help"])


@case
def test_unknown_option_is_refused(t):
    for options in (["--bogus"], ["--polcy", "stream"], ["-x"], ["--check"]):
        run = t.worker(*options, expect=2)
        t.contains(run.err, options[0].lstrip("-"), "see tutti-worker --help", what="standard error")
    t.contains(t.worker("--polcy", "stream", expect=2).err, "did you mean --policy?", what="standard error")


@case(each=["--check", "--run"])
def test_option_of_another_verb_is_refused(t, verb):
    for option in (["--dump"], ["--svg", t.path("x")], ["--trace", t.path("x")]):
        refused(t, verb, write_job(t, TINY), *option,
                says=[f"{option[0]}: does not go with {verb}; it goes with --plan and --plan-profile"])
    refused(t, verb, write_job(t, TINY), "--out", t.path("x"),
            says=[f"does not go with {verb}; it goes with --export, --plan, --plan-profile, --probe and --time"])


@case
def test_option_is_refused_by_each_verb_that_ignores_it(t):
    for options, says in ((["--export", "x", "--devices", 2], "--devices: does not go with --export"),
                          (["--sample", "x", "--policy", "lru"], "--policy: does not go with --sample"),
                          (["--probe", "--threads", 2], "--threads: does not go with --probe"),
                          (["--plan-profile", "x", "--output", "y"], "--output: does not go with --plan-profile"),
                          (["--check", "x", "--job", 1], "--job: does not go with --check; it goes with --serve"),
                          (["--check", "x", "--policy", "all"], "only --plan and --plan-profile do")):
        refused(t, *options, says=[says])


@case
def test_every_verb_takes_json_and_quiet(t):
    values = {"--probe": [], "--rules": ["harmony"]}
    for verb in VERBS:
        run = t.worker(verb, *values.get(verb, [t.path("nothing")]), "--quiet", "--json", expect=None)
        t.check("does not go with" not in json.dumps(run.json()), f"{verb} refuses {run.out}")


@case
def test_mistake_on_the_command_line_is_json_with_json(t):
    run = t.worker("--json", "--check", write_job(t, TINY), "--policy", "strem", expect=2)
    r = run.json()
    t.equal((r["ok"], r["exit"], r["path"]), (False, 2, "--policy"), "the error")


@case
def test_device_memory_of_zero_is_refused(t):
    refused(t, "--check", write_job(t, TINY), "--device-memory", "0", says=["--device-memory"])


# ---- where the output goes ----

@case(each=["--check", "--plan", "--run"])
def test_json_is_one_object_and_nothing_else(t, verb):
    run = t.worker(verb, write_job(t, TINY), "--json", "--quiet", "--output", t.path("out"))
    t.check(isinstance(run.json(), dict), "not an object")
    t.check(run.out.endswith("\n"), "no newline at the end")
    t.equal(run.err, "", "standard error")


@case
def test_progress_goes_to_standard_error(t):
    run = t.worker("--run", write_job(t, SMALL), "--json", "--output", t.path("out"))
    run.json()
    t.contains(run.err, "step 5/5", "val loss", "step 4  checkpoint written", what="standard error")


@case
def test_run_as_text_reports_the_result(t):
    run = t.worker("--run", write_job(t, SMALL), "--quiet", "--output", t.path("out"), "--devices", 2)
    r = read_json(t.path("out", "result.json"))
    t.contains(run.out, "small: done at step 5 of 5", f"{r['loss']:.6f}", f"{r['val_loss']:.6f}", r["weights_hash"],
               r["numerics"], "device 0", "device 1", what="standard output")
    t.equal(run.err, "", "standard error")


@case
def test_result_that_cannot_be_written_fails(t):
    if not os.path.exists("/dev/full"):
        t.skip("there is no /dev/full")
    run = t.command(["sh", "-c", '"$0" --check "$1" --json >/dev/full', t.program, write_job(t, TINY)])
    t.check(run.code != 0, "exit code 0, though nothing was written")


@case
def test_closed_standard_descriptors_do_no_harm(t):
    out = t.fresh("out")
    script = 'exec "$0" --run "$1" --output "$2" <&- >&- 2>&-'
    run = t.command(["sh", "-c", script, t.program, write_job(t, SMALL), out])
    t.equal(run.code, 0, "exit code")
    with open(os.path.join(out, "metrics.jsonl")) as f:
        for line in f:
            t.check(line.startswith("{"), f"metrics.jsonl has the line {line!r}")
    t.equal(os.path.getsize(os.path.join(out, "lock")), 0, "bytes in the lock file")


# ---- check ----

@case
def test_check_describes_the_job_and_writes_nothing(t):
    out = t.path("nothing")
    path = write_job(t, job(SMALL, {"output": out}))
    run = t.worker("--check", path)
    t.contains(run.out, "small is valid and fits", "5364 parameters", "96 training samples, 40 for evaluation",
               "5 of 24 samples, in micro-batches of 8", "least that would do", what="standard output")
    r = t.worker("--check", path, "--json", "--devices", 2, "--device-memory", "64KiB", "--policy", "stream").json()
    expected = {"ok": True, "name": "small", "parameters": 5364, "steps": 5, "train_samples": 96, "policy": "stream",
                "devices": 2, "device_bytes": 65536, "resolved": {"micro_batch": 8, "replicas": 1, "precision": "fp32"}}
    t.equal({k: r[k] for k in expected}, expected, "--json")
    t.equal(r["state_bytes"], 4 * 4 * 5364, "state_bytes: W, dW and two moments")
    t.check(r["everything_bytes"] > r["state_bytes"], f"everything, {r['everything_bytes']} bytes, is more than the state")
    t.check(not os.path.exists(out), "--check made the output directory")


@case
def test_epochs_become_steps(t):
    r = t.worker("--check", write_job(t, job(SMALL, {"train.steps": 7})), "--json").json()
    t.equal(r["steps"], 7, "steps")
    spec = job(SMALL, {"train": {"epochs": 3, "global_batch": 20}, "data.samples": 50})
    r = t.worker("--check", write_job(t, spec), "--json").json()
    t.equal(r["steps"], 8, "steps of 3 epochs of 50 samples in batches of 20")


@case
def test_comments_in_a_job_file_are_accepted(t):
    path = t.path("job.json")
    with open(path, "w") as f:
        f.write("// a job\n" + json.dumps(TINY, indent=1).replace('"train"', '// how long\n "train"') + "// the end\n")
    t.worker("--check", path)


@case
def test_job_file_is_read_from_a_pipe(t):
    run = t.command(["sh", "-c", 'cat "$1" | "$0" --check /dev/stdin', t.program, write_job(t, TINY)])
    t.equal(run.code, 0, "exit code")


@case
def test_relative_paths_begin_at_the_current_directory(t):
    os.mkdir(t.path("cwd"))
    path = write_job(t, job(TINY, {"output": "a/b/c"}))
    t.worker("--run", path, "--quiet", cwd=t.path("cwd"))
    t.check(os.path.exists(t.path("cwd", "a", "b", "c", "result.json")), "the output is elsewhere")
    t.worker("--run", write_job(t, TINY), "--quiet", cwd=t.path("cwd"))
    t.check(os.path.exists(t.path("cwd", "runs", "tiny", "result.json")), "the default output is elsewhere")


# ---- plan ----

@case(each=["auto", "harmony-pp", "lru", "resident", "stream"])
def test_plan_as_text_has_its_rows(t, policy):
    run = t.worker("--plan", write_job(t, SMALL), "--policy", policy, "--devices", 2, "--device-memory", "96KiB",
                   "--output", t.path("nothing"))
    t.contains(run.out, "plan ", " on 2 devices", "model ", "batch ", "3 micro-batches of 8 rows", "COMPUTE", "forward",
               "backward", "BYTES", "state", "stash", "data", "total", "bound", "MEMORY", "device 0", "device 1",
               "host", "TIME", "iteration", what="the plan")
    if policy != "auto":
        t.contains(run.out, f"policy {policy} ", what="the plan")
    t.equal(run.err, "", "standard error")
    t.check(not os.path.exists(t.path("nothing")), "--plan made the output directory")


@case(each=["harmony-pp", "lru", "resident", "stream"])
def test_plan_as_json_fits_and_agrees_with_the_file(t, policy):
    path, memory = write_job(t, SMALL), 98304
    run = t.worker("--plan", path, "--policy", policy, "--devices", 3, "--device-memory", memory, "--json",
                   "--out", t.path("plan.json"), "--trace", t.path("trace.json"))
    figures, plan = run.json(), read_json(t.path("plan.json"))
    t.equal((figures["policy"], figures["form"], figures["micro_batch_fwd"], figures["verified"]),
            (policy, "pp", 8, True), "the figures")
    devices = plan_rows(plan, "devices")
    t.equal(figures["device_peak_bytes"], [d["peak_bytes"] for d in devices], "device_peak_bytes")
    for key in ("packs_fwd", "packs_bwd"):
        covered = [l for first, last in figures[key] for l in range(first, last + 1)]
        t.equal(covered, list(range(plan["n_layers"])), f"layers in {key}")
    for key in ("iteration_s", "compute_s", "stall_s", "host_in_bytes", "host_out_bytes", "peer_bytes", "state_bytes",
                "activation_bytes", "bound_bytes", "time_bound_s", "plan_s"):
        t.check(figures[key] >= 0, key)
    t.check(figures["bound_bytes"] <= figures["state_bytes"] + figures["activation_bytes"], "more moves than must")
    t.check(0 < figures["time_bound_s"] <= figures["iteration_s"], "an iteration takes longer than it must")
    t.equal((plan["policy"], plan["n_devices"], plan["n_micro"], plan["rows"]), (policy, 3, 3, 8), "the plan")
    t.equal(sorted(plan["programs"]), ["cycle", "entry", "eval", "exit", "flush"], "programs")
    t.equal(plan["columns"]["devices"], ["lease_bytes", "peak_bytes"], "columns")
    for lease, peak in ((d["lease_bytes"], d["peak_bytes"]) for d in devices):
        t.check(0 < peak <= lease <= memory, f"peak {peak} of {lease} bytes, with {memory} given")
    t.check(plan["host_bytes"] <= plan["host_lease_bytes"], "more host bytes than the lease")
    check_operands(t, plan)


def check_operands(t, plan):
    """Every operand on a device lies inside its lease."""
    sizes = [tensor["bytes"] for tensor in plan_rows(plan, "tensors")]
    peaks = [device["peak_bytes"] for device in plan_rows(plan, "devices")]
    seen = 0
    for program in plan["programs"]:
        for instr in plan_program(plan, program):
            for o in plan_rows(plan, "operands", instr["operands"]):
                if o["device"] is None:
                    continue
                # A plan file has the range of an operand only where the operand is not the whole tensor.
                size = o["end"] - o["begin"] if "begin" in o else sizes[o["tensor"]]
                end = o["addr"] + size
                t.check(end <= peaks[o["device"]], f"{o} ends at {end}, beyond the peak")
                seen += 1
    t.check(seen > 100, f"only {seen} operands on devices")


@case
def test_plan_trace_has_a_process_per_device(t):
    t.worker("--plan", write_job(t, SMALL), "--policy", "harmony-pp", "--devices", 3, "--device-memory", "64KiB",
             "--trace", t.path("trace.json"))
    events = read_json(t.path("trace.json"))["traceEvents"]
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    t.equal(sorted(names), ["device 0 (plan)", "device 1 (plan)", "device 2 (plan)", "host (plan)"], "processes")
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == names["device 1 (plan)"]}
    t.equal(tracks, {"compute", "in", "out", "peer"}, "tracks of device 1")
    spans = [e for e in events if e["ph"] == "X"]
    t.equal({e["pid"] for e in spans}, set(names.values()), "processes with work")
    t.check(all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans), "a span before the beginning")
    busy = {}
    for e in sorted(spans, key=lambda e: e["ts"]):
        t.check(e["ts"] >= busy.get((e["pid"], e["tid"]), 0) - 1e-3, f"two spans at once on one track: {e}")
        busy[e["pid"], e["tid"]] = e["ts"] + e["dur"]


@case
def test_plan_dump_lists_every_instruction(t):
    options = ["--plan", write_job(t, SMALL), "--policy", "stream", "--devices", 2, "--device-memory", "64KiB"]
    dump = t.worker(*options, "--dump", "--out", t.path("plan.json")).out
    plan = read_json(t.path("plan.json"))
    for name in plan["programs"]:
        program = plan_program(plan, name)
        t.contains(dump, f"program {name}: {len(program)} instruction", what="the dump")
        for kind in {instr["kind"] for instr in program}:
            t.contains(dump, f" {kind} ", what="the dump")
    lines = [line for line in dump.splitlines() if re.match(r" *\d+  (d\d+\.\w+|host) +[A-Z]+", line)]
    t.equal(len(lines), sum(len(p) for p in plan["programs"].values()), "lines with instructions")
    t.equal(t.worker(*options, "--dump").out, dump, "a second dump")


@case
def test_plan_to_a_file_that_cannot_be_written_fails(t):
    for option in ("--out", "--svg", "--trace"):
        run = t.worker("--plan", write_job(t, TINY), option, t.path("no", "such", "dir"), expect=None)
        t.check(run.code in (1, 2), f"exit code {run.code}")
        t.contains(run.err, t.path("no", "such", "dir"), "cannot be written", what="standard error")
        t.equal(run.out, "", "standard output")


@case
def test_worked_example_of_the_docs_is_what_is_printed(t):
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(root, "docs", "plan.md")) as f:
        example = f.read().split("```\n 0  d0.in", 1)[1].split("```")[0]
    dump = t.worker("--plan", os.path.join(root, "docs", "examples", "tiny.json"), "--device-memory", "8KiB", "--dump",
                    "--output", t.path("nothing")).out
    cycle = {line.strip() for line in dump.split("program cycle")[1].split("program flush")[0].splitlines()}
    for line in ("0  d0.in" + example).splitlines():
        t.check(line.strip() in cycle | {"", "..."}, f"docs/plan.md shows a line that is not printed: {line}")
