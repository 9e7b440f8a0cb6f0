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
#include "services/packs/edit.h"
#include "services/packs/upload_private.h"
#include "support/log.h"

enum { TAG_SWEEP = 1, TAG_RECOVER };
#define SWEEP_NS TR_SECONDS(60)
#define RECOVER_NS TR_MILLISECONDS(100)

void (*_Atomic upload_removal_hook)(void);

/* ---- errors --------------------------------------------------------------------------------- */

static const struct refusal busy = REFUSE(409, "UploadBusy",
    "Another request is sending to this upload, or its broken connection was not noticed yet; "
    "try again in some seconds.");
static const struct refusal being_taken = REFUSE(409, "UploadBusy",
    "Another upload of the same bytes is being removed; try again in some seconds.");
static const struct refusal other_offset = REFUSE(409, "UploadOffsetMismatch",
    "The server has another number of bytes; continue at the Upload-Offset of this answer.");
static const struct refusal too_large =
    REFUSE(413, "UploadTooLarge", "The body has more bytes than the upload announced.");
static const struct refusal incomplete = REFUSE(
    409, "UploadIncomplete", "Bytes are missing; continue at the Upload-Offset of this answer.");
static const struct refusal not_found = REFUSE(404, "UploadNotFound",
    "There is no upload with this id; it was finished, removed, or never started.");
static const struct refusal too_many = REFUSE(503, "TooManyUploads",
    "The server has 64 unfinished uploads, which is the most; finish or delete one first.");
static const struct refusal over_quota =
    REFUSE(413, "PackTooLarge", "The file is larger than packs.quota, the room for all packs.");
static const struct refusal quota_used = REFUSE(507, "QuotaExceeded",
    "The packs would take more than packs.quota; delete uploads, or raise it.");

static const struct {
    int rc; /* a code of the disk, the pool or the database */
    unsigned status;
    const char *label, *text;
} failures[] = {
    { TR_ENOSPC, 507, "DiskFull",
        "The disk of the server is full; the bytes so far are kept, so continue later." },
    { TR_EPROTO, 422, "ChecksumMismatch",
        "The SHA-256 of the bytes differs from sha256; the upload was removed, so start again." },
    { TR_EINVAL, 422, "VariantMismatch",
        "The file does not decompress to the bytes of its version; the upload was removed." },
    { TR_ENOENT, 500, "UploadLost",
        "The file of the upload is missing; the upload was removed, so start again." },
    { TR_EIO, 500, "StorageFailed", "The server cannot write its files." },
    { SQL_EUNKNOWN, 504, "busy", "Try again." },
    { 0, 503, "busy", "Try again." }, /* any other code */
};

/* The first refusal counts. NULL: no request waits. */
static void set_refusal(struct upload_job *job, const struct refusal *refusal)
{
    if (job == NULL || job->status != 0)
        return;
    job->status = refusal->status;
    job->label = refusal->label;
    job->text = refusal->text;
}

static void set_failure(struct upload_job *job, int rc)
{
    size_t i = 0;

    rc = rc == SQL_EDISK ? TR_ENOSPC : rc == TR_EACCES ? TR_EIO : rc;
    while (failures[i].rc != 0 && failures[i].rc != rc)
        i++;
    set_refusal(
        job, &(struct refusal)REFUSE(failures[i].status, failures[i].label, failures[i].text));
}

/* ---- holders -------------------------------------------------------------------------------- */

struct upload_job *upload_job_create(enum upload_action action)
{
    struct upload_job *job = base_calloc(sizeof *job);

    if (job == NULL)
        return NULL;
    atomic_init(&job->holders, 1);
    job->action = action;
    return job;
}

struct upload_job *upload_job_ref(struct upload_job *job)
{
    atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
    return job;
}

void upload_job_unref(struct upload_job *job)
{
    if (job == NULL || atomic_fetch_sub_explicit(&job->holders, 1, memory_order_acq_rel) != 1)
        return;
    buffer_free(&job->bytes);
    edit_unref(job->edit);
    base_free(job);
}

