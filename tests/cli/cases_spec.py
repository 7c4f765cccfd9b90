"""Wrong jobs: each is refused before anything runs, with one line that says where, what and what to do."""
import json
import os
import re
import shutil
import socket

from files import DELETE, SMALL, TINY, job, outcome, read_json, steps_in_metrics, write_job
from harness import case


def refused(t, path, where, says, code=2, verb="--check", options=()):
    """The same refusal as text and as JSON. `code` None: because of the output, so that 1 and 2 are both right."""
    run = t.worker(verb, path, *options, expect=code)
    t.check(run.code in (1, 2, 5), f"exit code {run.code}")
    code = run.code
    t.equal(run.out, "", "standard output")
    lines = run.err.splitlines()
    t.equal(len(lines), 1, "lines on standard error")
    t.check(lines[0].startswith(f"tutti-worker: {where}: " if where else "tutti-worker: "), f"found {lines[0]!r}")
    t.contains(lines[0], *says, what="the message")
    run = t.worker(verb, path, *options, "--json", expect=code)
    r = run.json()
    t.equal((r["ok"], r["exit"], r["path"]), (False, code, where), "the JSON error")
    t.equal(f"tutti-worker: {where}: {r['message']}" if where else f"tutti-worker: {r['message']}", lines[0],
            "the message as JSON")
    t.check(r["errno"].startswith("E"), f"errno is {r['errno']}")
    t.equal(run.err, "", "standard error with --json")
    return r


