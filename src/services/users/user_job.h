/* SPDX-License-Identifier: Apache-2.0 */
/* user_job.h: a push for a user's actor, and its result. The connection and the actor each hold a
 * reference; the last one frees the job. Until the actor has replied only the actor touches it. */
#ifndef SERVICES_USERS_USER_JOB_H
#define SERVICES_USERS_USER_JOB_H

#include <stdatomic.h>

#include "services/common/call.h"
#include "services/users/users.h"

struct user_change {
    enum user_kind kind;
    struct span item;
    struct span session; /* of a session item */
    struct span body;    /* "" in a tombstone */
    int64_t updated_ms;
    bool is_deleted;
    uint32_t step; /* of the unit: stores the change; a session item's check is two before it */
};

struct user_job {
    _Atomic uint32_t holders;
    char user[USER_ID_SIZE_MAX + 1];
    struct buffer texts; /* the spans below point into it */
    struct span device, os, model, app_version;
    int64_t known_seq; /* the last number that the device has pulled; -1: not given */
    struct user_change *changes;
    uint32_t change_count;
    int64_t rows_max;    /* of the user after the push; 0: too few to count */
    uint32_t limit_step; /* of the unit: counts the rows; 0: none does */

    /* the result */
    int status;            /* 0, or a code of sql.h, or TR_ELIMIT: the user has too many rows */
    struct sql_unit *unit; /* as it came back */
    int64_t now_ms;

    /* the actor's, while the job waits */
    struct user_job *next;
    tr_reply_handle reply;
    uint32_t tries;
};

struct user_message {
    struct user_job *job; /* one reference */
};

/* Create a job with one reference. NULL: out of memory. */
struct user_job *user_job_create(struct span user);
void user_job_unref(struct user_job *job); /* NULL is fine */

/* user_push.c: fill the job from the body of the reader's request. A mistake fails the reader. */
void user_push_read(struct user_job *job, struct param_reader *reader, int64_t now_ms);

/* user_store.c: units for the actor. NULL: out of memory. */

/* Read the user's last number, the number of rows, and the epoch of the last number. */
struct sql_unit *user_unit_load(const char *user);
/* Store a push under the numbers seq + 1 ... seq + change_count. The unit fails if `seq` is not the
 * last number, or if the user would have more than rows_max rows. `epoch` begins with these numbers;
 * NULL: they belong to the epoch before. */
struct sql_unit *user_unit_push(struct user_job *job, int64_t seq, const char *epoch);

/* Statements of the calls that read. The columns are those of the answers. */
extern const struct sql_statement user_seq;      /* $1 is the user, as in all of them */
extern const struct sql_statement user_pull;     /* $2 the cursor, $3 rows, $4 bytes at most */
extern const struct sql_statement user_last_row; /* the number of the last row, or NULL */
extern const struct sql_statement user_last_epoch;
extern const struct sql_statement user_epoch_end; /* of the epoch $2; NULL: it is the newest */
extern const struct sql_statement user_conflicts; /* $2: at most so many */
extern const struct sql_statement user_count_kinds, user_devices, user_count_conflicts;

/* user_actor.c */
void user_count_read(struct call_run *run, bool is_answered);
extern const struct tr_type user_type;

#endif
