"""The seed's headline as one table: virtualized memory, Harmony and ours on the published models.

usage: headline.py TUTTI PROFILES [--batch N] [--only WORD] [--json]

For every case of harmony.csv (--batch, --only: those with this batch, those whose model has this word): the simulated time
of a step, and the swap load, the bytes between the host and all devices in a step, of

  lru dp    demand paging, data parallel: one replica per device, each behind a cache of its own
  lru pp    demand paging, pipeline: each device has a part of the chain, and a micro-batch goes forward and backward before
            the next one begins, so the devices take turns
  stream    one layer at a time, its inside recomputed
  Hny pp    Harmony's pipeline: time from harmony.csv, bytes of the schedule that has this time by Harmony's rules
  Hny dp    Harmony's data-parallel form, likewise; every device writes its gradients to the host
  ours      policy auto
  fewest    policy auto with --objective bytes

lru and stream have the best micro-batch size of those that divide a replica's part of the batch. lru gets as much host
memory as it asks for: a plan never uses a host address twice within a step, and unified memory would.
"""
import argparse
import csv
import json
import os
import subprocess
import sys

from planner import CAPACITY, HOST

LIMIT_S = 300  # of planning one entry
LEAST_LOAD = 1e7  # bytes of swap load below which a ratio says nothing
CLOSE = 0.005  # relative difference of times with which a schedule counts as the published one
PLANS = ("lru_dp", "lru_pp", "stream", "harmony_pp", "harmony_dp", "ours", "fewest")
HEADS = ("lru dp", "lru pp", "stream", "Hny pp", "Hny dp", "ours", "fewest")
RATIOS = (("ours", "lru_dp"), ("ours", "lru_pp"), ("fewest", "lru_dp"), ("fewest", "lru_pp"))
FORMS = {"lru_dp": "data-parallel", "lru_pp": "pipeline"}
NOTES = {
    "none": "no such form: Harmony's data-parallel schedules begin with two devices",
    "fit": "no plan fits",
    "late": f"not planned within {LIMIT_S} s",
    "schedule": "bytes unknown: no schedule has the published time by Harmony's rules",
}
PAPER = "the paper: up to 7.6 times the throughput, two orders less swap load"


def plan(tutti, profile, devices, batch, host, *more):
    """An entry of the table, or {"why": key of NOTES} if there is none."""
    command = [tutti, "plan", "--profile", profile, "--devices", str(devices), "--device-memory", CAPACITY, "--batch",
               str(batch), "--no-what-if", "--json", *(["--host-memory", HOST] if host else []), *more]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"why": "late"}
    if out.returncode == 5:
        return {"why": "fit"}
    if out.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{out.stdout}{out.stderr}")
    p = json.loads(out.stdout)
    return {"iteration_s": p["iteration_s"], "host_bytes": p["host_in_bytes"] + p["host_out_bytes"],
            "peer_bytes": p["peer_bytes"], "form": p["form"], "plan_s": p["plan_s"],
            "micro_batches": [s[2] for s in p["micro_batches"]]}


# ---- Harmony's schedules ----

def at_size(sizes, values, size):
    """The value at a micro-batch size, linear between the measured sizes. None beyond them."""
    for i, measured in enumerate(sizes):
        if measured == size:
            return values[i]
        if measured > size:
            share = (size - sizes[i - 1]) / (measured - sizes[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1]) if i > 0 else None
    return None


