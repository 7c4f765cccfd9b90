"""make-digits from outside: its files, its errors, and that tutti-worker learns from them; the quick starts' jobs and options."""
import json
import os
import struct
import zlib

from harness import case

WORKER = None  # set by test_digits.py
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
EXAMPLES = os.path.join(ROOT, "docs", "examples")
SPLITS = [("train", 300), ("t10k", 100)]
NAMES = sorted(f"{split}-{kind}-ubyte" for split, _ in SPLITS for kind in ("images-idx3", "labels-idx1"))


def make(t, name, *options, train=300, test=100, seed=5):
    """Runs the program; the files by name."""
    path = t.path(name)
    t.worker(path, "--train", train, "--test", test, "--seed", seed, *options)
    t.equal(sorted(os.listdir(path)), NAMES, "the files")
    return contents(path)


def contents(path):
    files = {}
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            files[name] = f.read()
    return files


def refused(t, *options, code, says):
    run = t.worker(*options, expect=code)
    t.equal(run.out, "", "standard output")
    t.contains(run.err, "make-digits: ", *says, what="standard error")


# ---- files ----

@case
def test_files_are_idx(t):
    files = make(t, "a")
    for split, n in SPLITS:
        images, labels = files[f"{split}-images-idx3-ubyte"], files[f"{split}-labels-idx1-ubyte"]
        t.equal(struct.unpack(">4I", images[:16]), (0x803, n, 28, 28), f"header of the images of {split}")
        t.equal(len(images), 16 + n * 784, f"bytes of the images of {split}")
        t.equal(struct.unpack(">2I", labels[:8]), (0x801, n), f"header of the labels of {split}")
        t.equal(len(labels), 8 + n, f"bytes of the labels of {split}")


