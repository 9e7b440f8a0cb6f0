/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h: a supervisor for the actors of a test, and a way to make one of them fail by its name. */
#ifndef TEST_LIB_TREE_H
#define TEST_LIB_TREE_H

#include <string.h>

#include <troupe/troupe.h>

#include "check.h"

/* Restarts what is spawned under it at once and as often as it fails. The caller drops it. */
static inline __attribute__((unused)) tr_sender tree_create(struct tr_system *system)
{
    static const struct tr_supervisor table = {
        .name = "tree", .restarts_max = 1000, .window_ns = UINT64_C(1000000000), .spawned_max = 64
    };
    tr_sender sender = { 0 };

    CHECK_EQ_INT(tr_supervise(system, &table, "test", &sender), 0);
    return sender;
}

struct tree_search {
    const char *name;
    struct tr_actor_info info;
    bool is_found;
};

static inline bool tree_visit(void *data, const struct tr_actor_info *info)
{
    struct tree_search *search = data;

    if (strcmp(info->name, search->name) != 0)
        return true;
    search->info = *info;
    search->is_found = true;
    return false;
}

/* Describe the actor of this name. It must be alive. */
static inline __attribute__((unused)) struct tr_actor_info tree_find(
    struct tr_system *system, const char *name)
{
    struct tree_search search = { .name = name };

    tr_inspect(system, tree_visit, &search);
    CHECK_MSG(search.is_found, "there is no actor %s", name);
    return search.info;
}

#endif