void upload_unref(struct upload *upload)
{
    if (atomic_fetch_sub_explicit(&upload->holders, 1, memory_order_acq_rel) != 1)
        return;
    tr_assert(upload->job == NULL && upload->waiting == NULL); /* each job was answered */
    tr_assert(upload->writing == NULL);
    upload_file_fini(&upload->file);
    base_free(upload);
}

struct upload *upload_create(
    struct objects *objects, const char *id, const struct upload_facts *facts)
{
    struct upload *upload = base_calloc(sizeof *upload);

    if (upload == NULL)
        return NULL;
    atomic_init(&upload->holders, 1);
    upload->facts = *facts;
    upload_file_init(&upload->file, objects, id);
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

/* Refuse the request; the upload is unchanged. */
static void upload_refuse(
    struct upload_job *job, const struct upload *upload, const struct refusal *refusal)
{
    set_refusal(job, refusal);
    upload_answer(job, upload);
}

static void start_write(struct uploads *uploads, struct upload *upload, struct upload_job *job);

/* End the step and answer its request. */
static void end_step(struct uploads *uploads, struct upload *upload)
{
    struct upload_job *job = upload->job, *waiting = upload->waiting;

    tr_assert(upload->writing == NULL);   /* the file is the actor's again */
    tr_assert(!upload->is_taking_object); /* such an upload is forgotten */
    set_step(upload, UPLOAD_STEP_NONE);
    upload->job = upload->waiting = NULL;
    upload->tag = 0;
    upload_answer(job, upload);
    if (waiting != NULL)
        start_write(uploads, upload, waiting);
}

static void forget_upload(struct uploads *uploads, struct upload *upload)
{
    struct upload **link = &uploads->first;

    tr_assert(uploads->count > 0);
    tr_assert(upload->tag == 0 && upload->writing == NULL); /* no answer is on its way to it */
    while (*link != upload) {
        tr_assert(*link != NULL);
        link = &(*link)->next;
    }
    *link = upload->next;
    uploads->count--;
    upload_answer(upload->job, upload);
    upload_job_unref(upload->waiting);
    upload->job = upload->waiting = NULL;
    upload_unref(upload);
}

/* ---- work on the pool ----------------------------------------------------------------------- */

static int remove_files(struct upload *upload)
{
    char name[OBJECT_NAME_CHARS + 1];
    int rc = upload_file_remove(&upload->file);
    void (*hook)(void) = atomic_load(&upload_removal_hook);

    if (upload->is_taking_object) {
        if (hook != NULL)
            hook();
        object_name(upload->facts.sha256, name);
        (void)objects_remove(upload->file.objects, OBJECTS_COMPLETE, name);
    }
    return rc;
}

static int run_work(void *argument)
{
    struct upload *upload = argument;

    switch (upload->work) {
    case UPLOAD_WORK_CREATE:
        return upload_file_create(&upload->file);
    case UPLOAD_WORK_WRITE:
        return upload_file_write(
            &upload->file, upload->writing->bytes.bytes, upload->writing->bytes.size);
    case UPLOAD_WORK_SEAL:
        return upload_file_seal(&upload->file, &upload->facts);
    case UPLOAD_WORK_REMOVE:
    default:
        return remove_files(upload);
    }
}

/* The pool is done with the upload. */
static void end_work(void *argument)
{
    struct upload *upload = argument;

    upload_job_unref(upload->writing);
    upload->writing = NULL;
    upload_unref(upload);
}

/* Start work on the pool; its end is a TR_EVENT_WORK. */
static int start_work(struct uploads *uploads, struct upload *upload, enum upload_work work)
{
    int rc;

    tr_assert(upload->step != UPLOAD_STEP_NONE); /* invariant 1 */
    tr_assert(upload->writing == NULL);
    atomic_fetch_add_explicit(&upload->holders, 1, memory_order_relaxed);
    upload->work = work;
    if (work == UPLOAD_WORK_WRITE)
        upload->writing = upload_job_ref(upload->job);
    rc = tr_offload(uploads->ctx, run_work, upload, end_work, 0);
    if (rc != 0)
        end_work(upload);
    return rc;
}

/* End a step that failed. An upload that cannot even be created is forgotten. */
static void fail_step(struct uploads *uploads, struct upload *upload, int rc)
{
    set_failure(upload->job, rc);
    if (upload->is_made)
        end_step(uploads, upload);
    else
        forget_upload(uploads, upload);
}

/* Start the step of a request. */
static void start_step(
    struct uploads *uploads, struct upload *upload, struct upload_job *job, enum upload_work work)
{
    int rc;

