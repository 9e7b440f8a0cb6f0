/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue_view.c: lookups in a view of the catalogue. */
#include <stdlib.h>

#include "base/assert.h"
#include "services/packs/catalogue_private.h"

enum { LINEAR_MAX = 16 };

uint32_t view_hash(struct span name)
{
    uint32_t hash = 2166136261u;

    /* FNV-1a without a key: administrators choose the names, and would only slow down themselves. */
    for (size_t i = 0; i < name.size; i++)
        hash = (hash ^ (unsigned char)name.at[i]) * 16777619u;
    return hash ^ hash >> 15;
}

const struct pack *catalogue_any_pack(const struct packs_view *view, struct span name)
{
    const struct view *whole = (const struct view *)view;
    uint32_t at = view_hash(name) & whole->slot_mask;

    while (whole->slots[at] != 0) {
        const struct pack *pack = &view->packs[whole->slots[at] - 1];

        if (span_is(name, pack->name))
            return pack;
        at = (at + 1) & whole->slot_mask;
    }
    return NULL;
}

const struct pack *catalogue_pack(const struct packs_view *view, struct span name)
{
    const struct pack *pack = catalogue_any_pack(view, name);

    return pack == NULL || pack->state != PACK_PUBLISHED ? NULL : pack;
}

const struct pack_version *catalogue_active(const struct pack *pack)
{
    return pack->active;
}

static int compare_wanted(const void *wanted, const void *version)
{
    return pack_version_order(
        span_of(((const struct pack_version *)version)->version), *(const struct span *)wanted);
}

const struct pack_version *catalogue_any_version(const struct pack *pack, struct span version)
{
    if (pack->version_count > LINEAR_MAX)
        return bsearch(
            &version, pack->versions, pack->version_count, sizeof *pack->versions, compare_wanted);
    for (uint32_t i = 0; i < pack->version_count; i++)
        if (span_is(version, pack->versions[i].version))
            return &pack->versions[i];
    return NULL;
}

const struct pack_version *catalogue_version(const struct pack *pack, struct span version)
{
    const struct pack_version *found = catalogue_any_version(pack, version);

    tr_assert(found == NULL || found->pack == pack);
    return found == NULL || found->published_s == 0 || found->is_disabled ? NULL : found;
}

const struct release *catalogue_release(const struct packs_view *view, struct span id)
{
    for (uint32_t i = 0; i < view->release_count; i++)
        if (span_is(id, view->releases[i].id))
            return &view->releases[i];
    return NULL;
}

const struct release *catalogue_latest(const struct packs_view *view)
{
    for (uint32_t i = view->release_count; i > 0; i--)
        if (view->releases[i - 1].state == RELEASE_PUBLISHED)
            return &view->releases[i - 1];
    return NULL;
}
