/* A validating scanner for JSON, after the grammar of RFC 8259.
 *
 * cJSON accepts text that is not JSON (01, NaN-like words, raw control characters, broken UTF-8, lone
 * surrogates), and it does not say where a document is wrong. So this scanner checks the text first, and
 * cJSON sees only valid documents. The scanner also refuses three things that JSON allows but that cJSON or a
 * C string cannot represent: \u0000, nesting deeper than JSON_MAX_DEPTH, and numbers of more than 63
 * characters, the size of cJSON's buffer.
 *
 * On request (struct json_options) the scanner counts values and finds the source text of one member.
 *
 * DESIGN: the scanner is a loop over tokens. `expect` says which token may come next, and `open` is the stack
 * of open brackets. There is no recursion, so deep nesting in hostile input is cheap to refuse. Lines and
 * columns are counted only after an error. The functions are pure, and any thread may call them.
 */
#include "base/json_scan.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/utf8.h"

enum { MAX_NUMBER_CHARS = 63, END_OF_TEXT = -1 };

enum expect {
    EXPECT_VALUE,
    EXPECT_VALUE_OR_END, /* right after [ */
    EXPECT_KEY,          /* right after a comma in an object */
    EXPECT_KEY_OR_END,   /* right after { */
    EXPECT_COLON,
    EXPECT_COMMA_OR_END,
    EXPECT_NOTHING, /* the document is complete */
};

/* The state of one scan. */
struct scan {
    const unsigned char *text;
    size_t bytes, at;
    const char *name;
    const struct json_options *options;
    struct err *err;
    enum expect expect;
    char open[JSON_MAX_DEPTH]; /* the open brackets, '{' or '[' */
    int depth;                 /* how many brackets are open */
    size_t nodes;              /* values that have begun */
    bool wanted;               /* the current member is options->find */
    size_t value;              /* where that member's value begins */
};

/* ------------------------------------------------------------------------------------------ messages */

/* Writes the position of the byte at index `at` to `path`, in the form "name:line:column". */
static void format_position(const struct scan *s, size_t at, char *path, size_t size)
{
    char name[sizeof s->err->path - 48];
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at; i++) {
        if (s->text[i] == '\n') {
            line++;
            column = 1;
        } else if ((s->text[i] & 0xC0) != 0x80) { /* editors count characters, not bytes */
            column++;
        }
    }
    utf8_copy(name, sizeof name, s->name);
    snprintf(path, size, "%s:%zu:%zu", name, line, column);
}