    tr_assert(upload->job == NULL);
    set_step(upload, UPLOAD_STEP_WORK);
    upload->job = job;
    rc = start_work(uploads, upload, work);
    if (rc != 0)
        fail_step(uploads, upload, rc);
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
static int submit_unit(struct uploads *uploads, struct upload *upload, struct sql_unit *unit)
{
    struct sql_submit_options options = { .tag = next_tag(uploads) };
    int rc;

    tr_assert(upload->tag == 0); /* an upload waits for one unit at a time */
    rc = unit == NULL ? TR_ENOMEM : sql_write(uploads->ctx, &uploads->sql, unit, &options);

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

            if (memcmp(version->sha256, sha256, 32) == 0)
                return true;
            for (int k = 0; pack_codings[k] != NULL; k++)
                if (version->variants[k].there &&
                    memcmp(version->variants[k].sha256, sha256, 32) == 0)
                    return true;
        }
    return false;
}

/* Delete the row first: after a crash the file has no row, and the next start removes it. The end of
 * the step answers its job. */
static void start_removal(struct uploads *uploads, struct upload *upload)
{
    int rc = submit_unit(uploads, upload, upload_delete_unit(span_of(upload->file.id)));

    set_step(upload, UPLOAD_STEP_REMOVE);
    if (rc != 0) { /* it stays, and a sweep tries again */
        set_failure(upload->job, rc);
        end_step(uploads, upload);
    }
}

static void remove_file(struct uploads *uploads, struct upload *upload)
{
    upload->is_taking_object = !is_wanted(uploads, upload);
    if (start_work(uploads, upload, UPLOAD_WORK_REMOVE) != 0)
        forget_upload(uploads, upload); /* the next start removes the file */
}

/* ---- creating ------------------------------------------------------------------------------- */

/* Returns false after refusing. */
static bool has_room(struct uploads *uploads, struct upload_job *job)
{
    uint64_t quota = uploads->packs->settings.quota_bytes;
    uint64_t used = catalogue_view(uploads->packs)->stored_bytes + announced_bytes(uploads);

    if (uploads->count >= UPLOADS_MAX)
        set_refusal(job, &too_many);
    else if (quota != 0 && job->facts.size > quota)
        set_refusal(job, &over_quota);
    else if (quota != 0 && job->facts.size > quota - (used < quota ? used : quota))
        set_refusal(job, &quota_used);
    return job->status == 0;
}

static void handle_create(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    char id[UPLOAD_ID_CHARS + 1];
    uint8_t random[UPLOAD_ID_CHARS / 2];

    upload = find_equal(uploads, &job->facts);
    if (upload != NULL || !has_room(uploads, job)) {
        if (upload != NULL && (!upload->is_made || upload->step == UPLOAD_STEP_REMOVE))
            set_refusal(job, &busy);
        upload_answer(job, job->status == 0 ? upload : NULL);
        return;
    }
    crypto_random_fill(random, sizeof random);
    id[crypto_hex_encode(random, sizeof random, id)] = '\0';
    upload = upload_create(uploads->packs->objects, id, &job->facts);
    if (upload == NULL) {
        set_failure(job, TR_ENOMEM);
        upload_answer(job, NULL);
        return;
    }
    job->is_new = true;
    upload->touched_ms = packs_now_ms(uploads->packs);
    uploads_enlist(uploads, upload);
    start_step(uploads, upload, job, UPLOAD_WORK_CREATE);
}

static void on_created(struct uploads *uploads, struct upload *upload, int rc)
{
    tr_assert(!upload->is_made);
    if (rc == 0)
        rc = submit_unit(uploads, upload,
            upload_insert_unit(upload->file.id, &upload->facts, packs_now_ms(uploads->packs)));
    if (rc == 0)
        return;
    set_failure(upload->job, rc == TR_ENOENT || rc == TR_EINVAL ? TR_EIO : rc);
    remove_file(uploads, upload);
}

/* ---- sending -------------------------------------------------------------------------------- */

static bool is_claimed(const struct uploads *uploads, const struct upload *upload)
{
    return upload->step != UPLOAD_STEP_NONE ||
           (upload->claim != 0 &&
               tr_now_ns(uploads->ctx) - upload->claim_ns < TR_SECONDS(UPLOAD_CLAIM_S));
}

static void handle_claim(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    tr_assert(job->claim != 0);
    tr_assert(upload->offset <= upload->facts.size);
    if (job->offset != upload->offset) {
        set_refusal(job, &other_offset);
    } else if (job->length > upload->facts.size - upload->offset) {
        set_refusal(job, &too_large);
    } else if (!tr_reply_is_cancelled(job->reply)) {
        upload->claim = job->claim;
        upload->claim_ns = tr_now_ns(uploads->ctx);
    }
    upload_answer(job, upload);
}

/* Takes the job. */
static void start_write(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    tr_assert(upload->offset <= upload->facts.size);
    if (job->begin != upload->offset) {
        /* The piece before it was cancelled with its request: writing this one would leave a hole. */
        upload_refuse(job, upload, &other_offset);
    } else if (job->bytes.size > upload->facts.size - upload->offset) {
        upload_refuse(job, upload, &too_large);
    } else {
        upload->claim_ns = tr_now_ns(uploads->ctx);
        start_step(uploads, upload, job, UPLOAD_WORK_WRITE);
    }
}

static void handle_write(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    if (upload->claim == 0 || upload->claim != job->claim || upload->step != UPLOAD_STEP_NONE)
        upload_refuse(job, upload, &busy);
    else
        start_write(uploads, upload, job);
}

/* The sending client is gone, perhaps before its claim arrived. The bytes it sent still count. */
static void handle_release(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    bool is_holder = upload->claim == job->claim ||
                     (!is_claimed(uploads, upload) && upload->offset == job->offset);

    if (is_holder)
        upload->claim = 0;
    if (!is_holder || job->bytes.size == 0 ||
        (upload->step != UPLOAD_STEP_NONE && upload->waiting != NULL))
        upload_answer(job, upload);
    else if (upload->step != UPLOAD_STEP_NONE)
        upload->waiting = job;
    else
        start_write(uploads, upload, job);
}

static void on_piece_written(struct uploads *uploads, struct upload *upload, int rc)
{
    tr_assert(upload->is_made);
    if (rc == 0) {
        upload->offset = upload->file.offset;
        upload->touched_ms = packs_now_ms(uploads->packs);
    } else {
        set_failure(upload->job, rc == TR_EPROTO || rc == TR_EINVAL ? TR_EIO : rc);
        LOG(LOG_WARN, "packs", "an upload cannot be written", LOG_TEXT("upload", upload->file.id),
            LOG_TEXT("why", tr_error_text(rc)));
        upload_job_unref(upload->waiting); /* it would leave a hole */
        upload->waiting = NULL;
        if (rc == TR_ENOENT) {
            start_removal(uploads, upload);
            return;
        }
    }
    end_step(uploads, upload);
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

static void handle_finish(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    if (upload->offset != upload->facts.size)
        upload_refuse(job, upload, &incomplete);
    else if (is_being_taken(uploads, upload))
        upload_refuse(job, upload, &being_taken);
    else
        start_step(uploads, upload, job, UPLOAD_WORK_SEAL);
}

static void on_sealed(struct uploads *uploads, struct upload *upload, int rc)
{
    struct upload_job *job = upload->job;
    struct edit_message message = { job->edit };
    uint32_t tag = next_tag(uploads);

    tr_assert(job->edit != NULL);
    if (rc == TR_EPROTO || rc == TR_EINVAL || rc == TR_ENOENT) {
        set_failure(job, rc);
        start_removal(uploads, upload);
        return;
    }
    if (rc == 0)
        rc = upload_edit_fill(job->edit, upload->file.id, &upload->facts);
    if (rc == 0) {
        (void)edit_ref(job->edit);
        rc = tr_ask(uploads->ctx, uploads->packs->catalogue, &message, sizeof message,
            &(struct tr_ask_options){ .tag = tag });
        if (rc == 0) {
            upload->tag = tag;
            return;
        }
        edit_unref(job->edit);
    }
    fail_step(uploads, upload, rc);
}

/* The catalogue has answered: stored, refused, or unknown. */
static void on_changed(struct uploads *uploads, struct upload *upload, int status)
{
    const struct edit *edit = upload->job->edit;

    tr_assert(upload->step == UPLOAD_STEP_WORK && upload->work == UPLOAD_WORK_SEAL);
    tr_assert(edit != NULL);
    if (status == 0 && edit->status >= 200 && edit->status < 300) {
        forget_upload(uploads, upload); /* the unit deleted the row */
    } else if (status == 0 && edit->status >= 400 && edit->status < 500) {
        start_removal(uploads, upload); /* it can never be finished */
    } else {
        if (status != 0 || edit->status == 0)
            set_failure(upload->job, TR_EBUSY);
        end_step(uploads, upload);
    }
}

static void handle_delete(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    upload->job = job;
    start_removal(uploads, upload);
}

static void remove_abandoned(struct uploads *uploads)
{
    int64_t oldest_ms = packs_now_ms(uploads->packs) - INT64_C(1000) * UPLOAD_KEPT_S;
    struct upload *next;

    for (struct upload *upload = uploads->first; upload != NULL; upload = next) {
        next = upload->next;
        if (is_claimed(uploads, upload) || upload->touched_ms > oldest_ms)
            continue;
        LOG(LOG_INFO, "packs", "an abandoned upload is removed",
            LOG_TEXT("upload", upload->file.id), LOG_TEXT("pack", upload->facts.pack_name));
        start_removal(uploads, upload);
    }
}

static void handle_sweep(struct uploads *uploads, struct upload *upload, struct upload_job *job)
{
    remove_abandoned(uploads);
    upload_answer(job, upload);
}

/* ---- after a restart ------------------------------------------------------------------------ */

/* A step that the failure cut is over once the pool has done its work; its outcome is in the file.
 * An upload that was being created or removed is removed: doing so twice is no error. */
static void recover(struct uploads *uploads)
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
            end_step(uploads, upload);
        } else {
            start_removal(uploads, upload);
        }
    }
    if (is_any_left && tr_after(uploads->ctx, RECOVER_NS, TAG_RECOVER, NULL) < 0)
        LOG_PLAIN(LOG_WARN, "packs", "an upload stays busy until the server starts again");
}

