/* make-digits: writes a set of digits that look handwritten, for machines where nothing can be downloaded.
 * The four IDX files have the format and the names of the well-known sets. The seed determines every byte
 * (digit.c). A file gets its name only when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "tools/digits/digit.h"

enum { TRAIN_DEFAULT = 60000, TEST_DEFAULT = 10000, MOST_IMAGES = 10000000 };
enum { MAGIC_LABELS = 0x00000801, MAGIC_IMAGES = 0x00000803 }; /* bytes, of one or three dimensions */

static const char usage[] =
    "usage: make-digits DIR [options]\n"
    "\n"
    "Makes a set of distorted digits, 28 x 28 bytes each, in IDX form: train-images-idx3-ubyte,\n"
    "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte in DIR, which is\n"
    "made where it is missing. The same numbers give the same bytes on every machine.\n"
    "\n"
    "  --train N   images to train on (default 60000)\n"
    "  --test N    images to test on (default 10000)\n"
    "  --seed S    another set (default 1)\n"
    "  --help\n";

struct options {
    const char *dir;
    uint64_t images[DIGIT_SPLIT_COUNT], seed;
};

/* A function that writes all elements of a file. The caller has already written the header. */
typedef void write_fn(FILE *f, uint64_t seed, enum digit_split split, uint32_t images);

struct idx_file {
    const char *name;
    enum digit_split split;
    uint32_t magic;
    write_fn *write;
};

/* ------------------------------------------------------------------------------------------ files */

static void write_labels(FILE *f, uint64_t seed, enum digit_split split, uint32_t images)
{
    for (uint32_t i = 0; i < images && !ferror(f); i++)
        putc(digit_label(seed, split, i), f);
}

static void write_images(FILE *f, uint64_t seed, enum digit_split split, uint32_t images)
{
    uint8_t pixels[DIGIT_PIXELS];

    for (uint32_t i = 0; i < images && !ferror(f); i++) {
        digit_draw(seed, split, i, pixels);
        fwrite(pixels, 1, sizeof pixels, f);
    }
}

static const struct idx_file idx_files[] = {
    {"t10k-images-idx3-ubyte", DIGIT_TEST, MAGIC_IMAGES, write_images},
    {"t10k-labels-idx1-ubyte", DIGIT_TEST, MAGIC_LABELS, write_labels},
    {"train-images-idx3-ubyte", DIGIT_TRAIN, MAGIC_IMAGES, write_images},
    {"train-labels-idx1-ubyte", DIGIT_TRAIN, MAGIC_LABELS, write_labels},
};

static void write_big_endian(FILE *f, uint32_t v)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        putc((int)(v >> shift & 255), f);
}

/* Writes the header and the elements of the file. Returns 0 or a negative errno. Closes `f` in any case. */
static int write_content(FILE *f, const struct idx_file *file, uint64_t seed, uint32_t images)
{
    int r = 0;

    errno = EIO; /* used if the library sets no errno */
    write_big_endian(f, file->magic);
    write_big_endian(f, images);
    if (file->magic == MAGIC_IMAGES) {
        write_big_endian(f, DIGIT_SIDE);
        write_big_endian(f, DIGIT_SIDE);
    }
    file->write(f, seed, file->split, images);
    if (ferror(f) || fflush(f) != 0 || fsync(fileno(f)) < 0)
        r = -errno;
    if (fclose(f) != 0 && r == 0)
        r = -errno;
    return r;
}

/* Writes the file first under a temporary name and then renames it. The temporary name contains the process
 * id, so that two processes can write at the same time. */
static int write_file(const struct options *o, const struct idx_file *file, struct err *err)
{
    char path[PATH_MAX], draft[PATH_MAX];
    FILE *f;
    int r, n = snprintf(draft, sizeof draft, "%s/%s.%ld.tmp", o->dir, file->name, (long)getpid());

    if (n < 0 || (size_t)n >= sizeof draft)
        return err_set_at(err, -ENAMETOOLONG, o->dir, "the path is too long");
    snprintf(path, sizeof path, "%s/%s", o->dir, file->name);
    f = fopen(draft, "wbe");
    if (!f)
        return err_set_at(err, -errno, draft, "cannot create the file: %s", strerror(errno));
    r = write_content(f, file, o->seed, (uint32_t)o->images[file->split]);
    if (r == 0 && rename(draft, path) < 0)
        r = -errno;
    if (r < 0) {
        unlink(draft);
        return err_set_at(err, r, path, "cannot write the file: %s", strerror(-r));
    }
    return 0;
}

static int make_digits(const struct options *o, struct err *err)
{
    int r = 0;

    if (mkdir(o->dir, 0777) < 0 && errno != EEXIST)
        return err_set_at(err, -errno, o->dir, "cannot make the directory: %s", strerror(errno));
    for (size_t i = 0; i < sizeof idx_files / sizeof idx_files[0] && r == 0; i++)
        r = write_file(o, &idx_files[i], err);
    return r;
}

/* ------------------------------------------------------------------------------------------ options */

static int parse_number(const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *ret,
                        struct err *err)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || v < least || v > most)
        return err_set_at(err, -EINVAL, name, "\"%s\" is no whole number from %" PRIu64 " to %" PRIu64, text,
                          least, most);
    *ret = v;
    return 0;
}

enum option_id { OPT_HELP = 256, OPT_SEED, OPT_TEST, OPT_TRAIN };

static int take_option(int id, const char *value, struct options *o, struct err *err)
{
    switch (id) {
    case OPT_SEED:
        return parse_number("--seed", value, 0, UINT64_MAX, &o->seed, err);
    case OPT_TEST:
        return parse_number("--test", value, 1, MOST_IMAGES, &o->images[DIGIT_TEST], err);
    case OPT_TRAIN:
        return parse_number("--train", value, 1, MOST_IMAGES, &o->images[DIGIT_TRAIN], err);
    default:
        return -EINVAL; /* getopt has said it */
    }
}

/* Parses the command line. Returns 0, 1 if help was asked for, or a negative errno. `err` is empty if getopt
 * has already printed the reason. */
static int parse(int argc, char **argv, struct options *o, struct err *err)
{
    static const struct option table[] = {
        {"help", no_argument, NULL, OPT_HELP},
        {"seed", required_argument, NULL, OPT_SEED},
        {"test", required_argument, NULL, OPT_TEST},
        {"train", required_argument, NULL, OPT_TRAIN},
        {0},
    };
    int id, r = 0;

    while (r == 0 && (id = getopt_long(argc, argv, "h", table, NULL)) != -1) {
        if (id == OPT_HELP || id == 'h')
            return 1;
        r = take_option(id, optarg, o, err);
    }
    if (r < 0)
        return r;
    if (optind + 1 != argc)
        return err_set(err, -EINVAL, "%s; see --help",
                       optind == argc ? "give the directory to write to" : "one directory only");
    o->dir = argv[optind];
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {.images = {[DIGIT_TRAIN] = TRAIN_DEFAULT, [DIGIT_TEST] = TEST_DEFAULT}, .seed = 1};
    struct err err = {0};
    char text[sizeof err.path + sizeof err.msg];
    int r = parse(argc, argv, &o, &err), code = 2;

    if (r == 1)
        return fputs(usage, stdout) < 0 || fflush(stdout) != 0;
    if (r == 0) {
        r = make_digits(&o, &err);
        code = 1;
    }
    if (r == 0)
        return 0;
    if (err.code != 0)
        fprintf(stderr, "make-digits: %s\n", err_text(&err, text, sizeof text));
    return code;
}
