/* SPDX-License-Identifier: Apache-2.0 */
/* upload_api.c: uploads over HTTP, in the manner of tus: the client says at which offset it
 * continues, and the server says which offset is right.
 *
 * A PATCH has a receiver. It gathers the body in one job while another job is with the actor, so a
 * request has at most two pieces in memory, and the connection is not read while both are full.
 *
 *   claim ──▶ [gather ──▶ write]* ──▶ answered
 *     └────────────┴──────────── client gone: the gathered bytes go to the actor with the release */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "services/packs/edit.h"
#include "services/packs/objects.h"
#include "services/packs/upload.h"

#define SIZE_LARGEST (INT64_C(1) << 40)

struct receiver {
    char id[UPLOAD_ID_CHARS + 1];
    uint64_t claim;             /* random: the name under which it sends */
    uint64_t offset;            /* as the client gave it, or as the actor told it last */
    struct upload_job *filling; /* NULL: the receiver has stopped */
    struct upload_job *sent;    /* with the actor */
    struct upload_job *spare;
    bool has_ended; /* the whole body has arrived */
};

/* ---- answers -------------------------------------------------------------------------------- */

static void add_number(struct http_request *request, const char *name, uint64_t number)
{
    char text[24];
    int size = snprintf(text, sizeof text, "%llu", (unsigned long long)number);

    (void)http_add_header(request, name, (struct span){ text, (size_t)size });
}

static void respond_upload_error(struct http_request *request, const struct upload_job *job)
{
    tr_assert(job->status >= 400 && job->label != NULL);
    if (job->status == 409 && job->facts.pack != 0) /* the upload exists: say where to continue */
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
    if (facts->encoding != PACK_IDENTITY)
        json_put_text(writer, "encoding", pack_codings[facts->encoding - 1]);
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

    packs_copy_text(ret_id, UPLOAD_ID_CHARS + 1, id);
    if (id.size == UPLOAD_ID_CHARS && object_name_is_valid(ret_id, UPLOAD_ID_CHARS))
        return true;
    http_respond_error(request, 404, "UploadNotFound", "There is no upload with this id.");
    return false;
}

/* Returns NULL after answering 503. */
static struct upload_job *create_job(struct http_request *request, enum upload_action action)
{
    struct upload_job *job = upload_job_create(action);

    if (job == NULL)
        http_respond_shed(request, 503, 1, "memory");
    return job;
}

/* The job that the request asked the actor for came back. */
static void on_answer(struct http_request *request, const struct tr_event *event)
{
    struct packs_request *asked = packs_request_of(request);
    struct upload_job *job = asked->data;

    asked->data = NULL;
    if (event->status != 0 || job->status == 0)
        http_respond_lost(
            request, event->status, http_route(request)->method != HTTP_GET, "uploads");
    else if (job->status >= 300)
        respond_upload_error(request, job);
    else if (job->action == UPLOAD_FINISH)
        edit_respond(request, job->edit);
    else if (job->action == UPLOAD_DELETE)
        http_respond(request, 204, NULL, (struct span){ NULL, 0 });
    else
        respond_upload(request, job);
    upload_job_unref(job);
}

/* Send the job to the actor, with a reference of its own. */
static int send_job(struct http_request *request, struct upload_job *job, http_then_fn then)
{
    struct upload_message message = { upload_job_ref(job) };
    int rc = http_ask(
        request, packs_request_of(request)->packs->uploads, &message, sizeof message, then);

    if (rc != 0)
        upload_job_unref(job);
    return rc;
}

/* Ask the actor and answer with the result. Takes the job. */
static void ask_uploads(struct http_request *request, struct upload_job *job)
{
    struct packs_request *asked = packs_request_of(request);

    tr_assert(asked->data == NULL); /* the request asks once */
    asked->data = job;
    if (send_job(request, job, on_answer) == 0)
        return;
    asked->data = NULL;
    upload_job_unref(job);
    http_respond_shed(request, 503, 1, "busy");
}

