/* Structures and functions that the files state*.c share. No other file may include this header.
 *
 *     state.c          units, group commit, closing
 *     state_guard.c    checks, before SQLite opens the database, that nothing acknowledged is lost
 *     state_open.c     opens the database, checks it, loads the live jobs
 *     state_schema.c   tables, and migrations from older schemas
 *     state_rows.c     rows and their checksums
 *     state_read.c     reads in the pool
 *     state_upkeep.c   folds the log into the database, prunes old jobs, checks large databases
 *     state_backup.c   a consistent copy while the daemon runs
 */
#ifndef DAEMON_STATE_INTERNAL_H
#define DAEMON_STATE_INTERNAL_H

#include <sqlite3.h>

#include "base/vec.h"
#include "daemon/state.h"
#include "daemon/state_mark.h"
#include "daemon/wal.h"

#define STATE_FILE     "state.db"
#define STATE_WAL      "state.db-wal"
#define STATE_MARK     "state.mark"
#define SCHEMA_VERSION 2

/* ---- rows ---- */

enum write_kind { WRITE_EVENT, WRITE_JOB, WRITE_META, WRITE_STATUS, WRITE_COUNT };

/* One row to write. The kind decides which fields are used. */
struct row_write {
    enum write_kind kind;
    /* Id of a job, number of an event, or value of a number in table meta. */
    uint64_t id;
    uint64_t job; /* id of an event's job */
    /* Key of a job (may be NULL), or the name of a number in table meta. */
    char *key;
    char *body, *spec;
    uint64_t ended_ms, uid, bytes; /* columns of a status */
};

/* Selects the columns of a job in the order that row_take_job expects. */
#define JOB_COLUMNS                                                                                          \
    "SELECT j.id, j.key, j.body, j.spec, j.crc, s.body, s.crc, s.ended_ms, s.uid, s.bytes"                   \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id "

/* Selects the columns for row_take_job_brief. Leaves out the spec, which can be large, and its checksum. */
#define BRIEF_COLUMNS                                                                                        \
    "SELECT j.id, j.key, j.body, NULL, NULL, s.body, s.crc, s.ended_ms, s.uid, s.bytes"                      \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id "
#define EVENT_COLUMNS "SELECT seq, job, body, crc FROM events "

/* For each kind of row, the SQL statement that writes it. */
extern const char *const row_put_sql[WRITE_COUNT];

/* Writes one row with the prepared statement of its kind. Returns an SQLite code. */
int row_put(sqlite3_stmt *q, const struct row_write *w);

/* Returns the checksum of a row of table jobs, events or meta. Pass 0 or NULL for columns that the table
 * lacks. */
uint32_t row_crc(uint64_t id, uint64_t job, const char *key, const char *body, const char *spec);

/* Reads a job from the current row of `q`. Its texts are valid until the next step of `q`. Returns
 * -EBADMSG if the checksum is wrong. */
int row_take_job(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err);

/* Reads a job without its spec from the current row of `q`. Its texts are valid until the next step of
 * `q`. Returns -EBADMSG if the checksum of the status is wrong. No other checksum is checked. */
int row_take_job_brief(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err);

/* Reads an event from the current row of `q`. Its text is valid until the next step of `q`. Returns
 * -EBADMSG if the checksum is wrong. */
int row_take_event(const char *path, sqlite3_stmt *q, struct state_event *ret, struct err *err);

/* Reads a number from table meta. *ret is 0 if the table has no such row. Blocks. */
int row_read_number(const char *path, sqlite3 *db, const char *name, uint64_t *ret, struct err *err);

/* Reads the highest job id and the first unused event number. `version` is the version of the schema.
 * Blocks. */
int row_read_last_numbers(const char *path, sqlite3 *db, int version, uint64_t *ret_id, uint64_t *ret_seq,
                          struct err *err);

/* ---- SQLite ---- */

/* Opens a connection to the database at `path`. */
int db_open(const char *path, bool writer, sqlite3 **ret, struct err *err);

/* Returns whether an SQLite code means that memory ran out. SQLite has then rolled the transaction back. */
bool db_no_memory(int code);

/* Turns SQLite's last error into `err`. `what` names the action that failed, such as "open the state".
 * Returns -EBADMSG for a damaged file, otherwise -EIO. */
int db_fail(const char *path, sqlite3 *db, const char *what, struct err *err);

/* Runs SQL statements and ignores their rows. `what` names the action for messages, such as "open the
 * state". */
int db_exec(const char *path, sqlite3 *db, const char *sql, const char *what, struct err *err);

/* Reads the first column of the first row that `sql` returns. Sets `ret` to "" if there is no row. */
int db_first_text(const char *path, sqlite3 *db, const char *sql, char ret[200], struct err *err);

/* ---- the state ---- */

/* The changes that one caller commits together, in one transaction. */
struct state_unit {
    struct state *state;
    VEC(struct row_write) writes;
    bool failed; /* a text could not be copied */
    /* The unit may be given up when the disk is full or memory has run out. */
    bool optional;
    /* Result of the commit. It is 0, or -EEXIST if another job has the key of the unit's job. */
    int status;
    void (*done)(void *ctx, int status);
    void *ctx;
    struct state_unit *next;
};

struct unit_list {
    struct state_unit *first, **end;
};

#define CHECK_TABLES 2 /* tables that the check reads */
/* When the log has this many pages, it is folded even under load. */
#define FOLD_PAGES 1000

