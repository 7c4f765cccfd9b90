#!/usr/bin/env python3
"""Tutti beside PyTorch: the same model, batch, threads and steps, everything in memory, fp32 or bf16, AdamW.
Usage: peers.py WORKER DIR [--only WORD] [--steps N] [--rounds N] [--threads N] [--json] [--compile] [--malloc]   (`tools/bench peers ...`)

    --only WORD   only rows whose name contains it ("MLP", "GPT", "124M", "1024"); may be given again: all must be there
    --precision P fp32 (default), or bf16: see below
    --steps N     measured steps of a round (default: by the size of the model); a few that do not count are made before
    --rounds N    default 3. A round runs every program of a row once, in turn, so that what the machine does for others
                  meets them all
    --threads N   default 2
    --json        the figures as one JSON object at the end, in place of tables
    --compile     the newest PyTorch through torch.compile too; compiling is not measured
    --malloc      PyTorch with the C library's malloc, as most people run it, and not with jemalloc

Programs of a row: tutti; the distribution's PyTorch (/usr/bin/python3), tuned: OpenBLAS of the right kind for the processor, with
OpenMP where libopenblas0-openmp is installed; the PyTorch of $TUTTI_TORCH_PYTHON, else of build/venv-torch/bin/python, where
there is one. Both get jemalloc where it is installed, which keeps the memory of one step for the next. What is missing is left
out. For GPTs also tutti with a quarter and an eighth of the device memory that keeping everything on the device takes (weights,
gradients, optimizer state, and all activations, at once: `everything_bytes` of `--check --json`), moving the rest from and
to host memory; the job is the same but for the micro-batch, which becomes "auto".

Columns: seconds of a step in the best round and in the median one; processor seconds that a step took, of all rounds the least
mean; steps, tokens or samples and GFLOP a second in the median round; how much faster tutti is: best by best, median by median,
processor seconds by processor seconds; for parts of the memory: their speed by that with all of it.
GFLOP are those that the mathematics needs: products forward, and backward for weights and inputs (of an MLP's first layer the
latter is not needed), of attention the lower half. `others`: cores that other programs used meanwhile, of all rounds the
least. Where it is not near 0, times say little: threads of OpenMP wait for one another by spinning, so a core that is taken
from one of them costs more than its share. Then `--threads 1` and the column `by cpu` still compare.

With `--precision bf16`, the programs of a row are tutti in fp32 and in bf16, the newest PyTorch there is in fp32 and in three
forms of bf16 (torch_gpt.py says what they are: autocast, all in bf16, and bf16 with master weights), and for GPTs tutti in bf16
with the parts of the memory that its job in bf16 takes. `by best`, `by med.` and `by cpu` then compare programs of one
precision: how much faster tutti is in it. `fp32` columns: how much faster a program is than the same maker's in fp32, by
median and by processor seconds. Two lines follow: how much faster tutti in bf16 is than in fp32, and than the form of
PyTorch that is the fastest by this measure. On a processor without AVX512_BF16 or AMX bf16 is not faster than fp32.
"""
import argparse
import glob
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from predict import Others, wait_for_quiet

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS, GIB = (4, 8), 1 << 30
TORCH_FORMS = ("fp32", "autocast", "bf16", "bf16 master")  # of a row with --precision bf16
LATE = 2  # steps made after those that count: the last result is not read one step late as the others are
JEMALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"


def write_idx(path, shape, values):
    """Bytes below `values`, the same at each call."""
    count = 1
    for n in shape:
        count *= n
    with open(path, "wb") as f:
        f.write(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape))
        f.write(bytes(b % values for b in random.Random(1).randbytes(count)))


