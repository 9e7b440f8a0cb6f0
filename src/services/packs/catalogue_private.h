/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue_private.h: shared by the catalogue's actor, store, view and edits. */
#ifndef SERVICES_PACKS_CATALOGUE_PRIVATE_H
#define SERVICES_PACKS_CATALOGUE_PRIVATE_H

#include "services/packs/edit.h"

/* The actor's message; it owns one reference. */
struct edit_message {
    struct edit *edit;
};

struct view_block;
struct view {
    struct packs_view shown; /* first */
    struct view_block *blocks;
    struct pack *packs;
    struct pack_version *versions;
    struct release *releases;
};

/* Create a unit that reads the whole catalogue from one snapshot of the database. NULL: out of
 * memory. */
struct sql_unit *view_unit(void);
/* Build a view from the rows of that unit. Returns TR_ENOMEM, or TR_EPROTO if rows contradict each
 * other. */
int view_build(const struct sql_unit *unit, uint64_t number, struct packs_view **ret_view);
void view_free(void *memory);

/* Add the audit row of an edit to its unit (audit_store.c). */
void edit_audit(struct sql_unit *unit, const struct edit *edit, const struct packs_view *view);

#endif
