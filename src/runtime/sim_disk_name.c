/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk_name.c: names of the simulated disk. Each has a live and a durable node, and name
 * operations that are not yet durable lie in one list between. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/sim_disk_node.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* Where the path is among the sorted names, or belongs. */
static size_t name_position(const struct tr__sim_disk *disk, const char *path)
{
    size_t low = 0, high = disk->name_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(disk->names[middle]->path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* NULL if there is none; its live node may be NULL even so. */
static struct name *name_find(const struct tr__sim_disk *disk, const char *path)
{
    size_t at = name_position(disk, path);

    if (at == disk->name_count || strcmp(disk->names[at]->path, path) != 0)
        return NULL;
    return disk->names[at];
}

struct name *tr__disk_name_find_live(const struct tr__sim_disk *disk, const char *path)
{
    struct name *name = name_find(disk, path);

    return name != NULL && name->live != NULL ? name : NULL;
}

struct name *tr__disk_name_find_or_add(struct tr__sim_disk *disk, const char *path)
{
    struct name *name = name_find(disk, path);
    size_t at, length;

    if (name != NULL)
        return name;
    if (disk->name_count == disk->name_capacity) {
        size_t capacity = disk->name_capacity > 0 ? disk->name_capacity * 2 : 16;
        struct name **names = base_realloc(disk->names, capacity * sizeof(struct name *));

        if (names == NULL)
            return NULL;
        disk->names = names;
        disk->name_capacity = capacity;
    }
    length = strlen(path);
    name = base_calloc(sizeof *name + length + 1);
    if (name == NULL)
        return NULL;
    memcpy(name->path, path, length + 1);
    at = name_position(disk, path);
    memmove(
        &disk->names[at + 1], &disk->names[at], (disk->name_count - at) * sizeof(struct name *));
    disk->names[at] = name;
    disk->name_count++;
    return name;
}

void tr__disk_name_drop_if_unused(struct tr__sim_disk *disk, struct name *name)
{
    size_t at;

    if (name == NULL || name->live != NULL || name->durable != NULL || name->operations > 0)
        return;
    at = name_position(disk, name->path);
    tr_assert(disk->names[at] == name);
    disk->name_count--;
    memmove(
        &disk->names[at], &disk->names[at + 1], (disk->name_count - at) * sizeof(struct name *));
    base_free(name);
}

void tr__disk_link_set(struct node **link, struct node *node)
{
    struct node *old = *link;

    *link = tr__disk_node_ref(node);
    tr__disk_node_unref(old);
}

/* The directory is the first bytes of the path, the slash included; none for a path without one. */
static size_t dir_length(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? (size_t)(slash - path) + 1 : 0;
}

static bool is_same_dir(const char *a, const char *b)
{
    size_t length = dir_length(a);

    return length == dir_length(b) && memcmp(a, b, length) == 0;
}

/* ---- name operations ------------------------------------------------------------------------- */

void tr__disk_operation_add(struct tr__sim_disk *disk, struct operation *operation)
{
    operation->next = NULL;
    operation->name->operations++;
    if (operation->to != NULL)
        operation->to->operations++;
    tr__disk_node_ref(operation->node);
    *disk->operations_end = operation;
    disk->operations_end = &operation->next;
    disk->operation_count++;
}

static void operation_apply(const struct operation *operation)
{
    switch (operation->kind) {
    case OPERATION_CREATE:
        tr__disk_link_set(&operation->name->durable, operation->node);
        break;
    case OPERATION_REMOVE:
        tr__disk_link_set(&operation->name->durable, NULL);
        break;
    case OPERATION_RENAME:
        tr_assert(operation->to != NULL);
        tr__disk_link_set(&operation->to->durable, operation->node);
        tr__disk_link_set(&operation->name->durable, NULL);
        break;
    }
}

/* Take the operation that *link points to out of the list and free it. */
static void operation_take_out(struct tr__sim_disk *disk, struct operation **link)
{
    struct operation *operation = *link;

    *link = operation->next;
    if (disk->operations_end == &operation->next)
        disk->operations_end = link;
    disk->operation_count--;
    operation->name->operations--;
    tr__disk_name_drop_if_unused(disk, operation->name);
    if (operation->to != NULL) {
        operation->to->operations--;
        tr__disk_name_drop_if_unused(disk, operation->to);
    }
    tr__disk_node_unref(operation->node);
    base_free(operation);
}

static bool is_across(const struct operation *operation)
{
    return operation->to != NULL && !is_same_dir(operation->name->path, operation->to->path);
}

static bool is_in_dir(const struct operation *operation, const char *path)
{
    return is_same_dir(operation->name->path, path) ||
           (operation->to != NULL && is_same_dir(operation->to->path, path));
}

/* Operations of one directory speak of names that no other directory's operations do, unless one is
 * a rename across. Then, like a journal, everything up to the directory's last operation becomes
 * durable. */
void tr__disk_sync_names(struct tr__sim_disk *disk, const char *path)
{
    struct operation **link = &disk->first_operation;
    const struct operation *last = NULL;
    bool has_across = false, is_last = false;

    for (const struct operation *o = disk->first_operation; o; o = o->next) {
        if (!is_in_dir(o, path))
            continue;
        last = o;
        if (is_across(o))
            has_across = true;
    }
    if (last == NULL)
        return;
    while (!is_last) {
        is_last = *link == last;
        if (has_across || is_in_dir(*link, path)) {
            operation_apply(*link);
            operation_take_out(disk, link);
        } else {
            link = &(*link)->next;
        }
    }
}

void tr__disk_sync_all_names(struct tr__sim_disk *disk)
{
    while (disk->first_operation != NULL) {
        operation_apply(disk->first_operation);
        operation_take_out(disk, &disk->first_operation);
    }
}

void tr__disk_crash_names(struct tr__sim_disk *disk)
{
    for (struct operation *o = disk->first_operation; o; o = o->next) {
        bool is_lost = base_random_below(&disk->random, 2) == 0;

        if (o->name->is_lost || (o->to != NULL && o->to->is_lost))
            is_lost = true;
        if (is_lost) {
            disk->counters.lost++;
            o->name->is_lost = true;
            if (o->to != NULL)
                o->to->is_lost = true;
        } else {
            disk->counters.kept++;
            operation_apply(o);
        }
    }
    while (disk->first_operation != NULL)
        operation_take_out(disk, &disk->first_operation);
    /* From the last: a name that is dropped moves only those behind it. */
    for (size_t i = disk->name_count; i-- > 0;) {
        struct name *name = disk->names[i];

        name->is_lost = false;
        tr__disk_link_set(&name->live, name->durable);
        tr__disk_name_drop_if_unused(disk, name);
    }
}
