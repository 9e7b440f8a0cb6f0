/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue_private.h: what the catalogue's actor, its views and its changes share. */
#ifndef SERVICES_PACKS_CATALOGUE_PRIVATE_H
#define SERVICES_PACKS_CATALOGUE_PRIVATE_H

#include "services/packs/edit.h"

/* The actor's message; it owns one holder. */
struct edit_message {
    struct edit *edit;
};

/* A unit that reads all of it, from one moment of the database. NULL: out of memory. */
struct sql_unit *view_unit(void);
/* From that unit's rows; TR_ENOMEM, TR_EPROTO when rows contradict each other. */
int view_build(const struct sql_unit *unit, uint64_t number, struct packs_view **ret_view);
void view_free(void *memory);

#endif
