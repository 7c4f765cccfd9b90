#!/usr/bin/env python3
"""test_ptx2c.py -- CC...: unit tests of the translator. Every form of instruction that nvcc makes of kernels like ours
is translated, compiled and run on numbers whose result is known. Needs no CUDA. Prints TAP."""
import ctypes
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True

import ptx2c  # noqa: E402
from ptx_parse import PtxError, parse, parse_variable, split_operands  # noqa: E402

CC = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else ["cc"]

# Instead of the simulator: one thread, lane 3 of a full warp; memory is plain.
STUB = r"""
#include <stdint.h>
#include "simt.h"
static uint8_t shared[1024];
struct simt_place simt_here = {{5, 6, 7}, {1, 2, 3}, {32, 4, 2}, {9, 8, 7}};
uint64_t simt_instructions;
uint8_t *const simt_shared_base = shared;
void *simt_global(uint64_t a, uint32_t n, enum simt_access w, uint32_t l) { return (void *)(uintptr_t)a; }
void *simt_generic(uint64_t a, uint32_t n, enum simt_access w, uint32_t l) { return (void *)(uintptr_t)a; }
void *simt_shared(uint32_t o, uint32_t n, uint32_t l) { return shared + o; }
void simt_barrier(uint32_t l) {}
uint32_t simt_lane(void) { return 3; }
uint64_t simt_exchange(uint32_t m, uint64_t v, uint32_t from, uint32_t l) { return v + 1000 * from; }
uint32_t simt_ballot(uint32_t m, int p, uint32_t l) { return p ? m : 0; }
void simt_trap(uint32_t l) { __builtin_trap(); }
"""


