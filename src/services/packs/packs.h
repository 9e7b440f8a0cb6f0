/* SPDX-License-Identifier: Apache-2.0 */
/* packs.h: content packs: versions of files that are verified once and sent at line rate. The
 * catalogue is in the database (catalogue.h), the bytes are objects named by their SHA-256. */
#ifndef SERVICES_PACKS_PACKS_H
#define SERVICES_PACKS_PACKS_H

#include <stdatomic.h>

#include "ops/service.h"
#include "services/common/db_query.h"

struct packs_settings {
    uint64_t quota_bytes;           /* of all objects and uploads; 0: no limit */
    uint32_t hashes_max;            /* files being hashed at once */
    uint32_t downloads_per_user;    /* at once; 0: no limit */
    uint32_t downloads_per_address; /* the same, of one address */
    uint32_t requests_per_address;  /* started in a second without a token; 0: no limit */
    uint64_t rate_max;              /* bytes per second of one download; 0: no limit */
};

struct packs {
    struct tr_system *system;
    tr_sender supervisor; /* restarts the actors below when they fail; borrowed; may be none */
    struct call_service calls;
    char *data_path;     /* owned; the folder packs/ in it belongs to the service */
    const char *version; /* of the program */
    uint64_t started_ns; /* monotonic */
    struct packs_settings settings;
    struct probe *probe; /* checks that the database answers */

    /* catalogue.h */
    struct tr_snapshot *view;
    tr_sender catalogue;
    _Atomic bool is_catalogue_behind;

    tr_sender uploads; /* upload.h */

    struct objects *objects;             /* objects.h */
    struct integrity *integrity;         /* integrity.h */
    struct transfers *transfers;         /* transfer.h */
    struct download_rate *download_rate; /* download_rate.h */
};

extern const struct service packs_service; /* routes.c */
enum { PACKS_MIGRATIONS = 1 };
extern const struct sql_migration packs_migrations[PACKS_MIGRATIONS]; /* schema.c */

int packs_start(
    const struct service_context *context, char *why, size_t why_size, void **ret_state);
void packs_stop(void *state);
bool packs_is_ready(void *state, char *why, size_t why_size);

/* Copy a text into an array of char, with a zero after it; a text that is too long is cut. */
#define packs_copy(array, text) packs_copy_text((array), sizeof(array), (text))
void packs_copy_text(char *to, size_t size, struct span text);
/* Stop an actor and drop its sender, if it was started. Blocks. */
void packs_stop_actor(tr_sender *actor);

static inline int64_t packs_now_ms(const struct packs *packs)
{
    return call_now_ms(&packs->calls);
}

#endif
