/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk.c: two images of every file, and the changes between them.
 *
 * A node is a file without its name. It is two images of 4 KiB pages, live (the bytes a read
 * returns) and durable (the bytes that survive every power cut), and the changes between them in
 * order:
 *
 *     slots    [0]      [1]      [2]      [3]
 *     live      A        B'       C        -        a read goes here: its cost does not depend on
 *     durable   A        B        C        D        how much is not synced
 *     changes  write 4100 +200, truncate 12288
 *
 * A write costs one copy into the live page and one into its change. A sync makes the pages that
 * changes touched common to both images. A crash drops the live image, replays a drawn part of the
 * changes on the durable one, and starts again from there.
 *
 * Names work the same way: each has a live and a durable node, and name operations lie in one list
 * between.
 *
 * Invariants:
 * 1. A page is in one slot only; it is common to both images if the two pointers are equal, and a
 *    common page is never written to.
 * 2. Bytes of a page behind the size of its image are zero. A page that is missing is all zero.
 * 3. Without changes both images are equal.
 * 4. Nothing fails half way: memory comes first, then the change.
 * 5. No draw depends on an address: nodes and operations are walked in the order they came. */
#include "runtime/sim_disk.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

#define PAGE 4096u
#define SECTOR TR__SIM_DISK_SECTOR
/* Unsynced bytes that a disk with a small bytes_max may hold beside that limit: a crash should find
 * something to tear even on a tiny disk. */
#define UNSYNCED_BYTES_EXTRA ((uint64_t)1 << 20)
#define NOT_TRUNCATED UINT64_MAX

_Static_assert(PAGE % SECTOR == 0, "a sector lies in one page");

struct slot {
    unsigned char *live, *durable;
};

struct change {
    struct change *next;
    bool is_truncate;
    uint64_t offset; /* of a truncate: the new size */
    size_t size;
    unsigned char bytes[];
};

struct node {
    struct tr__sim_disk *disk;
    struct node *previous, *next; /* in order of creation */
    uint32_t refs;                /* names (live and durable), operations, open files */
    uint64_t live_size, durable_size;
    struct slot *slots; /* those past slot_count have no pages */
    size_t slot_count, slot_capacity;
    struct change *first_change, **changes_end;
    uint64_t changes_bytes;
    uint64_t truncated_to; /* smallest size a change shrank it to, or NOT_TRUNCATED */
};

struct name {
    struct node *live, *durable;
    uint32_t operations; /* not yet durable ones that speak of this name */
    bool is_lost;        /* during a crash: an operation on it was lost */
    char path[];
};

enum operation_kind {
    OPERATION_CREATE,
    OPERATION_REMOVE,
    OPERATION_RENAME,
};

struct operation {
    struct operation *next;
    enum operation_kind kind;
    struct name *name;
    struct name *to;   /* of a rename, else NULL */
    struct node *node; /* of a create and a rename */
};

struct tr_file {
    struct tr__sim_disk *disk; /* NULL after the disk is destroyed */
    struct node *node;         /* NULL after a crash */
    unsigned flags;
    struct tr_file *previous, *next;
};

struct tr__sim_disk {
    struct base_random random;
    struct tr_disk_faults faults;
    struct node *first_node, *last_node;
    struct name **names; /* sorted by path */
    size_t name_count, name_capacity;
    struct operation *first_operation, **operations_end;
    size_t operation_count;
    struct tr_file *first_file;
    size_t file_count;
    uint64_t bytes;          /* sum of node_charge over all nodes */
    uint64_t unsynced_bytes; /* sum of changes_bytes over all nodes */
    struct tr__sim_disk_counters counters;
};

static void write_back(struct tr__sim_disk *disk);

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The larger image counts: a truncate that is not synced has not freed anything yet. */
static uint64_t node_charge(const struct node *node)
{
    return larger(node->live_size, node->durable_size);
}

static void node_set_sizes(struct node *node, uint64_t live_size, uint64_t durable_size)
{
    node->disk->bytes -= node_charge(node);
    node->live_size = live_size;
    node->durable_size = durable_size;
    node->disk->bytes += node_charge(node);
}

static struct node *node_create(struct tr__sim_disk *disk)
{
    struct node *node = base_calloc(sizeof *node);

