/* SPDX-License-Identifier: Apache-2.0 */
/* inspector.h: what an operator asks that has to be read together: the checks of check.h over a
 * server that runs, and pages of the audit log. One actor. The checks are many short reads, one
 * after the other, so they never keep more than one reader of the database busy; they are run for
 * one who asks at a time. */
#ifndef SERVICES_DELIVERY_API_INSPECTOR_H
#define SERVICES_DELIVERY_API_INSPECTOR_H

#include <stdatomic.h>

#include "services/delivery/store/audit.h"

enum {
    INSPECTOR_FOUND_MAX = 100, /* violations that an answer names; it counts all */
    INSPECTOR_PAGES_MAX = 8,   /* of the audit log, being read */
    INSPECTOR_PAGE_MAX = 500,  /* entries of one */
};

/* Two hold it, the request and the actor; the last one frees it. Until the actor has replied only
 * the actor touches it. */
struct inspection {
    _Atomic uint32_t holders;
    bool is_audit;       /* else: run the checks */
    struct buffer convo; /* of the audit log: only what happened there; empty: everywhere */
    int64_t before_ms;   /* and what is older than this entry, newest first */
    char before_id[AUDIT_ID_SIZE];
    uint32_t limit;
    struct buffer answer; /* JSON */
};

struct inspection *inspection_new(void); /* one holder; NULL when out of memory */
void inspection_unref(struct inspection *inspection);

/* Takes one holder. The reply is 0, TR_EBUSY, or what went wrong. */
struct inspector_message {
    struct inspection *inspection;
};

/* Ends when the sender is dropped; `delivery` must outlive it. */
int inspector_start(struct delivery *delivery, tr_sender *ret_inspector);
extern const struct tr_type inspector_type;

#endif