# name, changes, JSON path, words of the message
WRONG = [
    ("typo in a key of train", {"train.global_bach": 3}, "train.global_bach", ['did you mean "global_batch"']),
    ("typo in a section", {"optimiser": {}}, "optimiser", ['did you mean "optimizer"']),
    ("typo in the model", {"model.hiden": [3]}, "model.hiden", ['did you mean "hidden"']),
    ("key of another optimizer", {"optimizer.momentum": 0.9}, "optimizer.momentum", ["unknown key", '"betas"']),
    ("no schema", {"schema": DELETE}, "schema", ["missing"]),
    ("schema of another version", {"schema": "job/v9"}, "schema", ['"job/v1"']),
    ("no model", {"model": DELETE}, "model", ["missing"]),
    ("no batch", {"train.global_batch": DELETE}, "train.global_batch", ["missing"]),
    ("no length", {"train.steps": DELETE}, "train", ['"epochs" or "steps"']),
    ("two lengths", {"train.epochs": 2}, "train.steps", ["keep one"]),
    ("number in quotes", {"train.global_batch": "24"}, "train.global_batch", ["expected a number", "quotes"]),
    ("string for a number", {"optimizer.lr": "fast"}, "optimizer.lr", ["expected a number", '"fast"']),
    ("number for a string", {"model.type": 3}, "model.type", ["3"]),
    ("number for an array", {"model.hidden": 32}, "model.hidden", ["array"]),
    ("array for an object", {"train": []}, "train", ["an object", "an array"]),
    ("null for an object", {"optimizer": None}, "optimizer", ["an object"]),
    ("fraction for a whole number", {"train.global_batch": 2.5}, "train.global_batch", ["whole number", "2.5"]),
    ("negative batch", {"train.global_batch": -24}, "train.global_batch", ["-24"]),
    ("batch of zero", {"train.global_batch": 0}, "train.global_batch", ["from 1"]),
    ("negative width", {"model.hidden": [32, -1]}, "model.hidden[1]", ["-1"]),
    ("width of zero", {"model.hidden": [0]}, "model.hidden[0]", ["from 1"]),
    ("negative size", {"resources": {"device_memory": -5}}, "resources.device_memory", ["-5"]),
    ("negative size as text", {"resources": {"device_memory": "-5GB"}}, "resources.device_memory", ['"-5GB"']),
    ("size of zero", {"resources": {"host_memory": 0}}, "resources.host_memory", ['"auto"']),
    ("size without a unit that is known", {"resources": {"host_memory": "5 apples"}}, "resources.host_memory",
     ["GiB"]),
    ("overflowing size as text", {"resources": {"device_memory": "99999999999999999999GB"}},
     "resources.device_memory", ["99999999999999999999GB"]),
    ("overflowing size", {"resources": {"device_memory": 1e30}}, "resources.device_memory", ["1e+30"]),
    ("overflowing number", {"train.steps": 1e300}, "train.steps", ["1e+300"]),
    ("overflowing weights", {"model.hidden": [1 << 30, 1 << 30]}, "model.hidden[1]", ["2^50"]),
    ("overflowing input", {"model.input": [1 << 20, 1 << 20, 1 << 20]}, "model.input[1]", ["elements"]),
    ("overflowing width", {"model.hidden": [1 << 40]}, "model.hidden[0]", [str(1 << 40)]),
    ("too many steps", {"train.steps": 1 << 40}, "train.steps", ["from 1 to"]),
    ("too many micro-batches", {"train.global_batch": 1 << 30, "train.micro_batch": 1}, "train", ["micro_batch"]),
    ("micro-batch that does not divide", {"train.micro_batch": 7}, "train.micro_batch", ["6 or 8", '"auto"', "24"]),
    ("micro-batch larger than the batch", {"train.micro_batch": 48}, "train.micro_batch", ["at most 24"]),
    ("micro-batch of zero", {"train.micro_batch": 0}, "train.micro_batch", ["from 1"]),
    ("micro-batch of a word", {"train.micro_batch": "some"}, "train.micro_batch", ['"auto"']),
    ("replicas that do not divide", {"train.replicas": 5}, "train.replicas", ["4 or 6", '"auto"', "24"]),
    ("more replicas than rows", {"train.replicas": 48}, "train.replicas", ["at most 24"]),
    ("replicas of zero", {"train.replicas": 0}, "train.replicas", ["from 1"]),
    ("replicas and micro-batch that do not divide", {"train.replicas": 2, "train.micro_batch": 8}, "train.micro_batch",
     ["8 x 2 replicas", "6 or 12", "1 or 3", '"auto"']),
    ("unknown policy", {"memory": {"policy": "strem"}}, "memory.policy", ['did you mean "stream"']),
    ("model of a later version", {"model": {"type": "resnet"}}, "model.type", ["not supported yet"]),
    ("unknown model", {"model.type": "mpl"}, "model.type", ['did you mean "mlp"']),
    ("unknown activation", {"model.activation": "rellu"}, "model.activation", ['did you mean "relu"']),
    ("dropout of one", {"model.dropout": 1}, "model.dropout", ["below 1"]),
    ("one class", {"model.classes": 1}, "model.classes", ["at least 2"]),
    ("rate of zero", {"optimizer.lr": 0}, "optimizer.lr", ["above 0"]),
    ("rate beyond float32", {"optimizer.lr": 1e308}, "optimizer.lr", ["at most 3.4028235e+38", "found 1e+308"]),
    ("dropout that rounds to one", {"model.dropout": 0.999999999}, "model.dropout",
     ["below 1", "0.999999999 becomes 1 as a float32", "at most 0.99999994"]),
    ("queue of a later version", {"queue": {"priority": "normal"}}, "queue.priority", ["not supported yet"]),
    ("preemption of a later version", {"queue": {"preemptible": False}}, "queue.preemptible", ["not supported yet"]),
    ("negative rate", {"optimizer.lr": -1e-3}, "optimizer.lr", ["above 0"]),
    ("betas of one", {"optimizer.betas": [0.9, 1]}, "optimizer.betas[1]", ["below 1"]),
    ("negative clip", {"train.grad_clip": -1}, "train.grad_clip", ["above 0"]),
    ("unknown best", {"checkpoint.best": "val/acuracy"}, "checkpoint.best", ['did you mean "val/accuracy"']),
    ("best without evaluation", {"checkpoint.best": "val/loss", "eval": DELETE}, "checkpoint.best", ["eval"]),
    ("evaluation without samples", {"data.val_samples": DELETE}, "eval", ["data.val_samples"]),
    ("keep of zero", {"checkpoint.keep": 0}, "checkpoint.keep", ["from 1"]),
    ("every of both", {"eval.every": {"steps": 1, "epochs": 1}}, "eval.every", ["one of"]),
    ("least devices above most", {"resources": {"devices": {"min": 3, "max": 2}}}, "resources.devices.max", ["3"]),
    ("name with a slash", {"name": "a/b"}, "name", ["'/'"]),
    ("empty output", {"output": ""}, "output", ["empty"]),
    ("unknown data format", {"data.format": "idy"}, "data.format", ['did you mean "idx"']),
    ("no samples", {"data.samples": 0}, "data.samples", ["from 1"]),
    ("precision of other devices", {"precision": "tf32"}, "precision", ["cuda"]),
    ("empty chain", {"model": {"type": "chain", "input": 4, "layers": []}}, "model.layers", ["at least one"]),
    ("chain without weights", {"model": {"type": "chain", "input": 4, "layers": [{"op": "relu"}]}}, "model.layers",
     ["nothing to train"]),
    ("endless repeats", {"model": {"type": "chain", "input": 4, "layers": [
        {"repeat": 10000, "block": [{"repeat": 10000, "block": [{"op": "relu"}]}]}]}},
     "model.layers[0].block[0].block[0]", ["10000 layers"]),
]


