/* Reads the input as a write-ahead log of SQLite. For any input, the offsets that the walk reports must
 * lie within the file, and the report must stay the same when the bytes after the last good commit are cut
 * off. */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#include "daemon/wal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wal_walk w, cut;
    int fd = memfd_create("wal", MFD_CLOEXEC);
    HOLDS(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    HOLDS(wal_walk_fd(fd, &w) == 0);
    HOLDS(w.bytes == size && w.good_bytes <= size);
    HOLDS((w.good_commits == 0) == (w.good_bytes == 0));
    HOLDS(!w.bad || (w.bad_offset < size && (w.bad_offset == 0 || w.bad_offset >= w.good_bytes)));
    HOLDS(w.bad || w.commits_behind == 0);
    HOLDS(ftruncate(fd, (off_t)w.good_bytes) == 0);
    HOLDS(wal_walk_fd(fd, &cut) == 0);
    HOLDS(cut.good_commits == w.good_commits && cut.good_bytes == w.good_bytes && !cut.bad);
    close(fd);
    return 0;
}
