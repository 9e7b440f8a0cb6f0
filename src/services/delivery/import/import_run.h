/* SPDX-License-Identifier: Apache-2.0 */
/* import_run.h: the common parts of an import: the source's tables (import_tables.c), the unit that
 * is being filled (import_run.c), one conversation (import_convo.c: its row, policy and members;
 * import_log.c: its messages; import_welcome.c), key packages and devices (import_package.c). */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H

#include "services/delivery/convo/roster.h"
#include "services/delivery/import/import.h"
#include "services/delivery/import/import_source.h"

/* ---- the source's tables: a row has these columns, in this order ---------------------------- */

enum import_table {
    CATBIRD_CONVERSATIONS,
    CATBIRD_POLICIES,
    CATBIRD_MEMBERS,
    CATBIRD_CURSORS,
    CATBIRD_MESSAGES,
    CATBIRD_WELCOMES,
    CATBIRD_PACKAGES,
    CATBIRD_DEVICES,
    CATBIRD_TABLES,
};
enum {
    CONVO_ID,
    CONVO_CREATOR,
    CONVO_EPOCH,
    CONVO_NAME,
    CONVO_TEXT,
    CONVO_SUITE,
    CONVO_INFO,
    CONVO_IS_REMOTE,
    CONVO_CREATED,
    CONVO_UPDATED
};
enum { OF_CONVO = 0 }; /* the tables below, up to the Welcomes, begin with the conversation */
enum { RULE_MEMBERS_MAX = 1, RULE_EXTERNAL, RULE_INVITE, RULE_REJOIN_DAYS };
enum {
    MEMBER_DID = 1,
    MEMBER_USER,
    MEMBER_JOINED,
    MEMBER_LEFT,
    MEMBER_IS_ADMIN,
    MEMBER_IS_MODERATOR,
    MEMBER_UNREAD,
    MEMBER_READ
};
enum { CURSOR_USER = 1, CURSOR_SEEN };
enum {
    MESSAGE_ID = 1,
    MESSAGE_SENDER,
    MESSAGE_TYPE,
    MESSAGE_EPOCH,
    MESSAGE_SEQ,
    MESSAGE_BYTES,
    MESSAGE_GIVEN_ID,
    MESSAGE_CREATED,
    MESSAGE_BUCKET
};
enum { TO_WHOM = 1, TO_BYTES, TO_REF, TO_IS_CONSUMED, TO_WHY, TO_CREATED };
enum {
    PACKAGE_OWNER,
    PACKAGE_DEVICE,
    PACKAGE_BYTES,
    PACKAGE_EXPIRES,
    PACKAGE_USED,
    PACKAGE_CREATED
};
enum { DEVICE_USER, DEVICE_ID, DEVICE_NAME, DEVICE_KEY, DEVICE_CREATED };
extern const struct source_table import_tables[CATBIRD_TABLES];

/* ---- the run -------------------------------------------------------------------------------- */

enum { IMPORT_FATES_MAX = 96 };
/* Bounds of a unit. Small conversations share one, so that not each costs a COMMIT. */
enum { IMPORT_STEPS_MAX = 1000, IMPORT_BYTES_MAX = 1 << 20 };

struct import_run {
    const struct delivery_import *import;
    struct source *source;
    struct sql_unit *unit; /* being filled; NULL: none */
    uint32_t unit_steps;
    size_t unit_bytes;
    struct { /* steps of the unit that change nothing if the row is there already */
        uint32_t step;
        enum import_table table;
    } maybe[IMPORT_STEPS_MAX];
    uint32_t maybe_count;
    struct {
        enum import_table table;
        const char *reason; /* NULL: imported */
        uint64_t rows;
    } fates[IMPORT_FATES_MAX];
    uint32_t fate_count;
    char *why;
    size_t why_size;
};

/* Counts rows of a table as imported (reason NULL) or skipped. Reasons are literals. */
void import_fate(
    struct import_run *run, enum import_table table, const char *reason, uint64_t rows);
void import_finding(struct import_run *run, struct span subject, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Selects from a table; sets `why`. Returns 0 and no rows if the source has no such table. */
int import_select(struct import_run *run, enum import_table table, const char *rest,
    const char *value, source_row_fn on_row, void *data);

/* Begins a step of the unit and adds its values. import_store reports out of memory. */
void import_step(struct import_run *run, const struct sql_statement *statement, int64_t rows);
/* Does the same for an INSERT that may find its row: then a row counted as imported counts as
 * existing. */
void import_step_maybe(
    struct import_run *run, const struct sql_statement *statement, enum import_table table);
void import_int(struct import_run *run, int64_t value);
void import_text(struct import_run *run, struct span text);  /* absent is NULL */
void import_blob(struct import_run *run, struct span bytes); /* absent is NULL */
void import_null(struct import_run *run);
/* Writes the unit between two steps if it has become large. `now`: in any case. */
int import_store(struct import_run *run, bool now);

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
    uint32_t person;
    enum { POINT_JOIN, POINT_LEAVE, POINT_READ } kind;
};

enum { IMPORT_RECENT_MAX = 1024 };

struct import_convo {
    struct import_run *run;
    char id[132];
    size_t id_size;
    /* its row */
    bool is_there;
    bool is_remote;
    int64_t source_epoch;
    int64_t created_ms;
    int64_t active_ms;
    int64_t rules[5]; /* RULE_…; -1: not known */
    struct buffer creator, name, description, suite, group_info;
    uint64_t group_info_epoch;
    struct buffer group_id; /* of the group of its messages; empty: not known */
    /* its members: persons[i] is roster.members[i] */
    struct roster roster;
    struct import_person *persons;
    uint32_t person_capacity;
    struct import_point *points;
    uint32_t point_count;
    uint32_t point_next;
    /* its log */
    uint64_t epoch_max; /* the server never reached a higher one */
    uint64_t epoch;     /* the highest that a member is known to have reached */
    bool has_epoch;
    uint64_t rows;
    uint64_t first_seq, last_seq;
    int64_t newest_ms;
    unsigned char chain[32];
    uint64_t *bases; /* base epochs of winning commits, sorted */
    uint32_t base_count, base_capacity;
    uint64_t recent[IMPORT_RECENT_MAX]; /* seqs of the newest application messages: a ring */
    uint64_t recent_count;
    uint64_t moved, missing, lost, unreadable, unreached, former;
    /* its Welcomes */
    unsigned char welcome_hash[32];
    int64_t welcome_part;
    uint64_t welcome_seq;
};

static inline struct span import_id(const struct import_convo *convo)
{
    return (struct span){ convo->id, convo->id_size };
}

/* Imports a conversation. `is_begun`: an earlier run was interrupted in it. */
int import_convo(struct import_run *run, struct span id, bool is_begun);
int import_log(struct import_convo *convo);
/* Sets join_seq, leave_seq and read_seq of all members after the log was read. */
void import_log_place_all(struct import_convo *convo);
int import_welcomes(struct import_convo *convo);
/* Strips #device from a DID. */
struct span import_bare_did(struct span did);

/* ---- the rest ------------------------------------------------------------------------------- */

int import_devices(struct import_run *run);
int import_packages(struct import_run *run);

#endif