def pack_ends(table, n_layers, way, size):
    """Harmony's packing balanced_time: the last layer of each pack, for the fewest packs of equal time that fit."""
    def values(name, axis):
        return [at_size(table[axis], layer[name], size) for layer in table["layers"][:n_layers]]
    times, inputs = values(f"{way}_s", f"micro_batch_{way}"), values("input_bytes", "micro_batch_input")
    memory = values(f"{way}_bytes", f"micro_batch_{way}_bytes")
    if None in times + inputs + memory:
        return None
    for n in range(1, n_layers + 1):
        ends, passed = [], 0.0
        for layer, time in enumerate(times):
            if len(ends) < n - 1 and passed + time > sum(times) * (len(ends) + 1) / n + 1e-12 and layer > 0:
                ends.append(layer - 1)
            passed += time
        ends.append(n_layers - 1)
        firsts = [0] + [end + 1 for end in ends[:-1]]
        if len(ends) == n and all(sum(memory[a:b + 1]) - sum(inputs[a + 1:b + 1]) <= float(CAPACITY)
                                  for a, b in zip(firsts, ends)):
            return ends
    return None


def schedules(table, rows):
    """What Harmony's search looks at: micro-batch sizes that divide a device's rows, at least as large forward as backward,
    and the packs for them. Forward packs are made for themselves or, with equal sizes, taken from the backward packs."""
    sizes = [u for u in range(1, rows + 1) if rows % u == 0]
    for bwd in sizes:
        packs_bwd = pack_ends(table, len(table["layers"]), "bwd", bwd)
        for fwd in sizes if packs_bwd and len(packs_bwd) > 1 else []:
            own = pack_ends(table, packs_bwd[-2] + 1, "fwd", fwd)
            for packs_fwd in ([own] if own else []) + ([packs_bwd[:-1]] if fwd == bwd else []):
                if fwd >= bwd:
                    yield fwd, bwd, packs_fwd, packs_bwd


