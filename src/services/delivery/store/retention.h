/* SPDX-License-Identifier: Apache-2.0 */
/* retention.h: the log is kept by need. A row goes when it is older than log_kept_s and nobody
 * needs it: every member's cursor (read_seq) is at or past it, and no Welcome that may still be
 * used is older than it. Rows go from the oldest on, so what is kept has no hole; convos.kept_from
 * is the oldest that is, and convos.kept_chain the receipt before it. Confirmations and reports of
 * that age go too, and quarantines that are over.
 *
 * One actor; it runs every hour, and when it is asked. */
#ifndef SERVICES_DELIVERY_STORE_RETENTION_H
#define SERVICES_DELIVERY_STORE_RETENTION_H

#include "services/delivery/delivery.h"

struct retention_message {
    int64_t kept_s; /* in place of the configured age; -1: that one, so nothing goes if it is 0 */
};

/* The reply. */
struct retention_done {
    int64_t convos; /* of which something was deleted */
    int64_t rows;   /* of the log */
};

/* Ends when the sender is dropped. It does not look at `delivery` after this. */
int retention_start(struct delivery *delivery, tr_sender *ret_retention);
extern const struct tr_type retention_type;

#endif
