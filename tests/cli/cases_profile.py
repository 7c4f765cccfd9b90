"""Profiles: plans from a file, plans of every policy side by side, and the times of layers that are measured here. What is
checked of a measurement is that it was made, kept and used, never how long anything took."""
import json
import os

from files import POLICIES, SMALL, TINY, job, outcome, read_json, same_outcome, write_job
from harness import case

EXAMPLE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "examples", "profile-small.json")
KEYS = {"policy", "form", "micro_batch_fwd", "micro_batch_bwd", "packs_fwd", "packs_bwd", "iteration_s", "compute_s",
        "stall_s", "device_peak_bytes", "host_in_bytes", "host_out_bytes", "peer_bytes", "state_bytes",
        "activation_bytes", "bound_bytes", "time_bound_s", "time_bound_by", "plan_s", "verified"}
BATCH = 16
WHERE = ["--devices", "2", "--device-memory", "600MB", "--batch", BATCH]


def environment(t, **more):
    """A cache of the case's own, and no switch."""
    env = {k: v for k, v in os.environ.items() if k != "TUTTI_PROFILE"}
    return {**env, "XDG_CACHE_HOME": t.path("cache"), "TUTTI_BACKEND": "cpu", **more}


def plan(t, *options, expect=0, profile=EXAMPLE):
    return t.worker("--plan-profile", profile, *options, "--json", expect=expect).json()


def moved(p):
    return p["host_in_bytes"] + p["host_out_bytes"] + p["peer_bytes"]


def refused(t, *options, says=(), code=2):
    run = t.worker("--plan-profile", *options, expect=code)
    t.equal(run.out, "", "standard output")
    t.contains(run.err, *says, what="standard error")
    t.equal(len(run.err.splitlines()), 1, "lines on standard error")


# ---- plans from a profile ----

@case
def test_plan_from_a_profile_has_the_promised_members(t):
    p = plan(t, *WHERE, "--policy", "harmony-pp")
    t.check(KEYS <= set(p), f"lacks {KEYS - set(p)}")
    t.equal((p["policy"], p["form"], p["verified"]), ("harmony-pp", "pp", True), "what it is")
    t.equal(p["micro_batch_fwd"], p["micro_batch_bwd"], "micro-batches")
    t.equal(len(p["device_peak_bytes"]), 2, "devices")
    t.check(all(0 < b <= 600000000 for b in p["device_peak_bytes"]), f"peaks {p['device_peak_bytes']}")
    for packs in (p["packs_fwd"], p["packs_bwd"]):
        t.equal([l for a, b in packs for l in range(a, b + 1)], list(range(12)), "layers of the packs")
    t.check(abs(p["compute_s"] + p["stall_s"] - p["iteration_s"]) < 1e-6 * p["iteration_s"], "the parts of the time")
    t.equal((p["profile"], p["profile_reason"]), ("file", EXAMPLE), "the profile")
    t.equal(plan(t, "--device-memory", "4GB", "--batch", 4, "--micro-batch", 4)["form"], "single", "one device")
    page = t.worker("--plan-profile", EXAMPLE, *WHERE, "--policy", "harmony-pp").out
    t.contains(page, EXAMPLE, "12 layers (layer x11, loss)", "predicted with the times of the profile",
               "2 devices of 572.20 MiB", "batch   16", what="the page")


