/* Sends messages to the service manager as sd_notify(3) does, without libsystemd. If no service manager
 * listens (NOTIFY_SOCKET is not set), the functions do nothing. They never fail. Loop thread. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

/* Sends one assignment, such as "READY=1". */
void notify(const char *assignment);

/* Sets the line that `systemctl status` shows. "" clears it. */
void notify_status(const char *text);

#endif