/* Tells how far the check of the history has come. */
struct check_at {
    /* The table that is being checked: 0 is jobs, 1 is events. CHECK_TABLES means that the check is
     * complete. */
    int table;
    /* Id of the last row that was checked. */
    uint64_t after;
};

/* The open state. `db` is the writer. One piece of work in the pool uses it, or the loop thread when there
 * is none. Only its current user may touch a field marked "writer". */
struct state {
    struct state_config config;
    char *path, *wal_path, *mark_path;
    sqlite3 *db;     /* writer */
    sqlite3 *reader; /* guarded by reader_lock */
    uv_mutex_t reader_lock;
    sqlite3_stmt *write[WRITE_COUNT]; /* writer: the statements of row_put_sql */
    /* Writer: finds the job that has a given key. */
    sqlite3_stmt *find_key;
    int mark_fd; /* writer: the mark's file; -1: closed */
    /* Writer: the mark as it was last written. */
    struct state_mark mark;
    int wal_pages;               /* writer: pages in the log */
    struct unit_list waiting;    /* units to commit; loop thread only */
    struct unit_list committing; /* units of the current commit */
    /* Set while work on the writer is under way. Loop thread only. */
    bool busy;
    char failure[512]; /* error of the current work; "": none */
    int refusal;       /* current commit: -ENOSPC, -ENOMEM or 0 */
    uint32_t reads;    /* running reads and backups; loop thread only */
    /* Queue of reads. The first read is in the pool. Loop thread only. */
    struct state_read *read_first, *read_last;
    uv_work_t work;       /* the work on the writer */
    uv_prepare_t prepare; /* commits the units of one turn */
    uv_timer_t retry;     /* retries a commit after a full disk */
    uv_timer_t quiet;     /* starts upkeep in a quiet moment */
    uv_timer_t hour;      /* starts pruning once an hour */
    int holders;          /* references to a closed state */

    /* upkeep; loop thread only */
    /* Set if the database was too large for a complete check at start. */
    bool large;
    bool fold_due;  /* the log is to be folded */
    bool prune_due; /* there may be jobs to prune */
    /* Set if the last work on the writer was pruning. A waiting commit then goes first. */
    bool pruned_last;
    uint32_t ended;          /* jobs that ended since the last pruning */
    struct pruning *pruning; /* the current batch; NULL: none */
    struct check_at check;
    bool checking; /* a check is in the pool */
    bool backing_up;
};

/* ---- between the files ---- */

/* Checks that the directory has everything that was acknowledged. *ret is the mark to continue from, and
 * *ret_fd its file. Changes nothing unless config->accept_older is set. It then copies the files aside and
 * removes a log that does not belong. Blocks. */
int state_guard(const struct state_config *config, struct state_mark *ret, int *ret_fd, struct err *err);

/* Reads the version of the schema, which is 0 for a new file. Fails if a newer tuttid wrote the database. */
int schema_version(const char *path, sqlite3 *db, int *ret, struct err *err);

/* Creates the tables in a new file. */
int schema_make(const char *path, sqlite3 *db, struct err *err);

/* Checks that the tables and indexes in the file have exactly the definitions of this version. */
int schema_check(const char *path, sqlite3 *db, struct err *err);

/* Migrates an older schema to SCHEMA_VERSION in one transaction. Keeps a copy of the old database in the
 * same directory. */
int schema_migrate(const char *path, sqlite3 *db, int version, struct err *err);

/* Checks the next `rows` rows and moves *at past them. Returns -EBADMSG if a row is damaged. */
int state_check_rows(const char *path, sqlite3 *db, struct check_at *at, uint32_t rows, struct err *err);

/* Runs one transaction on the writer and then writes the mark. `change` makes the changes and may raise
 * numbers in `next`. If it is NULL, only the numbers are written. Blocks. Returns an SQLite code. If the
 * mark cannot be written, s->failure says why. */
int state_commit_changes(struct state *s, int (*change)(struct state *s, void *ctx, struct state_mark *next),
                         void *ctx);

/* Starts work on the writer in the pool. `done` must clear s->busy and call state_next_work. */
void state_start_work(struct state *s, void (*run)(uv_work_t *work),
                      void (*done)(uv_work_t *work, int status));

/* Starts the next piece of work if the writer is free and there is work to do. */
void state_next_work(struct state *s);

/* Drops one reference to a closed state. The state is freed when its last reference is dropped. */
void state_released(struct state *s);

/* Folds the log into the database and records this in the mark. If `empty_log` is true, also truncates the
 * log file. Runs on the writer and blocks. */
void state_fold(struct state *s, bool empty_log);

/* Starts upkeep. Called once, when all jobs are loaded. */
void upkeep_begin(struct state *s);

/* Restarts the timer that waits for a quiet moment. Called on the loop thread after every commit. */
void upkeep_committed(struct state *s);

/* Starts one piece of upkeep if any is due, and returns true in that case. Loop thread only. */
bool upkeep_next(struct state *s);

/* Copies a file and syncs the copy. */
int state_copy_file(const char *from, const char *to, struct err *err);

/* Syncs a directory to disk, so that files that were created or renamed in it survive a power cut. */
int state_sync_dir(const char *dir, struct err *err);

/* Returns "dir/name", which the caller frees. */
char *state_join_path(const char *dir, const char *name);

#endif