def f32(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f64(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def s32(x):
    return x & 0xffffffff


def s64(x):
    return x & 0xffffffffffffffff


NAN, INF, BIG = float("nan"), float("inf"), 0x123456789abcdef0
A, B = 0xdeadbeef, 0x12345678

# Instruction, inputs, result. Inputs come as %r1.. (their low 32 bits), %rd1.., %f1.., %fd1.., %rs1.., and %p1..
# (not 0); the result is the register number 0 of any kind.
FORMS = [
    # integers
    ("add.s32 %r0, %r1, %r2;", [A, B], s32(A + B)),
    ("add.s32 %r0, %r1, -7;", [3], s32(-4)),
    ("add.s64 %rd0, %rd1, %rd2;", [2 ** 63, 2 ** 63 + 5], 5),
    ("add.u64 %rd0, %rd1, 12;", [8], 20),
    ("add.s16 %rs0, %rs1, %rs2;", [0xffff, 2], 1),
    ("sub.s32 %r0, %r1, %r2;", [3, 5], s32(-2)),
    ("sub.s64 %rd0, %rd1, %rd2;", [3, 5], s64(-2)),
    ("mul.lo.s32 %r0, %r1, %r2;", [A, B], s32(A * B)),
    ("mul.lo.u32 %r0, %r1, 3;", [A], s32(A * 3)),
    ("mul.lo.s64 %rd0, %rd1, %rd2;", [BIG, BIG], s64(BIG * BIG)),
    ("mul.wide.u32 %rd0, %r1, %r2;", [A, B], A * B),
    ("mul.wide.s32 %rd0, %r1, 4;", [s32(-3)], s64(-12)),
    ("mul.wide.u16 %r0, %rs1, %rs2;", [0xfffe, 0xfffd], 0xfffe * 0xfffd),
    ("mul.hi.u32 %r0, %r1, %r2;", [A, B], (A * B) >> 32),
    ("mul.hi.s32 %r0, %r1, %r2;", [s32(-3), 5], s32(-1)),
    ("mul.hi.u64 %rd0, %rd1, %rd2;", [BIG, 2 ** 63 + 9], (BIG * (2 ** 63 + 9)) >> 64),
    ("mul.hi.s64 %rd0, %rd1, %rd2;", [s64(-3), 5], s64(-1)),
    ("mad.lo.s32 %r0, %r1, %r2, %r3;", [7, 9, s32(-1)], 62),
    ("mad.wide.u32 %rd0, %r1, %r2, %rd3;", [A, B, 11], A * B + 11),
    ("mad.hi.u32 %r0, %r1, %r2, %r3;", [A, B, 5], ((A * B) >> 32) + 5),
    ("div.u32 %r0, %r1, %r2;", [A, 7], A // 7),
    ("div.s32 %r0, %r1, %r2;", [s32(-7), 2], s32(-3)),
    ("div.s32 %r0, %r1, %r2;", [0x80000000, s32(-1)], 0x80000000),
    ("div.s64 %rd0, %rd1, %rd2;", [s64(-70), 9], s64(-7)),
    ("rem.u32 %r0, %r1, %r2;", [A, 7], A % 7),
    ("rem.s32 %r0, %r1, %r2;", [s32(-7), 2], s32(-1)),
    ("rem.u64 %rd0, %rd1, %rd2;", [BIG, 1000], BIG % 1000),
    ("neg.s32 %r0, %r1;", [5], s32(-5)),
    ("abs.s32 %r0, %r1;", [s32(-5)], 5),
    ("min.s32 %r0, %r1, %r2;", [s32(-5), 3], s32(-5)),
    ("min.u32 %r0, %r1, %r2;", [s32(-5), 3], 3),
    ("max.s64 %rd0, %rd1, %rd2;", [s64(-5), 3], 3),
    ("max.u32 %r0, %r1, 9;", [3], 9),
    ("add.cc.u32 %r5, %r1, %r2; addc.u32 %r0, %r3, %r4;", [0xffffffff, 1, 5, 6], 12),
    ("add.cc.u32 %r5, %r1, %r2; addc.cc.u32 %r6, %r3, %r4; addc.u32 %r0, 0, 0;", [1 << 31, 1 << 31, 0xffffffff, 0], 1),
    ("sub.cc.u32 %r5, %r1, %r2; subc.u32 %r0, %r3, %r4;", [1, 2, 9, 4], 4),
    ("mad.lo.cc.u32 %r5, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;", [A, B, 0xffffffff],
     (A * B + 0xffffffff) >> 32),
    ("mad.lo.cc.u32 %r5, %r1, %r2, %r3; madc.lo.cc.u32 %r0, %r1, %r1, 1;", [A, B, 0], s32(A * A + 1)),
    # bits
    ("and.b32 %r0, %r1, %r2;", [A, B], A & B),
    ("or.b32 %r0, %r1, %r2;", [A, B], A | B),
    ("xor.b32 %r0, %r1, -1;", [A], A ^ 0xffffffff),
    ("and.b64 %rd0, %rd1, -2147483648;", [BIG], BIG & s64(-2147483648)),
    ("or.b16 %rs0, %rs1, 3;", [8], 11),
    ("not.b32 %r0, %r1;", [A], A ^ 0xffffffff),
    ("shl.b32 %r0, %r1, 3;", [A], s32(A << 3)),
    ("shl.b32 %r0, %r1, %r2;", [A, 32], 0),
    ("shr.u32 %r0, %r1, %r2;", [A, 5], A >> 5),
    ("shr.s32 %r0, %r1, %r2;", [A, 31], 0xffffffff),
    ("shr.s32 %r0, %r1, %r2;", [A, 77], 0xffffffff),
    ("shr.u64 %rd0, %rd1, 32;", [BIG], BIG >> 32),
    ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", [A, B, 8 + 32], s32(B << 8) | A >> 24),
    ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", [A, B, 8], A >> 8 | s32(B << 24)),
    ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", [A, B, 40], B),
    ("popc.b32 %r0, %r1;", [A], bin(A).count("1")),
    ("popc.b64 %r0, %rd1;", [BIG], bin(BIG).count("1")),
    ("clz.b32 %r0, %r1;", [0x00ff], 24),
    ("clz.b32 %r0, %r1;", [0], 32),
    ("clz.b64 %r0, %rd1;", [1], 63),
    ("brev.b32 %r0, %r1;", [1], 0x80000000),
    ("bfind.u32 %r0, %r1;", [0x100], 8),
    ("bfind.shiftamt.u32 %r0, %r1;", [0x100], 23),
    ("bfe.u32 %r0, %r1, 4, 8;", [A], A >> 4 & 255),
    ("bfe.s32 %r0, %r1, 0, 16;", [A], s32(0xbeef - 0x10000)),
    ("bfi.b32 %r0, %r1, %r2, 8, 4;", [0xf, B], B & ~0xf00 | 0xf00),
    ("bfi.b64 %rd0, %rd1, %rd2, 52, 11;", [1023, 0], 1023 << 52),
    ("prmt.b32 %r0, %r1, %r2, 0x5410;", [A, B], A & 0xffff | s32(B << 16)),
    ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", [A, B, 7], A ^ B ^ 7),
    ("lop3.b32 %r0, %r1, %r2, %r3, 0xe2;", [A, B, 0xff00], (0xff00 & ~B | A & B) & 0xffffffff),
    # floats
    ("add.f32 %f0, %f1, %f2;", [f32(1.5), f32(2.25)], f32(3.75)),
    ("add.rn.f32 %f0, %f1, 0f3F800000;", [f32(1.5)], f32(2.5)),
    ("add.rz.f32 %f0, %f1, %f2;", [f32(1.0), f32(0.9 * 2 ** -23)], f32(1.0)),
    ("add.rp.f32 %f0, %f1, %f2;", [f32(1.0), f32(2 ** -40)], 0x3f800001),
    ("add.rm.f32 %f0, %f1, %f2;", [f32(-1.0), f32(-2 ** -40)], 0xbf800001),
    ("add.ftz.f32 %f0, %f1, %f2;", [1, 1], 0),
    ("add.f32 %f0, %f1, %f2;", [1, 1], 2),
    ("sub.f32 %f0, %f1, %f2;", [f32(1.5), f32(2.25)], f32(-0.75)),
    ("mul.f32 %f0, %f1, %f2;", [f32(1.5), f32(-2)], f32(-3)),
    ("mul.rn.f32 %f0, %f1, %f2;", [f32(1.5), f32(-2)], f32(-3)),
    ("div.rn.f32 %f0, %f1, %f2;", [f32(1), f32(3)], f32(1 / 3)),
    ("div.approx.f32 %f0, %f1, %f2;", [f32(1), f32(4)], f32(0.25)),
    ("div.full.f32 %f0, %f1, %f2;", [f32(1), f32(4)], f32(0.25)),
    ("fma.rn.f32 %f0, %f1, %f2, %f3;", [0x3f800001, 0x3f800001, f32(-1)], f32((1 + 2 ** -23) ** 2 - 1)),
    ("fma.rm.f32 %f0, %f1, %f2, %f3;", [f32(1), f32(1), f32(-2 ** -40)], 0x3f7fffff),
    ("fma.rz.f32 %f0, %f1, %f2, %f3;", [f32(1), f32(1), f32(-2 ** -40)], 0x3f7fffff),
    ("mul.f32 %f5, %f1, %f2; add.f32 %f0, %f5, %f3;", [0x3f800001, 0x3f800001, f32(-1)], 0x34800000),
    ("neg.f32 %f0, %f1;", [f32(0.0)], f32(-0.0)),
    ("abs.f32 %f0, %f1;", [f32(-3.0)], f32(3.0)),
    ("min.f32 %f0, %f1, %f2;", [f32(0.0), f32(-0.0)], f32(-0.0)),
    ("max.f32 %f0, %f1, %f2;", [f32(NAN), f32(2.0)], f32(2.0)),
    ("max.NaN.f32 %f5, %f1, %f2; setp.nan.f32 %p0, %f5, %f5;", [f32(NAN), f32(2.0)], 1),
    ("sqrt.rn.f32 %f0, %f1;", [f32(2)], f32(math.sqrt(2))),
    ("sqrt.approx.f32 %f0, %f1;", [f32(4)], f32(2)),
    ("rsqrt.approx.f32 %f0, %f1;", [f32(4)], f32(0.5)),
    ("rcp.rn.f32 %f0, %f1;", [f32(4)], f32(0.25)),
    ("rcp.approx.ftz.f32 %f0, %f1;", [f32(4)], f32(0.25)),
    ("ex2.approx.ftz.f32 %f0, %f1;", [f32(-3)], f32(0.125)),
    ("ex2.approx.ftz.f32 %f0, %f1;", [f32(-140)], 0),
    ("ex2.approx.f32 %f0, %f1;", [f32(-140)], 1 << 9),
    ("lg2.approx.f32 %f0, %f1;", [f32(8)], f32(3)),
    ("sin.approx.f32 %f0, %f1;", [f32(0)], f32(0)),
    ("cos.approx.f32 %f0, %f1;", [f32(0)], f32(1)),
    ("tanh.approx.f32 %f0, %f1;", [f32(0)], f32(0)),
    ("copysign.f32 %f0, %f1, %f2;", [f32(-1), f32(7)], f32(-7)),
    ("testp.infinite.f32 %p0, %f1;", [f32(INF)], 1),
    ("testp.finite.f64 %p0, %fd1;", [f64(NAN)], 0),
    # doubles
    ("add.f64 %fd0, %fd1, %fd2;", [f64(1.5), f64(2.25)], f64(3.75)),
    ("add.rz.f64 %fd0, %fd1, %fd2;", [f64(1.0), f64(2.0 ** -53 * 1.5)], f64(1.0)),
    ("sub.f64 %fd0, %fd1, 0d3FF0000000000000;", [f64(1.5)], f64(0.5)),
    ("mul.f64 %fd0, %fd1, %fd2;", [f64(1.5), f64(-2)], f64(-3)),
    ("div.rn.f64 %fd0, %fd1, %fd2;", [f64(1), f64(3)], f64(1 / 3)),
    ("fma.rn.f64 %fd0, %fd1, %fd2, %fd3;", [f64(1 + 2.0 ** -52)] * 2 + [f64(-1)], f64(2.0 ** -51 + 2.0 ** -104)),
    ("sqrt.rn.f64 %fd0, %fd1;", [f64(2)], f64(math.sqrt(2))),
    ("rcp.approx.ftz.f64 %fd0, %fd1;", [f64(4)], f64(0.25)),
    ("neg.f64 %fd0, %fd1;", [f64(1)], f64(-1)),
    ("abs.f64 %fd0, %fd1;", [f64(-1)], f64(1)),
    ("max.f64 %fd0, %fd1, %fd2;", [f64(-1), f64(3)], f64(3)),
    ("copysign.f64 %fd0, %fd1, %fd2;", [f64(-1), f64(7)], f64(-7)),
    # conversions
    ("cvt.u64.u32 %rd0, %r1;", [A], A),
    ("cvt.s64.s32 %rd0, %r1;", [A], s64(A - 2 ** 32)),
    ("cvt.u32.u64 %r0, %rd1;", [BIG], s32(BIG)),
    ("cvt.u32.u16 %r0, %rs1;", [0xfedc], 0xfedc),
    ("cvt.s32.s16 %r0, %rs1;", [0xfedc], s32(0xfedc - 65536)),
    ("cvt.s32.s8 %r0, %r1;", [0x1fe], s32(-2)),
    ("cvt.u16.u32 %rs0, %r1;", [A], A & 0xffff),
    ("cvt.rn.f32.s32 %f0, %r1;", [s32(-16777217)], f32(-16777216)),
    ("cvt.rn.f32.u32 %f0, %r1;", [0xffffffff], f32(2 ** 32)),
    ("cvt.rn.f32.s64 %f0, %rd1;", [s64(-5)], f32(-5)),
    ("cvt.rz.f32.s64 %f0, %rd1;", [2 ** 24 + 1], f32(2 ** 24)),
    ("cvt.rp.f32.u32 %f0, %r1;", [2 ** 24 + 1], f32(2 ** 24 + 2)),
    ("cvt.rn.f32.s16 %f0, %rs1;", [0xffff], f32(-1)),
    ("cvt.rn.f64.s32 %fd0, %r1;", [s32(-7)], f64(-7)),
    ("cvt.rn.f64.u64 %fd0, %rd1;", [2 ** 64 - 1], f64(2.0 ** 64)),
    ("cvt.f64.f32 %fd0, %f1;", [f32(1.1)], f64(struct.unpack("<f", struct.pack("<f", 1.1))[0])),
    ("cvt.rn.f32.f64 %f0, %fd1;", [f64(1.1)], f32(1.1)),
    ("cvt.rz.f32.f64 %f0, %fd1;", [f64(1 + 1.9 * 2 ** -23)], 0x3f800001),
    ("cvt.rzi.s32.f32 %r0, %f1;", [f32(-2.7)], s32(-2)),
    ("cvt.rzi.s32.f32 %r0, %f1;", [f32(1e20)], 0x7fffffff),
    ("cvt.rzi.s32.f32 %r0, %f1;", [f32(-1e20)], 0x80000000),
    ("cvt.rzi.s32.f32 %r0, %f1;", [f32(NAN)], 0),
    ("cvt.rzi.u32.f32 %r0, %f1;", [f32(-3)], 0),
    ("cvt.rzi.u32.f32 %r0, %f1;", [f32(5e9)], 0xffffffff),
    ("cvt.rni.s32.f32 %r0, %f1;", [f32(2.5)], 2),
    ("cvt.rmi.s32.f32 %r0, %f1;", [f32(-2.5)], s32(-3)),
    ("cvt.rpi.u32.f32 %r0, %f1;", [f32(2.1)], 3),
    ("cvt.rzi.s64.f32 %rd0, %f1;", [f32(-2 ** 40)], s64(-2 ** 40)),
    ("cvt.rzi.s64.f64 %rd0, %fd1;", [f64(NAN)], 1 << 63),
    ("cvt.rni.u64.f64 %rd0, %fd1;", [f64(2.0 ** 70)], 2 ** 64 - 1),
    ("cvt.rni.f32.f32 %f0, %f1;", [f32(2.5)], f32(2)),
    ("cvt.rzi.f32.f32 %f0, %f1;", [f32(-2.5)], f32(-2)),
    ("cvt.rmi.f32.f32 %f0, %f1;", [f32(-2.5)], f32(-3)),
    ("cvt.rpi.f64.f64 %fd0, %fd1;", [f64(2.5)], f64(3)),
    ("cvt.sat.f32.f32 %f0, %f1;", [f32(2.5)], f32(1)),
    ("cvt.sat.f32.f32 %f0, %f1;", [f32(NAN)], f32(0)),
    # conversions of 16-bit floats: ties to even, subnormals, overflow, NaN
    ("cvt.rn.bf16.f32 %rs0, %f1;", [f32(1 + 2 ** -8)], 0x3f80),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [f32(1 + 3 * 2 ** -8)], 0x3f82),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [f32(1 + 2 ** -8) + 1], 0x3f81),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [f32(-3.3e38)], 0xff78),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [0x7f7fffff], 0x7f80),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [0x80018000], 0x8002),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [f32(-INF)], 0xff80),
    ("cvt.rn.bf16.f32 %rs0, %f1;", [0xffffffff], 0x7fff),
    ("cvt.rn.bf16x2.f32 %r0, %f1, %f2;", [f32(1), f32(-2)], 0x3f80c000),
    ("cvt.f32.bf16 %f0, %rs1;", [0x8001], 0x80010000),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(1 + 2 ** -11)], 0x3c00),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(1 + 3 * 2 ** -11)], 0x3c02),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(-65519)], 0xfbff),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(65520)], 0x7c00),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(-1e30)], 0xfc00),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(2 ** -14 - 2 ** -26)], 0x0400),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(2 ** -24 * 1.5)], 2),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(-2 ** -25)], 0x8000),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(2 ** -25) + 1], 1),
    ("cvt.rn.f16.f32 %rs0, %f1;", [1], 0),
    ("cvt.rn.f16.f32 %rs0, %f1;", [f32(NAN)], 0x7fff),
    ("cvt.rn.f16x2.f32 %r0, %f1, %f2;", [f32(1), f32(-2)], 0x3c00c000),
    ("cvt.f32.f16 %f0, %rs1;", [0xc000], f32(-2)),
    ("cvt.f32.f16 %f0, %rs1;", [0x8001], f32(-2 ** -24)),
    ("cvt.f32.f16 %f0, %rs1;", [0x03ff], f32(1023 * 2 ** -24)),
    ("cvt.f32.f16 %f0, %rs1;", [0x0400], f32(2 ** -14)),
    ("cvt.f32.f16 %f0, %rs1;", [0xfc00], f32(-INF)),
    ("cvt.f32.f16 %f5, %rs1; setp.nan.f32 %p0, %f5, %f5;", [0x7c01], 1),
    # moves
    ("mov.u32 %r0, %tid.x;", [], 5),
    ("mov.u32 %r0, %ctaid.y;", [], 2),
    ("mov.u32 %r0, %ntid.z;", [], 2),
    ("mov.u32 %r0, %nctaid.x;", [], 9),
    ("mov.u32 %r0, %laneid;", [], 3),
    ("mov.u32 %r0, %lanemask_lt;", [], 7),
    ("mov.f32 %f0, 0fBF800000;", [], f32(-1)),
    ("mov.f64 %fd0, 0d4000000000000000;", [], f64(2)),
    ("mov.b32 %r0, %f1;", [f32(3)], f32(3)),
    ("mov.b64 %rd0, {%r1, %r2};", [A, B], B << 32 | A),
    ("mov.b64 {%r5, %r0}, %rd1;", [BIG], BIG >> 32),
    ("mov.b32 {%rs0, %rs5}, %r1;", [A], A & 0xffff),
    ("mov.b64 {%r0, _}, %rd1;", [BIG], s32(BIG)),
    ("mov.pred %p0, %p1;", [1], 1),
    # predicates
    ("setp.lt.s32 %p0, %r1, %r2;", [s32(-1), 1], 1),
    ("setp.lt.u32 %p0, %r1, %r2;", [s32(-1), 1], 0),
    ("setp.lo.u32 %p0, %r1, %r2;", [1, 2], 1),
    ("setp.ge.u64 %p0, %rd1, %rd2;", [BIG, BIG], 1),
    ("setp.eq.b64 %p0, %rd1, %rd2;", [BIG, 1], 0),
    ("setp.ne.s16 %p0, %rs1, 0;", [7], 1),
    ("setp.eq.f32 %p0, %f1, %f2;", [f32(0.0), f32(-0.0)], 1),
    ("setp.ne.f32 %p0, %f1, %f2;", [f32(NAN), f32(1)], 0),
    ("setp.neu.f32 %p0, %f1, %f2;", [f32(NAN), f32(1)], 1),
    ("setp.equ.f32 %p0, %f1, %f2;", [f32(NAN), f32(1)], 1),
    ("setp.lt.f32 %p0, %f1, %f2;", [f32(NAN), f32(1)], 0),
    ("setp.ltu.f32 %p0, %f1, %f2;", [f32(NAN), f32(1)], 1),
    ("setp.geu.f64 %p0, %fd1, %fd2;", [f64(1), f64(2)], 0),
    ("setp.gtu.f64 %p0, %fd1, %fd2;", [f64(NAN), f64(2)], 1),
    ("setp.num.f32 %p0, %f1, %f2;", [f32(1), f32(2)], 1),
    ("setp.lt.and.s32 %p0, %r1, %r2, %p3;", [1, 2, 0], 0),
    ("setp.lt.or.s32 %p0, %r1, %r2, !%p3;", [5, 2, 0], 1),
    ("setp.lt.s32 %p5|%p0, %r1, %r2;", [5, 2], 1),
    ("and.pred %p0, %p1, %p2;", [1, 0], 0),
    ("or.pred %p0, %p1, %p2;", [1, 0], 1),
    ("xor.pred %p0, %p1, %p2;", [1, 1], 0),
    ("not.pred %p0, %p1;", [1], 0),
    ("selp.b32 %r0, %r1, %r2, %p3;", [A, B, 0], B),
    ("selp.f32 %f0, 0f3F800000, %f2, %p1;", [1, 0], f32(1)),
    ("selp.s64 %rd0, %rd1, 9, %p1;", [BIG], BIG),
    # control
    ("mov.u32 %r0, 1; @%p1 bra $L_x; mov.u32 %r0, 2; $L_x: add.s32 %r0, %r0, 10;", [1], 11),
    ("mov.u32 %r0, 1; @!%p1 bra $L_x; mov.u32 %r0, 2; $L_x: add.s32 %r0, %r0, 10;", [1], 12),
    ("mov.u32 %r0, 0; $L_x: add.s32 %r0, %r0, 3; setp.lt.u32 %p5, %r0, 10; @%p5 bra $L_x;", [], 12),
    ("mov.u32 %r0, 0; @%p1 mov.u32 %r0, 5;", [1], 5),
    ("{ .reg .b32 %tmp; mov.u32 %tmp, 4; add.s32 %r0, %tmp, 1; }", [], 5),
    ("brx.idx %r1, $L_t; $L_t: .branchtargets $L_a, $L_b; $L_a: mov.u32 %r0, 7; bra.uni $L_e; $L_b: "
     "mov.u32 %r0, 8; $L_e: add.s32 %r0, %r0, 0;", [1], 8),
    # memory: %in is the address of the inputs
    ("ld.global.u32 %r0, [%in+4];", [BIG], BIG >> 32),
    ("ld.global.nc.f32 %f0, [%in];", [f32(5)], f32(5)),
    ("ld.global.L1::no_allocate.L2::128B.f32 %f0, [%in];", [f32(5)], f32(5)),
    ("ld.volatile.global.u32 %r0, [%in];", [9], 9),
    ("ld.global.s8 %rs0, [%in];", [0x80], 0xff80),
    ("ld.global.u8 %rs0, [%in];", [0x80], 0x80),
    ("ld.global.s16 %r0, [%in];", [0x8000], 0xffff8000),
    ("ld.global.s32 %rd0, [%in];", [0x80000000], s64(-2 ** 31)),
    ("ld.global.v2.u32 {%r5, %r0}, [%in];", [BIG], BIG >> 32),
    ("ld.global.v4.f32 {%f5, %f6, %f7, %f0}, [%in];", [0, f32(6) << 32], f32(6)),
    ("ld.u64 %rd0, [%in+8];", [1, BIG], BIG),
    ("st.global.u32 [%in+8], %r1; ld.global.u32 %r0, [%in+8];", [77, 1], 77),
    ("st.global.v2.f32 [%in+8], {%f1, %f2}; ld.global.u64 %rd0, [%in+8];", [f32(1), f32(2)], f32(2) << 32 | f32(1)),
    ("st.shared.f64 [tile+16], %fd1; ld.shared.u32 %r0, [tile+20];", [BIG], BIG >> 32),
    ("mov.u32 %r5, tile; add.s32 %r5, %r5, 8; st.shared.u32 [%r5], %r1; ld.shared.u32 %r0, [tile+8];", [3], 3),
    ("cvta.shared.u64 %rd5, 8; cvta.to.shared.u64 %rd0, %rd5;", [], 8),
    ("cvta.to.global.u64 %rd0, %rd1;", [BIG], BIG),
    ("ld.const.f32 %f0, [table+4];", [], f32(2)),
    ("mov.u64 %rd5, table; ld.const.u8 %rs0, [%rd5+3];", [], 0x3f),
    ("mov.u64 %rd5, words; ld.global.u16 %rs0, [%rd5+2];", [], 22),
    ("mov.u64 %rd5, depot; st.local.v2.u32 [%rd5+8], {%r1, %r2}; ld.local.u32 %r0, [%rd5+12];", [1, 2], 2),
    ("atom.global.add.u32 %r5, [%in], 5; ld.global.u32 %r0, [%in];", [7], 12),
    ("atom.global.add.u32 %r0, [%in], 5;", [7], 7),
    ("atom.global.add.f32 %f5, [%in], 0f3F800000; ld.global.f32 %f0, [%in];", [f32(2)], f32(3)),
    ("atom.global.add.f64 %fd5, [%in], %fd1; ld.global.f64 %fd0, [%in];", [f64(2)], f64(4)),
    ("red.global.add.u64 [%in], %rd2; ld.global.u64 %rd0, [%in];", [7, BIG], BIG + 7),
    ("atom.global.max.s32 %r5, [%in], -3; ld.global.u32 %r0, [%in];", [s32(-9)], s32(-3)),
    ("atom.global.min.u32 %r5, [%in], 3; ld.global.u32 %r0, [%in];", [s32(-9)], 3),
    ("atom.global.exch.b32 %r5, [%in], 3; ld.global.u32 %r0, [%in];", [9], 3),
    ("atom.global.cas.b32 %r5, [%in], 9, 4; ld.global.u32 %r0, [%in];", [9], 4),
    ("atom.shared.or.b32 %r5, [tile], 4; ld.shared.u32 %r5, [tile]; and.b32 %r0, %r5, 4;", [], 4),
    ("call.uni (result), double_it, (argument); ld.param.b32 %r0, [result+0];", [21], 42),
    # warps: lane 3, a shuffle gives value + 1000 * source
    ("shfl.sync.down.b32 %r0|%p5, %r1, 4, 31, -1;", [5], 7005),
    ("shfl.sync.down.b32 %r0|%p5, %r1, 4, 6175, -1;", [5], 7005),
    ("shfl.sync.up.b32 %r5|%p0, %r1, 4, 0, -1;", [5], 0),
    ("shfl.sync.up.b32 %r0|%p5, %r1, 1, 0, -1;", [5], 2005),
    ("shfl.sync.bfly.b32 %r0, %r1, 16, 31, -1;", [5], 19005),
    ("shfl.sync.idx.b32 %r0|%p5, %r1, 9, 31, -1;", [5], 9005),
    ("vote.sync.ballot.b32 %r0, %p1, 255;", [1], 255),
    ("vote.sync.any.pred %p0, %p1, -1;", [0], 0),
    ("vote.sync.all.pred %p0, %p1, -1;", [1], 1),
    ("bar.sync 0; barrier.sync 0; bar.warp.sync -1; membar.gl; fence.acq_rel.gpu; mov.u32 %r0, 1;", [], 1),
]
HEAD = """
.version 9.0
.target sm_80
.address_size 64
.const .align 4 .b8 table[8] = {0, 0, 128, 63, 0, 0, 0, 64};
.global .align 2 .u16 words[3] = {11, 22, 33};
.extern .shared .align 16 .b8 dynamic[];
.func (.param .b32 func_retval0) double_it(.param .b32 double_it_param_0)
{
 .reg .b32 %r<3>;
 ld.param.u32 %r1, [double_it_param_0];
 add.s32 %r2, %r1, %r1;
 st.param.b32 [func_retval0+0], %r2;
 ret;
}
"""


