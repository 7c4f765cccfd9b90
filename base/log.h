/* The log goes to standard error, with one line for each event. Under systemd, each line begins with its
 * priority, as in "<6>started". Libraries log only at debug level. A program logs a failure once, at the top
 * of the call chain. Any thread may log. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

/* Sets the most verbose level that is still written. If `prefix_priority` is not 0, each line begins with
 * its priority "<N>", as systemd expects. Call this function before other threads start. */
void log_init(enum log_level max_level, int prefix_priority);
/* Writes one line to the log at the given level. Line breaks at the end of the text are dropped. Does not
 * change errno. */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...)   log_msg(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_msg(LOG_WARNING, __VA_ARGS__)
#define log_info(...)    log_msg(LOG_INFO, __VA_ARGS__)
#define log_debug(...)   log_msg(LOG_DEBUG, __VA_ARGS__)

#endif