/* ---- the actor ------------------------------------------------------------------------------ */

enum upload_needs { NEEDS_NOTHING, NEEDS_UPLOAD, NEEDS_UNCLAIMED };

/* Each takes the job. NULL: it is answered with the upload as it is. */
static const struct {
    void (*handle)(struct uploads *uploads, struct upload *upload, struct upload_job *job);
    enum upload_needs needs;
} handlers[] = {
    [UPLOAD_CREATE] = { handle_create, NEEDS_NOTHING },
    [UPLOAD_LOOK] = { NULL, NEEDS_UPLOAD },
    [UPLOAD_CLAIM] = { handle_claim, NEEDS_UNCLAIMED },
    [UPLOAD_WRITE] = { handle_write, NEEDS_UPLOAD },
    [UPLOAD_RELEASE] = { handle_release, NEEDS_UPLOAD },
    [UPLOAD_FINISH] = { handle_finish, NEEDS_UNCLAIMED },
    [UPLOAD_DELETE] = { handle_delete, NEEDS_UNCLAIMED },
    [UPLOAD_SWEEP] = { handle_sweep, NEEDS_NOTHING },
};
_Static_assert(sizeof handlers / sizeof handlers[0] == UPLOAD_SWEEP + 1, "one for each action");

static enum tr_next uploads_handle(void *self, struct tr_context *ctx, void *message)
{
    struct upload_job *job = ((struct upload_message *)message)->job;
    struct uploads *uploads = self;
    struct upload *upload = NULL;
    enum upload_needs needs;

