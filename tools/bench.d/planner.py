"""Plans of policy auto for the published profiles, beside what Harmony's own scheduler and simulator reach on them.

usage: planner.py TUTTI PROFILES [single]

Every row of harmony.csv: devices of 9e9 bytes, 256 GB of host memory. Times are simulated, by the simulator that gives
Harmony's schedules Harmony's times (tools/bench simulator); plans are whole and verified. `single`: one micro-batch size for
all layers, the best of those that divide a device's part of the batch.

`cmd s` and `MB` are the processor seconds and the peak memory of the whole command with its what-ifs, on one core.
"""
import csv
import json
import math
import os
import subprocess
import sys
import tempfile

from planner_jobs import measured

CAPACITY, HOST = "9e9", "256e9"


def command(tutti, profile, devices, batch, *more):
    return [tutti, "plan", "--profile", profile, "--devices", str(devices), "--device-memory", CAPACITY, "--host-memory", HOST,
            "--batch", str(batch), "--json", *more]


def plan(tutti, profile, devices, batch, *more):
    out = subprocess.run(command(tutti, profile, devices, batch, "--no-what-if", *more), capture_output=True, text=True)
    return json.loads(out.stdout) if out.returncode == 0 else None


def whole(tutti, profile, devices, batch):
    """The plan, and processor seconds and peak bytes of the whole command with its what-ifs."""
    out, code, seconds, peak = measured(command(tutti, profile, devices, batch))
    return (json.loads(out) if code == 0 else None), seconds, peak


