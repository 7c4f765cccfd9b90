/* One line per event on stderr, with the syslog priority in front (`<6>`) where systemd reads it.
 *
 * Libraries do not log above debug; programs log once, at the top of the call chain. Any thread may call.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

/* `prefix_priority`: write "<N>" before each line (under systemd: when JOURNAL_STREAM is set). */
void log_init(enum log_level max_level, int prefix_priority);
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...)   log_msg(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_msg(LOG_WARNING, __VA_ARGS__)
#define log_info(...)    log_msg(LOG_INFO, __VA_ARGS__)
#define log_debug(...)   log_msg(LOG_DEBUG, __VA_ARGS__)

#endif
