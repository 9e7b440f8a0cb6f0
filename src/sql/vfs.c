/* SPDX-License-Identifier: Apache-2.0 */
/* vfs.c: SQLite's files on struct tr_disk.
 *
 * WAL needs memory that all connections of a database share. The alternative, exclusive locking
 * mode, allows one connection only, and would not test the readers, the checkpoint beside the
 * writer and the recovery by the first connection that production uses. So each file has a node
 * with shared regions on the heap and a table of locks, which the connections of this process
 * share. It is lost with the process, as the real memory may be: SQLite rebuilds it from the log.
 *
 *   sqlite3_file ──▶ node (by path): locks, shared regions ◀── sqlite3_file of another connection
 *
 * There are no memory maps and no temporary files on disk (temp_store is memory). The VFS declares
 * powersafe overwrite: the disk tears writes at sectors, but never changes bytes that were not
 * written. */
#include "sql/vfs.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { NAME_BYTES = 48, PATH_BYTES_MAX = 1024, REGIONS_MAX = 256 };

struct node {
    struct node *next;
    struct sql_vfs *vfs;
    uint32_t files;
    uint32_t shared_count; /* files with SHARED or more */
    const void *reserved;  /* the file with RESERVED or more */
    const void *pending;   /* the file with PENDING or EXCLUSIVE: no other file gets SHARED */
    void *regions[REGIONS_MAX];
    uint32_t region_count;
    uint32_t region_size;
    uint32_t slot_shared[SQLITE_SHM_NLOCK];
    const void *slot_exclusive[SQLITE_SHM_NLOCK];
    char path[];
};

struct sql_vfs {
    sqlite3_vfs vfs;
    const struct tr_env *env;
    struct node *nodes;
    bool is_dead;
    char name[NAME_BYTES];
};

struct file {
    sqlite3_file base;
    struct node *node;
    struct tr_file *file;
    int level;   /* SQLITE_LOCK_… */
    bool is_new; /* the name may not be durable yet */
    bool is_deleted_on_close;
    bool has_shared_memory;
    bool slot_shared[SQLITE_SHM_NLOCK];
};

static struct file *file_of(sqlite3_file *file)
{
    return (struct file *)file;
}

static const struct tr_disk *disk_of(const struct file *file)
{
    return file->node->vfs->env->disk;
}

