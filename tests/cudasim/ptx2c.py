#!/usr/bin/env python3
"""ptx2c.py -o kernels.c a.ptx [b.ptx ...]: nvcc's PTX as one C file, a kernel library for the simulator.

One C function per PTX function, one statement per instruction (ptx_emit.py). Compile it with -ffp-contract=off
-fwrapv against ptxrt.h; bodies.py does all of this from .cu files."""
import argparse
import pathlib
import re
import sys

from ptx_emit import Emitter, c_name
from ptx_parse import PtxError, parse, type_bits

SHARED_ALIGN = 16


def uses(function, variable):
    """Whether an instruction of the function names the variable."""
    name = re.compile(rf"(?<![\w$.]){re.escape(variable.name)}(?![\w$.])")
    return any(name.search(operand) for s in function.body for operand in s.operands)


class Source:
    """One PTX file in the library. Names get its number, so that files do not clash."""

    def __init__(self, module, number, locs):
        self.module, self.prefix, self.locs = module, f"m{number}_", locs
        self.functions = {f.name for f in module.functions}
        self.symbols, self.shared_bytes = {}, 0
        for v in module.variables:
            if v.space in ("global", "const"):
                self.symbols[v.name] = (f"(uint64_t)(uintptr_t){self.variable_name(v)}", v.space)
            elif not v.extern and any(uses(f, v) for f in module.functions if not f.is_kernel):
                self.place_shared(self.symbols, v)
        for f in module.functions:  # shared memory of device functions is every kernel's
            if not f.is_kernel:
                for s in f.body:
                    if s.kind == "variable" and s.variable.space == "shared":
                        self.place_shared(self.symbols, s.variable)

    def place_shared(self, symbols, v):
        """Gives a variable of shared memory its offset."""
        align = max(v.align, 1)
        offset = (self.shared_bytes + align - 1) // align * align
        self.shared_bytes = offset + v.bytes
        symbols[v.name] = (f"{offset}u", "shared")

    def variable_name(self, v):
        return f"{self.prefix}v_{c_name(v.name)}"

    def globals(self):
        return [v for v in self.module.variables if v.space in ("global", "const")]

    def variables(self):
        for v in self.globals():
            init = ", ".join(f"{x}" for x in v.init) or "0"
            yield (f"static uint{8 * v.element_bytes}_t {self.variable_name(v)}[{v.count}] "
                   f"__attribute__((aligned({max(v.align, 1)}))) = {{{init}}};")

    def loc_index(self, loc):
        return self.locs.setdefault(loc, len(self.locs)) if loc[1] else 0

    def function_name(self, name):
        return f"{self.prefix}f_{c_name(name)}"

    def heads(self):
        for f in self.module.functions:
            yield f"static void {self.function_name(f.name)}(void **A, uint8_t *R);"

    def function(self, f):
        """C lines of a function, and the bytes of its static shared memory."""
        symbols, saved = dict(self.symbols), self.shared_bytes
        for v in self.module.variables:  # what only kernels use, each kernel has for itself
            if v.space == "shared" and not v.extern and v.name not in symbols and uses(f, v):
                self.place_shared(symbols, v)
        params = {p.name: f"((uint8_t *)A[{i}])" for i, p in enumerate(f.params)}
        if f.result:
            params[f.result.name] = "R"
        for s in f.body:
            if s.kind == "variable" and s.variable.space == "shared" and f.is_kernel:
                self.place_shared(symbols, s.variable)
            elif s.kind == "variable" and s.variable.space == "local":
                symbols[s.variable.name] = (f"(uint64_t)(uintptr_t)l_{c_name(s.variable.name)}", "local")
            elif s.kind == "variable" and s.variable.space == "param":
                params[s.variable.name] = f"p_{c_name(s.variable.name)}"
        shared_bytes = (self.shared_bytes + SHARED_ALIGN - 1) // SHARED_ALIGN * SHARED_ALIGN
        for v in self.module.variables:
            if v.space == "shared" and v.extern and f.is_kernel:
                symbols[v.name] = (f"{shared_bytes}u", "shared")
        self.shared_bytes = saved
        registers = {r for s in f.body if s.kind == "reg" for r in s.regs}
        emitter = Emitter(registers, symbols, params, self.functions, f.is_kernel)
        body = Body(self, emitter, f).lines()
        head = f"static void {self.function_name(f.name)}(void **A, uint8_t *R)"
        return [head, "{", "int cc = 0; (void)A; (void)R; (void)cc;", *body, "}"], shared_bytes