    uploads->ctx = ctx;
    tr_assert(job->action <= UPLOAD_SWEEP);
    job->reply = tr_reply_take(ctx);
    job->status = 0;
    needs = handlers[job->action].needs;
    if (needs != NEEDS_NOTHING)
        upload = uploads_find(uploads, job->id);
    if (needs != NEEDS_NOTHING && (upload == NULL || !upload->is_made))
        upload_refuse(job, NULL, &not_found);
    else if (needs == NEEDS_UNCLAIMED && is_claimed(uploads, upload))
        upload_refuse(job, upload, &busy);
    else if (handlers[job->action].handle == NULL)
        upload_answer(job, upload);
    else
        handlers[job->action].handle(uploads, upload, job);
    return TR_GO;
}

static void on_work(struct uploads *uploads, struct upload *upload, int status)
{
    tr_assert(upload->step != UPLOAD_STEP_NONE && !upload->is_cut); /* invariant 1 */
    end_work(upload); /* the table holds the upload while it is busy */
    if (upload->work == UPLOAD_WORK_CREATE)
        on_created(uploads, upload, status);
    else if (upload->work == UPLOAD_WORK_WRITE)
        on_piece_written(uploads, upload, status);
    else if (upload->work == UPLOAD_WORK_SEAL)
        on_sealed(uploads, upload, status);
    else
        forget_upload(uploads, upload);
}

