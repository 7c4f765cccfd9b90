/* Sends messages to the service manager, like sd_notify(3) but without libsystemd. The functions never fail.
 * They do nothing if the variable NOTIFY_SOCKET is not set. Loop thread only. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

/* Sends one assignment, such as "READY=1". */
void notify(const char *assignment);

/* Sets the status line that `systemctl status` shows for the daemon. "" clears the line. */
void notify_status(const char *text);

#endif
