/* SPDX-License-Identifier: Apache-2.0 */
/* import_run.h: the common parts of an import: the run, its unit and the fate of every row
 * (import.c), the source (import_source.c), one conversation (import_convo.c: its row, policy and
 * members; import_log.c: its messages), key packages, devices and Welcomes (import_package.c). */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H

#include "services/common/step.h"
#include "services/delivery/convo/act.h"
#include "services/delivery/convo/roster.h"
#include "services/delivery/import/import.h"
#include "services/delivery/mls/mls_message.h"

/* ---- the known tables of a Catbird server ---------------------------------------------------- */

/* A row that the source gives has the columns of its table in this order, and they are named by
 * these constants. The first column of a table is the one it is selected by. The import names an
 * unknown table and does not read it. */
enum source_type {
    SOURCE_TEXT,
    SOURCE_INT,
    SOURCE_FLAG,  /* 0 or 1 */
    SOURCE_TIME,  /* timestamp, or its text: as milliseconds since 1970 */
    SOURCE_BYTES, /* bytea, nothing else */
    SOURCE_HEX,   /* bytea, or text: as text */
};

/* A column: its constant, name and type, and whether it is needed. The table cannot be read without
 * a needed one; another one that is missing is NULL. */
#define CATBIRD_CONVERSATION_COLUMNS(COLUMN)                                                       \
    COLUMN(CONVO_ID, "id", SOURCE_TEXT, true)                                                      \
    COLUMN(CONVO_CREATOR, "creator_did", SOURCE_TEXT, false)                                       \
    COLUMN(CONVO_EPOCH, "current_epoch", SOURCE_INT, true)                                         \
    COLUMN(CONVO_NAME, "name", SOURCE_TEXT, false)                                                 \
    COLUMN(CONVO_TEXT, "description", SOURCE_TEXT, false)                                          \
    COLUMN(CONVO_SUITE, "cipher_suite", SOURCE_TEXT, false)                                        \
    COLUMN(CONVO_INFO, "group_info", SOURCE_BYTES, false)                                          \
    COLUMN(CONVO_IS_REMOTE, "is_remote", SOURCE_FLAG, false)                                       \
    COLUMN(CONVO_CREATED, "created_at", SOURCE_TIME, false)                                        \
    COLUMN(CONVO_UPDATED, "updated_at", SOURCE_TIME, false)
#define CATBIRD_POLICY_COLUMNS(COLUMN)                                                             \
    COLUMN(RULE_CONVO, "convo_id", SOURCE_TEXT, true)                                              \
    COLUMN(RULE_MEMBERS_MAX, "max_members", SOURCE_INT, false)                                     \
    COLUMN(RULE_EXTERNAL, "allow_external_commits", SOURCE_FLAG, false)                            \
    COLUMN(RULE_INVITE, "require_invite_for_join", SOURCE_FLAG, false)                             \
    COLUMN(RULE_REJOIN_DAYS, "rejoin_window_days", SOURCE_INT, false)
#define CATBIRD_MEMBER_COLUMNS(COLUMN)                                                             \
    COLUMN(MEMBER_CONVO, "convo_id", SOURCE_TEXT, true)                                            \
    COLUMN(MEMBER_DID, "member_did", SOURCE_TEXT, true)                                            \
    COLUMN(MEMBER_USER, "user_did", SOURCE_TEXT, false)                                            \
    COLUMN(MEMBER_JOINED, "joined_at", SOURCE_TIME, false)                                         \
    COLUMN(MEMBER_LEFT, "left_at", SOURCE_TIME, true)                                              \
    COLUMN(MEMBER_IS_ADMIN, "is_admin", SOURCE_FLAG, false)                                        \
    COLUMN(MEMBER_IS_MODERATOR, "is_moderator", SOURCE_FLAG, false)                                \
    COLUMN(MEMBER_UNREAD, "unread_count", SOURCE_INT, false)                                       \
    COLUMN(MEMBER_READ, "last_read_at", SOURCE_TIME, false)
#define CATBIRD_CURSOR_COLUMNS(COLUMN)                                                             \
    COLUMN(CURSOR_CONVO, "convo_id", SOURCE_TEXT, true)                                            \
    COLUMN(CURSOR_USER, "user_did", SOURCE_TEXT, true)                                             \
    COLUMN(CURSOR_SEEN, "last_seen_cursor", SOURCE_TEXT, true)
