/* SPDX-License-Identifier: Apache-2.0 */
/* download.h: send the bytes of a version: conditions and ranges (RFC 9110), codings, limits. The
 * server sends only verified files, from the same descriptor that was hashed. */
#ifndef SERVICES_PACKS_DOWNLOAD_H
#define SERVICES_PACKS_DOWNLOAD_H

#include "services/packs/catalogue.h"

/* Start and stop the objects, the cache of verified files and the list of transfers. Block. */
int objects_start(struct packs *packs, char *why, size_t why_size);
void objects_stop(struct packs *packs);
int downloads_start(struct packs *packs, char *why, size_t why_size);
void downloads_stop(struct packs *packs);

struct download_options {
    bool is_versioned; /* the URL names the version, so its content never changes */
    struct span user;  /* absent: anonymous */
    /* Last-Modified: the second since which the URL has meant this version. The second is over, so
     * no other version can start in it. 0: unknown, and dates are not compared. */
    uint64_t modified_s;
};
/* Answer with the version or an error, at once or after it was verified. */
void download_serve(struct http_request *request, struct packs *packs,
    const struct pack_version *version, const struct download_options *options);

/* The gate and the handler of packs/{name}/download and packs/{name}/versions/{version}/download. */
bool download_gate(struct http_request *request);
void api_download(struct http_request *request);

#endif
