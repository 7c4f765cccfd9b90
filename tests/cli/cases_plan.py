"""What `tutti plan` tells beside the plan: why it takes so long, what would help, how full memory is, and what would be enough
where it is not. Of jobs and of profiles, which print the same."""
import json
import os

from cases_profile import BATCH, EXAMPLE, KEYS, WHERE, plan
from files import POLICIES, SMALL, job, write_job
from harness import case, spread

DEEP = job(SMALL, {"model.hidden": [64] * 6, "train.global_batch": 24, "train.micro_batch": 4, "data.samples": 48})
PARTS = {"compute", "in", "out", "peer", "host"}
BINDINGS = {"compute", "bubble", "link", "peer", "host", "memory"}
SIZES = {"single": ["--devices", 1, "--device-memory", "64KiB"], "several": ["--devices", 2, "--device-memory", "64KiB"]}


def plan_job(t, path, *options, expect=0):
    return t.worker("--plan", path, *options, "--json", expect=expect).json()


def check_why(t, why, asked, decision=False):
    t.check(why["binds"] in BINDINGS, f"binds {why['binds']}")
    t.equal(set(why["path"]), PARTS, "the parts of the path")
    t.check(0.99 <= sum(why["path"].values()) <= 1.0001, f"the path is {why['path']}")
    t.check(0 <= why["waits_for_memory"] < 1, f"waits for memory: {why['waits_for_memory']}")
    members = {"binds", "path", "waits_for_memory"} | ({"one_more_gb", "one_more_device"} if asked else set())
    t.equal(set(why), members | ({"clipping_s"} if decision else set()), "members")


def why_section(page):
    return page.split("\nWHY ")[1].split("\nplan ")[0].splitlines()


# ---- why ----

@case(each=list(SIZES))
def test_plan_of_a_job_says_why(t, devices):
    path = write_job(t, DEEP)
    p = plan_job(t, path, *SIZES[devices])
    t.check(KEYS <= set(p), f"lacks {KEYS - set(p)}")
    t.equal(p["form"], "single" if devices == "single" else "pp", "form")
    check_why(t, p["why"], asked=True)
    more = p["why"]["one_more_gb"]
    t.check(more["iteration_s"] <= p["iteration_s"], f"slower with more memory: {more}")
    t.check(more["host_bytes"] < p["host_in_bytes"] + p["host_out_bytes"], f"everything fits, and still moves: {more}")
    t.check(p["why"]["one_more_device"]["iteration_s"] > 0, "another device")
    lines = why_section(t.worker("--plan", path, *SIZES[devices]).out)
    t.equal([line.split("  ")[0] for line in lines[1:]], ["binds", "path", "room", "+1 GB each", "+1 device"], "the lines")
    t.check(all(len(line) <= 80 for line in lines), f"wider than 80 columns: {lines}")


def check_what_if(t, told, made):
    """An answer is the plan that a command for that machine makes. An estimated answer is a plan too, but a shorter search
    found it, so it is hardly better."""
    if told.pop("estimated", False):
        t.check(told["iteration_s"] >= 0.98 * made["iteration_s"], f"{told} is faster than {made['iteration_s']} s")
    else:
        t.equal(told, {"iteration_s": made["iteration_s"], "host_bytes": made["host_in_bytes"] + made["host_out_bytes"]}, "the plan")


@case
def test_one_more_device_is_what_it_says(t):
    path = write_job(t, DEEP)
    told = plan_job(t, path, "--devices", 1, "--device-memory", "64KiB")["why"]["one_more_device"]
    made = plan_job(t, path, "--devices", 2, "--device-memory", "64KiB", "--no-what-if")
    check_what_if(t, told, made)
    told = plan(t, *WHERE)["why"]["one_more_device"]
    made = plan(t, "--devices", 3, *WHERE[2:], "--no-what-if")
    check_what_if(t, told, made)


@case
def test_one_more_gb_is_what_it_says(t):
    told = plan(t, *WHERE)["why"]["one_more_gb"]
    made = plan(t, "--devices", 2, "--device-memory", 600000000 // 256 * 256 + 1000000000 // 256 * 256, "--batch", BATCH,
                "--no-what-if")
    check_what_if(t, told, made)


