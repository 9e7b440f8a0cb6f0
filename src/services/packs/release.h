/* SPDX-License-Identifier: Apache-2.0 */
/* release.h: check whether a draft can be published. release_store.c publishes it. */
#ifndef SERVICES_PACKS_RELEASE_H
#define SERVICES_PACKS_RELEASE_H

#include "services/packs/catalogue.h"

enum release_failure {
    RELEASE_NO_ARTIFACTS,
    RELEASE_MISSING_ROLE,     /* no required artifact has one of required_roles */
    RELEASE_NOT_PUBLISHED,    /* the pack, or the wanted version, is not downloadable */
    RELEASE_METADATA_MISSING, /* the pack has no title */
};
const char *release_failure_text(enum release_failure failure); /* "no_artifacts", … */

/* Called for each failure; `subject` is the role or the pack, absent for RELEASE_NO_ARTIFACTS. */
typedef void (*release_failure_fn)(void *data, enum release_failure failure, struct span subject);
/* Count the failures. `told` may be NULL. */
uint32_t release_validate(const struct release *release, release_failure_fn told, void *data);

/* A role has 1 to 64 of [a-z0-9_.-]. */
enum { RELEASE_ROLE_MAX = 64 };
#define RELEASE_ROLE_RULE "must have a-z, 0-9, '.', '_' and '-' only, and not start with a dot"
bool release_role_is_valid(struct span role);

#endif
