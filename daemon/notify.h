/* Tells the service manager about this daemon, as sd_notify(3) does, without libsystemd. Where no service manager
 * listens (NOTIFY_SOCKET is not set) both functions do nothing. They never fail. Loop thread. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

void notify(const char *assignment);  /* "READY=1" */
void notify_status(const char *text); /* the line that `systemctl status` shows; "" clears it */

#endif
