/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue_view.c: lookups in a view of the catalogue. */
#include <stdlib.h>

#include "base/assert.h"
#include "services/packs/catalogue.h"

enum { LINEAR_MAX = 16 };

static int compare_name(const void *wanted, const void *pack)
{
    return span_compare(*(const struct span *)wanted, span_of(((const struct pack *)pack)->name));
}

const struct pack *catalogue_any_pack(const struct packs_view *view, struct span name)
{
    return bsearch(&name, view->packs, view->pack_count, sizeof *view->packs, compare_name);
}

const struct pack *catalogue_pack(const struct packs_view *view, struct span name)
{
    const struct pack *pack = catalogue_any_pack(view, name);

    return pack == NULL || pack->state != PACK_PUBLISHED ? NULL : pack;
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
