/* SPDX-License-Identifier: Apache-2.0 */
/* retention.h: deletes what nobody needs any more. Two actors run rounds, at intervals and on
 * request; a request that comes during a round is answered with the result of that round.
 *
 * The cleanup, every half hour, deletes expired rows: leases, key packages, Welcomes, device
 * additions, chat requests with their held messages, invites, rejoin counts, audit entries.
 * Correctness does not depend on it: every query treats an expired row as gone. A pass is bounded;
 * the next pass follows at once if rows are left.
 *
 * The retention, every hour, trims the log. A row goes when it is older than log_kept_s, every
 * member's cursor (read_seq) is at or past it, every open Welcome belongs to a later row, and no
 * member whose removal can still be revoked has it unread. Rows go from
 * the oldest on, so the log has no hole; convos.kept_from is the oldest kept row, and
 * convos.kept_chain the receipt before it. Confirmations and reports of that age and ended
 * quarantines go too. */
#ifndef SERVICES_DELIVERY_STORE_RETENTION_H
#define SERVICES_DELIVERY_STORE_RETENTION_H

#include "services/delivery/delivery.h"

struct cleanup_message {
    uint32_t unused;
};

/* The reply. */
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

struct retention_message {
    int64_t kept_s; /* replaces the configured age; -1: use that one (0 there keeps everything) */
};

/* The reply. */
struct retention_done {
    int64_t convos; /* conversations with deleted rows */
    int64_t rows;   /* of the log */
};

/* Start an actor. It ends when the sender is dropped; `delivery` must outlive it. */
int cleanup_start(struct delivery *delivery, tr_sender *ret_cleanup);
int retention_start(struct delivery *delivery, tr_sender *ret_retention);

#endif
