/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk.c: the simulated disk as a struct tr_disk: files, faults, power cuts. How its images
 * work is in sim_disk_node.c. */
#include "runtime/sim_disk.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/sim_disk_node.h"

struct tr__disk_name {
    struct tr__disk_node *live, *durable;
    uint32_t operations; /* not yet durable ones that speak of this name */
    bool is_lost;        /* during a crash: an operation on it was lost */
    char path[];
};

enum operation_kind {
    OPERATION_CREATE,
    OPERATION_REMOVE,
    OPERATION_RENAME,
};

struct tr__disk_operation {
    struct tr__disk_operation *next;
    enum operation_kind kind;
    struct tr__disk_name *name;
    struct tr__disk_name *to;   /* of a rename, else NULL */
    struct tr__disk_node *node; /* of a create and a rename */
};

struct tr_file {
    struct tr__sim_disk *disk;  /* NULL after the disk is destroyed */
    struct tr__disk_node *node; /* NULL after a crash */
    unsigned flags;
    struct tr__link link; /* in the disk's files */
};

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
static struct tr__disk_name *name_find(const struct tr__sim_disk *disk, const char *path)
{
    size_t at = name_position(disk, path);

    if (at == disk->name_count || strcmp(disk->names[at]->path, path) != 0)
        return NULL;
    return disk->names[at];
}

static struct tr__disk_name *name_find_live(const struct tr__sim_disk *disk, const char *path)
{
    struct tr__disk_name *name = name_find(disk, path);

    return name != NULL && name->live != NULL ? name : NULL;
}

static struct tr__disk_name *name_find_or_add(struct tr__sim_disk *disk, const char *path)
{
    struct tr__disk_name *name = name_find(disk, path);
    size_t at, length;

    if (name != NULL)
        return name;
    if (disk->name_count == disk->name_capacity) {
        struct tr__disk_name **names =
            base_grow(disk->names, &disk->name_capacity, 16, sizeof *names);

        if (names == NULL)
            return NULL;
        disk->names = names;
    }
    length = strlen(path);
    name = base_calloc(sizeof *name + length + 1);
    if (name == NULL)
        return NULL;
    memcpy(name->path, path, length + 1);
    at = name_position(disk, path);
    memmove(&disk->names[at + 1], &disk->names[at],
        (disk->name_count - at) * sizeof(struct tr__disk_name *));
    disk->names[at] = name;
    disk->name_count++;
    return name;
}

static void name_drop_if_unused(struct tr__sim_disk *disk, struct tr__disk_name *name)
{
    size_t at;

    if (name == NULL || name->live != NULL || name->durable != NULL || name->operations > 0)
        return;
    at = name_position(disk, name->path);
    tr_assert(disk->names[at] == name);
    disk->name_count--;
    memmove(&disk->names[at], &disk->names[at + 1],
        (disk->name_count - at) * sizeof(struct tr__disk_name *));
    base_free(name);
}

