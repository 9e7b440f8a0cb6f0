/* SPDX-License-Identifier: Apache-2.0 */
/* faulty.h: the machine's own SQLite VFS with a counter before every call that may fail. The n-th
 * call fails as configured, once or from then on. */
#ifndef TEST_UNIT_SQL_FAULTY_H
#define TEST_UNIT_SQL_FAULTY_H

#include <malloc.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "check.h"

enum faulty_kind {
    FAULTY_ANY,   /* every call: EIO */
    FAULTY_SPACE, /* calls that need room: the disk is full */
    FAULTY_SYNC,  /* syncs only: EIO */
};

static struct {
    sqlite3_vfs vfs;
    sqlite3_vfs *real;
    _Atomic enum faulty_kind kind; /* atomic: a checkpoint may be under way */
    _Atomic uint64_t first, repeat, calls;
    bool has_no_shared_memory;
} faulty;

struct faulty_file {
    sqlite3_file base;
    sqlite3_file *real;
};

static inline sqlite3_file *faulty_real(sqlite3_file *file)
{
    return ((struct faulty_file *)(void *)file)->real;
}

static inline void faulty_set(enum faulty_kind kind, uint64_t first, uint64_t repeat)
{
    faulty.kind = kind;
    faulty.calls = 0;
    faulty.repeat = repeat;
    faulty.first = first;
}

enum faulty_call { CALL_READ, CALL_WRITE, CALL_SYNC, CALL_OTHER };

static inline bool faulty_hit(enum faulty_call call)
{
    uint64_t n;

    if (faulty.first == 0)
        return false;
    if ((faulty.kind == FAULTY_SPACE && call != CALL_WRITE) ||
        (faulty.kind == FAULTY_SYNC && call != CALL_SYNC))
        return false;
    n = ++faulty.calls;
    return n >= faulty.first && n - faulty.first < faulty.repeat;
}

static inline int faulty_close(sqlite3_file *file)
{
    return faulty_real(file)->pMethods->xClose(faulty_real(file));
}
static inline int faulty_read(sqlite3_file *file, void *bytes, int size, sqlite3_int64 offset)
{
    if (faulty_hit(CALL_READ))
        return SQLITE_IOERR_READ;
    return faulty_real(file)->pMethods->xRead(faulty_real(file), bytes, size, offset);
}
static inline int faulty_write(
    sqlite3_file *file, const void *bytes, int size, sqlite3_int64 offset)
{
    if (faulty_hit(CALL_WRITE))
        return faulty.kind == FAULTY_SPACE ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    return faulty_real(file)->pMethods->xWrite(faulty_real(file), bytes, size, offset);
}
static inline int faulty_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    if (faulty_hit(CALL_OTHER))
        return SQLITE_IOERR_TRUNCATE;
    return faulty_real(file)->pMethods->xTruncate(faulty_real(file), size);
}
static inline int faulty_sync(sqlite3_file *file, int flags)
{
    if (faulty_hit(CALL_SYNC))
        return SQLITE_IOERR_FSYNC;
    return faulty_real(file)->pMethods->xSync(faulty_real(file), flags);
}
static inline int faulty_size(sqlite3_file *file, sqlite3_int64 *ret_size)
{
    if (faulty_hit(CALL_OTHER))
        return SQLITE_IOERR_FSTAT;
    return faulty_real(file)->pMethods->xFileSize(faulty_real(file), ret_size);
}
static inline int faulty_lock(sqlite3_file *file, int level)
{
    return faulty_real(file)->pMethods->xLock(faulty_real(file), level);
}
static inline int faulty_unlock(sqlite3_file *file, int level)
{
    return faulty_real(file)->pMethods->xUnlock(faulty_real(file), level);
}
static inline int faulty_reserved(sqlite3_file *file, int *ret_is)
{
    return faulty_real(file)->pMethods->xCheckReservedLock(faulty_real(file), ret_is);
}
static inline int faulty_control(sqlite3_file *file, int op, void *argument)
{
    return faulty_real(file)->pMethods->xFileControl(faulty_real(file), op, argument);
}
static inline int faulty_sector(sqlite3_file *file)
{
    return faulty_real(file)->pMethods->xSectorSize(faulty_real(file));
}
static inline int faulty_device(sqlite3_file *file)
{
    return faulty_real(file)->pMethods->xDeviceCharacteristics(faulty_real(file));
}
static inline int faulty_shm_map(
    sqlite3_file *file, int region, int size, int is_write, void volatile **ret_region)
{
    if (faulty_hit(is_write ? CALL_WRITE : CALL_OTHER))
        return faulty.kind == FAULTY_SPACE ? SQLITE_IOERR_SHMSIZE : SQLITE_IOERR_SHMMAP;
    return faulty_real(file)->pMethods->xShmMap(
        faulty_real(file), region, size, is_write, ret_region);
}
static inline int faulty_shm_lock(sqlite3_file *file, int first, int count, int flags)
{
    return faulty_real(file)->pMethods->xShmLock(faulty_real(file), first, count, flags);
}
static inline void faulty_shm_barrier(sqlite3_file *file)
{
    faulty_real(file)->pMethods->xShmBarrier(faulty_real(file));
}
static inline int faulty_shm_unmap(sqlite3_file *file, int is_delete)
{
    return faulty_real(file)->pMethods->xShmUnmap(faulty_real(file), is_delete);
}

