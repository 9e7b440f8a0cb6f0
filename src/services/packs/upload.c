/* SPDX-License-Identifier: Apache-2.0 */
/* upload.c: the actor that owns the uploads.
 *
 *   create:  file ──▶ row ──▶ answered
 *   write:   bytes and digest on the pool ──▶ answered
 *   finish:  seal on the pool ──▶ the catalogue's unit: version in, row out ──▶ forgotten, answered
 *   delete:  row ──▶ file ──▶ forgotten, answered
 *
 * Invariants:
 *   1. An upload has one step at a time: `step` is set from its start to its end. While the step runs
 *      on the pool, `file` belongs to the pool, and `offset` is the offset before the step.
 *   2. A file in incoming/ without a row, and a row without file and object, are remains of a crash
 *      that no client was told of. The start removes them.
 *   3. An object is made only of bytes whose digest is its name. An object that no version and no
 *      other upload wants is removed with the upload that brought it.
 *   4. From the check whether an object is wanted until its removal, no upload of the same bytes is
 *      finished: it would rely on the object that is being removed. */
#include "services/packs/upload.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/packs/catalogue_private.h"
#include "services/packs/upload_private.h"
#include "support/log.h"

enum { TAG_SWEEP = 1, TAG_RECOVER };
#define SWEEP_NS TR_SECONDS(60)
#define RECOVER_NS TR_MILLISECONDS(100)

void (*_Atomic upload_removal_hook)(void);

enum work_kind { WORK_CREATE, WORK_WRITE, WORK_SEAL, WORK_REMOVE };
struct work {
    enum work_kind kind;
    struct upload *upload;
    struct upload_job *job; /* WORK_WRITE */
    bool and_object;        /* WORK_REMOVE */
};

/* ---- errors --------------------------------------------------------------------------------- */

static void set_error(struct upload_job *job, unsigned status, const char *label, const char *text)
{
    if (job == NULL || job->status != 0)
        return;
    job->status = status;
    job->label = label;
    job->text = text;
}

static void set_busy_error(struct upload_job *job)
{
    set_error(job, 409, "UploadBusy",
        "Another request is sending to this upload, or its broken connection was not noticed yet; "
        "try again in some seconds.");
}

static void set_too_large(struct upload_job *job)
{
    set_error(job, 413, "UploadTooLarge", "The body has more bytes than the upload announced.");
}

/* Translate a code of the disk, the pool or the database. */
static void set_failure(struct upload_job *job, int rc)
{
    if (rc == TR_ENOSPC || rc == SQL_EDISK)
        set_error(job, 507, "DiskFull",
            "The disk of the server is full; the bytes so far are kept, so continue later.");
    else if (rc == TR_EPROTO)
        set_error(job, 422, "ChecksumMismatch",
            "The SHA-256 of the bytes differs from sha256; the upload was removed, so start "
            "again.");
    else if (rc == TR_EINVAL)
        set_error(job, 422, "VariantMismatch",
            "The file does not decompress to the bytes of its version; the upload was removed.");
    else if (rc == TR_ENOENT)
        set_error(job, 500, "UploadLost",
            "The file of the upload is missing; the upload was removed, so start again.");
    else if (rc == TR_EIO || rc == TR_EACCES)
        set_error(job, 500, "StorageFailed", "The server cannot write its files.");
    else
        set_error(job, rc == SQL_EUNKNOWN ? 504 : 503, "busy", "Try again.");
}

/* ---- holders -------------------------------------------------------------------------------- */

void upload_site_unref(struct upload_site *site)
{
    if (site == NULL || atomic_fetch_sub_explicit(&site->holders, 1, memory_order_acq_rel) != 1)
        return;
    objects_close(&site->objects);
    base_free(site);
}

void upload_unref(struct upload *upload)
{
    if (atomic_fetch_sub_explicit(&upload->holders, 1, memory_order_acq_rel) != 1)
        return;
    upload_file_close(&upload->file);
    upload_site_unref(upload->site);
    base_free(upload);
}

struct upload *upload_new(
    struct upload_site *site, const char *id, const struct upload_facts *facts)
{
    struct upload *upload = base_calloc(sizeof *upload);

