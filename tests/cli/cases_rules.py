"""--rules: a schedule of Harmony timed by its own rules. The times themselves are checked in tests/unit/test_harmony_rules.c."""
import json

from harness import case

TWO = [1, 2]
PROFILE = {"micro_batch_fwd": TWO, "micro_batch_bwd": TWO, "micro_batch_fwd_bytes": TWO, "micro_batch_bwd_bytes": TWO,
           "micro_batch_input": TWO,
           "link": {"swap_bytes_per_s": 2e9, "p2p_bytes_per_s": 1e9, "host_copy_bytes_per_s": 4e9},
           "layers": [{"weight_bytes": w, "input_bytes": [x, 2 * x], "fwd_s": [f, 2 * f], "bwd_s": [b, 2 * b],
                       "fwd_bytes": [0, 0], "bwd_bytes": [0, 0], "update_cpu_s": u}
                      for w, x, f, b, u in ((1000, 100, 1e-6, 3e-6, 7e-7), (500, 200, 2e-6, 5e-6, 3e-7), (0, 50, 1e-6, 2e-6, 0))]}


def profile(t, **changes):
    path = t.path("profile.json")
    with open(path, "w") as f:
        json.dump({**PROFILE, **changes}, f)
    return path


def schedule(t, *more, **changes):
    o = {"rules": "harmony", "profile": None, "form": "pp", "devices": 2, "batch": 1, "micro-batch-fwd": 1,
         "micro-batch-bwd": 1, "packs-fwd": "0", "packs-bwd": "0,2", "task-overhead": "100ns", **changes}
    o["profile"] = o["profile"] or profile(t)
    return [w for k, v in o.items() if v != "-" for w in (f"--{k}", str(v))] + list(more)


@case
def test_rules_json_has_times_packs_and_bytes(t):
    r = t.worker(*schedule(t, "--json")).json()
    t.equal((r["rules"], r["form"], r["devices"], r["batch"]), ("harmony", "pp", 2, 1), "the schedule")
    t.equal((r["packs_fwd"], r["packs_bwd"]), ([[0, 0]], [[0, 0], [1, 2]]), "packs")
    t.equal((r["iteration_s"], r["fair"]["iteration_s"]), (13.2e-6, 12.4e-6), "times")
    t.equal((r["host_in_bytes"], r["host_out_bytes"], r["peer_bytes"]), (2700, 1600, 400), "bytes")
    t.check(abs(r["compute_share"] - 11 / 26.4) < 1e-6, "compute share")


@case
def test_rules_text_has_both_times(t):
    run = t.worker(*schedule(t, **{"task-overhead": "40ms"}))
    t.contains(run.out, "by Harmony's rules", "0.080 s", "as Harmony has it", "shared fairly", what="the text")


@case
def test_rules_take_40_ms_unless_told(t):
    told, untold = (t.worker(*schedule(t, "--json", **{"task-overhead": o})).json() for o in ("0.04s", "-"))
    t.equal(told, untold, "the result")
    t.equal(untold["task_overhead_s"], 0.04, "the overhead")


@case
def test_rules_links_of_the_command_line_win(t):
    r = t.worker(*schedule(t, "--json", "--link", "2000000", "--peer", "1000000")).json()
    t.check(r["iteration_s"] > 1e-3, "as fast as with the profile's links")
    t.worker(*schedule(t, "--link", "1GB", "--peer", "1GB", form="dp", batch=2,
                       profile=profile(t, link={"swap_bytes_per_s": 1})))


MISTAKES = [
    ("packs-fwd", "1", "--packs-fwd[0]", "comes after layer 0"),
    ("packs-fwd", "-", "--packs-fwd", "must end with layer 0"),
    ("packs-fwd", "0,", "--packs-fwd", "cannot read"),
    ("packs-fwd", "one", "--packs-fwd", 'cannot read "one"'),
    ("packs-bwd", "0,1", "--packs-bwd", "must end with layer 2"),
    ("packs-bwd", "1,0,2", "--packs-bwd[1]", "ascend"),
    ("packs-bwd", "-", "--rules", "--packs-bwd LIST is needed"),
    ("micro-batch-fwd", "3", "--micro-batch-fwd", "does not divide"),
    ("micro-batch-bwd", "0", "--micro-batch-bwd", "from 1 to"),
    ("batch", "-", "--rules", "--batch N is needed"),
    ("devices", "65", "--devices", "from 1 to 64"),
    ("form", "tp", "--form", "there are: pp, dp"),
    ("task-overhead", "40", "--task-overhead", "40ms"),
    ("task-overhead", "-1s", "--task-overhead", "40ms"),
    ("rules", "harmoney", "--rules", "there are: harmony"),
]


@case(each=[(f"--{option} {word}", option, word, path, says) for option, word, path, says in MISTAKES])
def test_rules_mistake_is_named_with_its_place(t, value):
    _, option, word, path, says = value
    r = t.worker(*schedule(t, "--json", **{option: word}), expect=2).json()
    t.equal((r["ok"], r["exit"], r["path"]), (False, 2, path), "the error")
    t.contains(r["message"], says, what="the message")


@case
def test_rules_uneven_batch_is_refused(t):
    run = t.worker(*schedule(t, form="dp", batch=3), expect=2)
    t.contains(run.err, "--batch: is 3, which 2 devices do not divide equally", what="standard error")


@case
def test_rules_damaged_profile_is_refused(t):
    path = profile(t, layers=[])
    t.contains(t.worker(*schedule(t, profile=path), expect=2).err, path, "layers", what="standard error")
    t.contains(t.worker(*schedule(t, profile=t.path("none")), expect=2).err, "cannot be read", what="standard error")


@case
def test_rules_options_go_with_rules(t):
    run = t.worker("--probe", "--form", "pp", expect=2)
    t.contains(run.err, "goes with --rules", what="standard error")