class Mlp:
    unit, memory_rows, warmup = "samples", False, 5

    def __init__(self, name, width, depth, batch, steps):
        self.name, self.width, self.depth, self.batch, self.steps = name, width, depth, batch, steps
        self.per_step = batch

    def flops(self):
        first, rest = 784 * self.width, self.width * self.width * (self.depth - 1) + self.width * 10
        return self.batch * (4 * first + 6 * rest)

    def job(self, directory):
        model = {"type": "mlp", "input": 784, "hidden": [self.width] * self.depth, "classes": 10, "activation": "relu"}
        images, labels = (os.path.join(directory, name) for name in ("images", "labels"))
        write_idx(images, (self.batch, 28, 28), 256)
        write_idx(labels, (self.batch,), 10)
        return model, {"format": "idx", "train": {"images": images, "labels": labels}, "shuffle": False}

    def torch(self, steps, threads, precision, compiled):
        """The script and its arguments; None: not offered."""
        return None if compiled else ["torch_mlp.py", self.batch, steps, threads, self.width, self.depth, precision,
                                      "--json"]


class Gpt:
    unit, memory_rows, warmup = "tokens", True, 2

    def __init__(self, name, layers, heads, width, vocab, context, batch, steps):
        self.name, self.batch, self.steps = name, batch, steps
        self.shape = {"layers": layers, "heads": heads, "width": width, "vocab": vocab, "context": context}
        self.per_step = batch * context

    def flops(self):
        layers, width, vocab, context = (self.shape[k] for k in ("layers", "width", "vocab", "context"))
        matrices = layers * 12 * width * width + width * vocab
        attention = layers * 2 * width * (context + 1) / 2
        return self.per_step * 6 * (matrices + attention)

    def job(self, directory):
        return {"type": "gpt2", **self.shape, "dropout": 0}, {"format": "synthetic", "samples": 4 * self.batch}

    def torch(self, steps, threads, precision, compiled):
        job = {**self.shape, "batch": self.batch, "steps": steps, "threads": threads, "precision": precision,
               "compile": compiled}
        return ["torch_gpt.py", json.dumps(job)]


ROWS = [
    Mlp("MLP 784-1024x4-10, batch 128", 1024, 4, 128, 60),
    Mlp("MLP 784-1024x4-10, batch 512", 1024, 4, 512, 30),
    Gpt("GPT 6 x 384, T=256, batch 8", 6, 6, 384, 256, 256, 8, 8),
    Gpt("GPT-2 124M, T=256, batch 4", 12, 12, 768, 50257, 256, 4, 4),
    Gpt("GPT-2 124M, T=1024, batch 1", 12, 12, 768, 50257, 1024, 1, 4),
]


# ---- programs ----


class Program:
    """Of each round the seconds and the processor seconds of a step; `why` it has none."""

    def __init__(self, name, threads, precision="fp32"):
        self.name, self.threads, self.seconds, self.cpu, self.others, self.why, self.about = name, threads, [], [], [], "", {}
        self.precision = precision  # of PyTorch: one of its forms

    def add(self, row, steps):
        if self.why:
            return
        wait_for_quiet()
        others = Others()
        try:
            seconds, cpu = self.run(row, row.warmup + steps)
        except Unable as e:
            self.why = str(e)
            return
        self.others.append(others.cores())
        self.seconds.append(statistics.mean(seconds[row.warmup :]))
        self.cpu.append(cpu)

    def figures(self):
        return min(self.seconds), statistics.median(self.seconds), min(self.cpu)


class Unable(Exception):
    pass


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


