"""What models say: logits are PyTorch's, a seed gives one text, a model that learned a text says it, and text becomes tokens as
GPT-2's tokenizer makes them. The names of the cases begin as those of cases_transformers.py do."""
import json
import math
import os
import random
import re
import struct

from cases_transformers import (BASE, GOLDEN, MLP, SMALL_GPT2, TOKENS, folder, from_folder, model_job, read_tensors, still,
                                train)
from files import job, read_json, write_bytes
from harness import case, once


def tokens():
    with open(TOKENS, "rb") as f:
        data = f.read()[1024:]
    return struct.unpack(f"<{len(data) // 2}H", data)


def words(ids):
    return ",".join(map(str, ids))


def sample(t, source, *options, expect=0):
    """The JSON object of --sample."""
    return t.worker("--sample", source, "--json", *options, expect=expect).json()


def logits(t, source, ids, *options):
    return sample(t, source, "--prompt-ids", words(ids), "--logits", *options)["logits"]


# ---- logits ----

def read_npy(path):
    """[2][16][96] floats."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack_from("<H", data, 8)
    header = data[10:10 + n].decode()
    if "'descr': '<f4'" not in header or "(2, 16, 96)" not in header:
        raise ValueError(header)
    values = struct.unpack_from(f"<{2 * 16 * 96}f", data, 10 + n)
    return [[values[(s * 16 + i) * 96:(s * 16 + i + 1) * 96] for i in range(16)] for s in range(2)]


@case(each=["gpt2", "llama"])
def test_transformers_sample_has_the_logits_of_pytorch(t, name):
    want, ids = read_npy(os.path.join(GOLDEN, f"{name}.logits.npy")), tokens()
    for s, n in ((0, 1), (0, 2), (0, 5), (0, 16), (1, 1), (1, 11), (1, 16)):
        found = logits(t, folder(name), ids[16 * s:16 * s + n])
        t.equal(len(found), 96, "logits")
        worst = max(abs(a - b) for a, b in zip(found, want[s][n - 1]))
        t.check(worst < 1e-4, f"sample {s}, {n} tokens: logits differ by {worst}")


@case(each=["gpt2", "llama"])
def test_transformers_sample_of_a_run_has_the_logits_of_its_folder(t, name):
    out, ids = train(t, still(name)), tokens()[:9]
    t.equal(logits(t, out, ids), logits(t, folder(name), ids), "logits of the run and of the folder")
    t.worker("--export", out, "--hf", t.path("back"))
    t.equal(logits(t, t.path("back"), ids), logits(t, folder(name), ids), "logits of the export")


def is_greedy(t, source, ids, chosen):
    """The token is the largest logit of the model that sees all these ids at once, but for rounding."""
    found = logits(t, source, ids)
    t.check(found[chosen] > max(found) - 1e-4, f"after {ids}: {chosen}, not {found.index(max(found))}")


@case(each=["gpt2", "llama"])
def test_transformers_sample_token_by_token_is_the_model_on_the_whole_text(t, name):
    """What is kept of the tokens so far is what the model would compute again; gpt2 sees its last 24 tokens."""
    prompt = list(tokens()[:3])
    r = sample(t, folder(name), "--prompt-ids", words(prompt), "--temperature", 0, "--tokens", 30)
    t.equal((r["prompt_ids"], len(r["ids"]), r["text"]), (prompt, 30, None), "the report")
    for n in (0, 1, 2, 10, 20, 21, 22, 29):
        text = prompt + r["ids"][:n]
        is_greedy(t, folder(name), text[-24:] if name == "gpt2" else text, r["ids"][n])


@case
def test_transformers_sample_window_slides_over_long_prompts(t):
    ids = list(tokens()[:40])
    t.equal(logits(t, folder("gpt2"), ids), logits(t, folder("gpt2"), ids[-24:]), "logits of gpt2")
    long = logits(t, folder("llama"), list(tokens()[:80]))
    t.check(long != logits(t, folder("llama"), list(tokens()[16:80])), "llama does not see all of a long prompt")


# ---- seeds and options ----

def ids_of(t, *options):
    return sample(t, folder("llama"), "--prompt-ids", "7,46", "--tokens", 25, *options)["ids"]


@case
def test_transformers_sample_is_the_same_for_a_seed(t):
    first = ids_of(t, "--seed", 1)
    t.equal(ids_of(t, "--seed", 1, "--threads", 2), first, "with other threads")
    t.equal(ids_of(t, "--seed", 1, "--threads", 1), first, "with one thread")
    t.equal(ids_of(t, "--seed", 1, "--tokens", 10), first[:10], "fewer tokens")
    others = [ids_of(t, "--seed", seed) for seed in (0, 2, 1 << 40, (1 << 64) - 1)]
    t.equal(len({tuple(o) for o in [first, *others]}), 5, "different texts")
    t.equal(ids_of(t), others[0], "the default seed is 0")


@case
def test_transformers_sample_greedily_is_top_1_and_temperature_0(t):
    greedy = ids_of(t, "--temperature", 0)
    t.equal(ids_of(t, "--top-k", 1, "--seed", 9), greedy, "top-k 1")
    t.equal(ids_of(t, "--temperature", 0, "--top-k", 5, "--seed", 3), greedy, "any top-k and seed")
    t.equal(ids_of(t, "--temperature", 1e-4, "--seed", 5), greedy, "a temperature of almost 0")
    t.check(ids_of(t, "--temperature", 100) != greedy, "a high temperature changes nothing")
    t.equal(ids_of(t, "--top-k", 96), ids_of(t, "--top-k", 0), "top-k of all")
    t.equal(ids_of(t, "--top-k", 4000000000), ids_of(t), "top-k of more than all")


@case
def test_transformers_sample_follows_the_probabilities(t):
    """The first token of one prompt, of many seeds, counted: by the model's probabilities, and only the top k."""
    prompt = tokens()[:4]
    found = logits(t, folder("llama"), prompt)
    top = sorted(range(96), key=lambda i: -found[i])[:3]
    weights = {i: math.exp(found[i] / 0.7) for i in top}
    n, counts = 200, dict.fromkeys(top, 0)
    for seed in range(n):
        r = sample(t, folder("llama"), "--prompt-ids", words(prompt), "--tokens", 1, "--top-k", 3, "--temperature", 0.7,
                   "--seed", seed)
        t.check(r["ids"][0] in counts, f"{r['ids'][0]} is none of the top 3: {top}")
        counts[r["ids"][0]] += 1
        t.log.clear()
    for i, weight in weights.items():
        p = weight / sum(weights.values())
        off = abs(counts[i] - n * p) / math.sqrt(n * p * (1 - p))
        t.check(off < 4, f"token {i}: {counts[i]} of {n}, by its probability {n * p:.0f}")


