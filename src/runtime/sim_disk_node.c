/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk_node.c: two images of every file, and the changes between them.
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
#include "runtime/sim_disk_node.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The larger image counts: a truncate that is not synced has not freed anything yet. */
static uint64_t node_charge(const struct tr__disk_node *node)
{
    return tr__disk_larger(node->live_size, node->durable_size);
}

static void node_set_sizes(struct tr__disk_node *node, uint64_t live_size, uint64_t durable_size)
{
    node->disk->bytes -= node_charge(node);
    node->live_size = live_size;
    node->durable_size = durable_size;
    node->disk->bytes += node_charge(node);
}

struct tr__disk_node *tr__disk_node_create(struct tr__sim_disk *disk)
{
    struct tr__disk_node *node = base_calloc(sizeof *node);

    if (node == NULL)
        return NULL;
    node->disk = disk;
    node->changes_end = &node->first_change;
    node->truncated_to = NOT_TRUNCATED;
    tr__list_add(&disk->nodes, &node->link);
    return node;
}

static void node_free_changes(struct tr__disk_node *node)
{
    while (node->first_change != NULL) {
        struct tr__disk_change *change = node->first_change;

        node->first_change = change->next;
        base_free(change);
    }
    node->changes_end = &node->first_change;
    node->truncated_to = NOT_TRUNCATED;
    node->disk->unsynced_bytes -= node->changes_bytes;
    node->changes_bytes = 0;
}

static void slot_drop_live(struct tr__disk_slot *slot)
{
    if (slot->live != slot->durable)
        base_free(slot->live);
    slot->live = NULL;
}

static void node_destroy(struct tr__disk_node *node)
{
    node_free_changes(node);
    for (size_t i = 0; i < node->slot_count; i++) {
        slot_drop_live(&node->slots[i]);
        base_free(node->slots[i].durable);
    }
    base_free(node->slots);
    node->disk->bytes -= node_charge(node);
    tr__list_remove(&node->link);
    base_free(node);
}

struct tr__disk_node *tr__disk_node_ref(struct tr__disk_node *node)
{
    if (node != NULL)
        node->refs++;
    return node;
}

void tr__disk_node_unref(struct tr__disk_node *node)
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
    return (size_t)tr__disk_smaller(end - offset, PAGE - offset % PAGE);
}

void tr__disk_node_read(
    const struct tr__disk_node *node, uint64_t offset, unsigned char *bytes, size_t size)
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

static int node_reserve_slots(struct tr__disk_node *node, size_t count)
{
    while (node->slot_capacity < count) {
        struct tr__disk_slot *slots =
            base_grow(node->slots, &node->slot_capacity, 4, sizeof *slots);

        if (slots == NULL)
            return TR_ENOMEM;
        node->slots = slots;
    }
    while (node->slot_count < count)
        node->slots[node->slot_count++] = (struct tr__disk_slot){ 0 };
    return 0;
}

/* Give the slot a live page of its own, which may be written to. */
static int slot_own_live(struct tr__disk_slot *slot)
{
    unsigned char *page;

    if (slot->live != NULL && slot->live != slot->durable)
        return 0;
    page = base_calloc(PAGE);
    if (page == NULL)
        return TR_ENOMEM;
    if (slot->live != NULL)
        memcpy(page, slot->live, PAGE);
    slot->live = page;
    return 0;
}

static bool disk_has_room(const struct tr__disk_node *node, uint64_t new_size)
{
    const struct tr__sim_disk *disk = node->disk;
    uint64_t new_charge = tr__disk_larger(new_size, node->durable_size);
    uint64_t growth;

    if (disk->faults.bytes_max == 0 || new_charge <= node_charge(node))
        return true;
    growth = new_charge - node_charge(node);
    return disk->bytes <= disk->faults.bytes_max && growth <= disk->faults.bytes_max - disk->bytes;
}

static int node_make_room(struct tr__disk_node *node, uint64_t new_size)
{
    if (new_size > TR__SIM_DISK_FILE_BYTES_MAX)
        return TR_ETOOBIG;
    if (disk_has_room(node, new_size))
        return 0;
    tr__disk_write_back(node->disk);
    if (disk_has_room(node, new_size))
        return 0;
    node->disk->counters.full++;
    return TR_ENOSPC;
}