static void link_set(struct tr__disk_node **link, struct tr__disk_node *node)
{
    struct tr__disk_node *old = *link;

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

static void operation_add(struct tr__sim_disk *disk, struct tr__disk_operation *operation)
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

static void operation_apply(const struct tr__disk_operation *operation)
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
static void operation_take_out(struct tr__sim_disk *disk, struct tr__disk_operation **link)
{
    struct tr__disk_operation *operation = *link;

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
    tr__disk_node_unref(operation->node);
    base_free(operation);
}

static bool is_across(const struct tr__disk_operation *operation)
{
    return operation->to != NULL && !is_same_dir(operation->name->path, operation->to->path);
}

static bool is_in_dir(const struct tr__disk_operation *operation, const char *path)
{
    return is_same_dir(operation->name->path, path) ||
           (operation->to != NULL && is_same_dir(operation->to->path, path));
}

/* Operations of one directory speak of names that no other directory's operations do, unless one is
 * a rename across. Then, like a journal, everything up to the directory's last operation becomes
 * durable. */
static void names_sync(struct tr__sim_disk *disk, const char *path)
{
    struct tr__disk_operation **link = &disk->first_operation;
    const struct tr__disk_operation *last = NULL;
    bool has_across = false, is_last = false;

    for (const struct tr__disk_operation *o = disk->first_operation; o; o = o->next) {
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

static void names_sync_all(struct tr__sim_disk *disk)
{
    while (disk->first_operation != NULL) {
        operation_apply(disk->first_operation);
        operation_take_out(disk, &disk->first_operation);
    }
}

static void names_crash(struct tr__sim_disk *disk)
{
    for (struct tr__disk_operation *o = disk->first_operation; o; o = o->next) {
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
        struct tr__disk_name *name = disk->names[i];

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
    tr__list_init(&disk->nodes);
    tr__list_init(&disk->files);
    *ret_disk = disk;
    return 0;
}

static void cut_off_files(struct tr__sim_disk *disk)
{
    for (struct tr__link *at = disk->files.next; at != &disk->files; at = at->next) {
        struct tr_file *file = tr__container(at, struct tr_file, link);

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
    names_sync_all(gone);
    cut_off_files(gone);
    while (!tr__list_is_empty(&gone->files)) {
        tr__container(gone->files.next, struct tr_file, link)->disk = NULL;
        tr__list_remove(gone->files.next);
    }
    for (size_t i = 0; i < gone->name_count; i++) {
        link_set(&gone->names[i]->live, NULL);
        link_set(&gone->names[i]->durable, NULL);
        base_free(gone->names[i]);
    }
    tr_assert(tr__list_is_empty(&gone->nodes));
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
    names_sync_all(disk);
    for (struct tr__link *at = disk->nodes.next; at != &disk->nodes; at = at->next)
        tr__disk_node_sync(tr__container(at, struct tr__disk_node, link));
    disk->counters.written_back++;
}

void tr__sim_disk_crash(struct tr__sim_disk *disk)
{
    disk->counters.crashes++;
    names_crash(disk);
    cut_off_files(disk);
    /* A node without a name and without an open file is gone by now, so it draws nothing. */
    for (struct tr__link *at = disk->nodes.next; at != &disk->nodes; at = at->next)
        tr__disk_node_crash(tr__container(at, struct tr__disk_node, link));
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
static int create_node(struct tr__sim_disk *disk, const char *path, struct tr__disk_node **ret_node)
{
    struct tr__disk_operation *operation;
    struct tr__disk_node *node;
    struct tr__disk_name *name;
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
    node = tr__disk_node_create(disk);
    if (node == NULL)
        goto drop_name;
    *operation =
        (struct tr__disk_operation){ .kind = OPERATION_CREATE, .name = name, .node = node };
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
    struct tr__sim_disk *disk, const char *path, unsigned flags, struct tr__disk_node **ret_node)
{
    struct tr__disk_name *name = name_find_live(disk, path);
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
    struct tr__disk_node *node;
    int rc;

    rc = check_path(path);
    if (rc == 0)
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
    *file = (struct tr_file){ .disk = disk, .node = tr__disk_node_ref(node), .flags = flags };
    tr__list_add(&disk->files, &file->link);
    disk->file_count++;
    *ret_file = file;
    return 0;
}

static int sim_close(struct tr_file *file)
{
    tr__list_remove(&file->link);
    if (file->disk != NULL)
        file->disk->file_count--;
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
    const struct tr__disk_node *node = file->node;
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
    struct tr__disk_operation *operation;
    struct tr__disk_name *name;
    int rc;

    rc = check_path(path);
    if (rc < 0)
        return rc;
    if (disk->operation_count >= TR__SIM_DISK_UNSYNCED_NAMES_MAX)
        tr__disk_write_back(disk);
    name = name_find_live(disk, path);
    if (name == NULL)
        return TR_ENOENT;
    operation = base_alloc(sizeof *operation);
    if (operation == NULL)
        return TR_ENOMEM;
    *operation = (struct tr__disk_operation){ .kind = OPERATION_REMOVE, .name = name };
    operation_add(disk, operation);
    link_set(&name->live, NULL);
    return 0;
}

static int sim_rename(void *data, const char *from, const char *to)
{
    struct tr__sim_disk *disk = data;
    struct tr__disk_operation *operation;
    struct tr__disk_name *name, *target;
    int rc;

    rc = check_path(from);
    if (rc == 0)
        rc = check_path(to);
    if (rc == 0)
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
    *operation = (struct tr__disk_operation){
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
    names_sync(disk, path);
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
