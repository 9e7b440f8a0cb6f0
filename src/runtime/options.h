/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: options of a caller that was compiled against another version of the headers.
 *
 * Option structs begin with struct_size and grow at their end. A caller that leaves struct_size 0
 * gives the fields of version 0.1. */
#ifndef RUNTIME_OPTIONS_H
#define RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/sync.h"

/* The sizes in version 0.1. They never change. */
enum {
    SYSTEM_OPTIONS_FIRST = 64,
    SPAWN_OPTIONS_FIRST = 80,
    SEND_OPTIONS_FIRST = 16,
    ASK_OPTIONS_FIRST = 32,
    REGISTRY_OPTIONS_FIRST = 88,
    SIM_OPTIONS_FIRST = 32,
};

const void *tr__options_view_slowly(
    const void *options, void *copy, size_t size, size_t size_first);

/* Return the options as this library knows them: `options` itself if they have this library's size,
 * else `copy`, filled with the caller's fields and zeros. `size` is the size of *copy. NULL if the
 * caller sets a field that this library does not know: return TR_EUNSUPPORTED. */
static inline const void *tr__options_view(
    const void *options, void *copy, size_t size, size_t size_first)
{
    uint32_t struct_size = options == NULL ? 0 : *(const uint32_t *)options;

    if (likely(options != NULL && (struct_size == 0 ? size_first : struct_size) == size))
        return options;
    return tr__options_view_slowly(options, copy, size, size_first);
}

#endif
