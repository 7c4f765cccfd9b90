/* Implements notify.h. Each message is one datagram, sent to the socket that the environment variable
 * NOTIFY_SOCKET names. */
#include "daemon/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/strbuf.h"

void notify(const char *assignment)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof a.sun_path)
        return;
    memcpy(a.sun_path, path, strlen(path));
    if (path[0] == '@')
        /* A leading '@' in NOTIFY_SOCKET stands for an abstract socket. In the address of such a socket, the
         * kernel expects a zero byte in place of the '@'. */
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, assignment, strlen(assignment), MSG_NOSIGNAL, (struct sockaddr *)&a,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
    close(fd);
}

void notify_status(const char *text)
{
    struct strbuf b = {0};
    strbuf_addf(&b, "STATUS=%s", text);
    notify(b.at);
    strbuf_finish(&b);
}
