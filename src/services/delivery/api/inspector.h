/* SPDX-License-Identifier: Apache-2.0 */
/* inspector.h: one actor that runs the checks of check.h on a live server, and reads pages of the
 * audit log. The checks are many short reads, one after the other, so they keep at most one reader of
 * the database busy. They run for one request at a time; another one gets TR_EBUSY. */
#ifndef SERVICES_DELIVERY_API_INSPECTOR_H
#define SERVICES_DELIVERY_API_INSPECTOR_H

#include <stdatomic.h>

#include "services/delivery/store/audit.h"

enum {
    INSPECTOR_FOUND_MAX = 100, /* violations that an answer names; it counts all */
    INSPECTOR_PAGES_MAX = 8,   /* of the audit log, being read */
    INSPECTOR_PAGE_MAX = 500,  /* entries of one */
};

/* Request and actor both hold it; the last one frees it. Until the actor has replied, only the actor
 * touches it. */
struct inspection {
    _Atomic uint32_t holders;
    bool is_audit;       /* else: run the checks */
    struct buffer convo; /* list entries of this conversation; empty: of all */
    int64_t before_ms;   /* list entries older than (before_ms, before_id) */
    char before_id[AUDIT_ID_SIZE];
    uint32_t limit;
    struct buffer answer; /* JSON */
};

/* Create one with one holder. NULL: out of memory. */
struct inspection *inspection_create(void);
void inspection_unref(struct inspection *inspection);

/* Takes one holder. The reply is 0, TR_EBUSY, or the error. */
struct inspector_message {
    struct inspection *inspection;
};

/* Start the actor. It ends when the sender is dropped; `delivery` must outlive it. */
int inspector_start(struct delivery *delivery, tr_sender *ret_inspector);
extern const struct tr_type inspector_type;

#endif
