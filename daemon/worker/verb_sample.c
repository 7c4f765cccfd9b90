/* --sample: continues a text, token by token, with a trained model. The model comes from a job's output
 * directory (the finished job or a checkpoint) or from a Hugging Face folder.
 *
 * Text and tokens: in a model with a vocabulary of 256, each byte is a token. A folder with vocab.json and
 * merges.txt has the tokenizer of GPT-2. For any other model, token ids are read and printed. The text goes
 * to standard output as it is sampled, and nothing else does. With --json, one object is printed at the end.
 *
 * A gpt2 model has a fixed number of positions. When the text is longer, the model sees only the last
 * tokens of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/print.h"
#include "base/utf8.h"
#include "daemon/worker/data/bpe.h"
#include "daemon/worker/model/decoder.h"
#include "daemon/worker/model/hf.h"
#include "daemon/worker/model/sampler.h"
#include "daemon/worker/model/weights.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

#define END_OF_TEXT "<|endoftext|>" /* token that ends a GPT-2 text */
/* Number of tokens in a vocabulary in which each byte is a token. */
#define BYTES 256

/* The state of the verb --sample: the model, the text so far, and the options for continuing the text. */
struct sampling {
    const struct verb_options *o;
    const struct sample_options *s;
    struct transformer t;
    struct decoder *decoder;
    /* The directory that the model comes from. out.fd is -1 until the directory is open. */
    struct outdir out;
    /* The Hugging Face folder that the model comes from. NULL if the model comes from a job's output
     * directory. */
    struct hf *folder;
    struct weights weights;
    struct bpe *bpe; /* the tokenizer, or NULL */
    int64_t end;     /* token that ends a text, or -1 */
    /* The tokens of the prompt, followed by the tokens that were sampled. */
    struct bpe_ids ids;
    size_t n_prompt; /* number of tokens in the prompt */
    /* Scratch memory of the sampler, with one entry for each token of the vocabulary. */
    uint32_t *order;
    /* The sampled text. Without --json, it has only the part that was not printed yet. */
    struct strbuf text;
    bool terminal;  /* standard output is a terminal */
    double seconds; /* how long sampling took */
};

/* ---- the source of the model ---- */

static bool has_file(int dir, const char *name)
{
    return faccessat(dir, name, F_OK, 0) == 0;
}

static int open_run(struct sampling *g, struct err *err)
{
    int r = weights_transformer(&g->out, &g->t, err);
    if (r == -ENOENT)
        return err_set_at(err, -EINVAL, g->out.name,
                          "the job has no gpt2 or llama model; only those can generate text");
    return r < 0 ? r : weights_open(&g->out, g->s->step, &g->weights, err);
}

static int open_folder(struct sampling *g, struct err *err)
{
    if (g->s->step != NULL)
        return err_set_at(err, -EINVAL, "--step",
                          "%s is a Hugging Face folder, which has one set of weights; leave it out",
                          g->s->source);
    int r = hf_open(g->s->source, &g->folder, err);
    if (r == 0)
        g->t = *hf_transformer(g->folder);
    return r;
}