@case(each=[(name, changes, where, says) for name, changes, where, says in WRONG])
def test_wrong_spec_is_refused(t, value):
    _, changes, where, says = value
    refused(t, write_job(t, job(SMALL, changes)), where, says)


TEXT = json.dumps(TINY)


@case(each=[
    ("a word", b"hello", ":1:1", ["expected a value"]),
    ("nothing", b"", ":1:1", ["empty"]),
    ("bytes", b"\x00\xff\xfe", ":1:1", ["0x00"]),
    ("not UTF-8", TEXT.replace("tiny", "t\xfcny").encode("latin-1"), None, ["UTF-8"]),
    ("a tail", TEXT.encode() + b"\n  x", ":2:3", ["end of the document"]),
    ("a comma too many", TEXT[:-1].encode() + b",}", None, ["comma"]),
    ("an end too early", TEXT[:-1].encode(), None, ["ends too early"]),
    ("an open string", b'{"schema', None, [""]),
    ("NaN", TEXT.replace("0.003", "NaN").encode(), None, ["NaN"]),
    ("a leading zero", TEXT.replace("0.003", "00.3").encode(), None, [""]),
    ("nesting", b"[" * 100000, ":1:33", ["32 levels"]),
    ("nested objects", b'{"a":' * 200 + b"1" + b"}" * 200, None, ["32 levels"]),
])
def test_not_json_is_refused_with_the_place(t, value):
    _, data, where, says = value
    path = t.path("job.json")
    with open(path, "wb") as f:
        f.write(data)
    run = t.worker("--check", path, expect=2)
    t.equal(run.out, "", "standard output")
    t.equal(len(run.err.splitlines()), 1, "lines on standard error")
    t.check(run.err.startswith(f"tutti-worker: {path}:1:" if where is None else f"tutti-worker: {path}{where}: "),
            f"the place is not {where}: {run.err}")
    t.contains(run.err, *says, what="the message")
    r = t.worker("--check", path, "--json", expect=2).json()
    t.check(r["path"].startswith(path), f"the path is {r['path']}")


@case
def test_duplicate_keys_are_refused(t):
    path = t.path("job.json")
    for text, where in ((TEXT[:-1] + ', "schema": "job/v1"}', "schema"),
                        (TEXT.replace('"steps": 3', '"steps": 3, "steps": 3'), "train.steps")):
        with open(path, "w") as f:
            f.write(text)
        refused(t, path, where, ["duplicate key", path])


@case
def test_job_that_is_no_object_is_refused(t):
    for text in ("[]", "3", '"job"', "null"):
        with open(t.path("job.json"), "w") as f:
            f.write(text)
        refused(t, t.path("job.json"), "", ["expected an object"])


@case
def test_job_file_that_cannot_be_read_is_refused(t):
    refused(t, t.path("no.json"), t.path("no.json"), ["cannot open", "No such file"])
    refused(t, t.dir, t.dir, ["Is a directory"])


@case
def test_huge_job_file_is_refused(t):
    path = t.path("job.json")
    with open(path, "w") as f:
        f.write(TEXT + " " * (17 << 20))
    refused(t, path, path, ["at most"])


@case
def test_every_verb_refuses_with_the_same_words(t):
    path = write_job(t, job(SMALL, {"train.micro_batch": 7, "output": t.path("out")}))
    for verb in ("--check", "--plan", "--run"):
        refused(t, path, "train.micro_batch", ["6 or 8"], verb=verb)
    t.check(not os.path.exists(t.path("out")), "a wrong job made its output directory")


# ---- what does not fit ----