class Tutti(Program):
    """With all the memory there is, or a part of what everything resident takes."""

    def __init__(self, args, part=1, precision="fp32"):
        name = "tutti" if args.precision == "fp32" else f"tutti {precision}"
        super().__init__(name if part == 1 else f"{name}, memory 1/{part}", args.threads, precision)
        self.worker, self.directory, self.part, self.where = args.worker, args.directory, part, None

    def write_job(self, row, steps, micro_batch):
        model, data = row.job(self.directory)
        job = {"schema": "job/v1", "name": "peers", "model": model, "data": data, "precision": self.precision,
               "train": {"steps": steps + LATE, "global_batch": row.batch, "micro_batch": micro_batch},
               "optimizer": {"type": "adamw", "lr": 3e-4, "weight_decay": 0.01},
               "output": os.path.join(self.directory, "out")}
        path = os.path.join(self.directory, f"job-{self.precision}-{self.part}.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(job, f)
        return path

    def check(self, path, *options):
        r = subprocess.run([self.worker, "--check", path, "--devices", "1", "--json", *options], capture_output=True, text=True)
        try:
            found = json.loads(r.stdout)
        except ValueError:
            raise Unable(last_line(r.stdout + r.stderr)) from None
        if not found["ok"]:
            raise Unable(found["message"])
        return found

    def options(self, row, steps):
        """The job file, and where it runs."""
        path = self.write_job(row, steps, row.batch)
        if self.part == 1:
            self.about = self.check(path, "--policy", "resident")
            return path, ["--policy", "resident"]
        memory = self.check(path)["everything_bytes"] // self.part // 256 * 256
        options = ["--device-memory", str(memory)]
        path = self.write_job(row, steps, "auto")
        self.about = self.check(path, *options)
        return path, options

    def run(self, row, steps):
        """The worker is ended when its steps are made: the checkpoint at the end is not what is measured."""
        out = os.path.join(self.directory, "out")
        shutil.rmtree(out, ignore_errors=True)
        if self.where is None:
            self.where = self.options(row, steps)
        path, options = self.where
        command = [self.worker, "--run", path, "--quiet", "--devices", "1", "--threads", str(self.threads), "--trace-steps", "0"]
        with open(os.path.join(self.directory, "err"), "w+", encoding="utf-8") as err:
            process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=err)
            try:
                begin, end = follow(process, out, row.warmup), follow(process, out, steps)
            finally:
                process.kill()
                process.wait()
            if end is None:
                err.seek(0)
                raise Unable(last_line(err.read()))
        seconds = [row.batch / r for r in rates(out)[:steps]]
        shutil.rmtree(out, ignore_errors=True)
        return seconds, (end[1] - begin[1]) / (end[0] - begin[0])

    def words(self):
        if self.part == 1:
            return self.about.get("policy", "")
        return f"{self.about['device_bytes'] / GIB:.2f} GiB, {self.about['policy']}, micro-batch {self.about['resolved']['micro_batch']}"


def rates(out):
    """samples/s of every step so far."""
    try:
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            lines = f.read().split("\n")[:-1]
    except OSError:
        return []
    return [m["samples_per_s"] for m in map(json.loads, lines) if "samples_per_s" in m]


def follow(process, out, steps):
    """When so many steps are made, or more: how many, and the processor seconds until then. None: it ended before."""
    while True:
        made, cpu = len(rates(out)), cpu_s(process.pid)
        if made >= steps and cpu is not None:
            return made, cpu
        if process.poll() is not None:
            return None
        time.sleep(0.01)


def cpu_s(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Torch(Program):
    def __init__(self, args, python, version, env, compiled=False, precision="fp32"):
        name = f"PyTorch {version.split('+')[0]}"
        if args.precision != "fp32":
            name += " " + precision
        super().__init__(name + (" compiled" if compiled else ""), args.threads, precision)
        self.python, self.env, self.compiled = python, env, compiled

    def run(self, row, steps):
        arguments = row.torch(steps, self.threads, self.precision, self.compiled)
        if arguments is None:
            raise Unable("not asked for")
        arguments[0] = os.path.join(HERE, arguments[0])
        r = subprocess.run([self.python, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **self.env})
        if r.returncode != 0:
            raise Unable(last_line(r.stderr))
        lines = [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]
        self.about = lines[0]
        return [line["s"] for line in lines[1:]], statistics.mean(line["cpu"] for line in lines[1 + row.warmup :])

    def words(self):
        return self.about.get("variant", "")


# ---- what is here ----


def torch_version(python, env):
    try:
        r = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                           env={**os.environ, **env})
    except OSError:
        return None
    return r.stdout.strip() if r.returncode == 0 else None


def joined(*parts):
    return ":".join(p for p in parts if p)


