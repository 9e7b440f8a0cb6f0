/* SPDX-License-Identifier: Apache-2.0 */
/* upload_api.c: uploads over HTTP, in the manner of tus: the client says at which offset it goes
 * on, the server says which one is right.
 *
 * A PATCH is an intake: what comes is gathered in one job while another one is with the actor, so
 * two pieces of a request are in memory at most, and the client is not read while both are full.
 *
 *   claim ──▶ [gather ──▶ write]* ──▶ answered
 *     └────────────┴──────────── client gone: what was gathered is handed over with the release */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/encoding.h"
#include "manifest/manifest.h"
#include "services/packs/api.h"
#include "services/packs/upload.h"

#define SIZE_LARGEST (INT64_C(1) << 40)

struct intake {
    char id[UPLOAD_ID_CHARS + 1];
    uint64_t claim;             /* random: the name under which it sends */
    uint64_t offset;            /* that the client gave, or the actor told last */
    struct upload_job *filling; /* NULL: it is over */
    struct upload_job *flying;  /* with the actor */
    struct upload_job *spare;
    bool has_ended; /* all of the body is here */
};

/* ---- answers -------------------------------------------------------------------------------- */

static void add_number(struct http_request *request, const char *name, uint64_t number)
{
    char text[24];
    int size = snprintf(text, sizeof text, "%llu", (unsigned long long)number);

    (void)http_add_header(request, name, (struct span){ text, (size_t)size });
}

static void respond_error(struct http_request *request, const struct upload_job *job)
{
    if (job->status == 409 && job->facts.pack != 0) /* it is there: where to go on */
        add_number(request, "Upload-Offset", job->offset);
    if (job->status == 409 && strcmp(job->label, "UploadBusy") == 0)
        (void)http_add_header(request, "Retry-After", SPAN("2"));
    if (strcmp(job->label, "TooManyUploads") == 0)
        (void)http_add_header(request, "Retry-After", SPAN("30"));
    if (job->status == 504)
        http_respond_lost(request, SQL_EUNKNOWN, true, job->label);
    else if (strcmp(job->label, "busy") == 0)
        http_respond_shed(request, 503, 2, job->label);
    else
        http_respond_error(request, job->status, job->label, job->text);
}

static void put_upload(struct json_writer *writer, const struct upload_job *job)
{
    const struct upload_facts *facts = &job->facts;
    char hex[64];

    json_put_object(writer, NULL);
    json_put_text(writer, "upload", job->id);
    json_put_text(writer, "package_id", facts->pack_name);
    json_put_text(writer, "version", facts->version);
    json_put_text(writer, "type", facts->type);
    json_put_string(writer, "sha256",
        (struct span){ hex, crypto_hex_encode(facts->sha256, sizeof facts->sha256, hex) });
    json_put_int(writer, "size_bytes", (int64_t)facts->size);
    json_put_int(writer, "offset", (int64_t)job->offset);
    if (facts->encoding != UPLOAD_WHOLE)
        json_put_text(writer, "encoding", upload_encoding_name(facts->encoding));
    json_put_end(writer);
}

static void respond_upload(struct http_request *request, const struct upload_job *job)
{
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    char path[64];

    add_number(request, "Upload-Offset", job->offset);
    add_number(request, "Upload-Length", job->facts.size);
    (void)http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (job->is_new) {
        (void)snprintf(path, sizeof path, "/v1/admin/uploads/%s", job->id);
        (void)http_add_header(request, "Location", span_of(path));
    }
    put_upload(&writer, job);
    if (json_writer_end(&writer) != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, job->is_new ? 201 : 200, "application/json", &body);
    buffer_free(&body);
}

/* ---- one step, one answer ------------------------------------------------------------------- */

