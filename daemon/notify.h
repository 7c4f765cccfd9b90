/* Sends messages to the service manager, like sd_notify(3) but without libsystemd. The functions never
 * fail. They do nothing if NOTIFY_SOCKET is not set. Loop thread only. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

/* Sends one assignment, such as "READY=1". */
void notify(const char *assignment);

/* Sets the line that `systemctl status` shows. "" clears it. */
void notify_status(const char *text);

#endif