def harmony(tutti, profile, form, devices, batch, seconds):
    """Harmony's entry: its published time, and the bytes of the schedule whose time by its rules comes closest."""
    best = None
    for fwd, bwd, packs_fwd, packs_bwd in schedules(json.load(open(profile)), batch // devices if form == "dp" else batch):
        r = json.loads(subprocess.check_output(
            [tutti, "plan", "--profile", profile, "--rules", "harmony", "--form", form, "--devices", str(devices),
             "--batch", str(batch), "--micro-batch-fwd", str(fwd), "--micro-batch-bwd", str(bwd), "--packs-fwd",
             ",".join(map(str, packs_fwd)), "--packs-bwd", ",".join(map(str, packs_bwd)), "--json"]))
        if best is None or abs(r["iteration_s"] - seconds) < abs(best["iteration_s"] - seconds):
            best = r
    if best is None or abs(best["iteration_s"] / seconds - 1) > CLOSE:
        return {"iteration_s": seconds, "why": "schedule"}
    return {"iteration_s": seconds, "host_bytes": best["host_in_bytes"] + best["host_out_bytes"],
            "peer_bytes": best["peer_bytes"], "form": form, "rules_s": best["iteration_s"],
            "micro_batches": [best["micro_batch_fwd"], best["micro_batch_bwd"]],
            "packs": [len(best["packs_fwd"]), len(best["packs_bwd"])]}


# ---- cases ----

def entries(tutti, profiles, row):
    """Every entry of one case."""
    profile, devices, batch = os.path.join(profiles, row["model"] + ".json"), int(row["devices"]), int(row["batch"])
    ret = {"lru_dp": plan(tutti, profile, devices, batch, False, "--policy", "lru", "--replicas", str(devices)),
           "stream": plan(tutti, profile, devices, batch, True, "--policy", "stream"),
           "ours": plan(tutti, profile, devices, batch, True),
           "fewest": plan(tutti, profile, devices, batch, True, "--objective", "bytes")}
    # On one device both forms are the same.
    ret["lru_pp"] = ret["lru_dp"] if devices == 1 else plan(tutti, profile, devices, batch, False, "--policy", "lru")
    for form in ("pp", "dp"):
        seconds = row[f"harmony_{form}_s"]
        ret[f"harmony_{form}"] = (harmony(tutti, profile, form, devices, batch, float(seconds)) if seconds
                                  else {"why": "none"})
    return ret


def ratio(case, name, base, figure):
    """How many times more `base` has of a figure than entry `name`. None if one of them has no plan, or if `name` moves hardly
    more than inputs and losses."""
    ours, other = case["plans"][name].get(figure), case["plans"][base].get(figure)
    return other / ours if ours and other and (figure != "host_bytes" or ours > LEAST_LOAD) else None


def name_of(case):
    return f"{case['model']}, batch {case['batch']}, {case['devices']} device{'s' if case['devices'] > 1 else ''}"


def largest(cases):
    """The largest ratios of ours, of the plan with the fewest bytes, and of Harmony's, to each form of virtualized memory."""
    ret = []
    for base in FORMS:
        for figure in ("iteration_s", "host_bytes"):
            for name in ("ours", "fewest", "harmony_pp", "harmony_dp"):
                found = [(ratio(c, name, base, figure), name_of(c)) for c in cases if ratio(c, name, base, figure)]
                if found:
                    ret.append({"plan": name, "than": base, "figure": figure, "ratio": max(found)[0], "case": max(found)[1]})
    return ret


# ---- printing ----

def figure_text(entry, figure, used):
    if figure in entry:
        value = entry[figure] / (1e9 if figure == "host_bytes" else 1)
        return f"{value:.2f}" if value < 1000 else f"{value:.0f}"
    used.add(entry["why"])
    return "-" + str(1 + list(NOTES).index(entry["why"]))


def ratio_text(value):
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def print_table(cases, figure, title, used):
    print(title)
    print(f"{'model':11} {'batch':>5} {'dev':>3} " + " ".join(f"{h:>6}" for h in HEADS) + " | "
          + " ".join(f"{w:>7}" for w in ("ours/dp", "ours/pp", "few/dp", "few/pp")))
    for c in cases:
        shown = [ratio(c, name, base, figure) for name, base in RATIOS]
        print(f"{c['model']:11} {c['batch']:5} {c['devices']:3} "
              + " ".join(f"{figure_text(c['plans'][p], figure, used):>6}" for p in PLANS) + " | "
              + " ".join(f"{ratio_text(r):>7}" for r in shown))
    print()


def print_tables(cases):
    used = set()
    print_table(cases, "iteration_s", "seconds per step; at the right, times the throughput of lru dp and lru pp", used)
    print_table(cases, "host_bytes", "swap load, GB per step; at the right, how many times less than lru dp and lru pp", used)
    for i, (why, note) in enumerate(NOTES.items(), 1):
        if why in used:
            print(f"-{i}: {note}")
    print(f"no ratio: no plan, or a swap load below {LEAST_LOAD / 1e6:.0f} MB\n")
    print(f"largest ratios to virtualized memory ({PAPER})")
    for l in largest(cases):
        what = "times the throughput" if l["figure"] == "iteration_s" else "times less swap load"
        head = HEADS[PLANS.index(l["plan"])]
        print(f"  {head:6} {ratio_text(l['ratio']):>7} {what}, {FORMS[l['than']]} form: {l['case']}")


def main():
    parser = argparse.ArgumentParser(prog="tools/bench planner --headline")
    parser.add_argument("tutti")
    parser.add_argument("profiles")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    cases = []
    for row in csv.DictReader(open(os.path.join(o.profiles, "harmony.csv"))):
        if o.only in row["model"] and o.batch in (None, int(row["batch"])):
            cases.append({"model": row["model"], "batch": int(row["batch"]), "devices": int(row["devices"]),
                          "plans": entries(o.tutti, o.profiles, row)})
            print(f"{name_of(cases[-1])}: done", file=sys.stderr)
    if not cases:
        parser.error("no case has this batch and this word in its model")
    if o.json:
        print(json.dumps({"device_bytes": float(CAPACITY), "host_bytes": float(HOST), "cases": cases,
                          "largest": largest(cases), "paper": {"throughput": 7.6, "swap_load": 100}}))
    else:
        print_tables(cases)


if __name__ == "__main__":
    main()