@case
def test_plan_from_a_profile_is_written(t):
    out, trace = t.path("plan.json"), t.path("trace.json")
    p = plan(t, *WHERE, "--policy", "harmony-pp", "--micro-batch", 2, "--out", out, "--trace", trace)
    written = read_json(out)
    t.equal((written["policy"], written["n_layers"], written["rows"], written["n_micro"]),
            ("harmony-pp", 12, 2, BATCH // 2), "the plan")
    t.equal([d[1] for d in written["devices"]], p["device_peak_bytes"], "peaks")
    t.check(len(read_json(trace)["traceEvents"]) > 100, "the trace is empty")
    dump = t.worker("--plan-profile", EXAMPLE, *WHERE, "--policy", "harmony-pp", "--micro-batch", 2, "--dump").out
    t.contains(dump, "d0.compute", "FWD", "FETCH", what="the dump")


@case(each=["time", "bytes"])
def test_micro_batch_auto_is_the_best_that_was_measured(t, objective):
    where = ["--devices", "2", "--device-memory", "400MB", "--batch", 24, "--policy", "harmony-pp", "--objective",
             objective]
    best = plan(t, *where)
    rank = (lambda p: p["iteration_s"]) if objective == "time" else moved
    singles = {}
    for size in (1, 2, 3, 4, 6, 8):  # the divisors of 24 up to the largest measured
        run = t.worker("--plan-profile", EXAMPLE, *where, "--micro-batch", size, "--json", expect=None)
        if run.code == 0:
            singles[size] = rank(run.json())
    t.check(len(singles) >= 3, f"only {singles} fit")
    t.equal(rank(best), min(singles.values()), f"{objective} of auto beside {singles}")
    t.check(max(singles.values()) > min(singles.values()), "the sizes do not differ")
    t.equal(singles[best["micro_batch_fwd"]], min(singles.values()), "its micro-batch")


@case
def test_micro_batch_auto_is_not_limited_to_small_sizes(t):
    """A profile that was measured up to 4096 samples: sizes above 2000 are as good as others."""
    with open(EXAMPLE, encoding="utf-8") as f:
        text = f.read()
    path = t.path("large.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace("[1, 2, 4, 8]", "[1, 2, 4, 4096]"))
    p = t.worker("--plan-profile", path, "--device-memory", "1TB", "--batch", 4096, "--policy", "stream", "--no-what-if",
                 "--json").json()
    t.equal(p["micro_batch_fwd"], 4096, "the micro-batch")


@case(each=["auto", "stream"])
def test_too_many_tasks_for_every_measured_size(t, policy):
    refused(t, EXAMPLE, "--device-memory", "200TB", "--batch", 1 << 20, "--policy", policy, code=2,
            says=["12 layers x 131072 micro-batches", "at most 262144"])


@case
def test_links_of_the_command_line_go_over_the_profiles(t):
    where = [*WHERE, "--policy", "harmony-pp", "--micro-batch", 4]
    times = [plan(t, *where, *more)["iteration_s"] for more in
             (["--link", "1GB"], ["--link", "11500000000", "--peer", "8200000000"], [], ["--link", "200GB", "--peer", "200GB"])]
    t.equal(times[1], times[2], "what the profile says, said again")
    t.check(times[0] > times[2] > times[3], f"not faster with faster links: {times}")


@case
def test_host_memory_is_heeded(t):
    where = [*WHERE, "--policy", "harmony-pp", "--micro-batch", 4]
    need = plan(t, *where)["host_bytes"]
    plan(t, *where, "--host-memory", 2 * need)
    refused(t, EXAMPLE, *where, "--host-memory", 1 << 20, code=5, says=["--host-memory", "host memory"])


@case
def test_update_is_where_it_was_asked_for(t):
    where = [*WHERE, "--policy", "harmony-pp", "--micro-batch", 4]
    for option in ("--update", "--optimizer-on"):
        page = t.worker("--plan-profile", EXAMPLE, *where, option, "device").out
        t.check("\nhost        update" not in page, "the host updates")
        t.contains(t.worker("--plan-profile", EXAMPLE, *where, option, "host").out, "host        update", what="the page")


# ---- what does not fit ----

@case
def test_what_does_not_fit_names_layer_and_least_capacity(t):
    where = ["--devices", "2", "--batch", BATCH, "--policy", "harmony-pp", "--micro-batch", 4]
    found = plan(t, "--device-memory", "30MB", *where, expect=5)
    least = found["least_device_bytes"]
    t.equal((found["ok"], found["exit"], found["errno"], found["path"]), (False, 5, "ENOSPC", "--device-memory"), "the error")
    # Of the larger kind, and unlike layer 0 it has a gradient of its input: W, dW, B, X, dX, dY and what it saves.
    most = 2 * 16793600 + 1048576 + 3 * 4 * 2097152 + 4 * 27262976
    t.contains(found["message"], f"at least {least} bytes", "on each of 2 devices", "micro-batch 4",
               f"layer 2 needs most, {most} bytes", "backward", what="the message")
    t.equal(plan(t, "--device-memory", least, *where)["verified"], True, "with the least capacity")
    plan(t, "--device-memory", least - 256, *where, expect=5)
    refused(t, EXAMPLE, "--device-memory", "30MB", *where, code=5, says=[str(least), "layer 2"])
    # auto tells of the size with which the least would do
    small = plan(t, "--device-memory", "30MB", *where[:-2], expect=5)
    t.check(small["least_device_bytes"] < least, "a smaller micro-batch needs no less")
    t.contains(small["message"], "micro-batch 1 ", what="the message")


# ---- all policies ----

@case
def test_all_policies_stand_side_by_side(t):
    listed = plan(t, *WHERE, "--policy", "all", "--micro-batch", 4)
    t.equal([p["policy"] for p in listed], POLICIES, "policies")
    for p in listed:
        if "error" in p:
            t.check(p["error"] and "iteration_s" not in p, f"{p}")
        else:
            t.check(KEYS <= set(p) and p["verified"], f"{p['policy']} lacks {KEYS - set(p)}")
            alone = plan(t, *WHERE, "--policy", p["policy"], "--micro-batch", 4)
            t.equal({k: alone[k] for k in KEYS - {"policy", "plan_s"}}, {k: p[k] for k in KEYS - {"policy", "plan_s"}},
                    f"{p['policy']} alone")
            t.equal(alone["policy"], p.get("chosen", p["policy"]), "what auto has chosen")
    t.contains(listed[POLICIES.index("resident")]["error"], "resident does not fit", what="the error")
    t.check(listed[POLICIES.index("resident")]["least_device_bytes"] > 600000000, "the least")
    table = t.worker("--plan-profile", EXAMPLE, *WHERE, "--policy", "all", "--micro-batch", 4).out
    for p in listed:
        row = [line for line in table.splitlines() if line.startswith(p["policy"] + " ")]
        t.equal(len(row), 1, f"rows of {p['policy']}")
        if "error" not in p:
            t.contains(row[0], f"{100 * max(p['device_peak_bytes']) / 600000000:.1f}%", what="the row")
            t.check(len(row[0]) <= 80, f"a row of {len(row[0])} columns")
    t.contains(table, "does not fit: needs", "bound", what="the table")


@case
def test_all_policies_of_which_none_fits_exit_with_5(t):
    listed = plan(t, "--device-memory", "1MB", "--batch", 4, "--policy", "all", expect=5)
    t.equal([("error" in p, p["least_device_bytes"] > 1 << 20) for p in listed], [(True, True)] * len(POLICIES), "errors")


@case
def test_all_policies_of_a_job_stand_side_by_side(t):
    path = write_job(t, SMALL)
    where = ["--devices", "2", "--device-memory", "24KiB"]
    listed = t.worker("--plan", path, *where, "--policy", "all", "--json").json()
    t.equal([p["policy"] for p in listed], POLICIES, "policies")
    fits = [p for p in listed if "error" not in p]
    t.check(0 < len(fits) < 5, f"{len(fits)} fit")
    for p in fits:
        t.check(KEYS <= set(p) and p["verified"] and p["backend"] == "cpu" and p["profile"] == "analytic", f"{p}")
        alone = t.worker("--plan", path, *where, "--policy", p["policy"], "--json").json()
        t.equal(alone["iteration_s"], p["iteration_s"], p["policy"])
    table = t.worker("--plan", path, *where, "--policy", "all").out
    t.contains(table, "profile analytic: it was asked for", *POLICIES, "does not fit", what="the table")
    t.worker("--plan", path, "--device-memory", "1KiB", "--policy", "all", expect=5)
    run = t.worker("--plan", write_job(t, job(SMALL, {"train.steps": -1}), "bad.json"), "--policy", "all", expect=2)
    t.equal((run.out, len(run.err.splitlines())), ("", 1), "an invalid job")


@case
def test_objective_of_a_job_is_heeded(t):
    path = write_job(t, job(SMALL, {"model.hidden": [64] * 8, "train.global_batch": 96, "data.samples": 192}))
    where = ["--plan", path, "--devices", "2", "--device-memory", "64KiB", "--policy", "harmony-pp", "--json"]
    by_time, by_bytes = [t.worker(*where, "--objective", o).json() for o in ("time", "bytes")]
    t.check(moved(by_bytes) <= moved(by_time) and by_time["iteration_s"] <= by_bytes["iteration_s"], "neither is best")
    t.equal(t.worker(*where).json()["iteration_s"], by_time["iteration_s"], "the default")


@case(each=POLICIES)
def test_replicas_can_be_given(t, policy):
    """Every policy takes --replicas. With two of them, lru and harmony-dp run all layers on both devices."""
    where = ["--devices", 2, "--device-memory", "4GB", "--batch", BATCH, "--policy", policy, "--no-what-if"]
    one, two = (plan(t, *where, "--replicas", n) for n in (1, 2))
    t.equal((one["verified"], two["verified"]), (True, True), "verified")
    if policy in ("lru", "harmony-dp"):
        t.equal((one["form"], two["form"]), ("pp" if policy == "lru" else "single", "dp"), "forms")


# ---- mistakes ----

@case
def test_mistakes_on_the_command_line_are_named(t):
    refused(t, EXAMPLE, "--batch", 4, says=["--device-memory", "is needed"])
    refused(t, EXAMPLE, "--device-memory", "1GB", says=["--batch", "is needed"])
    refused(t, EXAMPLE, *WHERE, "--micro-batch", 5, says=["--micro-batch", "does not divide --batch 16"])
    refused(t, EXAMPLE, *WHERE, "--replicas", 3, says=["--replicas", "3 does not divide --batch 16"])
    refused(t, EXAMPLE, *WHERE, "--replicas", 4, "--micro-batch", 8, says=["--replicas", "whole micro-batches"])
    refused(t, t.path("nowhere"), *WHERE, says=[t.path("nowhere"), "cannot be read"])
    for option in (["--backend", "cpu"], ["--machine", "x"], ["--profile", "none"]):
        refused(t, EXAMPLE, *WHERE, *option, says=[f"{option[0]}: does not go with --plan-profile; it goes with"])
    refused(t, EXAMPLE, *WHERE, "--policy", "all", "--out", t.path("x"), says=["of one plan"])
    refused(t, EXAMPLE, *WHERE, "--policy", "al", says=["unknown name"])
    path = write_job(t, TINY)
    for options in (["--check", path, "--policy", "all"], ["--plan", path, "--batch", 4], ["--plan", path, "--micro-batch", 2],
                    ["--plan", path, "--micro-batches", "1,2"], ["--check", path, "--out", t.path("x")],
                    ["--plan", path, "--force"], ["--time", path, "--dump"]):
        run = t.worker(*options, expect=2)
        t.equal(len(run.err.splitlines()), 1, f"lines about {options}")


@case
def test_mistakes_in_a_profile_are_named_with_file_and_place(t):
    with open(EXAMPLE, encoding="utf-8") as f:
        text = f.read()
    for name, old, new, says in (("negative", '"fwd_s": [0.0007528,', '"fwd_s": [-1,', "layers[0].fwd_s[0]"),
                                 ("cut", text[-40:], "", "cut.json"),
                                 ("unknown", '"source"', '"sauce"', 'did you mean "source"')):
        path = t.path(name + ".json")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new, 1))
        refused(t, path, *WHERE, says=[path, says])


# ---- measuring ----

LAYERED = job(TINY, {"model.hidden": [5, 5, 5, 5], "train.grad_clip": 1.0})
SHAPES = 4  # 6x5 without the gradient of its input, 5x5, 5x3, the loss; three of them have weights


def measured(t, path, *options, **env):
    return t.worker("--time", path, "--json", *options, env=environment(t, **env)).json()


@case
def test_layers_are_measured_once_and_kept(t):
    path, out = write_job(t, LAYERED), t.path("profile.json")
    first = measured(t, path, "--micro-batches", "1,4", "--out", out)
    t.equal((first["ok"], first["backend"], first["measured"], first["kept"]), (True, "cpu", 2 * SHAPES + 3 + 1, 0), "the first time")
    t.equal(os.listdir(t.path("cache", "tutti")), [os.path.basename(first["cache"])], "the cache")
    profile = first["profile"]
    t.equal(profile, read_json(out), "the file")
    t.equal((profile["schema"], profile["model"], len(profile["layers"])), ("profile/v1", "tiny", 6), "the profile")
    t.equal([l["weight_bytes"] for l in profile["layers"]], [4 * 35, 4 * 30, 4 * 30, 4 * 30, 4 * 18, 0], "weights")
    t.equal([l["optimizer_bytes"] for l in profile["layers"]], [8 * 35, 8 * 30, 8 * 30, 8 * 30, 8 * 18, 0], "optimizer")
    t.equal([l.get("optimizer_part_bytes") for l in profile["layers"]],
            [[4 * 35] * 2, [4 * 30] * 2, [4 * 30] * 2, [4 * 30] * 2, [4 * 18] * 2, None], "parts of the optimizer state")
    t.equal([l["input_bytes"] for l in profile["layers"]], [[24, 96]] + [[20, 80]] * 4 + [[12, 48]], "inputs")
    for axis in ("fwd", "bwd", "fwd_bytes", "bwd_bytes", "input"):
        t.equal(profile["micro_batch_" + axis], [1, 4], axis)
    t.equal(profile["layers"][1], {**profile["layers"][2], "id": 1}, "two layers of one shape")
    for l in profile["layers"]:
        t.check(all(f > 0 and b > f for f, b in zip(l["fwd_s"], l["bwd_s"])), f"no times: {l}")
        t.check((l["update_cpu_s"] > 0) == (l["weight_bytes"] > 0), f"no time of the update: {l}")
    t.check(all(rate > 0 for rate in profile["link"].values()) and len(profile["link"]) == 3, "links")

    again = measured(t, path, "--micro-batches", "1,4")
    t.equal((again["measured"], again["kept"], again["profile"]), (0, 2 * SHAPES + 3, profile), "the second time")
    more = measured(t, path, "--micro-batches", "1,2,4")
    t.equal((more["measured"], more["kept"]), (SHAPES, 2 * SHAPES + 3), "another size")
    t.equal(measured(t, path, "--micro-batches", "1,4", "--force")["measured"], 2 * SHAPES + 3 + 1, "by force")
    t.equal(measured(t, path, "--micro-batches", "1", "--threads", "7")["kept"], 0, "with other threads")
    sgd = write_job(t, job(LAYERED, {"optimizer": {"type": "sgd", "lr": 0.1}}), "sgd.json")
    t.equal(measured(t, sgd, "--micro-batches", "1")["measured"], 3, "with another optimizer")


@case
def test_sizes_that_nobody_names_are_powers_of_two_up_to_the_batch(t):
    path = write_job(t, job(LAYERED, {"train.global_batch": 12, "train.micro_batch": 6}))
    t.equal(measured(t, path)["profile"]["micro_batch_fwd"], [1, 2, 4, 6, 8], "sizes")


@case
def test_profile_is_told_to_people(t):
    path = write_job(t, LAYERED)
    run = t.worker("--time", path, "--micro-batches", "1,4", env=environment(t))
    t.contains(run.out, "dense 5x5 bias relu dx", "adamw 140", "softmax_xent", "links: host and device", "plans of jobs",
               t.path("cache"), what="the table")
    t.contains(run.err, "measuring 1 of 12: ", "measuring 12 of 12: ", what="the progress")
    quiet = t.worker("--time", path, "--micro-batches", "1,4", "--quiet", "--force", env=environment(t))
    t.equal(quiet.err, "", "standard error")


@case
def test_plans_use_what_was_measured_and_say_so(t):
    path, profile = write_job(t, LAYERED), t.path("profile.json")
    where = ["--plan", path, "--device-memory", "2KiB", "--json"]

    def planned(*options, **env):
        return t.worker(*where, *options, env=environment(t, **env)).json()

    before = planned()
    t.equal(before["profile"], "analytic", "before")
    t.contains(before["profile_reason"], "`tutti profile`", what="the reason")
    measured(t, path, "--micro-batches", "1,2,4", "--out", profile)
    after = planned()
    t.equal(after["profile"], "measured", "after")
    t.check(after["compute_s"] != before["compute_s"], "the times are not used")
    page = t.worker("--plan", path, "--device-memory", "2KiB", env=environment(t)).out
    t.contains(page, "profile measured: 20", "predicted with times measured 20", what="the page")

    def strip(p):
        plan = {k: v for k, v in p.items() if k not in ("plan_s", "profile_reason", "profile")}
        return {**plan, "needs": {k: v for k, v in p["needs"].items() if k != "times"}}

    t.equal((before["needs"]["times"], after["needs"]["times"]), ("analytic", "measured"), "the times of the needs")

    for option, env in ((["--profile", "none"], {}), ([], {"TUTTI_PROFILE": "none"})):
        none = planned(*option, **env)
        t.equal((none["profile"], none["profile_reason"]), ("analytic", "it was asked for"), "without")
        t.equal(strip(none), strip(before), "the plan without")
    for option, env in ((["--profile", profile], {}), ([], {"TUTTI_PROFILE": profile}),
                        (["--profile", profile], {"TUTTI_PROFILE": "none"})):
        named = planned(*option, **env)
        t.equal((named["profile"], named["profile_reason"]), ("file", profile), "a file")
        t.equal(named["needs"]["times"], "file", "the times of the needs by a file")
        t.equal(strip(named), strip(after), "the plan by the file")
    other = write_job(t, job(LAYERED, {"model.hidden": [5, 6]}), "other.json")
    t.equal(t.worker("--plan", other, "--json", env=environment(t)).json()["profile"], "analytic", "of another job")
    for model, says in (([5, 6], "is a profile of 6 layers, but the model has 4"),
                        ([5, 6, 5, 5], "layer 1 has 120 bytes of weights there, 144 in the job")):
        run = t.worker("--plan", write_job(t, job(LAYERED, {"model.hidden": model}), "other.json"), "--profile", profile, expect=2)
        t.contains(run.err, profile, says, what="standard error")


@case
def test_results_do_not_depend_on_what_was_measured(t):
    spec = job(SMALL, {"train.micro_batch": "auto"})
    path, plain, timed = write_job(t, spec), t.path("plain"), t.path("timed")
    where = ["--quiet", "--devices", "2", "--device-memory", "64KiB"]
    t.worker("--run", path, "--output", plain, *where, env=environment(t))
    measured(t, path, "--micro-batches", "1,4,8,24")
    run = t.worker("--run", path, "--output", timed, *where, env=environment(t))
    t.contains(run.out, "profile   measured: 20", what="the report")
    t.equal(read_json(os.path.join(timed, "result.json"))["profile"], "measured", "result.json")
    t.equal(read_json(os.path.join(plain, "result.json"))["profile"], "analytic", "result.json")
    same_outcome(t, timed, outcome(plain), "with measured times")


@case
def test_damaged_cache_counts_as_none_with_a_warning(t):
    path = write_job(t, LAYERED)
    cache = measured(t, path, "--micro-batches", "1,4")["cache"]
    with open(cache, encoding="utf-8") as f:
        good = f.read()
    doc = json.loads(good)
    row = doc["layers"][0]
    damages = {"empty": "", "cut": good[:-20], "schema": good.replace("times/v1", "times/v2"),
               "threads": json.dumps({**doc, "threads": 99}), "unknown": json.dumps({**doc, "x": 1}),
               "negative": json.dumps({**doc, "layers": [[row[0], row[1], -1.0, *row[3:]]]}),
               "rows": json.dumps({**doc, "layers": [[row[0], 0, *row[2:]]]}),
               "short": json.dumps({**doc, "layers": [row[:3]]}), "long": json.dumps({**doc, "layers": [["x" * 200, *row[1:]]]}),
               "no array": json.dumps({**doc, "updates": 7}), "link": json.dumps({**doc, "link": {"swap": 1}})}
    for name, text in damages.items():
        with open(cache, "w", encoding="utf-8") as f:
            f.write(text)
        run = t.worker("--plan", path, "--json", env=environment(t))
        t.equal(run.json()["profile"], "analytic", name)
        t.equal(len(run.err.splitlines()), 1, f"{name}: warnings")
        t.contains(run.err, cache, "is not used", what=name)
    t.equal(measured(t, path, "--micro-batches", "1")["kept"], 0, "kept of a damaged one")
    t.equal(t.worker("--plan", path, "--json", env=environment(t)).json()["profile"], "measured", "made anew")


@case
def test_cache_that_cannot_be_written_is_a_warning(t):
    with open(t.path("cache"), "w"):
        pass  # a file where the directory should be
    run = t.worker("--time", write_job(t, TINY), "--micro-batches", "1", "--json", env=environment(t))
    t.equal((run.json()["cache"], run.json()["ok"]), (None, True), "the result")
    t.contains(run.err, "could not be saved", what="the warning")


@case
def test_measuring_refuses_what_it_cannot_do(t):
    path = write_job(t, TINY)
    for options, code, says in ((["--machine", "x"], 2, "does not go with --machine"),
                                (["--micro-batches", str(1 << 30)], 5, "--micro-batches")):
        run = t.worker("--time", path, *options, expect=code, env=environment(t))
        t.contains(run.err, says, what="standard error")
    t.check(not os.path.exists(t.path("cache")), "something was kept")
