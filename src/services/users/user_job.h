/* SPDX-License-Identifier: Apache-2.0 */
/* user_job.h: what a request wants of a user's actor, and what became of it. The connection and the
 * actor hold it, the last one frees it; until the actor has replied only the actor touches it. */
#ifndef SERVICES_USERS_USER_JOB_H
#define SERVICES_USERS_USER_JOB_H

#include <stdatomic.h>

#include "services/users/users.h"

enum user_job_kind { USER_PUSH, USER_PULL, USER_CONFLICTS, USER_STATUS };

struct user_change {
    enum user_kind kind;
    struct span item;
    struct span session; /* of a session item */
    struct span body;    /* "" when it is deleted */
    int64_t updated_ms;
    bool is_deleted;
    uint32_t step; /* in the unit: the one that stores it; a session item's check is two before */
};

struct user_job {
    _Atomic uint32_t holders;
    enum user_job_kind kind;
    char user[USER_ID_SIZE_MAX + 1];
    struct buffer texts; /* what the spans below point into */

    /* a push */
    struct span device, os, model, app_version;
    int64_t known_seq; /* what the device has pulled; -1: it did not say */
    struct user_change *changes;
    uint32_t change_count;
    int64_t rows_max; /* of the user, after it; 0: it cannot be too many, so they are not counted */
    uint32_t limit_step; /* in the unit: the one that counts them; 0: none does */

    int64_t after_seq;                /* of a pull */
    char epoch[USER_EPOCH_CHARS + 1]; /* of that number; "": the device did not say */
    uint32_t limit;                   /* rows of a pull, or conflicts */

    /* what became of it */
    int status;            /* 0, or a code of sql.h, or TR_ELIMIT: the user has too many rows */
    struct sql_unit *unit; /* that came back */
    int64_t now_ms;

    /* the actor's, while it waits */
    struct user_job *next;
    tr_reply_handle reply;
    uint32_t tries;
};

struct user_message {
    struct user_job *job; /* one holder */
};

struct user_job *user_job_new(enum user_job_kind kind, struct span user); /* NULL: no memory */
void user_job_unref(struct user_job *job);                                /* NULL is fine */

/* user_store.c: units for the actor; NULL when out of memory. */

/* The user's last number, how many rows there are, and the epoch of the last number. */
struct sql_unit *user_unit_load(const char *user);
/* Numbers seq + 1 … seq + changes are given out; the unit fails if `seq` is not the last one, and
 * if there would be more than rows_max rows. With `epoch` they are the first ones of it; NULL: they
 * are of the one before. */
struct sql_unit *user_unit_push(struct user_job *job, int64_t seq, const char *epoch);
struct sql_unit *user_unit_read(const struct user_job *job); /* the other kinds */
/* Of a pull's unit. The user's last number; and has the database given out the number after which
 * was asked, in the epoch that was named? */
int64_t user_pull_seq(const struct user_job *job);
bool user_pull_is_known(const struct user_job *job);
struct span user_pull_epoch(const struct user_job *job); /* "": nothing was pushed yet */

/* user_actor.c */
extern const struct tr_type user_type;

#endif
