/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/options.h"

#include <string.h>

#include <troupe/ask.h>
#include <troupe/registry.h>
#include <troupe/sim.h>

#define OPTIONS_CHECK(type, first)                                                                 \
    _Static_assert(offsetof(struct type, struct_size) == 0, "struct_size is the first field");     \
    _Static_assert(sizeof(struct type) >= (first), "a struct only grows")

OPTIONS_CHECK(tr_system_options, SYSTEM_OPTIONS_FIRST);
OPTIONS_CHECK(tr_spawn_options, SPAWN_OPTIONS_FIRST);
OPTIONS_CHECK(tr_send_options, SEND_OPTIONS_FIRST);
OPTIONS_CHECK(tr_ask_options, ASK_OPTIONS_FIRST);
OPTIONS_CHECK(tr_registry_options, REGISTRY_OPTIONS_FIRST);
OPTIONS_CHECK(tr_sim_options, SIM_OPTIONS_FIRST);

static bool is_zero(const unsigned char *bytes, size_t size)
{
    while (size > 0 && *bytes == 0) {
        bytes++;
        size--;
    }
    return size == 0;
}

tr__cold const void *tr__options_view_slowly(
    const void *options, void *copy, size_t size, size_t size_first)
{
    uint32_t struct_size;
    size_t given;

    memset(copy, 0, size);
    if (options == NULL)
        return copy;
    memcpy(&struct_size, options, sizeof struct_size);
    given = struct_size == 0 ? size_first : struct_size;
    if (given < size_first)
        return NULL;
    if (given > size && !is_zero((const unsigned char *)options + size, given - size))
        return NULL;
    memcpy(copy, options, given < size ? given : size);
    return copy;
}