#define CATBIRD_MESSAGE_COLUMNS(COLUMN)                                                            \
    COLUMN(MESSAGE_CONVO, "convo_id", SOURCE_TEXT, true)                                           \
    COLUMN(MESSAGE_ID, "id", SOURCE_TEXT, true)                                                    \
    COLUMN(MESSAGE_SENDER, "sender_did", SOURCE_TEXT, false)                                       \
    COLUMN(MESSAGE_TYPE, "message_type", SOURCE_TEXT, false)                                       \
    COLUMN(MESSAGE_EPOCH, "epoch", SOURCE_INT, true)                                               \
    COLUMN(MESSAGE_SEQ, "seq", SOURCE_INT, true)                                                   \
    COLUMN(MESSAGE_BYTES, "ciphertext", SOURCE_BYTES, true)                                        \
    COLUMN(MESSAGE_GIVEN_ID, "msg_id", SOURCE_TEXT, false)                                         \
    COLUMN(MESSAGE_CREATED, "created_at", SOURCE_TIME, false)                                      \
    COLUMN(MESSAGE_BUCKET, "received_bucket_ts", SOURCE_INT, false)
#define CATBIRD_WELCOME_COLUMNS(COLUMN)                                                            \
    COLUMN(TO_CONVO, "convo_id", SOURCE_TEXT, true)                                                \
    COLUMN(TO_WHOM, "recipient_did", SOURCE_TEXT, true)                                            \
    COLUMN(TO_BYTES, "welcome_data", SOURCE_BYTES, true)                                           \
    COLUMN(TO_REF, "key_package_hash", SOURCE_HEX, false)                                          \
    COLUMN(TO_IS_CONSUMED, "consumed", SOURCE_FLAG, true)                                          \
    COLUMN(TO_WHY, "error_reason", SOURCE_TEXT, false)                                             \
    COLUMN(TO_CREATED, "created_at", SOURCE_TIME, false)
#define CATBIRD_PACKAGE_COLUMNS(COLUMN)                                                            \
    COLUMN(PACKAGE_OWNER, "owner_did", SOURCE_TEXT, true)                                          \
    COLUMN(PACKAGE_DEVICE, "device_id", SOURCE_TEXT, false)                                        \
    COLUMN(PACKAGE_BYTES, "key_package", SOURCE_BYTES, true)                                       \
    COLUMN(PACKAGE_EXPIRES, "expires_at", SOURCE_TIME, false)                                      \
    COLUMN(PACKAGE_USED, "consumed_at", SOURCE_TIME, true)                                         \
    COLUMN(PACKAGE_CREATED, "created_at", SOURCE_TIME, false)
/* This table's shape is a guess. If it is missing, devices register again. */
#define CATBIRD_DEVICE_COLUMNS(COLUMN)                                                             \
    COLUMN(DEVICE_USER, "user_did", SOURCE_TEXT, false)                                            \
    COLUMN(DEVICE_ID, "device_id", SOURCE_TEXT, false)                                             \
    COLUMN(DEVICE_NAME, "device_name", SOURCE_TEXT, false)                                         \
    COLUMN(DEVICE_KEY, "signature_public_key", SOURCE_HEX, false)                                  \
    COLUMN(DEVICE_CREATED, "registered_at", SOURCE_TIME, false)

/* A table: its constant, name and columns, whether it is needed, and its known columns that are
 * not, each between spaces. The tables from the policies to the Welcomes belong to conversations.
 */
#define IMPORT_TABLES(TABLE)                                                                       \
    TABLE(CATBIRD_CONVERSATIONS, "conversations", CATBIRD_CONVERSATION_COLUMNS, true,              \
        " idempotency_key group_info_epoch group_info_updated_at sequencer_ds ")                   \
    TABLE(CATBIRD_POLICIES, "conversation_policy", CATBIRD_POLICY_COLUMNS, false,                  \
        " created_at updated_at ")                                                                 \
    TABLE(CATBIRD_MEMBERS, "members", CATBIRD_MEMBER_COLUMNS, true,                                \
        " device_id device_name leaf_index needs_rejoin rejoin_requested_at"                       \
        " rejoin_key_package_hash promoted_at promoted_by ")                                       \
    TABLE(CATBIRD_CURSORS, "cursors", CATBIRD_CURSOR_COLUMNS, false, " updated_at ")               \
    TABLE(CATBIRD_MESSAGES, "messages", CATBIRD_MESSAGE_COLUMNS, true,                             \
        " padded_size expires_at idempotency_key ")                                                \
    TABLE(                                                                                         \
        CATBIRD_WELCOMES, "welcome_messages", CATBIRD_WELCOME_COLUMNS, false, " id consumed_at ")  \
    TABLE(CATBIRD_PACKAGES, "key_packages", CATBIRD_PACKAGE_COLUMNS, false,                        \
        " id credential_did cipher_suite key_package_hash consumed_for_convo_id"                   \
        " reserved_at reserved_by_convo ")                                                         \
    TABLE(CATBIRD_DEVICES, "devices", CATBIRD_DEVICE_COLUMNS, false,                               \
        " id credential_did last_seen_at ")

