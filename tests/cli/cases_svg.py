"""--svg: the timeline of an iteration as a picture. Marks and merging are checked in tests/unit/test_explain_svg.c; here, that
what is drawn is what --trace writes."""
import os
import xml.etree.ElementTree

from cases_profile import EXAMPLE, WHERE
from files import POLICIES, SMALL, TINY, read_json, write_job
from harness import case

SVG = "{http://www.w3.org/2000/svg}"
PLOT = 1364
LANES = ["compute", "in", "out", "peer"]


def read_picture(t, path):
    """(all text, {row: [(x, width, height by the row's)]}) of a picture that parses, refers to nothing and is not too large."""
    t.check(0 < os.path.getsize(path) < 2e6, f"{os.path.getsize(path)} bytes")
    root = xml.etree.ElementTree.parse(path).getroot()
    t.equal((root.tag, root.get("width")), (SVG + "svg", "1600"), "the root")
    for e in root.iter():
        t.check(e.tag in {SVG + name for name in ("svg", "g", "rect", "text", "title", "path")}, f"a tag {e.tag}")
        t.check(not any("href" in key or key.startswith("on") or "url" in value for key, value in e.attrib.items()), f"{e.attrib}")
    rows = {}
    for g in root.iter(SVG + "g"):
        if g.get("id"):
            height = 22 if g.get("id") == "host" or g.get("id").endswith("compute") else 14
            rows[g.get("id")] = [(float(r.get("x")), float(r.get("width")), float(r.get("height")) / height) for r in g.iter(SVG + "rect")]
            t.check(all(mark.find(SVG + "title").text for mark in g), f"{g.get('id')}: a mark without a tip")
    return [e.text for e in root.iter(SVG + "text")], rows


def busy_in_trace(path, iteration_s):
    """{row: share of the window that the picture has}, by the trace: from the first forward task of the last run but one."""
    events = read_json(path)["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    thread = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    run = max(e["args"]["run"] for e in spans) - 1
    begin = min(e["ts"] for e in spans if e["args"]["run"] == run and e["name"].startswith("FWD"))
    end = begin + iteration_s * 1e6
    busy = {}
    for e in spans:
        row = "host" if "host" in process[e["pid"]] else f"d{process[e['pid']].split()[1]}.{thread[e['tid']]}"
        inside = min(end, e["ts"] + e["dur"]) - max(begin, e["ts"])
        busy[row] = busy.get(row, 0) + max(0, inside) / (end - begin)
    return busy


def computed_in_trace(path):
    """The seconds that all devices compute in the trace, and the number of runs of the cycle."""
    events = read_json(path)["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    thread = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    computing = [e["dur"] for e in spans if "host" not in process[e["pid"]] and thread[e["tid"]] == "compute"]
    return sum(computing) / 1e6, max(e["args"]["run"] for e in spans) + 1


def check_picture(t, devices, *options):
    """Draws with these options. Returns the texts."""
    svg, trace = t.path("plan.svg"), t.path("trace.json")
    figures = t.worker(*options, "--json", "--no-what-if", "--svg", svg, "--trace", trace).json()
    texts, rows = read_picture(t, svg)
    t.equal(list(rows), [f"d{d}.{lane}" for d in range(devices) for lane in LANES] + ["host"], "rows")
    t.contains("\n".join(texts), f"policy {figures['policy']} on {devices} device", "per iteration", *(f"d{d} peer" for d in range(devices)),
               what="the texts")
    busy = busy_in_trace(trace, figures["iteration_s"])
    for row, marks in rows.items():
        ends = [0] + [x + width for x, width, _ in marks]
        t.check(all(x >= end - 1e-6 or x == last[0] for (x, _, _), end, last in zip(marks, ends, [(0, 0, 0)] + marks)), f"{row}: marks overlap")
        area = sum(width * height for _, width, height in marks) / PLOT
        slack = 0.005 + sum(width for _, width, height in marks if height < 0.1) / PLOT / 14
        t.check(abs(area - busy.get(row, 0)) < slack, f"{row}: {area} is drawn, {busy.get(row, 0)} in the trace")
    compute_s, runs = computed_in_trace(trace)
    t.check(abs(compute_s / runs / devices - figures["compute_s"]) < 0.01 * figures["compute_s"] + 1e-6,
            f"{runs} runs compute for {compute_s} s, and an average one for {figures['compute_s']} s")
    return texts


@case(each=POLICIES)
def test_picture_of_a_job_shows_what_the_trace_has(t, policy):
    check_picture(t, 2, "--plan", write_job(t, SMALL), "--policy", policy, "--devices", 2, "--device-memory", "96KiB", "--profile", "none")


@case
def test_picture_of_a_profile_shows_what_the_trace_has(t):
    texts = check_picture(t, 2, "--plan-profile", EXAMPLE, *WHERE, "--micro-batch", 2, "--policy", "harmony-pp")
    t.check(any("8 micro-batches of 2 rows" in text for text in texts), "no micro-batches in the title")
    t.check("ms" in "".join(texts) and {"FWD", "BWD", "fetch", "send"} <= set(texts), "no axis or legend")


@case
def test_picture_is_the_same_every_time_and_replaces_a_file(t):
    svg = t.path("plan.svg")
    found = []
    for old in ("", "x" * 4000000):
        with open(svg, "w") as f:
            f.write(old)
        page = t.worker("--plan-profile", EXAMPLE, *WHERE, "--no-what-if", "--svg", svg).out
        with open(svg, "rb") as f:
            found.append(f.read())
    t.equal(found[0], found[1], "the second picture")
    t.equal(page, t.worker("--plan-profile", EXAMPLE, *WHERE, "--no-what-if").out, "the page without a picture")


@case
def test_picture_is_of_one_plan(t):
    svg, path = t.path("plan.svg"), write_job(t, TINY)
    for options, says in ((["--plan", path, "--policy", "all"], "of one plan"), (["--plan-profile", EXAMPLE, *WHERE, "--policy", "all"], "of one plan"),
                          (["--check", path], "goes with --plan"), (["--run", path], "goes with --plan"), (["--time", path], "goes with --plan"),
                          (["--rules", "harmony", "--profile", EXAMPLE], "goes with --plan")):
        run = t.worker(*options, "--svg", svg, expect=2)
        t.equal((run.out, len(run.err.splitlines())), ("", 1), "the output")
        t.contains(run.err, "--svg", says, what=f"the refusal of {options}")
    t.contains(t.worker("--plan", path, "--svg", expect=2).err, "--svg needs a value", what="standard error")
    t.worker("--plan", path, "--device-memory", "1KiB", "--svg", svg, expect=5)
    t.check(not os.path.exists(svg), "something was drawn")
