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

/* One row to write to the database. `kind` says which table the row belongs to. Only the fields of this table
 * are used. */
struct row_write {
    enum write_kind kind;
    /* For a job, its id. For an event, its number. For a row of the table `meta`, the number that the row
     * stores. */
    uint64_t id;
    uint64_t job; /* id of an event's job */
    /* Key of a job (may be NULL), or the name of a number in table meta, such as "commits". */
    char *key;
    char *body, *spec;
    uint64_t ended_ms, uid, bytes; /* columns of a status */
};

/* The SQL that selects the columns of a job, in the order that row_take_job expects. */
#define JOB_COLUMNS                                                                                          \
    "SELECT j.id, j.key, j.body, j.spec, j.crc, s.body, s.crc, s.ended_ms, s.uid, s.bytes"                   \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id "

/* The SQL that selects the columns for row_take_job_brief. It leaves out the spec, which can be large, and
 * the checksum that covers the spec. */
#define BRIEF_COLUMNS                                                                                        \
    "SELECT j.id, j.key, j.body, NULL, NULL, s.body, s.crc, s.ended_ms, s.uid, s.bytes"                      \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id "
#define EVENT_COLUMNS "SELECT seq, job, body, crc FROM events "

/* For each kind of row, the SQL statement that writes such a row. */
extern const char *const row_put_sql[WRITE_COUNT];

/* Writes the row `w` with the prepared statement `q`, which must be the statement for the kind of the row.
 * Returns an SQLite code. */
int row_put(sqlite3_stmt *q, const struct row_write *w);

/* Returns the checksum of a row of one of the tables jobs, events and meta. Pass 0 or NULL for each column
 * that the table does not have. */
uint32_t row_crc(uint64_t id, uint64_t job, const char *key, const char *body, const char *spec);

/* Reads a job from the current row of the statement `q`. The texts of the job are valid until the next
 * sqlite3_step of `q`. Returns -EBADMSG if the checksum is wrong. */
int row_take_job(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err);

/* Reads a job without its spec from the current row of the statement `q`. The texts of the job are valid
 * until the next sqlite3_step of `q`. Returns -EBADMSG if the checksum of the status is wrong. The checksum
 * of the body is not checked, because it also covers the spec. */
int row_take_job_brief(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err);

/* Reads an event from the current row of the statement `q`. The text of the event is valid until the next
 * sqlite3_step of `q`. Returns -EBADMSG if the checksum is wrong. */
int row_take_event(const char *path, sqlite3_stmt *q, struct state_event *ret, struct err *err);

/* Reads the number called `name` from the table `meta`. If the table has no such row, *ret becomes 0.
 * Blocks. */
int row_read_number(const char *path, sqlite3 *db, const char *name, uint64_t *ret, struct err *err);

/* Reads the highest job id and the first unused event number from the database. `version` is the version of
 * the database's schema. Blocks. */
int row_read_last_numbers(const char *path, sqlite3 *db, int version, uint64_t *ret_id, uint64_t *ret_seq,
                          struct err *err);

/* ---- SQLite ---- */

/* Opens a connection to the database at `path`. If `writer` is false, the connection can only read. */
int db_open(const char *path, bool writer, sqlite3 **ret, struct err *err);

/* Returns true if the SQLite code `code` means that memory ran out. In that case SQLite has rolled the
 * transaction back. */
bool db_no_memory(int code);

/* Fills in `err` from SQLite's last error. `what` names the action that failed, such as "open the state".
 * Returns -EBADMSG if the file is damaged, otherwise -EIO. */
int db_fail(const char *path, sqlite3 *db, const char *what, struct err *err);

/* Runs the SQL statements in `sql` and ignores any rows that they return. `what` names the action in error
 * messages, such as "open the state". */
int db_exec(const char *path, sqlite3 *db, const char *sql, const char *what, struct err *err);

/* Runs `sql` and copies the first column of the first row to `ret`. If there is no row, sets `ret` to "". */
int db_first_text(const char *path, sqlite3 *db, const char *sql, char ret[200], struct err *err);

/* ---- the state ---- */

/* A unit is a group of changes that one caller commits together, in one transaction. */
struct state_unit {
    struct state *state;
    VEC(struct row_write) writes;
    bool failed; /* a text could not be copied */
    /* Set if the unit may be given up when the disk is full or memory has run out. */
    bool optional;
    /* The result of the commit. 0 means success. -EEXIST means that the unit adds a job whose key another job
     * already has. */
    int status;
    void (*done)(void *ctx, int status);
    void *ctx;
    struct state_unit *next;
};

struct unit_list {
    struct state_unit *first, **end;
};

#define CHECK_TABLES 2 /* tables that the check reads */
/* When the log has this many pages, it is folded into the database even while commits keep coming. */
#define FOLD_PAGES 1000

/* The progress of the check of a large database. */
struct check_at {
    /* The table that is being checked. 0 is `jobs`, 1 is `events`, and CHECK_TABLES means that the check is
     * complete. */
    int table;
    /* The id of the row that was checked last. The check continues with the row after it. */
    uint64_t after;
};

/* The open database. Only one thread at a time may use `db`, the connection that writes. While work that
 * writes is running in the thread pool, that work owns `db`. At all other times, the loop thread owns `db`.
 * Whoever owns `db` may also use the fields marked "writer". */