@case
def test_clipping_is_told_apart(t):
    for change in ({"train.grad_clip": 1.0}, {"train.on_nonfinite": "skip"}):
        path = write_job(t, job(DEEP, change))
        p = plan_job(t, path, *SIZES["single"])
        check_why(t, p["why"], asked=True, decision=True)
        t.check(0 <= p["why"]["clipping_s"] < p["iteration_s"], f"clipping costs {p['why']['clipping_s']}")
        t.contains(t.worker("--plan", path, *SIZES["single"]).out, "\ndecision    ", what="the page")
        t.check("clipping_s" not in plan_job(t, path, *SIZES["single"], "--no-what-if")["why"], "it was asked")
    plain = plan_job(t, write_job(t, DEEP), *SIZES["single"])
    saved = max(0, p["iteration_s"] - plain["iteration_s"])
    t.check(abs(p["why"]["clipping_s"] - saved) < 1e-9, f"without a decision {saved} s less, told {p['why']['clipping_s']}")


@case
def test_what_if_can_be_left_out(t):
    path = write_job(t, DEEP)
    check_why(t, plan_job(t, path, *SIZES["single"], "--no-what-if")["why"], asked=False)
    check_why(t, plan(t, *WHERE, "--no-what-if")["why"], asked=False)
    for page in (t.worker("--plan", path, *SIZES["single"], "--no-what-if").out,
                 t.worker("--plan-profile", EXAMPLE, *WHERE, "--no-what-if").out):
        t.contains(page, "\nbinds ", "\npath ", what="the page")
        t.check("+1 GB" not in page and "+1 device" not in page, "the page says what would be")
    for p in plan(t, *WHERE, "--policy", "all", "--micro-batch", 4):
        if "error" not in p:
            check_why(t, p["why"], asked=False)
    run = t.worker("--check", path, "--no-what-if", expect=2)
    t.contains(run.err, "--no-what-if", what="standard error")


@case
def test_page_of_the_docs_is_what_is_printed(t):
    with open(os.path.join(os.path.dirname(EXAMPLE), "..", "plan.md"), encoding="utf-8") as f:
        command, shown = f.read().split("```\n$ tutti plan ", 1)[1].split("```")[0].split("\n...\n")
    words = command.split()
    t.equal(words[:2], ["--profile", "docs/examples/profile-small.json"], "the command")
    page = t.worker("--plan-profile", EXAMPLE, *words[2:]).out
    t.equal(page[page.index("\nMEMORY") + 1:], shown, "the page of docs/plan.md")


# ---- what binds ----

@case
def test_slow_and_fast_links_bind_and_do_not(t):
    where = ["--device-memory", "400MB", "--batch", BATCH, "--policy", "harmony-pp", "--micro-batch", 4, "--no-what-if"]
    t.equal(plan(t, *where, "--link", "200MB")["why"]["binds"], "link", "over a slow link")
    fast = plan(t, *where, "--link", "900GB")["why"]
    t.check(fast["binds"] == "compute" and fast["path"]["compute"] > 0.9, f"over a fast one: {fast}")
    two = plan(t, "--devices", 2, *where, "--peer", "20MB")["why"]
    t.equal(two["binds"], "peer", "between slow peers")


# ---- memory ----

@case
def test_fragmentation_is_told(t):
    path = write_job(t, DEEP)
    for p, n in ((plan_job(t, path, *SIZES["several"], "--no-what-if"), 2), (plan(t, *WHERE, "--no-what-if"), 2),
                 (plan_job(t, path, *SIZES["single"], "--no-what-if"), 1)):
        t.equal(len(p["fragmentation"]), n, "devices")
        t.check(all(1 <= f < 1.5 for f in p["fragmentation"]), f"fragmentation {p['fragmentation']}")
        for f, peak in zip(p["fragmentation"], p["device_peak_bytes"]):
            t.check(abs(peak / f - round(peak / f / 256) * 256) < 1e-5 * peak, f"{peak} by {f} is not a number of bytes")
    t.contains(t.worker("--plan", path, *SIZES["several"], "--no-what-if").out, "alive at once: 1.", what="the page")