/* clang-format off */
#define COLUMN_CONSTANT(constant, ...) constant,
#define COLUMN_CONSTANTS(constant, name, columns, ...) enum { columns(COLUMN_CONSTANT) };
#define TABLE_CONSTANT(constant, ...) constant,
IMPORT_TABLES(COLUMN_CONSTANTS)
enum import_table { IMPORT_TABLES(TABLE_CONSTANT) CATBIRD_TABLES, IMPORT_NO_TABLE = CATBIRD_TABLES };
/* clang-format on */

enum { IMPORT_COLUMNS_MAX = 10 };
struct source_table {
    const char *name;
    struct source_column {
        const char *name; /* NULL ends the columns */
        enum source_type type;
        bool is_needed;
    } columns[IMPORT_COLUMNS_MAX + 1];
    bool is_needed;
    const char *ignored;
};
extern const struct source_table import_tables[CATBIRD_TABLES];

/* ---- the run --------------------------------------------------------------------------------- */

typedef struct pg_conn PGconn; /* libpq's */
typedef struct pg_result PGresult;

enum { IMPORT_FATES_MAX = 16 }; /* of a table */
/* Bounds of a unit. Small conversations share one, so that not each costs a COMMIT. */
enum { IMPORT_STEPS_MAX = 1000, IMPORT_BYTES_MAX = 1 << 20 };

struct import_run {
    const struct delivery_import *import;
    char *why;
    size_t why_size;
    /* the source, and the tables and columns it has */
    PGconn *pg;
    bool has_table[CATBIRD_TABLES];
    bool has_column[CATBIRD_TABLES][IMPORT_COLUMNS_MAX + 1]; /* the last: unknown ones */
    /* the unit that is being filled; NULL: none */
    struct sql_unit *unit;
    uint32_t unit_steps;
    size_t unit_bytes;
    enum import_table tables[IMPORT_STEPS_MAX]; /* each step imports a row of this table */
    int64_t last_changed; /* rows that the last step of the last unit changed */
    struct import_fate {
        const char *reason; /* NULL: imported; always the first */
        uint64_t rows;
    } fates[CATBIRD_TABLES][IMPORT_FATES_MAX];
    /* conversations */
    uint64_t imported; /* by an earlier run */
    uint64_t done, total;
};

