/* SPDX-License-Identifier: Apache-2.0 */
/* upload_start.c: load the uploads from rows and files, and remove the remains of a crash. */
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "services/packs/upload_private.h"
#include "support/log.h"

/* Find out how many bytes have arrived. Returns TR_ENOENT for an upload that cannot be finished. */
static int look_at_file(struct uploads *uploads, struct upload *upload)
{
    char name[OBJECT_NAME_CHARS + 1];
    struct file_identity identity;
    int64_t modified_ns;
    int fd, rc = upload_file_look(&upload->file, &modified_ns);

    if (rc == TR_ENOENT) { /* the process may have ended after the rename */
        object_name(upload->facts.sha256, name);
        rc = objects_open_file(uploads->packs->objects, name, &fd, &identity);
        if (rc != 0)
            return rc;
        (void)close(fd);
        if (identity.size != upload->facts.size)
            return TR_ENOENT;
        upload->offset = identity.size;
        upload->touched_ms = packs_now_ms(uploads->packs);
        return 0;
    }
    if (rc != 0)
        return rc;
    upload->offset = upload->file.offset;
    upload->touched_ms = modified_ns / 1000000;
    if (upload->offset > upload->facts.size ||
        upload->touched_ms < packs_now_ms(uploads->packs) - INT64_C(1000) * UPLOAD_KEPT_S)
        return TR_ENOENT;
    return 0;
}

static int load_row(struct uploads *uploads, const struct sql_unit *unit, uint32_t row)
{
    struct sql_unit *removal;
    struct upload_facts facts;
    struct upload *upload;
    char id[UPLOAD_ID_CHARS + 1];
    int rc = TR_ENOENT;

    if (upload_read_row(unit, row, id, &facts) && uploads->count < UPLOADS_MAX) {
        upload = upload_create(uploads->packs->objects, id, &facts);
        if (upload == NULL)
            return TR_ENOMEM;
        rc = look_at_file(uploads, upload);
        if (rc == 0) {
            upload->is_made = true;
            uploads_enlist(uploads, upload);
            return 0;
        }
        upload_unref(upload);
    }
    if (rc != TR_ENOENT)
        return rc;
    LOG(LOG_WARN, "packs", "an upload cannot be continued and is removed", LOG_TEXT("upload", id));
    removal = upload_delete_unit(sql_row_bytes(unit, 0, row, 0));
    rc = removal == NULL ? TR_ENOMEM : sql_write_wait(uploads->packs->calls.sql, removal);
    sql_unit_destroy(removal);
    return rc;
}

static int remove_unknown(void *data, const char *name, uint64_t size)
{
    const struct uploads *uploads = data;

    (void)size;
    if (object_name_is_valid(name, UPLOAD_ID_CHARS) && uploads_find(uploads, name) == NULL)
        (void)objects_remove(uploads->packs->objects, OBJECTS_INCOMING, name);
    return 0;
}

static int load_uploads(struct uploads *uploads)
{
    struct sql_unit *unit = upload_select_unit();
    int rc;

    if (unit == NULL)
        return TR_ENOMEM;
    rc = sql_read_wait(uploads->packs->calls.sql, unit);
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, 0); i++)
        rc = load_row(uploads, unit, i);
    sql_unit_destroy(unit);
    if (rc == 0)
        rc = objects_each(uploads->packs->objects, OBJECTS_INCOMING, remove_unknown, uploads);
    return rc;
}

int uploads_start(struct packs *packs, char *why, size_t why_size)
{
    struct uploads uploads = { .packs = packs, .tag_next = UPLOAD_TAG_FIRST };
    int rc;

    (void)why;
    (void)why_size;
    tr_assert(packs->objects != NULL && packs->view != NULL); /* these parts start before */
    rc = load_uploads(&uploads);
    if (rc == 0)
        rc = tr_spawn(packs->system, &uploads_type, &uploads,
            &(struct tr_spawn_options){ .name = "packs uploads",
                .owner = "packs",
                .supervisor = packs->supervisor,
                .box = { .capacity = 1024, .full = TR_FULL_FAIL } },
            &packs->uploads);
    if (rc != 0)
        uploads_fini(&uploads);
    return rc;
}

void uploads_stop(struct packs *packs)
{
    packs_stop_actor(&packs->uploads);
}
