/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk_node.h: shared by the files of the simulated disk: nodes (a file without its name),
 * names, and the operations between them. One thread. */
#ifndef RUNTIME_SIM_DISK_NODE_H
#define RUNTIME_SIM_DISK_NODE_H

#include "runtime/list.h"
#include "runtime/sim_disk.h"

#define PAGE 4096u
#define SECTOR TR__SIM_DISK_SECTOR
/* Unsynced bytes that a disk with a small bytes_max may hold beside that limit: a crash should find
 * something to tear even on a tiny disk. */
#define UNSYNCED_BYTES_EXTRA ((uint64_t)1 << 20)
#define NOT_TRUNCATED UINT64_MAX

_Static_assert(PAGE % SECTOR == 0, "a sector lies in one page");

struct tr__disk_name;
struct tr__disk_operation;

struct tr__disk_slot {
    unsigned char *live, *durable;
};

struct tr__disk_change {
    struct tr__disk_change *next;
    bool is_truncate;
    uint64_t offset; /* of a truncate: the new size */
    size_t size;
    unsigned char bytes[];
};

struct tr__disk_node {
    struct tr__sim_disk *disk;
    struct tr__link link; /* in the disk's nodes, in order of creation */
    uint32_t refs;        /* names (live and durable), operations, open files */
    uint64_t live_size, durable_size;
    struct tr__disk_slot *slots; /* those past slot_count have no pages */
    uint32_t slot_count, slot_capacity;
    struct tr__disk_change *first_change, **changes_end;
    uint64_t changes_bytes;
    uint64_t truncated_to; /* smallest size a change shrank it to, or NOT_TRUNCATED */
};

struct tr__sim_disk {
    struct base_random random;
    struct tr_disk_faults faults;
    struct tr__link nodes;
    struct tr__disk_name **names; /* sorted by path */
    uint32_t name_count, name_capacity;
    struct tr__disk_operation *first_operation, **operations_end;
    size_t operation_count;
    struct tr__link files;
    size_t file_count;
    uint64_t bytes;          /* sum of node_charge over all nodes */
    uint64_t unsynced_bytes; /* sum of changes_bytes over all nodes */
    struct tr__sim_disk_counters counters;
};

static inline uint64_t tr__disk_smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t tr__disk_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- sim_disk_node.c ------------------------------------------------------------------------ */

/* Create a node with one reference, or return NULL. */
struct tr__disk_node *tr__disk_node_create(struct tr__sim_disk *disk);
struct tr__disk_node *tr__disk_node_ref(struct tr__disk_node *node);
void tr__disk_node_unref(struct tr__disk_node *node);
/* Read from the live image; the caller has checked the range. */
void tr__disk_node_read(
    const struct tr__disk_node *node, uint64_t offset, unsigned char *bytes, size_t size);
/* Change the live image and add the change. TR_ENOSPC, TR_ENOMEM: nothing has changed. */
int tr__disk_node_write(
    struct tr__disk_node *node, uint64_t offset, const unsigned char *bytes, size_t size);
int tr__disk_node_truncate(struct tr__disk_node *node, uint64_t size);
/* Make the live image durable. */
void tr__disk_node_sync(struct tr__disk_node *node);
/* Keep a drawn part of the changes, and start again from the durable image. */
void tr__disk_node_crash(struct tr__disk_node *node);

/* ---- sim_disk.c ----------------------------------------------------------------------------- */

/* Sync everything, as an operating system does when much is unsynced. */
void tr__disk_write_back(struct tr__sim_disk *disk);

#endif
