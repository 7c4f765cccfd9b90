"""The protocol as docs/protocol.md has it: every method, every error with its code and path, events without loss."""
import json
import os
import random
import socket
import sqlite3
import stat
import struct
import sys
import threading
import time

from files import crc32c as crc32c_hex
from harness import case
from harness_daemon import KEPT, SIGKILL, SIGTERM, Client, Daemon, Gone, RpcError, spec, until

LINE = 1 << 20  # the longest, newline included
METHODS = ["backup", "cancel", "devices", "list", "logs", "ping", "show", "submit", "watch"]
SHORT = ["id", "name", "user", "uid", "state", "reason", "submitted_ms", "started_ms", "ended_ms", "devices", "attempt",
         "failures", "pid", "step", "total_steps", "loss", "samples_per_s", "eta_s", "exit", "error"]
LONG = ["dir", "output", "spec", "resolved", "plan", "progress", "report", "curve", "evals", "needs",
        "predicted_left_s", "log_bytes", "seq"]


def refused(t, call, code, errno, path=None, *words):
    """The call is answered with this error, and the path where it is not None. Returns the error."""
    try:
        found = call()
    except RpcError as e:
        t.equal((e.code, e.errno), (code, errno), f"code and errno of {e}")
        if path is not None:
            t.equal(e.path, path, f"path of {e}")
        t.contains(e.message, *words, what="the message")
        exits = {"EINVAL": 2, "EOPNOTSUPP": 2, "EEXIST": 2, "ESHUTDOWN": 3, "EACCES": 4, "ENOSPC": 5, "ENOENT": 6}
        t.equal(e.exit, exits.get(errno, 1), f"exit code of {e}")
        return e
    t.check(False, f"not refused but {found!r}")
    return None


def crc32c(data):
    return int(crc32c_hex(data), 16)


def request(number, method, **params):
    """A line, for send_raw."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def parallel(n, function):
    """function(i) for each i at once; their results."""
    results = [None] * n

    def run(i):
        try:
            results[i] = function(i)
        except Exception as e:  # to be raised where somebody looks
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for r in results:
        if isinstance(r, Exception):
            raise r
    return results


# ---- workers whose words are the case's ----

def puppets(t):
    """A worker program that leaves its secret in a file and then does nothing: a Puppet speaks for it."""
    path = t.path("puppet-worker")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"""#!{sys.executable} -IS
import os, signal, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
path = {t.dir!r} + "/secret-" + a["--job"] + "-" + a["--attempt"]
with open(path + ".new", "w") as f:
    f.write(os.environ["TUTTI_SECRET"] + " " + str(os.getpid()))
os.rename(path + ".new", path)
while True:
    signal.pause()
""")
    os.chmod(path, 0o755)
    return path


def idle_daemon(t, **options):
    """Its one device goes to the first job, whose worker does nothing: all others wait."""
    return Daemon(t, **{"devices": 1, "worker": puppets(t), **options}).start()


class Puppet:
    """The worker of a job, spoken for by the case. `hello` False: has not said it."""

    def __init__(self, d, job_id, attempt=1, hello=True):
        path = d.t.path(f"secret-{job_id}-{attempt}")
        until(lambda: os.path.exists(path), f"worker of job {job_id}")
        with open(path, encoding="utf-8") as f:
            secret, pid = f.read().split()
        self.pid = int(pid)
        self.words = {"protocol": 1, "job": job_id, "attempt": attempt, "secret": secret, "pid": self.pid,
                      "phase": "new"}
        self.link = Client(d.worker_socket, greeted=False)
        self.given = self.link.call("hello", **self.words) if hello else None

    def tell(self, method, **params):
        self.link.notify(method, **params)

    def outcome(self, state="done", code=0, **more):
        """Answered when it is on disk; then the process goes."""
        answer = self.link.call("outcome", **{"state": state, "exit": code, "error": None, **more})
        self.die()
        return answer

    def die(self):
        os.kill(self.pid, SIGKILL)
        self.link.close()


# ---- greeting, lines, ids ----

@case
def test_greeting_names_the_server_and_its_limits(t):
    d = idle_daemon(t)
    with d.connect(greeted=False) as c:
        line = c.read_line()
        t.equal((line["jsonrpc"], line["method"], "id" in line), ("2.0", "hello", False), "the first line")
        hello = line["params"]
        t.equal((hello["server"], hello["protocol"], hello["pid"]), ("tuttid", 1, d.pid), "the greeting")
        t.equal(hello["capabilities"], METHODS, "capabilities")
        t.equal((hello["max_line_bytes"], hello["max_depth"]), (LINE, 32), "limits")
        t.check(hello["version"], "no version")
    d.stop()


@case
def test_sockets_are_for_their_user_only(t):
    d = idle_daemon(t)
    for path in (d.socket, d.worker_socket):
        s = os.stat(path)
        t.check(stat.S_ISSOCK(s.st_mode), f"{path} is no socket")
        t.equal(stat.S_IMODE(s.st_mode), 0o600, f"mode of {path}")
    t.equal(stat.S_IMODE(os.stat(os.path.dirname(d.socket)).st_mode), 0o700, "mode of the directory that it made")
    t.equal(stat.S_IMODE(os.stat(d.state).st_mode), 0o700, "mode of the state")
    d.stop()
    t.check(not os.path.exists(d.socket) and not os.path.exists(d.worker_socket), "the sockets are left behind")


@case
def test_another_user_is_refused(t):
    if os.geteuid() != 0:
        t.skip("needs root")
    d = idle_daemon(t)
    os.chmod(os.path.dirname(d.socket), 0o755)
    os.chmod(t.dir, 0o755)
    for path, lines in ((d.socket, 1), (d.worker_socket, 0)):
        os.chmod(path, 0o666)
        r = t.command([sys.executable, "-I", "-c", f"""
import os, socket
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX); s.connect({path!r})
try:
    s.sendall(b'{{"jsonrpc":"2.0","id":1,"method":"ping"}}\\n')
except OSError:
    pass
try:
    while True:
        b = s.recv(65536)
        if not b: break
        print(b.decode(), end="")
except ConnectionResetError:
    pass