static bool read_id(struct http_request *request, char ret_id[UPLOAD_ID_CHARS + 1])
{
    struct span id = http_path_part(request, "id");

    for (size_t i = 0; id.size == UPLOAD_ID_CHARS && i < id.size; i++)
        if (!((id.at[i] >= '0' && id.at[i] <= '9') || (id.at[i] >= 'a' && id.at[i] <= 'f')))
            id.size = 0;
    if (id.size != UPLOAD_ID_CHARS) {
        http_respond_error(request, 404, "UploadNotFound", "there is no such upload");
        return false;
    }
    memcpy(ret_id, id.at, id.size);
    ret_id[id.size] = '\0';
    return true;
}

/* The job of the request when it came back; NULL: it did not, and the request has been answered. */
static struct upload_job *take_job(struct http_request *request, const struct tr_event *event)
{
    struct packs_request *call = packs_request_of(request);
    struct upload_job *job = call->data;

    call->data = NULL;
    if (event->status == 0 && job->status >= 200 && job->status < 300)
        return job;
    if (event->status == 0 && job->status != 0)
        respond_error(request, job);
    else
        http_respond_lost(request, event->status, http_method(request) != HTTP_GET, "uploads");
    upload_job_unref(job);
    return NULL;
}

/* Takes the job. */
static void ask(struct http_request *request, struct upload_job *job, http_then_fn then)
{
    struct packs_request *call = packs_request_of(request);
    struct upload_message message = { upload_job_ref(job) };

    call->data = job;
    if (http_ask(request, call->packs->uploads, &message, sizeof message, then) == 0)
        return;
    call->data = NULL;
    upload_job_unref(job);
    upload_job_unref(job);
    http_respond_shed(request, 503, 1, "busy");
}

/* About the upload of the path. NULL: answered. */
static struct upload_job *job_of_path(
    struct http_request *request, void *state, enum upload_action action)
{
    char id[UPLOAD_ID_CHARS + 1];
    struct upload_job *job;

    if (packs_request_start(request, state) == NULL || !read_id(request, id))
        return NULL;
    job = upload_job_new(action);
    if (job == NULL)
        http_respond_shed(request, 503, 1, "memory");
    else
        memcpy(job->id, id, sizeof job->id);
    return job;
}

static void on_upload(struct http_request *request, const struct tr_event *event)
{
    struct upload_job *job = take_job(request, event);

    if (job == NULL)
        return;
    respond_upload(request, job);
    upload_job_unref(job);
}

void api_get_upload(struct http_request *request, void *state)
{
    struct upload_job *job = job_of_path(request, state, UPLOAD_LOOK);

    if (job != NULL)
        ask(request, job, on_upload);
}

static void on_deleted(struct http_request *request, const struct tr_event *event)
{
    struct upload_job *job = take_job(request, event);

    if (job == NULL)
        return;
    http_respond(request, 204, NULL, (struct span){ NULL, 0 });
    upload_job_unref(job);
}

void api_delete_upload(struct http_request *request, void *state)
{
    struct upload_job *job = job_of_path(request, state, UPLOAD_DELETE);

    if (job != NULL)
        ask(request, job, on_deleted);
}

static void on_finished(struct http_request *request, const struct tr_event *event)
{
    struct upload_job *job = take_job(request, event);
    struct edit *edit;

    if (job == NULL)
        return;
    edit = job->edit;
    if (edit->status >= 200 && edit->status < 300)
        http_respond_buffer(request, 201, "application/json", &edit->answer);
    else if (edit->status >= 400 && edit->status < 500)
        http_respond_error(request, edit->status, edit->label, edit->text);
    else
        http_respond_lost(request, SQL_EUNKNOWN, edit->status == 504, "catalogue");
    upload_job_unref(job);
}

void api_finish_upload(struct http_request *request, void *state)
{
    struct upload_job *job = job_of_path(request, state, UPLOAD_FINISH);

    if (job == NULL)
        return;
    job->edit = edit_create(request, &upload_edit_kind);
    if (job->edit == NULL)
        upload_job_unref(job); /* answered */
    else
        ask(request, job, on_finished);
}