struct state {
    struct state_config config;
    char *path, *wal_path, *mark_path;
    sqlite3 *db;     /* writer */
    sqlite3 *reader; /* guarded by reader_lock */
    uv_mutex_t reader_lock;
    sqlite3_stmt *write[WRITE_COUNT]; /* writer: the statements of row_put_sql */
    /* Writer: the prepared statement that finds the job with a given key. */
    sqlite3_stmt *find_key;
    int mark_fd; /* writer: the mark's file; -1: closed */
    /* Writer: the content of the mark as it was last written to disk. */
    struct state_mark mark;
    int wal_pages;               /* writer: pages in the log */
    struct unit_list waiting;    /* units to commit; loop thread only */
    struct unit_list committing; /* units of the current commit */
    /* Set while a piece of work that uses the writer is under way. Loop thread only. */
    bool busy;
    char failure[512]; /* error of the current work; "": none */
    int refusal;       /* current commit: -ENOSPC, -ENOMEM or 0 */
    uint32_t reads;    /* running reads and backups; loop thread only */
    /* Queue of reads. The first read of the queue is in the pool. Loop thread only. */
    struct state_read *read_first, *read_last;
    uv_work_t work;       /* the work on the writer */
    uv_prepare_t prepare; /* commits the units of one turn */
    uv_timer_t retry;     /* retries a commit after a full disk */
    uv_timer_t quiet;     /* starts upkeep in a quiet moment */
    uv_timer_t hour;      /* starts pruning once an hour */
    int holders;          /* references to a closed state */

    /* upkeep; loop thread only */
    /* Set if the database was too large for a complete check when it was opened. */
    bool large;
    bool fold_due;  /* the log is to be folded */
    bool prune_due; /* there may be jobs to prune */
    /* True if the last work that wrote to the database removed old jobs. In that case, a waiting commit is
     * done before more old jobs are removed. */
    bool pruned_last;
    uint32_t ended;          /* jobs that ended since the last pruning */
    struct pruning *pruning; /* the current batch; NULL: none */
    struct check_at check;
    bool checking; /* a check is in the pool */
    bool backing_up;
};

/* ---- between the files ---- */

/* Checks that the files in the state directory contain every acknowledged change. *ret becomes the mark from
 * which the daemon continues, and *ret_fd becomes a descriptor of the mark's file. Blocks. If something is
 * missing, the function fails, unless config->accept_older is set. With accept_older, the function copies the
 * files aside, removes a log that belongs to another state.db, and succeeds. */
int state_guard(const struct state_config *config, struct state_mark *ret, int *ret_fd, struct err *err);

/* Reads the version of the database's schema into *ret. A new file has version 0. Fails if a newer tuttid
 * wrote the database. */
int schema_version(const char *path, sqlite3 *db, int *ret, struct err *err);

/* Creates the tables in a new file. */
int schema_make(const char *path, sqlite3 *db, struct err *err);

/* Checks that the tables and indexes in the file are defined exactly as in this version of the schema. */
int schema_check(const char *path, sqlite3 *db, struct err *err);

/* Changes a database with an older schema to SCHEMA_VERSION, in one transaction. A copy of the old database
 * is kept in the same directory. */
int schema_migrate(const char *path, sqlite3 *db, int version, struct err *err);

/* Checks the next `rows` rows of the database after *at, and moves *at past them. Returns -EBADMSG if a row
 * is damaged. */
int state_check_rows(const char *path, sqlite3 *db, struct check_at *at, uint32_t rows, struct err *err);

/* Runs one transaction on the connection s->db, then writes the mark. `change` makes the changes and may
 * raise the numbers in `next`. If `change` is NULL, only the numbers are written. Blocks. Returns an SQLite
 * code. If the mark cannot be written, s->failure says why. */
int state_commit_changes(struct state *s, int (*change)(struct state *s, void *ctx, struct state_mark *next),
                         void *ctx);

/* Starts work that writes to the database, in the thread pool. `done` must clear s->busy and call
 * state_next_work. */
void state_start_work(struct state *s, void (*run)(uv_work_t *work),
                      void (*done)(uv_work_t *work, int status));

/* Starts the next work that writes to the database, unless such work is already under way or there is nothing
 * to do. */
void state_next_work(struct state *s);

/* Drops one reference to a closed state. The last call frees the state. */
void state_released(struct state *s);

/* Moves the changes in the log into the database file, and records this move in state.mark. If `empty_log` is
 * true, also truncates the log file. Uses the connection s->db and blocks. */
void state_fold(struct state *s, bool empty_log);

/* Starts the background upkeep of the database. Called once, when all live jobs have been loaded. */
void upkeep_begin(struct state *s);

/* Restarts the timer that waits for a quiet moment without commits. Called on the loop thread after every
 * commit. */
void upkeep_committed(struct state *s);

/* Starts one piece of background upkeep if any is due. Returns true if a piece was started. May be called
 * on the loop thread only. */
bool upkeep_next(struct state *s);

/* Copies a file and syncs the copy. */
int state_copy_file(const char *from, const char *to, struct err *err);

/* Syncs a directory to disk, so that files that were created or renamed in the directory survive a power
 * cut. */
int state_sync_dir(const char *dir, struct err *err);

/* Returns "dir/name", which the caller frees. */
char *state_join_path(const char *dir, const char *name);

#endif