static const sqlite3_io_methods faulty_methods[2] = { { .iVersion = 1,
                                                          .xClose = faulty_close,
                                                          .xRead = faulty_read,
                                                          .xWrite = faulty_write,
                                                          .xTruncate = faulty_truncate,
                                                          .xSync = faulty_sync,
                                                          .xFileSize = faulty_size,
                                                          .xLock = faulty_lock,
                                                          .xUnlock = faulty_unlock,
                                                          .xCheckReservedLock = faulty_reserved,
                                                          .xFileControl = faulty_control,
                                                          .xSectorSize = faulty_sector,
                                                          .xDeviceCharacteristics = faulty_device },
    { .iVersion = 2,
        .xClose = faulty_close,
        .xRead = faulty_read,
        .xWrite = faulty_write,
        .xTruncate = faulty_truncate,
        .xSync = faulty_sync,
        .xFileSize = faulty_size,
        .xLock = faulty_lock,
        .xUnlock = faulty_unlock,
        .xCheckReservedLock = faulty_reserved,
        .xFileControl = faulty_control,
        .xSectorSize = faulty_sector,
        .xDeviceCharacteristics = faulty_device,
        .xShmMap = faulty_shm_map,
        .xShmLock = faulty_shm_lock,
        .xShmBarrier = faulty_shm_barrier,
        .xShmUnmap = faulty_shm_unmap } };

static inline int faulty_open(
    sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *ret_flags)
{
    struct faulty_file *f = (struct faulty_file *)(void *)file;
    int rc;

    (void)vfs;
    f->base.pMethods = NULL;
    f->real = (sqlite3_file *)(void *)(f + 1);
    if (faulty_hit(CALL_OTHER))
        return SQLITE_CANTOPEN;
    rc = faulty.real->xOpen(faulty.real, name, f->real, flags, ret_flags);
    if (rc == SQLITE_OK)
        f->base.pMethods = &faulty_methods[faulty.has_no_shared_memory ? 0 : 1];
    return rc;
}
static inline int faulty_delete(sqlite3_vfs *vfs, const char *name, int is_durable)
{
    (void)vfs;
    if (faulty_hit(CALL_OTHER))
        return SQLITE_IOERR_DELETE;
    return faulty.real->xDelete(faulty.real, name, is_durable);
}
static inline int faulty_access(sqlite3_vfs *vfs, const char *name, int flags, int *ret_is)
{
    (void)vfs;
    if (faulty_hit(CALL_OTHER))
        return SQLITE_IOERR_ACCESS;
    return faulty.real->xAccess(faulty.real, name, flags, ret_is);
}

/* Open every database through it from now on. */
static inline void faulty_begin(void)
{
    faulty.real = sqlite3_vfs_find(NULL);
    CHECK(faulty.real != NULL);
    faulty.vfs = *faulty.real;
    faulty.vfs.zName = "faulty";
    faulty.vfs.pNext = NULL;
    faulty.vfs.szOsFile = (int)sizeof(struct faulty_file) + faulty.real->szOsFile;
    faulty.vfs.xOpen = faulty_open;
    faulty.vfs.xDelete = faulty_delete;
    faulty.vfs.xAccess = faulty_access;
    CHECK_EQ_INT(sqlite3_vfs_register(&faulty.vfs, 1), SQLITE_OK);
}

/* Count SQLite's own allocations too. Call it before the first use of SQLite. */
static inline void *faulty_malloc(int size)
{
    return base_alloc((size_t)size);
}
static inline void *faulty_realloc(void *memory, int size)
{
    return base_realloc(memory, (size_t)size);
}
static inline int faulty_malloc_size(void *memory)
{
    return memory == NULL ? 0 : (int)malloc_usable_size(memory);
}
static inline int faulty_roundup(int size)
{
    return (size + 7) & ~7;
}
static inline int faulty_memory_init(void *data)
{
    (void)data;
    return SQLITE_OK;
}
static inline void faulty_memory_end(void *data)
{
    (void)data;
}
static inline void faulty_memory(void)
{
    static const sqlite3_mem_methods methods = { faulty_malloc, base_free, faulty_realloc,
        faulty_malloc_size, faulty_roundup, faulty_memory_init, faulty_memory_end, NULL };

    CHECK_EQ_INT(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
}

#endif