@case
def test_classes_are_balanced(t):
    files = make(t, "a")
    for split, n in SPLITS:
        labels = files[f"{split}-labels-idx1-ubyte"][8:]
        t.equal([labels.count(c) for c in range(10)], [n // 10] * 10, f"images of each class in {split}")


@case
def test_images_of_a_class_differ(t):
    files = make(t, "a")
    images, labels = files["train-images-idx3-ubyte"][16:], files["train-labels-idx1-ubyte"][8:]
    for c in range(10):
        drawn = [images[i * 784:(i + 1) * 784] for i in range(len(labels)) if labels[i] == c]
        t.equal(len(set(drawn)), len(drawn), f"different images of class {c}")


@case
def test_same_seed_gives_same_bytes(t):
    files = make(t, "a")
    t.equal(files, make(t, "b"), "the files of the second run")
    crc = 0
    for name in NAMES:
        crc = zlib.crc32(files[name], crc)
    t.equal(hex(crc), "0x91557f47", "the checksum of all files, on every machine")


@case
def test_other_seed_gives_other_images(t):
    a, b = make(t, "a"), make(t, "b", seed=6)
    for name in NAMES:
        t.check(a[name] != b[name], f"{name} is the same for two seeds")


@case
def test_smaller_set_is_the_beginning_of_a_larger(t):
    a, b = make(t, "a"), make(t, "b", train=170)
    t.equal(b["train-images-idx3-ubyte"][16:], a["train-images-idx3-ubyte"][16:16 + 170 * 784], "the images")
    t.equal(b["train-labels-idx1-ubyte"][8:], a["train-labels-idx1-ubyte"][8:8 + 170], "the labels")


@case
def test_files_that_are_there_are_replaced(t):
    make(t, "a", seed=6)
    t.equal(make(t, "a"), make(t, "b"), "the files")


# ---- the command line ----

@case
def test_help_names_every_option(t):
    run = t.worker("--help")
    t.contains(run.out, "usage: make-digits DIR", "--train N", "--test N", "--seed S", *NAMES, what="help")
    t.equal(run.err, "", "standard error")


@case(each=["--train=0", "--train=-5", "--train=1e3", "--train=", "--test=12x", "--test=99999999999", "--seed=-1",
            "--seed=18446744073709551616", "--seed= 1"])
def test_bad_number_is_refused(t, option):
    name, value = option.split("=")
    refused(t, t.path("a"), option, code=2, says=[name, f'"{value}"', "whole number"])
    t.check(not os.path.exists(t.path("a")), "the directory was made")


@case
def test_wrong_arguments_are_refused(t):
    refused(t, code=2, says=["directory", "--help"])
    refused(t, t.path("a"), t.path("b"), code=2, says=["one directory", "--help"])
    t.contains(t.worker(t.path("a"), "--bogus", expect=2).err, "--bogus", what="standard error")


@case
def test_directory_that_cannot_be_made_is_an_error(t):
    path = t.path("missing", "a")
    refused(t, path, code=1, says=[path, "cannot make the directory", "No such file"])


@case
def test_file_in_place_of_the_directory_is_an_error(t):
    with open(t.path("a"), "w"):
        pass
    refused(t, t.path("a"), code=1, says=[t.path("a"), "Not a directory"])


@case
def test_directory_without_write_permission_is_an_error(t):
    os.mkdir(t.path("a"), 0o500)
    if os.access(t.path("a"), os.W_OK):
        t.skip("this user may write everywhere")
    refused(t, t.path("a"), code=1, says=["cannot create the file", "Permission denied"])


@case
def test_failed_write_leaves_nothing_behind(t):
    script = 'ulimit -f 64; trap "" XFSZ; exec "$0" "$1" --train 300 --test 10'
    os.mkdir(t.path("a"))
    run = t.command(["sh", "-c", script, t.program, t.path("a")])
    t.equal(run.code, 1, "exit code")
    t.contains(run.err, "train-images-idx3-ubyte", "cannot write the file", what="standard error")
    t.equal([name for name in os.listdir(t.path("a")) if "tmp" in name or "train" in name], [], "files")


# ---- the quick starts ----

def run_worker(t, *options):
    """In the case's directory, where the data is as the examples have it."""
    path = t.path("build", "quickstart")
    os.makedirs(os.path.join(path, "text"))
    t.worker(os.path.join(path, "data"), "--train", 2000, "--test", 500)
    for name in ("train.txt", "val.txt"):
        with open(os.path.join(path, "text", name), "w") as f:
            f.write("You may copy and distribute this text.\n" * 20)
    run = t.command([WORKER, *options, "--json", "--quiet"], cwd=t.dir)
    t.equal(run.code, 0, "exit code")
    return json.loads(run.out)


@case(each=["digits 2", "licenses 1"])
def test_job_has_over_four_times_the_state_that_its_devices_hold(t, which):
    name, devices = which.split()
    r = run_worker(t, "--check", os.path.join(EXAMPLES, f"{name}.json"))
    t.equal(r["policy"], "auto", "policy")
    t.equal(r["devices"], int(devices), "devices")
    t.check(r["state_bytes"] >= 4 * r["devices"] * r["device_bytes"], f"the state is only {r['state_bytes']} bytes")


@case
def test_linear_model_learns_something(t):
    r = run_worker(t, "--run", os.path.join(EXAMPLES, "digits-linear.json"))
    t.check(r["val_accuracy"] > 0.4, f"accuracy {r['val_accuracy']}, where chance has 0.1")


@case
def test_quickstart_says_its_options_and_refuses_others(t):
    tool = os.path.join(ROOT, "tools", "quickstart")
    run = t.command([tool, "--help"])
    t.equal((run.code, run.err), (0, ""), "exit code and standard error of --help")
    t.contains(run.out, "tools/quickstart --gpt", what="help")
    for wrong in (["--bogus"], ["gpt"], ["--gpt", "--digits"]):
        run = t.command([tool, *wrong])
        t.equal((run.code, run.out), (2, ""), "exit code and standard output")
        t.contains(run.err, wrong[-1], "--help", what="standard error")
