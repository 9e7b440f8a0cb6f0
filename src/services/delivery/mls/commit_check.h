/* SPDX-License-Identifier: Apache-2.0 */
/* commit_check.h: what a commit and the group info beside it say, or a proposal that comes alone,
 * held against what is stored of the epoch it was made in. On the pool: signatures take tens of
 * microseconds each, and a tree may be large. What depends on where the conversation is by now is
 * left to the conversation: a commit that comes too late is told of the winner, not of what else is
 * wrong with it. So what is found here is in the job (is_verified, knows_proposals, info, roster),
 * and convo_plan.c asks. Who is not in hears nothing of what is stored: it is refused there. */
#ifndef SERVICES_DELIVERY_MLS_COMMIT_CHECK_H
#define SERVICES_DELIVERY_MLS_COMMIT_CHECK_H

#include "services/delivery/convo/job.h"
#include "services/delivery/delivery.h"

struct commit_check {
    struct job *job;                                              /* counted */
    void (*go_on)(struct http_request *request, struct job *job); /* see api_check */
    enum delivery_mode mode;
    struct sql_unit *stored; /* owned: what commit_check_ask asked for; NULL: nothing */
    const char *label;       /* of what is wrong */
    const char *why;         /* NULL: nothing is */
};

/* Must something be read from the database first? */
bool commit_check_needs_stored(const struct job *job, enum delivery_mode mode);
/* The steps that read it. NULL, out of memory, is fine. */
void commit_check_ask(const struct job *job, enum delivery_mode mode, struct sql_unit *unit);
/* Of work for the pool: a struct commit_check. Always 0. */
int commit_check_run(void *argument);
void commit_check_free(void *argument);

#endif