@case(each=["--check", "--plan", "--run"])
def test_misfit_names_the_least_that_would_do(t, verb):
    path, out = write_job(t, SMALL), t.path("out")
    for devices in (1, 3):
        options = ["--devices", devices, "--output", out]
        r = refused(t, path, "resources.device_memory", ["at least", "bytes", "8192"], code=5, verb=verb,
                    options=[*options, "--device-memory", "8KiB"])
        t.check(not os.path.exists(out), "a job that does not fit made its output directory")
        least = r["least_device_bytes"]
        t.contains(r["message"], str(least), what="the message")
        largest = 4 * (32 * 48 + 48)  # a layer's weights have to be there
        t.check(least > largest, f"{least} bytes are less than the largest layer")
        t.worker(verb, path, *options, "--device-memory", least)
        t.fresh("out")


@case
def test_misfit_in_the_spec_is_refused(t):
    path = write_job(t, job(SMALL, {"resources": {"device_memory": "8KiB"}}))
    refused(t, path, "resources.device_memory", ["8.00 KiB"], code=5)


@case
def test_misfit_of_a_policy_advises_auto(t):
    options = ["--policy", "resident", "--device-memory", "64KiB"]
    refused(t, write_job(t, SMALL), "resources.device_memory", ["policy resident", '"auto"'], code=5, options=options)


@case
def test_misfit_with_micro_batch_auto_names_what_would_do(t):
    path = write_job(t, job(SMALL, {"train.micro_batch": "auto"}))
    r = refused(t, path, "resources.device_memory", ["at least"], code=5, options=["--device-memory", "1KiB"])
    found = t.worker("--check", path, "--json", "--device-memory", r["least_device_bytes"]).json()
    t.equal(found["resolved"]["micro_batch"], 1, "micro_batch with the least memory")


@case
def test_check_with_micro_batch_auto_knows_the_least(t):
    path = write_job(t, job(SMALL, {"train.micro_batch": "auto"}))
    least = t.worker("--check", path, "--json").json()["least_device_bytes"]
    t.worker("--check", path, "--device-memory", least - 256, expect=5)


@case
def test_misfit_in_host_memory_is_refused(t):
    refused(t, write_job(t, SMALL), "resources.host_memory", ["host memory"], code=5, options=["--host-memory", "9KiB"])


@case
def test_misfit_in_host_memory_names_the_least(t):
    path = write_job(t, SMALL)
    run = t.worker("--check", path, "--host-memory", "9KiB", expect=5)
    needed = int(re.search(r"needs (\d+) bytes", run.err).group(1))
    t.worker("--check", path, "--host-memory", needed)
    run = t.worker("--check", path, "--host-memory", needed - 1, expect=5)
    t.contains(run.err, f"needs {needed} bytes", what="the message")


@case
def test_misfit_advice_is_a_sentence(t):
    run = t.worker("--check", write_job(t, SMALL), "--device-memory", "8KiB", expect=5)
    t.contains(run.err, "or use a smaller train.micro_batch", what="the message")


# ---- outputs that cannot be used ----

def make_socket(path):
    s = socket.socket(socket.AF_UNIX)
    s.bind(path)
    s.close()


# name, what makes it at a path, what lies below it, words of the message
UNUSABLE = [
    ("a file", lambda path: open(path, "w").close(), "", ["is a file", "Not a directory"]),
    ("below a file", lambda path: open(path, "w").close(), "below/it", ["is a file", "Not a directory"]),
    ("a FIFO", os.mkfifo, "", ["is a FIFO", "Not a directory"]),
    ("below a FIFO", os.mkfifo, "below", ["is a FIFO"]),
    ("a socket", make_socket, "", ["is a socket"]),
    ("a link to nothing", lambda path: os.symlink("nowhere", path), "", ["symbolic link", '"nowhere"', "does not exist"]),
    ("below a link to nothing", lambda path: os.symlink("nowhere", path), "below", ["symbolic link", '"nowhere"']),
    ("a link in a circle", lambda path: os.symlink(os.path.basename(path), path), "", ["symbolic links"]),
    ("a device", lambda path: os.symlink("/dev/null", path), "", ["is a device", "Not a directory"]),
]


@case(each=[(f"{name} {verb}", make, below, says, verb) for name, make, below, says in UNUSABLE
            for verb in ("--check", "--run")])
def test_output_that_cannot_be_a_directory_is_refused(t, value):
    _, make, below, says, verb = value
    make(t.path("made"))
    out = os.path.join(t.path("made"), below) if below else t.path("made")
    refused(t, write_job(t, TINY), out, [*says, "choose another output"], verb=verb, options=["--output", out])


def anyone(t):
    """Options to run the program as a user who may not write everywhere, as root may. The case then runs a copy of the
    program, because nobody else may enter a clone in root's home."""
    if os.getuid() != 0:
        return {}
    t.program = shutil.copy(t.program, t.path(os.path.basename(t.program)))
    return {"user": 65534, "group": 65534}