# ---- what is printed ----

@case
def test_transformers_sample_prints_ids_as_they_come(t):
    run = t.worker("--sample", folder("llama"), "--prompt-ids", "1,2", "--tokens", 4, "--temperature", 0)
    ids = sample(t, folder("llama"), "--prompt-ids", "1,2", "--tokens", 4, "--temperature", 0)["ids"]
    t.equal(run.out, " ".join(map(str, ids)) + "\n", "standard output")
    t.equal(run.err, "", "standard error")
    live = t.start("--sample", folder("gpt2"), "--prompt-ids", "1", "--tokens", 1000000)
    live.until(lambda: os.fstat(live.out.fileno()).st_size > 100, "100 bytes of a long text")
    t.check(live.alive(), "it ended")
    live.kill()
    shown = t.worker("--sample", folder("gpt2"), "--prompt-ids", "1", "--logits").out.split()
    t.equal([float(v) for v in shown], logits(t, folder("gpt2"), [1]), "logits as text")
    t.equal(sample(t, folder("gpt2"), "--tokens", 1)["prompt_ids"], [0], "the default prompt")


TEXT = "the quick brown fox jumps over the lazy dog... "  # 47 characters: a window of 48 sees it from every one on


def byte_model(t):
    """A model that has learned a text by heart. A path that outlives the case."""

    def make():
        out = os.path.join(os.path.dirname(t.dir), "byte-model")
        data = write_bytes(os.path.join(os.path.dirname(t.dir), "byte-model.txt"), (TEXT * 60).encode())
        spec = job(BASE, {
            "model": {"type": "gpt2", "layers": 2, "width": 48, "heads": 4, "context": 48, "vocab": 256},
            "data": {"format": "bytes", "train": data}, "train": {"steps": 120, "global_batch": 8, "grad_clip": 1.0},
            "optimizer.lr": 4e-3, "checkpoint": {"every": {"steps": 60}, "keep": 9}})
        path = t.path("byte-model.json")
        with open(path, "w") as f:
            json.dump(spec, f)
        t.worker("--run", path, "--output", out, "--quiet")
        return out

    return once("byte model", make)