    if (upload == NULL)
        return NULL;
    atomic_init(&upload->holders, 1);
    atomic_fetch_add_explicit(&site->holders, 1, memory_order_relaxed);
    upload->site = site;
    upload->facts = *facts;
    upload_file_init(&upload->file, site->objects, id);
    return upload;
}

static void set_step(struct upload *upload, enum upload_step step)
{
    static const bool may_move[UPLOAD_STEPS][UPLOAD_STEPS] = {
        /* to:                  NONE   WORK   REMOVE */
        [UPLOAD_STEP_NONE] = { false, true, true },
        [UPLOAD_STEP_WORK] = { true, false, true },
        [UPLOAD_STEP_REMOVE] = { true, false, true }, /* again, after a restart of the actor */
    };

    tr_assert(may_move[upload->step][step]);
    upload->step = step;
}

/* ---- the table ------------------------------------------------------------------------------ */

void uploads_enlist(struct uploads *uploads, struct upload *upload)
{
    tr_assert(upload->next == NULL);
    tr_assert(uploads->count < UPLOADS_MAX);
    upload->next = uploads->first;
    uploads->first = upload;
    uploads->count++;
}

struct upload *uploads_find(const struct uploads *uploads, const char *id)
{
    for (struct upload *upload = uploads->first; upload != NULL; upload = upload->next)
        if (strcmp(upload->file.id, id) == 0)
            return upload;
    return NULL;
}

/* Find an upload of the same bytes for the same version, to continue it. */
static struct upload *find_equal(const struct uploads *uploads, const struct upload_facts *facts)
{
    for (struct upload *upload = uploads->first; upload != NULL; upload = upload->next)
        if (upload->facts.pack == facts->pack && upload->facts.encoding == facts->encoding &&
            strcmp(upload->facts.version, facts->version) == 0 &&
            strcmp(upload->facts.type, facts->type) == 0 && upload->facts.size == facts->size &&
            memcmp(upload->facts.sha256, facts->sha256, sizeof facts->sha256) == 0)
            return upload;
    return NULL;
}

