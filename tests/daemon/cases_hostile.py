"""Clients and workers that misbehave: the daemon holds no more than its limits allow, serves the others, and ends cleanly.

Where a case looks at memory the bound is far above what is needed and far below what a leak of it would take; sanitizers
keep freed memory, so there it is not looked at, and there is less of everything.
"""
import json
import os
import random
import resource
import select
import socket
import threading
import time

import harness_daemon
from cases_protocol import LINE, PROGRESS, Puppet, check_stream, idle_daemon, kept_seqs, parallel, puppets, request
from harness import case, random_cases
from harness_daemon import KEPT, SIGKILL, Client, Daemon, Gone, RpcError, process_state, spec, until
from strace import sanitized

MANY_BYTES = 64 << 20  # of growth
WORKER_LINE = 2 << 20
ID_MOST = 1024  # bytes of a request's id, quotes included
VALUES_MOST = 100000  # JSON values in a client's line


def heavy():
    """True where everything costs ten times as much."""
    return sanitized(harness_daemon.TUTTID)


def memory(d, name="VmRSS"):
    with open(f"/proc/{d.pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(name))


def check_memory(t, d, before, what):
    grown = memory(d) - before
    t.check(heavy() or grown < MANY_BYTES, f"{what}: the daemon has grown by {grown >> 20} MiB")


def finish(t, d):
    """It serves, and it ends cleanly, whoever is still connected."""
    t.equal(d.call("ping"), {}, "the answer to a fresh connection")
    d.stop()


def need_descriptors(t, n):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n:
        t.skip(f"needs {n} descriptors")
    if soft != resource.RLIM_INFINITY and soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n, hard))


def is_open(s):
    """Has the daemon not hung up on this socket? What it said is thrown away."""
    p = select.poll()
    p.register(s, select.POLLIN)
    while p.poll(0):
        try:
            if not s.recv(1 << 16):
                return False
        except OSError:
            return False
    return True


# ---- lines ----

@case
def test_a_line_may_be_a_mebibyte_and_not_a_byte_more(t):
    d = idle_daemon(t)
    for over, ending in ((0, b"\n"), (1, b"\n"), (1, b""), (100, b"\n")):
        with d.connect() as c:
            line = request(1, "ping").rstrip(b"\n")
            line = line[:-1] + b" " * (LINE - 1 + over - len(line)) + b"}"
            c.send_raw(line[:1000])
            try:
                c.send_raw(line[1000:] + ending)
            except Gone:
                t.check(over > 0, "hung up before the end of a line that is not too long")
            answer = c.read_line()
            if over == 0:
                t.equal(answer, {"jsonrpc": "2.0", "id": 1, "result": {}}, "the answer to the longest line")
                t.equal(c.call("ping"), {}, "the answer afterwards")
                continue
            t.equal((answer["id"], answer["error"]["code"], answer["error"]["data"]["errno"]),
                    (None, -32600, "EMSGSIZE"),
                    f"the answer to {over} bytes more")
            t.contains(answer["error"]["message"], str(LINE))
            t.equal(c.read_line(), None, "what follows")
    finish(t, d)


@case
def test_lines_without_end_cost_nothing(t):
    d = idle_daemon(t)
    d.call("ping")
    before = memory(d)
    piece = b"x" * (1 << 18)

    def pour(i):
        for _ in range(random_cases(250)):
            with d.connect() as c:
                try:
                    for _ in range(8):
                        c.send_raw(piece)
                except Gone:
                    pass
                answer = c.read_line()
                t.equal((answer["id"], answer["error"]["data"]["errno"]), (None, "EMSGSIZE"), "the answer")
                t.equal(c.read_line(), None, "what follows")

    parallel(4, pour)
    check_memory(t, d, before, "1000 lines without end")
    finish(t, d)


@case
def test_an_id_has_a_limit_and_every_answer_carries_it(t):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    for method, params in (("ping", {}), ("nothing", {}), ("list", {"limit": "x"}), ("show", {"id": job}),
                           ("devices", {}),
                           ("show", {"id": 99}), ("watch", {})):
        for length in (ID_MOST - 2, ID_MOST - 1, 100000, LINE - 3000, LINE - 150):
            with d.connect() as c:
                line = request("i" * length, method, **params)
                line = line if len(line) <= LINE else request("i" * (length - len(line) + LINE), method, **params)
                c.send_raw(line)
                raw = c.read_raw_line()
                t.check(raw is not None and len(raw) < LINE, f"{method}: an answer of {raw and len(raw)} bytes")
                answer = json.loads(raw)
                t.equal(answer["id"], "i" * length if length <= ID_MOST - 2 else None, f"the id of {length} characters")
                if length > ID_MOST - 2:
                    t.equal(answer["error"]["code"], -32600, f"the code for an id of {length} characters")
                    t.contains(answer["error"]["message"], "too long")
                t.equal(c.call("ping"), {}, "the answer afterwards")
    finish(t, d)