/* Create a job for the upload of the path. Returns NULL after answering. */
static struct upload_job *job_of_path(struct http_request *request, enum upload_action action)
{
    char id[UPLOAD_ID_CHARS + 1];
    struct upload_job *job;

    if (packs_request_start(request) == NULL || !read_id(request, id))
        return NULL;
    job = create_job(request, action);
    if (job != NULL)
        memcpy(job->id, id, sizeof job->id);
    return job;
}

void api_get_upload(struct http_request *request)
{
    struct upload_job *job = job_of_path(request, UPLOAD_LOOK);

    if (job != NULL)
        ask_uploads(request, job);
}

void api_delete_upload(struct http_request *request)
{
    struct upload_job *job = job_of_path(request, UPLOAD_DELETE);

    if (job != NULL)
        ask_uploads(request, job);
}

void api_finish_upload(struct http_request *request)
{
    struct upload_job *job = job_of_path(request, UPLOAD_FINISH);

    if (job == NULL)
        return;
    job->edit = edit_create(request, &upload_edit_kind);
    if (job->edit == NULL)
        upload_job_unref(job); /* answered */
    else
        ask_uploads(request, job);
}

/* ---- POST packs/{name}/uploads -------------------------------------------------------------- */

enum { VERSION, SHA256, TYPE, ENCODING, SIZE };
static const struct param create_params[] = {
    [VERSION] = { "version", PARAM_TEXT, PARAM_REQUIRED, 1, PACK_VERSION_MAX,
        .is_valid = manifest_is_version, .rule = PACK_VERSION_RULE },
    [SHA256] = { "sha256", PARAM_HEX, PARAM_REQUIRED, .min = CRYPTO_SHA256_BYTES,
        .max = CRYPTO_SHA256_BYTES },
    [TYPE] = { "type", PARAM_TEXT, .min = 3, .max = PACK_TYPE_MAX, .is_valid = manifest_is_type,
        .rule = "must be a media type without parameters" },
    [ENCODING] = { "encoding", PARAM_CHOICE, .fallback = -1, .choices = pack_codings },
    [SIZE] = { "size", PARAM_INT, PARAM_REQUIRED, 0, .max = SIZE_LARGEST },
    PARAM_LAST,
};

static void fill_facts(const struct param_value *values, struct upload_facts *facts)
{
    struct span type = values[TYPE].text;

    facts->size = (uint64_t)values[SIZE].number;
    memcpy(facts->sha256, values[SHA256].text.at, sizeof facts->sha256);
    facts->encoding = (enum pack_coding)(values[ENCODING].number + 1);
    packs_copy(facts->version, values[VERSION].text);
    packs_copy(facts->type, type.at == NULL ? SPAN("application/octet-stream") : type);
}

/* Complete the facts from the catalogue. Returns false after answering a conflict with it. */
static bool place_facts(struct http_request *request, struct upload_facts *facts)
{
    const struct packs_request *asked = packs_request_of(request);
    const struct pack *pack =
        catalogue_any_pack(catalogue_view(asked->packs), http_path_part(request, "name"));
    const struct pack_version *version =
        pack == NULL ? NULL : catalogue_any_version(pack, span_of(facts->version));
    bool is_whole = facts->encoding == PACK_IDENTITY;

    if (pack == NULL)
        http_respond_error(
            request, 404, "PackNotFound", "There is no pack of this name; register it first.");
    else if (is_whole && version != NULL)
        http_respond_error(request, 409, "VersionExists", UPLOAD_VERSION_EXISTS);
    else if (!is_whole && version == NULL)
        http_respond_error(request, 404, "VersionNotFound",
            "The pack has no such version; upload the version before its encodings.");
    else if (!is_whole && version->variants[facts->encoding - 1].there)
        http_respond_error(request, 409, "VariantExists", UPLOAD_VARIANT_EXISTS);
    else {
        facts->pack = pack->id;
        packs_copy(facts->pack_name, span_of(pack->name));
        packs_copy(facts->actor, asked->actor);
        if (is_whole)
            return true;
        facts->version_id = version->id;
        facts->plain_size = version->size;
        memcpy(facts->plain_sha256, version->sha256, sizeof facts->plain_sha256);
        packs_copy(facts->type, span_of(version->type));
        return true;
    }
    return false;
}

