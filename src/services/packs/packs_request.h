/* SPDX-License-Identifier: Apache-2.0 */
/* call.h: a request that reached a handler of the service, on the public listener or on the admin
 * listener. Every handler has the form
 *
 *     void api_verb_noun(struct http_request *request, void *state)
 *     {
 *         struct packs_request *call = packs_request_start(request, state);
 *
 *         if (call == NULL)
 *             return;
 *
 * and its then-functions find it again with packs_request_of. */
#ifndef SERVICES_PACKS_PACKS_REQUEST_H
#define SERVICES_PACKS_PACKS_REQUEST_H

#include "services/packs/packs.h"

struct packs_request {
    struct packs *packs;
    const struct auth_claims *claims; /* NULL: anonymous, or the admin token (is_admin) */
    bool is_admin;                    /* by session or by token */
    struct span actor;                /* who it is in the audit log; "" for the anonymous */
    void *data;                       /* the handler's own */
};

/* NULL: out of memory, and it has been answered. Lives as long as the request. */
struct packs_request *packs_request_start(struct http_request *request, void *state);
struct packs_request *packs_request_of(const struct http_request *request);

typedef void (*packs_handler_fn)(struct http_request *request, void *state);
/* What hangs on a route of the public listener. */
struct packs_route {
    packs_handler_fn handle;
};

#endif
