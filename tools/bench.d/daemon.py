"""Figures of the daemon. daemon.py TUTTID TUTTI BENCH_HISTORY [crowd|history]

Without a word: durable submits a second, one at a time and in flight together, and the time of a list of 1,000 queued
jobs on the socket and through the client. Before that, or alone with `crowd`: the round trip of a ping while six clients
submit specs of 700 kB as fast as they are answered, beside the same ping on an idle daemon. Behind that, or alone with
`history`: what 100,000 ended jobs cost: the start, lists, a backup, and a daemon with nothing to do."""
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SPEC = {"schema": "job/v1", "name": "bench", "model": {"type": "mlp", "input": 8, "hidden": [16], "classes": 4},
        "data": {"format": "synthetic", "samples": 64}, "train": {"steps": 3, "global_batch": 8},
        "optimizer": {"type": "sgd", "lr": 0.1}}


class Wire:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rwb")
        self.file.readline()
        self.id = 0

    def send(self, method, **params):
        self.id += 1
        self.file.write(json.dumps({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}).encode() + b"\n")

    def answer(self):
        self.file.flush()
        message = json.loads(self.file.readline())
        assert "result" in message, message
        return message["result"]


def median_ms(action, times):
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return 1000 * statistics.median(taken)


def start(tuttid, folder):
    worker = os.path.join(folder, "worker")  # one that takes the only device and says nothing: the rest stays queued
    with open(worker, "w") as f:
        f.write("#!/bin/sh\nexec sleep 600\n")
    os.chmod(worker, 0o700)
    path = os.path.join(folder, "tutti.sock")
    daemon = subprocess.Popen([tuttid, "--user", "--socket", path, "--state", os.path.join(folder, "state"), "--devices",
                               "1", "--worker", worker, "--hang-timeout", "600"], stderr=subprocess.DEVNULL)
    while not os.path.exists(path):
        time.sleep(0.01)
    return daemon, path


def fsync_ms(folder):
    with open(os.path.join(folder, "probe"), "wb") as f:
        def write():
            f.write(b"x" * 4096)
            f.flush()
            os.fdatasync(f.fileno())
        return median_ms(write, 50)


BIG = 700_000
CLIENTS = 6


def big_spec():
    """A valid spec of BIG bytes: a long chain of layers, and spaces as a person's editor would put them."""
    layers = [{"op": "linear", "out": 8, "bias": False}, {"op": "tanh"}] * 4999 + [{"op": "linear", "out": 3}]
    text = json.dumps(dict(SPEC, model={"type": "chain", "input": 6, "layers": layers}))
    spaces = (BIG - len(text)) // len(layers)
    return text.replace("}, {", "}," + " " * spaces + "{")


def crowd_client(path, folder, number, stop, counts):
    """Submits without pause. A refusal (a quota, the length of the queue) is an answer too."""
    line = ('{"jsonrpc":"2.0","id":1,"method":"submit","params":{"dir":%s,"spec":%s}}\n' % (json.dumps(folder), big_spec())).encode()
    wire = Wire(path)
    while not stop.is_set():
        wire.file.write(line)
        wire.file.flush()
        answer = json.loads(wire.file.readline())
        counts[2 * number + ("error" in answer)] += 1


