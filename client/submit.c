/* Implements submit_job. If a submission is repeated, the daemon recognizes its key and creates no second
 * job. */
#include "client/submit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/get.h"

#define RETRY_NS     10000000000ull
#define RETRY_GAP_NS 250000000ull

/* Stores a random key of 32 hexadecimal digits in `ret`. */
static int make_key(char ret[33], struct err *err)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_set(err, -EIO, "cannot get random bytes: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static int make_params(const char *spec, const char *needs, const char *key, struct strbuf *ret,
                       struct err *err)
{
    char random_key[33], *dir = getcwd(NULL, 0);
    if (dir == NULL)
        return err_set(err, -EINVAL, "the current directory cannot be found: %s", strerror(errno));
    if (key == NULL && make_key(random_key, err) < 0) {
        free(dir);
        return err->code;
    }
    strbuf_addf(ret, "{\"spec\":%s,\"dir\":", spec);
    strbuf_add_json(ret, dir);
    strbuf_add(ret, ",\"key\":");
    strbuf_add_json(ret, key != NULL ? key : random_key);
    if (needs != NULL)
        strbuf_addf(ret, ",\"needs\":%s", needs);
    strbuf_add(ret, "}");
    free(dir);
    return 0;
}

/* Asks the daemon for the number of its newest event, and stores the number in *ret. */
static int newest_event(struct tutti *t, uint64_t *ret, struct err *err)
{
    struct wire_msg m = {0};
    int r = tutti_call(t, "watch", "{}", &m, err);
    if (r == 0)
        *ret = get_count_or(m.result, "seq", 0);
    wire_msg_finish(&m);
    return r;
}

/* Closes *t and tries to connect to the daemon again, until the time `until_ns`. */
static int reconnect(const struct client *c, struct tutti **t, uint64_t until_ns, struct err *err)
{
    int r;
    tutti_close(*t);
    *t = NULL;
    do {
        clock_sleep_ns(RETRY_GAP_NS);
        r = tutti_connect(c->socket, t, err);
    } while (r < 0 && clock_now_ns() < until_ns);
    return r;
}

int submit_job(const struct client *c, struct tutti **t, const char *spec, const char *needs, const char *key,
               struct wire_msg *ret, uint64_t *ret_since, struct err *err)
{
    uint64_t until = clock_now_ns() + RETRY_NS, since = 0;
    bool know_since = false;
    struct strbuf params = {0};
    int r = make_params(spec, needs, key, &params, err);
    while (r == 0) {
        r = know_since ? 0 : newest_event(*t, &since, err);
        know_since = r == 0;
        if (r == 0)
            r = tutti_call(*t, "submit", params.at, ret, err);
        if (r == 0 || !tutti_lost(*t) || clock_now_ns() >= until)
            break;
        r = reconnect(c, t, until, err);
    }
    strbuf_finish(&params);
    if (r == 0)
        *ret_since = since;
    return r;
}