static int __attribute__((format(printf, 3, 4)))
fail_at(const struct scan *s, size_t at, const char *fmt, ...)
{
    char path[sizeof s->err->path];
    va_list ap;

    format_position(s, at, path, sizeof path);
    va_start(ap, fmt);
    err_setv(s->err, -EINVAL, path, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static int peek(const struct scan *s)
{
    return s->at < s->bytes ? s->text[s->at] : END_OF_TEXT;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Copies the word that begins at the current position to `buf`, for a message. */
static void copy_word(const struct scan *s, char *buf, size_t size)
{
    size_t n = 0;

    while (n + 1 < size && s->at + n < s->bytes &&
           (is_letter(s->text[s->at + n]) || is_digit(s->text[s->at + n])))
        n++;
    memcpy(buf, s->text + s->at, n);
    buf[n] = '\0';
}

static int fail_comment(const struct scan *s)
{
    if (s->options->comments)
        return fail_at(s, s->at, "expected a value or punctuation, found '/'; comments begin with //");
    return fail_at(s, s->at, "comments are not allowed here; remove the comment");
}

/* Reports that JSON does not allow the current character at this place. The message contains "expected" and
 * the text `wanted`. */
static int fail_unexpected(const struct scan *s, const char *wanted)
{
    int c = peek(s);
    char word[24];

    if (c == END_OF_TEXT)
        return fail_at(s, s->at, "the document ends too early: expected %s", wanted);
    if (c == '/')
        return fail_comment(s);
    if (is_letter(c)) {
        copy_word(s, word, sizeof word);
        return fail_at(s, s->at, "expected %s, found %s", wanted, word);
    }
    if (c > 0x20 && c < 0x7F)
        return fail_at(s, s->at, "expected %s, found '%c'", wanted, c);
    return fail_at(s, s->at, "expected %s, found byte 0x%02x", wanted, (unsigned)c);
}

static int fail_value(const struct scan *s)
{
    int c = peek(s);
    char word[24];

    if (s->depth == 0 && c == END_OF_TEXT)
        return fail_at(s, s->at, "the document is empty; expected a value, such as {\"key\": 1}");
    if (c == ']' && s->depth > 0 && s->open[s->depth - 1] == '[')
        return fail_at(s, s->at, "a value is missing before ']'; remove the comma before it");
    if (c == '\'')
        return fail_at(s, s->at, "strings are written in double quotes, not in single quotes");
    if (c == '+' || c == '.')
        return fail_at(s, s->at, "a number begins with a digit or '-', not with '%c'; write 0.5 or 5", c);
    if (!is_letter(c))
        return fail_unexpected(s, "a value");
    copy_word(s, word, sizeof word);
    if (strcasecmp(word, "nan") == 0 || strncasecmp(word, "inf", 3) == 0)
        return fail_at(s, s->at, "JSON has no %s; write a finite number", word);
    return fail_at(s, s->at,
                   "expected a value, found %s; words are true, false and null, text is written in quotes",
                   word);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* --------------------------------------------------------------------------------------------- tokens */

static void skip_space(struct scan *s)
{
    while (s->at < s->bytes && is_blank(s->text[s->at]))
        s->at++;
}

/* Returns the value of the four hexadecimal digits at index `at`, or -1 if there are no such digits. */
static int hex4(const struct scan *s, size_t at)
{
    int v = 0;

    if (s->bytes - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        int c = s->text[i];
        if (is_digit(c))
            v = v * 16 + c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v * 16 + (c | 0x20) - 'a' + 10;
        else
            return -1;
    }
    return v;
}

static bool is_high_surrogate(int v)
{
    return v >= 0xD800 && v <= 0xDBFF;
}

static bool is_low_surrogate(int v)
{
    return v >= 0xDC00 && v <= 0xDFFF;
}

/* Scans an escape such as \u00e9, or two such escapes that form one character (a surrogate pair). The
 * current character is the backslash. */
static int scan_unicode_escape(struct scan *s)
{
    size_t start = s->at;
    int v = hex4(s, start + 2), low = -1;

    if (v < 0)
        return fail_at(s, start, "\\u must be followed by four hexadecimal digits");
    if (v == 0)
        return fail_at(s, start, "\\u0000 is not supported: text may not contain NUL; remove it");
    s->at += 6;
    if (is_high_surrogate(v)) {
        if (s->bytes - s->at >= 6 && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u')
            low = hex4(s, s->at + 2);
        s->at += 6;
    }
    if (is_low_surrogate(v) || (is_high_surrogate(v) && !is_low_surrogate(low)))
        return fail_at(s, start,
                       "\\u%04x is half of a surrogate pair; write both halves or the character itself",
                       (unsigned)v);
    return 0;
}

/* Scans an escape inside a string, such as \n. The current character is the backslash. */
static int scan_escape(struct scan *s)
{
    int c = s->bytes - s->at > 1 ? s->text[s->at + 1] : END_OF_TEXT;

    if (c == 'u')
        return scan_unicode_escape(s);
    if (c != END_OF_TEXT && c != 0 && strchr("\"\\/bfnrt", c)) {
        s->at += 2;
        return 0;
    }
    return fail_at(s, s->at, "this is not an escape of JSON; write \\\\ for a backslash");
}

static int fail_control(const struct scan *s, int c)
{
    if (c == '\n' || c == '\r')
        return fail_at(s, s->at, "a string may not span lines; close it with \" or write \\n");
    if (c == 0)
        return fail_at(s, s->at, "NUL byte in a string; remove it");
    return fail_at(s, s->at, "control character in a string; write it as \\u%04x", (unsigned)c);
}

/* Scans a whole string. The current character is its opening quote. */
static int scan_string(struct scan *s)
{
    size_t start = s->at++;
    int c, r;

    while ((c = peek(s)) != '"') {
        if (c == END_OF_TEXT)
            return fail_at(s, start, "the string that begins here is never closed; add \" at its end");
        if (c < 0x20)
            return fail_control(s, c);
        if (c == '\\') {
            r = scan_escape(s);
            if (r < 0)
                return r;
        } else {
            size_t n = utf8_char_bytes(s->text + s->at, s->bytes - s->at);
            if (n == 0)
                return fail_at(s, s->at, "byte 0x%02x is not valid UTF-8; save the document as UTF-8",
                               (unsigned)c);
            s->at += n;
        }
    }
    s->at++;
    return 0;
}

/* Scans a sequence of digits. Returns false if there is no digit. */
static bool scan_digits(struct scan *s)
{
    size_t start = s->at;

    while (is_digit(peek(s)))
        s->at++;
    return s->at > start;
}

static int scan_number(struct scan *s)
{
    size_t start = s->at;

    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s)))
            return fail_at(s, start, "a number may not begin with 0; remove the leading zeros");
    } else if (!scan_digits(s)) {
        return fail_at(s, start, "'-' must be followed by a digit");
    }
    if (peek(s) == '.') {
        s->at++;
        if (!scan_digits(s))
            return fail_at(s, start, "the decimal point must be followed by a digit, as in 1.0");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (!scan_digits(s))
            return fail_at(s, start, "the exponent must have a digit, as in 1e-3");
    }
    if (s->at - start > MAX_NUMBER_CHARS)
        return fail_at(s, start, "a number may have at most %d characters; round it", MAX_NUMBER_CHARS);
    return 0;
}

static int scan_word(struct scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    char word[24];

    copy_word(s, word, sizeof word);
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) == 0) {
            s->at += strlen(word);
            return 0;
        }
    }
    return fail_value(s);
}