def loop_ms(daemon):
    """Processor time of the loop's thread so far, which is the daemon's first."""
    with open(f"/proc/{daemon.pid}/task/{daemon.pid}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[0]) / 1e6


def ping_times(daemon, path, seconds):
    """Round trips, and what the loop's thread computed during each: the part that does not depend on how busy the machine is."""
    wire = Wire(path)
    taken, computed, end = [], [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        loop, begin = loop_ms(daemon), time.perf_counter()
        wire.send("ping")
        wire.answer()
        taken.append(1000 * (time.perf_counter() - begin))
        computed.append(loop_ms(daemon) - loop)
        time.sleep(0.005)
    return sorted(taken), sorted(computed)


def print_pings(what, times):
    for name, t in zip((what, "  the loop's thread computed meanwhile"), times):
        at = lambda share: t[min(len(t) - 1, int(share * len(t)))]  # noqa: B023, E731
        print(f"{name:44} {at(0.5):10.2f} ms p50 {at(0.99):9.2f} ms p99 {t[-1]:9.2f} ms worst  ({len(t)} pings)")


def crowd(tuttid, folder, seconds=10):
    daemon, path = start(tuttid, folder)
    try:
        print_pings("ping, nobody else", ping_times(daemon, path, 2))
        stop, counts = multiprocessing.Event(), multiprocessing.Array("q", 2 * CLIENTS)
        clients = [multiprocessing.Process(target=crowd_client, args=(path, folder, i, stop, counts)) for i in range(CLIENTS)]
        for c in clients:
            c.start()
        time.sleep(1)
        taken = ping_times(daemon, path, seconds)
        stop.set()
        print_pings(f"ping, beside {CLIENTS} clients with specs of {BIG // 1000} kB", taken)
        print(f"{'their submits meanwhile':44} {sum(counts[0::2]):10} done {sum(counts[1::2]):8} refused")
        for c in clients:
            c.join(20)
            c.kill()
    finally:
        daemon.kill()
        daemon.wait()


HISTORY = 100_000
IDLE_S = 10


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def until_quiet(pid):
    """Until what goes on after the start (the check of the history) is over: a second without processor time."""
    before, since = cpu_s(pid), time.perf_counter()
    while time.perf_counter() - since < 1:
        time.sleep(0.1)
        if cpu_s(pid) != before:
            before, since = cpu_s(pid), time.perf_counter()


def bench_history(tuttid, tutti, maker):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(tuttid)) as folder:
        os.makedirs(os.path.join(folder, "state"), 0o700)
        subprocess.run([maker, os.path.join(folder, "state"), str(HISTORY)], check=True)
        megabytes = os.path.getsize(os.path.join(folder, "state", "state.db")) / 1e6
        begin = time.perf_counter()
        daemon, path = start(tuttid, folder)
        try:
            wire = Wire(path)
            wire.send("ping")
            wire.answer()
            print(f"\nwith {HISTORY:,} ended jobs, {megabytes:.0f} MB of state")
            print(f"{'start until the first answer':44} {1000 * (time.perf_counter() - begin):10.1f} ms")
            until_quiet(daemon.pid)
            print(f"{'check of the history, processor time':44} {1000 * cpu_s(daemon.pid):10.1f} ms")

            def call(method, **params):
                wire.send(method, **params)
                return wire.answer()

            for what, method, params in (("list of live jobs", "list", {"active": True}),
                                         ("list of jobs of the last day", "list", {"ended_after_ms": int(time.time() - 86400) * 1000}),
                                         ("a page of 1,000 ended jobs", "list", {"after": HISTORY // 2}),
                                         ("show of an ended job", "show", {"id": HISTORY // 3})):
                print(f"{what:44} {median_ms(lambda m=method, p=params: call(m, **p), 20):10.3f} ms")
            before = cpu_s(daemon.pid)
            time.sleep(IDLE_S)
            print(f"{f'processor time in {IDLE_S} s with nothing to do':44} {1000 * (cpu_s(daemon.pid) - before):10.1f} ms")
            print(f"{'resident memory':44} {rss_mb(daemon.pid):10.1f} MB")
            backup = os.path.join(folder, "backup.db")
            took = median_ms(lambda: subprocess.run([tutti, "--socket", path, "backup", backup], check=True,
                                                    stdout=subprocess.DEVNULL), 1)
            print(f"{'tutti backup':44} {took:10.1f} ms")
        finally:
            daemon.kill()
            daemon.wait()


def main():
    tuttid, tutti, maker = sys.argv[1:4]
    only = sys.argv[4:]
    if only != ["history"]:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(tuttid)) as folder:
            crowd(tuttid, folder)
    if only == []:
        bench_queue(tuttid, tutti)
    if only != ["crowd"]:
        bench_history(tuttid, tutti, maker)


def bench_queue(tuttid, tutti):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(tuttid)) as folder:
        daemon, path = start(tuttid, folder)
        try:
            wire = Wire(path)
            submit = {"spec": SPEC, "dir": folder}

            def one():
                wire.send("submit", **submit)
                wire.answer()

            def sixteen():
                for _ in range(16):
                    wire.send("submit", **submit)
                for _ in range(16):
                    wire.answer()

            print(f"{'write + fdatasync of 4 KiB, this disk':44} {fsync_ms(folder):10.3f} ms")
            alone = median_ms(one, 200)
            print(f"{'submit, one at a time (durable)':44} {alone:10.3f} ms  {1000 / alone:8.0f}/s")
            together = median_ms(sixteen, 50) / 16
            print(f"{'submit, 16 in flight (durable)':44} {together:10.3f} ms  {1000 / together:8.0f}/s")

            def list_all():
                wire.send("list", limit=1000)
                assert len(wire.answer()["jobs"]) == 1000

            print(f"{'list of 1,000 queued jobs, on the socket':44} {median_ms(list_all, 50):10.3f} ms")
            command = [tutti, "--socket", path, "ls", "--json"]
            ls = median_ms(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), 20)
            print(f"{'tutti ls --json of them, the whole process':44} {ls:10.3f} ms")
            wire.send("cancel", id=1, now=True)  # the one worker
            wire.answer()
        finally:
            daemon.kill()
            daemon.wait()


main()
