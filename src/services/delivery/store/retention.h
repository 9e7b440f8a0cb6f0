/* SPDX-License-Identifier: Apache-2.0 */
/* retention.h: trims the log. A row goes when it is older than log_kept_s, every member's cursor
 * (read_seq) is at or past it, and no usable Welcome is older than it. Rows go from the oldest on,
 * so the log has no hole; convos.kept_from is the oldest kept row, and convos.kept_chain the
 * receipt before it. Confirmations and reports of that age and ended quarantines go too.
 *
 * One actor runs it every hour and on request. */
#ifndef SERVICES_DELIVERY_STORE_RETENTION_H
#define SERVICES_DELIVERY_STORE_RETENTION_H

#include "services/delivery/delivery.h"

struct retention_message {
    int64_t kept_s; /* replaces the configured age; -1: use that one (0 there keeps everything) */
};

/* The reply. */
struct retention_done {
    int64_t convos; /* conversations with deleted rows */
    int64_t rows;   /* of the log */
};

/* Starts the actor. It ends when the sender is dropped; `delivery` must outlive it. */
int retention_start(struct delivery *delivery, tr_sender *ret_retention);
extern const struct tr_type retention_type;

#endif
