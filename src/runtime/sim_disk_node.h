/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk_node.h: shared by the files of the simulated disk: nodes (a file without its name),
 * names, and the operations between them. One thread. */
#ifndef RUNTIME_SIM_DISK_NODE_H
#define RUNTIME_SIM_DISK_NODE_H

#include "runtime/sim_disk.h"

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
struct node *tr__disk_node_create(struct tr__sim_disk *disk);
struct node *tr__disk_node_ref(struct node *node);
void tr__disk_node_unref(struct node *node);
/* Read from the live image; the caller has checked the range. */
void tr__disk_node_read(
    const struct node *node, uint64_t offset, unsigned char *bytes, size_t size);
/* Change the live image and add the change. TR_ENOSPC, TR_ENOMEM: nothing has changed. */
int tr__disk_node_write(
    struct node *node, uint64_t offset, const unsigned char *bytes, size_t size);
int tr__disk_node_truncate(struct node *node, uint64_t size);
/* Make the live image durable. */
void tr__disk_node_sync(struct node *node);
/* Keep a drawn part of the changes, and start again from the durable image. */
void tr__disk_node_crash(struct node *node);

/* ---- sim_disk_name.c ------------------------------------------------------------------------ */

/* Return the name if it has a live node, else NULL. */
struct name *tr__disk_name_find_live(const struct tr__sim_disk *disk, const char *path);
/* Return the name, added if need be; NULL when memory is out. */
struct name *tr__disk_name_find_or_add(struct tr__sim_disk *disk, const char *path);
void tr__disk_name_drop_if_unused(struct tr__sim_disk *disk, struct name *name);
/* Point a name's live or durable link to another node, with its reference. */
void tr__disk_link_set(struct node **link, struct node *node);
/* List an operation that is not yet durable. */
void tr__disk_operation_add(struct tr__sim_disk *disk, struct operation *operation);
/* Make the operations in the directory of `path` durable. */
void tr__disk_sync_names(struct tr__sim_disk *disk, const char *path);
void tr__disk_sync_all_names(struct tr__sim_disk *disk);
/* Keep a drawn part of the operations. */
void tr__disk_crash_names(struct tr__sim_disk *disk);

/* ---- sim_disk.c ----------------------------------------------------------------------------- */

/* Sync everything, as an operating system does when much is unsynced. */
void tr__disk_write_back(struct tr__sim_disk *disk);

#endif
