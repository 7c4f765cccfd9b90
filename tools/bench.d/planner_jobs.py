"""The whole command `tutti plan`, with its what-ifs, for a grid of language models and machines.

usage: planner_jobs.py TUTTI DIR [--full] [--only WORD] [--json]

Each row is one job on one described machine: micro_batch and replicas are auto, times are computed. The command runs on one
core, so its processor time is what one core takes, whatever else the machine does.

  floor    flops of the step at the rate of all devices: no plan can be faster
  speedup  time on the fewest devices of the same job and memory, divided by the time here
  tasks    2 * layers * micro-batches of the chosen sizes
  limit    2 s and 300 MB up to 20,000 tasks; beyond, 20 microseconds and 2 kB more for each further task
"""
import argparse
import json
import os
import subprocess

MODELS = [("gpt2", s) for s in ("124M", "355M", "774M", "1.5B", "2.7B", "6.7B", "10B")] + [("llama", "7B")]
CONTEXTS, BATCHES, DEVICES, MEMORIES_GB = (1024, 8192), (8, 64, 512), (1, 4, 8), (8, 24, 80)
FEW = {"models": ("124M", "1.5B", "7B"), "contexts": (1024,), "batches": (8, 512), "memories": (8, 80)}
FLOPS_PER_S, LINK, PEER, HOST = 10e12, 12e9, 9e9, 512e9


def write_job(where, family, size, context, batch):
    with open(where, "w") as f:
        json.dump({"schema": "job/v1", "name": "grid", "model": {"type": family, "size": size, "context": context},
                   "data": {"format": "synthetic", "samples": batch}, "optimizer": {"type": "adamw", "lr": 1e-4},
                   "train": {"steps": 1, "global_batch": batch}, "output": os.path.join(os.path.dirname(where), "out")}, f)


def write_machine(where, devices, memory):
    with open(where, "w") as f:
        json.dump({"schema": "machine/v1", "backend": "cuda", "devices": [{"memory_bytes": memory}] * devices,
                   "link_bytes_per_s": LINK, "all_links_bytes_per_s": LINK, "peer_bytes_per_s": PEER,
                   "device_flops_per_s": FLOPS_PER_S, "host_memory_bytes": HOST}, f)


def measured(command):
    """Standard output, exit code, processor seconds and peak bytes of a command on one core."""
    one = min(os.sched_getaffinity(0))
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                         preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    out = p.stdout.read()
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    return out, p.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def row_of(tutti, where, family, size, context, batch, devices, memory_gb):
    job, machine = os.path.join(where, "job.json"), os.path.join(where, "machine.json")
    write_job(job, family, size, context, batch)
    write_machine(machine, devices, memory_gb * 10**9)
    out, code, seconds, peak = measured([tutti, "plan", job, "--machine", machine, "--devices", str(devices), "--json"])
    row = {"model": f"{family} {size}", "context": context, "batch": batch, "devices": devices, "memory_gb": memory_gb,
           "command_s": seconds, "command_bytes": peak, "code": code}
    try:
        p = json.loads(out)
    except ValueError:
        p = {}
    if code == 0:
        n, rows = p["packs_bwd"][-1][1] + 1, p["micro_batches"][0][2]
        row |= {"iteration_s": p["iteration_s"], "plan_s": p["plan_s"], "form": p["form"], "rows": rows,
                "tasks": 2 * n * (batch // rows), "floor_s": p["flops"]["total"] / (FLOPS_PER_S * devices)}
    else:
        row["error"] = str(p.get("error", {}).get("message", p.get("message", "")))[:60]
    over = max(0, row.get("tasks", 0) - 20000)
    row["within"] = seconds <= 2 + over * 20e-6 and peak <= 300e6 + over * 2000
    return row


def show(row, alone):
    line = (f"{row['model']:11} {row['context']:7} {row['batch']:5} {row['devices']:3} {row['memory_gb']:4}  "
            f"{row['command_s']:9.2f} {row['command_bytes'] / 1e6:6.0f}")
    if row["code"] != 0:
        print(f"{line}  refused ({row['code']}) {row['error']}", flush=True)
        return
    speedup = f"{alone / row['iteration_s']:7.2f}" if alone else f"{'-':>7}"
    print(f"{line} {row['plan_s']:7.2f} {row['tasks']:7} {row['form']:6} {row['rows']:4} {row['iteration_s']:10.3f} "
          f"{row['iteration_s'] / row['floor_s']:7.2f} {speedup}{'' if row['within'] else '  over the limit'}", flush=True)


def grid(full, only):
    few = {} if full else FEW
    for family, size in MODELS:
        if (few and size not in few["models"]) or (only and only not in f"{family} {size}"):
            continue
        for context in few.get("contexts", CONTEXTS):
            for batch in few.get("batches", BATCHES):
                for memory in few.get("memories", MEMORIES_GB):
                    yield family, size, context, batch, memory


def main():
    a = argparse.ArgumentParser()
    a.add_argument("tutti")
    a.add_argument("dir")
    a.add_argument("--full", action="store_true")
    a.add_argument("--only", default="")
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    os.makedirs(o.dir, exist_ok=True)
    rows = []
    if not o.json:
        print("whole command with what-ifs, on one core; time by floor: 1 is all compute, perfectly spread")
        print(f"{'model':11} {'context':>7} {'batch':>5} {'dev':>3} {'GB':>4}  {'command s':>9} {'MB':>6} {'plan s':>7} {'tasks':>7} "
              f"{'form':6} {'rows':>4} {'step s':>10} {'/ floor':>7} {'speedup':>7}")
    for family, size, context, batch, memory in grid(o.full, o.only):
        alone = None
        for devices in DEVICES:
            row = row_of(o.tutti, o.dir, family, size, context, batch, devices, memory)
            rows.append(row)
            if not o.json:
                show(row, alone)
            if alone is None and row["code"] == 0:
                alone = row["iteration_s"]
    if o.json:
        print(json.dumps(rows))
    else:
        slow = [r for r in rows if not r["within"]]
        print(f"\n{len(rows)} cases, {len(slow)} over the limit; most: {max(r['command_s'] for r in rows):.2f} s, "
              f"{max(r['command_bytes'] for r in rows) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