/* ---- POST packs/{name}/uploads -------------------------------------------------------------- */

static void copy_text(char *to, size_t size, struct span text)
{
    size_t length = text.size < size ? text.size : size - 1;

    memcpy(to, text.size == 0 ? "" : text.at, length);
    to[length] = '\0';
}

/* The members of the body; false: `expect` says what is wrong. */
static bool read_facts(struct json_expect *expect, struct upload_facts *facts)
{
    struct span version = json_need_string(expect, "version", 1, PACK_VERSION_MAX);
    struct span sha256 = json_need_string(expect, "sha256", 64, 64);
    struct span type = json_may_string(expect, "type", 3, PACK_TYPE_MAX);
    struct span encoding = json_may_string(expect, "encoding", 1, 8);
    size_t size;

    facts->size = (uint64_t)json_need_int(expect, "size", 0, SIZE_LARGEST);
    if (!expect->failed && !manifest_is_version(version))
        json_expect_fail(expect, "version", "must be of A-Z a-z 0-9 . + _ - and not begin with .");
    if (!expect->failed &&
        crypto_hex_decode(sha256, facts->sha256, sizeof facts->sha256, &size) != 0)
        json_expect_fail(expect, "sha256", "must be 64 hex digits");
    if (!expect->failed && type.at != NULL && !manifest_is_type(type))
        json_expect_fail(expect, "type", "must be a media type without parameters");
    if (!expect->failed && encoding.at != NULL &&
        !upload_encoding_parse(encoding, &facts->encoding))
        json_expect_fail(expect, "encoding", "must be zstd or gzip");
    if (expect->failed)
        return false;
    copy_text(facts->version, sizeof facts->version, version);
    copy_text(
        facts->type, sizeof facts->type, type.at == NULL ? SPAN("application/octet-stream") : type);
    return true;
}

/* Against what there is; false: answered. */
static bool place_facts(struct http_request *request, struct upload_facts *facts)
{
    const struct packs_request *call = packs_request_of(request);
    struct span name = http_path_part(request, "name");
    const struct pack *pack = catalogue_any_pack(catalogue_view(call->packs), name);
    const struct pack_version *version =
        pack == NULL ? NULL : catalogue_any_version(pack, span_of(facts->version));

    if (pack == NULL) {
        http_respond_error(
            request, 404, "PackNotFound", "there is no such pack: register it first");
        return false;
    }
    if (facts->encoding == UPLOAD_WHOLE && version != NULL) {
        http_respond_error(request, 409, "VersionExists",
            "this pack has this version already, and versions do not change: choose another "
            "number");
        return false;
    }
    if (facts->encoding != UPLOAD_WHOLE && version == NULL) {
        http_respond_error(request, 404, "VersionNotFound",
            "an encoding is of a version that is there: upload that first");
        return false;
    }
    if ((facts->encoding == UPLOAD_ZSTD && version->zstd.there) ||
        (facts->encoding == UPLOAD_GZIP && version->gzip.there)) {
        http_respond_error(request, 409, "VariantExists", "this version has this encoding already");
        return false;
    }
    facts->pack = pack->id;
    copy_text(facts->pack_name, sizeof facts->pack_name, span_of(pack->name));
    copy_text(facts->actor, sizeof facts->actor, call->actor);
    if (facts->encoding != UPLOAD_WHOLE) {
        facts->version_id = version->id;
        facts->plain_size = version->size;
        memcpy(facts->plain_sha256, version->sha256, sizeof facts->plain_sha256);
        copy_text(facts->type, sizeof facts->type, span_of(version->type));
    }
    return true;
}