    if (node == NULL)
        return NULL;
    node->disk = disk;
    node->changes_end = &node->first_change;
    node->truncated_to = NOT_TRUNCATED;
    node->previous = disk->last_node;
    if (disk->last_node != NULL)
        disk->last_node->next = node;
    else
        disk->first_node = node;
    disk->last_node = node;
    return node;
}

static void node_free_changes(struct node *node)
{
    while (node->first_change != NULL) {
        struct change *change = node->first_change;

        node->first_change = change->next;
        base_free(change);
    }
    node->changes_end = &node->first_change;
    node->truncated_to = NOT_TRUNCATED;
    node->disk->unsynced_bytes -= node->changes_bytes;
    node->changes_bytes = 0;
}

static void slot_drop_live(struct slot *slot)
{
    if (slot->live != slot->durable)
        base_free(slot->live);
    slot->live = NULL;
}

static void node_destroy(struct node *node)
{
    struct tr__sim_disk *disk = node->disk;

    node_free_changes(node);
    for (size_t i = 0; i < node->slot_count; i++) {
        slot_drop_live(&node->slots[i]);
        base_free(node->slots[i].durable);
    }
    base_free(node->slots);
    disk->bytes -= node_charge(node);
    if (node->previous != NULL)
        node->previous->next = node->next;
    else
        disk->first_node = node->next;
    if (node->next != NULL)
        node->next->previous = node->previous;
    else
        disk->last_node = node->previous;
    base_free(node);
}

static struct node *node_ref(struct node *node)
{
    if (node != NULL)
        node->refs++;
    return node;
}

static void node_unref(struct node *node)
{
    if (node == NULL)
        return;
    tr_assert(node->refs > 0);
    if (--node->refs == 0)
        node_destroy(node);
}

/* ---- reading and changing the live image ----------------------------------------------------- */

static size_t pages_of(uint64_t size)
{
    return (size_t)((size + PAGE - 1) / PAGE);
}

/* Return how many bytes of [offset, end) lie in the page of `offset`. */
static size_t bytes_in_page(uint64_t offset, uint64_t end)
{
    return (size_t)smaller(end - offset, PAGE - offset % PAGE);
}

static void node_read(const struct node *node, uint64_t offset, unsigned char *bytes, size_t size)
{
    uint64_t end = offset + size;

    while (offset < end) {
        size_t index = (size_t)(offset / PAGE);
        size_t part = bytes_in_page(offset, end);
        const unsigned char *page = index < node->slot_count ? node->slots[index].live : NULL;

        if (page != NULL)
            memcpy(bytes, page + offset % PAGE, part);
        else
            memset(bytes, 0, part);
        bytes += part;
        offset += part;
    }
}

static int node_reserve_slots(struct node *node, size_t count)
{
    size_t capacity = node->slot_capacity;
    struct slot *slots;

    if (count > capacity) {
        while (capacity < count)
            capacity = capacity > 0 ? capacity * 2 : 4;
        slots = base_realloc(node->slots, capacity * sizeof *slots);
        if (slots == NULL)
            return TR_ENOMEM;
        node->slots = slots;
        node->slot_capacity = capacity;
    }
    while (node->slot_count < count)
        node->slots[node->slot_count++] = (struct slot){ 0 };
    return 0;
}

/* Give the slot a live page of its own, which may be written to. */
static int slot_own_live(struct slot *slot)
{
    unsigned char *page;

    if (slot->live != NULL && slot->live != slot->durable)
        return 0;
    if (slot->live == NULL) {
        page = base_calloc(PAGE);
        if (page == NULL)
            return TR_ENOMEM;
    } else {
        page = base_alloc(PAGE);
        if (page == NULL)
            return TR_ENOMEM;
        memcpy(page, slot->live, PAGE);
    }
    slot->live = page;
    return 0;
}

static bool has_room(const struct node *node, uint64_t new_size)
{
    const struct tr__sim_disk *disk = node->disk;
    uint64_t new_charge = larger(new_size, node->durable_size);
    uint64_t growth;

    if (disk->faults.bytes_max == 0 || new_charge <= node_charge(node))
        return true;
    growth = new_charge - node_charge(node);
    return disk->bytes <= disk->faults.bytes_max && growth <= disk->faults.bytes_max - disk->bytes;
}

static int node_make_room(struct node *node, uint64_t new_size)
{
    if (new_size > TR__SIM_DISK_FILE_BYTES_MAX)
        return TR_ETOOBIG;
    if (has_room(node, new_size))
        return 0;
    write_back(node->disk);
    if (has_room(node, new_size))
        return 0;
    node->disk->counters.full++;
    return TR_ENOSPC;
}