def kernel(number, text):
    """A kernel around the instructions: inputs to registers, register 0 of the last kind named to the output."""
    last = max(((text.rfind(r), r) for r in ("%r0", "%rd0", "%f0", "%fd0", "%rs0", "%p0")))[1]
    store = {"%r0": "st.global.u32 [%out], %r0;", "%rd0": "st.global.u64 [%out], %rd0;",
             "%f0": "st.global.f32 [%out], %f0;", "%fd0": "st.global.f64 [%out], %fd0;",
             "%rs0": "st.global.u16 [%out], %rs0;",
             "%p0": "selp.u32 %r9, 1, 0, %p0; st.global.u32 [%out], %r9;"}[last]
    loads = "".join(f"ld.global.u64 %rd{i}, [%in+{8 * i - 8}]; cvt.u32.u64 %r{i}, %rd{i}; mov.b32 %f{i}, %r{i}; "
                    f"mov.b64 %fd{i}, %rd{i}; cvt.u16.u64 %rs{i}, %rd{i}; setp.ne.s64 %p{i}, %rd{i}, 0;\n"
                    for i in range(1, 5))
    text = text.replace("$L_", f"$L_{number}_")
    return f""".visible .entry t_{number}(.param .u64 t_{number}_param_0, .param .u64 t_{number}_param_1)
{{
 .local .align 8 .b8 depot[32];
 .shared .align 8 .b8 tile[64];
 .reg .pred %p<10>;
 .reg .b16 %rs<10>;
 .reg .b32 %r<10>;
 .reg .f32 %f<10>;
 .reg .b64 %rd<10>;
 .reg .f64 %fd<10>;
 .reg .b64 %in, %out;
 .param .b32 argument;
 .param .b32 result;
 ld.param.u64 %in, [t_{number}_param_0];
 ld.param.u64 %out, [t_{number}_param_1];
 {loads}
 st.param.b32 [argument+0], %r1;
 {text}
 {store}
 ret;
}}
"""