static int open_source(struct sampling *g, struct err *err)
{
    int fd = open(g->s->source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fs_fail(err, -errno, NULL, g->s->source, "open the directory of a job or model");
    g->out = (struct outdir){fd, g->s->source};
    if (has_file(fd, RUN_RESOLVED_FILE))
        return open_run(g, err);
    if (has_file(fd, "config.json"))
        return open_folder(g, err);
    return err_set_at(err, -ENOENT, g->s->source,
                      "is neither the output of a job (there is no " RUN_RESOLVED_FILE
                      " in it) nor a Hugging Face folder (there is no config.json)");
}

/* ---- text and tokens ---- */

static int open_tokenizer(struct sampling *g, struct err *err)
{
    const char *dir = g->s->tokenizer;
    if (dir != NULL && !bpe_is_there(dir))
        return err_set_at(err, -ENOENT, dir, "there are no vocab.json and merges.txt in it");
    if (dir == NULL && g->folder != NULL && bpe_is_there(g->s->source))
        dir = g->s->source;
    if (dir == NULL)
        return 0;
    int r = bpe_open(dir, g->t.vocab, &g->bpe, err);
    if (r == 0)
        g->end = bpe_find(g->bpe, END_OF_TEXT, strlen(END_OF_TEXT));
    return r;
}

static bool has_text(const struct sampling *g)
{
    return g->bpe != NULL || g->t.vocab == BYTES;
}

static int read_prompt(struct sampling *g, const char *text, struct err *err)
{
    if (text[0] == '\0')
        return err_set_at(err, -EINVAL, "--prompt",
                          "is empty, and there must be something to go on from; leave it out for a new text");
    if (!has_text(g))
        return err_set_at(err, -EINVAL, "--prompt",
                          "the model has a vocabulary of %" PRIu32
                          " tokens and no tokenizer (vocab.json and merges.txt); give the tokens as "
                          "--prompt-ids 1,2,3, or the folder with these files as --tokenizer DIR",
                          g->t.vocab);
    if (g->bpe != NULL)
        return bpe_encode(g->bpe, text, strlen(text), &g->ids, err);
    for (; *text != '\0'; text++)
        vec_push(&g->ids.list, (unsigned char)*text);
    return 0;
}

/* Reads token ids such as "1,2,3". */
static int read_ids(struct sampling *g, const char *text, struct err *err)
{
    for (const char *at = text;; at++) {
        char *end = NULL;
        errno = 0;
        unsigned long v = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (end == NULL || errno != 0 || (*end != ',' && *end != '\0'))
            return err_set_at(err, -EINVAL, "--prompt-ids",
                              "expected numbers, separated by commas, such as 1,2,3; found \"%s\"", text);
        if (v >= g->t.vocab)
            return err_set_at(err, -EINVAL, "--prompt-ids",
                              "%lu is no token: the model's vocabulary has %" PRIu32, v, g->t.vocab);
        vec_push(&g->ids.list, (int32_t)v);
        at = end;
        if (*at == '\0')
            return 0;
    }
}

/* Returns the token with which a text starts if there is no prompt: a line feed if tokens are bytes,
 * end-of-text for GPT-2's tokenizer, otherwise token 0. */
static int32_t first_token(const struct sampling *g)
{
    if (g->bpe == NULL)
        return has_text(g) ? '\n' : 0;
    return g->end >= 0 ? (int32_t)g->end : 0;
}

static int prepare_prompt(struct sampling *g, struct err *err)
{
    int r = open_tokenizer(g, err);
    if (r == 0 && g->s->prompt != NULL)
        r = read_prompt(g, g->s->prompt, err);
    else if (r == 0 && g->s->prompt_ids != NULL)
        r = read_ids(g, g->s->prompt_ids, err);
    else if (r == 0)
        vec_push(&g->ids.list, first_token(g));
    g->n_prompt = g->ids.list.n;
    return r;
}

/* ---- weights ---- */

static int load_run(struct sampling *g, struct err *err)
{
    const struct checkpoint_tensors *t = decoder_tensors(g->decoder);
    struct safetensors *f;
    uint64_t hash;
    int r = weights_copy(&g->weights, -1, NULL, &hash, err);
    if (r == 0)
        r = safetensors_open(g->weights.fd, g->weights.path, &f, err);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < t->n_model; i++)
        r = safetensors_read_rounded(f, &t->model[i], err);
    safetensors_close(f);
    return r;
}

static int load(struct sampling *g, struct err *err)
{
    uint64_t most = g->n_prompt + (g->s->logits ? 0 : g->s->tokens);
    uint32_t threads = g->o->job.threads > 0 ? g->o->job.threads : job_allowed_cores();
    /* A run is sampled with the weights with which it computed. A folder is sampled in float. */
    enum dtype dtype = g->folder != NULL ? DTYPE_F32 : spec_dtype(weights_precision(&g->out));
    int r = decoder_create(&g->t, dtype, most < UINT32_MAX ? (uint32_t)most : UINT32_MAX, threads,
                           &g->decoder, err);
    if (r < 0)
        return r;
    g->order = malloc(g->t.vocab * sizeof *g->order);
    if (g->order == NULL)
        return err_set(err, -ENOMEM, "no memory for a vocabulary of %" PRIu32, g->t.vocab);
    const struct checkpoint_tensors *t = decoder_tensors(g->decoder);
    return g->folder != NULL ? hf_load(g->folder, t->model, t->n_model, err) : load_run(g, err);
}

/* ---- sampling ---- */

/* Feeds the new tokens to the model. If the text becomes longer than the model allows, the model starts again
 * with only the last tokens of the text. */
static int advance(struct sampling *g, struct err *err)
{
    uint32_t length = decoder_length(g->decoder), room = decoder_capacity(g->decoder);
    size_t n = g->ids.list.n, more = n - length;
    if (n > room) {
        decoder_reset(g->decoder);
        more = room;
    }
    return decoder_push(g->decoder, g->ids.list.at + n - more, (uint32_t)more, err);
}

/* Prints the sampled text that was not printed yet. A file or pipe gets the exact bytes. A terminal gets
 * unsafe characters as escapes. On a terminal, an incomplete UTF-8 character is printed only when its last
 * bytes come, or if `end` is true. */
