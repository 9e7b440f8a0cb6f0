/* SPDX-License-Identifier: Apache-2.0 */
/* notice.h: tells a conversation's subscribers of something that happened beside it. */
#ifndef SERVICES_DELIVERY_CONVO_NOTICE_H
#define SERVICES_DELIVERY_CONVO_NOTICE_H

#include "services/delivery/convo/event.h"
#include "services/delivery/delivery.h"

struct notice {
    int kind;        /* DELIVERY_NEW_DEVICE, DELIVERY_READDITION, DELIVERY_PACKAGES_LOW */
    struct span did; /* for PACKAGES_LOW: only this account's streams hear it */
    struct span device;
    uint64_t count; /* PACKAGES_LOW: key packages left */
};
/* Sends the notice and copies its texts. A conversation that is not in memory has no subscribers.
 * A full mailbox or missing memory loses the notice: clients can query what it tells. */
void notice_tell(const struct delivery *delivery, struct span convo, const struct notice *notice);

#endif