def build(folder):
    """All forms in one library; the functions by number."""
    ptx = HEAD + "".join(kernel(i, form[0]) for i, form in enumerate(FORMS))
    (folder / "forms.c").write_text(STUB + ptx2c.translate([ptx]))
    flags = ["-std=gnu11", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-frounding-math",
             "-fno-strict-aliasing"]
    subprocess.run([*CC, *flags, f"-I{HERE.parent}", folder / "forms.c", "-o", folder / "forms.so", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "forms.so"))

    class Kernel(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("body", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
                    ("n_params", ctypes.c_uint32), ("param_bytes", ctypes.POINTER(ctypes.c_uint32)),
                    ("shared_bytes", ctypes.c_uint32)]

    class Module(ctypes.Structure):
        _fields_ = [("abi", ctypes.c_uint32), ("n_kernels", ctypes.c_uint32), ("n_locs", ctypes.c_uint32),
                    ("n_variables", ctypes.c_uint32), ("kernels", ctypes.POINTER(Kernel))]
    module = Module.in_dll(library, "cudasim_module")
    return library, module, [module.kernels[i] for i in range(module.n_kernels)]


def run_form(k, inputs):
    data = (ctypes.c_uint64 * 8)(*inputs)
    out = ctypes.c_uint64(0)
    args = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(out))
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(args), ctypes.addressof(args) + 8)
    k.body(ctypes.addressof(pointers))
    return out.value