def tuning(args):
    env = {"OMP_NUM_THREADS": str(args.threads)}
    jemalloc = [] if args.malloc else glob.glob("/usr/lib/*/libjemalloc.so.2")
    if jemalloc:
        env.update(LD_PRELOAD=joined(jemalloc[0], os.environ.get("LD_PRELOAD")), MALLOC_CONF=JEMALLOC_CONF)
    return env


def distribution_tuning(args):
    env = {**tuning(args), "OPENBLAS_NUM_THREADS": str(args.threads)}
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        if " avx512bw " in f.read():
            env["OPENBLAS_CORETYPE"] = "SkylakeX"  # newer processors are not known to it, and get AVX2
    openmp = glob.glob("/usr/lib/*/openblas-openmp")
    if openmp:
        env["LD_LIBRARY_PATH"] = joined(openmp[0], os.environ.get("LD_LIBRARY_PATH"))
    return env


def find_torches(args):
    """Makers of programs."""
    found = []
    old, new = distribution_tuning(args), tuning(args)
    version = torch_version("/usr/bin/python3", old)
    if version:
        found.append(lambda: Torch(args, "/usr/bin/python3", version, old))
    python = os.environ.get("TUTTI_TORCH_PYTHON") or os.path.join(HERE, "../../build/venv-torch/bin/python")
    newest = torch_version(python, new)
    if newest:
        found.append(lambda: Torch(args, python, newest, new))
        if args.compile:
            found.append(lambda: Torch(args, python, newest, new, True))
    elif os.environ.get("TUTTI_TORCH_PYTHON"):
        sys.exit(f"TUTTI_TORCH_PYTHON={python} has no torch; make one: python3 -m venv DIR && DIR/bin/pip install torch")
    if args.precision == "bf16":
        return halves(args, (python, newest, new) if newest else ("/usr/bin/python3", version, old))
    return found


def halves(args, torch):
    """Makers of the programs of one PyTorch with `--precision bf16`."""
    if not torch[1]:
        return []
    compiled = (False, True) if args.compile else (False,)
    return [lambda form=form, c=c: Torch(args, *torch, c, form) for form in TORCH_FORMS for c in compiled]


# ---- tables ----


def ratio(value):
    return f"{value:8.2f}" if value else f"{'-':>8}"


def kept(programs, maker, is_fp32):
    """The programs of a maker that have figures, with everything in memory."""
    return [p for p in programs
            if isinstance(p, maker) and p.seconds and getattr(p, "part", 1) == 1 and (p.precision == "fp32") == is_fp32]


def ratios(theirs, ours):
    """How much faster `ours` is than `theirs`: by best, by median, by processor seconds."""
    return [a / b for a, b in zip(theirs.figures(), ours.figures())]


def by_tutti(p, programs):
    """How much faster tutti is in the precision of a program. Of a part of the memory: the speed by that with all."""
    tutti = kept(programs, Tutti, p.precision == "fp32")
    if not tutti or p is tutti[0]:
        return [None] * 3
    return ratios(tutti[0], p) if isinstance(p, Tutti) else ratios(p, tutti[0])


def by_fp32(p, programs):
    """How much faster a program is than its maker's in fp32: by median, by processor seconds."""
    base = kept(programs, type(p), True)
    return ratios(base[0], p)[1:] if base and p.precision != "fp32" else [None] * 2


def comparisons(programs):
    """Of tutti in bf16: {words: [by best, by median, by processor seconds]}."""
    ours, wide, theirs = kept(programs, Tutti, False), kept(programs, Tutti, True), kept(programs, Torch, False)
    ret = {}
    if ours and wide:
        ret["tutti bf16 by tutti fp32"] = ratios(wide[0], ours[0])
    if ours and theirs:
        fastest = [min(theirs, key=lambda p, i=i: p.figures()[i]) for i in range(3)]
        names = " / ".join(dict.fromkeys(p.name for p in fastest))
        ret[f"tutti bf16 by the fastest form, {names}"] = [p.figures()[i] / ours[0].figures()[i]
                                                           for i, p in enumerate(fastest)]
    return ret