static int flush_text(struct sampling *g, bool end, struct err *err)
{
    size_t n = g->terminal && !end ? utf8_whole_bytes(g->text.at, g->text.n) : g->text.n;
    int r =
        g->terminal ? print_text(STDOUT_FILENO, g->text.at, n) : print_bytes(STDOUT_FILENO, g->text.at, n);
    if (r < 0)
        return err_set(err, r, "cannot write to standard output: %s", strerror(-r));
    struct strbuf rest = {0};
    strbuf_addn(&rest, n < g->text.n ? g->text.at + n : "", g->text.n - n);
    strbuf_finish(&g->text);
    g->text = rest;
    return 0;
}

/* Prints the text of one token. If the model's vocabulary is larger than that of the tokenizer, the
 * additional tokens have no text. */
static int put_token(struct sampling *g, int32_t id, struct err *err)
{
    size_t n = 0;
    const char *p;
    if (g->bpe != NULL) {
        p = bpe_bytes(g->bpe, (uint32_t)id, &n);
        strbuf_addn(&g->text, p, p != NULL ? n : 0);
    } else if (has_text(g)) {
        strbuf_addn(&g->text, (const char[]){(char)id}, 1);
    } else if (!g->o->json) {
        strbuf_addf(&g->text, "%s%" PRId32, g->ids.list.n > g->n_prompt + 1 ? " " : "", id);
    }
    return g->o->json || g->text.n == 0 ? 0 : flush_text(g, false, err);
}

static int sample(struct sampling *g, struct err *err)
{
    const struct sampler how = {g->s->temperature, g->s->top_k, g->s->seed};
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < g->s->tokens; i++) {
        r = advance(g, err);
        if (r < 0)
            return r;
        int32_t id = (int32_t)sampler_choose(&how, decoder_logits(g->decoder), g->t.vocab, i, g->order);
        if (id == g->end)
            break;
        vec_push(&g->ids.list, id);
        r = put_token(g, id, err);
    }
    return r == 0 && !g->o->json && g->text.n > 0 ? flush_text(g, true, err) : r;
}

/* ---- printing ---- */

static void add_ids(struct strbuf *b, const char *key, const int32_t *ids, size_t n)
{
    strbuf_addf(b, ",\"%s\":[", key);
    for (size_t i = 0; i < n; i++)
        strbuf_addf(b, "%s%" PRId32, i > 0 ? "," : "", ids[i]);
    strbuf_add(b, "]");
}

/* Appends the sampled text as a JSON string. NUL and invalid bytes become U+FFFD, so the text may be inexact.
 * The member "ids" has the exact tokens. */
static void add_sampled_text(struct strbuf *b, const struct sampling *g)
{
    strbuf_add(b, ",\"text\":");
    if (has_text(g))
        strbuf_add_jsonn(b, g->text.n > 0 ? g->text.at : "", g->text.n);
    else
        strbuf_add(b, "null");
}

static void add_logits(struct strbuf *b, const struct sampling *g, const char *before, const char *between)
{
    const float *logits = decoder_logits(g->decoder);
    strbuf_add(b, before);
    for (uint32_t i = 0; i < g->t.vocab; i++)
        strbuf_addf(b, "%s%.9g", i > 0 ? between : "", (double)logits[i]);
}

static void add_sample_json(struct strbuf *b, struct sampling *g)
{
    strbuf_addf(b, "{\"ok\":true,\"model\":\"%s\",\"source\":", transformer_arch_names[g->t.arch]);
    strbuf_add_json(b, g->s->source);
    if (g->folder == NULL)
        strbuf_addf(b, ",\"step\":%" PRIu64, g->weights.step);
    else
        strbuf_add(b, ",\"step\":null");
    add_ids(b, "prompt_ids", g->ids.list.at, g->n_prompt);
    if (g->s->logits) {
        add_logits(b, g, ",\"logits\":[", ",");
        strbuf_add(b, "]}\n");
        return;
    }
    add_ids(b, "ids", g->ids.list.at + g->n_prompt, g->ids.list.n - g->n_prompt);
    add_sampled_text(b, g);
    strbuf_addf(b, ",\"seconds\":%.6f}\n", g->seconds);
}

/* Prints the end of the output. With --json, this is the whole JSON object. Otherwise the text was already
 * printed while it was sampled, so only the logits and a last line feed may be missing. */
