/* Sends messages to the service manager, like sd_notify(3) but without libsystemd. These functions never
 * fail. If the environment variable NOTIFY_SOCKET is not set, they do nothing. Loop thread only. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

/* Sends one assignment, such as "READY=1". */
void notify(const char *assignment);

/* Sets the status line of the daemon, which `systemctl status` shows. The text "" clears the line. */
void notify_status(const char *text);

#endif
