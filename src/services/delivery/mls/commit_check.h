/* SPDX-License-Identifier: Apache-2.0 */
/* commit_check.h: checks a commit and its GroupInfo, or a lone proposal, against what is stored of
 * the epoch it was made in. It runs on the pool: a signature takes tens of microseconds, and a tree
 * may be large. Checks that depend on the conversation's current point stay with the conversation:
 * a commit that comes too late hears of the winner, not of its other faults. So the results are in
 * the act (is_verified, knows_proposals, info), and the act's plan reads them. An account that is
 * not a member learns nothing of what is stored: the plan refuses it. */
#ifndef SERVICES_DELIVERY_MLS_COMMIT_CHECK_H
#define SERVICES_DELIVERY_MLS_COMMIT_CHECK_H

#include "services/delivery/convo/acts.h"
#include "services/delivery/delivery.h"

struct commit_check {
    struct act *act; /* counted */
    enum delivery_mode mode;
    struct sql_unit
        *unit;       /* owned: stored rows, then owners (recipients.h); NULL: none were read */
    bool has_stored; /* the unit begins with the steps of commit_check_ask */
    uint32_t owners_first; /* step of the first owner */
    uint32_t owners_count;
    const char *label; /* of the fault */
    const char *why;   /* the fault as a sentence; NULL: none */
};

/* Must the check read the database first? */
bool commit_check_needs_stored(const struct act *act, enum delivery_mode mode);
/* Appends the steps that read it and returns their number. A NULL unit is fine. */
uint32_t commit_check_ask(struct act *act, enum delivery_mode mode, struct sql_unit *unit);
/* Runs a struct commit_check on the pool. Always 0. */
int commit_check_run(void *argument);
void commit_check_destroy(void *argument);

#endif