/* The caller checks the limit on unsynced bytes afterwards. */
static void node_add_change(struct node *node, struct change *change)
{
    uint64_t bytes = sizeof *change + change->size;

    change->next = NULL;
    *node->changes_end = change;
    node->changes_end = &change->next;
    node->changes_bytes += bytes;
    node->disk->unsynced_bytes += bytes;
}

static void limit_unsynced(struct tr__sim_disk *disk)
{
    uint64_t limit = TR__SIM_DISK_UNSYNCED_BYTES_MAX;

    if (disk->faults.bytes_max > 0 && disk->faults.bytes_max < limit - UNSYNCED_BYTES_EXTRA)
        limit = disk->faults.bytes_max + UNSYNCED_BYTES_EXTRA;
    if (disk->unsynced_bytes > limit)
        write_back(disk);
}

static int node_write(struct node *node, uint64_t offset, const unsigned char *bytes, size_t size)
{
    uint64_t end = offset + size;
    struct change *change;
    int rc;

    tr_assert(size > 0);
    rc = node_make_room(node, end);
    if (rc < 0)
        return rc;
    rc = node_reserve_slots(node, pages_of(end));
    if (rc < 0)
        return rc;
    for (size_t i = (size_t)(offset / PAGE); i < pages_of(end); i++) {
        rc = slot_own_live(&node->slots[i]);
        if (rc < 0)
            return rc; /* pages of its own with unchanged content do no harm */
    }
    change = base_alloc(sizeof *change + size);
    if (change == NULL)
        return TR_ENOMEM;

    change->is_truncate = false;
    change->offset = offset;
    change->size = size;
    memcpy(change->bytes, bytes, size);
    node_add_change(node, change);
    while (offset < end) {
        size_t part = bytes_in_page(offset, end);

        memcpy(node->slots[offset / PAGE].live + offset % PAGE, bytes, part);
        bytes += part;
        offset += part;
    }
    node_set_sizes(node, larger(node->live_size, end), node->durable_size);
    limit_unsynced(node->disk);
    return 0;
}

static int node_truncate(struct node *node, uint64_t size)
{
    size_t first_gone = pages_of(size);
    struct slot *last = NULL; /* the page the new end cuts in two */
    struct change *change;
    int rc;

    if (size == node->live_size)
        return 0;
    rc = node_make_room(node, size);
    if (rc < 0)
        return rc;
    if (size < node->live_size && size % PAGE > 0 && first_gone <= node->slot_count) {
        last = &node->slots[first_gone - 1];
        if (last->live == NULL)
            last = NULL;
    }
    if (last != NULL) {
        rc = slot_own_live(last);
        if (rc < 0)
            return rc;
    }
    change = base_alloc(sizeof *change);
    if (change == NULL)
        return TR_ENOMEM;

    change->is_truncate = true;
    change->offset = size;
    change->size = 0;
    node_add_change(node, change);
    if (size < node->live_size) {
        node->truncated_to = smaller(node->truncated_to, size);
        for (size_t i = first_gone; i < node->slot_count; i++)
            slot_drop_live(&node->slots[i]);
    }
    if (last != NULL)
        memset(last->live + size % PAGE, 0, PAGE - size % PAGE);
    node_set_sizes(node, size, node->durable_size);
    limit_unsynced(node->disk);
    return 0;
}

/* ---- sync and crash of a node ---------------------------------------------------------------- */

static void make_common(struct node *node, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        struct slot *slot = &node->slots[i];

        if (slot->live == slot->durable)
            continue;
        base_free(slot->durable);
        slot->durable = slot->live;
    }
}

/* Slots at the end without pages would make the next truncate look at them again. */
static void trim_slots(struct node *node)
{
    while (node->slot_count > 0) {
        const struct slot *slot = &node->slots[node->slot_count - 1];

        if (slot->live != NULL || slot->durable != NULL)
            break;
        node->slot_count--;
    }
}

/* Cannot fail: that is why both images are of pages that can change hands. */
static void node_sync(struct node *node)
{
    if (node->first_change == NULL)
        return;
    for (const struct change *change = node->first_change; change; change = change->next) {
        if (change->is_truncate)
            continue;
        make_common(node, (size_t)(change->offset / PAGE), pages_of(change->offset + change->size));
    }
    if (node->truncated_to != NOT_TRUNCATED)
        make_common(node, (size_t)(node->truncated_to / PAGE), node->slot_count);
    node_set_sizes(node, node->live_size, node->live_size);
    node_free_changes(node);
    trim_slots(node);
}