# ---- all policies ----

@case
def test_table_of_policies_is_80_columns_wide(t):
    path = write_job(t, DEEP)
    for out in (t.worker("--plan", path, *SIZES["several"], "--policy", "all").out,
                t.worker("--plan-profile", EXAMPLE, *WHERE, "--policy", "all").out,
                t.worker("--plan", path, "--device-memory", "16MiB", "--policy", "all").out):
        table = out[out.index("policy  "):].splitlines()
        t.check(len(table) >= len(POLICIES) + 1, f"{len(table)} lines")
        t.check(all(len(line) <= 80 for line in table), f"wider than 80 columns: {[l for l in table if len(l) > 80]}")
    t.contains(out, "auto: a plan of policy resident", what="the table of what fits")


# ---- what does not fit ----

def misfits(t):
    auto = write_job(t, job(DEEP, {"train.micro_batch": "auto"}), "auto.json")
    return {"job": ["--plan", write_job(t, DEEP)], "auto": ["--plan", auto],
            "profile": ["--plan-profile", EXAMPLE, "--batch", 8]}


MISFITS = [(f"{policy}; {mode}, {devices} devices, update on {update}", policy, mode, devices, update)
           for policy in POLICIES for mode in ("job", "auto", "profile") for devices in (1, 3) for update in ("host", "device")]


@case(each=spread(MISFITS))
def test_least_capacity_works_and_less_does_not(t, value):
    _, policy, mode, devices, update = value
    where = [*misfits(t)[mode], "--devices", devices, "--policy", policy, "--update", update, "--no-what-if"]
    found = t.worker(*where, "--device-memory", 1024, "--json", expect=5).json()
    least = found["least_device_bytes"]
    t.equal(least % 256, 0, "alignment of the least capacity")
    t.contains(found["message"], f"at least {least} bytes", f"on each of {devices} device", "; layer ", "needs most",
               "ward pass", what="the message")
    most = int(found["message"].split("needs most, ")[1].split(" bytes")[0])
    t.check(1024 < most <= least, f"the largest needs {most} of {least}")
    made = t.worker(*where, "--device-memory", least, "--json").json()
    t.check(made["verified"] and max(made["device_peak_bytes"]) <= least, f"peaks {made['device_peak_bytes']}")
    less = t.worker(*where, "--device-memory", least - 256, "--json", expect=5).json()
    t.equal(less["least_device_bytes"], least, "the least capacity told with less")
    text = t.worker(*where, "--device-memory", least - 256, expect=5)
    t.equal((text.out, len(text.err.splitlines())), ("", 1), "standard output, lines on standard error")
    t.contains(text.err, str(least), "layer ", what="standard error")


@case
def test_least_capacity_that_the_host_memory_forbids_is_not_named(t):
    """Demand paging moves less with more device memory, and then needs less host memory."""
    model = {"type": "gpt2", "layers": 2, "width": 16, "heads": 2, "vocab": 64, "context": 16}
    path = write_job(t, job(SMALL, {"model": model, "train.global_batch": 12, "train.micro_batch": 3, "memory.policy": "lru"}))
    where = ["--check", path, "--devices", 1, "--json"]
    named = 0
    for memory in range(300_000, 700_000, 40_000):
        run = t.worker(*where, "--device-memory", "1MiB", "--host-memory", memory, expect=None)
        least = run.json().get("least_device_bytes", 0) if run.code == 0 else 0
        named += least > 0
        if least > 0:
            t.worker(*where, "--device-memory", least, "--host-memory", memory)
    t.check(named > 0, "it was never named")


@case
def test_least_capacity_of_check_is_that_of_plan(t):
    for name, mode in misfits(t).items():
        if name == "profile":
            continue
        for policy in POLICIES:
            where = ["--devices", 2, "--policy", policy]
            least = t.worker(*mode, *where, "--device-memory", 1024, "--json", expect=5).json()["least_device_bytes"]
            told = t.worker("--check", mode[1], *where, "--device-memory", "64MiB", "--json").json()
            t.check(least in told.values(), f"{name}, {policy}: {least} is not in {json.dumps(told)}")