class Body:
    """The statements of one function. At the head of every basic block its instructions are counted."""

    def __init__(self, source, emitter, function):
        self.source, self.emitter, self.function = source, emitter, function
        self.out, self.head, self.count = [], None, 0

    def close_block(self):
        if self.head is not None:
            self.out[self.head] = f"simt_instructions += {self.count};"
        self.head, self.count = None, 0

    def lines(self):
        label = ""
        for s in self.function.body:
            if s.kind == "targets":
                self.emitter.targets[label] = s.operands
            label = s.name if s.kind == "label" else label
        for s in self.function.body:
            getattr(self, "on_" + s.kind)(s)
        self.close_block()
        return self.out

    def on_open(self, _s):
        self.close_block()
        self.out.append("{")

    def on_close(self, _s):
        self.close_block()
        self.out.append("}")

    def on_targets(self, _s):
        pass

    def on_label(self, s):
        self.close_block()
        self.out.append(f"{c_name(s.name)}: __attribute__((unused));")

    def on_reg(self, s):
        c = "int" if s.reg_type == "pred" else f"uint{max(16, type_bits(s.reg_type))}_t"
        self.out.append(f"{c} {', '.join('r_' + c_name(r[1:]) + ' = 0' for r in s.regs)};")

    def on_variable(self, s):
        v = s.variable
        if v.space == "local":
            self.out.append(f"uint8_t l_{c_name(v.name)}[{v.bytes}] __attribute__((aligned({max(v.align, 8)})));")
        elif v.space == "param":
            self.out.append(f"uint8_t p_{c_name(v.name)}[{v.bytes}] __attribute__((aligned({max(v.align, 8)})));")

    def on_instruction(self, s):
        if self.head is None:
            self.head = len(self.out)
            self.out.append("")
        self.count += 1
        self.emitter.loc = self.source.loc_index(s.loc)
        try:
            c = self.emitter.instruction(s.name, list(s.operands))
        except PtxError as e:
            raise PtxError(f"{s.loc[0]}:{s.loc[1]}: {e}") from None
        if s.name.split(".")[0] == "call":
            c = c.replace(" f_", f" {self.source.prefix}f_")
        guard = f"if ({self.emitter.raw(s.predicate)}) " if s.predicate else ""
        self.out.append(f"{guard}{{ {c} }}")
        if s.name.split(".")[0] in ("bra", "brx", "ret", "exit", "bar", "barrier"):
            self.close_block()


def translate(texts):
    """The C of a library with all kernels of these PTX files."""
    locs = {("", 0): 0}
    sources = [Source(parse(text), i, locs) for i, text in enumerate(texts)]
    out = ['#include "ptxrt.h"', ""]
    kernels = []
    for source in sources:
        out += [*source.variables(), *source.heads(), ""]
        for f in source.module.functions:
            lines, shared_bytes = source.function(f)
            out += [*lines, ""]
            if f.is_kernel:
                kernels.append((source, f, shared_bytes))
    for source, f, _ in kernels:
        name = source.function_name(f.name)
        sizes = ", ".join(str(p.bytes) for p in f.params) or "0"
        out += [f"static void {name}_thread(void **A) {{ {name}(A, 0); }}",
                f"static const uint32_t {name}_params[] = {{{sizes}}};"]
    out += ["", "static const struct simt_kernel kernels[] = {"]
    out += [f'    {{"{f.name}", {s.function_name(f.name)}_thread, {len(f.params)}, '
            f"{s.function_name(f.name)}_params, {shared_bytes}}}," for s, f, shared_bytes in kernels]
    out += ["    {0}", "};", "static const struct simt_loc locs[] = {"]
    out += [f'    {{"{name}", {line}}},' for name, line in locs]
    out += ["};", "static const struct simt_variable variables[] = {"]
    variables = [f"    {{{s.variable_name(v)}, {v.bytes}}}," for s in sources for v in s.globals()]
    out += [*variables, "    {0}", "};"]
    out += [f"const struct simt_module cudasim_module = {{SIMT_ABI, {len(kernels)}, {len(locs)}, {len(variables)}, "
            "kernels, locs, variables};", ""]
    return "\n".join(out)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("-o", required=True, type=pathlib.Path)
    args.add_argument("ptx", nargs="+", type=pathlib.Path)
    options = args.parse_args()
    try:
        options.o.write_text(translate([p.read_text() for p in options.ptx]))
    except PtxError as e:
        return f"ptx2c: {e}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
