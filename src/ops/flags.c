/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/flags.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/config.h"

enum { STORE_BYTES_MAX = 256 * 1024, NAME_SIZE_MAX = 64 };
#define TEMPORARY_SUFFIX ".new"

static struct flag *_Atomic first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* changes and the store */
static struct {
    const struct tr_env *env;
    char *path;
    char *temporary_path;
} store;

/* ---- reading --------------------------------------------------------------------------------- */

/* FNV-1a; flag_place then applies the finisher of MurmurHash3, so that every bit of a key moves the place.
 */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint32_t flag_place(const struct flag *flag, const void *key, size_t size)
{
    /* The name's terminator separates it from the key: "a" + "bc" differs from "ab" + "c". */
    uint64_t hash = hash_bytes(UINT64_C(0xcbf29ce484222325), flag->name, strlen(flag->name) + 1);

    hash = hash_bytes(hash, key, size);
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    hash ^= hash >> 33;
    return (uint32_t)(hash % FLAG_ALL);
}

bool flag_is_on(const struct flag *flag, const void *key, size_t size)
{
    uint32_t parts = atomic_load_explicit(&flag->parts, memory_order_relaxed);

    if (parts == 0 || parts == FLAG_ALL)
        return parts == FLAG_ALL;
    return flag_place(flag, key, size) < parts;
}

/* ---- the list -------------------------------------------------------------------------------- */

struct flag *flags_first(void)
{
    return atomic_load(&first);
}

struct flag *flags_find(const char *name)
{
    for (struct flag *flag = flags_first(); flag != NULL; flag = flag->next)
        if (strcmp(flag->name, name) == 0)
            return flag;
    return NULL;
}

void flags_register(struct flag *flags, size_t count)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (flags[i].is_listed)
            continue;
        tr_assert(flags[i].initial <= FLAG_ALL);
        tr_assert(strlen(flags[i].name) < NAME_SIZE_MAX);
        tr_assert(flags_find(flags[i].name) == NULL);
        atomic_store(&flags[i].parts, flags[i].initial);
        flags[i].previous = flags[i].initial;
        flags[i].is_listed = true;
        flags[i].next = atomic_load(&first);
        atomic_store(&first, &flags[i]);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- percent --------------------------------------------------------------------------------- */

int flags_parse_parts(const char *text, uint32_t *ret_parts)
{
    static const struct config_setting any_part = { .key = "part", .kind = CONFIG_PERCENT };
    uint64_t number;
    char why[128];
    int rc;

    rc = config_parse_value(&any_part, text, &number, why, sizeof why);
    if (rc == 0)
        *ret_parts = (uint32_t)number;
    return rc;
}

void flags_put_parts(struct buffer *out, uint32_t parts)
{
    buffer_format(out, "%u", parts / 100);
    if (parts % 100 != 0)
        buffer_format(out, ".%02u", parts % 100);
    buffer_text(out, "%");
}

/* ---- the store: lines "name parts previous" ------------------------------------------------- */

static int write_temporary(const struct buffer *text)
{
    const struct tr_disk *disk = store.env->disk;
    struct tr_file *file;
    int rc;
    int close_rc;

    rc = disk->open(store.env->disk_data, store.temporary_path,
        TR_OPEN_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE, &file);
    if (rc != 0)
        return rc;
    rc = disk->write(file, 0, text->bytes, text->size);
    if (rc == 0)
        rc = disk->sync(file);
    close_rc = disk->close(file);
    return rc != 0 ? rc : close_rc;
}

static int save_locked(void)
{
    struct buffer text = { .size_max = STORE_BYTES_MAX };
    int rc;

    if (store.env == NULL)
        return 0;
    for (struct flag *flag = flags_first(); flag != NULL; flag = flag->next) {
        uint32_t parts = atomic_load_explicit(&flag->parts, memory_order_relaxed);

        if (parts == flag->initial && flag->previous == flag->initial)
            continue;
        buffer_format(&text, "%s ", flag->name);
        flags_put_parts(&text, parts);
        buffer_text(&text, " ");
        flags_put_parts(&text, flag->previous);
        buffer_text(&text, "\n");
    }
    rc = text.failed;
    if (rc == 0)
        rc = write_temporary(&text);
    if (rc == 0)
        rc = store.env->disk->rename(store.env->disk_data, store.temporary_path, store.path);
    if (rc == 0)
        rc = store.env->disk->sync_dir(store.env->disk_data, store.path);
    buffer_free(&text);
    return rc;
}