/* ------------------------------------------------------------------------------------------ structure */

/* Counts the value that begins at the current position. Returns an error if the document has too many values.
 * If the value belongs to the key options->find, also records where the value begins. */
static int begin_value(struct scan *s)
{
    char path[sizeof s->err->path];

    if (s->depth == 1 && s->wanted)
        s->value = s->at;
    s->nodes++;
    if (s->options->max_nodes == 0 || s->nodes <= s->options->max_nodes)
        return 0;
    format_position(s, s->at, path, sizeof path);
    return err_set_at(s->err, -E2BIG, path, "the document has more than %zu values; send a smaller one",
                      s->options->max_nodes);
}

static void after_value(struct scan *s)
{
    if (s->depth == 1 && s->wanted) {
        *s->options->found = (struct json_span){s->value, s->at};
        s->wanted = false;
    }
    s->expect = s->depth > 0 ? EXPECT_COMMA_OR_END : EXPECT_NOTHING;
}

static int open_bracket(struct scan *s, int c)
{
    if (s->depth == JSON_MAX_DEPTH)
        return fail_at(s, s->at, "nested deeper than %d levels; flatten the document", JSON_MAX_DEPTH);
    s->open[s->depth++] = (char)c;
    s->at++;
    s->expect = c == '{' ? EXPECT_KEY_OR_END : EXPECT_VALUE_OR_END;
    return 0;
}

static void close_bracket(struct scan *s)
{
    s->at++;
    s->depth--;
    after_value(s);
}