def test_every_16_bit_float_survives_a_round_trip():
    """Also every number halfway to the next one, which goes to the even one."""
    source = STUB + """#include "half.h"
int wrong(void) {
  int n = 0;
  for (uint32_t v = 0; v < 0x10000; v++) {
    uint32_t odd = v & 1;
    if ((v & 0x7fff) <= 0x7f80) n += of_bf16(as_bf16(v)) != v;
    if ((v & 0x7fff) <= 0x7c00) n += of_f16(as_f16(v)) != v;
    if ((v & 0x7fff) < 0x7f80) n += of_bf16(half_with_bits((v << 16) + 0x8000)) != v + odd;
    if ((v & 0x7fff) < 0x7bff) n += of_f16((float)(((double)as_f16(v) + as_f16(v + 1)) / 2)) != v + odd;
  }
  n += round_tf32(half_with_bits(0x3f801000)) != 1 || round_tf32(half_with_bits(0x3f803000)) != 1 + 0x1p-9f;
  n += round_tf32(half_with_bits(0x3f801001)) != 1 + 0x1p-10f || round_tf32(0x1.fffffep127f) != 1 / 0.0f;
  return n; }"""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "half.c").write_text(source)
        subprocess.run([*CC, "-std=gnu11", "-w", "-fPIC", "-shared", f"-I{HERE.parent}", folder / "half.c", "-o",
                        folder / "half.so"], check=True)
        assert ctypes.CDLL(str(folder / "half.so")).wrong() == 0