static uint64_t announced_bytes(const struct uploads *uploads)
{
    uint64_t sum = 0;

    for (const struct upload *upload = uploads->first; upload != NULL; upload = upload->next)
        sum += upload->facts.size;
    return sum;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Answer the job and drop the actor's reference. */
static void upload_answer(struct upload_job *job, const struct upload *upload)
{
    tr_reply_handle reply;

    if (job == NULL)
        return;
    if (upload != NULL) {
        job->offset = upload->offset;
        job->facts = upload->facts;
        memcpy(job->id, upload->file.id, sizeof job->id);
    }
    if (job->status == 0)
        job->status = 200;
    reply = job->reply; /* after the reply the job belongs to the connection */
    job->reply = (tr_reply_handle){ 0 };
    (void)tr_reply_send(&reply, 0, NULL, 0);
    upload_job_unref(job);
}

static void begin_write(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct upload_job *job);

/* End the step and answer its request. */
static void end_step(struct uploads *uploads, struct tr_context *ctx, struct upload *upload)
{
    struct upload_job *job = upload->job, *waiting = upload->waiting;

    set_step(upload, UPLOAD_STEP_NONE);
    upload->job = upload->waiting = NULL;
    upload->tag = 0;
    upload_answer(job, upload);
    if (waiting != NULL)
        begin_write(uploads, ctx, upload, waiting);
}

static void forget_upload(struct uploads *uploads, struct upload *upload)
{
    struct upload **link = &uploads->first;

    tr_assert(uploads->count > 0);
    while (*link != upload) {
        tr_assert(*link != NULL);
        link = &(*link)->next;
    }
    *link = upload->next;
    uploads->count--;
    upload_answer(upload->job, upload);
    if (upload->waiting != NULL)
        upload_job_unref(upload->waiting);
    upload->job = upload->waiting = NULL;
    upload_unref(upload);
}

/* ---- work on the pool ----------------------------------------------------------------------- */

static int remove_files(struct upload *upload, bool and_object)
{
    char name[OBJECT_NAME_CHARS + 1];
    int rc = upload_file_remove(&upload->file);
    void (*hook)(void) = atomic_load(&upload_removal_hook);

    if (and_object) {
        if (hook != NULL)
            hook();
        name[crypto_hex_encode(upload->facts.sha256, sizeof upload->facts.sha256, name)] = '\0';
        (void)objects_remove(upload->site->objects, name);
    }
    return rc;
}

static int run_work(void *argument)
{
    struct work *work = argument;

    switch (work->kind) {
    case WORK_CREATE:
        return upload_file_create(&work->upload->file);
    case WORK_WRITE:
        return upload_file_write(
            &work->upload->file, work->job->bytes.bytes, work->job->bytes.size);
    case WORK_SEAL:
        return upload_file_seal(&work->upload->file, &work->upload->facts);
    case WORK_REMOVE:
    default:
        return remove_files(work->upload, work->and_object);
    }
}

static void free_work(void *argument)
{
    struct work *work = argument;

    upload_unref(work->upload);
    if (work->job != NULL)
        upload_job_unref(work->job);
    base_free(work);
}

/* Start work on the pool; its end is a TR_EVENT_WORK. */
static int start_work(
    struct tr_context *ctx, struct upload *upload, enum work_kind kind, bool and_object)
{
    struct work *work = base_calloc(sizeof *work);
    int rc;

    tr_assert(upload->step != UPLOAD_STEP_NONE); /* invariant 1 */
    if (work == NULL)
        return TR_ENOMEM;
    atomic_fetch_add_explicit(&upload->holders, 1, memory_order_relaxed);
    *work = (struct work){ .kind = kind, .upload = upload, .and_object = and_object };
    if (kind == WORK_WRITE)
        work->job = upload_job_ref(upload->job);
    rc = tr_offload(ctx, run_work, work, free_work, 0);
    if (rc != 0)
        free_work(work);
    return rc;
}

/* ---- database ------------------------------------------------------------------------------- */

static uint32_t next_tag(struct uploads *uploads)
{
    uint32_t tag = uploads->tag_next++;

    if (uploads->tag_next < UPLOAD_TAG_FIRST)
        uploads->tag_next = UPLOAD_TAG_FIRST;
    return tag;
}

/* Takes the unit. */
static int submit_unit(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct sql_unit *unit)
{
    struct sql_submit_options options = { .tag = next_tag(uploads) };
    int rc;

    tr_assert(upload->tag == 0); /* an upload waits for one unit at a time */
    rc = unit == NULL ? TR_ENOMEM : sql_write(ctx, &uploads->sql, unit, &options);

    if (rc != 0)
        sql_unit_destroy(unit);
    else
        upload->tag = options.tag;
    return rc;
}

/* ---- removing ------------------------------------------------------------------------------- */

/* True if a version or another upload has these bytes. */
static bool is_wanted(const struct uploads *uploads, const struct upload *upload)
{
    const struct packs_view *view = catalogue_view(uploads->packs);
    const uint8_t *sha256 = upload->facts.sha256;

    if (atomic_load_explicit(&uploads->packs->is_catalogue_behind, memory_order_relaxed))
        return true; /* unknown until the catalogue is read: keep it */
    for (const struct upload *other = uploads->first; other != NULL; other = other->next)
        if (other != upload && memcmp(other->facts.sha256, sha256, 32) == 0)
            return true;
    for (uint32_t i = 0; i < view->pack_count; i++)
        for (uint32_t j = 0; j < view->packs[i].version_count; j++) {
            const struct pack_version *version = &view->packs[i].versions[j];

            if (memcmp(version->sha256, sha256, 32) == 0 ||
                (version->zstd.there && memcmp(version->zstd.sha256, sha256, 32) == 0) ||
                (version->gzip.there && memcmp(version->gzip.sha256, sha256, 32) == 0))
                return true;
        }
    return false;
}

/* Delete the row first: after a crash the file has no row, and the next start removes it. The end of
 * the step answers its job. */
static void begin_removal(struct uploads *uploads, struct tr_context *ctx, struct upload *upload)
{
    int rc = submit_unit(uploads, ctx, upload, upload_delete_unit(span_of(upload->file.id)));

    set_step(upload, UPLOAD_STEP_REMOVE);
    if (rc != 0) {
        set_failure(upload->job, rc);
        end_step(uploads, ctx, upload);
    }
}

static void remove_file(struct uploads *uploads, struct tr_context *ctx, struct upload *upload)
{
    upload->is_taking_object = !is_wanted(uploads, upload);
    if (start_work(ctx, upload, WORK_REMOVE, upload->is_taking_object) != 0)
        forget_upload(uploads, upload); /* the next start removes the file */
}

/* ---- creating ------------------------------------------------------------------------------- */

/* Returns false after refusing. */
static bool has_room(struct uploads *uploads, struct upload_job *job)
{
    uint64_t quota = uploads->packs->settings.quota_bytes;
    uint64_t used = catalogue_view(uploads->packs)->stored_bytes + announced_bytes(uploads);

    if (uploads->count >= UPLOADS_MAX) {
        set_error(job, 503, "TooManyUploads",
            "The server has 64 unfinished uploads, which is the most; finish or delete one first.");
    } else if (quota != 0 && job->facts.size > quota) {
        set_error(job, 413, "PackTooLarge",
            "The file is larger than packs.quota, the room for all packs.");
    } else if (quota != 0 && job->facts.size > quota - (used < quota ? used : quota)) {
        set_error(job, 507, "QuotaExceeded",
            "The packs would take more than packs.quota; delete uploads, or raise it.");
    } else {
        return true;
    }
    return false;
}

static void handle_create(struct uploads *uploads, struct tr_context *ctx, struct upload_job *job)
{
    struct upload *upload = find_equal(uploads, &job->facts);
    char id[UPLOAD_ID_CHARS + 1];
    uint8_t random[UPLOAD_ID_CHARS / 2];
    int rc;

    if (upload != NULL || !has_room(uploads, job)) {
        if (upload != NULL && (!upload->is_made || upload->step == UPLOAD_STEP_REMOVE))
            set_busy_error(job);
        upload_answer(job, job->status == 0 ? upload : NULL);
        return;
    }
    crypto_random_fill(random, sizeof random);
    id[crypto_hex_encode(random, sizeof random, id)] = '\0';
    upload = upload_new(uploads->site, id, &job->facts);
    if (upload == NULL) {
        set_failure(job, TR_ENOMEM);
        upload_answer(job, NULL);
        return;
    }
    job->is_new = true;
    upload->touched_ms = packs_now_ms(uploads->packs);
    set_step(upload, UPLOAD_STEP_WORK);
    upload->job = job;
    uploads_enlist(uploads, upload);
    rc = start_work(ctx, upload, WORK_CREATE, false);
    if (rc != 0) {
        set_failure(job, rc);
        forget_upload(uploads, upload);
    }
}

static void on_created(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, int rc)
{
    if (rc == 0)
        rc = submit_unit(uploads, ctx, upload,
            upload_insert_unit(upload->file.id, &upload->facts, packs_now_ms(uploads->packs)));
    if (rc == 0)
        return;
    set_failure(upload->job, rc == TR_ENOENT || rc == TR_EINVAL ? TR_EIO : rc);
    remove_file(uploads, ctx, upload);
}

/* ---- sending -------------------------------------------------------------------------------- */

static bool is_claimed(const struct upload *upload, struct tr_context *ctx)
{
    return upload->step != UPLOAD_STEP_NONE ||
           (upload->claim != 0 && tr_now_ns(ctx) - upload->claim_ns < TR_SECONDS(UPLOAD_CLAIM_S));
}

static void handle_claim(struct tr_context *ctx, struct upload *upload, struct upload_job *job)
{
    if (is_claimed(upload, ctx)) {
        set_busy_error(job);
    } else if (job->offset != upload->offset) {
        set_error(job, 409, "UploadOffsetMismatch",
            "The server has another number of bytes; continue at the Upload-Offset of this "
            "answer.");
    } else if (job->length > upload->facts.size - upload->offset) {
        set_too_large(job);
    } else if (!tr_reply_is_cancelled(job->reply)) {
        upload->claim = job->claim;
        upload->claim_ns = tr_now_ns(ctx);
    }
    upload_answer(job, upload);
}

/* Takes the job. */
static void begin_write(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct upload_job *job)
{
    int rc;

    tr_assert(upload->job == NULL);
    if (job->begin != upload->offset) {
        /* The piece before it was cancelled with its request: writing this one would leave a hole. */
        set_error(job, 409, "UploadOffsetMismatch",
            "The server has another number of bytes; continue at the Upload-Offset of this "
            "answer.");
        upload_answer(job, upload);
        return;
    }
    if (job->bytes.size > upload->facts.size - upload->offset) {
        set_too_large(job);
        upload_answer(job, upload);
        return;
    }
    set_step(upload, UPLOAD_STEP_WORK);
    upload->job = job;
    upload->claim_ns = tr_now_ns(ctx);
    rc = start_work(ctx, upload, WORK_WRITE, false);
    if (rc != 0) {
        set_failure(job, rc);
        end_step(uploads, ctx, upload);
    }
}

static void handle_write(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct upload_job *job)
{
    if (upload->claim == 0 || upload->claim != job->claim || upload->step != UPLOAD_STEP_NONE) {
        set_busy_error(job);
        upload_answer(job, upload);
    } else {
        begin_write(uploads, ctx, upload, job);
    }
}

/* The sending client is gone, perhaps before its claim arrived. The bytes it sent still count. */
static void handle_release(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct upload_job *job)
{
    bool is_holder =
        upload->claim == job->claim || (!is_claimed(upload, ctx) && upload->offset == job->offset);

    if (is_holder)
        upload->claim = 0;
    if (!is_holder || job->bytes.size == 0 ||
        (upload->step != UPLOAD_STEP_NONE && upload->waiting != NULL))
        upload_answer(job, upload);
    else if (upload->step != UPLOAD_STEP_NONE)
        upload->waiting = job;
    else
        begin_write(uploads, ctx, upload, job);
}

static void on_piece_written(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, int rc)
{
    if (rc == 0) {
        upload->offset = upload->file.offset;
        upload->touched_ms = packs_now_ms(uploads->packs);
    } else {
        set_failure(upload->job, rc == TR_EPROTO || rc == TR_EINVAL ? TR_EIO : rc);
        LOG(LOG_WARN, "packs", "an upload cannot be written", LOG_TEXT("upload", upload->file.id),
            LOG_TEXT("why", tr_error_text(rc)));
        if (upload->waiting != NULL) { /* it would leave a hole */
            upload_job_unref(upload->waiting);
            upload->waiting = NULL;
        }
        if (rc == TR_ENOENT) {
            begin_removal(uploads, ctx, upload);
            return;
        }
    }
    end_step(uploads, ctx, upload);
}

/* ---- the end of an upload ------------------------------------------------------------------- */

/* True if another upload of the same bytes is removing the object. */
static bool is_being_taken(const struct uploads *uploads, const struct upload *upload)
{
    for (const struct upload *other = uploads->first; other != NULL; other = other->next)
        if (other->is_taking_object &&
            memcmp(other->facts.sha256, upload->facts.sha256, sizeof other->facts.sha256) == 0)
            return true;
    return false;
}

static void handle_finish(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct upload_job *job)
{
    int rc;

    if (is_claimed(upload, ctx)) {
        set_busy_error(job);
        upload_answer(job, upload);
    } else if (upload->offset != upload->facts.size) {
        set_error(job, 409, "UploadIncomplete",
            "Bytes are missing; continue at the Upload-Offset of this answer.");
        upload_answer(job, upload);
    } else if (is_being_taken(uploads, upload)) {
        set_error(job, 409, "UploadBusy",
            "Another upload of the same bytes is being removed; try again in some seconds.");
        upload_answer(job, upload);
    } else {
        set_step(upload, UPLOAD_STEP_WORK);
        upload->job = job;
        rc = start_work(ctx, upload, WORK_SEAL, false);
        if (rc != 0) {
            set_failure(job, rc);
            end_step(uploads, ctx, upload);
        }
    }
}

static void on_sealed(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, int rc)
{
    struct upload_job *job = upload->job;
    struct edit_message message = { job->edit };
    uint32_t tag = next_tag(uploads);

    tr_assert(job->edit != NULL);
    if (rc == TR_EPROTO || rc == TR_EINVAL || rc == TR_ENOENT) {
        set_failure(job, rc);
        begin_removal(uploads, ctx, upload);
        return;
    }
    if (rc == 0)
        rc = upload_edit_fill(job->edit, upload->file.id, &upload->facts);
    if (rc == 0) {
        (void)edit_ref(job->edit);
        rc = tr_ask(ctx, uploads->packs->catalogue, &message, sizeof message,
            &(struct tr_ask_options){ .tag = tag });
        if (rc == 0) {
            upload->tag = tag;
            return;
        }
        edit_unref(job->edit);
    }
    set_failure(job, rc);
    end_step(uploads, ctx, upload);
}

/* The catalogue has answered: stored, refused, or unknown. */
static void on_changed(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, int status)
{
    const struct edit *edit = upload->job->edit;

    tr_assert(edit != NULL);
    if (status == 0 && edit->status >= 200 && edit->status < 300) {
        forget_upload(uploads, upload); /* the unit deleted the row */
    } else if (status == 0 && edit->status >= 400 && edit->status < 500) {
        begin_removal(uploads, ctx, upload); /* it can never be finished */
    } else {
        if (status != 0 || edit->status == 0)
            set_failure(upload->job, TR_EBUSY);
        end_step(uploads, ctx, upload);
    }
}

static void handle_delete(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, struct upload_job *job)
{
    if (is_claimed(upload, ctx)) {
        set_busy_error(job);
        upload_answer(job, upload);
        return;
    }
    upload->job = job;
    begin_removal(uploads, ctx, upload);
}

static void remove_abandoned(struct uploads *uploads, struct tr_context *ctx)
{
    int64_t oldest_ms = packs_now_ms(uploads->packs) - INT64_C(1000) * UPLOAD_KEPT_S;
    struct upload *next;

    for (struct upload *upload = uploads->first; upload != NULL; upload = next) {
        next = upload->next;
        if (is_claimed(upload, ctx) || upload->touched_ms > oldest_ms)
            continue;
        LOG(LOG_INFO, "packs", "an abandoned upload is removed",
            LOG_TEXT("upload", upload->file.id), LOG_TEXT("pack", upload->facts.pack_name));
        begin_removal(uploads, ctx, upload);
    }
}

/* ---- after a restart ------------------------------------------------------------------------ */

/* A step that the failure cut is over once the pool has done its work; its outcome is in the file.
 * An upload that was being created or removed is removed: doing so twice is no error. */
static void recover(struct uploads *uploads, struct tr_context *ctx)
{
    struct upload *next;
    bool is_any_left = false;

    for (struct upload *upload = uploads->first; upload != NULL; upload = next) {
        next = upload->next;
        if (!upload->is_cut)
            continue;
        if (atomic_load_explicit(&upload->holders, memory_order_acquire) > 1) {
            is_any_left = true;
            continue;
        }
        upload->is_cut = upload->is_taking_object = false;
        if (upload->is_made && upload->step != UPLOAD_STEP_REMOVE) {
            upload->offset = upload->file.offset;
            end_step(uploads, ctx, upload);
        } else {
            begin_removal(uploads, ctx, upload);
        }
    }
    if (is_any_left && tr_after(ctx, RECOVER_NS, TAG_RECOVER, NULL) < 0)
        LOG_PLAIN(LOG_WARN, "packs", "an upload stays busy until the server starts again");
}

/* ---- the actor ------------------------------------------------------------------------------ */

static enum tr_next uploads_handle(void *self, struct tr_context *ctx, void *message)
{
    struct upload_job *job = ((struct upload_message *)message)->job;
    struct uploads *uploads = self;
    struct upload *upload;

    tr_assert(job->action <= UPLOAD_SWEEP);
    job->reply = tr_reply_take(ctx);
    job->status = 0;
    if (job->action == UPLOAD_CREATE) {
        handle_create(uploads, ctx, job);
        return TR_GO;
    }
    if (job->action == UPLOAD_SWEEP) {
        remove_abandoned(uploads, ctx);
        upload_answer(job, NULL);
        return TR_GO;
    }
    upload = uploads_find(uploads, job->id);
    if (upload == NULL || !upload->is_made) {
        set_error(job, 404, "UploadNotFound",
            "There is no upload with this id; it was finished, removed, or never started.");
        upload_answer(job, NULL);
    } else if (job->action == UPLOAD_LOOK) {
        upload_answer(job, upload);
    } else if (job->action == UPLOAD_CLAIM) {
        handle_claim(ctx, upload, job);
    } else if (job->action == UPLOAD_WRITE) {
        handle_write(uploads, ctx, upload, job);
    } else if (job->action == UPLOAD_RELEASE) {
        handle_release(uploads, ctx, upload, job);
    } else if (job->action == UPLOAD_FINISH) {
        handle_finish(uploads, ctx, upload, job);
    } else {
        handle_delete(uploads, ctx, upload, job);
    }
    return TR_GO;
}

static void on_work(struct uploads *uploads, struct tr_context *ctx, const struct tr_event *event)
{
    struct work *work = (struct work *)(uintptr_t)event->value;
    struct upload *upload = work->upload;
    enum work_kind kind = work->kind;

    /* The table holds the upload while it is busy. */
    free_work(work);
    if (kind == WORK_CREATE)
        on_created(uploads, ctx, upload, event->status);
    else if (kind == WORK_WRITE)
        on_piece_written(uploads, ctx, upload, event->status);
    else if (kind == WORK_SEAL)
        on_sealed(uploads, ctx, upload, event->status);
    else
        forget_upload(uploads, upload);
}

/* The row was inserted or deleted, or the unit failed. */
static void on_stored(
    struct uploads *uploads, struct tr_context *ctx, struct upload *upload, int status)
{
    bool is_new = !upload->is_made;

    if (status != 0)
        set_failure(upload->job, status == SQL_EDISK ? status : TR_EBUSY);
    upload->is_made = !is_new || status == 0;
    if (is_new == (status == 0)) /* created; or not removed, so it still exists */
        end_step(uploads, ctx, upload);
    else
        remove_file(uploads, ctx, upload);
}

static enum tr_next uploads_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct uploads *uploads = self;
    struct upload *upload = uploads->first;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_WORK) {
        on_work(uploads, ctx, event);
    } else if (event->kind == TR_EVENT_TIMER && event->tag == TAG_RECOVER) {
        recover(uploads, ctx);
    } else if (event->kind == TR_EVENT_TIMER) {
        remove_abandoned(uploads, ctx);
    } else if (event->kind == TR_EVENT_REPLY) {
        unit = sql_take(&uploads->sql, event);
        while (upload != NULL && upload->tag != event->tag)
            upload = upload->next;
        if (upload != NULL) {
            upload->tag = 0;
            if (unit != NULL)
                on_stored(uploads, ctx, upload, sql_unit_status(unit));
            else
                on_changed(uploads, ctx, upload, event->status);
        }
        sql_unit_destroy(unit);
    }
    return TR_GO;
}

