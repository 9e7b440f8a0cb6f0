/* SPDX-License-Identifier: Apache-2.0 */
/* release.h: is a draft fit to be published? Decides only; release_api.c acts. */
#ifndef SERVICES_PACKS_RELEASE_H
#define SERVICES_PACKS_RELEASE_H

#include "services/packs/catalogue.h"

enum release_failure {
    RELEASE_NO_ARTIFACTS,
    RELEASE_MISSING_ROLE,     /* a role that it must have, and no required artifact has it */
    RELEASE_NOT_PUBLISHED,    /* the pack, or the version that is wanted, is not downloadable */
    RELEASE_METADATA_MISSING, /* the pack has no name that people could read */
};
const char *release_failure_text(enum release_failure failure); /* "no_artifacts", … */

/* Told of each thing that is wrong; `subject` is the role or the pack, absent for the first. */
typedef void (*release_failure_fn)(void *data, enum release_failure failure, struct span subject);
/* How many there are. `told` may be NULL. */
uint32_t release_validate(const struct release *release, release_failure_fn told, void *data);

/* A role has 1 to 64 of [a-z0-9_.-]. */
enum { RELEASE_ROLE_MAX = 64 };
#define RELEASE_ROLE_RULE "must have a-z, 0-9, '.', '_' and '-' only, and not start with a dot"
bool release_role_is_valid(struct span role);

#endif
