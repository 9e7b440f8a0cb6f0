/* SPDX-License-Identifier: Apache-2.0 */
/* check_store.c: compare the catalogue with the files. The files are listed first and the rows read
 * after: an object that is renamed and then committed in between is found with its row.
 *
 * A folder that does not exist counts as empty (a backup needs no incoming); one that cannot be opened
 * is an error, or the check would report every version as lost. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crypto/encoding.h"
#include "services/packs/check.h"
#include "services/packs/objects.h"

enum { NAME_SIZE = 256 };
_Static_assert(NAME_SIZE > NAME_MAX, "the name of any file fits");

/* A file of a listing. */
struct file {
    char name[NAME_SIZE];
    uint64_t size;
    bool is_wanted; /* a row names it */
};

struct files {
    struct buffer list; /* of struct file, by name */
    size_t count;
};

struct run {
    struct sql *sql;
    struct objects *folders;
    packs_check_fn on_violation;
    void *data;
    uint64_t violations;
    size_t question; /* the one that is asked */
    struct files objects, incoming;
};

__attribute__((format(printf, 4, 5))) static void check_report(
    struct run *run, const char *check, struct span subject, const char *format, ...)
{
    char text[256];
    va_list values;

    run->violations += strcmp(check, PACKS_CHECK_NOTE) != 0;
    if (run->on_violation == NULL)
        return;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    run->on_violation(run->data, check, subject, text);
}

/* ---- the database alone --------------------------------------------------------------------- */

/* Rows that must not exist. The first column is the subject; the second one stands between the two
 * parts of the text. */
static const struct {
    const char *check, *text, *text_end;
    struct sql_statement statement;
} questions[] = {
    { "active", "A published pack must have one active version, and any other pack none.", NULL,
        { .text =
                "SELECT p.name, p.state, (SELECT COUNT(*) FROM pack_versions v WHERE v.pack = p.id"
                " AND v.is_active = 1) AS n FROM packs p WHERE (p.state = 1) <> ((SELECT COUNT(*)"
                " FROM pack_versions v WHERE v.pack = p.id AND v.is_active = 1) = 1) ORDER BY"
                " p.name" } },
    { "active", "Its active version ", " is disabled, or was never published.",
        { .text =
                "SELECT p.name, v.version FROM pack_versions v JOIN packs p ON p.id = v.pack WHERE"
                " v.is_active = 1 AND (v.is_disabled = 1 OR v.published_ms IS NULL) ORDER BY "
                "p.name" } },
    { "active", "Its active version ", " is not the one that was published last.",
        { .text =
                "SELECT p.name, v.version FROM packs p JOIN pack_versions v ON v.pack = p.id AND"
                " v.is_active = 1 WHERE NOT EXISTS (SELECT 1 FROM pack_history h WHERE h.pack ="
                " p.id AND h.version = v.id AND h.place = (SELECT MAX(t.place) FROM pack_history t"
                " WHERE t.pack = p.id)) ORDER BY p.name" } },
    { "releases", "It is published, and its artifact ", " differs from what was pinned.",
        { .text =
                "SELECT r.name, p.name FROM pack_releases r JOIN pack_artifacts a ON a.release ="
                " r.id JOIN packs p ON p.id = a.pack WHERE r.state <> 0 AND NOT EXISTS (SELECT 1"
                " FROM pack_versions v WHERE v.pack = a.pack AND v.version = a.version AND v.sha256"
                " = a.sha256 AND v.size = a.size) ORDER BY r.name, p.name" } },
    { "releases", "It is a draft, and its artifact ", " is pinned.",
        { .text = "SELECT r.name, p.name FROM pack_releases r JOIN pack_artifacts a ON a.release ="
                  " r.id JOIN packs p ON p.id = a.pack WHERE r.state = 0 AND a.version IS NOT NULL"
                  " ORDER BY r.name, p.name" } },
};

/* Call `each` with every row of a statement, until it fails. */
static int check_each_row(struct run *run, const struct sql_statement *statement,
    int (*each)(struct run *run, const struct sql_unit *unit, uint32_t row))
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = TR_ENOMEM;

    if (unit != NULL) {
        sql_unit_step(unit, statement, SQL_ROWS_ANY);
        rc = sql_read_wait(run->sql, unit);
    }
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, 0); i++)
        rc = each(run, unit, i);
    sql_unit_destroy(unit);
    return rc;
}

static int report_row(struct run *run, const struct sql_unit *unit, uint32_t row)
{
    const char *end = questions[run->question].text_end;
    struct span what = end == NULL ? (struct span){ "", 0 } : sql_row_bytes(unit, 0, row, 1);

    check_report(run, questions[run->question].check, sql_row_bytes(unit, 0, row, 0), "%s%.*s%s",
        questions[run->question].text, (int)what.size, what.at, end == NULL ? "" : end);
    return 0;
}

static int ask_questions(struct run *run)
{
    int rc = 0;

    for (; rc == 0 && run->question < sizeof questions / sizeof questions[0]; run->question++)
        rc = check_each_row(run, &questions[run->question].statement, report_row);
    return rc;
}

/* ---- files ---------------------------------------------------------------------------------- */

