"""Reads the PTX that nvcc writes: variables, functions, and the statements of their bodies.

Only what nvcc produces is understood, not all of the language; anything else stops with PtxError."""
import re
from dataclasses import dataclass, field


class PtxError(Exception):
    """Something that is not understood: the translator must not guess."""


@dataclass
class Variable:
    """.global, .const, .shared, .local or .param; `init` is a list of numbers, of the element's size."""
    name: str
    space: str
    element_bytes: int
    count: int
    align: int
    init: list = field(default_factory=list)
    extern: bool = False

    @property
    def bytes(self):
        return self.element_bytes * self.count


@dataclass
class Statement:
    """kind: open, close, label, reg, variable, targets, or instruction."""
    kind: str
    name: str = ""  # label, or opcode with its dots: "ld.global.f32"
    operands: list = field(default_factory=list)
    predicate: str = ""  # register, with "!" where negated
    loc: tuple = ("", 0)  # file, line of the .cu
    variable: Variable = None
    reg_type: str = ""
    regs: list = field(default_factory=list)


@dataclass
class Function:
    name: str
    is_kernel: bool
    params: list
    result: Variable  # or None
    body: list


@dataclass
class Module:
    variables: list
    functions: list


def type_bits(name):
    """Of "f32", "u64", "b8", "pred"."""
    match = re.fullmatch(r"[usbf](8|16|32|64)", name)
    if name == "pred":
        return 1
    if not match:
        raise PtxError(f"unknown type .{name}")
    return int(match[1])


def split_operands(text):
    """At commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += char in "[{("
        depth -= char in "]})"
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return parts + [last] if last else parts


VARIABLE = re.compile(r"(?P<extern>\.extern\s+)?(?:\.visible\s+|\.weak\s+|\.common\s+)?"
                      r"\.(?P<space>global|const|shared|local|param)\s+(?:\.attribute\([^)]*\)\s*)?"
                      r"(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
                      r"(?:\.ptr\s+(?:\.(?:global|const|shared|local)\s+)?(?:\.align\s+\d+\s+)?)?"
                      r"(?P<name>[\w$.]+)\s*(?P<array>\[\s*\d*\s*\])?\s*(?:=\s*(?P<init>\{[^}]*\}|[^;,]+))?", re.S)


def parse_variable(text):
    match = VARIABLE.fullmatch(text.strip())
    if not match:
        raise PtxError(f"cannot read the declaration: {text.strip()}")
    size = type_bits(match["type"]) // 8
    init = []
    for item in (match["init"] or "").strip("{} \n").split(","):
        if item.strip():
            try:
                init.append(int(item.strip().rstrip("U"), 0))
            except ValueError:
                raise PtxError(f"initial value {item.strip()} of {match['name']}") from None
    count = 1 if not match["array"] else int(match["array"].strip("[] ") or 0)
    return Variable(match["name"], match["space"], size, count, int(match["align"] or size), init,
                    bool(match["extern"]))


class Lines:
    """Which line of the project's source a statement belongs to. Code inlined from CUDA's own headers counts as the
    line that it was inlined into."""

    def __init__(self, text):
        self.files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M))
        self.now = ("", 0)

    def at(self, text):
        places = re.findall(r"(\d+) (\d+) \d+", text)
        for number, line in places:
            name = self.files.get(number, "")
            if name.endswith((".cu", ".cuh")) and line != "0":
                self.now = (name.rsplit("/", 1)[-1], int(line))
                return


def parse_reg(text):
    """".reg .b32 %r<4>" or ".reg .b32 %a, %b": type and names."""
    match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S)
    if not match:
        raise PtxError(f"cannot read: {text}")
    names = []
    for item in split_operands(match[2]):
        many = re.fullmatch(r"(%[\w$]+)<(\d+)>", item)
        names += [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [item]
    return match[1], names


def parse_instruction(text, loc):
    match = re.fullmatch(r"(?:@(!?%[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", text, re.S)
    if not match:
        raise PtxError(f"cannot read: {text}")
    return Statement("instruction", match[2], split_operands(match[3]), match[1] or "", loc)


def parse_body(text, lines):
    """Statements in order. Braces at the beginning of a statement are scopes; in one they are vectors."""
    body, at = [], 0
    while True:
        at = re.compile(r"\s*").match(text, at).end()
        if at == len(text):
            return body
        label = re.compile(r"([$\w]+)\s*:(?!:)").match(text, at)
        if text[at] in "{}":
            body.append(Statement("open" if text[at] == "{" else "close"))
            at += 1
        elif label:
            body.append(Statement("label", label[1]))
            at = label.end()
        else:
            end = text.index(";", at)
            body += parse_statement(text[at:end].strip(), lines)
            at = end + 1


def parse_statement(text, lines):
    if re.match(r"\.loc\s", text):
        lines.at(text)
        return []
    if text.startswith(".reg"):
        reg_type, regs = parse_reg(text)
        return [Statement("reg", reg_type=reg_type, regs=regs)]
    if text.startswith((".shared", ".local", ".param")):
        return [Statement("variable", variable=parse_variable(text))]
    if text.startswith(".branchtargets"):
        return [Statement("targets", operands=split_operands(text[len(".branchtargets"):]))]
    if text.startswith(".pragma") or not text:
        return []
    if text.startswith("."):
        raise PtxError(f"unknown directive: {text}")
    return [parse_instruction(text, lines.now)]


FUNCTION = re.compile(r"(?:\.extern\s+|\.visible\s+|\.weak\s+)?\.(entry|func)\s+(?:\(([^)]*)\)\s*)?([\w$]+)\s*"
                      r"(?:\(([^)]*)\))?([^{;]*)([{;])")


def closing_brace(text, at):
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def parse(text):
    """The whole file. Functions without a body (declarations) are left out."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^(\s*\.loc\s[^\n]*)$", r"\1;", text, flags=re.M)
    lines = Lines(text)
    functions, rest, at = [], [], 0
    for match in FUNCTION.finditer(text):
        if match.start() < at:
            continue
        rest.append(text[at:match.start()])
        at = match.end()
        if match[6] == "{":
            at = closing_brace(text, match.end())
            params = [parse_variable(p) for p in split_operands(match[4] or "")]
            result = parse_variable(match[2]) if match[2] and match[2].strip() else None
            functions.append(Function(match[3], match[1] == "entry", params, result,
                                      parse_body(text[match.end():at - 1], lines)))
    rest.append(text[at:])
    declarations = re.findall(r"^\s*((?:\.(?:extern|visible|weak|common)\s+)*\.(?:global|const|shared)\s[^;]*);",
                              "".join(rest), re.M)
    return Module([parse_variable(d) for d in declarations], functions)
