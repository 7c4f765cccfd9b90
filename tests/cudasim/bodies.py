#!/usr/bin/env python3
"""bodies.py --nvcc NVCC --cc CC --lib DIR -o kernels.so a.cu [b.cu ...] [-- nvcc flags]

From .cu files to a kernel library for the simulator: nvcc makes PTX, ptx2c.py makes C of it, the C compiler a shared
object, for CUDASIM_KERNELS. Give nvcc the flags that the program's kernels are compiled with (-fmad=false, -I, -D):
they decide the bits. DIR has the stand-in libcudart.so.13. --depfile writes what the result depends on."""
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # nothing is generated in the source folder

import ptx2c  # noqa: E402
from ptx_parse import PtxError  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
C_FLAGS = ["-std=gnu11", "-O2", "-g0", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
           "-fno-math-errno", "-frounding-math"]


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bodies: {' '.join(map(str, command))}\n{done.stdout}")


def make_ptx(nvcc, arch, flags, source, folder):
    """The text of the PTX, and the files it was made from."""
    ptx, deps = folder / f"{source.stem}.ptx", folder / f"{source.stem}.d"
    run([nvcc, f"-arch={arch}", "-lineinfo", *flags, "-ptx", "-MD", "-MF", deps, "-o", ptx, source])
    names = re.sub(r"\\\n", " ", deps.read_text()).split(":", 1)[1].split()
    return ptx.read_text(), names


def main():
    argv = sys.argv[1:]
    at = argv.index("--") if "--" in argv else len(argv)
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--nvcc", required=True)
    args.add_argument("--arch", default="compute_80", help="the architecture whose PTX is translated")
    args.add_argument("--cc", required=True, action="append", help="the C compiler; repeat it for its arguments")
    args.add_argument("--lib", required=True, type=pathlib.Path)
    args.add_argument("--depfile", type=pathlib.Path)
    args.add_argument("--keep-c", type=pathlib.Path, help="also write the C there, to read")
    args.add_argument("-o", required=True, type=pathlib.Path)
    args.add_argument("cu", nargs="+", type=pathlib.Path)
    options = args.parse_args(argv[:at])

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            made = list(pool.map(lambda cu: make_ptx(options.nvcc, options.arch, argv[at + 1:], cu, folder),
                                 options.cu))
        source = folder / "kernels.c"
        try:
            source.write_text(ptx2c.translate([ptx for ptx, _ in made]))
        except PtxError as e:
            return f"bodies: {e}"
        if options.keep_c:
            options.keep_c.write_text(source.read_text())
        run([*options.cc, *C_FLAGS, f"-I{HERE}", source, "-o", options.o, f"-L{options.lib}", "-l:libcudart.so.13",
             "-lm"])
    if options.depfile:
        own = [HERE / n for n in ("bodies.py", "ptx2c.py", "ptx_emit.py", "ptx_parse.py", "ptxrt.h", "half.h", "simt.h")]
        options.depfile.write_text(f"{options.o}: " + " \\\n ".join(
            str(p) for p in [*own, *(n for _, names in made for n in names)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