static bool vfs_is_dead(const struct file *file)
{
    return file->node->vfs->is_dead;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct node *node_ref(struct sql_vfs *vfs, const char *path)
{
    size_t size = strlen(path) + 1;
    struct node *node = vfs->nodes;

    while (node != NULL && strcmp(node->path, path) != 0)
        node = node->next;
    if (node == NULL) {
        node = base_calloc(sizeof *node + size);
        if (node == NULL)
            return NULL;
        memcpy(node->path, path, size);
        node->vfs = vfs;
        node->next = vfs->nodes;
        vfs->nodes = node;
    }
    node->files++;
    return node;
}

static void regions_free(struct node *node)
{
    for (uint32_t i = 0; i < node->region_count; i++)
        base_free(node->regions[i]);
    node->region_count = 0;
}

static void node_unref(struct node *node)
{
    struct node **link = &node->vfs->nodes;

    tr_assert(node->files > 0);
    if (--node->files > 0)
        return;
    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    regions_free(node);
    base_free(node);
}

/* ---- one file -------------------------------------------------------------------------------- */

static int file_unlock(sqlite3_file *base, int level);
static int file_shm_unmap(sqlite3_file *base, int is_delete);

static int file_close(sqlite3_file *base)
{
    struct file *file = file_of(base);
    const struct tr_disk *disk = disk_of(file);
    struct sql_vfs *vfs = file->node->vfs;

    file_unlock(base, SQLITE_LOCK_NONE);
    if (file->has_shared_memory)
        file_shm_unmap(base, 0);
    (void)disk->close(file->file);
    if (file->is_deleted_on_close && !vfs->is_dead)
        (void)disk->remove(vfs->env->disk_data, file->node->path);
    node_unref(file->node);
    return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *bytes, int size, sqlite3_int64 offset)
{
    struct file *file = file_of(base);
    size_t got = 0;
    int rc;

    if (vfs_is_dead(file))
        return SQLITE_IOERR_READ;
    rc = disk_of(file)->read(file->file, (uint64_t)offset, bytes, (size_t)size, &got);
    if (rc == TR_ENOMEM)
        return SQLITE_IOERR_NOMEM;
    if (rc < 0)
        return SQLITE_IOERR_READ;
    if (got == (size_t)size)
        return SQLITE_OK;
    memset((char *)bytes + got, 0, (size_t)size - got); /* required by SQLite */
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *bytes, int size, sqlite3_int64 offset)
{
    struct file *file = file_of(base);
    int rc;

    if (vfs_is_dead(file))
        return SQLITE_IOERR_WRITE;
    rc = disk_of(file)->write(file->file, (uint64_t)offset, bytes, (size_t)size);
    if (rc == 0)
        return SQLITE_OK;
    return rc == TR_ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct file *file = file_of(base);

    if (vfs_is_dead(file) || disk_of(file)->truncate(file->file, (uint64_t)size) < 0)
        return SQLITE_IOERR_TRUNCATE;
    return SQLITE_OK;
}

static int file_sync(sqlite3_file *base, int flags)
{
    struct file *file = file_of(base);
    const struct tr_env *env = file->node->vfs->env;

    (void)flags;
    if (vfs_is_dead(file) || env->disk->sync(file->file) < 0)
        return SQLITE_IOERR_FSYNC;
    if (file->is_new) {
        if (env->disk->sync_dir(env->disk_data, file->node->path) < 0)
            return SQLITE_IOERR_DIR_FSYNC;
        file->is_new = false;
    }
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *ret_size)
{
    struct file *file = file_of(base);
    uint64_t size;

    if (vfs_is_dead(file) || disk_of(file)->size(file->file, &size) < 0)
        return SQLITE_IOERR_FSTAT;
    *ret_size = (sqlite3_int64)size;
    return SQLITE_OK;
}

/* ---- locks of the database file -------------------------------------------------------------- */

static int file_lock(sqlite3_file *base, int level)
{
    struct file *file = file_of(base);
    struct node *node = file->node;

    if (file->level >= level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (node->pending != NULL)
            return SQLITE_BUSY;
        node->shared_count++;
        file->level = level;
        return SQLITE_OK;
    }
    tr_assert(file->level >= SQLITE_LOCK_SHARED);
    if (node->reserved != NULL && node->reserved != file)
        return SQLITE_BUSY;
    if (level == SQLITE_LOCK_RESERVED) {
        node->reserved = file;
        file->level = level;
        return SQLITE_OK;
    }
    if (node->pending != NULL && node->pending != file)
        return SQLITE_BUSY;
    node->reserved = node->pending = file;
    file->level = SQLITE_LOCK_PENDING;
    if (level == SQLITE_LOCK_EXCLUSIVE) {
        if (node->shared_count > 1)
            return SQLITE_BUSY;
        file->level = level;
    }
    return SQLITE_OK;
}

static int file_unlock(sqlite3_file *base, int level)
{
    struct file *file = file_of(base);
    struct node *node = file->node;

    if (file->level <= level)
        return SQLITE_OK;
    if (node->reserved == file)
        node->reserved = NULL;
    if (node->pending == file)
        node->pending = NULL;
    if (level == SQLITE_LOCK_NONE) {
        tr_assert(node->shared_count > 0);
        node->shared_count--;
    }
    file->level = level;
    return SQLITE_OK;
}

static int file_is_reserved(sqlite3_file *base, int *ret_is_reserved)
{
    *ret_is_reserved = file_of(base)->node->reserved != NULL;
    return SQLITE_OK;
}

/* ---- shared memory --------------------------------------------------------------------------- */

static int file_shm_map(
    sqlite3_file *base, int region, int size, int is_write, void volatile **ret_region)
{
    struct file *file = file_of(base);
    struct node *node = file->node;

    *ret_region = NULL;
    if (vfs_is_dead(file))
        return SQLITE_IOERR_SHMMAP;
    file->has_shared_memory = true;
    if (region >= REGIONS_MAX)
        return SQLITE_IOERR_SHMSIZE;
    tr_assert(node->region_count == 0 || node->region_size == (uint32_t)size);
    node->region_size = (uint32_t)size;
    while (is_write && node->region_count <= (uint32_t)region) {
        void *memory = base_calloc((size_t)size);

        if (memory == NULL)
            return SQLITE_IOERR_NOMEM;
        node->regions[node->region_count++] = memory;
    }
    if ((uint32_t)region < node->region_count)
        *ret_region = node->regions[region];
    return SQLITE_OK;
}

static int slot_lock(struct file *file, int slot, bool is_shared)
{
    struct node *node = file->node;

    if (is_shared) {
        if (file->slot_shared[slot])
            return SQLITE_OK;
        if (node->slot_exclusive[slot] != NULL)
            return SQLITE_BUSY;
        file->slot_shared[slot] = true;
        node->slot_shared[slot]++;
        return SQLITE_OK;
    }
    if (node->slot_exclusive[slot] == file)
        return SQLITE_OK;
    if (node->slot_exclusive[slot] != NULL || node->slot_shared[slot] > 0)
        return SQLITE_BUSY;
    node->slot_exclusive[slot] = file;
    return SQLITE_OK;
}

static void slot_unlock(struct file *file, int slot)
{
    struct node *node = file->node;

    if (file->slot_shared[slot]) {
        file->slot_shared[slot] = false;
        node->slot_shared[slot]--;
    }
    if (node->slot_exclusive[slot] == file)
        node->slot_exclusive[slot] = NULL;
}

static int file_shm_lock(sqlite3_file *base, int first, int count, int flags)
{
    struct file *file = file_of(base);
    int rc = SQLITE_OK, i;

    tr_assert(first >= 0 && first + count <= SQLITE_SHM_NLOCK);
    if (flags & SQLITE_SHM_UNLOCK) {
        for (i = first; i < first + count; i++)
            slot_unlock(file, i);
        return SQLITE_OK;
    }
    if (vfs_is_dead(file))
        return SQLITE_IOERR_SHMLOCK;
    for (i = first; i < first + count && rc == SQLITE_OK; i++)
        rc = slot_lock(file, i, flags & SQLITE_SHM_SHARED);
    if (rc != SQLITE_OK)
        for (i -= 2; i >= first; i--) /* i - 1 is the one that was refused */
            slot_unlock(file, i);
    return rc;
}

static void file_shm_barrier(sqlite3_file *base)
{
    (void)base; /* there is only one thread */
}

static int file_shm_unmap(sqlite3_file *base, int is_delete)
{
    struct file *file = file_of(base);

    for (int i = 0; i < SQLITE_SHM_NLOCK; i++)
        slot_unlock(file, i);
    file->has_shared_memory = false;
    if (is_delete)
        regions_free(file->node);
    return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int op, void *argument)
{
    (void)base;
    (void)op;
    (void)argument;
    return SQLITE_NOTFOUND;
}

static int file_sector_size(sqlite3_file *base)
{
    (void)base;
    return 512;
}

static int file_characteristics(sqlite3_file *base)
{
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_is_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
    .xShmMap = file_shm_map,
    .xShmLock = file_shm_lock,
    .xShmBarrier = file_shm_barrier,
    .xShmUnmap = file_shm_unmap,
};

/* ---- the file system ------------------------------------------------------------------------- */

static struct sql_vfs *vfs_of(sqlite3_vfs *vfs)
{
    return vfs->pAppData;
}

static int vfs_open(
    sqlite3_vfs *base, const char *name, sqlite3_file *ret_file, int flags, int *ret_flags)
{
    struct sql_vfs *vfs = vfs_of(base);
    const struct tr_env *env = vfs->env;
    struct file *file = file_of(ret_file);
    unsigned how = TR_OPEN_READ;
    int rc;

    memset(file, 0, sizeof *file);
    if (name == NULL || vfs->is_dead)
        return SQLITE_CANTOPEN;
    if (flags & SQLITE_OPEN_READWRITE)
        how |= TR_OPEN_WRITE;
    if (flags & SQLITE_OPEN_CREATE)
        how |= TR_OPEN_CREATE;
    if (flags & SQLITE_OPEN_EXCLUSIVE)
        how |= TR_OPEN_EXCLUSIVE;
    file->node = node_ref(vfs, name);
    if (file->node == NULL)
        return SQLITE_NOMEM;
    rc = env->disk->open(env->disk_data, name, how, &file->file);
    if (rc < 0) {
        node_unref(file->node);
        return rc == TR_ENOMEM ? SQLITE_NOMEM : rc == TR_ENOSPC ? SQLITE_FULL : SQLITE_CANTOPEN;
    }
    /* An earlier connection may have created the file and closed it without a sync. */
    file->is_new = flags & SQLITE_OPEN_CREATE;
    file->is_deleted_on_close = flags & SQLITE_OPEN_DELETEONCLOSE;
    file->base.pMethods = &methods;
    if (ret_flags != NULL)
        *ret_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *base, const char *name, int is_durable)
{
    struct sql_vfs *vfs = vfs_of(base);
    const struct tr_env *env = vfs->env;
    int rc;

    if (vfs->is_dead)
        return SQLITE_IOERR_DELETE;
    rc = env->disk->remove(env->disk_data, name);
    if (rc == TR_ENOENT)
        return SQLITE_IOERR_DELETE_NOENT;
    if (rc < 0)
        return SQLITE_IOERR_DELETE;
    if (is_durable && env->disk->sync_dir(env->disk_data, name) < 0)
        return SQLITE_IOERR_DIR_FSYNC;
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *base, const char *name, int flags, int *ret_is_there)
{
    struct sql_vfs *vfs = vfs_of(base);

    (void)flags;
    if (vfs->is_dead || vfs->env->disk->exists(vfs->env->disk_data, name, ret_is_there) < 0)
        return SQLITE_IOERR_ACCESS;
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *base, const char *name, int size, char *ret_name)
{
    (void)base;
    if (strlen(name) >= (size_t)size)
        return SQLITE_CANTOPEN;
    snprintf(ret_name, (size_t)size, "%s", name);
    return SQLITE_OK;
}

static int vfs_randomness(sqlite3_vfs *base, int size, char *ret_bytes)
{
    const struct tr_env *env = vfs_of(base)->env;

    for (int i = 0; i < size; i++)
        ret_bytes[i] = (char)env->random(env->data);
    return size;
}

static int vfs_pause(sqlite3_vfs *base, int microseconds)
{
    (void)base;
    return microseconds; /* there is only one thread: waiting would change nothing */
}

static int vfs_time(sqlite3_vfs *base, sqlite3_int64 *ret_milliseconds)
{
    const struct tr_env *env = vfs_of(base)->env;

    /* Milliseconds since noon of 24 November 4714 BC. */
    *ret_milliseconds =
        (sqlite3_int64)(env->wall_ns(env->data) / 1000000) + INT64_C(24405875) * 8640000;
    return SQLITE_OK;
}

static int vfs_time_days(sqlite3_vfs *base, double *ret_days)
{
    sqlite3_int64 milliseconds;
    int rc = vfs_time(base, &milliseconds);

    *ret_days = (double)milliseconds / 86400000.0;
    return rc;
}

static int vfs_last_error(sqlite3_vfs *base, int size, char *text)
{
    (void)base;
    (void)size;
    (void)text;
    return 0;
}

int sql_vfs_create(const struct tr_env *env, struct sql_vfs **ret_vfs)
{
    struct sql_vfs *vfs = base_calloc(sizeof *vfs);

    if (vfs == NULL)
        return TR_ENOMEM;
    vfs->env = env;
    snprintf(vfs->name, sizeof vfs->name, "troupe-disk-%p", (void *)vfs);
    vfs->vfs = (sqlite3_vfs){
        .iVersion = 2,
        .szOsFile = sizeof(struct file),
        .mxPathname = PATH_BYTES_MAX,
        .zName = vfs->name,
        .pAppData = vfs,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_pause,
        .xCurrentTime = vfs_time_days,
        .xCurrentTimeInt64 = vfs_time,
        .xGetLastError = vfs_last_error,
    };
    if (sqlite3_vfs_register(&vfs->vfs, 0) != SQLITE_OK) {
        base_free(vfs);
        return TR_ENOMEM;
    }
    *ret_vfs = vfs;
    return 0;
}

void sql_vfs_destroy(struct sql_vfs **vfs)
{
    if (*vfs == NULL)
        return;
    tr_assert((*vfs)->nodes == NULL);
    sqlite3_vfs_unregister(&(*vfs)->vfs);
    base_free(*vfs);
    *vfs = NULL;
}

const char *sql_vfs_name(const struct sql_vfs *vfs)
{
    return vfs->name;
}

void sql_vfs_die(struct sql_vfs *vfs)
{
    vfs->is_dead = true;
}
