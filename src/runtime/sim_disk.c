/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk.c: the simulated disk as a struct tr_disk: files, faults, power cuts. How its images
 * work is in sim_disk_node.c. */
#include "runtime/sim_disk.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/sim_disk_node.h"

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
        tr__disk_node_unref(file->node);
        file->node = NULL;
    }
}

void tr__sim_disk_destroy(struct tr__sim_disk **disk)
{
    struct tr__sim_disk *gone = *disk;

    if (gone == NULL)
        return;
    *disk = NULL;
    tr__disk_sync_all_names(gone);
    cut_off_files(gone);
    for (struct tr_file *file = gone->first_file; file; file = file->next)
        file->disk = NULL;
    for (size_t i = 0; i < gone->name_count; i++) {
        tr__disk_link_set(&gone->names[i]->live, NULL);
        tr__disk_link_set(&gone->names[i]->durable, NULL);
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
void tr__disk_write_back(struct tr__sim_disk *disk)
{
    /* Names first: that may free nodes. */
    tr__disk_sync_all_names(disk);
    for (struct node *node = disk->first_node; node; node = node->next)
        tr__disk_node_sync(node);
    disk->counters.written_back++;
}

void tr__sim_disk_crash(struct tr__sim_disk *disk)
{
    disk->counters.crashes++;
    tr__disk_crash_names(disk);
    cut_off_files(disk);
    /* A node without a name and without an open file is gone by now, so it draws nothing. */
    for (struct node *node = disk->first_node; node; node = node->next)
        tr__disk_node_crash(node);
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
        tr__disk_write_back(disk);
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
    name = tr__disk_name_find_or_add(disk, path);
    if (name == NULL)
        goto free_operation;
    node = tr__disk_node_create(disk);
    if (node == NULL)
        goto drop_name;
    *operation = (struct operation){ .kind = OPERATION_CREATE, .name = name, .node = node };
    tr__disk_operation_add(disk, operation);
    tr__disk_link_set(&name->live, node);
    *ret_node = node;
    return 0;

drop_name:
    tr__disk_name_drop_if_unused(disk, name);
free_operation:
    base_free(operation);
    return TR_ENOMEM;
}

static int open_node(
    struct tr__sim_disk *disk, const char *path, unsigned flags, struct node **ret_node)
{
    struct name *name = tr__disk_name_find_live(disk, path);
    int rc;

    if (name == NULL) {
        if ((flags & TR_OPEN_CREATE) == 0)
            return TR_ENOENT;
        return create_node(disk, path, ret_node);
    }
    if ((flags & TR_OPEN_EXCLUSIVE) != 0)
        return TR_EEXIST;
    if ((flags & TR_OPEN_TRUNCATE) != 0) {
        rc = tr__disk_node_truncate(name->live, 0);
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
        .disk = disk, .node = tr__disk_node_ref(node), .flags = flags, .next = disk->first_file
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
    tr__disk_node_unref(file->node);
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
        size = (size_t)tr__disk_smaller(size, node->live_size - offset);
    if (size > 0)
        tr__disk_node_read(node, offset, bytes, size);
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
        rc = tr__disk_node_write(file->node, offset, bytes, size);
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
    return tr__disk_node_truncate(file->node, size);
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
    tr__disk_node_sync(file->node);
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
        tr__disk_write_back(disk);
    name = tr__disk_name_find_live(disk, path);
    if (name == NULL)
        return TR_ENOENT;
    operation = base_alloc(sizeof *operation);
    if (operation == NULL)
        return TR_ENOMEM;
    *operation = (struct operation){ .kind = OPERATION_REMOVE, .name = name };
    tr__disk_operation_add(disk, operation);
    tr__disk_link_set(&name->live, NULL);
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
    name = tr__disk_name_find_live(disk, from);
    if (name == NULL)
        return TR_ENOENT;
    if (strcmp(from, to) == 0)
        return 0;
    operation = base_alloc(sizeof *operation);
    if (operation == NULL)
        return TR_ENOMEM;
    target = tr__disk_name_find_or_add(disk, to);
    if (target == NULL) {
        base_free(operation);
        return TR_ENOMEM;
    }
    *operation = (struct operation){
        .kind = OPERATION_RENAME, .name = name, .to = target, .node = name->live
    };
    tr__disk_operation_add(disk, operation);
    tr__disk_link_set(&target->live, name->live);
    tr__disk_link_set(&name->live, NULL);
    return 0;
}

static int sim_exists(void *data, const char *path, int *ret_exists)
{
    const struct tr__sim_disk *disk = data;

    *ret_exists = tr__disk_name_find_live(disk, path) != NULL;
    return 0;
}

static int sim_sync_dir(void *data, const char *path)
{
    struct tr__sim_disk *disk = data;

    disk->counters.syncs++;
    if (draw_eio(disk))
        return TR_EIO;
    tr__disk_sync_names(disk, path);
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