def print_row(row, programs, steps, rounds):
    tutti, halves = programs[0], any(p.precision != "fp32" for p in programs)
    wide_titles = f"{'fp32 med':>8} {'fp32 cpu':>8} " if halves else ""
    parameters = {p.about["parameters"] for p in programs if "parameters" in p.about}
    print(f"\n{row.name}: {'/'.join(f'{n / 1e6:.2f}' for n in parameters) or '?'} M parameters, {row.flops() / 1e9:.1f} GFLOP a step; "
          f"{rounds} round{'s' if rounds > 1 else ''} of {steps} steps, {tutti.threads} "
          f"thread{'s' if tutti.threads > 1 else ''}")
    if len(parameters) > 1:
        print("  (the models differ: these figures do not compare)")
    print(f"  {'':28} {'best s':>9} {'median s':>9} {'cpu s':>9} {'steps/s':>8} {row.unit + '/s':>10} {'GFLOP/s':>8} {'by best':>8} "
          f"{'by med.':>8} {'by cpu':>8} {wide_titles}{'others':>6}")
    for p in programs:
        if not p.seconds:
            print(f"  {p.name:28} {p.why}")
            continue
        best, median, cpu = p.figures()
        by = by_tutti(p, programs)
        wide = "".join(f" {ratio(r)}" for r in by_fp32(p, programs)) if halves else ""
        print(f"  {p.name:28} {best:9.4f} {median:9.4f} {cpu:9.4f} {1 / median:8.3f} {row.per_step / median:10.0f} "
              f"{row.flops() / median / 1e9:8.1f} {ratio(by[0])} {ratio(by[1])} {ratio(by[2])}{wide} {min(p.others):6.2f}  {p.words()}",
              flush=True)
    for words, by in comparisons(programs).items():
        print(f"  {words}: {by[0]:.2f} by best, {by[1]:.2f} by median, {by[2]:.2f} by processor seconds")


def as_json(row, programs, steps, rounds):
    ret = {"row": row.name, "unit": row.unit, "per_step": row.per_step, "flops": row.flops(), "steps": steps, "rounds": rounds,
           "programs": [], "comparisons": comparisons(programs)}
    for p in programs:
        one = {"name": p.name, "precision": p.precision, "about": p.about, "others": p.others}
        if p.seconds:
            best, median, cpu = p.figures()
            one.update(best_s=best, median_s=median, cpu_s=cpu, seconds=p.seconds)
        else:
            one["why"] = p.why
        ret["programs"].append(one)
    return ret


def measure(row, args, torches):
    steps = args.steps or row.steps
    precisions = dict.fromkeys(("fp32", args.precision))
    programs = [*(Tutti(args, 1, precision) for precision in precisions), *(make() for make in torches)]
    if row.memory_rows:
        programs += [Tutti(args, part, args.precision) for part in PARTS]
    for i in range(args.rounds):
        for p in programs:
            print(f"{row.name}: round {i + 1} of {args.rounds}, {p.name}", file=sys.stderr, flush=True)
            p.add(row, steps)
    programs = [p for p in programs if p.why != "not asked for"]
    if not args.json:
        print_row(row, programs, steps, args.rounds)
    return as_json(row, programs, steps, args.rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worker", type=os.path.abspath)
    parser.add_argument("directory", type=os.path.abspath)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--malloc", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and not without the programs that it runs
    rows = [row for row in ROWS if all(word in row.name for word in args.only)]
    if not rows:
        sys.exit("no such row; there are: " + "; ".join(row.name for row in ROWS))
    shutil.rmtree(args.directory, ignore_errors=True)
    os.makedirs(args.directory)
    torches = find_torches(args)
    if not torches:
        print("(no PyTorch here: apt-get install python3-torch libopenblas0-openmp, or TUTTI_TORCH_PYTHON=PYTHON)", file=sys.stderr)
    figures = [measure(row, args, torches) for row in rows]
    if args.json:
        print(json.dumps({"threads": args.threads, "rows": figures}, indent=1))


if __name__ == "__main__":
    main()
