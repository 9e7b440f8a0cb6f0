/* SPDX-License-Identifier: Apache-2.0 */
/* admin_api.h: what an operator may ask of the service, on the admin listener:
 *
 *   GET /v1/convos/{id}, GET /v1/convos?id=ID    what the actor of a conversation knows, as JSON
 *
 * The second form is for ids with a slash. No names of members and no messages. */
#ifndef SERVICES_DELIVERY_ADMIN_API_H
#define SERVICES_DELIVERY_ADMIN_API_H

#include "ops/service.h"

enum { DELIVERY_ADMIN_ROUTES = 2 };
extern const struct service_admin_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES];

#endif
