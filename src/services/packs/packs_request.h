/* SPDX-License-Identifier: Apache-2.0 */
/* packs_request.h: a request that reached a handler of the service, on the public listener or on the
 * admin listener, and the calls that only read the catalogue's view. */
#ifndef SERVICES_PACKS_PACKS_REQUEST_H
#define SERVICES_PACKS_PACKS_REQUEST_H

#include "json/json_write.h"
#include "services/packs/catalogue.h"

struct packs_request {
    struct packs *packs;
    const struct auth_claims *claims; /* NULL: anonymous, or the admin token */
    struct span actor;                /* the name in the audit log; "" for an anonymous caller */
    void *data;                       /* the handler's own */
};

/* Attach the caller's facts to the request; they live as long as it. Returns NULL after answering
 * 503. The functions that run later find them with packs_request_of. */
struct packs_request *packs_request_start(struct http_request *request);
struct packs_request *packs_request_of(const struct http_request *request);

/* Find the pack of the path's {name}, as everybody may see it, and the version of {version} or, in
 * a path without one, the active version. Returns NULL after answering 404. */
const struct pack *packs_find_pack(struct http_request *request, const struct packs_view *view);
/* Answer 404 PackNotFound with the path's {name}. */
void packs_respond_no_pack(struct http_request *request);
const struct pack_version *packs_find_version(
    struct http_request *request, const struct packs_view *view);

/* ---- reading the view ----------------------------------------------------------------------- */

enum packs_read_cache { READ_PLAIN, READ_TAGGED, READ_NO_STORE };
/* A call that answers with one JSON object from the view. */
struct packs_read {
    struct http_request *request;
    const struct packs *packs;
    const struct packs_view *view;
    struct buffer body;
    struct json_writer writer;
};
/* Write the members of the answer. Returns false after answering the request itself. */
typedef bool (*packs_put_fn)(struct packs_read *read);
/* `extra` of such a route. */
struct packs_read_kind {
    packs_put_fn put;
    enum packs_read_cache cache;
};
void packs_read_call(struct http_request *request);

#endif
