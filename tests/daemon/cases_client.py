"""The client `tutti` from outside, against a real daemon and real workers: what people and scripts see."""
import json
import os
import pty
import re
import signal
import subprocess

import harness_daemon as h
from files import outcome, read_json, write_job
from harness import Failure, Live, case
from harness_daemon import ENDLESS, SLOW, Daemon, processes, reference, spec, until

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def environment(t, d=None):
    env = dict(os.environ)
    env.update(TUTTID=h.TUTTID, TUTTI_WORKER=h.WORKER, TMPDIR=t.dir, XDG_RUNTIME_DIR=t.path("no-runtime"),
               XDG_STATE_HOME=t.path("no-state"), XDG_CACHE_HOME=t.path("cache"), LC_ALL="C.UTF-8")
    env.pop("TUTTI_SOCKET", None)
    env.pop("TUTTI_PROFILE", None)  # the case has a cache of its own
    if d is not None:
        env["TUTTI_SOCKET"] = d.socket
    return env


def need_client(t):
    if h.TUTTI is None:
        t.skip("there is no client")


def tutti(t, *words, d=None, expect=0, **popen):
    """Runs the client to its end."""
    need_client(t)
    run = t.command([h.TUTTI, *map(str, words)], env=environment(t, d), cwd=t.dir, **popen)
    if expect is not None:
        t.equal(run.code, expect, f"exit code of tutti {words[0]}")
    return run


def start(t, *words, d=None):
    need_client(t)
    live = Live(t, [h.TUTTI, *map(str, words)], env=environment(t, d), cwd=t.dir)
    t.live.append(live)
    return live


def errors(run):
    """The one error object of --json."""
    found = json.loads(run.out)
    if found.get("ok") is not False:
        raise Failure(f"no error object: {run.out}")
    return found


def without_files(out):
    job = spec(out, {"data": {"format": "idx", "train": {"images": "no-images", "labels": "no-labels"}}})
    job.pop("eval", None)
    job.get("checkpoint", {}).pop("best", None)
    return job


def plain(t, text, what):
    t.check(not CONTROL.search(text), f"{what} has control characters: {text!r}")


def no_daemon_left(t):
    return not any(t.dir in word and "tutti.sock" in word for _, words in processes() for word in words)


# ---- run ----

@case
def test_run_trains_and_reports(t):
    job = spec("out", base=SLOW)
    run = tutti(t, "run", write_job(t, job))
    plain(t, run.out + run.err, "piped output")
    t.contains(run.out, "done at step 600 of 600", "bytes per iteration", "lower bound", "demand paging", "weights", "val accuracy",
               what="the report")
    t.equal(outcome(t.path("out")), reference(t, job), "what it left")
    t.check(read_json(t.path("out", "result.json"))["weights_hash"] in run.out, "the report lacks the weights' hash")
    until(lambda: no_daemon_left(t), "end of the private daemon")
    t.equal([n for n in os.listdir(t.dir) if n.startswith("tutti-run-")], [], "directories left behind")


@case
def test_run_json_ends_with_the_outcome(t):
    run = tutti(t, "run", write_job(t, spec("out")), "--json")
    lines = [json.loads(line) for line in run.out.splitlines()]
    t.check(len(lines) > 2, "events and an outcome")
    t.check({"started", "ended"} <= {line.get("event") for line in lines}, f"events: {run.out}")
    t.equal(lines[-1].get("state"), "done", "the last line's state")


@case(each=[signal.SIGINT, signal.SIGTERM])
def test_run_stopped_by_signal_goes_on_to_the_same_bits(t, number):
    job = spec("out", {"train.steps": 3000}, SLOW)
    path = write_job(t, job)
    live = start(t, "run", path)
    folder = t.path("out", "checkpoints")
    live.until(lambda: os.path.isdir(folder) and any(n.startswith("step-") and "." not in n for n in os.listdir(folder)),
               "a checkpoint")
    live.signal(number)
    run = live.wait()
    t.equal(run.code, 128 + number, "exit code")
    t.contains(run.out + run.err, "tutti run", what="how to go on")
    until(lambda: no_daemon_left(t), "end of the private daemon")
    run = tutti(t, "run", path)
    t.contains(run.out, "resumed from the checkpoint")
    t.equal(outcome(t.path("out")), reference(t, job), "what it left")


