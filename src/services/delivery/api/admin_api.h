/* SPDX-License-Identifier: Apache-2.0 */
/* admin_api.h: what an operator may ask of the service, on the admin listener:
 *
 *   GET /v1/convos/{id}, GET /v1/convos?id=ID    what the actor of a conversation knows, as JSON
 *   POST /v1/delivery/compact                    retention and the other jobs run now; what went
 *   POST /v1/delivery/verify                     the checks run now; what they found
 *   GET /v1/delivery/audit?convoId&limit&cursor  who did what to whom; newest first
 *
 * The second form of the first is for ids with a slash. No names of members and no messages, but in
 * the audit log, which has names: the token is asked of readers too. */
#ifndef SERVICES_DELIVERY_API_ADMIN_API_H
#define SERVICES_DELIVERY_API_ADMIN_API_H

#include "ops/service.h"

enum { DELIVERY_ADMIN_ROUTES = 5 };
extern const struct service_admin_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES];

#endif
