"""One PTX instruction to one C statement. Registers are unsigned integers of their size, holding bits; ptxrt.h turns
them into floats and back. An instruction that is not known stops with PtxError.

A method `op_NAME` takes the parts of the opcode and the operands and returns C. `self.loc` is the index of the source
line, for accesses and barriers."""
import re

from ptx_parse import PtxError, split_operands, type_bits

DIMENSIONS = {"x": 0, "y": 1, "z": 2}
SPECIAL = {"%laneid": "simt_lane()", "WARP_SZ": "32u", "%lanemask_eq": "(1u << simt_lane())",
           "%lanemask_lt": "((1u << simt_lane()) - 1)", "%lanemask_ge": "~((1u << simt_lane()) - 1)",
           "%lanemask_le": "((2u << simt_lane()) - 1)", "%lanemask_gt": "~((2u << simt_lane()) - 1)"}
SPECIAL.update({f"%{reg}.{d}": f"simt_here.{reg}[{i}]" for reg in ("tid", "ctaid", "ntid", "nctaid")
                for d, i in DIMENSIONS.items()})
DIRECTED = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
ROUND_TO_INTEGER = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
SPACES = ("param", "global", "shared", "local", "const")
FLOAT_FUNCTIONS = {"sqrt": "sqrt", "rcp": "1 /", "rsqrt": "1 / sqrt", "ex2": "exp2", "lg2": "log2", "sin": "sin",
                   "cos": "cos", "tanh": "tanh"}


HALVES = ("f16", "bf16")  # floats of 16 bits: they can be converted, and C computes with them as floats


def c_type(t):
    if is_float(t):
        return "double" if t == "f64" else "float"
    return {"u": "uint%d_t", "s": "int%d_t", "b": "uint%d_t"}[t[0]] % type_bits(t)


def c_name(name):
    return re.sub(r"\W", "_", name)


def is_float(t):
    return t[0] == "f" or t in HALVES