@case(each=["--check", "--run"])
def test_output_that_may_not_be_written_is_refused(t, verb):
    os.mkdir(t.path("mine"), 0o555)
    os.makedirs(t.path("hidden", "inside"))
    os.chmod(t.path("hidden"), 0o700 if os.getuid() == 0 else 0o000)
    t.undo.append(lambda: os.chmod(t.path("hidden"), 0o700))
    other = anyone(t)
    for out in (t.path("mine", "out"), t.path("mine"), t.path("mine", "a", "b"), t.path("hidden", "inside")):
        run = t.worker(verb, write_job(t, TINY), "--output", out, expect=2, **other)
        t.check(run.err.startswith(f"tutti-worker: {out}: "), "the directory is not named")
        t.contains(run.err, "Permission denied", "choose another output", what="standard error")
        t.equal(run.out, "", "standard output")


@case(each=["--check", "--run"])
def test_output_of_another_user_is_refused(t, verb):
    """The directory may be written, but its lock is not ours."""
    other = anyone(t)
    if not other:
        t.skip("only root can make files of another user")
    os.mkdir(t.path("out"))
    os.chmod(t.path("out"), 0o777)
    os.close(os.open(t.path("out", "lock"), os.O_CREAT | os.O_RDWR, 0o600))
    run = t.worker(verb, write_job(t, TINY), "--output", t.path("out"), expect=2, **other)
    t.contains(run.err, t.path("out"), "lock", "Permission denied", what="standard error")


@case(each=["--check", "--run"])
def test_output_on_a_read_only_file_system_is_refused(t, verb):
    """For root too."""
    os.mkdir(t.path("mount"))
    path = write_job(t, TINY)
    inside = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none "$1" && shift && exec "$@"', "sh", t.path("mount")]
    if os.getuid() != 0 or t.command([*inside, "true"]).code != 0:
        t.skip("file systems cannot be mounted here")
    for out in (t.path("mount"), t.path("mount", "out")):
        run = t.command([*inside, t.program, verb, path, "--output", out])
        t.equal(run.code, 2, "exit code")
        t.contains(run.err, out, "Read-only file system", what="standard error")


@case
def test_output_in_use_is_refused_by_run_and_told_by_check(t):
    path, out = write_job(t, job(TINY, {"train.steps": 1_000_000, "checkpoint": DELETE})), t.path("out")
    live = t.start("--run", path, "--output", out, "--quiet")
    live.until(lambda: steps_in_metrics(out) >= 1, "a step")
    refused(t, path, out, ["another worker"], verb="--run", options=["--output", out])
    t.contains(t.worker("--check", path, "--output", out).err, out, "another worker", what="standard error")
    t.equal(t.worker("--check", path, "--output", out, "--json").json()["ok"], True, "check: a job may run later")
    t.check(live.alive(), "the first worker ended")
    live.kill()
    t.equal(t.worker("--check", path, "--output", out).err, "", "standard error")


@case
def test_check_of_an_output_changes_nothing(t):
    path, out = write_job(t, TINY), t.path("a", "b", "out")
    t.worker("--check", path, "--output", out)
    t.check(not os.path.exists(t.path("a")), "--check made a directory")
    t.worker("--run", path, "--output", out, "--quiet")
    before = sorted(os.listdir(out))
    t.worker("--check", path, "--output", out)
    t.equal(sorted(os.listdir(out)), before, "files of the output")
    os.symlink("b", t.path("a", "link"))
    t.worker("--run", path, "--output", t.path("a", "link", "out"), "--quiet")


@case
def test_output_on_a_read_only_place_is_refused(t):
    """For root too: nothing can be made in /proc."""
    if not os.path.isdir("/proc/self"):
        t.skip("there is no /proc")
    # Root may write to /proc by its permissions, so only the try to make the directory finds it out.
    place, says = ("/proc/tutti", "cannot make the output directory") if os.geteuid() == 0 else \
        ("/proc/tutti/out", "/proc cannot be written")
    refused(t, write_job(t, TINY), place, [says], code=None, verb="--run", options=["--output", "/proc/tutti/out"])