@case
def test_transformers_sample_says_what_was_learned(t):
    out = byte_model(t)
    run = t.worker("--sample", out, "--prompt", TEXT[:20], "--tokens", 2 * len(TEXT), "--temperature", 0)
    t.equal(run.out, (3 * TEXT)[20:20 + 2 * len(TEXT)], "the text")
    r = sample(t, out, "--prompt", TEXT[:20], "--tokens", 10, "--temperature", 0)
    t.equal(r["text"], TEXT[20:30], "the text as JSON")
    t.equal((bytes(r["ids"]), bytes(r["prompt_ids"])), (TEXT[20:30].encode(), TEXT[:20].encode()), "the ids")
    t.equal((r["model"], r["step"], r["source"]), ("gpt2", 120, out), "the report")
    t.equal(sample(t, out, "--tokens", 1)["prompt_ids"], [10], "the default prompt is a new line")
    ids = words(TEXT[:20].encode())
    t.equal(sample(t, out, "--prompt-ids", ids, "--tokens", 10, "--temperature", 0)["text"], TEXT[20:30], "by ids")


@case
def test_transformers_sample_of_a_checkpoint(t):
    out = byte_model(t)
    last, early = (sample(t, out, "--step", step, "--prompt", TEXT[:20], "--logits") for step in ("last", "60"))
    t.equal((last["step"], early["step"]), (120, 60), "steps")
    t.check(last["logits"] != early["logits"], "two checkpoints say the same")
    t.equal(sample(t, out, "--prompt", TEXT[:20], "--logits")["logits"], last["logits"], "the finished model")
    t.equal(sample(t, out, "--step", "61", expect=6)["exit"], 6, "a step that is not there")
    t.equal(sample(t, out, "--step", "bset", expect=2)["path"], "--step", "a word that is none")


@case
def test_transformers_sample_of_a_job_that_has_not_ended(t):
    out = train(t, from_folder("llama", {"train.steps": 4, "checkpoint": {"every": {"steps": 2}}}))
    os.remove(os.path.join(out, "result.json"))
    t.equal(sample(t, out, "--prompt-ids", 1, "--tokens", 1)["step"], 4, "step")
    path = os.path.join(out, "checkpoints", "step-4", "model.safetensors")
    with open(path, "r+b") as f:
        f.seek(-3, os.SEEK_END)
        f.write(b"\xff")
    r = sample(t, out, "--prompt-ids", 1, expect=1)
    t.contains(r["path"] + r["message"], path, "damaged", what="the error")


@case
def test_transformers_sample_of_bytes_that_are_no_text(t):
    """An untrained model says anything: the bytes as they are, and JSON that is valid."""
    spec = model_job("gpt2", {"model": {**SMALL_GPT2, "vocab": 256}, "train.steps": 1})
    out = train(t, spec)
    options = ["--prompt", "a", "--tokens", 400, "--temperature", 10]
    r = sample(t, out, *options)
    t.check(min(r["ids"]) < 8 and max(r["ids"]) > 250, "bytes of all kinds")
    live = t.start("--sample", out, *options)
    live.process.wait()
    live.out.seek(0)
    t.equal(live.out.read(), bytes(r["ids"]), "the bytes")
    expected = bytes(r["ids"]).replace(b"\0", b"\xff").decode("utf-8", "replace")
    t.equal(r["text"].replace("\ufffd", ""), expected.replace("\ufffd", ""), "the text as JSON")


# ---- refusals ----