void api_create_upload(struct http_request *request, void *state)
{
    struct upload_facts facts = { 0 };
    struct json_doc doc;
    struct json_expect expect;
    struct upload_job *job;
    bool is_read;

    if (packs_request_start(request, state) == NULL || !api_read_body(request, &doc, &expect))
        return;
    is_read = read_facts(&expect, &facts);
    if (!is_read)
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    json_doc_free(&doc);
    if (!is_read || !place_facts(request, &facts))
        return;
    job = upload_job_new(UPLOAD_CREATE);
    if (job == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    job->facts = facts;
    ask(request, job, on_upload);
}

/* ---- PATCH uploads/{id} --------------------------------------------------------------------- */

/* Nothing more is taken. The claim goes, with what was gathered if the client is gone. */
static void end_intake(struct http_request *request, bool keeps_bytes)
{
    struct packs_request *call = packs_request_of(request);
    struct intake *intake = call->data;
    struct upload_message message = { intake->filling };
    struct upload_job *job = intake->filling;

    intake->filling = NULL;
    upload_job_unref(intake->spare);
    intake->spare = NULL;
    if (job == NULL)
        return;
    job->action = UPLOAD_RELEASE;
    job->claim = intake->claim;
    job->offset = job->begin = intake->offset;
    if (intake->flying != NULL) /* which may never be handled: who asked for it is gone */
        job->begin += intake->flying->bytes.size;
    memcpy(job->id, intake->id, sizeof job->id);
    if (!keeps_bytes)
        buffer_clear(&job->bytes);
    /* If it cannot be told, the claim ends by itself. */
    if (tr_tell(call->packs->uploads, &message, sizeof message) != 0)
        upload_job_unref(job);
}

static void refuse_intake(struct http_request *request, const struct upload_job *job)
{
    end_intake(request, job == NULL); /* what was gathered is right, if nobody says otherwise */
    if (job != NULL && job->status >= 400)
        respond_error(request, job);
    else
        http_respond_shed(request, 503, 1, "uploads");
}

static void go_on(struct http_request *request);

/* A job came back. False: there is nothing to go on with. */
static bool has_come_back(
    struct http_request *request, const struct tr_event *event, struct upload_job **ret_job)
{
    struct intake *intake = packs_request_of(request)->data;
    struct upload_job *job = intake->flying;

    intake->flying = NULL;
    if (intake->filling == NULL) { /* the client is gone */
        upload_job_unref(job);
        return false;
    }
    if (event->status != 0 || job->status != 200) {
        refuse_intake(request, event->status == 0 ? job : NULL);
        upload_job_unref(job);
        return false;
    }
    *ret_job = job;
    return true;
}

static void on_claimed(struct http_request *request, const struct tr_event *event)
{
    struct intake *intake = packs_request_of(request)->data;
    struct upload_job *job;

    if (!has_come_back(request, event, &job))
        return;
    intake->offset = job->offset;
    intake->spare = job;
    go_on(request);
}

static void on_written(struct http_request *request, const struct tr_event *event)
{
    struct intake *intake = packs_request_of(request)->data;
    struct upload_job *job;

    if (!has_come_back(request, event, &job))
        return;
    intake->offset = job->offset;
    buffer_clear(&job->bytes);
    intake->spare = job;
    go_on(request);
}

/* What is gathered beyond one write begins the next. TR_ENOMEM. */
static int cut_write(const struct intake *intake)
{
    struct buffer *bytes = &intake->filling->bytes;
    size_t size = upload_write_size(intake->offset, bytes->size);
    int rc = buffer_append(&intake->spare->bytes, bytes->bytes + size, bytes->size - size);

    if (rc == 0)
        bytes->size = size;
    return rc;
}

/* What is gathered goes to the actor. False: refused. */
static bool send(struct http_request *request)
{
    struct packs_request *call = packs_request_of(request);
    struct intake *intake = call->data;
    struct upload_job *job = intake->filling;
    struct upload_message message = { job };

    if (intake->spare == NULL)
        intake->spare = upload_job_new(UPLOAD_WRITE);
    if (intake->spare == NULL || cut_write(intake) != 0) {
        refuse_intake(request, NULL);
        return false;
    }
    job->action = UPLOAD_WRITE;
    job->claim = intake->claim;
    job->begin = intake->offset;
    memcpy(job->id, intake->id, sizeof job->id);
    upload_job_ref(job);
    if (http_ask(request, call->packs->uploads, &message, sizeof message, on_written) != 0) {
        upload_job_unref(job);
        refuse_intake(request, NULL);
        return false;
    }
    intake->flying = job;
    intake->filling = intake->spare;
    intake->spare = NULL;
    return true;
}

static void go_on(struct http_request *request)
{
    const struct intake *intake = packs_request_of(request)->data;
    size_t size = intake->filling->bytes.size;

    if (size >= UPLOAD_PIECE || (intake->has_ended && size > 0)) {
        if (!send(request))
            return;
    } else if (intake->has_ended) {
        end_intake(request, false);
        add_number(request, "Upload-Offset", intake->offset);
        http_respond(request, 204, NULL, (struct span){ NULL, 0 });
        return;
    }
    http_body_resume(request);
}

static bool on_piece(struct http_request *request, const char *bytes, size_t size)
{
    struct intake *intake = packs_request_of(request)->data;

    if (intake->filling == NULL)
        return true;
    if (bytes == NULL) {
        end_intake(request, true);
        return true;
    }
    if (size == 0) {
        intake->has_ended = true;
        if (intake->flying == NULL)
            go_on(request);
        return true;
    }
    if (buffer_append(&intake->filling->bytes, bytes, size) != 0) {
        refuse_intake(request, NULL);
        return true;
    }
    if (intake->filling->bytes.size < UPLOAD_PIECE)
        return true;
    if (intake->flying != NULL)
        return false;
    (void)send(request);
    return true;
}

/* How long it is going to be: 0 when it does not say. False: answered. */
static bool read_length(struct http_request *request, uint64_t *ret_length)
{
    struct span length = http_header(request, "Content-Length");

    *ret_length = 0;
    if (length.at == NULL && http_header(request, "Transfer-Encoding").at == NULL) {
        http_respond_error(request, 411, "LengthRequired", "say how many bytes: Content-Length");
        return false;
    }
    if (length.at != NULL && !span_u64(length, ret_length)) {
        http_respond_error(request, 400, "InvalidRequest", "Content-Length is a number");
        return false;
    }
    return true;
}

void api_patch_upload(struct http_request *request, void *state)
{
    struct packs_request *call = packs_request_start(request, state);
    struct intake *intake = call == NULL ? NULL : http_alloc(request, sizeof *intake);
    struct span value = { NULL, 0 };
    struct upload_message message;
    uint64_t offset, length;
    struct upload_job *job;

    if (call == NULL)
        return;
    if (intake == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!read_id(request, intake->id) || !read_length(request, &length))
        return;
    if (!http_header_one(request, "Upload-Offset", &value) ||
        !upload_offset_parse(value, &offset)) {
        http_respond_error(request, 400, "InvalidRequest",
            "say where these bytes belong: one header Upload-Offset, a number");
        return;
    }
    job = upload_job_new(UPLOAD_CLAIM);
    intake->filling = job == NULL ? NULL : upload_job_new(UPLOAD_WRITE);
    if (intake->filling == NULL) {
        upload_job_unref(job);
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    memcpy(job->id, intake->id, sizeof job->id);
    intake->claim = job->claim = tr_random(http_context(request)) | 1;
    intake->offset = job->offset = offset;
    job->length = length;
    intake->has_ended = length == 0 && http_header(request, "Content-Length").at != NULL;
    call->data = intake;
    message.job = upload_job_ref(job);
    if (http_ask(request, call->packs->uploads, &message, sizeof message, on_claimed) != 0) {
        upload_job_unref(job);
        upload_job_unref(job);
        refuse_intake(request, NULL);
        return;
    }
    intake->flying = job;
    http_on_body(request, on_piece);
}