class Emitter:
    """The instructions of one function. `symbols` maps a name to C that is its address (shared memory: its offset)
    and its space; `params` those of the function and of calls to C that is a pointer."""

    def __init__(self, registers, symbols, params, functions, in_kernel):
        self.registers, self.symbols, self.params = registers, symbols, params
        self.functions, self.in_kernel = functions, in_kernel
        self.targets = {}  # label of .branchtargets: labels
        self.loc = 0

    # ---- operands

    def raw(self, operand):
        """C for the bits of a register or a constant."""
        operand = operand.strip()
        if operand in SPECIAL:
            return SPECIAL[operand]
        if operand.startswith("!"):
            return "!" + self.raw(operand[1:])
        if operand in self.registers:
            return "r_" + c_name(operand[1:])
        if re.fullmatch(r"0[fF][0-9A-Fa-f]{8}", operand):
            return f"0x{operand[2:]}u"
        if re.fullmatch(r"0[dD][0-9A-Fa-f]{16}", operand):
            return f"0x{operand[2:]}ull"
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            return f"({number}ll)" if -2 ** 63 < number < 2 ** 63 else f"{number % 2 ** 64}ull"
        if operand in self.symbols:
            return self.symbols[operand][0]
        raise PtxError(f"unknown operand {operand}")

    def value(self, operand, t, ftz=False):
        """C for the operand as a number of this type."""
        if t == "pred":
            return self.raw(operand)
        if is_float(t):
            read = f"as_{t}({self.raw(operand)})"
            return f"ftz({read})" if ftz and t == "f32" else read
        return f"({c_type(t)})({self.raw(operand)})"

    def assign(self, operand, t, expression, ftz=False):
        if operand.strip() == "_":
            return f"(void)({expression});"
        target = self.raw(operand)
        if t == "pred":
            return f"{target} = {expression};"
        if is_float(t):
            return f"{target} = of_{t}({f'ftz({expression})' if ftz and t == 'f32' else expression});"
        return f"{target} = ({c_type(t)})({expression});"

    def address(self, operand):
        """"[%rd1+8]": base operand and offset."""
        match = re.fullmatch(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
        if not match:
            raise PtxError(f"cannot read the address {operand}")
        return match[1], int(match[2] or "0", 0)

    def pointer(self, parts, operand, size, access):
        """C for a pointer to the bytes of an access."""
        space = next((p.split("::")[0] for p in parts if p.split("::")[0] in SPACES), "generic")
        base, offset = self.address(operand)
        if space == "param":
            if base not in self.params:
                raise PtxError(f"unknown parameter {base}")
            return f"({self.params[base]} + {offset})"
        if base in self.symbols and space not in ("shared", self.symbols[base][1]):
            raise PtxError(f"{base} is not in .{space}")
        where = f"{self.raw(base)} + ({offset})"
        if space == "shared":
            return f"simt_shared((uint32_t)({where}), {size}, {self.loc})"
        if space in ("local", "const"):
            return f"(uint8_t *)(uintptr_t)({where})"
        return f"simt_{space}({where}, {size}, {access}, {self.loc})"

    # ---- entry

    def instruction(self, opcode, operands):
        parts = opcode.split(".")
        method = getattr(self, "op_" + parts[0], None)
        if not method:
            raise PtxError(f"unknown instruction {opcode}")
        if parts[0] != "cvt" and any(p.removesuffix("x2") in HALVES for p in parts):
            raise PtxError(f"arithmetic of 16-bit floats: {opcode}")
        try:
            return method(parts, operands)
        except (KeyError, IndexError, StopIteration):
            raise PtxError(f"unknown form {opcode} {', '.join(operands)}") from None

    # ---- control

    def op_bra(self, _parts, a):
        return f"goto {c_name(a[0])};"

    def op_brx(self, _parts, a):
        cases = " ".join(f"case {i}: goto {c_name(t)};" for i, t in enumerate(self.targets[a[1]]))
        return f"switch ((uint32_t){self.raw(a[0])}) {{ {cases} default: simt_trap({self.loc}); }}"

    def op_ret(self, _parts, _a):
        return "return;"

    def op_exit(self, _parts, _a):
        if not self.in_kernel:
            raise PtxError("exit outside of a kernel")
        return "return;"

    def op_trap(self, _parts, _a):
        return f"simt_trap({self.loc});"

    def op_call(self, _parts, a):
        result = a.pop(0).strip("() ") if a[0].startswith("(") else ""
        name, args = a[0], split_operands(a[1].strip("() ")) if len(a) > 1 else []
        if name not in self.functions:
            raise PtxError(f"call of {name}, which has no body here")
        args = "".join(f"{self.params[x]}, " for x in args)
        return f"void *args[] = {{{args}0}}; f_{c_name(name)}(args, {self.params[result] if result else 0});"

    def op_membar(self, _parts, _a):
        return ";"

    op_fence = op_membar

    def op_bar(self, parts, a):
        if parts[1:] == ["warp", "sync"]:
            return f"simt_ballot({self.raw(a[0])}, 1, {self.loc});"
        if parts[-1] not in ("sync", "aligned") or "red" in parts or len(a) != 1:
            raise PtxError(f"unknown form {'.'.join(parts)} {', '.join(a)}")
        return f"simt_barrier({self.loc});"

    op_barrier = op_bar

    # ---- memory and moves

    def op_ld(self, parts, a):
        if len(a) != 2:
            raise PtxError("load with a cache policy")
        t = parts[-1]
        regs = split_operands(a[0].strip("{} ")) if a[0].startswith("{") else [a[0]]
        size = type_bits(t) // 8
        p = self.pointer(parts, a[1], size * len(regs), "SIMT_READ")
        cast = c_type(t) if t[0] in "us" else f"uint{type_bits(t)}_t"
        loads = " ".join(f"{self.raw(r)} = ({cast})load{size * 8}(p + {i * size});"
                         for i, r in enumerate(regs) if r != "_")
        return f"const uint8_t *p = {p}; {loads}"

    op_ldu = op_ld

    def op_st(self, parts, a):
        t = parts[-1]
        regs = split_operands(a[1].strip("{} ")) if a[1].startswith("{") else [a[1]]
        size = type_bits(t) // 8
        p = self.pointer(parts, a[0], size * len(regs), "SIMT_WRITE")
        stores = " ".join(f"store{size * 8}(p + {i * size}, {self.raw(r)});" for i, r in enumerate(regs))
        return f"uint8_t *p = {p}; {stores}"

    def op_mov(self, parts, a):
        t = parts[-1]
        if a[0].startswith("{"):
            regs = split_operands(a[0].strip("{} "))
            bits = type_bits(t) // len(regs)
            return f"uint{type_bits(t)}_t v = {self.raw(a[1])}; " + " ".join(
                f"{self.raw(r)} = (uint{bits}_t)(v >> {i * bits});" for i, r in enumerate(regs) if r != "_")
        if a[1].startswith("{"):
            regs = split_operands(a[1].strip("{} "))
            whole, bits = type_bits(t), type_bits(t) // len(regs)
            return self.assign(a[0], f"b{whole}", " | ".join(
                f"(uint{whole}_t)(uint{bits}_t){self.raw(r)} << {i * bits}" for i, r in enumerate(regs)))
        return f"{self.raw(a[0])} = {self.raw(a[1]) if t == 'pred' else f'(uint{type_bits(t)}_t)({self.raw(a[1])})'};"

    def op_cvta(self, parts, a):
        value = self.raw(a[1])
        if "shared" in parts:
            value = (f"(uint32_t)({value} - (uintptr_t)simt_shared_base)" if "to" in parts
                     else f"(uintptr_t)simt_shared_base + (uint32_t)({value})")
        return f"{self.raw(a[0])} = {value};"

    def op_atom(self, parts, a, result=True):
        t = parts[-1]
        name = next(p for p in parts if p in ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"))
        size, c = type_bits(t) // 8, c_type(t)
        target, address, args = (a[0], a[1], a[2:]) if result else ("_", a[0], a[1:])
        values = [self.value(x, t) for x in args]
        new = {"add": "old + v", "min": "old < v ? old : v", "max": "old > v ? old : v", "exch": "v", "and": "old & v",
               "or": "old | v", "xor": "old ^ v", "inc": "old >= v ? 0 : old + 1",
               "dec": "old == 0 || old > v ? v : old - 1", "cas": f"old == v ? {values[-1]} : old"}[name]
        pointer = self.pointer(parts, address, size, "SIMT_ATOMIC")
        keep = "" if target.strip() == "_" else self.assign(target, t, "old")
        return (f"void *p = {pointer}; {c} old, v = {values[0]}, next; memcpy(&old, p, {size}); next = ({c})({new}); "
                f"memcpy(p, &next, {size}); {keep}")

    def op_red(self, parts, a):
        return self.op_atom(parts, a, result=False)

    # ---- arithmetic

    def arithmetic(self, parts, a):
        """add, sub, mul, div and fma of floats, with their rounding."""
        name, t, ftz = parts[0], parts[-1], "ftz" in parts
        values = [self.value(x, t, ftz) for x in a[1:]]
        mode = next((DIRECTED[p] for p in parts[1:-1] if p in DIRECTED), None)
        if mode:
            expression = f"{name}_{t}_rounded({mode}, {', '.join(values)})"
        elif name == "fma":
            expression = f"{'fmaf' if t == 'f32' else 'fma'}({', '.join(values)})"
        else:
            expression = f"{values[0]} {INFIX.get(name, '/')} {values[1]}"
        if "sat" in parts:
            expression = f"saturate({expression})"
        return self.assign(a[0], t, expression, ftz)

    op_fma = arithmetic

    def op_add(self, parts, a):
        if is_float(parts[-1]):
            return self.arithmetic(parts, a)
        if "cc" in parts or parts[0] in ("addc", "subc"):
            return self.carry(parts, a)
        if "sat" in parts:
            raise PtxError("saturating integer arithmetic")
        t = parts[-1]
        return self.assign(a[0], t, f"{self.value(a[1], t)} {INFIX[parts[0]]} {self.value(a[2], t)}")

    op_sub = op_addc = op_subc = op_add

    def carry(self, parts, a):
        """With the carry bit, `cc`: a borrow counts as carry in subtractions."""
        t, bits = parts[-1], type_bits(parts[-1])
        sign = "+" if parts[0].startswith("add") else "-"
        old = f" {sign} cc" if parts[0].endswith("c") else ""
        keep = f" cc = (int)(w >> {bits}) & 1;" if "cc" in parts else ""
        x, y = (f"(uint{bits}_t)({self.raw(o)})" for o in a[1:3])
        return f"unsigned __int128 w = (unsigned __int128){x} {sign} {y}{old}; {self.assign(a[0], t, 'w')}{keep}"

    def product(self, parts, a, t):
        """lo, hi or wide; the type of the result and C."""
        bits = type_bits(t)
        x, y = self.value(a[1], t), self.value(a[2], t)
        if "wide" in parts:
            wide = f"{t[0]}{2 * bits}"
            return wide, f"({c_type(wide)}){x} * ({c_type(wide)}){y}"
        if "hi" in parts:
            return t, f"(((__int128){x} * (__int128){y}) >> {bits})" if bits < 64 or t[0] == "s" else \
                f"(((unsigned __int128){x} * {y}) >> 64)"
        if "lo" not in parts and t[0] in "usb":
            raise PtxError(f"unknown form {'.'.join(parts)}")
        return t, f"{x} * {y}"

    def op_mul(self, parts, a):
        if is_float(parts[-1]):
            return self.arithmetic(parts, a)
        t, expression = self.product(parts, a, parts[-1])
        return self.assign(a[0], t, expression)

    def op_mad(self, parts, a):
        if is_float(parts[-1]):
            return self.arithmetic(["fma"] + parts[1:], a)
        t, expression = self.product(parts, a, parts[-1])
        if "cc" in parts or parts[0] == "madc":
            bits = type_bits(t)
            old = " + cc" if parts[0] == "madc" else ""
            keep = f" cc = (int)(w >> {bits}) & 1;" if "cc" in parts else ""
            return (f"unsigned __int128 w = (unsigned __int128)({c_type(t)})({expression}) + "
                    f"{self.value(a[3], t)}{old}; "
                    f"{self.assign(a[0], t, 'w')}{keep}")
        return self.assign(a[0], t, f"{expression} + {self.value(a[3], t)}")

    op_madc = op_mad

    def op_div(self, parts, a):
        t = parts[-1]
        if is_float(t):
            return self.arithmetic(parts, a)
        return self.assign(a[0], t, f"{parts[0]}_{t[0]}({self.value(a[1], t)}, {self.value(a[2], t)})")

    op_rem = op_div

    def op_neg(self, parts, a):
        t = parts[-1]
        return self.assign(a[0], t, f"-{self.value(a[1], t, 'ftz' in parts)}", "ftz" in parts)

    def op_abs(self, parts, a):
        t, ftz = parts[-1], "ftz" in parts
        value = self.value(a[1], t, ftz)
        return self.assign(a[0], t, f"fabs({value})" if is_float(t) else f"{value} < 0 ? -{value} : {value}", ftz)

    def op_min(self, parts, a):
        t, ftz = parts[-1], "ftz" in parts
        x, y = self.value(a[1], t, ftz), self.value(a[2], t, ftz)
        if is_float(t):
            return self.assign(a[0], t, f"{parts[0]}_{t}({x}, {y}, {int('NaN' in parts)})", ftz)
        return self.assign(a[0], t, f"{x} {'<' if parts[0] == 'min' else '>'} {y} ? {x} : {y}")

    op_max = op_min

    def function(self, parts, a):
        """Functions of one float. Approximations are computed as exactly as the C library does it."""
        name, t, ftz = parts[0], parts[-1], "ftz" in parts
        if any(p in DIRECTED for p in parts):
            raise PtxError(f"unknown form {'.'.join(parts)}")
        if t == "f64" and "approx" in parts:
            return self.assign(a[0], t, f"{name}_approx_f64({self.value(a[1], t)})")
        call = FLOAT_FUNCTIONS[name]
        if t == "f32" and call[-1].isalnum():
            call += "f"
        return self.assign(a[0], t, f"{call}({self.value(a[1], t, ftz)})", ftz)

    op_sqrt = op_rcp = op_rsqrt = op_ex2 = op_lg2 = op_sin = op_cos = op_tanh = function

    def op_copysign(self, parts, a):
        t = parts[-1]
        return self.assign(a[0], t, f"copysign({self.value(a[2], t)}, {self.value(a[1], t)})")

    def op_testp(self, parts, a):
        test = {"finite": "isfinite", "infinite": "isinf", "number": "!isnan", "notanumber": "isnan",
                "normal": "isnormal"}[parts[1]]
        return self.assign(a[0], "pred", f"{test}({self.value(a[1], parts[-1])})")

    # ---- conversions

    def halves(self, parts, a):
        """cvt from and to floats of 16 bits; to a pair of them, the first operand goes to the upper half."""
        to, source, t = parts[-2], parts[-1], parts[-2].removesuffix("x2")
        if parts == ["cvt", "f32", source]:
            return self.assign(a[0], "f32", self.value(a[1], source))
        if parts != ["cvt", "rn", to, "f32"] or len(a) != (2 if to == t else 3):
            raise PtxError(f"unknown form {'.'.join(parts)} {', '.join(a)}")
        rounded = [f"of_{t}({self.value(x, 'f32')})" for x in a[1:]]
        return self.assign(a[0], "b16" if to == t else "b32", " << 16 | ".join(f"(uint32_t){r}" for r in rounded))

    def op_cvt(self, parts, a):
        if any(p.removesuffix("x2") in HALVES for p in parts):
            return self.halves(parts, a)
        if len(a) != 2:
            raise PtxError("cvt of a pair")
        to, source, ftz = parts[-2], parts[-1], "ftz" in parts
        value = self.value(a[1], source, ftz)
        integral = next((ROUND_TO_INTEGER[p] for p in parts if p in ROUND_TO_INTEGER), None)
        mode = next((DIRECTED[p] for p in parts if p in DIRECTED), None)
        if is_float(source) and not is_float(to):
            nan = int(source == "f64" or to[1:] == "64")
            return self.assign(a[0], to, f"to_{to[0]}({integral or 'trunc'}({value}), {type_bits(to)}, {nan})")
        if not is_float(to):
            if "sat" in parts:
                raise PtxError("saturating conversion of integers")
            return self.assign(a[0], to, value)
        if integral:
            value = f"{integral}({value})"
        if mode and to == "f32":
            value = f"f32_from_{'f64' if is_float(source) else source[0]}_rounded({mode}, {value})"
        elif mode:
            raise PtxError(f"unknown form {'.'.join(parts)}")
        if "sat" in parts:
            value = f"saturate({value})"
        return self.assign(a[0], to, f"({c_type(to)})({value})", ftz)

    # ---- predicates

    def compare(self, name, t, x, y):
        if not is_float(t):
            return f"{x} {COMPARE[name]} {y}"
        if name in ("num", "nan"):
            return f"{'!' if name == 'num' else ''}isunordered({x}, {y})"
        if name == "ne":
            return f"islessgreater({x}, {y})"
        if name == "equ":
            return f"!islessgreater({x}, {y})"
        if name == "neu":
            return f"{x} != {y}"
        if name.endswith("u"):  # true also when one is NaN: not the opposite
            return f"!({x} {COMPARE[{'lt': 'ge', 'le': 'gt', 'gt': 'le', 'ge': 'lt'}[name[:-1]]]} {y})"
        return f"{x} {COMPARE[name]} {y}"

    def op_setp(self, parts, a):
        t, ftz = parts[-1], "ftz" in parts
        result = self.compare(parts[1], t, self.value(a[1], t, ftz), self.value(a[2], t, ftz))
        targets = [x.strip() for x in a[0].split("|")]
        second = f"!({result})"
        if parts[2] in ("and", "or", "xor"):
            with_third = {"and": "({}) && {}", "or": "({}) || {}", "xor": "({}) ^ {}"}[parts[2]]
            third = self.raw(a[3])
            result, second = with_third.format(result, third), with_third.format(second, third)
        both = f" int w = {second}; {self.raw(targets[1])} = w;" if len(targets) > 1 else ""
        return f"int v = {result};{both} {self.assign(targets[0], 'pred', 'v')}"

    def op_selp(self, _parts, a):
        return f"{self.raw(a[0])} = {self.raw(a[3])} ? {self.raw(a[1])} : {self.raw(a[2])};"

    # ---- bits

    def op_and(self, parts, a):
        t = parts[-1]
        if t == "pred":
            return f"{self.raw(a[0])} = ({self.raw(a[1])}) {INFIX[parts[0]]} ({self.raw(a[2])});"
        return self.assign(a[0], t, f"{self.value(a[1], t)} {INFIX[parts[0]]} {self.value(a[2], t)}")

    op_or = op_xor = op_and

    def op_not(self, parts, a):
        t = parts[-1]
        return self.assign(a[0], t, f"{'!' if t == 'pred' else '~'}{self.value(a[1], t)}")

    def op_shl(self, parts, a):
        t, bits = parts[-1], type_bits(parts[-1])
        value, by = self.value(a[1], t), f"(uint32_t)({self.raw(a[2])})"
        beyond = f"{value} >> {bits - 1}" if parts[0] == "shr" and t[0] == "s" else "0"
        return self.assign(a[0], t, f"{by} >= {bits} ? {beyond} : {value} {'<<' if parts[0] == 'shl' else '>>'} {by}")

    op_shr = op_shl

    def op_shf(self, parts, a):
        return self.assign(a[0], "b32", f"shf_{parts[1]}_{parts[2]}({', '.join(self.raw(x) for x in a[1:4])})")

    def op_lop3(self, parts, a):
        if parts[-1] != "b32" or len(parts) != 2:
            raise PtxError(f"unknown form {'.'.join(parts)}")
        return self.assign(a[0], "b32", f"lop3({', '.join(self.raw(x) for x in a[1:5])})")

    def op_prmt(self, parts, a):
        if len(parts) != 2:
            raise PtxError(f"unknown form {'.'.join(parts)}")
        return self.assign(a[0], "b32", f"prmt({', '.join(self.raw(x) for x in a[1:4])})")

    def op_bfe(self, parts, a):
        t = parts[-1]
        return self.assign(a[0], t, f"bfe_{t[0]}({self.value(a[1], t)}, {self.raw(a[2])}, {self.raw(a[3])}, "
                                    f"{type_bits(t)})")

    def op_bfi(self, parts, a):
        return self.assign(a[0], parts[-1], f"bfi({', '.join(self.raw(x) for x in a[1:5])}, {type_bits(parts[-1])})")

    def op_bfind(self, parts, a):
        if parts[-1][0] != "u":
            raise PtxError(f"unknown form {'.'.join(parts)}")
        return self.assign(a[0], "u32", f"bfind({self.value(a[1], parts[-1])}, {type_bits(parts[-1])}, "
                                        f"{int('shiftamt' in parts)})")

    def op_brev(self, parts, a):
        return self.assign(a[0], parts[-1], f"brev({self.raw(a[1])}, {type_bits(parts[-1])})")

    def op_clz(self, parts, a):
        return self.assign(a[0], "u32", f"clz({self.value(a[1], parts[-1])}, {type_bits(parts[-1])})")

    def op_popc(self, parts, a):
        return self.assign(a[0], "u32", f"__builtin_popcountll({self.value(a[1], parts[-1])})")

    # ---- warps

    def op_shfl(self, parts, a):
        targets = [x.strip() for x in a[0].split("|")]
        found = f" {self.raw(targets[1])} = found;" if len(targets) > 1 and targets[1] != "_" else ""
        args = ", ".join(self.raw(x) for x in (a[4], a[1], a[2], a[3]))
        return f"int found; {self.assign(targets[0], 'b32', f'shfl_{parts[2]}({args}, &found, {self.loc})')}{found}"

    def op_vote(self, parts, a):
        mask, predicate = self.raw(a[2]), self.raw(a[1])
        if parts[2] == "ballot":
            return self.assign(a[0], "b32", f"simt_ballot({mask}, {predicate}, {self.loc})")
        if parts[2] == "any":
            return self.assign(a[0], "pred", f"simt_ballot({mask}, {predicate}, {self.loc}) != 0")
        if parts[2] == "all":
            return self.assign(a[0], "pred", f"simt_ballot({mask}, !({predicate}), {self.loc}) == 0")
        raise PtxError(f"unknown form {'.'.join(parts)}")
