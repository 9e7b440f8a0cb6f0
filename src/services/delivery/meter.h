/* SPDX-License-Identifier: Apache-2.0 */
/* meter.h: what the service counts under the names that dashboards made for a Catbird server know.
 * Our own figures (troupe_delivery_...) stay with what they count; docs/operations.md has a line
 * for each of both. */
#ifndef SERVICES_DELIVERY_METER_H
#define SERVICES_DELIVERY_METER_H

#include "services/delivery/job.h"

enum meter {
    METER_MESSAGES_SENT,
    METER_GROUPS_CREATED,
    METER_EPOCH_CONFLICTS,
    METER_IDEMPOTENCY_HITS,    /* answered with what was stored before */
    METER_IDEMPOTENCY_MISSES,  /* an id that was not there before, */
    METER_IDEMPOTENCY_STORES,  /* and is now */
    METER_IDEMPOTENCY_SKIPPED, /* stored without an id of the client's */
    METER_FANOUTS,             /* an event on its way to everybody who listens */
    METER_STREAMS,             /* open now */
    METER_SPAWNS,              /* of conversations' actors */
    METER_STOPS,
    METER_RESTARTS,
    METER_BOX_FULL, /* a request that found its conversation's box full */
    METER_DROPS,    /* a request that was not handled, for that or another reason */
    METER_PACKAGES_LOW,
    METER_TIDIED, /* rows that jobs.c deleted */
    METER_POLLS,  /* getMessages answered by a conversation's actor, without the database */
    METERS,
};

void meter_start(void); /* makes them visible; again is harmless */
void meter_add(enum meter meter, int64_t amount);
/* A job came back to its request after so long. */
void meter_job(const struct job *job, uint64_t took_ns);

#endif
