/* SPDX-License-Identifier: Apache-2.0 */
/* cleanup.h: deletes expired rows: leases, key packages, Welcomes, device additions, chat requests
 * with their held messages, invites, rejoin counts, audit entries. Correctness does not depend on
 * it: every query treats an expired row as gone. One actor runs it every half hour and on request
 * (an empty message; the reply is a struct cleanup_done). A pass is bounded; the next pass follows
 * at once if rows are left. */
#ifndef SERVICES_DELIVERY_STORE_CLEANUP_H
#define SERVICES_DELIVERY_STORE_CLEANUP_H

#include "services/delivery/delivery.h"

struct cleanup_message {
    uint32_t unused;
};

struct cleanup_done {
    int64_t leases;    /* returned to the pool */
    int64_t packages;  /* deleted: expired a day ago, or consumed more than eight days ago */
    int64_t targets;   /* deleted: confirmed a day ago, invalid thirty days ago */
    int64_t welcomes;  /* deleted: without recipients */
    int64_t additions; /* deleted: completed seven days ago */
    int64_t held;      /* deleted: their request expired or was answered seven days ago */
    int64_t requests;  /* deleted: expired or declined seven days ago */
    int64_t invites;   /* deleted: expired or revoked thirty days ago */
    int64_t rejoins;   /* deleted: counted an hour ago */
    int64_t audits;    /* deleted: a year old */
};

/* Starts the actor. It ends when the sender is dropped; `delivery` must outlive it. */
int cleanup_start(struct delivery *delivery, tr_sender *ret_jobs);
extern const struct tr_type cleanup_type;

#endif