def best_single(tutti, profile, devices, batch):
    plans = [plan(tutti, profile, devices, batch, "--micro-batch", str(u))
             for u in range(1, batch // devices + 1) if batch // devices % u == 0]
    return min((p for p in plans if p), key=lambda p: p["iteration_s"])


def sizes(p):
    return "/".join(str(s[2]) for s in p["micro_batches"])


def mean(values):
    return sum(values) / len(values)


def geomean(values):
    return math.exp(mean([math.log(v) for v in values]))


def compare(tutti, profiles, single):
    ratios, above, costs = [], [], []
    print(f"{'model':12} {'batch':>5} {'devices':>7} {'form':6} {'sizes':>10} {'ours s':>9} {'Harmony s':>9} {'ratio':>6} "
          f"{'floor s':>8} {'bound s':>8} {'/ bound':>7} {'bound by':9} {'host GB':>8} "
          f"{'peer GB':>8} {'state+stash/bound':>17} {'plan s':>6} {'cmd s':>6} {'MB':>4}")
    for row in csv.DictReader(open(os.path.join(profiles, "harmony.csv"))):
        harmony = min(float(row[k]) for k in ("harmony_pp_s", "harmony_dp_s") if row[k])
        profile, devices, batch = os.path.join(profiles, row["model"] + ".json"), int(row["devices"]), int(row["batch"])
        p, seconds, peak = whole(tutti, profile, devices, batch)
        p = best_single(tutti, profile, devices, batch) if single else p
        ratio = p["iteration_s"] / harmony
        host = p["host_in_bytes"] + p["host_out_bytes"]
        bound = f"{host / p['bound_bytes']:.2f}x" if p["bound_bytes"] else "bound is 0"
        print(f"{row['model']:12} {batch:5} {devices:7} {p['form']:6} {sizes(p):>10} {p['iteration_s']:9.3f} {harmony:9.3f} "
              f"{ratio:6.3f} {float(row['floor_no_recompute_s']):8.2f} {p['time_bound_s']:8.2f} "
              f"{p['iteration_s'] / p['time_bound_s']:7.3f} {p['time_bound_by']:9} {host / 1e9:8.2f} {p['peer_bytes'] / 1e9:8.2f} "
              f"{bound:>17} {p['plan_s']:6.2f} {seconds:6.2f} {peak / 1e6:4.0f}", flush=True)
        costs.append((seconds, peak))
        ratios.append((batch, devices, ratio))
        above.append((batch, devices, p["iteration_s"] / p["time_bound_s"]))
    print()
    print(f"geometric mean {geomean([r for _, _, r in ratios]):.4f}, worst {max(r for _, _, r in ratios):.3f}, "
          f"mean at batch 256 {mean([r for b, _, r in ratios if b == 256]):.4f}")
    print(f"whole command: at most {max(s for s, _ in costs):.2f} s and {max(b for _, b in costs) / 1e6:.0f} MB, "
          f"{sum(s <= 1 for s, _ in costs)} of {len(costs)} within 1 s")
    print(f"our time by the bound on time: geometric mean {geomean([r for _, _, r in above]):.4f}, "
          f"worst {max(r for _, _, r in above):.3f}")
    for what, rows in (("by Harmony", ratios), ("by the bound", above)):
        for name, index in (("devices", 1), ("batch", 0)):
            groups = sorted({r[index] for r in rows})
            print(f"{what}, {name}: " +
                  ", ".join(f"{g}: {geomean([r[2] for r in rows if r[index] == g]):.3f}" for g in groups))


def without_freeing(tutti, profiles, schedules):
    """Harmony's published schedules by its rules, but freeing a task's memory (40 ms each there) takes no time."""
    print("\nHarmony's schedules at batch 64 on 4 devices, with and without its 40 ms for each task's memory")
    print(f"{'model':12} {'form':4} {'Harmony s':>9} {'without':>9} {'ours s':>9} {'ratio':>6} {'without':>7}")
    ours = {}
    for line in open(schedules):
        if line.startswith("#"):
            continue
        model, form, fwd, bwd, packs_fwd, packs_bwd, _, _ = line.split()
        profile = os.path.join(profiles, model + ".json")
        rules = [tutti, "plan", "--profile", profile, "--rules", "harmony", "--form", form, "--devices", "4", "--batch", "64",
                 "--micro-batch-fwd", fwd, "--micro-batch-bwd", bwd, "--packs-fwd", packs_fwd, "--packs-bwd", packs_bwd, "--json"]
        times = [json.loads(subprocess.check_output(rules + more))["iteration_s"] for more in ([], ["--task-overhead", "0"])]
        if model not in ours:
            ours[model] = plan(tutti, profile, 4, 64)["iteration_s"]
        print(f"{model:12} {form:4} {times[0]:9.3f} {times[1]:9.3f} {ours[model]:9.3f} {ours[model] / times[0]:6.3f} "
              f"{ours[model] / times[1]:7.3f}")


def long_chains(tutti, profiles):
    """What planning takes for chains that are longer: the middle layer of a model, repeated."""
    print("\nplanning time of longer chains: 4 devices, batch 64, 2 TB of host memory")
    print(f"{'model':12} {'layers':>6} {'iteration s':>11} {'plan s':>7}")
    for model in ("gpt2_xl", "bert_96"):
        table = json.load(open(os.path.join(profiles, model + ".json")))
        layers = table["layers"]
        for n in (400, 1000):
            chain = [layers[0]] + [layers[2]] * (n - 4) + layers[-3:]
            table["layers"] = [dict(layer, id=i) for i, layer in enumerate(chain)]
            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                json.dump(table, f)
                f.flush()
                p = plan(tutti, f.name, 4, 64, "--host-memory", "2e12")
            print(f"{model:12} {n:6} {p['iteration_s']:11.2f} {p['plan_s']:7.2f}", flush=True)
            table["layers"] = layers


def main():
    tutti, profiles, single = sys.argv[1], sys.argv[2], "single" in sys.argv[3:]
    compare(tutti, profiles, single)
    if not single:
        without_freeing(tutti, profiles, "tests/golden/harmony-schedules.txt")
        long_chains(tutti, profiles)


if __name__ == "__main__":
    main()