@case(each=[
    ("text for a model of other tokens", "gpt2", ["--prompt", "hello"], 2, "--prompt", ["--prompt-ids 1,2,3", "--tokenizer"]),
    ("an empty text", "gpt2", ["--prompt", ""], 2, "--prompt", ["empty"]),
    ("no ids", "gpt2", ["--prompt-ids", ""], 2, "--prompt-ids", ["such as 1,2,3"]),
    ("an id too few", "gpt2", ["--prompt-ids", "1,,2"], 2, "--prompt-ids", ["such as 1,2,3"]),
    ("a comma too many", "gpt2", ["--prompt-ids", "1,"], 2, "--prompt-ids", ["such as 1,2,3"]),
    ("a negative id", "gpt2", ["--prompt-ids", "-1"], 2, "--prompt-ids", ["such as 1,2,3"]),
    ("an id that is none", "gpt2", ["--prompt-ids", "95,96"], 2, "--prompt-ids", ["96 is no token"]),
    ("a huge id", "gpt2", ["--prompt-ids", "99999999999999999999"], 2, "--prompt-ids", ["99999999999999999999"]),
    ("two beginnings", "gpt2", ["--prompt-ids", "1", "--prompt", "a"], 2, "", ["give one of them"]),
    ("no tokens", "gpt2", ["--tokens", "0"], 2, "--tokens", ["from 1"]),
    ("a negative temperature", "gpt2", ["--temperature", "-1"], 2, "--temperature", ["from 0"]),
    ("no temperature", "gpt2", ["--temperature", "nan"], 2, "--temperature", ["from 0"]),
    ("top of nothing", "gpt2", ["--top-k", "x"], 2, "--top-k", ["whole number"]),
    ("a step of a folder", "gpt2", ["--step", "last"], 2, "--step", ["Hugging Face folder"]),
])
def test_transformers_sample_that_cannot_be_is_refused(t, value):
    _, name, options, code, where, says = value
    r = sample(t, folder(name), *options, expect=code)
    t.equal((r["ok"], r["exit"], r["path"]), (False, code, where), "the error")
    t.contains(r["message"], *says, what="the message")
    t.equal(t.worker("--sample", folder(name), *options, expect=code).out, "", "standard output")


@case
def test_transformers_sample_of_what_is_no_model_is_refused(t):
    os.mkdir(t.path("empty"))
    t.contains(t.worker("--sample", t.path("nowhere"), expect=6).err, t.path("nowhere"), what="of nothing")
    t.contains(t.worker("--sample", t.path("empty"), expect=6).err, "resolved.json", "config.json", what="of a directory")
    mlp = train(t, job(BASE, {**MLP, "train.steps": 1}))
    t.contains(t.worker("--sample", mlp, expect=2).err, "no gpt2 or llama model", what="of an mlp")
    chain = train(t, model_job("chain", {"train.steps": 1}))
    t.contains(t.worker("--sample", chain, expect=2).err, "no gpt2 or llama model", what="of a chain")
    t.contains(t.worker("--check", "x.json", "--prompt", "a", expect=2).err, "goes with --sample", what="with --check")
    t.contains(t.worker("--sample", folder("gpt2"), "--force", expect=2).err, "--export", what="with --force")
    t.contains(t.worker("--sample", folder("gpt2"), "--hf", "x", expect=2).err, "--export", what="with --hf")