@case(each=[
    ("another seed", {"init.seed": 5}),
    ("another width", {"model.hidden": [6]}),
    ("another batch", {"train.global_batch": 8}),
    ("another rate", {"optimizer.lr": 1e-3}),
    ("another optimizer", {"optimizer": {"type": "sgd", "lr": 3e-3}}),
    ("other data", {"data.samples": 17}),
    ("no clipping", {"train.grad_clip": DELETE}),
    ("another schedule", {"schedule": {"type": "linear"}}),
])
def test_output_of_another_spec_is_refused(t, value):
    _, changes = value
    out = t.path("out")
    t.worker("--run", write_job(t, TINY), "--quiet", "--output", out)
    before = outcome(out)
    refused(t, write_job(t, job(TINY, changes)), out, ["another spec", "choose another output"], verb="--run",
            options=["--output", out])
    t.equal(outcome(out), before, "the output that was refused")


@case
def test_output_of_the_same_bits_is_accepted(t):
    """What does not change bits may change: name, where to run, how often to save; and a job may be prolonged."""
    out, plain = t.path("out"), t.path("plain")
    for changes in ({"name": "other", "checkpoint.keep": 3, "resources": {"devices": 2}},
                    {"train.on_nonfinite": "skip", "memory": {"policy": "stream"}, "checkpoint": DELETE},
                    {"train.replicas": 1},
                    {"train.steps": 7, "queue": {"time_limit": "2d"}}):
        t.worker("--run", write_job(t, job(TINY, changes)), "--quiet", "--output", out)
    t.worker("--run", write_job(t, job(TINY, {"train.steps": 7})), "--quiet", "--output", plain)
    t.equal(outcome(out)["weights_hash"], outcome(plain)["weights_hash"], "weights after 3 and 4 more steps")
    t.equal(read_json(os.path.join(out, "result.json"))["resumed_from"], 3, "resumed_from")


# ---- two at once ----

@case
def test_second_worker_on_an_output_is_refused(t):
    path, out = write_job(t, job(TINY, {"train.steps": 1_000_000, "checkpoint": DELETE})), t.path("out")
    live = t.start("--run", path, "--output", out, "--quiet")
    live.until(lambda: steps_in_metrics(out) >= 1, "a step")
    refused(t, path, out, ["another worker"], code=None, verb="--run", options=["--output", out])
    t.check(live.alive(), "the first worker ended")
    live.kill()
    shorter = write_job(t, job(TINY, {"train.steps": 2}))
    t.worker("--run", shorter, "--output", out, "--quiet")  # a lock dies with its holder


@case
def test_race_of_workers_on_an_output_gives_one_result(t):
    path, out, plain = write_job(t, TINY), t.path("out"), t.path("plain")
    t.worker("--run", path, "--output", plain, "--quiet")
    racers = [t.start("--run", path, "--output", out, "--quiet") for _ in range(8)]
    codes = [racer.wait().code for racer in racers]
    t.check(set(codes) <= {0, 1, 2} and 0 in codes, f"exit codes {codes}")
    t.equal(outcome(out), outcome(plain), "the outcome of the race")


@case
def test_devices_are_the_most_the_spec_allows_or_what_is_said(t):
    for devices, want in ((2, 2), ({"min": 2, "max": 3}, 3), ({"min": 2}, 2), (None, 1)):
        path = write_job(t, job(TINY, {"resources": {"devices": devices} if devices else DELETE}))
        t.equal(t.worker("--check", path, "--json").json()["devices"], want, f"devices of {devices}")
        t.equal(t.worker("--check", path, "--json", "--devices", 1).json()["devices"], 1, "devices with --devices 1")


@case
def test_batch_without_divisors_is_planned_in_bounds(t):
    """auto makes neither thousands of micro-batches of one row nor an endless search."""
    spec = job(TINY, {"train.micro_batch": "auto", "train.global_batch": 100003})
    t.equal(t.worker("--check", write_job(t, spec), "--json").json()["resolved"]["micro_batch"], 100003, "micro_batch")


@case
def test_too_many_micro_batches_are_refused(t):
    spec = job(TINY, {"train.micro_batch": 1, "train.global_batch": 16777216})
    t.contains(t.worker("--check", write_job(t, spec), expect=2).err, "train.micro_batch", what="the message")


@case(each=["--check", "--plan"])
def test_output_of_another_spec_is_told_before_running(t, verb):
    out = t.path("out")
    t.worker("--run", write_job(t, TINY), "--quiet", "--output", out)
    other = write_job(t, job(TINY, {"optimizer.lr": 0.5}), "other.json")
    t.contains(t.worker(verb, other, "--output", out, expect=2).err, "another spec", what="the message")