/* The row was inserted or deleted, or the unit failed. */
static void on_stored(struct uploads *uploads, struct upload *upload, int status)
{
    bool is_new = upload->step == UPLOAD_STEP_WORK; /* only its creation stores a row */

    tr_assert(upload->step != UPLOAD_STEP_NONE);
    tr_assert(!is_new || (upload->work == UPLOAD_WORK_CREATE && !upload->is_made));
    if (status != 0)
        set_failure(upload->job, status == SQL_EDISK ? status : TR_EBUSY);
    upload->is_made = !is_new || status == 0;
    if (is_new == (status == 0)) /* created; or not removed, so it still exists */
        end_step(uploads, upload);
    else
        remove_file(uploads, upload);
}

static enum tr_next uploads_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct uploads *uploads = self;
    struct upload *upload = uploads->first;
    struct sql_unit *unit;

    uploads->ctx = ctx;
    if (event->kind == TR_EVENT_WORK) {
        on_work(uploads, (struct upload *)(uintptr_t)event->value, event->status);
    } else if (event->kind == TR_EVENT_TIMER && event->tag == TAG_RECOVER) {
        recover(uploads);
    } else if (event->kind == TR_EVENT_TIMER) {
        remove_abandoned(uploads);
    } else if (event->kind == TR_EVENT_REPLY) {
        unit = sql_take(&uploads->sql, event);
        while (upload != NULL && upload->tag != event->tag)
            upload = upload->next;
        if (upload != NULL) {
            upload->tag = 0;
            if (unit != NULL)
                on_stored(uploads, upload, sql_unit_status(unit));
            else
                on_changed(uploads, upload, event->status);
        }
        sql_unit_destroy(unit);
    }
    return TR_GO;
}

static int uploads_start_actor(void *self, struct tr_context *ctx)
{
    struct uploads *uploads = self;

    uploads->ctx = ctx;
    sql_client_init(&uploads->sql, uploads->packs->calls.sql);
    if (tr_self_restarts(ctx) > 0)
        recover(uploads);
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

void uploads_fini(void *self)
{
    struct uploads *uploads = self;

    while (uploads->first != NULL) {
        struct upload *upload = uploads->first;

        drop_jobs(upload);
        uploads->first = upload->next;
        uploads->count--;
        upload_unref(upload);
    }
    tr_assert(uploads->count == 0);
    if (uploads->sql.sql != NULL)
        sql_client_fini(&uploads->sql);
}

static void drop_message(void *message)
{
    upload_job_unref(((struct upload_message *)message)->job);
}

size_t upload_write_size(uint64_t offset, size_t size)
{
    return size < UPLOAD_PIECE ? size : size - (size_t)((offset + size) % UPLOAD_PIECE);
}

const struct tr_type uploads_type = {
    .name = "packs_uploads",
    .message_size = sizeof(struct upload_message),
    .state_size = sizeof(struct uploads),
    .start = uploads_start_actor,
    .handle = uploads_handle,
    .event = uploads_event,
    .finish = uploads_fini,
    .reset = uploads_reset,
    .message_drop = drop_message,
};
