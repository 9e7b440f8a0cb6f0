/* SPDX-License-Identifier: Apache-2.0 */
/* download.h: a version's bytes to a client: conditions and ranges (RFC 9110), codings, limits. A
 * file goes out only if it was verified, from the very descriptor that was hashed. */
#ifndef SERVICES_PACKS_DOWNLOAD_H
#define SERVICES_PACKS_DOWNLOAD_H

#include "services/packs/catalogue.h"

/* The vault, the cache of verified files, the list of downloads. Block. */
int objects_start(struct packs *packs, char *why, size_t why_size);
void objects_stop(struct packs *packs);
int downloads_start(struct packs *packs, char *why, size_t why_size);
void downloads_stop(struct packs *packs);

struct download_options {
    bool is_versioned; /* the URL names the version: it never means anything else */
    struct span user;  /* absent: anonymous */
    /* Since when the URL has meant this version (Last-Modified): a second that is over, and after
     * which nothing else can begin. 0: it is not known, and dates are not compared. */
    uint64_t modified_s;
};
/* Answer with the version, or with what stands against it; perhaps later. */
void download_serve(struct http_request *request, struct packs *packs,
    const struct pack_version *version, const struct download_options *options);

/* download_api.c: routes. Without a token nobody is asked: GET packs/{name}/download,
 * packs/{name}/versions/{version}/download. Flags HTTP_ROUTE_LONG. */
bool download_gate(struct http_request *request);
void api_download(struct http_request *request, void *state);

#endif