static int step_value(struct scan *s)
{
    int c = peek(s), r;

    if (c == ']' && s->expect == EXPECT_VALUE_OR_END) {
        close_bracket(s);
        return 0;
    }
    r = begin_value(s);
    if (r < 0)
        return r;
    if (c == '{' || c == '[')
        return open_bracket(s, c);
    if (c == '"')
        r = scan_string(s);
    else if (c == '-' || is_digit(c))
        r = scan_number(s);
    else if (is_letter(c))
        r = scan_word(s);
    else
        r = fail_value(s);
    if (r == 0)
        after_value(s);
    return r;
}

/* Returns true if the key in the bytes [begin, end) is equal to options->find. A key that is written with
 * escapes is not recognized. */
static bool is_wanted(const struct scan *s, size_t begin, size_t end)
{
    const char *find = s->options->find;

    return find && end - begin == strlen(find) && memcmp(s->text + begin, find, end - begin) == 0;
}

static int step_key(struct scan *s)
{
    size_t start = s->at;
    int c = peek(s), r;

    if (c == '}' && s->expect == EXPECT_KEY_OR_END) {
        close_bracket(s);
        return 0;
    }
    if (c == '}')
        return fail_at(s, s->at, "a key is missing before '}'; remove the comma before it");
    if (is_letter(c) || c == '\'')
        return fail_at(s, s->at, "keys are written in double quotes, as in \"name\": 1");
    if (c != '"')
        return fail_unexpected(s, s->expect == EXPECT_KEY ? "a key in double quotes"
                                                          : "a key in double quotes or '}'");
    r = scan_string(s);
    if (s->depth == 1)
        s->wanted = r == 0 && is_wanted(s, start + 1, s->at - 1);
    s->expect = EXPECT_COLON;
    return r;
}

static int step_colon(struct scan *s)
{
    if (peek(s) != ':')
        return fail_unexpected(s, "':' after the key");
    s->at++;
    s->expect = EXPECT_VALUE;
    return 0;
}

static int step_comma(struct scan *s)
{
    bool object = s->open[s->depth - 1] == '{';
    int c = peek(s);

    if (c == ',') {
        s->at++;
        s->expect = object ? EXPECT_KEY : EXPECT_VALUE;
        return 0;
    }
    if (c != (object ? '}' : ']'))
        return fail_unexpected(s, object ? "',' or '}'" : "',' or ']'");
    close_bracket(s);
    return 0;
}

static int step(struct scan *s)
{
    switch (s->expect) {
    case EXPECT_VALUE:
    case EXPECT_VALUE_OR_END:
        return step_value(s);
    case EXPECT_KEY:
    case EXPECT_KEY_OR_END:
        return step_key(s);
    case EXPECT_COLON:
        return step_colon(s);
    case EXPECT_COMMA_OR_END:
        return step_comma(s);
    case EXPECT_NOTHING:
        break;
    }
    return fail_unexpected(s, "the end of the document");
}

int json_scan(const char *text, size_t bytes, const char *name, const struct json_options *options,
              struct err *err)
{
    struct scan s = {.text = (const unsigned char *)text,
                     .bytes = bytes,
                     .name = name,
                     .options = options,
                     .err = err,
                     .expect = EXPECT_VALUE};
    int r = 0;

    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        return fail_at(&s, 0, "the document begins with a byte order mark; save it as UTF-8 without one");
    while (r == 0) {
        skip_space(&s);
        if (s.expect == EXPECT_NOTHING && s.at == s.bytes)
            return 0;
        r = step(&s);
    }
    return r;
}

/* Replaces comments by spaces, except inside strings. If a string has no closing quote, it is taken to end
 * with its line, so that comments on later lines are still found. */
void json_blank_comments(char *text, size_t bytes)
{
    bool in_string = false;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n') {
            in_string = false;
        } else if (in_string && text[i] == '\\') {
            i += i + 1 < bytes && text[i + 1] != '\n';
        } else if (text[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && text[i] == '/' && i + 1 < bytes && text[i + 1] == '/') {
            while (i < bytes && text[i] != '\n')
                text[i++] = ' ';
        }
    }
}