static int uploads_begin(void *self, struct tr_context *ctx)
{
    struct uploads *uploads = self;

    sql_client_init(&uploads->sql, uploads->packs->sql);
    if (tr_self_restarts(ctx) > 0)
        recover(uploads, ctx);
    return tr_every(ctx, SWEEP_NS, TAG_SWEEP, NULL);
}

static void drop_jobs(struct upload *upload)
{
    if (upload->job != NULL)
        tr_reply_drop(&upload->job->reply);
    if (upload->waiting != NULL)
        tr_reply_drop(&upload->waiting->reply);
    upload_job_unref(upload->job);
    upload_job_unref(upload->waiting);
    upload->job = upload->waiting = NULL;
}

/* The table survives. Steps under way are cut; recover() goes on with them. */
static int uploads_reset(void *self, enum tr_why why)
{
    struct uploads *uploads = self;

    (void)why;
    for (struct upload *upload = uploads->first; upload != NULL; upload = upload->next) {
        drop_jobs(upload);
        upload->is_cut = upload->step != UPLOAD_STEP_NONE;
        upload->claim = 0;
        upload->tag = 0;
    }
    sql_client_fini(&uploads->sql);
    return 0;
}

void uploads_finish(void *self)
{
    struct uploads *uploads = self;

    while (uploads->first != NULL) {
        struct upload *upload = uploads->first;

        drop_jobs(upload);
        uploads->first = upload->next;
        upload_unref(upload);
    }
    if (uploads->sql.sql != NULL)
        sql_client_fini(&uploads->sql);
    upload_site_unref(uploads->site);
    uploads->site = NULL;
}

static void drop_message(void *message)
{
    upload_job_unref(((struct upload_message *)message)->job);
}

const struct tr_type uploads_type = {
    .name = "packs_uploads",
    .message_size = sizeof(struct upload_message),
    .state_size = sizeof(struct uploads),
    .start = uploads_begin,
    .handle = uploads_handle,
    .event = uploads_event,
    .finish = uploads_finish,
    .reset = uploads_reset,
    .message_drop = drop_message,
};