static int add_file(void *data, const char *name, uint64_t size)
{
    struct files *files = data;
    struct file file = { .size = size };

    (void)snprintf(file.name, sizeof file.name, "%s", name);
    files->count++;
    return buffer_append(&files->list, &file, sizeof file);
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

static struct file *check_find_file(const struct files *files, struct span name)
{
    struct file wanted;

    if (name.size >= sizeof wanted.name || files->count == 0)
        return NULL;
    memcpy(wanted.name, name.at, name.size);
    wanted.name[name.size] = '\0';
    return bsearch(&wanted, files->list.bytes, files->count, sizeof wanted, compare_files);
}

static int list_folder(struct run *run, enum objects_folder folder, struct files *files)
{
    int rc = objects_each(run->folders, folder, add_file, files);

    if (files->count > 0)
        qsort(files->list.bytes, files->count, sizeof(struct file), compare_files);
    return rc;
}

/* ---- rows and their objects ----------------------------------------------------------------- */

SQL_STATEMENT(every_object,
    "SELECT v.sha256, v.size, p.name, v.version FROM pack_versions v JOIN packs p ON p.id = v.pack"
    " UNION ALL SELECT x.sha256, x.size, p.name, v.version FROM pack_variants x"
    " JOIN pack_versions v ON v.id = x.version JOIN packs p ON p.id = v.pack ORDER BY 3, 4");
SQL_STATEMENT(every_upload, "SELECT id, sha256 FROM pack_uploads ORDER BY id");

static void check_hex(struct span hash, char ret_hex[2 * CRYPTO_SHA256_BYTES + 1])
{
    size_t size = hash.size == CRYPTO_SHA256_BYTES ? hash.size : 0;

    ret_hex[crypto_hex_encode(hash.at, size, ret_hex)] = '\0';
}

static int check_object(struct run *run, const struct sql_unit *unit, uint32_t row)
{
    struct span name = sql_row_bytes(unit, 0, row, 2), version = sql_row_bytes(unit, 0, row, 3);
    int64_t size = sql_row_int(unit, 0, row, 1);
    char hex[2 * CRYPTO_SHA256_BYTES + 1] = "", subject[256];
    struct span what = { subject, 0 };
    struct file *file;
    bool was_wanted;
    int fd, rc;

    what.size = (size_t)snprintf(subject, sizeof subject, "%.*s %.*s", (int)name.size, name.at,
        (int)version.size, version.at);
    check_hex(sql_row_bytes(unit, 0, row, 0), hex);
    file = check_find_file(&run->objects, span_of(hex));
    if (file == NULL) {
        check_report(run, "rows", what, "Its object %s is missing.", hex);
        return 0;
    }
    was_wanted = file->is_wanted; /* and checked, for another version */
    file->is_wanted = true;
    if (file->size != (uint64_t)size) {
        check_report(run, "content", what, "Its row says %lld bytes, and its object has %llu.",
            (long long)size, (unsigned long long)file->size);
        return 0;
    }
    if (was_wanted)
        return 0;
    rc = objects_open_verified(run->folders, hex, file->size, &fd);
    if (rc == 0)
        close(fd);
    else if (rc != TR_ENOMEM)
        check_report(run, "content", what,
            rc == TR_EPROTO ? "The bytes of its object have another digest."
                            : "Its object cannot be read.");
    return rc == TR_ENOMEM ? rc : 0;
}

/* ---- uploads, and what is left over --------------------------------------------------------- */

static int check_upload(struct run *run, const struct sql_unit *unit, uint32_t row)
{
    struct span id = sql_row_bytes(unit, 0, row, 0);
    struct file *file = check_find_file(&run->incoming, id), *object;
    char hex[2 * CRYPTO_SHA256_BYTES + 1] = "";

    check_hex(sql_row_bytes(unit, 0, row, 1), hex);
    object = check_find_file(&run->objects, span_of(hex));
    if (file != NULL)
        file->is_wanted = true;
    if (object != NULL) /* complete: its version is not committed yet */
        object->is_wanted = true;
    if (file == NULL && object == NULL)
        check_report(run, PACKS_CHECK_NOTE, id,
            "This upload has no file; the next start of the server removes it.");
    return 0;
}

static void check_left_over(struct run *run, const struct files *files, const char *text)
{
    const struct file *list = (const struct file *)(const void *)files->list.bytes;

    for (size_t i = 0; i < files->count; i++)
        if (!list[i].is_wanted)
            check_report(run, PACKS_CHECK_NOTE, span_of(list[i].name), "%s", text);
}

/* ---- all of it ------------------------------------------------------------------------------ */

int packs_check(struct sql *sql, const char *data_path, packs_check_fn on_violation, void *data,
    uint64_t *ret_violations)
{
    struct run run = { .sql = sql, .on_violation = on_violation, .data = data };
    char why[256];
    int rc = objects_open(data_path, false, why, sizeof why, &run.folders);

    if (rc == 0)
        rc = list_folder(&run, OBJECTS_COMPLETE, &run.objects);
    if (rc == 0)
        rc = list_folder(&run, OBJECTS_INCOMING, &run.incoming);
    if (rc == 0)
        rc = ask_questions(&run);
    if (rc == 0)
        rc = check_each_row(&run, &every_object, check_object);
    if (rc == 0)
        rc = check_each_row(&run, &every_upload, check_upload);
    if (rc == 0) {
        check_left_over(&run, &run.objects,
            "No version and no upload has this object; it may be deleted while no server runs.");
        check_left_over(&run, &run.incoming,
            "This file belongs to no upload; the next start of the server removes it.");
        *ret_violations = run.violations;
    }
    buffer_free(&run.objects.list);
    buffer_free(&run.incoming.list);
    objects_close(&run.folders);
    return rc;
}