def refused(ptx, words):
    try:
        ptx2c.translate([ptx])
    except PtxError as e:
        assert words in str(e), str(e)
        return
    raise AssertionError(f"not refused: {ptx}")


def body(text):
    return HEAD + kernel(0, text + " mov.u32 %r0, 1;")


def test_unknown_instructions_are_refused():
    for text, words in (("wmma.load.a.sync.f32 %r5;", "wmma"),
                        ("cp.async.ca.shared.global [%r5], [%in], 4;", "cp.async"),
                        ("activemask.b32 %r5;", "activemask"), ("bar.red.popc.u32 %r5, 0, %p1;", "bar.red"),
                        ("bar.sync 0, 64;", "bar.sync"), ("cvt.rz.bf16.f32 %rs5, %f1;", "cvt.rz.bf16"),
                        ("cvt.rn.relu.f16.f32 %rs5, %f1;", "relu"), ("cvt.rn.f16.f64 %rs5, %fd1;", "f16.f64"),
                        ("cvt.rn.bf16x2.f32 %r5, %f1;", "bf16x2"), ("add.f16 %rs5, %rs1, %rs2;", "16-bit floats"),
                        ("fma.rn.bf16x2 %r5, %r1, %r2, %r3;", "16-bit floats"),
                        ("sqrt.rz.f32 %f5, %f1;", "sqrt.rz"), ("mul.s32 %r5, %r1, %r2;", "mul.s32"),
                        ("mov.u32 %r5, %clock;", "%clock"), ("add.sat.s32 %r5, %r1, %r2;", "saturating"),
                        ("call.uni unknown, (argument);", "unknown"), ("setp.odd.s32 %p5, %r1, %r2;", "setp.odd"),
                        ("ld.global.L2::cache_hint.f32 %f5, [%in], %rd1;", "cache policy")):
        refused(body(text), words)