"""])
        t.equal((r.code, len(r.out.splitlines())), (0, lines), "exit code and lines that another user gets")
        if lines:
            line = json.loads(r.out)
            t.equal((line["id"], line["error"]["code"], line["error"]["data"]["errno"], line["error"]["data"]["exit"]),
                    (None, -32000, "EACCES", 4), "what another user is told")
    t.equal(d.call("ping"), {}, "the answer to its own user")
    d.stop()


IDS = [0, 1, -1, 1.5, 1e300, 2**53, 2**53 + 1, -2**64 - 1, 10**60 + 7, "", "x", "7", "é🎵", 'a "quoted" \\ one\n', "y" * 1000]


@case
def test_ids_come_back_as_they_were(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for i in IDS:
            c.send_raw(request(i, "ping"))
            t.equal(c.read_line(), {"jsonrpc": "2.0", "id": i, "result": {}}, f"the answer to id {i!r:.40}")
            c.send_raw(request(i, "nothing"))
            line = c.read_line()
            t.equal((line["id"], line["error"]["code"]), (i, -32601), f"the error for id {i!r:.40}")
        for i in ({}, [], [1], True, False):
            c.send_raw(request(i, "ping"))
            line = c.read_line()
            t.equal((line["id"], line["error"]["code"]), (None, -32600), f"the answer to id {i!r}")
        for text in ("1.0", "1E+2", "-0", '"\\u0041\\/"', "9007199254740993.0"):  # byte for byte, not only the same value
            c.send_raw(b'{"jsonrpc":"2.0","id": ' + text.encode() + b' ,"method":"ping"}\n')
            t.equal(c.read_raw_line(), b'{"jsonrpc":"2.0","id":' + text.encode() + b',"result":{}}', f"the answer to id {text}")
    d.stop()


@case
def test_without_an_id_there_is_no_answer_but_it_is_done(t):
    d = idle_daemon(t)
    with d.connect() as c:
        ping = {"jsonrpc": "2.0", "method": "ping"}
        for message in (ping, dict(ping, id=None), dict(ping, params={}), dict(ping, method="nothing"),
                        dict(ping, method="show", params={"id": "x"})):
            c.send_raw(json.dumps(message).encode() + b"\n")
        c.notify("submit", spec=spec("a"), dir=t.dir)
        c.notify("submit", spec=spec("b"), dir=t.dir)
        t.equal(c.call("ping"), {}, "the first answer that comes")
        until(lambda: len(c.call("list")["jobs"]) == 2, "two jobs")
        c.notify("cancel", id=2)
        until(lambda: c.call("show", id=2)["state"] == "cancelled", "end of job 2")
    d.stop()


@case
def test_batches_are_refused(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for line in (b"[]", b"[" + request(1, "ping").strip() + b"]", b"[1,2]"):
            c.send_raw(line + b"\n")
            answer = c.read_line()
            t.equal((answer["id"], answer["error"]["code"]), (None, -32600), "the answer to a batch")
            t.contains(answer["error"]["message"], "batches")
        t.equal(c.call("ping"), {}, "the answer afterwards")
    d.stop()


@case
def test_empty_lines_are_ignored_and_crlf_ends_a_line(t):
    d = idle_daemon(t)
    with d.connect() as c:
        c.send_raw(b"\n\r\n\n\n" + request(1, "ping").rstrip(b"\n") + b"\r\n\n  " + request(2, "ping"))
        t.equal([c.read_line()["id"], c.read_line()["id"]], [1, 2], "answered ids")
    d.stop()


MALFORMED = [  # line, code, id in the answer, part of the message, path
    (b"x", -32700, None, "expected a value", "line:1:1"),
    (b" ", -32700, None, "empty", "line:1:2"),
    (b"{", -32700, None, "ends too early", "line:1:2"),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, None, "ends too early", None),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"} x', -32700, None, "end of the document", None),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping",}', -32700, None, "comma", None),
    (b'{"jsonrpc":"2.0",/**/"id":1,"method":"ping"}', -32700, None, "comment", None),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"} // x', -32700, None, "comment", None),
    (b"{'jsonrpc':'2.0'}", -32700, None, "double quotes", None),
    (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700, None, "duplicate key", "id"),
    (b'{"jsonrpc":"2.0","id":1,"method":"list","params":{"limit":1,"limit":2}}', -32700, None, "duplicate",
     "params.limit"),
    (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', -32700, None, "too large", "id"),
    (b'{"jsonrpc":"2.0","id":00,"method":"ping"}', -32700, None, "leading zeros", None),
    (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700, None, "NaN", None),
    (b'{"jsonrpc":"2.0","id":"\\u0000","method":"ping"}', -32700, None, "u0000", None),
    (b'{"jsonrpc":"2.0","id":"\x00","method":"ping"}', -32700, None, "NUL", None),
    (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', -32700, None, "UTF-8", "line:1:24"),
    (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', -32700, None, "surrogate", None),
    (b"1", -32600, None, "object", ""),
    (b'"ping"', -32600, None, "object", ""),
    (b"null", -32600, None, "object", ""),
    (b"{}", -32600, None, "jsonrpc", ""),
    (b'{"id":1,"method":"ping"}', -32600, 1, "jsonrpc", ""),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1, "jsonrpc", ""),
    (b'{"jsonrpc":2,"id":1,"method":"ping"}', -32600, 1, "jsonrpc", ""),
    (b'{"jsonrpc":"2.0","id":1}', -32600, 1, "method", ""),
    (b'{"jsonrpc":"2.0","id":1,"method":1}', -32600, 1, "method", ""),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600, 1, "params", ""),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}', -32600, 1, "params", ""),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, 1, "method", ""),
    (b'{"jsonrpc":"2.0","id":1,"error":{}}', -32600, 1, "method", ""),
]


@case
def test_malformed_lines_are_answered_with_code_and_place(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for line, code, number, part, path in MALFORMED:
            c.send_raw(line + b"\n")
            answer = c.read_line()
            t.check(answer is not None, f"{line}: hung up")
            t.equal(set(answer), {"jsonrpc", "id", "error"}, f"{line}: members of the answer")
            error = answer["error"]
            t.equal((answer["id"], error["code"]), (number, code), f"{line}: id and code ({error['message']})")
            t.contains(error["message"], part, what=f"{line}: the message")
            t.equal(set(error["data"]), {"errno", "path", "hint", "exit"}, f"{line}: members of data")
            t.equal((error["data"]["errno"], error["data"]["exit"]), ("EINVAL", 2), f"{line}: errno and exit")
            if path is not None:
                t.equal(error["data"]["path"], path, f"{line}: path")
            t.equal(c.call("ping"), {}, f"the answer after {line}")
    d.stop()


@case
def test_unknown_methods_are_refused_with_the_nearest(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for word, near in (("lst", "list"), ("shwo", "show"), ("Ping", "ping"), ("log", "logs"), ("submitt", "submit"),
                           ("watch ", "watch"), ("device", "devices"), ("cancle", "cancel")):
            refused(t, lambda: c.call(word), -32601, "EOPNOTSUPP", "method", f'did you mean "{near}"?')
        for word in ("", "frobnicate", "x" * 5000, "é", "hello", "event", "\n"):
            e = refused(t, lambda: c.call(word), -32601, "EOPNOTSUPP", "method", "no such method")
            t.check("did you mean" not in e.message, f"{word!r:.30}: a suggestion: {e.message}")
    d.stop()


@case
def test_answers_are_matched_by_id(t):
    d = idle_daemon(t)
    job = d.submit(spec("out"))["id"]
    with d.connect() as c:
        wanted = {}
        data = b""
        for i in range(200):
            method = ["show", "ping", "logs", "list", "devices", "nothing", "submit"][i % 7]
            params = {"show": {"id": job}, "logs": {"id": job},
                      "submit": {"spec": spec(f"o{i}"), "dir": t.dir}}.get(method, {})
            wanted[f"n{i}"] = method
            data += request(f"n{i}", method, **params)
        c.send_raw(data)
        key = {"show": "spec", "logs": "text", "list": "jobs", "devices": "backend", "submit": "duplicate"}
        for _ in range(200):
            line = c.read_line()
            method = wanted.pop(line["id"])
            if method == "nothing":
                t.equal(line["error"]["code"], -32601, "code")
            elif method == "ping":
                t.equal(line["result"], {}, "ping")
            else:
                t.check(key[method] in line["result"], f"{method} is answered with {line}")
        t.equal(wanted, {}, "without an answer")
    d.stop()


@case(each=["show", "submit", "logs", "cancel"])
def test_a_watch_among_many_requests_leaves_the_connection_going(t, method):
    d = idle_daemon(t)
    jobs = [d.submit(spec(f"out{i}"))["id"] for i in range(40)]
    for before in range(12, 18):
        with d.connect() as c:
            params = [{"spec": spec("more"), "dir": t.dir} if method == "submit" else
                      {"id": jobs.pop() if method == "cancel" and len(jobs) > 1 else jobs[0]} for _ in range(before)]
            c.send_raw(b"".join(request(i, method, **p) for i, p in enumerate(params)) + request("w", "watch") +
                       b"".join(request(100 + i, "ping") for i in range(20)))
            left = {*range(before), "w", *range(100, 120)}
            while left:
                line = c.read_line()
                if "method" not in line:
                    t.check("result" in line, f"{line}")
                    left.remove(line["id"])
            t.equal(c.call("ping"), {}, "the answer afterwards")
    d.stop()


# ---- parameters ----

WRONG = [  # method, params, errno, path, part of the message
    ("submit", {}, "spec", "required key"),
    ("submit", {"spec": {}}, "dir", "required key"),
    ("submit", {"dir": "/"}, "spec", "required key"),
    ("submit", {"spec": [], "dir": "/"}, "spec", "object"),
    ("submit", {"spec": "job.json", "dir": "/"}, "spec", "object"),
    ("submit", {"spec": {}, "dir": "x"}, "dir", "absolute"),
    ("submit", {"spec": {}, "dir": ""}, "dir", "absolute"),
    ("submit", {"spec": {}, "dir": "./x"}, "dir", "absolute"),
    ("submit", {"spec": {}, "dir": 1}, "dir", "string"),
    ("submit", {"spec": {}, "dir": "/" + 5000 * "x"}, "dir", "long"),
    ("submit", {"spec": {}, "dir": "/", "key": ""}, "key", "1 to 128"),
    ("submit", {"spec": {}, "dir": "/", "key": "k" * 129}, "key", "1 to 128"),
    ("submit", {"spec": {}, "dir": "/", "key": 5}, "key", "string"),
    ("submit", {"spec": {}, "dir": "/", "key": None}, "key", "string"),
    ("submit", {"spec": {}, "dir": "/", "keys": "x"}, "keys", 'did you mean "key"?'),
    ("list", {"active": 1}, "active", "true or false"),
    ("list", {"active": "true"}, "active", "remove the quotes"),
    ("list", {"after": -1}, "after", ""),
    ("list", {"after": 1.5}, "after", ""),
    ("list", {"after": "1"}, "after", "remove the quotes"),
    ("list", {"after": 1e17}, "after", ""),
    ("list", {"limit": -1}, "limit", ""),
    ("list", {"limit": None}, "limit", ""),
    ("list", {"limits": 1}, "limits", 'did you mean "limit"?'),
    ("show", {}, "id", "required key"),
    ("show", {"id": "1"}, "id", "remove the quotes"),
    ("show", {"id": -1}, "id", ""),
    ("show", {"id": None}, "id", ""),
    ("show", {"id": [1]}, "id", ""),
    ("show", {"id": 1, "job": 1}, "job", "unknown key"),
    ("show", {"ID": 1}, "ID", 'did you mean "id"?'),
    ("logs", {}, "id", "required key"),
    ("logs", {"id": 1, "offset": -1}, "offset", ""),
    ("logs", {"id": 1, "offset": 2**60}, "offset", ""),
    ("logs", {"id": 1, "limit": 0}, "limit", "1 to 65536"),
    ("logs", {"id": 1, "limit": 65537}, "limit", "1 to 65536"),
    ("logs", {"id": 1, "limit": "9"}, "limit", ""),
    ("logs", {"id": 1, "ofset": 1}, "ofset", 'did you mean "offset"?'),
    ("watch", {"id": "x"}, "id", ""),
    ("watch", {"since": -1}, "since", ""),
    ("watch", {"since": 10**9}, "since", "beyond the newest event"),
    ("watch", {"since": True}, "since", ""),
    ("watch", {"from": 1}, "from", "unknown key"),
    ("cancel", {}, "id", "required key"),
    ("cancel", {"id": 1, "now": 1}, "now", ""),
    ("cancel", {"id": {}}, "id", ""),
    ("cancel", {"id": 1, "force": True}, "force", "unknown key"),
    ("devices", {"index": 0}, "index", "unknown key"),
    ("ping", {"x": 0}, "x", "unknown key"),
]


@case
def test_wrong_parameters_are_refused_with_their_path(t):
    d = idle_daemon(t)
    d.submit(spec("out"))
    with d.connect() as c:
        for method, params, path, part in WRONG:
            refused(t, lambda: c.call(method, **params), -32602, "EINVAL", path, part)
        t.equal(len(c.call("list")["jobs"]), 1, "jobs")
    d.stop()


@case
def test_there_is_no_such_job(t):
    d = idle_daemon(t)
    d.submit(spec("out"))
    with d.connect() as c:
        for method in ("show", "logs", "cancel", "watch"):
            for number in (0, 2, 10**6, 2**53 - 1):
                refused(t, lambda: c.call(method, id=number), -32000, "ENOENT", "id", f"no job {number}")
    d.stop()


BAD_SPECS = [  # changes, errno, path, part of the message
    ({"train.micro_bach": 2}, "EINVAL", "train.micro_bach", 'did you mean "micro_batch"?'),
    ({"queue": {"priority": "normal"}}, "EOPNOTSUPP", "queue.priority", "not supported yet"),
    ({"queue": {"preemptible": True}}, "EOPNOTSUPP", "queue.preemptible", "not supported yet"),
    ({"train.micro_batch": 3}, "EINVAL", "train.micro_batch", ""),
    ({"train.replicas": 3}, "EINVAL", "train.replicas", "2 or 4"),
    ({"train.global_batch": 0}, "EINVAL", "train.global_batch", ""),
    ({"train": 1}, "EINVAL", "train", "object"),
    ({"schema": "job/v2"}, "EINVAL", "schema", ""),
    ({"model.type": "mlpp"}, "EINVAL", "model.type", "mlp"),
    ({"model": {"type": "chain", "input": 3, "layers": [{"op": "linear", "out": 2}, {"op": "linear", "out": -2}]}},
     "EINVAL", "model.layers[1].out", ""),
    ({"optimizer.lr": "fast"}, "EINVAL", "optimizer.lr", "number"),
    ({"optimizer.type": "adam"}, "EINVAL", "optimizer.type", "adamw"),
    ({"precision": "fp8"}, "EINVAL", "precision", "bf16"),
    ({"name": "a/b"}, "EINVAL", "name", ""),
    ({"name": ""}, "EINVAL", "name", ""),
    ({"name": "n" * 65}, "EINVAL", "name", "64"),
    ({"output": 5}, "EINVAL", "output", ""),
    ({"resources.device_memory": "9XB"}, "EINVAL", "resources.device_memory", ""),
    ({"resources.devices": 0}, "EINVAL", "resources.devices", ""),
    ({"colour": "red"}, "EINVAL", "colour", "unknown key"),
]


@case
def test_spec_errors_carry_the_path_inside_the_spec(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for changes, errno, path, part in BAD_SPECS:
            refused(t, lambda: c.call("submit", spec=spec("out", changes), dir=t.dir), -32602, errno, path, part)
        for changes, path in (({"resources.devices": 2}, "resources.devices"),
                              ({"resources.devices": {"min": 3, "max": 9}}, "resources.devices"),
                              ({"resources.device_memory": "65MiB"}, "resources.device_memory"),
                              ({"resources.host_memory": "1025MiB"}, "resources.host_memory")):
            refused(t, lambda: c.call("submit", spec=spec("out", changes), dir=t.dir), -32000, "ENOSPC", path,
                    "the largest device here" if "device_memory" in path else "this machine")
        t.equal(c.call("list")["jobs"], [], "jobs")
    d.stop()


# ---- submit ----

@case
def test_submit_answers_with_the_job(t):
    d = idle_daemon(t)
    j = d.submit(spec("out", {"name": 'n"é'}))
    t.equal(list(j), SHORT + ["duplicate"], "members, in order")
    t.equal((j["id"], j["name"], j["uid"], j["state"], j["duplicate"]), (1, 'n"é', os.getuid(), "queued", False),
            "the job")
    t.check(j["submitted_ms"] > 1.6e12, "no time of its submit")
    for key in ("started_ms", "ended_ms", "pid", "loss", "samples_per_s", "eta_s", "exit", "error"):
        t.equal(j[key], None, key)
    t.equal((j["attempt"], j["failures"], j["step"]), (0, 0, 0), "counts")
    d.stop()


@case
def test_the_same_key_is_the_same_job(t):
    d = idle_daemon(t)
    with d.connect() as c:
        def submit(s, key, directory=t.dir):
            return c.call("submit", spec=s, dir=directory, key=key)

        first = submit(spec("a"), "k")
        for _ in range(3):
            again = submit(spec("a"), "k")
            t.equal((again["id"], again["duplicate"]), (first["id"], True), "a retry")
        refused(t, lambda: submit(spec("b"), "k"), -32602, "EEXIST", "key", "job 1")
        refused(t, lambda: submit(spec("a", {"train.steps": 4}), "k"), -32602, "EEXIST", "key")
        refused(t, lambda: submit(spec("a"), "k", "/tmp"), -32602, "EEXIST", "key")
        refused(t, lambda: submit({}, "k"), -32602, "EEXIST", "key")
        t.equal((submit(spec("a"), "K")["duplicate"], c.call("submit", spec=spec("a"), dir=t.dir)["duplicate"]),
                (False, False), "another key, and none")
        for key in ("a\nb", "\t", "x\u202e"):
            refused(t, lambda key=key: submit(spec("a"), key), -32602, "EINVAL", "key", "control or invisible")
        for key in ("x", "k" * 128, "é🎵", "a\"'\\", " ", "%s", "1:2"):
            t.equal((submit(spec("a"), key)["duplicate"], submit(spec("a"), key)["duplicate"]), (False, True),
                    f"key {key!r:.20}")
        c.call("cancel", id=2)
        t.equal((submit(spec("a"), "K")["id"], submit(spec("a"), "K")["state"]), (2, "cancelled"),
                "a retry after the end")
        n = len(c.call("list")["jobs"])
    for number in (SIGKILL, SIGTERM):
        d.restart(number)
        with d.connect() as c:
            j = c.call("submit", spec=spec("a"), dir=t.dir, key="k")
            t.equal((j["id"], j["duplicate"]), (1, True), "a retry with another daemon")
            refused(t, lambda: c.call("submit", spec=spec("b"), dir=t.dir, key="k"), -32602, "EEXIST", "key")
            t.equal(len(c.call("list")["jobs"]), n, "jobs")
    d.stop()


@case
def test_the_same_key_at_once_is_one_job(t):
    d = idle_daemon(t)

    def submit(i):
        with d.connect() as c:
            data = b"".join(request(k, "submit", spec=spec("a"), dir=t.dir, key=f"key {k}") for k in range(10))
            c.send_raw(data + data.replace(b'"id": ', b'"id": 9'))  # each twice on one connection, too
            return {line["id"]: line["result"] for line in (c.read_line() for _ in range(20))}

    answers = parallel(6, submit)
    for k in range(10):
        ids = [a[i]["id"] for a in answers for i in (k, int(f"9{k}"))]
        fresh = [a[i]["duplicate"] for a in answers for i in (k, int(f"9{k}"))].count(False)
        t.equal((len(ids), len(set(ids)), fresh), (12, 1, 1), f"answers, jobs and firsts of key {k}")
    t.equal(len(d.call("list")["jobs"]), 10, "jobs")
    d.stop()


def collide(text, at):
    """The text with other letters in place of the twelve at `at`, and the same CRC-32C."""
    # CRC is linear: flipping a bit of the text flips a fixed set of bits of the CRC. Of a letter the lowest three may flip.
    base = crc32c(text)
    columns = []
    for i in range(12):
        for bit in range(3):
            changed = bytearray(text)
            changed[at + i] ^= 1 << bit
            columns.append((crc32c(bytes(changed)) ^ base, 1 << (3 * i + bit)))
    rows = []  # Gauss; a combination of columns that gives 0
    for value, used in columns:
        for v, u in rows:
            if value ^ v < value:
                value, used = value ^ v, used ^ u
        if value == 0:
            changed = bytearray(text)
            for i in range(12):
                for bit in range(3):
                    if used >> (3 * i + bit) & 1:
                        changed[at + i] ^= 1 << bit
            return bytes(changed)
        rows.append((value, used))
    return None


@case
def test_another_spec_with_the_same_checksum_is_another_spec(t):
    d = idle_daemon(t)
    with d.connect() as c:
        one = spec("out", {"name": "hhhhhhhhhhhh"})
        stored = c.call("submit", spec=one, dir=t.dir, key="k")
        printed = json.dumps(c.call("show", id=stored["id"])["spec"], separators=(",", ":"))
        text = printed.encode()
        other = json.loads(collide(text, text.index(b"hhhhhhhhhhhh")))
        t.check(other != one, "no collision")
        refused(t, lambda: c.call("submit", spec=other, dir=t.dir, key="k"), -32602, "EEXIST", "key")
    d.stop()


@case
def test_the_queue_has_a_limit(t):
    d = idle_daemon(t, max_queued=3)
    with d.connect() as c:
        for i in range(3):
            c.call("submit", spec=spec("out"), dir=t.dir, key=f"{i}")
        refused(t, lambda: c.call("submit", spec=spec("out"), dir=t.dir), -32000, "EAGAIN", "", "3 jobs are queued")
        t.equal(c.call("submit", spec=spec("out"), dir=t.dir, key="1")["duplicate"], True, "a retry is no new job")
        c.call("cancel", id=3)
        t.equal(c.call("submit", spec=spec("out"), dir=t.dir)["id"], 4, "the next one")
    d.stop()


@case
def test_a_user_submits_no_faster_than_the_rate(t):
    d = idle_daemon(t, user_submit_rate=1, user_submit_burst=3)
    with d.connect() as c:
        for i in range(3):
            c.call("submit", spec=spec("out"), dir=t.dir, key=f"{i}")
        refused(t, lambda: c.call("submit", spec={}, dir=t.dir), -32000, "EAGAIN", "", "1 jobs a second", "burst of 3",
                "try again in")
        until(lambda: submitted(c, spec=spec("out"), dir=t.dir), "another token")
    d.stop()


def submitted(c, **params):
    """Whether the submit passed; False: it is to be tried again."""
    try:
        c.call("submit", **params)
    except RpcError as e:
        if e.errno != "EAGAIN":
            raise
        return False
    return True


@case
def test_a_users_unfinished_jobs_take_no_more_state_than_allowed(t):
    layers = [{"op": "linear", "out": 8}] * 2500 + [{"op": "linear", "out": 3}]
    big = spec("out", {"model": {"type": "chain", "input": 6, "layers": layers}})
    small = spec("out")
    d = idle_daemon(t, user_state_bytes="100kB")
    with d.connect() as c:
        first = c.call("submit", spec=big, dir=t.dir)["id"]
        refused(t, lambda: c.call("submit", spec=big, dir=t.dir), -32000, "EAGAIN", "", "97.66 KiB of state",
                "--user-state-bytes")
        t.equal(c.call("submit", spec=small, dir=t.dir)["id"], first + 1, "a small one still fits; no id was lost")
    d.restart()
    with d.connect() as c:
        refused(t, lambda: c.call("submit", spec=big, dir=t.dir), -32000, "EAGAIN", "", "of state")
        c.call("cancel", id=first, now=True)
        d.wait_job(first, "cancelled")
        c.call("submit", spec=big, dir=t.dir)  # its room was given back
    d.stop()


@case
def test_a_spec_as_long_as_a_line_survives(t):
    d = idle_daemon(t)
    layers = [{"op": "linear", "out": 8, "bias": False}, {"op": "tanh"}] * 4999 + [{"op": "linear", "out": 3}]
    s = spec("out", {"model": {"type": "chain", "input": 6, "layers": layers}})
    with d.connect() as c:
        line = request(1, "submit", spec=s, dir=t.dir)
        t.check(LINE / 4 < len(line) < LINE, f"{len(line)} bytes")
        c.send_raw(line)
        job = c.answer(1)["id"]
        t.equal(c.call("show", id=job)["spec"], s, "the spec")
        p = Puppet(d, job)
        t.equal(p.given["spec"], s, "the spec that the worker gets")
        p.outcome()
    d.stop()


# ---- list ----

def submit_many(d, n, changes=lambda i: {}):
    """n jobs on a few connections; returns their ids."""
    def some(k):
        mine = range(k, n, 4)
        with d.connect() as c:
            reader = threading.Thread(target=lambda: [c.answers.update({line["id"]: line}) for line in
                                                      (c.read_line() for _ in mine)])
            reader.start()
            for i in mine:
                c.send_raw(request(i, "submit", spec=spec("out", changes(i)), dir=d.t.dir))
            reader.join()
            return [c.answer(i)["id"] for i in mine]

    return sorted(i for ids in parallel(4, some) for i in ids)


def all_pages(t, c, **params):
    """Every job by way of `after`; no line is longer than it may be."""
    jobs, after, pages = [], 0, 0
    while True:
        c.send_raw(request(f"p{pages}", "list", after=after, **params))
        raw = c.read_raw_line()
        t.check(len(raw) < LINE, f"a line of {len(raw)} bytes")
        answer = json.loads(raw)["result"]
        jobs += answer["jobs"]
        pages += 1
        if not answer["more"]:
            return jobs, pages
        t.check(answer["jobs"], "an empty page, and more to come")
        after = answer["jobs"][-1]["id"]


@case
def test_list_pages_are_complete_and_ascend(t):
    d = idle_daemon(t)
    with d.connect() as c:
        t.equal(c.call("list"), {"jobs": [], "more": False}, "no jobs")
        ids = submit_many(d, 25)
        t.equal(ids, list(range(1, 26)), "ids")
        for number in range(2, 26, 3):
            c.call("cancel", id=number)
        active = [i for i in ids if i % 3 != 2]
        for limit in (1, 2, 7, 24, 25, 26, 1000, 5000, 2**53 - 1):
            jobs, pages = all_pages(t, c, limit=limit)
            t.equal([j["id"] for j in jobs], ids, f"ids, {limit} at a time")
            t.equal(pages, max(1, -(-25 // limit)), f"pages of {limit}")
            jobs, _ = all_pages(t, c, limit=limit, active=True)
            t.equal([j["id"] for j in jobs], active, f"active ids, {limit} at a time")
        for after in (0, 1, 13, 24, 25, 26, 2**53 - 1):
            t.equal([j["id"] for j in c.call("list", after=after)["jobs"]], [i for i in ids if i > after],
                    f"after {after}")
        refused(t, lambda: c.call("list", limit=0), -32602, "EINVAL", "limit", "at least 1")
        t.equal(list(c.call("list", limit=1)["jobs"][0]), SHORT, "members")
    d.stop()


@case
def test_list_of_two_thousand_jobs_with_long_names_is_complete(t):
    d = idle_daemon(t)
    ids = submit_many(d, 2000, lambda i: {"name": f"{i:04}" + 60 * '"'})
    t.equal(ids, list(range(1, 2001)), "ids")
    with d.connect() as c:
        first = c.call("list")
        t.equal((len(first["jobs"]), first["more"]), (1000, True), "the first page")
        for round_ in range(2):
            jobs, pages = all_pages(t, c)
            t.equal(([j["id"] for j in jobs], pages), (ids, 2), "ids and pages")
            t.equal(sorted(j["name"][:4] for j in jobs), [f"{i:04}" for i in range(2000)], "names")
            t.check(all(j["state"] == "queued" and j["name"][4:] == 60 * '"' for j in jobs),
                    "a job is not as it was submitted")
            if round_ == 0:
                c.close()
                d.restart()
                c = d.connect()
        t.equal(c.call("submit", spec=spec("out"), dir=t.dir)["id"], 2001, "the next id")
        c.close()
    d.stop()


def rewrite_status(d, change):
    """Changes the status of every job on disk; the daemon does not run."""
    db = sqlite3.connect(os.path.join(d.state, "state.db"))
    for number, body, uid, size in db.execute("SELECT id, body, uid, bytes FROM status").fetchall():
        status = change(number, json.loads(body))
        ended = int(time.time() * 1000) if status["state"] in ("done", "failed", "cancelled") else 0
        body = json.dumps(status, separators=(",", ":"))
        crc = crc32c(struct.pack("<4Q", number, ended, uid, size) + body.encode() + b"\0")
        db.execute("UPDATE status SET body=?, crc=?, ended_ms=? WHERE id=?", (body, crc, ended, number))
    db.commit()
    db.close()


@case
def test_list_never_exceeds_a_line(t):
    d = idle_daemon(t)
    submit_many(d, 500)
    d.stop()

    def fail(number, status):
        error = {"errno": "EIO", "path": 700 * '"', "message": 760 * "\\" + f" {number}"}
        return dict(status, state="failed", exit=1, error=error, devices=list(range(64)), reason=300 * "é")

    rewrite_status(d, fail)
    d.start()
    with d.connect() as c:
        jobs, pages = all_pages(t, c)
        t.equal([j["id"] for j in jobs], list(range(1, 501)), "ids")
        t.check(pages > 1, "all were on one page")
        t.check(all(j["error"]["message"].endswith(f" {j['id']}") for j in jobs), "an error is not as it was")
    d.stop()


# ---- show ----

PLANNED = {"parameters": 51, "state_bytes": 816, "resolved": {"schema": "x", "total_steps": 30},
           "plan": {"policy": "resident"},
           "output": "/x"}
PROGRESS = {"step": 12, "total_steps": 30, "loss": 0.5, "lr": 0.25, "samples_per_s": 100.5, "eta_s": 7.5, "in_bytes": 1,
            "out_bytes": 2, "peer_bytes": 3, "stall_share": 0.125}


@case
def test_show_before_while_and_after(t):
    d = idle_daemon(t)
    s = spec("out/deep", {"name": "ä"})
    job, waiting = d.submit(s)["id"], d.submit(spec("/abs/out"))["id"]
    with d.connect() as c:
        j = c.call("show", id=waiting)
        t.check(set(SHORT + LONG) <= set(j), f"missing: {set(SHORT + LONG) - set(j)}")
        t.equal((j["state"], j["dir"], j["output"], j["spec"]), ("queued", t.dir, "/abs/out", spec("/abs/out")),
                "of a queued job")
        t.equal({k: j[k] for k in LONG[3:11]}, dict.fromkeys(LONG[3:11]), "what is not known")
        t.check(isinstance(j["seq"], int), "no seq")

        p = Puppet(d, job)
        t.equal((p.given["spec"], p.given["dir"]), (s, t.dir), "what the worker gets")
        t.equal(p.given["lease"]["devices"], 1, "the lease")
        p.tell("planned", **PLANNED)
        p.tell("progress", **PROGRESS)
        p.tell("curve", points=[[1, 2.5], [2, 1.5]], evals=[[2, 1.25, 0.5]])
        j = until(lambda: (lambda j: j["curve"] and j)(c.call("show", id=job)), "curve")
        t.equal((j["state"], j["attempt"], j["devices"], j["pid"]), ("running", 1, [0], p.pid), "of a running job")
        t.equal((j["step"], j["total_steps"], j["loss"], j["samples_per_s"], j["eta_s"]), (12, 30, 0.5, 100.5, 7.5),
                "progress")
        t.equal((j["resolved"], j["plan"], j["progress"]), (PLANNED["resolved"], PLANNED["plan"], PROGRESS),
                "as the worker said")
        t.equal((j["curve"], j["evals"], j["report"]), ([[1, 2.5], [2, 1.5]], [[2, 1.25, 0.5]], None),
                "curve, evals and report")
        t.equal((j["output"], j["log_bytes"]), (os.path.join(t.dir, "out/deep"), 0), "output and log")
        t.check(j["started_ms"] >= j["submitted_ms"] and j["ended_ms"] is None, "times")

        p.outcome(report={"loss": 0.125, "é": [1]}, curve=[[3, 0.5]], evals=[[3, 0.5, 1]], step=30)
        j = until(lambda: (lambda j: j["state"] == "done" and j)(c.call("show", id=job)), "end")
        t.equal((j["exit"], j["error"], j["pid"], j["eta_s"], j["step"], j["loss"]), (0, None, None, None, 30, 0.125),
                "at the end")
        t.equal((j["report"], j["curve"], j["evals"]), ({"loss": 0.125, "é": [1]}, [[3, 0.5]], [[3, 0.5, 1]]),
                "of the outcome")
        t.equal((j["resolved"], j["plan"], j["progress"], j["spec"]),
                (PLANNED["resolved"], PLANNED["plan"], PROGRESS, s), "what the worker had said")
        t.check(j["ended_ms"] >= j["started_ms"], "times")
    for number in (SIGKILL, SIGTERM):
        d.restart(number)
        found = d.show(job)
        t.equal({**found, "seq": 0}, {**j, "seq": 0}, "with another daemon")
    d.stop()


@case
def test_a_real_job_from_submit_to_report(t):
    d = Daemon(t, devices=1).start()
    with d.connect() as c:
        c.watch()
        s = spec("out")
        job = c.call("submit", spec=s, dir=t.dir)["id"]
        c.wait_event("ended")
        names = [e["event"] for e in c.events]
        t.equal((names[0], names[-1], names[1]), ("submitted", "ended", "started"), f"events {names}")
        t.check({"planned", "checkpoint", "eval"} <= set(names), f"events {names}")
        t.equal({e["job"] for e in c.events}, {job}, "jobs in the events")
        j = c.call("show", id=job)
        with open(t.path("out", "result.json"), encoding="utf-8") as f:
            t.equal(j["report"], json.load(f), "the report")
        t.equal((j["state"], j["exit"], j["step"], j["total_steps"], len(j["curve"])), ("done", 0, 3, 3, 3), "the job")
        text = until(lambda: (lambda r: r["end"] and r)(c.call("logs", id=job)), "exit of the worker")
        t.equal((text["offset"], j["log_bytes"]), (os.path.getsize(d.worker_log(job)),) * 2, "bytes of the log")
    d.stop()


# ---- logs ----

def shown(data):
    """What `logs` makes of bytes: U+FFFD for each that is not UTF-8, and for NUL."""
    out, i = [], 0
    while i < len(data):
        for n in (1, 2, 3, 4):
            try:
                char = data[i:i + n].decode("utf-8")
            except UnicodeDecodeError:
                continue
            if len(char) == 1 and len(data[i:i + n]) == n and char != "\0":
                out.append(char)
                i += n
                break
        else:
            out.append("\ufffd")
            i += 1
    return "".join(out)


def read_log(t, c, job, limit):
    text, offset = "", 0
    while True:
        r = c.call("logs", id=job, offset=offset, limit=limit)
        t.check(offset <= r["offset"] <= offset + limit, f"from {offset} to {r['offset']} with limit {limit}")
        text += r["text"]
        if r["end"] or r["offset"] == offset:
            return text, r["offset"], r["end"]
        offset = r["offset"]


@case
def test_logs_are_whole_however_they_are_cut(t):
    d = idle_daemon(t)
    job = d.submit(spec("out"))["id"]
    p = Puppet(d, job)
    text = "aé€🎵\n" * 3 + "\x1b[31m\t\r\x7f end 🎵"
    data = text.encode()
    with d.connect() as c:
        t.equal(c.call("logs", id=job), {"text": "", "offset": 0, "end": False}, "an empty log")
        with open(d.worker_log(job), "ab") as f:
            f.write(data)
        for limit in range(4, len(data) + 2):
            t.equal(read_log(t, c, job, limit), (text, len(data), False), f"{limit} bytes at a time")
        for limit in (1, 2, 3):
            found, offset, _ = read_log(t, c, job, limit)
            t.equal((offset, found.replace("\ufffd", "")), (len(data), "".join(x for x in text if len(x.encode()) <= limit)),
                    f"{limit} bytes at a time, less than a character")
        for offset in range(len(data) + 1):
            r = c.call("logs", id=job, offset=offset)
            t.equal((r["text"], r["offset"], r["end"]), (shown(data[offset:]), len(data), False), f"from {offset}")
        t.equal(c.call("logs", id=job, offset=10**6), {"text": "", "offset": 10**6, "end": False}, "beyond the end")
        t.equal(c.call("logs", id=job, offset=2**53 - 1)["text"], "", "far beyond the end")
        p.outcome()
        until(lambda: c.call("logs", id=job)["end"], "end")
        for limit in (4, 7, len(data), len(data) + 1, 65536):
            t.equal(read_log(t, c, job, limit), (text, len(data), True), f"{limit} bytes at a time, after the end")
        t.equal(c.call("logs", id=job, offset=10**6), {"text": "", "offset": 10**6, "end": True}, "beyond the end")
    d.stop()


@case
def test_logs_wait_for_the_rest_of_a_character(t):
    d = idle_daemon(t)
    job = d.submit(spec("out"))["id"]
    p = Puppet(d, job)
    note = "🎵".encode()
    with d.connect() as c:
        offset, got = 0, ""
        for byte in ("x€é🎵y".encode() + note[:3]):  # a writer of one byte at a time, and a reader after each
            with open(d.worker_log(job), "ab") as f:
                f.write(bytes([byte]))
            r = c.call("logs", id=job, offset=offset)
            got, offset = got + r["text"], r["offset"]
        t.equal(got, "x€é🎵y", "the text so far")
        p.outcome()
        until(lambda: c.call("show", id=job)["state"] == "done", "end")
        r = until(lambda: (lambda r: r["end"] and r)(c.call("logs", id=job, offset=offset)), "end of the log")
        t.equal(r["text"], "\ufffd" * 3, "what never became a character")
    d.stop()


@case
def test_logs_with_bytes_of_any_kind(t):
    d = idle_daemon(t)
    job = d.submit(spec("out"))["id"]
    p = Puppet(d, job)
    rng = random.Random(4)
    data = bytes(range(256)) * 2 + b"\xff" * 9 + b"\xc3" + b"\xed\xa0\x80" + b"\xf5\x80\x80\x80" + b"\xe2\x82" + rng.randbytes(4000)
    with open(d.worker_log(job), "ab") as f:
        f.write(data)
    p.outcome()
    with d.connect() as c:
        until(lambda: c.call("logs", id=job)["end"], "end")
        t.equal(c.call("logs", id=job), {"text": shown(data), "offset": len(data), "end": True}, "in one piece")
        for limit in (4, 5, 64, 1000):
            text, offset, _ = read_log(t, c, job, limit)
            t.equal((text, offset), (shown(data), len(data)), f"{limit} bytes at a time")
    d.stop()


@case
def test_logs_of_control_characters_fit_a_line(t):
    d = idle_daemon(t)
    job = d.submit(spec("out"))["id"]
    p = Puppet(d, job)
    data = b"\x01" * 200000
    with open(d.worker_log(job), "ab") as f:
        f.write(data)
    with d.connect() as c:
        text, offset, _ = read_log(t, c, job, 65536)
        t.equal((len(text), offset), (len(data), len(data)), "read")
    p.outcome()
    d.stop()


# ---- watch ----

def check_stream(t, events, kept, what):
    """Numbers ascend and none comes twice (a gap may bear the number of what it follows); all that is kept is there."""
    last = 0
    for e in events:
        t.check(e["seq"] > last or (e["event"] == "gap" and e["seq"] == last), f"{what}: {e['seq']} after {last}")
        last = e["seq"]
    t.equal([e["seq"] for e in events if e["event"] in KEPT], kept, f"{what}: what is kept")


def kept_seqs(d):
    """The numbers of all kept events there are."""
    with d.connect() as c:
        newest = c.watch(since=0)["seq"]
        c.wait_event(lambda e: e["seq"] >= newest)
        return [e["seq"] for e in c.events if e["event"] in KEPT and e["seq"] <= newest]


@case
def test_watch_from_now_and_from_a_number(t):
    d = idle_daemon(t)
    with d.connect() as now, d.connect() as all_, d.connect() as other:
        first = d.submit(spec("a"))["id"]
        seq = now.watch()["seq"]
        t.equal(all_.watch(since=0)["seq"], seq, "the newest number")
        other.watch(since=0)
        second = d.submit(spec("b"))["id"]
        d.call("cancel", id=second)
        for c in (now, all_, other):
            c.wait_event("ended")
        t.equal([(e["event"], e["job"]) for e in now.events], [("submitted", second), ("ended", second)], "from now on")
        t.equal([(e["event"], e["job"]) for e in all_.events],
                [("submitted", first)] + [(e["event"], e["job"]) for e in now.events],
                "from the beginning")
        t.equal(all_.events, other.events, "of two watchers")
        t.equal(now.events, all_.events[1:], "of the one that came later")
        e = all_.events[-1]
        t.equal((e["state"], e["exit"], e["error"]), ("cancelled", 130, None), "fields of ended")
        t.equal(all_.events[0]["name"], "tiny", "field of submitted")
        for e in all_.events:
            with d.connect() as c:
                c.watch(since=e["seq"])
                d.call("ping")
                until(lambda: c.call("ping") == {}, "answer")
                t.equal(c.events, [x for x in all_.events if x["seq"] > e["seq"]], f"since {e['seq']}")
    d.stop()


@case
def test_watch_of_one_job_and_a_watch_that_replaces_another(t):
    d = idle_daemon(t)
    a, b = d.submit(spec("a"))["id"], d.submit(spec("b"))["id"]
    with d.connect() as c, d.connect() as every:
        every.watch(since=0)
        c.watch(id=b, since=0)
        p = Puppet(d, a)
        p.tell("progress", **PROGRESS)
        every.wait_event("progress")
        d.call("cancel", id=b)
        c.wait_event("ended")
        t.equal([(e["event"], e["job"]) for e in c.events], [("submitted", b), ("ended", b)], "of one job")
        c.events.clear()
        c.watch(id=a, since=0)  # replaces
        e = c.wait_event("progress")
        t.equal({k: e[k] for k in PROGRESS}, PROGRESS, "fields of progress")
        d.call("cancel", id=d.submit(spec("c"))["id"])
        p.outcome()
        c.wait_event("ended")
        t.equal({e["job"] for e in c.events}, {a}, "jobs after the second watch")
        every.wait_event(lambda e: e["event"] == "ended" and e["job"] == a)
        t.equal(c.events, [e for e in every.events if e["job"] == a], "the same events as the other watcher's")
    d.stop()


@case
def test_watch_first_then_show_misses_nothing(t):
    d = idle_daemon(t)
    for _ in range(30):
        job = d.submit(spec("x"))["id"]
        stopper = threading.Thread(target=d.call, args=("cancel",), kwargs={"id": job})
        with d.connect() as c:
            stopper.start()
            c.watch(id=job)
            j = c.call("show", id=job)
            if j["state"] != "cancelled":
                c.wait_event("ended")
            stopper.join()
    d.stop()


@case
def test_worker_events_reach_the_watcher_as_they_were_said(t):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    with d.connect() as c:
        c.watch(id=job)
        p = Puppet(d, job)
        said = [("planned", PLANNED), ("resumed", {"step": 3, "numerics_changed": False}), ("progress", PROGRESS),
                ("skipped", {"step": 4}), ("eval", {"step": 5, "loss": 0.5, "accuracy": 0.75}), ("checkpoint",
                                                                                                 {"step": 6}),
                ("alive", {}), ("curve", {"points": [], "evals": []}), ("nonsense", {"x": 1})]
        for method, params in said:
            p.tell(method, **params)
        p.outcome("failed", 5, error={"errno": "ENOSPC", "path": "a.b", "message": "does not \"fit\""}, retry=False)
        c.wait_event("ended")
        t.equal([e["event"] for e in c.events], ["started"] + [m for m, _ in said[:6]] + ["ended"], "events")
        for e, (method, params) in zip(c.events[1:], said[:6]):
            t.equal({k: v for k, v in e.items() if k not in ("seq", "job", "event", "time_ms")}, params,
                    f"fields of {method}")
        started, ended = c.events[0], c.events[-1]
        t.equal((started["attempt"], started["devices"], started["pid"]), (1, [0], p.pid), "fields of started")
        t.equal((ended["state"], ended["exit"], ended["error"]),
                ("failed", 5, {"errno": "ENOSPC", "path": "a.b", "message": "does not \"fit\""}), "fields of ended")
        j = c.call("show", id=job)
        t.equal((j["state"], j["exit"], j["error"]), ("failed", 5, ended["error"]), "the job")
    d.stop()


@case(each=["SIGKILL", "SIGTERM"])
def test_kept_events_are_replayed_by_the_next_daemon_and_numbers_go_on(t, name):
    number = {"SIGKILL": SIGKILL, "SIGTERM": SIGTERM}[name]
    d = idle_daemon(t)
    newest, kept = 0, []  # of the lives before
    for life in range(4):
        with d.connect() as c, d.connect() as again:
            seq = c.watch(since=0)["seq"]
            t.check(seq >= newest, f"the newest number went back from {newest} to {seq}")
            if kept:
                again.watch(since=kept[-1])
            ids = [d.submit(spec("x"))["id"] for _ in range(3)]
            for job in ids[1:]:
                d.call("cancel", id=job)
            c.wait_event(lambda e: e["event"] == "ended" and e["job"] == ids[-1])
            check_stream(t, c.events, kept_seqs(d), f"life {life}")
            t.equal([e["seq"] for e in c.events if e["event"] in KEPT and e["seq"] <= newest], kept,
                    "what the lives before left")
            t.equal([e["event"] for e in c.events].count("gap"), 1 if life else 0, "gaps")
            if kept:
                again.wait_event(lambda e: e["event"] == "ended" and e["job"] == ids[-1])
                t.equal(again.events[0]["event"], "gap", "the first event after the last number of the life before")
                t.check(all(e["seq"] > kept[-1] for e in again.events), "an old event")
        d.restart(number)
        for job in ids:
            t.equal(d.show(job)["id"], job, "a job")
        with d.connect() as c:
            newest = c.watch()["seq"]  # the end of a life, and the beginning of the next, have events of their own
        kept = [k for k in kept_seqs(d) if k <= newest]
    t.equal(kept, sorted(set(kept)), "numbers of kept events")
    refused(t, lambda: d.call("watch", since=2**50), -32602, "EINVAL", "since", "beyond the newest")
    d.stop()


@case
def test_a_restarted_daemon_tells_no_gap_to_who_knows_the_newest(t):
    d = idle_daemon(t)
    d.submit(spec("x"))
    d.restart()
    with d.connect() as c:
        newest = c.watch()["seq"]
        c.watch(since=newest)
        job = d.submit(spec("x"))["id"]
        c.wait_event(lambda e: e["job"] == job)
        t.check("gap" not in [e["event"] for e in c.events if e["seq"] > newest and e["job"] != 1], "a gap")
        refused(t, lambda: c.watch(since=c.events[-1]["seq"] + 100000), -32602, "EINVAL", "since")
    d.stop()


@case(each=[1, 2, 3])
def test_a_watcher_cut_off_anywhere_loses_and_repeats_nothing(t, seed):
    """While events come, the connection is cut after a random number of bytes, again and again."""
    rng = random.Random(seed)
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    done = threading.Event()

    problems = []

    def produce():
        try:
            with d.connect() as c:
                for i in range(150):
                    for _ in range(rng.randrange(40)):
                        p.tell("progress", **dict(PROGRESS, step=i))
                    c.call("cancel", id=c.call("submit", spec=spec("x"), dir=t.dir)["id"])
        except Exception as e:  # told by the case itself, below
            problems.append(repr(e))
        finally:
            done.set()

    producer = threading.Thread(target=produce)
    producer.start()
    cutter = random.Random(seed + 100)
    seen, last, cuts = [], 0, 0
    while not done.is_set():
        with d.connect() as c:
            c.send_raw(request(1, "watch", since=last))
            budget, data = cutter.choice((100, 3000, 20000, 60000)), c.rest
            c.socket.settimeout(0.2)  # only to look at `done` now and then
            while len(data) < budget and not done.is_set():
                try:
                    more = c.socket.recv(cutter.randrange(1, 4000))
                except socket.timeout:
                    continue
                t.check(more, "hung up")
                data += more
            lines = map(json.loads, data.split(b"\n")[:-1])  # a cut line is lost with its connection
            seen += [m["params"] for m in lines if m.get("method") == "event"]
            last = max([last] + [e["seq"] for e in seen])
            cuts += 1
    producer.join()
    t.equal(problems, [], "what went wrong while events were made")
    with d.connect() as c:  # the rest
        newest = c.watch(since=last)["seq"]
        if newest > last:
            c.wait_event(lambda e: e["seq"] >= newest)
        seen += c.events
    t.check(cuts > 3, "it was never cut")
    check_stream(t, seen, kept_seqs(d), f"{cuts} connections")
    t.equal({e["job"] for e in seen if e["event"] == "ended"}, set(range(2, 152)), "jobs that ended")
    p.die()
    d.stop()


# ---- devices, ping, cancel ----

@case
def test_devices_and_their_jobs(t):
    d = Daemon(t, devices=3, worker=puppets(t)).start()
    with d.connect() as c:
        want = {"backend": "cpu", "backend_reason": "virtual devices were asked for", "auto": False,
                "host_memory_bytes": 1 << 30, "host_bytes_each": (1 << 30) // 3, "launch_pause": None,
                "devices": [{"index": i, "memory_bytes": 64 << 20, "job": None} for i in range(3)]}
        t.equal(c.call("devices"), want, "all free")
        job = c.call("submit", spec=spec("x", {"resources.devices": 2}), dir=t.dir)["id"]
        p = Puppet(d, job)
        t.equal([x["job"] for x in c.call("devices")["devices"]], [job, job, None], "owners")
        p.outcome()
        until(lambda: c.call("devices") == want, "return of the devices")
    d.stop()
    d = Daemon(t, name="auto", devices="auto", worker=puppets(t)).start()
    found = d.call("devices")
    t.equal((found["auto"], found["devices"], found["backend"]), (True, [], "cpu"), "of a daemon with --devices auto")
    d.stop()


@case
def test_cancel_of_a_job_that_has_ended_changes_nothing(t):
    d = idle_daemon(t)
    done, queued = d.submit(spec("x"))["id"], d.submit(spec("x"))["id"]
    first = d.call("cancel", id=queued)
    t.equal((first["state"], first["exit"], first["reason"]), ("cancelled", 130, ""), "a queued job that is cancelled")
    t.equal(d.call("cancel", id=queued, now=True), first, "again")
    Puppet(d, done).outcome()
    until(lambda: d.show(done)["state"] == "done", "end")
    before = d.call("list")
    t.equal(d.call("cancel", id=done, now=False)["state"], "done", "a job that is done")
    t.equal(d.call("list"), before, "the jobs")
    d.stop()


@case
def test_requests_of_a_client_that_left_are_done(t):
    d = idle_daemon(t)
    for i in range(20):
        with d.connect() as c:
            c.send("submit", spec=spec("x"), dir=t.dir, key=f"{i}")
            c.send("show", id=1)
            c.send("logs", id=1)
    until(lambda: len(d.call("list")["jobs"]) == 20, "twenty jobs")
    d.stop()


@case
def test_the_daemon_ends_cleanly_among_requests(t):
    """SIGTERM while clients ask for all kinds of things: exit code 0, and every line that came is whole."""
    for round_ in range(5):
        d = idle_daemon(t, name=f"d{round_}", state=t.path(f"s{round_}"))
        job = d.submit(spec("x"))["id"]
        clients = [d.connect() for _ in range(6)]
        clients[0].watch(since=0)

        def hammer(i):
            c = clients[i]
            try:
                for n in range(400):
                    c.send_raw(request(n, ("show", "logs", "cancel", "submit", "list", "watch")[(n + i) % 6],
                                       **({"spec": spec("x"), "dir": t.dir} if (n + i) % 6 == 3 else
                                          {"id": job} if (n + i) % 6 < 3 else {})))
            except Gone:
                pass

        def read(i):
            while (raw := clients[i].read_raw_line()) is not None:
                json.loads(raw)

        threads = [threading.Thread(target=f, args=(i,)) for i in range(6) for f in (hammer, read)]
        for thread in threads:
            thread.start()
        d.stop()
        for thread in threads:
            thread.join()
        for c in clients:
            c.close()