static int print_sample(struct sampling *g)
{
    struct strbuf b = {0};
    if (g->o->json)
        add_sample_json(&b, g);
    else if (g->s->logits)
        add_logits(&b, g, "", "\n");
    if (!g->o->json && (g->s->logits || g->terminal || !has_text(g)))
        strbuf_add(&b, "\n");
    return b.n > 0 ? print_buffer(&b) : EXIT_DONE;
}

/* ---- the verb ---- */

static int sample_text(struct sampling *g, struct err *err)
{
    int r = open_source(g, err);
    if (r == 0)
        r = prepare_prompt(g, err);
    if (r == 0)
        r = load(g, err);
    if (r < 0)
        return r;
    uint64_t begin = clock_now_ns();
    r = g->s->logits ? advance(g, err) : sample(g, err);
    g->seconds = (double)(clock_now_ns() - begin) * 1e-9;
    return r;
}

static void finish(struct sampling *g)
{
    decoder_destroy(g->decoder);
    hf_close(g->folder);
    bpe_close(g->bpe);
    weights_close(&g->weights);
    if (g->out.fd >= 0)
        close(g->out.fd);
    vec_free(&g->ids.list);
    strbuf_finish(&g->text);
    free(g->order);
}

static int sample_exit(int code)
{
    if (code == -ENOENT)
        return EXIT_NOT_FOUND;
    return code == -EINVAL || code == -EOPNOTSUPP ? EXIT_INVALID : EXIT_FAILED;
}

static int run_sample(const struct verb_options *o)
{
    struct err err = {0};
    struct sampling g = {.o = o, .s = &o->sample, .out.fd = -1, .weights.fd = -1, .end = -1};
    g.terminal = !o->json && isatty(STDOUT_FILENO);
    int r = sample_text(&g, &err);
    if (r < 0 && g.ids.list.n > g.n_prompt && g.terminal)
        print_bytes(STDOUT_FILENO, "\n", 1); /* start a new line for the error */
    int code = r < 0 ? report_failure(o, sample_exit(r), r, &err, 0) : print_sample(&g);
    finish(&g);
    return code;
}

static int parse_temperature(const char *text, struct verb_options *o, struct err *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !(v >= 0 && v <= 1000))
        return err_set_at(err, -EINVAL, "--temperature", "expected a number from 0 to 1000, found \"%s\"",
                          text);
    o->sample.temperature = v;
    return 0;
}

static void set_sample_defaults(struct verb_options *o)
{
    o->sample.tokens = 200;
    o->sample.temperature = 0.8;
}

static int check_sample(const struct verb_options *o, struct err *err)
{
    if (o->sample.prompt != NULL && o->sample.prompt_ids != NULL)
        return err_set(err, -EINVAL, "--prompt and --prompt-ids both give the prompt; give one of them");
    return 0;
}

static const struct worker_option rows[] = {
    {"prompt", "TEXT", "the text to continue (default: start a new text)", OPTION_TEXT,
     OPTION_AT(sample.prompt)},
    {"prompt-ids", "LIST", "the text to continue as token ids, e.g. 1,2,3, in place of --prompt", OPTION_TEXT,
     OPTION_AT(sample.prompt_ids)},
    {"tokens", "N", "the most tokens to generate (default: 200)", OPTION_U32, OPTION_AT(sample.tokens), 1,
     1u << 24},
    {"temperature", "T", "0: always the likeliest token; 1: by the model's probabilities (default: 0.8)",
     OPTION_PARSED, .parse = parse_temperature},
    {"top-k", "K", "choose only among the K likeliest tokens; 0: among all (default: 0)", OPTION_U32,
     OPTION_AT(sample.top_k), 0, UINT32_MAX},
    {"seed", "S", "random seed; the same seed gives the same text (default: 0)", OPTION_U64,
     OPTION_AT(sample.seed), 0, UINT64_MAX},
    {"step", "N|best|last", "use the weights of a checkpoint, as with --export", OPTION_TEXT,
     OPTION_AT(sample.step)},
    {"tokenizer", "DIR", "where vocab.json and merges.txt are (default: the Hugging Face folder)",
     OPTION_TEXT, OPTION_AT(sample.tokenizer)},
    {"logits", NULL, "print the logits of the next token instead of text", OPTION_FLAG,
     OPTION_AT(sample.logits)},
    {0},
};

static const struct option_table options = {"what to sample", rows};

static const char *const where[] = {"threads", NULL};

const struct worker_verb verb_sample = {
    .word = {"sample", "DIR", .kind = OPTION_TEXT, .at = OPTION_AT(sample.source)},
    .forms = {{"DIR [options]", "generate text with a job's output or a Hugging Face folder"}},
    .tables = {&options},
    .where = where,
    .set_defaults = set_sample_defaults,
    .check = check_sample,
    .run = run_sample,
};