/* The part of a change that lies in one sector reaches the durable image. During a crash only: no
 * page is common then. False if there was no memory for it, which makes it one more sector that was
 * lost. */
static bool keep_sector(struct node *node, const struct change *change, uint64_t from, uint64_t end)
{
    struct slot *slot = &node->slots[from / PAGE];

    if (slot->durable == NULL) {
        slot->durable = base_calloc(PAGE);
        if (slot->durable == NULL)
            return false;
    }
    memcpy(
        slot->durable + from % PAGE, change->bytes + (from - change->offset), (size_t)(end - from));
    node_set_sizes(node, node->live_size, larger(node->durable_size, end));
    return true;
}

static void crash_write(struct node *node, const struct change *change)
{
    enum { WHOLE, TORN, LOST, OUTCOMES };
    struct tr__sim_disk *disk = node->disk;
    uint64_t outcome = base_random_below(&disk->random, OUTCOMES);
    uint64_t end = change->offset + change->size;
    uint64_t sectors = 0, kept = 0, next;

    for (uint64_t from = change->offset; from < end; from = next) {
        bool is_kept = outcome == WHOLE;

        next = smaller(end, from - from % SECTOR + SECTOR);
        if (outcome == TORN)
            is_kept = base_random_below(&disk->random, 2) == 0;
        sectors++;
        if (is_kept && keep_sector(node, change, from, next))
            kept++;
    }
    if (kept == 0)
        disk->counters.lost++;
    else if (kept < sectors)
        disk->counters.torn++;
    else
        disk->counters.kept++;
}

static void crash_truncate(struct node *node, uint64_t size)
{
    struct tr__sim_disk *disk = node->disk;
    size_t first_gone = pages_of(size);

    if (base_random_below(&disk->random, 2) == 0) {
        disk->counters.lost++;
        return;
    }
    disk->counters.kept++;
    for (size_t i = first_gone; i < node->slot_count; i++) {
        base_free(node->slots[i].durable);
        node->slots[i].durable = NULL;
    }
    if (size % PAGE > 0 && first_gone <= node->slot_count) {
        struct slot *last = &node->slots[first_gone - 1];

        if (last->durable != NULL)
            memset(last->durable + size % PAGE, 0, PAGE - size % PAGE);
    }
    node_set_sizes(node, node->live_size, size);
}

static void node_crash(struct node *node)
{
    if (node->first_change == NULL)
        return;
    for (size_t i = 0; i < node->slot_count; i++)
        slot_drop_live(&node->slots[i]);
    for (const struct change *change = node->first_change; change; change = change->next) {
        if (change->is_truncate)
            crash_truncate(node, change->offset);
        else
            crash_write(node, change);
    }
    for (size_t i = 0; i < node->slot_count; i++)
        node->slots[i].live = node->slots[i].durable;
    node_set_sizes(node, node->durable_size, node->durable_size);
    node_free_changes(node);
    trim_slots(node);
}

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

static struct name *name_find_live(const struct tr__sim_disk *disk, const char *path)
{
    struct name *name = name_find(disk, path);

    return name != NULL && name->live != NULL ? name : NULL;
}

static struct name *name_find_or_add(struct tr__sim_disk *disk, const char *path)
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

static void name_drop_if_unused(struct tr__sim_disk *disk, struct name *name)
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

