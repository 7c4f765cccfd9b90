"""Hostile text through every command of the client and every verb of the worker.

What reaches standard output and standard error never holds a control character besides newline and tab, DEL, a C1
control, a bidirectional control or another invisible one, nor a byte that is not UTF-8. With --json the output parses
besides, and a string that is echoed reads back as it was. On a terminal only the escape sequences of our own display
are there.

The commands, the verbs and their options come from the programs' own help: a new one is covered on arrival.
"""
import json
import os
import pty
import re
import struct
import subprocess
import xml.etree.ElementTree

import harness_daemon as h
from cases_client import LANGUAGE, environment, language_job, need_client, tutti
from files import TINY, job, write_job
from harness import Failure, case, spread
from harness_daemon import Daemon, spec

HOSTILE = {
    "clear screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x1b\\",
    "bell and backspace": "a\x07b\b\bc",
    "carriage return": "evil\rgood",
    "line break": "one\ntutti: two",
    "tab": "a\tb",
    "delete": "a\x7fb",
    "C1": "a\u009b31mb\u0085c\u0090d",
    "override": "user\u202enimda\u202c",
    "isolates": "\u2066a\u2069\u2067b\u2068",
    "marks": "a\u200eb\u200fc\u061cd",
    "separators": "a\u2028b\u2029c",
    "invisible": "a\u200bb\u2060c\ufeffd\u00ade",
    "tags": "a\U000e0041\U000e007f",
    "long": "\x1b[31m\u202e" * 400,
}
# Bytes that are no UTF-8, for paths and contents of files.
BROKEN = {
    "C1 byte": b"a\x9b31mb",
    "overlong": b"a\xc0\xafb\xe0\x80\xaf",
    "surrogate": b"a\xed\xa0\x80b",
    "cut": b"a\xe2\x82",
    "beyond": b"a\xf4\x90\x80\x80b\xff\xfe",
}
# Together and short, since messages cut what is long: there are many places to put them.
TEXTS = {
    "escapes": "\x1b[2J\x1b]0;t\x07a\bb\rc\nd\te\x1b]52;c;cm0=\x1b\\",
    "C1": "a\x7fb\u009b31mc\u0085d\u0090",
    "direction": "a\u202eb\u202c\u2066c\u2069d\u200e\u200f\u061c\u2028\u2029",
    "invisible": "a\u200bb\u2060c\ufeffd\u00ade\U000e0041",
    "long": HOSTILE["long"],
}
WORDS = {**{name: text.encode() for name, text in TEXTS.items()}, "broken": b"".join(BROKEN.values())}

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
                    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]")
OURS = re.compile("\x1b\\[[0-9;]*m|\x1b\\[K|\x1b\\[J|\x1b\\[[0-9]+A|\x1b\\[\\?25[lh]|\r")


# ---- running and looking ----

def clean(t, data, what):
    try:
        found = UNSAFE.search(data.decode())
    except UnicodeDecodeError as e:
        raise Failure(f"{what} is not UTF-8: {e}: {data[:2000]!r}") from None
    if found:
        raise Failure(f"{what} holds {found[0]!r}: {data[:2000]!r}")


def run(t, program, words, d=None, data=None):
    """Runs to the end; checks both outputs. Returns standard output as text and the exit code."""
    r = subprocess.run([program, *words], input=data, capture_output=True, env=environment(t, d), cwd=t.dir,
                       stdin=None if data is not None else subprocess.DEVNULL, timeout=h.TIMEOUT_S)
    line = b" ".join(w if isinstance(w, bytes) else str(w).encode() for w in words)[:300]
    for name, text in (("stdout", r.stdout), ("stderr", r.stderr)):
        clean(t, text, f"{name} of {os.path.basename(program)} {line!r}")
    if r.returncode < 0:
        raise Failure(f"{line!r} ended by signal {-r.returncode}")
    return r


