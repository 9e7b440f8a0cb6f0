/* SPDX-License-Identifier: Apache-2.0 */
/* user_job.h: a request for a user's actor, and its result. The connection and the actor each hold a
 * reference; the last one frees the job. Until the actor has replied only the actor touches it. */
#ifndef SERVICES_USERS_USER_JOB_H
#define SERVICES_USERS_USER_JOB_H

#include <stdatomic.h>

#include "services/users/users.h"

enum user_job_kind { USER_PUSH, USER_PULL, USER_CONFLICTS, USER_STATUS };

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
    enum user_job_kind kind;
    char user[USER_ID_SIZE_MAX + 1];
    struct buffer texts; /* the spans below point into it */

    /* a push */
    struct span device, os, model, app_version;
    int64_t known_seq; /* the last number that the device has pulled; -1: not given */
    struct user_change *changes;
    uint32_t change_count;
    int64_t rows_max;    /* of the user after the push; 0: too few to count */
    uint32_t limit_step; /* of the unit: counts the rows; 0: none does */

    int64_t after_seq;                /* cursor of a pull */
    char epoch[USER_EPOCH_CHARS + 1]; /* of the cursor; "": not given */
    uint32_t limit;                   /* rows of a pull, or conflicts */

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
struct user_job *user_job_create(enum user_job_kind kind, struct span user);
void user_job_unref(struct user_job *job); /* NULL is fine */

/* user_store.c: units for the actor. NULL: out of memory. */

/* Read the user's last number, the number of rows, and the epoch of the last number. */
struct sql_unit *user_unit_load(const char *user);
/* Store a push under the numbers seq + 1 ... seq + change_count. The unit fails if `seq` is not the
 * last number, or if the user would have more than rows_max rows. `epoch` begins with these numbers;
 * NULL: they belong to the epoch before. */
struct sql_unit *user_unit_push(struct user_job *job, int64_t seq, const char *epoch);
/* Read for one of the other kinds. */
struct sql_unit *user_unit_read(const struct user_job *job);
/* Facts of a pull that came back: the user's last number; the number of the last row; whether the
 * database has given out the cursor in the epoch that the device named; the newest epoch, "" before
 * the first push. */
int64_t user_pull_seq(const struct user_job *job);
int64_t user_pull_last_row(const struct user_job *job);
bool user_pull_is_known(const struct user_job *job);
struct span user_pull_epoch(const struct user_job *job);

/* user_actor.c */
extern const struct tr_type user_type;

#endif
