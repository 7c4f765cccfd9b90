#!/usr/bin/env python3
"""test_cudasim.py ARITHMETIC STREAMS MEMORY [WORD...]: runs the test programs on the simulator, under many seeds, and
reads its reports. Prints TAP. With words: only the tests whose names contain one."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ARITHMETIC, STREAMS, MEMORY = sys.argv[1:4]
WORDS = sys.argv[4:]
SOURCE = (pathlib.Path(__file__).parent / "kernels.cu").read_text().splitlines()
SEEDS = range(1, 61)


class Result:
    def __init__(self, done, report):
        self.code, self.out, self.err, self.report = done.returncode, done.stdout, done.stderr, report

    @property
    def problems(self):
        return self.report["problems"]


def run(program, *args, ok=True, **settings):
    """A case under these settings (CUDASIM_*). Its report must be there; with ok it must have succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        env = {**os.environ, "CUDASIM_REPORT": str(path)}
        env.update({f"CUDASIM_{k.upper()}": str(v) for k, v in settings.items()})
        done = subprocess.run([program, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=3600, check=False)
        assert path.exists(), f"no report; exit {done.returncode}: {done.stdout}{done.stderr}"
        result = Result(done, json.loads(path.read_text()))
        assert not ok or done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"
        return result


def clean(result):
    assert result.problems == {}, result.err


def line_of(mark):
    return next(i for i, text in enumerate(SOURCE, 1) if f"MARK {mark} " in text)


# ---- kernels

def arithmetic(name):
    def check():
        for order in ("random", "fifo", "lifo"):
            clean(run(ARITHMETIC, name, order=order))
    return check


def test_missing_barrier_changes_bits():
    right = {run(ARITHMETIC, "reduce", seed=s).out for s in range(1, 9)}
    assert len(right) == 1, right
    for seed in range(1, 9):  # shared memory is NaN at first: what was not written shows
        assert run(ARITHMETIC, "reduce", "wrong", seed=seed).out not in right


def wrong_kernel(name, problem, error):
    def check():
        r = run(MEMORY, "wrong", name)
        assert list(r.problems) == [problem], r.err
        assert f"kernels.cu:{line_of(name)}" in r.report["messages"][0], r.err
        assert r.out.split() == [error, error, "cudaSuccess", "cudaSuccess"], r.out
    return check


def test_kernel_without_body_is_reported():
    r = run(MEMORY, "wrong", "trap", ok=False, kernels="")
    assert r.code == 1 and "cudaErrorInvalidDeviceFunction" in r.out and r.problems == {"no-kernel": 1}, r.out + r.err


# ---- streams and races

def test_correct_pipeline_has_no_race_under_any_seed():
    for seed in SEEDS:
        clean(run(STREAMS, "pipeline", seed=seed, devices=2))


def test_correct_pipeline_in_every_order():
    for order in ("fifo", "lifo", "pct", "timed"):
        for seed in range(1, 6):
            r = run(STREAMS, "pipeline", seed=seed, devices=2, order=order)
            clean(r)
            assert r.report["order"] == order


def missing_wait(number, words):
    def check():
        differ = 0
        for seed in SEEDS:
            r = run(STREAMS, "pipeline", str(number), seed=seed, devices=2)
            assert r.report["races"] > 0, f"seed {seed}: {r.out}{r.err}"
            assert set(r.problems) == {"race"}, r.err
            text = " ".join(r.report["messages"])
            assert all(w in text for w in words), text
            differ += r.out != "0 wrong\n"
        assert differ > 0, "no seed showed a wrong result"
    return check


def test_same_seed_is_the_same_history():
    for seed in (3, 4):
        a, b = (run(STREAMS, "pipeline", "1", seed=seed, devices=2) for _ in range(2))
        assert a.out == b.out
        for r in (a, b):
            r.report["messages"] = [m.split(" at 0x")[0] for m in r.report["messages"]]  # addresses are random
        assert a.report == b.report


def test_races_can_be_switched_off():
    assert run(STREAMS, "pipeline", "1", devices=2, race=0).report["races"] == 0


def test_abort_stops_at_the_first_problem():
    r = run(STREAMS, "pipeline", "1", devices=2, abort=1, ok=False)
    assert r.code == -6 and len(r.report["messages"]) == 1


def test_host_thread_races_unless_it_waits():
    for seed in range(1, 21):
        r = run(STREAMS, "host-thread", seed=seed)
        assert r.report["races"] == 1 and "the host thread" in r.report["messages"][0], r.err
        assert r.out == "1 races, 1 problems\n", r.out
        clean(run(STREAMS, "host-thread", "sync", seed=seed))


def test_new_case_counts_races_again():
    r = run(STREAMS, "begin", order="fifo")
    assert r.out == "1 races\n1 races\n2 races\n2 races\n" and r.report["seed"] == 99, r.out + r.err


def test_shared_workspace_is_a_race():
    for seed in range(1, 6):
        assert run(STREAMS, "workspace", seed=seed).report["races"] == 1
        clean(run(STREAMS, "workspace", "sync", seed=seed))


def test_default_stream_waits_for_blocking_streams():
    for seed in range(1, 21):
        clean(run(STREAMS, "default-stream", seed=seed))


def test_events_and_queries():
    for seed in range(1, 6):
        r = run(STREAMS, "events", seed=seed)
        assert r.report["races"] == 0 and r.problems == {"bad-call": 1}, r.err


def test_several_threads_and_helpers_of_host_functions():
    for seed in range(1, 6):
        r = run(STREAMS, "threads", seed=seed)
        clean(r)
        assert r.report["host_functions"] == 80


def test_host_functions_may_not_call_cuda():
    assert run(STREAMS, "host-function-calls").problems == {"bad-call": 1}


# ---- time

def test_copies_in_both_directions_overlap():
    r = run(STREAMS, "overlap", order="timed", clock="in=1e9,out=1e9,latency=1000,call=100")
    in_ms, out_ms = map(float, r.out.split())
    assert 1.04 < in_ms < 1.06 and 1.04 < out_ms < 1.06, r.out
    busy = r.report["devices"][0]["busy_ns"]
    assert busy["in"] == busy["out"] == 1000 + 1048576, busy
    slow = run(STREAMS, "overlap", order="timed", clock="in=1e9,out=0.5e9,latency=1000,call=100")
    assert 2.09 < float(slow.out.split()[1]) < 2.11, slow.out


def test_timed_order_follows_the_clock():
    assert run(STREAMS, "timed", order="timed").out == "fast\nslow\n"
    assert run(STREAMS, "timed", order="fifo").out == "slow\nfast\n"
    assert {run(STREAMS, "timed", seed=s).out for s in range(1, 21)} == {"fast\nslow\n", "slow\nfast\n"}


# ---- memory

def test_device_memory_is_bounded():
    r = run(MEMORY, "out-of-memory", memory="16M")
    clean(r)
    assert r.report["devices"][0]["peak_bytes"] == 16 << 20
    assert r.report["leaks"]["device_allocations"] == 0


def test_memory_of_others_is_not_free():
    r = run(MEMORY, "free", devices=3, memory="8M", used="1M,0")
    assert r.out.splitlines() == [f"{n << 20} of {8 << 20}" for n in (7, 8, 8)], r.out


def test_counters_are_exact():
    for seed in range(1, 4):
        r = run(MEMORY, "counters", devices=2, seed=seed)
        clean(r)
        zero, one = r.report["devices"]
        assert (zero["in_bytes"], zero["in_copies"]) == (1001 + 8000 + 5, 3)
        assert (zero["out_bytes"], zero["out_copies"]) == (333, 1)
        assert zero["peer_bytes_to"] == [0, 700] and one["peer_bytes_to"] == [70, 0]
        assert (zero["local_bytes"], zero["set_bytes"]) == (500, 9)
        assert (one["in_bytes"], one["out_bytes"], one["peer_bytes"], one["peer_copies"]) == (0, 0, 70, 1)


def test_leaks_are_counted():
    r = run(MEMORY, "leaks")
    assert r.report["leaks"] == {"device_allocations": 1, "device_bytes": 1000, "host_allocations": 1,
                                 "host_bytes": 300, "registrations": 0, "streams": 1, "events": 1}


def test_host_cannot_touch_device_memory():
    r = run(MEMORY, "deref", ok=False)
    assert r.code == -11 and r.problems == {"host-access": 1}


def test_bad_copies_are_refused():
    r = run(MEMORY, "bad-copies", devices=2)
    assert r.problems == {"out-of-bounds": 2, "bad-call": 2, "use-after-free": 2}, r.err


def test_copies_lie_in_one_registration():
    r = run(MEMORY, "registered")
    assert r.problems["out-of-bounds"] == 5, r.problems  # three across an end, two that begin before
    assert r.report["leaks"]["registrations"] == 0, r.report["leaks"]


def test_kernels_reach_only_their_memory_and_peers():
    assert run(MEMORY, "reach", devices=2).out == "cudaErrorIllegalAddress\n"
    assert run(MEMORY, "reach", "peer", devices=2).out == "cudaSuccess\n"
    r = run(MEMORY, "reach", "freed", devices=2)
    assert "freed memory" in r.report["messages"][0]


# ---- faults

def faults(spec):
    return run(MEMORY, "faults", devices=2, fault=spec, order="fifo")


def test_the_nth_call_fails_and_the_next_works():
    for spec, line in (("malloc:7", "3 malloc cudaErrorMemoryAllocation"), ("memcpy:40", "20 memcpy cudaErrorUnknown"),
                       ("launch:1", "1 launch cudaErrorLaunchOutOfResources"), ("sync:4", "2 sync cudaErrorUnknown"),
                       ("hostfunc:3", "2 hostfunc cudaErrorUnknown"), ("record:2", "1 record cudaErrorUnknown")):
        r = faults(spec)
        got = [text for text in r.out.splitlines() if text[0].isdigit() and "host functions" not in text]
        assert got == [line], (spec, r.out)
        assert [f["fault"] for f in r.report["faults"]] == [spec] and r.problems == {}
        assert r.out.count("cudaSuccess") == 4, r.out


def test_a_sticky_error_stays_until_reset():
    r = faults("launch:5:sticky")  # round 3, device 0
    lines = r.out.splitlines()
    assert lines[0] == "3 sync cudaErrorLaunchFailure", r.out
    assert all("cudaErrorLaunchFailure" in x for x in lines if x[0].isdigit() and "functions" not in x), r.out
    assert lines[-5:] == ["device 0: cudaErrorLaunchFailure", "after reset: cudaSuccess", "device 1: cudaSuccess",
                          "after reset: cudaSuccess", "22 host functions"], r.out


def test_a_device_disappears():
    r = faults("device:1:gone@10")
    assert r.out.splitlines()[-5:] == [
        "device 0: cudaSuccess", "after reset: cudaSuccess", "device 1: cudaErrorDevicesUnavailable",
        "after reset: cudaErrorDevicesUnavailable", "23 host functions"], r.out
    assert r.report["devices"][1]["operations"] == 9
    assert r.report["faults"] == [{"fault": "device:1:gone@10", "device": 1, "error": 46}]


def test_several_faults_in_sequence():
    r = faults("memcpy:2,malloc:10,device:0:gone@30")
    assert [f["fault"] for f in r.report["faults"]] == ["memcpy:2", "malloc:10", "device:0:gone@30"], r.out


def test_wrong_settings_are_refused():
    for name, value in (("fault", "malloc"), ("fault", "malloc:0"), ("fault", "launch:1:sometimes"), ("order", "best"),
                        ("devices", "17"), ("clock", "speed=1"), ("memory", "much"), ("used", "1M,,2"), ("used", "1X"), ("used", "257M"), ("kernels", "/nowhere.so")):
        env = {**os.environ, f"CUDASIM_{name.upper()}": value}
        done = subprocess.run([MEMORY, "leaks"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        assert done.returncode == 2 and f"CUDASIM_{name.upper()}" in done.stderr, (name, value, done)


def test_devices():
    clean(run(MEMORY, "devices", devices=3, memory="8M"))


TESTS = {f"kernels: {name}": arithmetic(name) for name in
         ("add", "atomics", "convert", "exact", "functions", "gemm", "gemm-types", "ieee", "ieee-double", "integers", "mixed",
          "philox", "reduce", "warp")}
TESTS.update({f"wrong kernel: {name}": wrong_kernel(name, problem, error) for name, problem, error in
              (("barrier", "divergent-barrier", "cudaErrorLaunchFailure"),
               ("beyond", "out-of-bounds", "cudaErrorIllegalAddress"),
               ("lane", "kernel-hangs", "cudaErrorLaunchFailure"),
               ("mask", "warp-mask", "cudaErrorLaunchFailure"),
               ("misaligned", "misaligned", "cudaErrorMisalignedAddress"),
               ("shared", "out-of-bounds", "cudaErrorIllegalAddress"),
               ("trap", "trap", "cudaErrorLaunchFailure"))})
TESTS.update({f"missing wait {number}": missing_wait(number, words) for number, words in
              enumerate((("kernel k_add (kernels.cu:", "memcpy in"), ("kernel k_add (kernels.cu:", "memcpy to a peer"),
                         ("kernel k_scale4 (kernels.cu:", "memcpy to a peer"), ("kernel k_scale4 (", "memcpy out"),
                         ("host function", "memcpy out"), ("host function", "memcpy in")))})
TESTS.update({name[5:].replace("_", " "): test for name, test in list(globals().items()) if name.startswith("test_")})


def main():
    tests = {n: t for n, t in TESTS.items() if not WORDS or any(w in n for w in WORDS)}
    bad = 0
    print(f"1..{len(tests)}", flush=True)
    for number, (name, test) in enumerate(tests.items(), 1):
        try:
            test()
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as e:
            bad += 1
            print(f"not ok {number} - {name}", flush=True)
            print("\n".join(f"# {text}" for text in str(e).splitlines()), flush=True)
    return 1 if bad else 0


sys.exit(main())