def run_both(t, program, words, d=None, data=None):
    """For people and as JSON. Returns the JSON documents of the second."""
    r = run(t, program, words, d, data)
    j = run(t, program, [*words, "--json"], d, data)
    try:
        found = [json.loads(line) for line in j.stdout.splitlines()] if b"}\n{" in j.stdout else [json.loads(j.stdout)]
    except ValueError as e:
        raise Failure(f"--json of {words!r} is not JSON: {e}: {j.stdout[:2000]!r}") from None
    t.check(r.returncode == j.returncode or r.returncode in (0, 1), f"{words!r}: exit code {r.returncode}, with --json {j.returncode}")
    return found


def strings(value):
    """All strings of a document, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for v in value:
            yield from strings(v)
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from strings(v)


def echoed(t, documents, text, what):
    t.check(any(text in s for s in strings(documents)), f"{what}: {text!r} does not come back: {documents!r}"[:2000])


def on_terminal(t, program, words, d=None):
    """What a terminal gets, without the sequences that are our own."""
    parent, child = pty.openpty()
    env = environment(t, d)
    env["TERM"] = "xterm-256color"
    process = subprocess.Popen([program, *words], env=env, cwd=t.dir, stdin=subprocess.DEVNULL, stdout=child, stderr=child)
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
    process.wait(h.TIMEOUT_S)
    os.close(parent)
    clean(t, OURS.sub("", shown.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"),
          f"the terminal of {words!r}")
    return shown


# ---- the programs' own tables ----

def client_commands(t):
    """{name: [options that take a value]}, by `tutti help`."""
    listed = re.findall(r"^  ([a-z]+) +\S", tutti(t, "help").out.split("options of every command")[0], re.M)
    t.check(len(listed) >= 16 and "check" in listed, f"commands: {listed}")
    return {name: re.findall(r"^ +(?:-\w, )? *(--[a-z-]+) [A-Z]", tutti(t, "help", name).out, re.M) for name in listed}


def worker_verbs(t):
    """(verbs, options that take a value), by `tutti-worker --help`."""
    usage = t.command([h.WORKER, "--help"], env=environment(t)).out
    verbs = list(dict.fromkeys(re.findall(r"tutti-worker (--[a-z-]+)", usage)))
    options = list(dict.fromkeys(re.findall(r"^  (--[a-z-]+) [A-Z]", usage, re.M)))
    t.check(len(verbs) >= 10 and "--check" in verbs and "--policy" in options, f"verbs: {verbs}, options: {options}")
    return verbs, options


def rotate(values, start):
    """Endless, from a place that differs from row to row: every value meets many rows without all pairs being run."""
    i = start
    while True:
        yield values[i % len(values)]
        i += 1


# ---- words of the command line ----

@case(each=list(WORDS))
def test_hostile_words_of_every_command(t, name):
    """As an argument, as an option, and as the value of every option of every command."""
    need_client(t)
    text = WORDS[name]
    lines = [[text]]
    for command, options in client_commands(t).items():
        lines += [[command, text], [command, b"--" + text], [command, b"-" + text]]
        lines += [[command, "no-such-thing", option, text] for option in options]
    for words in spread(lines):
        run_both(t, h.TUTTI, words)


@case(each=list(WORDS))
def test_hostile_words_of_every_verb(t, name):
    need_client(t)
    text = WORDS[name]
    write_job(t, spec("out"))
    verbs, options = worker_verbs(t)
    lines, values = [[b"--" + text], [text]], rotate(options, len(name))
    for verb in verbs:
        lines += [[verb, text], *([verb, "no-such-thing", next(values), text] for _ in range(8))]
    lines += [["--check", "job.json", option, text] for option in options]
    for words in spread(lines):
        run_both(t, h.WORKER, words)


@case(each=list(WORDS))
def test_hostile_words_of_the_daemon(t, name):
    text = WORDS[name]
    with open(t.path("file"), "w"):
        pass
    below = os.path.join(t.path("file").encode(), text[:60])  # of no directory: the daemon cannot start there
    for words in ([b"--" + text], [text], ["--user", "--state", below], ["--user", "--state", t.path("s"), "--socket", below],
                  ["--user", "--devices", text], ["--user", "--state", t.path("s"), "--machine", below]):
        r = run(t, h.TUTTID, words)
        t.check(r.returncode != 0, f"{words!r} was accepted")


# ---- what a job says ----

def places(value, path=()):
    """Every path to a value in a document."""
    yield path
    if isinstance(value, dict):
        for k, v in value.items():
            yield from places(v, (*path, k))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from places(v, (*path, i))


def replaced(document, path, change):
    """A copy in which change(value) stands at the path."""
    if not path:
        return change(document)
    copy = list(document) if isinstance(document, list) else dict(document)
    copy[path[0]] = replaced(document[path[0]], path[1:], change)
    return copy


FULL = job(TINY, {"output": "out", "queue": {"time_limit": "2h"}, "memory": {"policy": "auto"},
                  "resources": {"devices": 1, "device_memory": "auto"}, "checkpoint.best": "val/loss",
                  "optimizer.no_decay": ["bias"], "optimizer.schedule": {"type": "constant"}})


def variants(document, text):
    """The document with the text in place of each value, and as a key of each object."""
    for path in places(document):
        yield replaced(document, path, lambda v: text)
        value = document
        for p in path:
            value = value[p]
        if isinstance(value, dict):
            yield replaced(document, path, lambda v: {**v, text: 1})


@case(each=list(TEXTS))
def test_hostile_values_and_keys_of_a_job(t, name):
    """Every value and every object of a job: check of all of them, the other commands of some."""
    need_client(t)
    verbs = rotate([["--plan"], ["--time"], ["--run"]], len(name))
    for i, changed in enumerate(spread(variants(FULL, TEXTS[name]))):
        text = json.dumps(changed, ensure_ascii=i % 2 == 0).encode()
        run_both(t, h.WORKER, ["--check", "-"], data=text)
        if i % 5 == 0:
            run_both(t, h.WORKER, [*next(verbs), "-"], data=text)
    for command in ("check", "plan", "run", "submit", "profile"):
        write_job(t, replaced(FULL, ("name",), lambda v: TEXTS[name]))
        run_both(t, h.TUTTI, [command, "job.json"])


@case
def test_names_are_refused_with_the_character(t):
    for name, text in HOSTILE.items():
        if name == "long":
            continue
        write_job(t, spec("out", {"name": text}))
        r = t.command([h.WORKER, "--check", "job.json", "--json"], env=environment(t), cwd=t.dir)
        first = next(c for c in text if UNSAFE.search(c) or c in "\t\n")
        t.equal((r.code, r.json()["path"]), (2, "name"), f"{name}: exit code and path")
        t.contains(r.json()["message"], f"U+{ord(first):04X}", what=f"{name}: the message")
    write_job(t, spec("out", {"name": "m\u00fcller-\u6570-\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"}))
    t.worker("--check", "job.json", cwd=t.dir)


@case
def test_broken_bytes_in_a_job_are_refused(t):
    for name, data in BROKEN.items():
        for text in (b'{"schema":"job/v1","name":"' + data + b'"}', b'{"' + data + b'":1}', data, b'{"schema":' + data + b'}'):
            (found,) = run_both(t, h.WORKER, ["--check", "-"], data=text)
            t.equal(found["exit"], 2, f"{name}: exit code")
    (found,) = run_both(t, h.WORKER, ["--check", "-"], data=b'{"schema":"job/v1","name":"a\\u0000b"}')
    t.contains(found["message"], "\\u0000", what="the message about NUL")


# ---- paths ----

@case(each=list(WORDS))
def test_hostile_paths_come_back_in_json(t, name):
    """A path may hold anything but NUL: it is used as it is, shown escaped, and exact in JSON where it is UTF-8."""
    need_client(t)
    part = WORDS[name].replace(b"/", b"")[:100]
    if name == "long":
        part = "\x1b[31m\u202e".encode() * 12
    folder = os.path.join(t.dir.encode(), part)
    os.mkdir(folder)
    text = part.decode("utf-8", "replace")
    with open(os.path.join(folder, b"job.json"), "w") as f:
        json.dump(spec("out"), f)
    where = ["--dir", folder] if name == "broken" else ["--output", os.path.join(folder, b"out")]
    found = run_both(t, h.WORKER, ["--check", os.path.join(folder, b"job.json"), *where])
    t.check(found[0]["ok"], f"check: {found}")
    if name in TEXTS:
        echoed(t, found, text, "the output")
        out = os.path.join(folder, b"out")
        run_both(t, h.TUTTI, ["run", os.path.join(folder, b"job.json"), "--output", out])
        echoed(t, run_both(t, h.TUTTI, ["export", out, "--out", os.path.join(folder, b"w"), "-f"]), text, "the file")
        echoed(t, run_both(t, h.TUTTI, ["export", out, "--out", folder]), text, "the error")
        on_terminal(t, h.TUTTI, ["run", os.path.join(folder, b"job.json"), "--output", out])
        on_terminal(t, h.TUTTI, ["export", out, "--out", os.path.join(folder, b"w2")])
    run_both(t, h.TUTTI, ["plan", os.path.join(folder, b"job.json"), "--svg", os.path.join(folder, b"svg")])
    run_both(t, h.TUTTI, ["profile", os.path.join(folder, b"job.json"), "--micro-batches", "1", "--out", os.path.join(folder, b"p")])
    run_both(t, h.TUTTI, ["plan", os.path.join(folder, b"job.json"), "--profile", os.path.join(folder, b"p")])
    run_both(t, h.TUTTI, ["plan", "--profile", os.path.join(folder, b"p"), "--device-memory", "1GB", "--batch", "4"])
    on_terminal(t, h.TUTTI, ["check", os.path.join(folder, b"none.json")])


# ---- contents of files ----

def put(t, name, data):
    os.makedirs(os.path.dirname(t.path(name)), exist_ok=True)
    with open(t.path(name), "wb") as f:
        f.write(data)
    return name


def safetensors(header):
    return struct.pack("<Q", len(header)) + header


MACHINE = {"schema": "machine/v1", "backend": "cuda", "devices": [{"memory_bytes": 1 << 30, "name": "card", "bus_id": "0", "uuid": "u"}]}
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 8, "n_embd": 8, "n_layer": 1,
          "n_head": 1, "activation_function": "gelu_new", "extra": {"a": ["b"]}}
TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@case(each=list(TEXTS))
def test_hostile_contents_of_files(t, name):
    """Topology files, profiles, configurations, lists and headers of tensors, tokenizers: errors that quote what is there."""
    need_client(t)
    text = TEXTS[name]
    write_job(t, spec("out"))
    run(t, h.WORKER, ["--time", "job.json", "--micro-batches", "1,2", "--out", "p.json"])
    with open(t.path("p.json")) as f:
        profile = json.load(f)
    profile["layers"] = profile["layers"][:2]
    for i, changed in enumerate(spread(variants(MACHINE, text))):
        put(t, "m.json", json.dumps(changed, ensure_ascii=i % 2 == 0).encode())
        run_both(t, h.WORKER, ["--probe", "--machine", "m.json"])
    for i, changed in spread(list(enumerate(variants(profile, text)))[::3]):
        put(t, "q.json", json.dumps(changed, ensure_ascii=i % 2 == 0).encode())
        run_both(t, h.WORKER, ["--plan-profile", "q.json", "--device-memory", "1GB", "--batch", "4"])
    model = job(LANGUAGE, {"model": {"from": "hf"}})
    write_job(t, model)
    put(t, "text", b"hello, world. " * 40)
    for i, changed in enumerate(spread(variants(CONFIG, text))):
        put(t, "hf/config.json", json.dumps(changed, ensure_ascii=i % 2 == 0).encode())
        run_both(t, h.WORKER, ["--check", "job.json"])
    put(t, "hf/config.json", json.dumps(CONFIG).encode())
    for header in ({text: TENSOR}, {"a": {**TENSOR, text: 1}}, {"a": {**TENSOR, "dtype": text}}, {"__metadata__": {text: text}},
                   {"wte.weight": TENSOR, "x" + text: {}}, text):
        put(t, "hf/model.safetensors", safetensors(json.dumps(header, ensure_ascii=False).encode()) + bytes(4))
        run_both(t, h.WORKER, ["--check", "job.json"])
        run_both(t, h.TUTTI, ["sample", "hf"])
    os.remove(t.path("hf/model.safetensors"))
    for index in ({"weight_map": {text: "x.safetensors"}}, {"weight_map": {"a": text}}, {"weight_map": text}, {text: text}):
        put(t, "hf/model.safetensors.index.json", json.dumps(index).encode())
        run_both(t, h.WORKER, ["--check", "job.json"])
    for vocabulary, merges in (({text: "x"}, text), ({text: 1, "a": 1}, ""), ({"a": 0}, "#version\n" + text)):
        put(t, "tok/vocab.json", json.dumps(vocabulary).encode())
        put(t, "tok/merges.txt", merges.encode())
        run_both(t, h.WORKER, ["--sample", "hf", "--tokenizer", "tok"])
    for data in (text.encode(), b"\0\0\x08\x03" + text.encode()):
        put(t, "images", data)
        put(t, "labels", data)
        put(t, "idx.json", json.dumps(spec("out", {"data": {"format": "idx", "train": {"images": "images", "labels": "labels"}}})).encode())
        run_both(t, h.WORKER, ["--check", "idx.json"])


@case(each=list(WORDS))
def test_hostile_contents_of_an_output(t, name):
    """What export and sample read, and a run that goes on from it: each file in turn is hostile."""
    need_client(t)
    run(t, h.TUTTI, ["run", language_job(t), "-q"])
    files = [os.path.join(at, f) for at, _, names in os.walk(t.path("out")) for f in names if f.endswith((".json", ".jsonl", ".safetensors"))]
    t.check(len(files) > 4, f"files: {files}")
    for path in files:
        with open(path, "rb") as f:
            before = f.read()
        middle = len(before) // 2
        for data in (WORDS[name], before[:middle] + WORDS[name] + before[middle:], b'{"' + WORDS[name] + b'":1}'):
            with open(path, "wb") as f:
                f.write(data)
            run_both(t, h.TUTTI, ["export", "out", "--out", "w", "-f"])
            run_both(t, h.TUTTI, ["sample", "out", "-n", "1", "--logits"])
        run_both(t, h.TUTTI, ["run", "job.json"])
        with open(path, "wb") as f:
            f.write(before)


# ---- the daemon ----

def log_of(d, number, data):
    with open(d.worker_log(number), "ab") as f:
        f.write(data)


@case
def test_hostile_jobs_of_a_daemon(t):
    """Outputs, directories, keys and logs that are hostile, seen through every command, in a pipe and on a terminal."""
    need_client(t)
    d = Daemon(t).start()
    outputs = {}
    for name, text in HOSTILE.items():
        part = text.replace("/", "")[:60]
        number = d.submit(spec("out", {"output": t.path(part, "out")}))["id"]
        outputs[number] = part
    for number in outputs:
        d.wait_job(number, "done", "failed")
        log_of(d, number, b"\n".join(text.encode() for text in HOSTILE.values()) + b"\n".join(BROKEN.values()) + b"\0\n")
    for command in client_commands(t).keys() - {"help"}:  # which prints a page whatever is asked
        for words in ([command], [command, "1"], [command, "-a"]):
            run_both(t, h.TUTTI, words, d)
    for number, part in outputs.items():
        echoed(t, run_both(t, h.TUTTI, ["show", str(number)], d), part, "the output")
        echoed(t, run_both(t, h.TUTTI, ["wait", str(number)], d), part, "the output")
        for words in (["watch", str(number)], ["logs", str(number)], ["show", str(number), "--spec"], ["cancel", str(number)],
                      ["export", str(number), "--out", "w", "-f"]):
            run_both(t, h.TUTTI, words, d)
    for words in (["ls"], ["show", "2"], ["logs", "2"], ["watch", "3"], ["devices"], ["show", "2", "--trace", "-"]):
        on_terminal(t, h.TUTTI, words, d)
    (logs,) = run_both(t, h.TUTTI, ["logs", "1"], d)
    for name, text in HOSTILE.items():
        echoed(t, [logs], text, f"the log's {name}")
    d.stop()
    clean(t, d.log().encode("utf-8", "surrogateescape"), "the daemon's log")


@case(each=list(TEXTS))
def test_hostile_requests_are_answered_clean(t, name):
    """The protocol itself: answers and the daemon's log."""
    text, d = TEXTS[name], Daemon(t).start()
    with d.connect() as c:
        for i, (method, params) in enumerate((
                (text, {}), ("show", {"id": text}), ("show", {text: 1}), ("submit", {"spec": spec("out", {"name": text}), "dir": t.dir}),
                ("submit", {"spec": spec("out"), "dir": t.dir, "key": text}), ("submit", {"spec": {text: text}, "dir": t.dir}),
                ("submit", {"spec": spec("out"), "dir": text}), ("logs", {"id": 1, text: text}), (text, {text: text}))):
            for ascii in (True, False):
                message = {"jsonrpc": "2.0", "id": text if ascii else i, "method": method, "params": params}
                c.send_raw(json.dumps(message, ensure_ascii=ascii).encode() + b"\n")
                line = c.read_raw_line()
                clean(t, line, f"the answer to {method!r}")
                t.check("error" in json.loads(line), f"{message!r} was accepted")
    d.stop()
    clean(t, d.log().encode("utf-8", "surrogateescape"), "the daemon's log")


