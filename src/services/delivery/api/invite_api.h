/* SPDX-License-Identifier: Apache-2.0 */
/* invite_api.h: invites. An admin makes a secret and gives the server its SHA-256. A holder of the
 * secret joins by an external commit, as often and as long as the invite allows; the unit that stores
 * the commit counts the use. The hash alone lets its holder read the group info that such a commit
 * needs. */
#ifndef SERVICES_DELIVERY_API_INVITE_API_H
#define SERVICES_DELIVERY_API_INVITE_API_H

#include "services/delivery/api/api.h"

enum { INVITES_MAX = 100, INVITE_USES_MAX = 10000 }; /* open ones of a conversation; uses of one */
enum { INVITES_RETRY_S = 3600 };                     /* of a client that meets INVITES_MAX */
enum { INVITE_DAYS = 30, INVITE_DAYS_MAX = 365 };

/* Read the member `psk` of an external commit, if it is there. */
void invite_read_secret(struct api_body *body, struct act_invite *invite);
/* Read the parameter `pskHash` of getGroupInfo, if it is there. False: the request has been answered,
 * and the body freed. */
bool invite_read_hash(
    struct http_request *request, struct api_body *body, struct act_invite *invite);

#endif