static int load_line(char *line)
{
    char *rest = line;
    const char *name = strsep(&rest, " ");
    const char *parts_text = strsep(&rest, " ");
    struct flag *flag;
    uint32_t parts;
    uint32_t previous;

    if (parts_text == NULL || rest == NULL || flags_parse_parts(parts_text, &parts) != 0 ||
        flags_parse_parts(rest, &previous) != 0)
        return TR_EINVAL;
    flag = flags_find(name);
    if (flag != NULL) { /* else a retired flag: the next write drops it */
        atomic_store_explicit(&flag->parts, parts, memory_order_relaxed);
        flag->previous = previous;
    }
    return 0;
}

static int load_text(char *text, char *why, size_t why_size)
{
    char *rest = text;
    unsigned line = 0;

    for (char *at = strsep(&rest, "\n"); at != NULL; at = strsep(&rest, "\n")) {
        line++;
        if (at[0] != '\0' && load_line(at) != 0) {
            snprintf(why, why_size,
                "%s:%u: The line must be `name 10%% 0%%`; remove the file to reset all flags.",
                store.path, line);
            return TR_EINVAL;
        }
    }
    return 0;
}

static int load_locked(char *why, size_t why_size)
{
    const struct tr_disk *disk = store.env->disk;
    struct tr_file *file;
    uint64_t size;
    size_t got = 0;
    char *text = NULL;
    int rc;

    rc = disk->open(store.env->disk_data, store.path, TR_OPEN_READ, &file);
    if (rc == TR_ENOENT)
        return 0;
    if (rc == 0) {
        rc = disk->size(file, &size);
        if (rc == 0 && size > STORE_BYTES_MAX)
            rc = TR_ETOOBIG;
        if (rc == 0) {
            text = base_calloc((size_t)size + 1);
            rc = text == NULL ? TR_ENOMEM : disk->read(file, 0, text, (size_t)size, &got);
        }
        disk->close(file);
    }
    if (rc != 0) {
        snprintf(why, why_size, "%s could not be read: %s.", store.path, tr_error_text(rc));
    } else {
        text[got] = '\0';
        rc = load_text(text, why, why_size);
    }
    base_free(text);
    return rc;
}

static void close_locked(void)
{
    base_free(store.path);
    base_free(store.temporary_path);
    store.path = NULL;
    store.temporary_path = NULL;
    store.env = NULL;
}

int flags_open(const struct tr_env *env, const char *path, char *why, size_t why_size)
{
    size_t size = strlen(path) + sizeof TEMPORARY_SUFFIX;
    int rc;

    pthread_mutex_lock(&lock);
    tr_assert(store.env == NULL);
    store.env = env;
    store.path = base_strdup(path);
    store.temporary_path = base_alloc(size);
    if (store.path == NULL || store.temporary_path == NULL) {
        snprintf(why, why_size, "%s could not be read: out of memory.", path);
        rc = TR_ENOMEM;
    } else {
        snprintf(store.temporary_path, size, "%s%s", path, TEMPORARY_SUFFIX);
        rc = load_locked(why, why_size);
    }
    if (rc != 0)
        close_locked();
    pthread_mutex_unlock(&lock);
    return rc;
}

void flags_close(void)
{
    pthread_mutex_lock(&lock);
    close_locked();
    pthread_mutex_unlock(&lock);
}

/* ---- changing -------------------------------------------------------------------------------- */

int flags_set(const char *name, uint32_t parts)
{
    struct flag *flag = flags_find(name);
    int rc;

    if (flag == NULL)
        return TR_ENOENT;
    if (parts > FLAG_ALL)
        return TR_EINVAL;
    pthread_mutex_lock(&lock);
    flag->previous = atomic_exchange_explicit(&flag->parts, parts, memory_order_relaxed);
    rc = save_locked();
    pthread_mutex_unlock(&lock);
    return rc;
}

int flags_rollback(const char *name)
{
    struct flag *flag = flags_find(name);
    int rc;

    if (flag == NULL)
        return TR_ENOENT;
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&flag->parts, flag->previous, memory_order_relaxed);
    flag->previous = flag->initial;
    rc = save_locked();
    pthread_mutex_unlock(&lock);
    return rc;
}
