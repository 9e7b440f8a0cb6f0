/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.h: what has to be tidied up from time to time: leases that passed, key packages that ended,
 * Welcomes that were confirmed, additions that are done, chat requests with what waited with
 * them, invites, counts of rejoins, entries of the audit log. Nothing depends on it: a lease that
 * passed counts as free at once, wherever it is looked at. One actor; it runs every half hour, and
 * when it is asked (an empty message; the reply is a struct cleanup_done). Each pass is bounded; what
 * is left goes into the next one, at once. */
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
    int64_t welcomes;  /* deleted: nobody is left that they are for */
    int64_t additions; /* deleted: completed seven days ago */
    int64_t held;      /* deleted: their request expired or was answered seven days ago */
    int64_t requests;  /* deleted: expired or declined seven days ago */
    int64_t invites;   /* deleted: expired or revoked thirty days ago */
    int64_t rejoins;   /* deleted: counted an hour ago */
    int64_t audits;    /* deleted: a year old */
};

/* Ends when the sender is dropped; `delivery` must outlive it. */
int cleanup_start(struct delivery *delivery, tr_sender *ret_jobs);
extern const struct tr_type cleanup_type;

#endif