@case
def test_run_killed_takes_its_daemon_along(t):
    live = start(t, "run", write_job(t, spec("out", {"train.steps": ENDLESS}, SLOW)))
    live.until(lambda: os.path.exists(t.path("out", "metrics.jsonl")), "training")
    live.kill()
    until(lambda: no_daemon_left(t), "end of the private daemon and its worker")
    until(lambda: subprocess.run(["flock", "-n", t.path("out", "lock"), "true"]).returncode == 0, "a free output")


@case
def test_run_flags_go_over_the_spec_and_keep_the_bits(t):
    job = spec("elsewhere", base=SLOW)
    tutti(t, "run", write_job(t, job), "--output", "out", "--devices", 2, "--device-memory", "64KiB")
    t.check(not os.path.exists(t.path("elsewhere")), "the spec's output was used")
    report = read_json(t.path("out", "result.json"))
    t.equal(len(report["devices"]), 2, "devices")
    t.check(all(d["capacity_bytes"] <= 65536 for d in report["devices"]), "capacity")
    t.equal(outcome(t.path("out"))["weights_hash"], reference(t, job)["weights_hash"], "weights")


@case
def test_run_on_a_terminal_draws_and_restores_the_cursor(t):
    need_client(t)
    parent, child = pty.openpty()
    env = environment(t)
    env["TERM"] = "xterm-256color"
    process = subprocess.Popen([h.TUTTI, "run", write_job(t, spec("out", base=SLOW))], stdin=subprocess.DEVNULL, stdout=child,
                               stderr=child, env=env, cwd=t.dir)
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    t.equal(process.wait(), 0, "exit code")
    os.close(parent)
    text = shown.decode("utf-8", "replace")
    t.contains(text, "\x1b[", what="the display")
    t.contains(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text), "done at step 600 of 600", "/600", what="the display")
    t.check("\x1b[?25l" in text and text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor stays hidden")
    t.check(any("\u2800" < c < "\u28ff" for c in text), "no curve in braille")


# ---- errors before anything runs ----

WRONG = [
    ("unknown command", ["sbmit"], 2, "did you mean \"submit\""),
    ("command of later", ["pause", "1"], 2, "does not exist yet"),
    ("unknown option", ["ls", "--jsn"], 2, "--json"),
    ("missing id", ["show"], 2, "usage"),
    ("id that is none", ["show", "x"], 2, "x"),
    ("missing file", ["submit", "none.json"], 2, "none.json"),
    ("missing file of run", ["run", "none.json"], 2, "none.json"),
    ("missing file of check", ["check", "none.json"], 2, "none.json"),
    ("unknown job", ["show", "77"], 6, "77"),
    ("unknown job of wait", ["wait", "77"], 6, "77"),
    ("unknown job of cancel", ["cancel", "77"], 6, "77"),
    ("unknown job of logs", ["logs", "77"], 6, "77"),
    ("unknown job of watch", ["watch", "77"], 6, "77"),
    ("unknown job of export", ["export", "77", "--out", "x"], 6, "77"),
    ("unknown job of export to a folder", ["export", "77", "--hf", "x"], 6, "77"),
    ("unknown job of sample", ["sample", "77", "--prompt", "x"], 6, "77"),
    ("export to nowhere", ["export", "77"], 2, "--hf"),
    ("export to two places", ["export", "77", "--out", "x", "--hf", "y"], 2, "give one of them"),
    ("sample of nothing", ["sample"], 2, "usage"),
]


@case(each=WRONG)
def test_wrong_usage_says_what_to_do(t, wrong):
    _, words, code, text = wrong
    d = Daemon(t).start()
    run = tutti(t, *words, d=d, expect=code)
    t.contains(run.err, text, what="the message")
    t.equal(run.out, "", "standard output")
    if words[0] != "check":
        found = errors(tutti(t, *words, "--json", d=d, expect=code))
        t.equal(found["exit"], code, "exit in the error object")


@case
def test_spec_errors_have_their_place_and_submit_nothing(t):
    d = Daemon(t).start()
    job = spec("out")
    job["train"]["micro_bach"] = 4
    run = tutti(t, "submit", write_job(t, job), d=d, expect=2)
    t.contains(run.err, "train.micro_bach", "micro_batch")
    run = tutti(t, "submit", write_job(t, spec("out", {"model.hidden": [4096, 4096]})), "--device-memory", "64KiB", d=d, expect=5)
    t.contains(run.err, "at least")
    missing = without_files("out")
    run = tutti(t, "submit", write_job(t, missing), d=d, expect=2)
    t.contains(run.err, "no-images")
    for command in ("submit", "check", "run"):
        run = tutti(t, command, write_job(t, spec("/dev/null")), d=d, expect=2)
        t.contains(run.err, "/dev/null", "is a device", "choose another output")
    t.equal(d.call("list")["jobs"], [], "jobs")


@case
def test_without_a_daemon_exit_3_says_how_to_start_one(t):
    for words in (["ls"], ["show", "1"], ["submit", write_job(t, spec("out"))], ["devices"], ["wait", "1"]):
        run = tutti(t, *words, expect=3)
        t.contains(run.err, "tuttid --user")


# ---- jobs ----

@case
def test_submit_watch_show_and_the_rest_of_a_job(t):
    d = Daemon(t, devices=2).start()
    job = spec("out", base=SLOW)
    number = tutti(t, "submit", "-q", write_job(t, job), d=d).out.strip()
    t.equal(number, "1", "the id")
    run = tutti(t, "watch", number, d=d)
    plain(t, run.out, "piped watch")
    t.contains(run.out, "done at step 600 of 600", "lower bound")
    t.equal(tutti(t, "wait", number, d=d).code, 0, "wait")
    t.equal(json.loads(tutti(t, "show", number, "--json", d=d).out)["state"], "done", "state")
    t.contains(tutti(t, "show", number, d=d).out, "done", t.path("out"), "weights")
    t.equal(json.loads(tutti(t, "ls", "--json", d=d).out)[0]["id"], 1, "ls")
    t.contains(tutti(t, "ls", d=d).out, "slow", "done")
    t.contains(tutti(t, "logs", number, d=d).out, "checkpoint written")
    t.equal(json.loads(tutti(t, "show", number, "--spec", "--json", d=d).out).get("name",
            json.loads(tutti(t, "show", number, "--spec", d=d).out)["name"]), "slow", "the spec")
    t.equal(outcome(t.path("out")), reference(t, job), "what it left")


@case
def test_show_trace_holds_run_and_plan(t):
    d = Daemon(t).start()
    tutti(t, "submit", write_job(t, spec("out", base=SLOW)), d=d)
    tutti(t, "wait", 1, d=d)
    tutti(t, "show", 1, "--trace", "trace.json", d=d)
    events = read_json(t.path("trace.json"))["traceEvents"]
    names = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
    t.check(any("run" in n for n in names) and any("plan" in n for n in names), f"processes {names}")
    t.check(any(e.get("ph") == "X" for e in events), "no spans")
    run = tutti(t, "show", 1, "--trace", "no/such/dir/x", d=d, expect=None)
    t.check(run.code != 0 and "no/such/dir" in run.err, "an unwritable file")


@case
def test_devices_show_who_has_them(t):
    d = Daemon(t, devices=2, device_memory="1MiB").start()
    tutti(t, "submit", write_job(t, spec("out", {"train.steps": ENDLESS}, SLOW)), d=d)
    d.wait_job(1, "running")
    found = json.loads(tutti(t, "devices", "--json", d=d).out)
    t.equal([x["job"] for x in found["devices"]], [1, None], "owners")
    t.contains(tutti(t, "devices", d=d).out, "1.00 MiB")
    tutti(t, "cancel", 1, d=d)


@case
def test_cancel_wait_and_go_on(t):
    d = Daemon(t).start()
    job = spec("out", {"train.steps": 3000}, SLOW)
    path = write_job(t, job)
    tutti(t, "submit", path, d=d)
    d.wait_step(1, 30)
    tutti(t, "cancel", 1, d=d)
    t.equal(tutti(t, "wait", 1, d=d, expect=None).code, 130, "wait of a cancelled job")
    t.equal(tutti(t, "watch", 1, d=d, expect=None).code, 130, "watch of a cancelled job")
    tutti(t, "submit", path, d=d)
    tutti(t, "wait", 2, d=d)
    t.equal(outcome(t.path("out")), reference(t, job), "what it left")


@case
def test_submit_with_a_key_submits_once(t):
    d = Daemon(t, devices=1).start()
    path = write_job(t, spec("out"))
    ids = {tutti(t, "submit", "-q", "--key", "k", path, d=d).out.strip() for _ in range(3)}
    t.equal(ids, {"1"}, "ids")


@case
def test_wait_gives_the_first_failure(t):
    d = Daemon(t, devices=1).start()
    tutti(t, "submit", write_job(t, spec("one")), d=d)
    tutti(t, "submit", "--no-check", write_job(t, without_files("two")), d=d)
    t.equal(tutti(t, "wait", 1, 2, d=d, expect=None).code, 2, "wait")
    t.equal([x["exit"] for x in json.loads(tutti(t, "wait", 1, 2, "--json", d=d, expect=None).out)], [0, 2], "outcomes")
    t.contains(tutti(t, "show", 2, d=d).out, "no-images")


@case
def test_watch_goes_on_after_a_restart_of_the_daemon(t):
    d = Daemon(t).start()
    job = spec("out", {"train.steps": 2000}, SLOW)
    tutti(t, "submit", write_job(t, job), d=d)
    live = start(t, "watch", 1, d=d)
    d.wait_step(1, 50)
    d.restart()
    run = live.wait()
    t.equal(run.code, 0, "exit code")
    t.contains(run.out, "done at step 2000 of 2000")


@case
def test_export_by_id_and_by_directory_is_the_same(t):
    d = Daemon(t).start()
    tutti(t, "submit", write_job(t, spec("out")), d=d)
    tutti(t, "wait", 1, d=d)
    tutti(t, "export", 1, "--out", "a.safetensors", d=d)
    tutti(t, "export", "out", "--out", "b.safetensors")
    a, b = (open(t.path(n), "rb").read() for n in ("a.safetensors", "b.safetensors"))
    t.check(a == b and len(a) > 8, "the files differ")
    run = tutti(t, "export", "out", "--out", "a.safetensors", expect=None)
    t.check(run.code != 0 and "force" in run.err, "an existing file was replaced")


LANGUAGE = {
    "schema": "job/v1", "name": "language", "output": "out",
    "model": {"type": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 16, "vocab": 256},
    "data": {"format": "bytes", "train": "text"},
    "train": {"steps": 4, "global_batch": 2},
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "checkpoint": {"every": {"steps": 2}, "keep": 9},
}


def language_job(t):
    with open(t.path("text"), "w") as f:
        f.write("hello, world. " * 40)
    return write_job(t, LANGUAGE)


@case
def test_export_to_a_folder_by_id_and_by_directory_is_the_same(t):
    d = Daemon(t).start()
    tutti(t, "submit", language_job(t), d=d)
    tutti(t, "wait", 1, d=d)
    r = json.loads(tutti(t, "export", 1, "--hf", "a", "--json", d=d).out)
    t.equal((r["ok"], r["folder"], r["step"], r["files"]), (True, "a", 4, 1), "the report")
    t.contains(tutti(t, "export", "out", "--hf", "b", "--shard", "4KB").out, "files", what="the text")
    t.equal(sorted(os.listdir(t.path("a"))), ["config.json", "model.safetensors"], "files")
    t.equal(read_json(t.path("a", "config.json")), read_json(t.path("b", "config.json")), "config.json")
    t.contains(tutti(t, "export", "out", "--hf", "a", expect=2).err, "--force", what="the message")
    t.equal(json.loads(tutti(t, "export", 1, "--hf", "a", "--force", "--step", 2, "--json", d=d).out)["step"], 2, "step")
    t.contains(tutti(t, "export", "out", "--hf", "", expect=2).err, "not the name of a folder", what="the message")


@case
def test_sample_by_id_by_directory_and_of_a_folder_is_the_same(t):
    d = Daemon(t).start()
    tutti(t, "submit", language_job(t), d=d)
    tutti(t, "wait", 1, d=d)
    tutti(t, "export", "out", "--hf", "folder")
    how = ["--prompt", "hello, ", "-n", 30, "--seed", 5, "-t", 1, "-k", 40]
    texts = [tutti(t, "sample", 1, *how, d=d).out, *(tutti(t, "sample", source, *how).out for source in ("out", "folder"))]
    t.check(texts[0] and texts.count(texts[0]) == 3, f"texts: {texts}")
    r = json.loads(tutti(t, "sample", 1, *how, "--step", 2, "--json", d=d).out)
    t.equal((r["ok"], r["step"], len(r["ids"]), bytes(r["prompt_ids"])), (True, 2, 30, b"hello, "), "the report")
    t.equal(len(json.loads(tutti(t, "sample", "out", "--prompt-ids", "1,2", "--logits", "--json").out)["logits"]), 256, "logits")
    t.contains(tutti(t, "sample", "out", "--prompt", "", expect=2).err, "empty", what="the message")
    t.contains(tutti(t, "sample", "out", "--temperature", "x", expect=2).err, "--temperature", what="the message")


@case
def test_sample_on_a_terminal_is_harmless(t):
    """A model may say anything, also what a terminal would obey."""
    tutti(t, "run", language_job(t))
    parent, child = pty.openpty()
    process = subprocess.Popen([h.TUTTI, "sample", "out", "-n", "2000", "-t", "20"], env=environment(t), cwd=t.dir,
                               stdin=subprocess.DEVNULL, stdout=child, stderr=child)
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    t.equal(process.wait(), 0, "exit code")
    os.close(parent)
    t.check(len(shown) > 1000, f"{len(shown)} bytes")
    t.check(re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", shown) is None, "control characters")
    t.check(shown.endswith(b"\n"), "no end of line")


@case
def test_check_and_plan_need_no_daemon(t):
    path = write_job(t, spec("out"))
    t.check(json.loads(tutti(t, "check", path, "--json").out)["ok"], "check")
    plan = json.loads(tutti(t, "plan", path, "--json", "--policy", "lru", "--device-memory", "64KiB").out)
    t.equal(plan["policy"], "lru", "policy")
    t.check(plan["verified"] and plan["bound_bytes"] <= plan["state_bytes"] + plan["activation_bytes"], "the bound")
    t.contains(tutti(t, "plan", path, "--svg", "job.svg").out, "MEMORY", "bound")
    with open(t.path("job.svg")) as f:
        t.check(f.read().startswith("<svg "), "no picture")


@case
def test_profiles_need_no_daemon(t):
    path, out = write_job(t, spec("out")), t.path("profile.json")
    tutti(t, "profile", path, "--micro-batches", "1,2", "--out", out, "-q")
    found = json.loads(tutti(t, "profile", path, "--micro-batches", "1,2", "--json").out)
    t.check(found["ok"] and found["measured"] == 0 and found["kept"] > 0, f"measured again: {found}")
    t.check(found["cache"].startswith(t.dir), "the cache is not the case's")
    t.equal(json.loads(tutti(t, "plan", path, "--json").out)["profile"], "measured", "a plan of the job")
    t.equal(json.loads(tutti(t, "plan", path, "--json", "--profile", "none").out)["profile"], "analytic", "without")
    from_file = ["plan", "--profile", out, "--device-memory", "1GB", "--batch", 4, "--update", "host"]
    plan = json.loads(tutti(t, *from_file, "--json", "--micro-batch", 2, "--objective", "bytes").out)
    t.equal((plan["profile"], plan["micro_batch_fwd"], plan["verified"]), ("file", 2, True), "a plan from the profile")
    t.contains(tutti(t, *from_file, "--policy", "all").out, "policy", "auto", "harmony-pp", what="the table")
    tutti(t, *from_file, "--svg", "profile.svg")
    with open(t.path("profile.svg")) as f:
        t.contains(f.read(), "<svg ", "micro-batch", what="the picture")
    for option in ("--svg", "--trace"):
        run = tutti(t, "plan", "--rules", "harmony", "--profile", out, "--batch", 4, option, "rules.svg", expect=2)
        t.contains(run.err, option, "goes with --plan", what="a picture of a schedule of rules")
    t.contains(tutti(t, "plan", expect=2).err, "--profile FILE", what="usage")
    tutti(t, "plan", "--profile", out, "--device-memory", "1KiB", "--batch", 4, expect=5)


@case
def test_texts_with_control_characters_are_harmless(t):
    """A name may not have them; an output directory may, and a log may have anything."""
    d = Daemon(t).start()
    evil = spec("out")
    evil["output"] = t.path("a\x1b[31mred\x07")
    d.submit(evil)
    d.wait_job(1, "done")
    with open(d.worker_log(1), "ab") as log:
        log.write(b"\x1b[2J\xff\x00\n")
    for words in (["ls"], ["show", "1"], ["watch", "1"], ["logs", "1"]):
        plain(t, tutti(t, *words, d=d).out, words[0])


@case(each=["ls", "show 1", "logs 1", "devices", "plan job.json", "help"])
def test_output_that_cannot_be_written_is_an_error(t, words):
    d = Daemon(t).start()
    write_job(t, spec("out"))
    os.rename(write_job(t, spec("out")), t.path("job.json"))
    d.submit(spec("out"))
    d.wait_job(1, "done")
    with open("/dev/full", "w") as full:
        r = subprocess.run([h.TUTTI, *words.split()], stdout=full, stderr=subprocess.PIPE, env=environment(t, d), cwd=t.dir)
    t.check(r.returncode == 1 and r.stderr, f"exit code {r.returncode}, {r.stderr!r}")