def test_lines_are_those_of_the_source():
    ptx = body("""
 .loc 1 12 3
 st.global.u32 [%in], %r1;
 .loc 2 99 3, function_name $L_info, inlined_at 1 17 5
 st.global.u32 [%in], %r1;
 .loc 1 0 3
 st.global.u32 [%in], %r1;""") + '.file 1 "/some/where/add.cu"\n.file 2 "/cuda/include/x.hpp"\n'
    c = ptx2c.translate([ptx])
    assert '{"add.cu", 12},' in c and '{"add.cu", 17},' in c and "99" not in c.split("locs[]")[1]
    assert c.count("SIMT_WRITE, 2)") == 3  # the line of the call, and what follows without a line of its own


def test_kernels_of_several_files_do_not_clash():
    a, b = HEAD + kernel(0, "mov.u32 %r0, 1;"), HEAD + kernel(1, "mov.u32 %r0, 2;")
    c = ptx2c.translate([a, b])
    assert '"t_0", m0_f_t_0_thread' in c and '"t_1", m1_f_t_1_thread' in c


def test_parameters_and_shared_memory_are_measured():
    ptx = """.extern .shared .align 16 .b8 row[];
.visible .entry k(.param .u64 k_param_0, .param .align 4 .b8 k_param_1[27], .param .u8 k_param_2)
{ .shared .align 8 .b8 a[20]; .shared .align 16 .b8 b[4]; .reg .b32 %r<2>; mov.u32 %r1, row; mov.u32 %r1, b; ret; }"""
    c = ptx2c.translate([ptx])
    assert "_params[] = {8, 27, 1};" in c and "_params, 48}" in c
    assert "(48u)" in c and "(32u)" in c


