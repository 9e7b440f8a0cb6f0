/* SPDX-License-Identifier: Apache-2.0 */
/* push.h: devices that nobody looks at are woken. When something is stored in a conversation, the
 * devices with a push token of its members are told so by the operator's gateway
 * (delivery.push_url): one POST of {"token","platform","deviceId"} each. Not those of the sender,
 * and not those of who has a stream of the conversation open. The gateway learns neither what was
 * said nor where.
 *
 * Best effort, and bounded: nothing waits for it, and what there is no room for is counted and
 * dropped. A device is woken at most once an interval, a conversation's tokens are read at most
 * once an interval; what comes meanwhile is one wake-up more, after it. A gateway that does not
 * answer, or with 429 or 5xx, is tried three times in all; one that answers 410 has the token
 * deleted. */
#ifndef SERVICES_DELIVERY_PUSH_PUSH_H
#define SERVICES_DELIVERY_PUSH_PUSH_H

#include "services/delivery/delivery.h"

enum { PUSH_TOKEN_SIZE_MAX = 1024 };
enum push_platform { PUSH_IOS, PUSH_ANDROID, PUSH_WEB, PUSH_PLATFORMS };
extern const char *const push_platforms[PUSH_PLATFORMS + 1]; /* their names, and NULL */

/* Nothing without delivery.push_url. */
int push_start(struct delivery *delivery, const struct config *config);
/* In two steps: conversations tell it something until they have ended, and it looks for them until
 * it has. */
void push_stop(struct delivery *delivery);
void push_free(struct delivery *delivery);

static inline bool push_is_on(const struct delivery *delivery)
{
    return delivery->push.box != NULL;
}
/* `sender` has stored something. At once, on any thread; when it is off it costs a look. */
void push_send(const struct delivery *delivery, struct span convo, struct span sender);
static inline void push_tell(const struct delivery *delivery, struct span convo, struct span sender)
{
    if (push_is_on(delivery))
        push_send(delivery, convo, sender);
}

#endif
