/* Structures and functions that state*.c share. No other file may include this header.
 *
 *     state.c          units, group commit, the end
 *     state_guard.c    before SQLite opens the database: is anything lost that was acknowledged
 *     state_open.c     opens, checks, loads
 *     state_schema.c   tables, and migrations from older schemas
 *     state_rows.c     rows and their checksums
 *     state_read.c     reads in the pool
 *     state_upkeep.c   folds the log into the database, prunes old jobs, checks large databases while they serve
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

/* One row to write. Which fields are used depends on the kind. */
struct row_write {
    enum write_kind kind;
    uint64_t id;  /* of the job; of an event: its number; of a number in meta: its value */
    uint64_t job; /* of an event */
    char *key;    /* of a job, may be NULL; of a number in meta: its name */
    char *body, *spec;
    uint64_t ended_ms, uid, bytes; /* of a status */
};

/* The columns that every job is read with, in the order of take_job. */
#define JOB_COLUMNS                                                                                          \
    "SELECT j.id, j.key, j.body, j.spec, j.crc, s.body, s.crc, s.ended_ms, s.uid, s.bytes"                   \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id "
/* The same without the spec, which can be large, and without the checksum that covers it. */
#define BRIEF_COLUMNS                                                                                        \
    "SELECT j.id, j.key, j.body, NULL, NULL, s.body, s.crc, s.ended_ms, s.uid, s.bytes"                      \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id "
#define EVENT_COLUMNS "SELECT seq, job, body, crc FROM events "

extern const char *const row_put_sql[WRITE_COUNT];
int row_put(sqlite3_stmt *q, const struct row_write *w); /* an SQLite code */
uint32_t row_crc(uint64_t id, uint64_t job, const char *key, const char *body, const char *spec);
/* Reads the row that `q` stands on. What *ret points to is valid until q moves. -EBADMSG: it does not match its checksum. */
int row_take_job(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err);
int row_take_job_brief(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err);
int row_take_event(const char *path, sqlite3_stmt *q, struct state_event *ret, struct err *err);
/* Blocks. A number of table meta; 0 when there is no such row. */
int row_read_number(const char *path, sqlite3 *db, const char *name, uint64_t *ret, struct err *err);
/* Blocks. The highest job id, and the first event number that was never given out, by all that the database says. */
int row_read_last_numbers(const char *path, sqlite3 *db, int version, uint64_t *ret_id, uint64_t *ret_seq,
                          struct err *err);

/* SQLite rolls a transaction back when its own memory runs out: nothing of it is on disk. */
bool db_no_memory(int code);
/* What SQLite says, with the file's name, and with what to do about damage. */
int db_fail(const char *path, sqlite3 *db, const char *what, struct err *err);
int db_exec(const char *path, sqlite3 *db, const char *sql, const char *what, struct err *err);
/* The first column of the first row that `sql` returns; "" when there is none. */
int db_first_text(const char *path, sqlite3 *db, const char *sql, char ret[200], struct err *err);

/* ---- the state ---- */

struct state_unit {
    struct state *state;
    VEC(struct row_write) writes;
    bool failed; /* a text could not be copied */
    bool optional;
    int status; /* of the commit: 0, or -EEXIST when the key of its job is taken */
    void (*done)(void *ctx, int status);
    void *ctx;
    struct state_unit *next;
};

struct unit_list {
    struct state_unit *first, **end;
};

#define CHECK_TABLES 2
#define FOLD_PAGES   1000 /* under load the log is folded when it has this many pages */

/* Where a thorough check stands. */
struct check_at {
    int table;      /* 0: jobs with their status, 1: events, CHECK_TABLES: the check is over */
    uint64_t after; /* the last row that was checked */
};