@case
def test_nesting_is_bounded(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for depth, code in ((31, -32602), (32, -32602), (33, -32700), (34, -32700), (1000, -32700), (100000, -32700)):
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                inner = opening * (depth - 2) + ("1" if opening != "[" else "") + closing * (depth - 2)
                c.send_raw(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + inner.encode() + b"}}\n")
                answer = c.read_line()
                t.equal(answer["error"]["code"], code, f"code for {depth} levels: {answer['error']['message']}")
                t.equal(answer["id"], 1 if code == -32602 else None, f"id for {depth} levels")
                if code == -32700:
                    t.contains(answer["error"]["message"], "deeper than 32")
        c.send_raw(b"[" * 500000 + b"\n")
        t.equal(c.read_line()["error"]["code"], -32700, "code for open brackets only")
        t.equal(c.call("ping"), {}, "the answer afterwards")
    finish(t, d)


@case
def test_numbers_of_any_size(t):
    d = idle_daemon(t)
    with d.connect() as c:
        for text, code in (("1e308", -32602), ("-1e308", -32602), ("1e309", -32700), ("-1e400", -32700),
                           ("1e-400", None),
                           ("9" * 63, -32602), ("9" * 64, -32700), ("9" * 100000, -32700), ("1" + "0" * 400, -32700),
                           ("9007199254740991", None), ("9007199254740992", -32602), ("9007199254740993", -32602),
                           ("18446744073709551616", -32602),
                           ("0.5", -32602), ("-0", None), ("-1", -32602), ("1E2", None), ("4294967296", None)):
            c.send_raw(b'{"jsonrpc":"2.0","id":1,"method":"list","params":{"after":' + text.encode() + b"}}\n")
            answer = c.read_line()
            t.equal(answer.get("error", {}).get("code"), code, f"code for {text[:70]}")
    finish(t, d)


@case
def test_lines_full_of_small_things(t):
    d = idle_daemon(t)
    n = 60000
    most = VALUES_MOST - 7  # beside the request, its four members, x and the last 1
    bodies = [
        (b'{"x":[' + b"[]," * n + b"1]}", -32602), (b'{"x":[' + b"1," * most + b"1]}", -32602),
        (b'{"x":[' + b"1," * (most + 1) + b"1]}", -32700), (b'{"x":[' + b"1," * 400000 + b"1]}", -32700),
        (b"{" + b",".join(b'"%x":1' % i for i in range(n)) + b"}", -32602),
        (b"{" + b",".join(b'"%x":1' % (i % 40000) for i in range(n)) + b"}", -32700),
        (b'{"id":' + b" " * 500000 + b"1}", None), (b'{"id":"' + b"\\u0041" * 100000 + b'"}', -32602),
        (b'{"' + b"k" * 500000 + b'":1}', -32602), (b'{"id":' + b'"' + b"\\\\" * 300000 + b'"}', -32602),
    ]
    with d.connect() as c:
        job = c.call("submit", spec=spec("x"), dir=t.dir)["id"]
        t.equal(job, 1, "the job")
        for body, code in bodies:
            c.send_raw(b'{"jsonrpc":"2.0","id":7,"method":"show","params":' + body + b"}\n")
            raw = c.read_raw_line()
            answer = json.loads(raw)
            t.equal((answer["id"], answer.get("error", {}).get("code")), (None if b'"1":1,' in body and code == -32700 else 7, code),
                    f"id and code for {body[:30]}")
            if code == -32700 and answer["id"] == 7:
                t.equal(answer["error"]["data"]["errno"], "E2BIG", "the errno for too many values")
                t.contains(answer["error"]["message"], f"more than {VALUES_MOST} values")
            t.check(len(raw) < 8192, f"an answer of {len(raw)} bytes")
    finish(t, d)


def address_space(d):
    return memory(d, "VmSize")


@case
def test_without_address_space_large_requests_are_refused_and_the_rest_goes_on(t):
    """A limit on the address space, just above what the daemon has: lines of a megabyte have no room, others do."""
    if heavy():
        t.skip("sanitizers need all of the address space")
    d = idle_daemon(t)
    layers = [{"op": "linear", "out": 8, "bias": False}, {"op": "tanh"}] * 4999 + [{"op": "linear", "out": 3}]
    big = spec("out", {"model": {"type": "chain", "input": 6, "layers": layers}})
    lines = [b"[" + b"0," * 499999 + b"0]\n", request(1, "submit", spec=big, dir=t.dir),
             request(1, "ping", x=[[]] * 90000)]
    with d.connect() as c:
        for line in lines:  # what is kept from the first time on is taken
            c.send_raw(line)
            c.read_line()
    for spare in (0, 1 << 20, 4 << 20, 16 << 20):
        limit = address_space(d) + spare
        resource.prlimit(d.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        for line in lines:
            for _ in range(3):
                with d.connect() as c:
                    try:
                        c.send_raw(line)
                        answer = c.read_line()
                    except (Gone, OSError):
                        answer = None
                    if answer is None:
                        continue  # it hung up: the last resort
                    t.check("result" in answer or answer["error"]["data"]["errno"] in ("ENOMEM", "E2BIG", "EINVAL", "EAGAIN"),
                            f"{spare >> 20} MiB to spare: {str(answer)[:200]}")
        t.check(d.alive(), f"the daemon is gone with {spare >> 20} MiB to spare")
        resource.prlimit(d.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        t.equal(d.call("ping"), {}, "the answer to a ping")
    finish(t, d)


@case
def test_large_lines_keep_their_place(t):
    """Requests of one connection begin in the order of their lines, also where a large one goes to the pool."""
    d = idle_daemon(t)
    layers = [{"op": "linear", "out": 8}] * 3000 + [{"op": "linear", "out": 3}]
    big = spec("out", {"model": {"type": "chain", "input": 6, "layers": layers}})
    with d.connect() as c:
        c.send_raw(b"".join(request(i, "submit", spec=big if i % 3 == 0 else spec("out"), dir=t.dir) for i in range(30)))
        ids = dict((line["id"], line["result"]["id"]) for line in (c.read_line() for _ in range(30)))
        t.equal([ids[i] for i in range(30)], list(range(1, 31)), "the ids of the jobs in the order of the requests")
        c.send_raw(request(1, "ping", x=[0] * 20000) + request(2, "ping"))
        t.equal([c.read_line()["id"], c.read_line()["id"]], [1, 2], "the order of the answers")
    with d.connect() as c:  # one that leaves while its line is in the pool
        c.send_raw(request(1, "submit", spec=big, dir=t.dir, key="left"))
    until(lambda: any(j["id"] == 31 for j in d.call("list")["jobs"]), "the job of a client that left")
    finish(t, d)


SEEDS = [request(1, "ping"), request("é", "list", active=True, after=3, limit=5), request(2, "show", id=1),
         request(3, "logs", id=1, offset=4, limit=10), request(4, "watch", id=1, since=0), request(5, "cancel", id=1,
                                                                                                   now=True),
         request(6, "devices"), request(7, "submit", spec=spec("out"), dir="/", key="k"), b"[1,2]\n", b"{}\n", b"\r\n",
         b'{"jsonrpc":"2.0","id":1,"result":{"a":[null,true,1e3]}}\n', b'{"jsonrpc":"2.0","method":"ping"}\n']


def mutate(rng, line):
    line = bytearray(line)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        kind, at = rng.randrange(6), rng.randrange(len(line) + 1)
        if kind == 0 and at < len(line):
            line[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            line[at:at] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 2:
            del line[at:at + rng.randrange(1, 9)]
        elif kind == 3:
            other = rng.choice(SEEDS)
            line[at:at] = other[rng.randrange(len(other)):][:rng.randrange(60)]
        elif kind == 4:
            line[at:at] = rng.choice((b'"', b"{", b"[", b"}", b"]", b",", b":", b"\\", b"\0", b"\n", b"1e99", b"null",
                                      b"\xc3"))
        else:
            line = line[:at]
        line = line or bytearray(b" ")
    return bytes(line)


@case(each=[1, 2, 3, 4])
def test_noise_is_survived(t, seed):
    rng = random.Random(seed)
    d = idle_daemon(t)
    d.submit(spec("x"))
    for round_ in range(random_cases(40)):
        with d.connect() as c:
            if round_ % 3 == 0:
                data = rng.randbytes(rng.randrange(1, 50000))
            else:
                data = b"".join(mutate(rng, rng.choice(SEEDS)) for _ in range(100))
            sender = threading.Thread(target=lambda: send_all(c, data + b"\n" + request("end", "ping")))
            sender.start()
            while True:
                raw = c.read_raw_line()
                if raw is None:
                    t.check(False, "hung up on noise")
                line = json.loads(raw)
                t.equal(line["jsonrpc"], "2.0", "a line")
                if line.get("id") == "end":
                    break
            sender.join()
    finish(t, d)


def send_all(c, data):
    try:
        c.send_raw(data)
    except Gone:
        pass


@case
def test_a_thousand_requests_in_one_write(t):
    d = idle_daemon(t)
    with d.connect() as c:
        sender = threading.Thread(target=c.send_raw, args=(b"".join(request(i, "ping") for i in range(1000)),))
        sender.start()
        t.equal(sorted(c.read_line()["id"] for _ in range(1000)), list(range(1000)), "answered ids")
        sender.join()
    finish(t, d)


@case
def test_many_requests_of_one_client_do_not_hold_up_another(t):
    """Each takes a while (ten thousand layers are built before the mistake is found) and is answered at once."""
    d = idle_daemon(t)
    layers = [{"repeat": 9998, "block": [{"op": "relu"}]}, {"op": "linear", "out": 3}]
    wrong = spec("x", {"model": {"type": "chain", "input": 6, "layers": layers}, "optimizer.lr": -1})
    n = 150
    with d.connect() as greedy, d.connect() as other:
        greedy.send_raw(b" " * (LINE - 1) + b"\n")  # so that the daemon has room for all of them at once
        t.equal(greedy.read_line()["error"]["code"], -32700, "code for spaces only")
        for round_ in range(5):
            sender = threading.Thread(target=greedy.send_raw,
                                      args=(b"".join(request(i, "submit", spec=wrong, dir=t.dir) for i in range(n)),))
            sender.start()
            t.equal(greedy.read_line()["error"]["data"]["path"], "optimizer.lr", "path of the first mistake")
            t.equal(other.call("ping"), {}, "the answer to another one")
            greedy.socket.setblocking(False)
            so_far = greedy.rest
            try:
                while True:
                    so_far += greedy.socket.recv(1 << 20)
            except BlockingIOError:
                pass
            greedy.socket.settimeout(harness_daemon.TIMEOUT_S)
            greedy.rest = so_far
            served = so_far.count(b"\n") + 1 < n
            for _ in range(n - 1):
                greedy.read_raw_line()
            sender.join()
            if served:
                break
        t.check(served, "the other one was served last, every time")
    finish(t, d)


@case
def test_a_sender_of_single_bytes_is_served_and_holds_up_nobody(t):
    d = idle_daemon(t)
    with d.connect() as slow, d.connect() as other:
        for byte in request(1, "submit", spec=spec("x"), dir=t.dir) + b"\r\n" + request(2, "ping"):
            slow.send_raw(bytes([byte]))
            t.equal(other.call("ping"), {}, "the answer to another one")
        t.equal((slow.answer(1)["id"], slow.answer(2)), (1, {}), "the answers to the slow one")
    finish(t, d)


# ---- connections ----

@case
def test_half_open_connections_hold_up_nobody(t):
    d = idle_daemon(t)
    need_descriptors(t, 4096)
    half = []
    for i in range(200):
        c = d.connect()
        c.send_raw(request(i, "submit", spec=spec("x"), dir=t.dir)[:1 + i])
        half.append(c)
    for _ in range(50):
        t.equal(d.call("ping"), {}, "the answer to another one")
    t.check(all(is_open(c.socket) for c in half), "one was hung up on")
    for i, c in enumerate(half[:100]):  # some go on, some leave
        c.send_raw(request(i, "submit", spec=spec("x"), dir=t.dir)[1 + i:])
    t.equal(sorted(c.answer(i)["id"] for i, c in enumerate(half[:100])), list(range(1, 101)), "jobs")
    for c in half[100:150]:
        c.close()
    t.equal(len(d.call("list")["jobs"]), 100, "jobs")
    finish(t, d)  # with fifty half lines
    for c in half:
        c.close()


@case
def test_who_has_said_all_still_gets_the_answers(t):
    """As with `echo REQUEST | socat - UNIX-CONNECT:...`: the client closes its side for writing."""
    d = idle_daemon(t)
    for n in (1, 5, 40):
        with d.connect() as c:
            lines = [request(i, *(("submit", "show", "ping", "logs", "list")[i % 5],),
                             **({"spec": spec("x"), "dir": t.dir}, {"id": 1}, {}, {"id": 1},
                                {})[i % 5]) for i in range(n)]
            c.send_raw(b"".join(lines) + b"half a li")
            c.socket.shutdown(socket.SHUT_WR)
            answered = []
            while (line := c.read_line()) is not None:
                t.check("result" in line, f"{line}")
                answered.append(line["id"])
            t.equal(sorted(answered), list(range(n)), "answered ids")
    with d.connect() as c:  # nothing asked
        c.socket.shutdown(socket.SHUT_WR)
        t.equal(c.read_line(), None, "what follows")
    with d.connect() as c:  # a watcher is hung up on as well: it may as well have died
        c.watch()
        c.socket.shutdown(socket.SHUT_WR)
        t.equal(c.read_line(), None, "what follows")
    finish(t, d)


@case
def test_disconnecting_anywhere_in_a_submit_leaves_the_job_or_nothing(t):
    d = idle_daemon(t)
    rng = random.Random(1)
    line = request(1, "submit", spec=spec("x"), dir=t.dir)
    cuts = sorted({0, 1, len(line) - 2, len(line) - 1, len(line), *(rng.randrange(len(line)) for _ in range(60))})
    whole = 0
    for cut in cuts:
        for hard in (False, True):
            c = d.connect(greeted=False)
            if hard:  # no data is left to be sent
                c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if cut % 2:
                c.read_line()  # else it leaves before it was greeted
            send_all(c, line[:cut])
            c.close()
            whole += cut == len(line)
    d.submit(spec("y"))
    jobs = d.call("list")["jobs"]
    t.check(1 <= len(jobs) <= whole + 1, f"{len(jobs)} jobs of {whole} whole lines and another one")
    for j in jobs[:-1]:
        t.equal(d.show(j["id"])["spec"], spec("x"), "the spec")
    finish(t, d)


@case
def test_idle_connections_make_room_for_new_ones(t):
    need_descriptors(t, 4096)
    d = idle_daemon(t)
    with d.connect() as watcher, d.connect() as busy:
        watcher.watch()
        idle = []
        for i in range(1500):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.connect(d.socket)  # as fast as they can
            idle.append(s)
            if i % 100 == 0:
                t.equal(busy.call("ping"), {}, "the answer to one that is busy")
                t.equal(d.call("ping"), {}, "the answer to a new one")
        # What was accepted can only be known by asking: the newest answers, and then all before it were accepted.
        idle[-1].sendall(request(1, "ping"))
        idle[-1].settimeout(harness_daemon.TIMEOUT_S)
        data = b""
        while b'"result"' not in data:
            more = idle[-1].recv(1 << 16)
            t.check(more, "the newest was hung up on")
            data += more

        def count():
            return sum(is_open(s) for s in idle)

        left = until(lambda: (lambda n: n <= 1000 and n)(count()), "room: at most 1000 connections")
        t.check(left > 900, f"only {left} of 1000 are left")
        opened = [is_open(s) for s in idle]
        t.equal(opened, sorted(opened), "the oldest are gone, the newest are left")
        t.equal(busy.call("ping"), {}, "the answer to one that was busy")
        job = d.submit(spec("x"))["id"]
        t.equal(watcher.wait_event("submitted")["job"], job, "the watcher's event")
        t.check(len(os.listdir(f"/proc/{d.pid}/fd")) < 1064, "descriptors")
        finish(t, d)
        for s in idle:
            s.close()


@case
def test_when_all_watch_a_new_one_is_told_to_try_later(t):
    need_descriptors(t, 4096)
    d = idle_daemon(t)
    watchers = []
    for _ in range(1000):
        c = d.connect()
        c.send("watch")
        watchers.append(c)
    for c in watchers:
        c.answer(1)
    with d.connect(greeted=False) as c:
        line = c.read_line()
        t.equal((line.get("id", 0), line["error"]["code"], line["error"]["data"]["errno"],
                 line["error"]["data"]["exit"]),
                (None, -32000, "EAGAIN", 1), "what a new one is told")
        t.equal(c.read_line(), None, "what follows")
    t.equal(watchers[0].call("ping"), {}, "the answer to a watcher")
    watchers.pop().close()
    until(lambda: try_ping(d), "room")
    watchers[0].send("submit", spec=spec("x"), dir=t.dir)
    for c in watchers:
        c.wait_event("submitted")
    for c in watchers[:500]:
        c.close()
    until(lambda: try_ping(d), "room")
    finish(t, d)
    for c in watchers:
        c.close()


def try_ping(d):
    try:
        return d.call("ping") == {}
    except (RpcError, Gone):
        return False


@case
def test_coming_and_going_costs_nothing(t):
    d = idle_daemon(t)
    d.call("ping")
    before, files = memory(d), len(os.listdir(f"/proc/{d.pid}/fd"))

    def come_and_go(i):
        for k in range(random_cases(600)):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.connect(d.socket if k % 3 else d.worker_socket)
            if k % 2:
                s.sendall(request(1, "show", id=1) + request(2, "watch") + b"{")
            if k % 5 == 0:
                s.shutdown(socket.SHUT_RDWR)
            s.close()

    parallel(4, come_and_go)
    d.call("ping")
    until(lambda: len(os.listdir(f"/proc/{d.pid}/fd")) <= files, "closing of all connections")
    check_memory(t, d, before, "2400 short connections")
    finish(t, d)


# ---- those who do not read ----

@case
def test_a_watcher_that_does_not_read_costs_nothing_and_gets_what_is_kept(t):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    with d.connect() as deaf, d.connect() as other:
        deaf.watch(since=0)
        other.call("ping")
        before = memory(d)
        said = json.dumps({"jsonrpc": "2.0", "method": "progress", "params": PROGRESS}).encode() + b"\n"
        rounds = 30 if heavy() else 100
        for i in range(rounds):
            p.link.send_raw(said * (20000 // rounds))
            for _ in range(10):
                other.call("cancel", id=other.call("submit", spec=spec("x"), dir=t.dir)["id"])
        until(lambda: other.call("show", id=job)["step"] == PROGRESS["step"], "progress")
        p.tell("progress", **dict(PROGRESS, step=29))
        until(lambda: other.call("show", id=job)["step"] == 29, "the last progress")
        check_memory(t, d, before, "25000 events for one that does not read")
        newest = other.watch()["seq"]
        t.check(newest > 20000, f"only {newest} events")
        deaf.wait_event(lambda e: e["seq"] >= newest)  # now it reads
        events = [e for e in deaf.events if e["seq"] <= newest]
        check_stream(t, events, [s for s in kept_seqs(d) if s <= newest], "what it got")
        t.check("gap" in [e["event"] for e in events], "no gap")
        t.check(len(events) < newest, "it got everything: nothing was lost that could be missed")
        t.equal(deaf.call("ping"), {}, "the answer to it")
    p.die()
    finish(t, d)


@case(each=["list", "logs", "show"])
def test_who_asks_and_does_not_read_is_not_read_from(t, method):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    p.tell("planned", plan={"x": "y" * 100000})
    with open(d.worker_log(job), "ab") as f:
        f.write(b"\x01" * 65536)
    with d.connect() as c:
        for i in range(200):
            c.send("submit", spec=spec("x", {"name": "n" * 64}), dir=t.dir)
        for i in range(200):
            c.answer(i + 1)
    before = memory(d)
    params = {} if method == "list" else {"id": job}
    deaf, sent = [], []
    for k in range(4):
        c = d.connect()
        c.socket.setblocking(False)
        lines = [request(i, method, **params) for i in range(400)]
        data, at = b"".join(line[:-2] + b" " * 16000 + line[-2:] for line in lines), 0
        patience = 0
        while at < len(data) and patience < 40:  # until the daemon takes no more
            try:
                at += c.socket.send(data[at:at + 65536])
                patience = 0
            except BlockingIOError:
                patience += 1
                t.equal(d.call("ping"), {}, "the answer to another one")
        c.socket.settimeout(harness_daemon.TIMEOUT_S)
        deaf.append(c)
        sent.append(data[:at].count(b"\n"))
    t.check(all(n < 400 for n in sent), f"the daemon took {sent} of 400 requests")
    check_memory(t, d, before, "answers that nobody reads")
    t.equal(sorted(deaf[0].read_line()["id"] for _ in range(sent[0])), list(range(sent[0])), "answers once it reads")
    deaf[1].close()
    p.die()
    finish(t, d)  # with two that never read
    for c in deaf:
        c.close()


# ---- descriptors ----

@case
def test_without_descriptors_it_waits_and_goes_on_when_there_are_some(t):
    need_descriptors(t, 4096)
    d = idle_daemon(t)
    with d.connect() as c:
        limits = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
        used = max(int(n) for n in os.listdir(f"/proc/{d.pid}/fd"))
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (used + 4, limits[1]))
        crowd = []
        for _ in range(60):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.connect(d.socket)
            crowd.append(s)
        t.equal(c.call("ping"), {}, "the answer to one that was there before")
        job = c.call("submit", spec=spec("x"), dir=t.dir)["id"]  # its worker cannot be started
        c.call("logs", id=job) if os.path.exists(d.worker_log(job)) else None
        states = []
        for _ in range(40):
            states.append(process_state(d.pid))
            time.sleep(0.005)
        t.check(states.count("S") > 20, f"it spins: {''.join(states)}")
        t.equal(c.call("list")["jobs"][0]["id"], job, "the job")
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, limits)
        for s in crowd:
            s.close()
        until(lambda: try_ping(d), "answer to a fresh connection")
        until(lambda: secret(t, job), "worker")
        j = c.call("show", id=job)
        t.equal((j["state"], j["failures"]), ("queued", 0), "state, failures")
    finish(t, d)


def secret(t, job):
    """Has some attempt's worker been started?"""
    return [n for n in os.listdir(t.dir) if n.startswith(f"secret-{job}-") and not n.endswith(".new")]


# ---- workers ----

@case
def test_who_is_no_worker_is_hung_up_on_by_worker_sock(t):
    d = idle_daemon(t)
    job, waiting = d.submit(spec("x"))["id"], d.submit(spec("x"))["id"]
    p = Puppet(d, job, hello=False)
    rng = random.Random(2)
    hello = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": p.words}

    def line(**changes):
        return json.dumps({**hello, **changes}).encode() + b"\n"

    for data in (b"\n", b"x\n", b"{}\n", b"[]\n", rng.randbytes(3000) + b"\n", request(1, "ping"), request(1, "list"),
                 request(1, "outcome", state="done", exit=0, error=None, step=3),
                 b'{"jsonrpc":"2.0","method":"progress","params":{"step":1}}\n', line(id=None), b"[" * 100000 + b"\n",
                 b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b"x" * (WORKER_LINE + 1), b"x" * WORKER_LINE):
        with Client(d.worker_socket, greeted=False) as c:
            send_all(c, data)
            t.equal(c.read_line(), None, f"what is said to {data[:40]}")
    for changes in ({"secret": "0" * 32}, {"secret": ""}, {"secret": p.words["secret"] + "0"}, {"secret": 5},
                    {"job": waiting},
                    {"job": 99}, {"job": 0}, {"attempt": 2}, {"attempt": 0}, {"protocol": 2}, {"protocol": 0}, {"pid": "x"},
                    {"job": -1}, {"phase": 7}, {"colour": 1}):
        with Client(d.worker_socket, greeted=False) as c:
            c.send_raw(line(params={**p.words, **changes}))
            answer = c.read_line()
            t.check(answer is not None and answer["id"] == 1 and "error" in answer,
                    f"{changes} is answered with {answer}")
            t.check("spec" not in json.dumps(answer), "it was given the spec")
    with Client(d.worker_socket, greeted=False) as c:
        c.send_raw(line(params={}) + b'{"jsonrpc":"2.0","id":2,"method":"hello"}\n')
        t.check("error" in c.read_line() and "error" in c.read_line(), "an empty hello is no error")
    t.equal(d.show(job)["state"], "queued", "the job")
    p.link.call("hello", **p.words)  # the right one still can
    t.equal(d.show(job)["state"], "running", "the job")
    p.die()
    finish(t, d)


@case
def test_hello_again_and_from_elsewhere(t):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    p.link.send("hello", **p.words)  # twice on one connection: not answered, nothing happens
    p.tell("progress", **PROGRESS)
    until(lambda: d.show(job)["step"] == 12, "progress")
    for phase in ("new", "running", "something", "running"):
        with Client(d.worker_socket, greeted=False) as other:
            answer = other.call("hello", **dict(p.words, phase=phase))
            t.equal("spec" in answer, phase == "new", f"the answer to phase {phase}")
            old = p.link
            p.link = other
            t.equal(old.read_line(), None, "what the older connection hears")
            p.tell("progress", **dict(PROGRESS, step=13))
            until(lambda: d.show(job)["step"] == 13, "progress")
    t.equal([e["event"] for e in kept(d, job)].count("started"), 1, "starts")
    os.kill(p.pid, SIGKILL)
    finish(t, d)


def kept(d, job):
    with d.connect() as c:
        newest = c.watch(since=0)["seq"]
        c.wait_event(lambda e: e["seq"] >= newest)
        return [e for e in c.events if e["event"] in KEPT and e["job"] == job]


@case
def test_noise_of_a_worker_hurts_nobody_else(t):
    d = Daemon(t, devices=2, worker=puppets(t)).start()
    one, two = d.submit(spec("x"))["id"], d.submit(spec("x"))["id"]
    good = Puppet(d, two)
    rng = random.Random(3)
    seeds = [request(1, "outcome", state="odd")[:-2] + b"\n", json.dumps({"jsonrpc": "2.0", "method": "progress",
                                                                          "params":
             PROGRESS}).encode() + b"\n", b'{"jsonrpc":"2.0","method":"curve","params":{"points":[[1,2]]}}\n',
             b'{"jsonrpc":"2.0","method":"planned","params":{"resolved":5}}\n', b'{"jsonrpc":"2.0","method":"alive"}\n']
    p = Puppet(d, one)
    for _ in range(random_cases(200)):
        line = mutate(rng, rng.choice(seeds)).replace(b"outcome", b"outc0me")
        send_all(p.link, line + b"\n")
        if rng.randrange(3) == 0 or not is_open(p.link.socket):
            p.link.close()
            p.link = Client(d.worker_socket, greeted=False)
            p.link.call("hello", **dict(p.words, phase="running"))
    good.tell("progress", **PROGRESS)
    until(lambda: d.show(two)["step"] == 12, "progress of the other job")
    t.equal(d.show(one)["state"], "running", "the job of the noisy one")
    p.link.close()
    p.link = Client(d.worker_socket, greeted=False)
    p.link.call("hello", **dict(p.words, phase="running"))
    p.outcome()
    until(lambda: d.show(one)["state"] == "done", "end")
    d.restart()  # what it said can be read again
    t.equal(d.show(one)["state"], "done", "the job")
    good.die()
    finish(t, d)


STRANGE = [
    ("planned", {}), ("planned", {"resolved": []}), ("planned", {"plan": "x" * 1000}), ("planned",
                                                                                        {"resolved": {"total_steps": -1}}),
    ("progress", {}), ("progress", {"step": -1, "loss": "x", "total_steps": 1.5}), ("progress", {"step": 2**60}),
    ("progress", {"loss": 1e308, "samples_per_s": -1e308, "eta_s": None}), ("progress", {"step": [], "loss": {}}),
    ("checkpoint", {}), ("checkpoint", {"step": "x"}), ("checkpoint", {"step": 2**53}), ("curve", {}), ("curve",
                                                                                                        {"points": 5}),
    ("curve", {"points": {"a": 1}, "evals": "x"}), ("eval", {}), ("resumed", {}), ("resumed",
                                                                                   {"step": -5}), ("skipped", {}),
    ("alive", {"x": [1, 2, {"y": "\u2028"}]}), ("hello", {}), ("stop", {}), ("", {}),
]

OUTCOMES = [
    ({"state": "failed", "exit": 3, "error": "just words"}, "failed",
     3), ({"state": "failed", "exit": "x", "error": 5}, "failed", 1),
    ({"state": "failed", "exit": 1e9, "error": {"errno": 5, "message": {}}}, "failed", 1), ({}, "failed", 1),
    ({"state": "dreaming", "exit": -1, "error": [], "report": "r", "curve": 1, "evals": {}, "step": -3}, "failed", 1),
    ({"state": "failed", "exit": 2, "error": {"errno": "EIO", "path": "p" * 300000, "message": "\"" * 600000}},
     "failed", 2),
    ({"state": "failed", "exit": 2, "error": {"errno": "EIO", "message": "m", "extra": ["e"] * 9999}}, "failed", 2),
    ({"state": "done", "report": {"loss": "none", "x": ["y"] * 50000}, "step": 2**53}, "done", 0),
    ({"state": "done", "report": None, "curve": [[1, "x"]], "evals": [None]}, "done", 0),
]


@case
def test_strange_words_of_workers_are_stored_readably(t):
    """Whatever a worker says: clients get whole lines of strict JSON, and the next daemon can read the state."""
    d = Daemon(t, devices=len(OUTCOMES), worker=puppets(t)).start()
    jobs = [d.submit(spec("x"))["id"] for _ in OUTCOMES]
    with d.connect() as c:
        c.watch(since=0)
        for job, (outcome, _, _) in zip(jobs, OUTCOMES):
            p = Puppet(d, job)
            for method, params in STRANGE:
                p.tell(method, **params)
            p.link.send_raw(b'{"jsonrpc":"2.0","method":"progress"}\n{"jsonrpc":"2.0","method":"planned"}\n')
            p.link.send("what", is_this=True)
            d.show(job)
            p.link.answer(p.link.send("outcome", **outcome))
            p.die()
        ended = 0
        while ended < len(jobs):
            raw = c.read_raw_line()
            t.check(len(raw) < LINE, f"an event of {len(raw)} bytes")
            e = json.loads(raw, object_pairs_hook=strict)
            ended += e.get("params", {}).get("event") == "ended"
    before = strictly(t, d, jobs)
    for job, (_, state, code) in zip(jobs, OUTCOMES):
        t.equal((before[job]["state"], before[job]["exit"]), (state, code), f"job {job}")
    d.restart()
    t.equal(strictly(t, d, jobs), before, "with another daemon")
    finish(t, d)


def strict(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key comes twice: {[k for k, _ in pairs]}")
    return found


def strictly(t, d, jobs):
    """The jobs' long forms, each a line of strict JSON, and the list."""
    found = {}
    with d.connect() as c:
        for method, params in [("list", {})] + [("show", {"id": j}) for j in jobs]:
            c.send_raw(request(1, method, **params))
            raw = c.read_raw_line()
            t.check(len(raw) < LINE, f"{method}: a line of {len(raw)} bytes")
            answer = json.loads(raw, object_pairs_hook=strict)
            t.check("result" in answer, f"{method} {params}: {raw[:300]}")
            if method == "show":
                found[params["id"]] = {**answer["result"], "seq": 0}
    return found


@case
def test_events_have_their_own_fields_whatever_a_worker_says(t):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    with d.connect() as c:
        seq = c.watch(id=job)["seq"]
        p.tell("progress", step=5, seq=1, job=99, event="ended", time_ms=7)
        p.tell("eval", step=5, loss=1, accuracy=1)
        while True:
            e = json.loads(c.read_raw_line(), object_pairs_hook=strict)["params"]
            t.equal((e["job"], e["event"] in ("progress", "eval"), e["seq"] > seq, e["time_ms"] > 7),
                    (job, True, True, True),
                    "the event's own fields")
            if e["event"] == "eval":
                break
    p.die()
    finish(t, d)


@case
def test_events_never_exceed_a_line(t):
    d = idle_daemon(t)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    with d.connect() as c:
        c.watch(id=job)
        for size in (LINE - 4000, LINE - 100, LINE, WORKER_LINE - 1000):
            p.tell("planned", parameters=size, state_bytes=1, resolved={"total_steps": 7, "x": "r" * size}, plan={},
                   output="/o")
            p.tell("eval", step=size, loss=1, accuracy=1)
            while True:
                raw = c.read_raw_line()
                t.check(raw is not None and len(raw) < LINE, f"an event of {len(raw)} bytes")
                if json.loads(raw)["params"].get("step") == size:
                    break
        c.send_raw(request(1, "show", id=job))
        raw = c.read_raw_line()
        t.check(len(raw) < LINE, f"an answer of {len(raw)} bytes")
        j = json.loads(raw)["result"]
        t.equal((j["total_steps"], j["spec"]), (7, spec("x")), "the job")
        t.equal(p.link.call("outcome", state="done", exit=0, error=None, report={"x": "y" * (WORKER_LINE - 1000)}), {},
                "the answer")
        c.send_raw(request(2, "show", id=job))
        answer = json.loads(c.read_raw_line() or b"{}")
        while "method" in answer:
            answer = json.loads(c.read_raw_line())
        t.equal((answer["id"], answer["result"]["state"]), (2, "done"), "the job afterwards")
    p.die()
    finish(t, d)


@case
def test_cancel_of_a_job_whose_worker_cannot_be_started_harms_nobody(t):
    """It never was a process: a signal for it would go to process 0, that is, to the daemon's whole group."""
    d = Daemon(t, devices=1, restart_delay=0, worker="/nonexistent/worker").start()
    with d.connect() as a, d.connect() as b:
        for job in range(1, random_cases(150)):
            a.send_raw(request(job, "submit", spec=spec("x"), dir=t.dir))
            b.send_raw(b"".join(request(k, "cancel", id=job, now=bool(k % 2)) for k in range(12)))
            a.answer(job)
            for k in range(12):
                try:
                    b.answer(k)
                except RpcError as e:
                    t.equal(e.errno, "ENOENT", "what a cancel is told")
    finish(t, d)


@case
def test_many_idle_connections_to_worker_sock_hold_up_nobody(t):
    need_descriptors(t, 4096)
    d = idle_daemon(t)
    crowd = []
    for _ in range(1200):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.connect(d.worker_socket)
        s.sendall(b"{")
        crowd.append(s)
    job = d.submit(spec("x"))["id"]
    p = Puppet(d, job)
    t.equal(d.show(job)["state"], "running", "the job")
    p.die()
    finish(t, d)
    for s in crowd:
        s.close()
