/* SPDX-License-Identifier: Apache-2.0 */
/* admin_api.h: the calls of an operator, on the admin listener:
 *
 *   GET /v1/convos/{id}, GET /v1/convos?id=ID    the state of a conversation's actor, as JSON
 *   POST /v1/delivery/compact                    run retention and cleanup now, and count
 *   POST /v1/delivery/verify                     run the checks now, and list violations
 *   GET /v1/delivery/audit?convoId&limit&cursor  list the audit log, newest first
 *
 * The second form of the first is for ids with a slash. No answer has messages. Only the audit log
 * has names of members, so reading it takes the token too. */
#ifndef SERVICES_DELIVERY_API_ADMIN_API_H
#define SERVICES_DELIVERY_API_ADMIN_API_H

#include "ops/service.h"

enum {
    DELIVERY_ADMIN_ROUTES = 5,
    VERIFY_FOUND_MAX = 100, /* violations that an answer names; it counts all */
    AUDITS_MAX = 8,         /* pages of the audit log that are being read */
    AUDIT_PAGE_MAX = 500,   /* entries of one */
};
extern const struct http_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES];

#endif
