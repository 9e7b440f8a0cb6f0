/* SPDX-License-Identifier: Apache-2.0 */
/* notice.h: something happened beside a conversation, and who listens to it should hear so. */
#ifndef SERVICES_DELIVERY_CONVO_NOTICE_H
#define SERVICES_DELIVERY_CONVO_NOTICE_H

#include "services/delivery/convo/event.h"
#include "services/delivery/delivery.h"

struct notice {
    int kind; /* DELIVERY_NEW_DEVICE, DELIVERY_READDITION */
    struct span did, device;
};
/* At once; nothing is kept of what it points to. A conversation that is not in memory has nobody
 * who listens; one whose box is full, or no memory, and nobody hears it: what it tells of can be
 * looked up. */
void notice_tell(const struct delivery *delivery, struct span convo, const struct notice *notice);

#endif