void api_create_upload(struct http_request *request)
{
    struct param_reader reader = { .request = request, .is_rest = true };
    struct param_value values[PARAMS_MAX] = { 0 };
    struct upload_facts facts = { 0 };
    struct upload_job *job;

    if (packs_request_start(request) == NULL)
        return;
    param_read_body(&reader, create_params, values);
    if (param_reader_refuse(&reader))
        return;
    fill_facts(values, &facts);
    param_reader_fini(&reader);
    if (!place_facts(request, &facts))
        return;
    job = create_job(request, UPLOAD_CREATE);
    if (job == NULL)
        return;
    job->facts = facts;
    ask_uploads(request, job);
}

/* ---- PATCH uploads/{id} --------------------------------------------------------------------- */

/* Stop receiving and release the claim. If the client is gone, the gathered bytes go with it. */
static void stop_receiver(struct http_request *request, bool keeps_bytes)
{
    struct packs_request *asked = packs_request_of(request);
    struct receiver *receiver = asked->data;
    struct upload_message message = { receiver->filling };
    struct upload_job *job = receiver->filling;

    receiver->filling = NULL;
    upload_job_unref(receiver->spare);
    receiver->spare = NULL;
    if (job == NULL)
        return;
    job->action = UPLOAD_RELEASE;
    job->claim = receiver->claim;
    job->offset = job->begin = receiver->offset;
    if (receiver->sent != NULL) /* which may never be handled: its request is gone */
        job->begin += receiver->sent->bytes.size;
    memcpy(job->id, receiver->id, sizeof job->id);
    if (!keeps_bytes)
        buffer_clear(&job->bytes);
    /* If the message cannot be sent, the claim ends by itself. */
    if (tr_tell(asked->packs->uploads, &message, sizeof message) != 0)
        upload_job_unref(job);
}

/* Always returns false. */
static bool refuse_receiver(struct http_request *request, const struct upload_job *job)
{
    stop_receiver(request, job == NULL); /* without a refusal the gathered bytes are good */
    if (job != NULL && job->status >= 400)
        respond_upload_error(request, job);
    else
        http_respond_shed(request, 503, 1, "uploads");
    return false;
}

/* Move the bytes beyond one write to the next piece. Returns TR_ENOMEM. */
static int cut_write(const struct receiver *receiver)
{
    struct buffer *bytes = &receiver->filling->bytes;
    size_t size = upload_write_size(receiver->offset, bytes->size);
    int rc = buffer_append(&receiver->spare->bytes, bytes->bytes + size, bytes->size - size);

    if (rc == 0)
        bytes->size = size;
    return rc;
}

static void on_written(struct http_request *request, const struct tr_event *event);

/* Send the gathered bytes to the actor. Returns false after refusing. */
static bool send_piece(struct http_request *request)
{
    struct receiver *receiver = packs_request_of(request)->data;
    struct upload_job *job = receiver->filling;

    tr_assert(receiver->sent == NULL);
    tr_assert(job->bytes.size > 0);
    if (receiver->spare == NULL)
        receiver->spare = upload_job_create(UPLOAD_WRITE);
    if (receiver->spare == NULL || cut_write(receiver) != 0)
        return refuse_receiver(request, NULL);
    job->action = UPLOAD_WRITE;
    job->claim = receiver->claim;
    job->begin = receiver->offset;
    memcpy(job->id, receiver->id, sizeof job->id);
    if (send_job(request, job, on_written) != 0)
        return refuse_receiver(request, NULL);
    receiver->sent = job;
    receiver->filling = receiver->spare;
    receiver->spare = NULL;
    return true;
}