/* The caller checks the limit on unsynced bytes afterwards. */
static void node_add_change(struct tr__disk_node *node, struct tr__disk_change *change)
{
    uint64_t bytes = sizeof *change + change->size;

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
        tr__disk_write_back(disk);
}

int tr__disk_node_write(
    struct tr__disk_node *node, uint64_t offset, const unsigned char *bytes, size_t size)
{
    uint64_t end = offset + size;
    struct tr__disk_change *change;
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

    *change = (struct tr__disk_change){ .offset = offset, .size = size };
    memcpy(change->bytes, bytes, size);
    node_add_change(node, change);
    while (offset < end) {
        size_t part = bytes_in_page(offset, end);

        memcpy(node->slots[offset / PAGE].live + offset % PAGE, bytes, part);
        bytes += part;
        offset += part;
    }
    node_set_sizes(node, tr__disk_larger(node->live_size, end), node->durable_size);
    limit_unsynced(node->disk);
    return 0;
}

int tr__disk_node_truncate(struct tr__disk_node *node, uint64_t size)
{
    size_t first_gone = pages_of(size);
    struct tr__disk_slot *last = NULL; /* the page the new end cuts in two */
    struct tr__disk_change *change;
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

    *change = (struct tr__disk_change){ .is_truncate = true, .offset = size };
    node_add_change(node, change);
    if (size < node->live_size) {
        node->truncated_to = tr__disk_smaller(node->truncated_to, size);
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

static void make_common(struct tr__disk_node *node, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        struct tr__disk_slot *slot = &node->slots[i];

        if (slot->live == slot->durable)
            continue;
        base_free(slot->durable);
        slot->durable = slot->live;
    }
}

/* Slots at the end without pages would make the next truncate look at them again. */
static void trim_slots(struct tr__disk_node *node)
{
    while (node->slot_count > 0) {
        const struct tr__disk_slot *slot = &node->slots[node->slot_count - 1];

        if (slot->live != NULL || slot->durable != NULL)
            break;
        node->slot_count--;
    }
}

/* Cannot fail: that is why both images are of pages that can change hands. */
void tr__disk_node_sync(struct tr__disk_node *node)
{
    if (node->first_change == NULL)
        return;
    for (const struct tr__disk_change *change = node->first_change; change; change = change->next) {
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
static bool keep_sector(
    struct tr__disk_node *node, const struct tr__disk_change *change, uint64_t from, uint64_t end)
{
    struct tr__disk_slot *slot = &node->slots[from / PAGE];

    if (slot->durable == NULL) {
        slot->durable = base_calloc(PAGE);
        if (slot->durable == NULL)
            return false;
    }
    memcpy(
        slot->durable + from % PAGE, change->bytes + (from - change->offset), (size_t)(end - from));
    node_set_sizes(node, node->live_size, tr__disk_larger(node->durable_size, end));
    return true;
}

static void crash_write(struct tr__disk_node *node, const struct tr__disk_change *change)
{
    enum { WHOLE, TORN, LOST, OUTCOMES };
    struct tr__sim_disk *disk = node->disk;
    uint64_t outcome = base_random_below(&disk->random, OUTCOMES);
    uint64_t end = change->offset + change->size;
    uint64_t sectors = 0, kept = 0, next;

    for (uint64_t from = change->offset; from < end; from = next) {
        bool is_kept = outcome == WHOLE;

        next = tr__disk_smaller(end, from - from % SECTOR + SECTOR);
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

static void crash_truncate(struct tr__disk_node *node, uint64_t size)
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
        struct tr__disk_slot *last = &node->slots[first_gone - 1];

        if (last->durable != NULL)
            memset(last->durable + size % PAGE, 0, PAGE - size % PAGE);
    }
    node_set_sizes(node, node->live_size, size);
}

void tr__disk_node_crash(struct tr__disk_node *node)
{
    if (node->first_change == NULL)
        return;
    for (size_t i = 0; i < node->slot_count; i++)
        slot_drop_live(&node->slots[i]);
    for (const struct tr__disk_change *change = node->first_change; change; change = change->next) {
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
