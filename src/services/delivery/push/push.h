/* SPDX-License-Identifier: Apache-2.0 */
/* push.h: wakes idle devices. When a message, commit or Welcome is stored in a conversation, the
 * server posts {"token","platform","deviceId"} to the operator's gateway (delivery.push_url) for
 * each device of its members that has a push token, except the sender's and those of accounts with
 * an open stream of the conversation. The gateway learns neither the content nor the conversation.
 *
 * Wake-ups are best effort and bounded: no request waits for them, and the server counts and drops
 * what does not fit. A device is woken at most once an interval, and a conversation's tokens are
 * read at most once an interval; news in between cause one more wake-up after it. The server tries
 * a gateway that does not answer, or answers 429 or 5xx, three times in all; after 410 it deletes
 * the token. */
#ifndef SERVICES_DELIVERY_PUSH_PUSH_H
#define SERVICES_DELIVERY_PUSH_PUSH_H

#include "services/delivery/delivery.h"

enum { PUSH_TOKEN_SIZE_MAX = 1024 };
enum push_platform { PUSH_IOS, PUSH_ANDROID, PUSH_WEB, PUSH_PLATFORMS };
extern const char *const push_platforms[PUSH_PLATFORMS + 1]; /* their names, and NULL */

/* Starts the actor; does nothing without delivery.push_url. */
int push_start(struct delivery *delivery, const struct config *config);
/* Stop in two steps: conversations send to the actor until they have ended, and the actor asks
 * conversations until it has ended. */
void push_stop(struct delivery *delivery);
void push_free(struct delivery *delivery);

static inline bool push_is_on(const struct delivery *delivery)
{
    return delivery->push.box != NULL;
}
/* Reports that `sender` has stored something. Returns at once; any thread. Does nothing when push is
 * off. */
void push_tell(const struct delivery *delivery, struct span convo, struct span sender);

#endif