/* Counts rows of a table as imported (reason NULL) or skipped. Reasons are literals. Returns 0. */
int import_fate(struct import_run *run, enum import_table table, const char *reason, uint64_t rows);
/* Reports a finding; an empty subject is the source. */
void import_finding(struct import_run *run, struct span subject, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Writes the sentence about the failure that ends the run, on one line. Returns `rc`. */
int import_fail(struct import_run *run, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a step that must change `rows` rows to the unit, and writes the unit if it has become large.
 * A step that imports a row of `table` counts it: as imported, or, if an INSERT found its row, as
 * existing. */
int import_step(struct import_run *run, enum import_table table,
    const struct sql_statement *statement, int64_t rows, const struct step_value *values,
    size_t count);
#define VALUES(...)                                                                                \
    (const struct step_value[]){ __VA_ARGS__ },                                                    \
        sizeof((const struct step_value[]){ __VA_ARGS__ }) / sizeof(struct step_value)
#define VALUE_INT_IF(is_there, number_)                                                            \
    {                                                                                              \
        .kind = (is_there) ? STEP_INT : STEP_TEXT, .number = (int64_t)(number_)                    \
    }
int import_flush(struct import_run *run); /* writes the unit */

/* ---- the source ------------------------------------------------------------------------------ */

/* One transaction (REPEATABLE READ, READ ONLY) from the opening to PQfinish sees one moment of a
 * foreign PostgreSQL. Opening examines its tables: a missing needed column fails, an unknown one is
 * a finding. All calls block; one thread. They set `why`. */
int source_open(struct import_run *run);

/* Returns a value; {NULL, 0} if it is NULL or there is no such row. A zero follows the bytes. */
struct span source_bytes_at(const PGresult *rows, int row, int column);
/* Return a value of the first row. */
static inline struct span source_bytes(const PGresult *row, int column)
{
    return source_bytes_at(row, 0, column);
}
int64_t source_int_or(const PGresult *row, int column, int64_t fallback); /* of NULL */

/* Asks for few rows, of bigint, text or bytea. A NULL value: the statement has none. */
int source_ask(struct import_run *run, const char *text, const char *value, PGresult **ret_rows);
int source_number(struct import_run *run, const char *text, const char *value, int64_t *ret_number);
/* Counts the rows of a table that are of this conversation; NULL: all rows. */
int source_count(
    struct import_run *run, enum import_table table, const char *convo, int64_t *ret_rows);
/* Selects rows of a table, of one conversation or (NULL) all. They come one at a time and are gone
 * after their callback, so memory does not depend on their number. `order` are numbers of columns
 * from 1 on. The callback returns 0, or a negative code that ends the run; it must not select. No
 * rows if the source has no such table. */
enum { SOURCE_KEPT = 1 }; /* the callback has taken the row */
typedef int (*source_row_fn)(void *data, PGresult *row);
int source_each(struct import_run *run, enum import_table table, const char *convo,
    const char *order, source_row_fn on_row, void *data);
int source_keep(void *data, PGresult *row); /* a callback: keeps the last row in a PGresult * */

/* ---- one conversation ----------------------------------------------------------------------- */

struct import_person {
    int64_t joined_ms;
    int64_t left_ms;
    int64_t read_ms;   /* -1: not known */
    int64_t cursor_ms; /* -1: not known */
    int64_t unread;    /* -1: not known */
    uint64_t join_seq;
    uint64_t leave_seq;
    uint64_t read_seq;
    bool is_in;
    bool is_admin;
    bool is_moderator;
};

/* A moment when a member joined, left or read: becomes a place in the log. */
struct import_point {
    int64_t from_ms; /* the first row at or after this time lies behind the point */
    uint64_t *seq;   /* the place */
    bool is_leave;
};

enum { IMPORT_RECENT_MAX = 1024, IMPORT_BASES_MAX = 1 << 24 };

struct import_convo {
    struct import_run *run;
    struct span id; /* a zero follows */
    PGresult *row;  /* in the source */
    int64_t created_ms;
    int64_t source_epoch;
    struct span suite, group_info; /* either may be absent */
    uint64_t group_info_epoch;
    struct buffer group_id; /* of the group of its messages; empty: not known */
    /* its members */
    struct roster roster;
    struct buffer persons;            /* of import_person; the nth is the roster's nth */
    struct buffer points;             /* of import_point, sorted */
    struct import_point *point, *end; /* those that the log has not reached */
    /* its log */
    uint64_t epoch_max; /* the server never reached a higher one */
    uint64_t epoch;     /* the highest that a member is known to have reached */
    bool has_epoch;
    uint64_t rows;
    uint64_t first_seq, last_seq;
    int64_t newest_ms;
    unsigned char chain[32];
    struct buffer bases;                /* uint64_t: base epochs of winning commits, sorted */
    uint64_t recent[IMPORT_RECENT_MAX]; /* seqs of the newest application messages: a ring */
    uint64_t recent_count;
    uint64_t moved, missing, lost, unreadable, unreached, former;
    /* its Welcomes */
    unsigned char welcome_hash[32];
    int64_t welcome_part;
    uint64_t welcome_seq;
};

/* Imports a conversation. `is_begun`: an earlier run was interrupted in it. TR_ENOENT: it is
 * skipped. */
int import_convo(struct import_run *run, struct span id, bool is_begun);
/* Imports the log, and sets join_seq, leave_seq and read_seq of all members. */
int import_log(struct import_convo *convo);
int import_welcomes(struct import_convo *convo);
static inline struct import_person *import_person(const struct import_convo *convo, size_t n)
{
    return (struct import_person *)(void *)convo->persons.bytes + n;
}
/* Finds a member by DID. NULL: there is none. */
struct import_person *import_person_find(const struct import_convo *convo, struct span did);

int import_devices(struct import_run *run);
int import_packages(struct import_run *run);

#endif