struct state {
    struct state_config config;
    char *path, *wal_path, *mark_path;
    sqlite3 *db;     /* the work under way on the writer, or the loop thread when there is none */
    sqlite3 *reader; /* guarded by reader_lock */
    uv_mutex_t reader_lock;
    sqlite3_stmt *write[WRITE_COUNT]; /* used only by whoever has `db` */
    sqlite3_stmt *find_key;           /* used only by whoever has `db` */
    int mark_fd;                      /* used only by whoever has `db`; -1: none */
    struct state_mark mark;           /* used only by whoever has `db`: as it was last written */
    int wal_pages;                    /* used only by whoever has `db`: in the log, after the last commit */
    struct unit_list waiting;         /* loop thread only */
    struct unit_list committing;      /* the commit under way */
    bool busy;                        /* work on the writer is under way; loop thread only */
    char failure[512];                /* of the work under way; "": none */
    int refusal;                      /* of the commit under way: -ENOSPC, -ENOMEM, 0: none */
    uint32_t reads;                   /* under way, backups too; loop thread only */
    struct state_read *read_first, *read_last; /* the first one is in the pool; loop thread only */
    uv_work_t work;                            /* the work on the writer */
    uv_prepare_t prepare;                      /* starts the commit of what one turn of the loop collected */
    uv_timer_t retry;                          /* the disk is full: commits are tried again */
    uv_timer_t quiet;                          /* nothing was committed for a moment: time for upkeep */
    uv_timer_t hour;                           /* what is old enough is pruned */
    int holders;                               /* at the end: handles and work that still refer to this */

    /* upkeep; loop thread only */
    bool large;              /* the database was too large to be checked whole at the start */
    bool fold_due;           /* the log is to be folded into the database */
    bool prune_due;          /* there may be jobs to prune */
    bool pruned_last;        /* the last work on the writer was pruning: commits go first now */
    uint32_t ended;          /* jobs that ended since the last pruning began */
    struct pruning *pruning; /* under way; NULL: none */
    struct check_at check;
    bool checking; /* a piece of the check is in the pool */
    bool backing_up;
};

/* ---- between the files ---- */

/* Whether what is in the directory is what was acknowledged. Changes nothing, except that with config->accept_older it
 * makes room for what can be opened. `ret` is the mark to go on from; ret_fd the descriptor of its file. */
int state_guard(const struct state_config *config, struct state_mark *ret, int *ret_fd, struct err *err);

int schema_version(const char *path, sqlite3 *db, int *ret, struct err *err); /* 0: a new file */
int schema_make(const char *path, sqlite3 *db, struct err *err);
/* Whether the tables and indexes are described as this version makes them. */
int schema_check(const char *path, sqlite3 *db, struct err *err);
/* Brings an older schema to SCHEMA_VERSION in one transaction. Keeps the database as it was in a file beside it. */
int schema_migrate(const char *path, sqlite3 *db, int version, struct err *err);

int db_open(const char *path, bool writer, sqlite3 **ret, struct err *err);
/* Checks up to `rows` rows. -EBADMSG: damage. */
int state_check_rows(const char *path, sqlite3 *db, struct check_at *at, uint32_t rows, struct err *err);

/* One transaction with its number, and the mark; on the writer, blocks. `change` makes the changes and may raise numbers of
 * the mark; NULL: only numbers are written. Both return an SQLite code. A failure to write the mark is in s->failure. */
int state_commit_changes(struct state *s, int (*change)(struct state *s, void *ctx, struct state_mark *next),
                         void *ctx);
void state_start_work(struct state *s, void (*run)(uv_work_t *work),
                      void (*done)(uv_work_t *work, int status));
void state_released(
    struct state *s); /* after state_close: one of its holders is gone; the last one frees it */
void state_next_work(struct state *s); /* the writer is free: starts what comes next */

void state_fold(struct state *s, bool empty_log); /* on the writer; blocks */
void upkeep_begin(struct state *s);               /* everything is loaded */
void upkeep_committed(struct state *s);           /* after every commit; loop thread */
bool upkeep_next(struct state *s);                /* starts one piece of upkeep if some is due; loop thread */

/* Copies a file, and syncs the copy. */
int state_copy_file(const char *from, const char *to, struct err *err);
int state_sync_dir(const char *dir, struct err *err);
char *state_join_path(const char *dir, const char *name); /* the caller frees it */

#endif
