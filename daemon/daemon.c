/* Implements daemon_die, which any part of the daemon may call to end the process. */
#include "daemon/daemon.h"

#include <unistd.h>

#include "base/log.h"

void daemon_die(struct daemon *d, const char *why)
{
    (void)d;
    log_error("%s; this daemon stops at once; its workers go on, and the next tuttid adopts them", why);
    _exit(1);
}
