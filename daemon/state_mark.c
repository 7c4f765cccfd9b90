/* Implements state_mark.h. The file has two slots, and each slot is a struct mark_slot in the byte order of
 * this machine. On a machine with another byte order the checksum would be wrong, so the mark would be
 * refused. */
#include "daemon/state_mark.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"

#define SLOT_BYTES 4096

struct mark_slot {
    char magic[16];
    struct state_mark mark;
    uint32_t crc; /* CRC-32C of the bytes before it */
};

static const char magic[16] = "tutti mark 1";

static void fill_slot(uint8_t block[SLOT_BYTES], const struct state_mark *m)
{
    struct mark_slot s = {.mark = *m};
    memcpy(s.magic, magic, sizeof magic);
    s.crc = crc32c(0, &s, offsetof(struct mark_slot, crc));
    memset(block, 0, SLOT_BYTES);
    memcpy(block, &s, sizeof s);
}

static bool take_slot(int fd, int index, struct state_mark *ret)
{
    struct mark_slot s;
    if (pread(fd, &s, sizeof s, (off_t)index * SLOT_BYTES) != (ssize_t)sizeof s)
        return false;
    if (memcmp(s.magic, magic, sizeof magic) != 0 || s.crc != crc32c(0, &s, offsetof(struct mark_slot, crc)))
        return false;
    *ret = s.mark;
    return true;
}

int state_mark_read(const char *path, struct state_mark *ret, struct err *err)
{
    struct state_mark m[2];
    bool good[2];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_set_at(err, -errno, path, "cannot open the mark: %s", strerror(errno));
    for (int i = 0; i < 2; i++)
        good[i] = take_slot(fd, i, &m[i]);
    close(fd);
    if (!good[0] && !good[1])
        return err_set_at(err, -EBADMSG, path, "the mark is damaged: neither of its two copies can be read");
    *ret = !good[1] || (good[0] && m[0].turn > m[1].turn) ? m[0] : m[1];
    return 0;
}

static int write_slot(int fd, const struct state_mark *m, int index)
{
    uint8_t block[SLOT_BYTES];
    fill_slot(block, m);
    ssize_t n = pwrite(fd, block, sizeof block, (off_t)index * SLOT_BYTES);
    if (n != (ssize_t)sizeof block)
        return n < 0 ? -errno : -EIO;
    return 0;
}

int state_mark_write(int fd, struct state_mark *m)
{
    m->turn++;
    int r = write_slot(fd, m, (int)(m->turn % 2));
    return r == 0 && fdatasync(fd) < 0 ? -errno : r;
}

static int sync_dir_of(const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r;
}

int state_mark_create(const char *path, const struct state_mark *m, struct err *err)
{
    char fresh[PATH_MAX + 8];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int r = 0, fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_set_at(err, -errno, fresh, "cannot make the mark: %s", strerror(errno));
    for (int i = 0; i < 2 && r == 0; i++)
        r = write_slot(fd, m, i);
    if (r == 0 && (fsync(fd) < 0 || rename(fresh, path) < 0))
        r = -errno;
    if (r == 0)
        r = sync_dir_of(path);
    if (r == 0)
        return fd;
    close(fd);
    return err_set_at(err, r, path, "cannot write the mark: %s", strerror(-r));
}

int state_mark_open(const char *path, struct err *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? err_set_at(err, -errno, path, "cannot open the mark: %s", strerror(errno)) : fd;
}
