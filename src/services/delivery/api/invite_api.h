/* SPDX-License-Identifier: Apache-2.0 */
/* invite_api.h: invites. An admin makes a secret and tells the server its SHA-256; whoever has the
 * secret joins by an external commit, as often and as long as the invite says. The hash alone lets
 * its holder read the group info that such a commit needs. A use is counted by the unit that stores
 * the commit. */
#ifndef SERVICES_DELIVERY_API_INVITE_API_H
#define SERVICES_DELIVERY_API_INVITE_API_H

#include "services/delivery/api/api.h"

enum { INVITES_MAX = 100, INVITE_USES_MAX = 10000 }; /* good ones of a conversation; uses of one */
enum { INVITES_RETRY_S = 3600 }; /* when to look again whether one has expired */
enum { INVITE_DAYS = 30, INVITE_DAYS_MAX = 365 };

/* The member `psk` of an external commit, if it is there. */
void invite_read_secret(struct api_body *body, struct act_invite *invite);
/* The parameter `pskHash` of getGroupInfo, if it is there. False: it has been answered. */
bool invite_read_hash(
    struct http_request *request, struct api_body *body, struct act_invite *invite);

#endif