def test_kernels_have_only_the_shared_memory_they_use():
    ptx = """.shared .align 16 .b8 a[100];
.shared .align 16 .b8 ab[200];
.shared .align 16 .b8 everyones[16];
.func f() { .reg .b32 %r<2>; mov.u32 %r1, everyones; ret; }
.visible .entry j() { .reg .b32 %r<2>; ld.shared.u32 %r1, [a+4]; ret; }
.visible .entry k() { .reg .b32 %r<2>; mov.u32 %r1, ab; mov.u32 %r1, a; ret; }
.visible .entry l() { ret; }"""
    c = ptx2c.translate([ptx])
    assert [re.search(rf'"{k}".*_params, (\d+)}}', c)[1] for k in "jkl"] == ["128", "336", "16"]


def test_instructions_are_counted_by_block():
    c = ptx2c.translate([".visible .entry k() { .reg .pred %p<2>; .reg .b32 %r<3>; mov.u32 %r1, 1; "
                         "add.s32 %r1, %r1, 1; setp.eq.s32 %p1, %r1, 2; @%p1 bra $L; mov.u32 %r2, 1; $L: ret; }"])
    assert [x for x in c.split("\n") if "simt_instructions" in x] == [
        f"simt_instructions += {n};" for n in (4, 1, 1)]


def test_parser():
    assert split_operands("%r1, {%a, %b}, [x+4]") == ["%r1", "{%a, %b}", "[x+4]"]
    v = parse_variable(".param .u64 .ptr .global .align 4 p")
    assert (v.name, v.bytes) == ("p", 8)
    v = parse_variable(".global .align 8 .b8 t[16]")
    assert (v.bytes, v.align, v.init) == (16, 8, [])
    m = parse(".visible .entry k(\n)\n.maxntid 256, 1, 1\n{\n\tret;\n\n}\n")
    assert m.functions[0].name == "k" and m.functions[0].is_kernel and m.functions[0].params == []
    refused(".global .align 8 .u64 t[1] = {generic(x)};", "initial value")
    refused(".visible .entry k() { .unknown 3; ret; }", ".unknown")


def main():
    failures = []

    def check(name, run):
        try:
            run()
            print(f"ok {check.number} - {name}")
        except AssertionError as e:
            failures.append(name)
            print(f"not ok {check.number} - {name}\n# {e}")
        check.number += 1

    check.number = 1
    tests = [(n[5:].replace("_", " "), t) for n, t in globals().items() if n.startswith("test_")]
    print(f"1..{len(FORMS) + len(tests)}")
    for name, test in tests:
        check(name, test)
    with tempfile.TemporaryDirectory() as name:
        library, _module, kernels = build(pathlib.Path(name))
        assert library and len(kernels) == len(FORMS)
        for k, (text, inputs, want) in zip(kernels, FORMS):
            def right(k=k, inputs=inputs, want=want):
                got = run_form(k, inputs)
                assert got == want, f"{got:#x}, should be {want:#x}"
            check(text, right)
    return 1 if failures else 0


sys.exit(main())