# ---- pictures and generated text ----

@case
def test_pictures_and_traces_are_clean(t):
    need_client(t)
    write_job(t, spec("out"))
    run(t, h.TUTTI, ["plan", "job.json", "--svg", "a.svg", "--trace", "a.trace", "--out", "a.json"])
    run(t, h.TUTTI, ["run", "job.json", "-q"])
    xml.etree.ElementTree.parse(t.path("a.svg"))
    for name in ("a.svg", "a.trace", "a.json", "out/trace.json", "out/result.json", "out/metrics.jsonl", "out/resolved.json"):
        with open(t.path(name), "rb") as f:
            clean(t, f.read(), name)


@case
def test_generated_text_is_exact_in_a_pipe_and_shown_on_a_terminal(t):
    """A model that has learnt hardly anything says any byte."""
    need_client(t)
    run(t, h.TUTTI, ["run", language_job(t), "-q"])
    how = ["sample", "out", "-n", "600", "-t", "20", "--seed", "3"]
    raw = subprocess.run([h.TUTTI, *how], env=environment(t), cwd=t.dir, capture_output=True, stdin=subprocess.DEVNULL)
    exact = json.loads(run(t, h.TUTTI, [*how, "--json"]).stdout)
    t.equal(raw.stdout, bytes(exact["ids"]), "what a pipe gets")
    t.check(UNSAFE.search(raw.stdout.decode("latin-1")), "the text is too tame for this case")
    shown = on_terminal(t, h.TUTTI, how).replace(b"\r\n", b"\n")
    back = re.sub(rb"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(r))",
                  lambda m: bytes([int(m[1], 16)]) if m[1] else b"\r" if m[4] else chr(int(m[2] or m[3], 16)).encode(), shown)
    t.equal(back, raw.stdout + b"\n", "what a terminal gets, read back")