static void continue_receiver(struct http_request *request)
{
    const struct receiver *receiver = packs_request_of(request)->data;
    size_t size = receiver->filling->bytes.size;

    tr_assert(receiver->sent == NULL);
    if (size >= UPLOAD_PIECE || (receiver->has_ended && size > 0)) {
        if (!send_piece(request))
            return;
    } else if (receiver->has_ended) {
        stop_receiver(request, false);
        add_number(request, "Upload-Offset", receiver->offset);
        http_respond(request, 204, NULL, (struct span){ NULL, 0 });
        return;
    }
    http_body_resume(request);
}

/* The claim or a write came back from the actor. */
static void on_written(struct http_request *request, const struct tr_event *event)
{
    struct receiver *receiver = packs_request_of(request)->data;
    struct upload_job *job = receiver->sent;

    tr_assert(job != NULL && receiver->spare == NULL);
    receiver->sent = NULL;
    if (receiver->filling == NULL) { /* the client is gone */
        upload_job_unref(job);
        return;
    }
    if (event->status != 0 || job->status != 200) {
        (void)refuse_receiver(request, event->status == 0 ? job : NULL);
        upload_job_unref(job);
        return;
    }
    receiver->offset = job->offset;
    buffer_clear(&job->bytes);
    receiver->spare = job;
    continue_receiver(request);
}

/* Returns false while both jobs are full: the connection is not read until http_body_resume. */
static bool on_piece(struct http_request *request, const char *bytes, size_t size)
{
    struct receiver *receiver = packs_request_of(request)->data;

    if (receiver->filling == NULL)
        return true;
    if (bytes == NULL) {
        stop_receiver(request, true);
        return true;
    }
    if (size == 0) {
        receiver->has_ended = true;
        if (receiver->sent == NULL)
            continue_receiver(request);
        return true;
    }
    if (buffer_append(&receiver->filling->bytes, bytes, size) != 0)
        return !refuse_receiver(request, NULL);
    if (receiver->filling->bytes.size < UPLOAD_PIECE)
        return true;
    if (receiver->sent != NULL)
        return false;
    (void)send_piece(request);
    return true;
}

/* Read Upload-Offset, and Content-Length as the length or 0 if the body is chunked. Returns false
 * after answering. */
static bool read_headers(struct http_request *request, uint64_t *ret_offset, uint64_t *ret_length)
{
    struct span length = http_header(request, "Content-Length"), offset = { NULL, 0 };

    *ret_length = 0;
    if (length.at == NULL && http_header(request, "Transfer-Encoding").at == NULL)
        http_respond_error(request, 411, "LengthRequired",
            "Content-Length is missing; say how many bytes the body has.");
    else if (length.at != NULL && !span_u64(length, ret_length))
        http_respond_error(request, 400, "InvalidRequest", "Content-Length must be a number.");
    else if (!http_header_one(request, "Upload-Offset", &offset) || !span_u64(offset, ret_offset))
        http_respond_error(request, 400, "InvalidRequest",
            "Upload-Offset must be given once and be a number; it says where the bytes belong.");
    else
        return true;
    return false;
}

void api_patch_upload(struct http_request *request)
{
    struct packs_request *asked = packs_request_start(request);
    struct receiver *receiver = asked == NULL ? NULL : http_alloc(request, sizeof *receiver);
    uint64_t offset, length;
    struct upload_job *job;

    if (asked == NULL)
        return;
    if (receiver == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!read_id(request, receiver->id) || !read_headers(request, &offset, &length))
        return;
    job = create_job(request, UPLOAD_CLAIM);
    receiver->filling = job == NULL ? NULL : create_job(request, UPLOAD_WRITE);
    if (receiver->filling == NULL) {
        upload_job_unref(job);
        return;
    }
    memcpy(job->id, receiver->id, sizeof job->id);
    receiver->claim = job->claim = tr_random(http_context(request)) | 1;
    receiver->offset = job->offset = offset;
    job->length = length;
    receiver->has_ended = length == 0 && http_header(request, "Content-Length").at != NULL;
    asked->data = receiver;
    if (send_job(request, job, on_written) != 0) {
        upload_job_unref(job);
        (void)refuse_receiver(request, NULL);
        return;
    }
    receiver->sent = job;
    http_on_body(request, on_piece);
}
