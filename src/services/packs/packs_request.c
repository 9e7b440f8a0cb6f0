/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/packs_request.h"

#include "base/assert.h"

struct packs_request *packs_request_start(struct http_request *request, void *state)
{
    struct packs_request *call = http_alloc(request, sizeof *call);
    /* On the admin listener requests belong to the listener itself. */
    bool is_public = http_service(request) == state;

    if (call == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    call->packs = state;
    call->actor = SPAN("");
    if (is_public) {
        if (http_route(request)->gate != NULL) /* which left the claims, or nothing */
            call->claims = auth_claims_of(request);
        if (call->claims != NULL) {
            call->actor = call->claims->issuer;
            call->is_admin = span_is(call->claims->role, "admin");
        }
    } else { /* the admin listener let it in */
        call->is_admin = true;
        call->actor = SPAN("admin token");
    }
    http_set_data(request, call);
    return call;
}

struct packs_request *packs_request_of(const struct http_request *request)
{
    struct packs_request *call = http_data(request);

    tr_assert(call != NULL);
    return call;
}