def make_folder(t, vocab, width=8, damage=None):
    """A tiny gpt2 with random weights as a folder; `damage`: a tensor that becomes NaN."""
    path, rng = t.path("folder"), random.Random(3)
    shapes = {"wte.weight": [vocab, width], "wpe.weight": [16, width], "ln_f.weight": [width], "ln_f.bias": [width]}
    for name, shape in {"ln_1.weight": [width], "ln_1.bias": [width], "attn.c_attn.weight": [width, 3 * width],
                        "attn.c_attn.bias": [3 * width], "attn.c_proj.weight": [width, width], "attn.c_proj.bias": [width],
                        "ln_2.weight": [width], "ln_2.bias": [width], "mlp.c_fc.weight": [width, 4 * width],
                        "mlp.c_fc.bias": [4 * width], "mlp.c_proj.weight": [4 * width, width],
                        "mlp.c_proj.bias": [width]}.items():
        shapes[f"h.0.{name}"] = shape
    entries, data = {}, b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = [math.nan] * count if name == damage else [rng.gauss(0, 0.5) for _ in range(count)]
        entries[f"transformer.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *values)
    header = json.dumps(entries).encode()
    os.makedirs(path, exist_ok=True)
    write_bytes(os.path.join(path, "model.safetensors"), struct.pack("<Q", len(header)) + header + data)
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": width, "n_head": 2, "n_positions": 16, "vocab_size": vocab}
    write_bytes(os.path.join(path, "config.json"), json.dumps(config).encode())
    return path


@case
def test_transformers_sample_of_weights_that_are_not_finite_says_so(t):
    path = make_folder(t, 50, damage="ln_f.weight")
    r = sample(t, path, "--prompt-ids", "1,2", expect=1)
    t.contains(r["message"], "logits after 2 tokens are not finite", what="the message")
    t.equal(read_tensors(os.path.join(path, "model.safetensors"))["transformer.ln_f.bias"][1], [8], "the folder")


# ---- GPT-2's tokenizer ----

def byte_chars():
    """How the files of such a tokenizer write bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


CHARS = byte_chars()
CORPUS = ("It's the first thing that they'll see, isn't it? We've 1234 of them and 56 more;  they're there.\n"
          "  The other thing: \"I'd say\", he said, that's 'that'.\n\nAnd so on, and so on!!! 2024-11-16 caf\u00e9 caf\u00e9s ") * 3
# GPT-2's pattern; what is beyond ASCII is a letter.
PATTERN = re.compile(rb"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z\x80-\xff]+| ?[0-9]+| ?[^\sA-Za-z0-9\x80-\xff]+|\s+(?!\S)|\s+")


class Bpe:
    """Byte-level BPE, plainly: trained on a text, and an encoder by the book."""

    def __init__(self, text, merges):
        parts = [[bytes([b]) for b in word] for word in PATTERN.findall(text.encode())]
        self.merges = []
        for _ in range(merges):
            pairs = {}
            for p in parts:
                for pair in zip(p, p[1:]):
                    pairs[pair] = pairs.get(pair, 0) + 1
            best = max(sorted(pairs), key=pairs.get)
            self.merges.append(best)
            parts = [self.join(p, best) for p in parts]
        self.tokens = [bytes([b]) for b in range(255, -1, -1)] + [a + b for a, b in self.merges]
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    @staticmethod
    def join(parts, pair):
        joined, i = [], 0
        while i < len(parts):
            both = tuple(parts[i:i + 2]) == pair
            joined.append(pair[0] + pair[1] if both else parts[i])
            i += 1 + both
        return joined

    def encode(self, text):
        ids, ranks = [], {pair: i for i, pair in enumerate(self.merges)}
        for word in PATTERN.findall(text.encode()):
            parts = [bytes([b]) for b in word]
            while len(parts) > 1:
                best = min(zip(parts, parts[1:]), key=lambda pair: ranks.get(pair, len(ranks)))
                if best not in ranks:
                    break
                parts = self.join(parts, best)
            ids += [self.ids[p] for p in parts]
        return ids

    def write(self, path, special="<|endoftext|>"):
        shown = ["".join(CHARS[b] for b in token) for token in self.tokens]
        vocab = {text: i for i, text in enumerate(shown)} | ({special: len(shown)} if special else {})
        write_bytes(os.path.join(path, "vocab.json"), json.dumps(vocab).encode())
        lines = ["#version: 0.2"] + ["".join(CHARS[b] for b in a) + " " + "".join(CHARS[b] for b in c) for a, c in self.merges]
        write_bytes(os.path.join(path, "merges.txt"), ("\n".join(lines) + "\n").encode())
        return len(vocab)


BPE = Bpe(CORPUS, 60)
TEXTS = ["It's the first thing", " the the  the", "  two  spaces ", "don't they'll we've you're he'd I'm 'tis 'S '", "x=1+2; y",
         "1234 56a", "tab\tx \t y\n", "!!'s", "caf\u00e9 na\u00efve \u4f60\u597d", "(other). \"q\"  \n\n\n  z", " ", "\n", " \n a",
         "that", "ends with spaces   ", "\x01\x7f b", "and so on!!!  And so on"]


@case
def test_transformers_sample_makes_tokens_of_text_as_gpt2_does(t):
    path = make_folder(t, len(BPE.tokens) + 1)
    BPE.write(path)
    rng = random.Random(5)
    texts = TEXTS + ["".join(rng.choice("aetths 19 '\n\t.,!-slrvmd  ") for _ in range(rng.randrange(1, 40))) for _ in range(60)]
    for text in texts:
        r = sample(t, path, "--prompt", text, "--logits")
        t.equal(r["prompt_ids"], BPE.encode(text), f"the tokens of {text!r}")
        t.log.clear()


@case
def test_transformers_sample_makes_text_of_tokens(t):
    path = make_folder(t, len(BPE.tokens) + 1)
    BPE.write(path)
    end = len(BPE.tokens)
    r = sample(t, path, "--tokens", 300, "--temperature", 5)
    t.equal(r["prompt_ids"], [end], "the default prompt is the end of a text")
    t.check(end not in r["ids"], "the end of the text is part of it")
    data = b"".join(BPE.tokens[i] for i in r["ids"])
    t.equal(r["text"].replace("\ufffd", ""), data.replace(b"\0", b"\xff").decode("utf-8", "ignore"), "the text")
    live = t.start("--sample", path, "--tokens", 300, "--temperature", 5)
    live.process.wait()
    live.out.seek(0)
    t.equal(live.out.read(), data, "the bytes on standard output")
    lengths = {len(sample(t, path, "--tokens", 300, "--temperature", 100, "--seed", s)["ids"]) for s in range(20)}
    t.check(min(lengths) < 300, "the end of the text ends no text")


@case
def test_transformers_sample_of_a_run_with_the_tokenizer_of_a_folder(t):
    """A run has no tokenizer of its own."""
    path = make_folder(t, len(BPE.tokens) + 1)
    vocab = BPE.write(path)
    out = train(t, model_job("gpt2", {"model": {**SMALL_GPT2, "vocab": vocab}, "train.steps": 1}))
    t.contains(t.worker("--sample", out, "--prompt", "that", expect=2).err, "--tokenizer DIR", what="without one")
    r = sample(t, out, "--prompt", "that", "--tokenizer", path, "--tokens", 3)
    t.equal(r["prompt_ids"], BPE.encode("that"), "the tokens")
    t.check(isinstance(r["text"], str), "no text")
    t.equal(sample(t, out, "--prompt", "that", "--tokenizer", t.dir, expect=6)["path"], t.dir, "a folder without one")


VOCAB_WRONG = "is this the tokenizer of another model?"


@case(each=[
    ("of more tokens", "vocab.json", lambda text: text.replace('": 300', '": 3000'), [VOCAB_WRONG]),
    ("ids that are none", "vocab.json", lambda text: text.replace('": 300', '": "x"'), [VOCAB_WRONG]),
    ("an id twice", "vocab.json", lambda text: text.replace('": 300', '": 299'), ["299", "another token has"]),
    ("no object", "vocab.json", lambda text: "[]", ["an object"]),
    ("no JSON", "vocab.json", lambda text: "{", ["vocab.json"]),
    ("a line of one", "merges.txt", lambda text: text + "t\n", ["line 62"]),
    ("tokens that are none", "merges.txt", lambda text: text + "qq zz\n", ["line 62"]),
    ("nothing made of two", "merges.txt", lambda text: text + "q q\n", ["line 62"]),
    ("other characters", "merges.txt", lambda text: text + "\u4f60 \u597d\n", ["line 62"]),
])
def test_transformers_sample_with_a_wrong_tokenizer_is_refused(t, value):
    _, file, change, says = value
    path = make_folder(t, len(BPE.tokens) + 1)
    BPE.write(path)
    with open(os.path.join(path, file), encoding="utf-8") as f:
        text = change(f.read())
    write_bytes(os.path.join(path, file), text.encode())
    r = sample(t, path, "--prompt", "a", expect=2)
    t.contains(r["path"] + ": " + r["message"], os.path.join(path, file), *says, what="the error")


@case
def test_transformers_sample_result_is_read_by_others(t):
    """The folder of an export is a source as any other."""
    out, back = byte_model(t), t.path("back")
    t.worker("--export", out, "--hf", back)
    r = sample(t, back, "--prompt", TEXT[:20], "--tokens", 30, "--temperature", 0)
    t.equal((r["text"], r["step"]), (TEXT[20:] + TEXT[:3], None), "the text")
    t.equal(read_json(os.path.join(back, "config.json"))["vocab_size"], 256, "vocab_size")