static void link_set(struct node **link, struct node *node)
{
    struct node *old = *link;

    *link = node_ref(node);
    node_unref(old);
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

static void operation_add(struct tr__sim_disk *disk, struct operation *operation)
{
    operation->next = NULL;
    operation->name->operations++;
    if (operation->to != NULL)
        operation->to->operations++;
    node_ref(operation->node);
    *disk->operations_end = operation;
    disk->operations_end = &operation->next;
    disk->operation_count++;
}

static void operation_apply(const struct operation *operation)
{
    switch (operation->kind) {
    case OPERATION_CREATE:
        link_set(&operation->name->durable, operation->node);
        break;
    case OPERATION_REMOVE:
        link_set(&operation->name->durable, NULL);
        break;
    case OPERATION_RENAME:
        tr_assert(operation->to != NULL);
        link_set(&operation->to->durable, operation->node);
        link_set(&operation->name->durable, NULL);
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
    name_drop_if_unused(disk, operation->name);
    if (operation->to != NULL) {
        operation->to->operations--;
        name_drop_if_unused(disk, operation->to);
    }
    node_unref(operation->node);
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
static void sync_names(struct tr__sim_disk *disk, const char *path)
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

static void sync_all_names(struct tr__sim_disk *disk)
{
    while (disk->first_operation != NULL) {
        operation_apply(disk->first_operation);
        operation_take_out(disk, &disk->first_operation);
    }
}

static void crash_names(struct tr__sim_disk *disk)
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
        link_set(&name->live, name->durable);
        name_drop_if_unused(disk, name);
    }
}

/* ---- the disk -------------------------------------------------------------------------------- */

int tr__sim_disk_create(const struct base_random *random, struct tr__sim_disk **ret_disk)
{
    struct tr__sim_disk *disk = base_calloc(sizeof *disk);

    if (disk == NULL)
        return TR_ENOMEM;
    disk->random = *random;
    disk->operations_end = &disk->first_operation;
    *ret_disk = disk;
    return 0;
}

static void cut_off_files(struct tr__sim_disk *disk)
{
    for (struct tr_file *file = disk->first_file; file; file = file->next) {
        node_unref(file->node);
        file->node = NULL;
    }
}

void tr__sim_disk_destroy(struct tr__sim_disk **disk)
{
    struct tr__sim_disk *gone = *disk;

    if (gone == NULL)
        return;
    *disk = NULL;
    sync_all_names(gone);
    cut_off_files(gone);
    for (struct tr_file *file = gone->first_file; file; file = file->next)
        file->disk = NULL;
    for (size_t i = 0; i < gone->name_count; i++) {
        link_set(&gone->names[i]->live, NULL);
        link_set(&gone->names[i]->durable, NULL);
        base_free(gone->names[i]);
    }
    tr_assert(gone->first_node == NULL);
    tr_assert(gone->bytes == 0);
    tr_assert(gone->unsynced_bytes == 0);
    base_free(gone->names);
    base_free(gone);
}

void tr__sim_disk_faults(struct tr__sim_disk *disk, const struct tr_disk_faults *faults)
{
    disk->faults = *faults;
}

/* Everything becomes durable, without anyone having asked. */
static void write_back(struct tr__sim_disk *disk)
{
    /* Names first: that may free nodes. */
    sync_all_names(disk);
    for (struct node *node = disk->first_node; node; node = node->next)
        node_sync(node);
    disk->counters.written_back++;
}

void tr__sim_disk_crash(struct tr__sim_disk *disk)
{
    disk->counters.crashes++;
    crash_names(disk);
    cut_off_files(disk);
    /* A node without a name and without an open file is gone by now, so it draws nothing. */
    for (struct node *node = disk->first_node; node; node = node->next)
        node_crash(node);
}

uint64_t tr__sim_disk_bytes(const struct tr__sim_disk *disk)
{
    return disk->bytes;
}

const struct tr__sim_disk_counters *tr__sim_disk_counters(const struct tr__sim_disk *disk)
{
    return &disk->counters;
}

static bool draw_eio(struct tr__sim_disk *disk)
{
    if (!base_random_chance(&disk->random, disk->faults.eio_per_million))
        return false;
    disk->counters.faults++;
    return true;
}

/* ---- the table: files ------------------------------------------------------------------------ */

static int check_path(const char *path)
{
    size_t length = strnlen(path, TR__SIM_DISK_PATH_BYTES_MAX + 1);

    if (length == 0 || length > TR__SIM_DISK_PATH_BYTES_MAX || path[length - 1] == '/')
        return TR_EINVAL;
    return 0;
}

static int check_flags(unsigned flags)
{
    const unsigned known =
        TR_OPEN_READ | TR_OPEN_WRITE | TR_OPEN_CREATE | TR_OPEN_EXCLUSIVE | TR_OPEN_TRUNCATE;

    if ((flags & ~known) != 0 || (flags & (TR_OPEN_READ | TR_OPEN_WRITE)) == 0)
        return TR_EINVAL;
    if ((flags & TR_OPEN_EXCLUSIVE) != 0 && (flags & TR_OPEN_CREATE) == 0)
        return TR_EINVAL;
    if ((flags & TR_OPEN_TRUNCATE) != 0 && (flags & TR_OPEN_WRITE) == 0)
        return TR_EINVAL;
    return 0;
}

/* Before a name operation, and before any name is looked up: writing back frees names. */
static int make_room_for_name(struct tr__sim_disk *disk)
{
    if (disk->operation_count >= TR__SIM_DISK_UNSYNCED_NAMES_MAX ||
        disk->name_count >= TR__SIM_DISK_FILES_MAX)
        write_back(disk);
    if (disk->name_count < TR__SIM_DISK_FILES_MAX)
        return 0;
    disk->counters.full++;
    return TR_ENOSPC;
}

/* A new node under the path; nothing live is there. */
static int create_node(struct tr__sim_disk *disk, const char *path, struct node **ret_node)
{
    struct operation *operation;
    struct node *node;
    struct name *name;
    int rc;

    rc = make_room_for_name(disk);
    if (rc < 0)
        return rc;
    operation = base_alloc(sizeof *operation);
    if (operation == NULL)
        return TR_ENOMEM;
    name = name_find_or_add(disk, path);
    if (name == NULL)
        goto free_operation;
    node = node_create(disk);
    if (node == NULL)
        goto drop_name;
    *operation = (struct operation){ .kind = OPERATION_CREATE, .name = name, .node = node };
    operation_add(disk, operation);
    link_set(&name->live, node);
    *ret_node = node;
    return 0;

drop_name:
    name_drop_if_unused(disk, name);
free_operation:
    base_free(operation);
    return TR_ENOMEM;
}

static int open_node(
    struct tr__sim_disk *disk, const char *path, unsigned flags, struct node **ret_node)
{
    struct name *name = name_find_live(disk, path);
    int rc;

    if (name == NULL) {
        if ((flags & TR_OPEN_CREATE) == 0)
            return TR_ENOENT;
        return create_node(disk, path, ret_node);
    }
    if ((flags & TR_OPEN_EXCLUSIVE) != 0)
        return TR_EEXIST;
    if ((flags & TR_OPEN_TRUNCATE) != 0) {
        rc = node_truncate(name->live, 0);
        if (rc < 0)
            return rc;
    }
    *ret_node = name->live;
    return 0;
}

static int sim_open(void *data, const char *path, unsigned flags, struct tr_file **ret_file)
{
    struct tr__sim_disk *disk = data;
    struct tr_file *file;
    struct node *node;
    int rc;

    rc = check_path(path);
    if (rc < 0)
        return rc;
    rc = check_flags(flags);
    if (rc < 0)
        return rc;
    if (disk->file_count >= TR__SIM_DISK_HANDLES_MAX)
        return TR_ELIMIT;
    file = base_alloc(sizeof *file);
    if (file == NULL)
        return TR_ENOMEM;
    rc = open_node(disk, path, flags, &node);
    if (rc < 0) {
        base_free(file);
        return rc;
    }
    *file = (struct tr_file){
        .disk = disk, .node = node_ref(node), .flags = flags, .next = disk->first_file
    };
    if (file->next != NULL)
        file->next->previous = file;
    disk->first_file = file;
    disk->file_count++;
    *ret_file = file;
    return 0;
}

static int sim_close(struct tr_file *file)
{
    struct tr__sim_disk *disk = file->disk;

    if (disk != NULL) {
        if (file->previous != NULL)
            file->previous->next = file->next;
        else
            disk->first_file = file->next;
        if (file->next != NULL)
            file->next->previous = file->previous;
        disk->file_count--;
    }
    node_unref(file->node);
    base_free(file);
    return 0;
}

static int check_use(const struct tr_file *file, unsigned flag)
{
    if (file->node == NULL)
        return TR_EIO;
    return (file->flags & flag) != 0 ? 0 : TR_EINVAL;
}

static int sim_read(
    struct tr_file *file, uint64_t offset, void *bytes, size_t size, size_t *ret_size)
{
    const struct node *node = file->node;
    int rc;

    rc = check_use(file, TR_OPEN_READ);
    if (rc < 0)
        return rc;
    file->disk->counters.reads++;
    if (draw_eio(file->disk))
        return TR_EIO;
    if (offset >= node->live_size)
        size = 0;
    else
        size = (size_t)smaller(size, node->live_size - offset);
    if (size > 0)
        node_read(node, offset, bytes, size);
    *ret_size = size;
    return 0;
}

static int sim_write(struct tr_file *file, uint64_t offset, const void *bytes, size_t size)
{
    bool is_eio, is_short;
    int rc;

    rc = check_use(file, TR_OPEN_WRITE);
    if (rc < 0)
        return rc;
    if (offset > TR__SIM_DISK_FILE_BYTES_MAX || size > TR__SIM_DISK_FILE_BYTES_MAX - offset)
        return TR_ETOOBIG;
    if (size == 0)
        return 0;
    file->disk->counters.writes++;
    is_eio = draw_eio(file->disk);
    is_short = base_random_chance(&file->disk->random, file->disk->faults.short_per_million);
    if (is_eio)
        return TR_EIO;
    if (is_short) {
        file->disk->counters.faults++;
        size = (size_t)base_random_below(&file->disk->random, size);
    }
    if (size > 0) {
        rc = node_write(file->node, offset, bytes, size);
        if (rc < 0)
            return rc;
    }
    return is_short ? TR_EIO : 0;
}

static int sim_truncate(struct tr_file *file, uint64_t size)
{
    int rc;

    rc = check_use(file, TR_OPEN_WRITE);
    if (rc < 0)
        return rc;
    if (draw_eio(file->disk))
        return TR_EIO;
    return node_truncate(file->node, size);
}

static int sim_sync(struct tr_file *file)
{
    int rc;

    rc = check_use(file, TR_OPEN_READ | TR_OPEN_WRITE);
    if (rc < 0)
        return rc;
    file->disk->counters.syncs++;
    if (draw_eio(file->disk))
        return TR_EIO;
    node_sync(file->node);
    return 0;
}

static int sim_size(struct tr_file *file, uint64_t *ret_size)
{
    if (file->node == NULL)
        return TR_EIO;
    *ret_size = file->node->live_size;
    return 0;
}

/* ---- the table: names ------------------------------------------------------------------------ */

static int sim_remove(void *data, const char *path)
{
    struct tr__sim_disk *disk = data;
    struct operation *operation;
    struct name *name;
    int rc;

    rc = check_path(path);
    if (rc < 0)
        return rc;
    if (disk->operation_count >= TR__SIM_DISK_UNSYNCED_NAMES_MAX)
        write_back(disk);
    name = name_find_live(disk, path);
    if (name == NULL)
        return TR_ENOENT;
    operation = base_alloc(sizeof *operation);
    if (operation == NULL)
        return TR_ENOMEM;
    *operation = (struct operation){ .kind = OPERATION_REMOVE, .name = name };
    operation_add(disk, operation);
    link_set(&name->live, NULL);
    return 0;
}

static int sim_rename(void *data, const char *from, const char *to)
{
    struct tr__sim_disk *disk = data;
    struct operation *operation;
    struct name *name, *target;
    int rc;

    rc = check_path(from);
    if (rc < 0)
        return rc;
    rc = check_path(to);
    if (rc < 0)
        return rc;
    rc = make_room_for_name(disk);
    if (rc < 0)
        return rc;
    name = name_find_live(disk, from);
    if (name == NULL)
        return TR_ENOENT;
    if (strcmp(from, to) == 0)
        return 0;
    operation = base_alloc(sizeof *operation);
    if (operation == NULL)
        return TR_ENOMEM;
    target = name_find_or_add(disk, to);
    if (target == NULL) {
        base_free(operation);
        return TR_ENOMEM;
    }
    *operation = (struct operation){
        .kind = OPERATION_RENAME, .name = name, .to = target, .node = name->live
    };
    operation_add(disk, operation);
    link_set(&target->live, name->live);
    link_set(&name->live, NULL);
    return 0;
}

static int sim_exists(void *data, const char *path, int *ret_exists)
{
    const struct tr__sim_disk *disk = data;

    *ret_exists = name_find_live(disk, path) != NULL;
    return 0;
}

static int sim_sync_dir(void *data, const char *path)
{
    struct tr__sim_disk *disk = data;

    disk->counters.syncs++;
    if (draw_eio(disk))
        return TR_EIO;
    sync_names(disk, path);
    return 0;
}

const struct tr_disk tr__sim_disk_table = {
    .open = sim_open,
    .close = sim_close,
    .read = sim_read,
    .write = sim_write,
    .truncate = sim_truncate,
    .sync = sim_sync,
    .size = sim_size,
    .remove = sim_remove,
    .rename = sim_rename,
    .exists = sim_exists,
    .sync_dir = sim_sync_dir,
};
