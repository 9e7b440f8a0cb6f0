/* SPDX-License-Identifier: Apache-2.0 */
/* sync_wire.c: requests become jobs of the engine, and ended jobs become answers. */
#include <fcntl.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "cli/sync_link.h"
#include "matrix/client/body.h"
#include "matrix/client/media.h"

/* ---- requests --------------------------------------------------------------------------------- */

static bool wire_read_verb(struct span name, enum mxengine_verb *ret_verb)
{
#define WIRE_NAME(name, text) #name,
    static const char *const names[] = { MXENGINE_VERBS(WIRE_NAME) };
#undef WIRE_NAME

    for (int i = 0; i < MXENGINE_VERB_COUNT; i++)
        if (span_is_nocase(name, names[i])) {
            *ret_verb = (enum mxengine_verb)i;
            return true;
        }
    return false;
}

static bool wire_read_act(struct span name, enum mxclient_verify_act *ret_act)
{
    static const char *const names[] = {
        [MXCLIENT_VERIFY_ACCEPT] = "accept",
        [MXCLIENT_VERIFY_START] = "start",
        [MXCLIENT_VERIFY_MATCH] = "match",
        [MXCLIENT_VERIFY_MISMATCH] = "mismatch",
        [MXCLIENT_VERIFY_CANCEL] = "cancel",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (span_is(name, names[i])) {
            *ret_act = (enum mxclient_verify_act)i;
            return true;
        }
    return false;
}

/* The values of --share. */
static const char *const wire_policies[] = {
    [MXCLIENT_SHARE_EXCLUDE] = "verified",
    [MXCLIENT_SHARE_HALT] = "halt",
    [MXCLIENT_SHARE_ALL] = "all",
};
enum { WIRE_POLICIES = sizeof wire_policies / sizeof wire_policies[0] };

static bool wire_read_policy(struct span name, struct mxengine_job *job)
{
    for (int i = 0; i < WIRE_POLICIES; i++)
        if (span_is(name, wire_policies[i])) {
            job->policy = (enum mxclient_policy)i;
            job->has_policy = true;
            return true;
        }
    return false;
}

/* Open the file of an upload or a download. */
static int wire_open(struct mxengine_job *job, struct span path)
{
    bool is_upload = job->verb == MXENGINE_UPLOAD;
    char name[MXCLIENT_MEDIA_PATH_MAX];
    struct stat about;

    if (path.size == 0 || path.size >= sizeof name || path.at[0] != '/' ||
        memchr(path.at, 0, path.size) != NULL)
        return TR_EINVAL;
    memcpy(name, path.at, path.size);
    name[path.size] = 0;
    job->file.fd = open(name,
        O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (is_upload ? O_RDONLY : O_RDWR | O_CREAT), 0600);
    if (job->file.fd < 0 || fstat(job->file.fd, &about) != 0 || !S_ISREG(about.st_mode))
        return TR_EIO;
    job->file.size = (uint64_t)about.st_size;
    if (job->file.size_max == 0)
        job->file.size_max = MXCLIENT_MEDIA_BYTES_MAX;
    return 0;
}

/* Take one member of a request. A member without a meaning is skipped. */
static int wire_take(struct mxengine_job *job, struct span key, const struct json *value)
{
    static const char *const args[MXENGINE_ARGS] = {
        [MXENGINE_URL] = "url",
        [MXENGINE_USER] = "user",
        [MXENGINE_PASSWORD] = "password",
        [MXENGINE_TOKEN] = "token",
        [MXENGINE_NAME] = "name",
        [MXENGINE_ROOM] = "room",
        [MXENGINE_TYPE] = "type",
        [MXENGINE_CONTENT] = "content",
        [MXENGINE_DEVICE] = "device",
        [MXENGINE_TEXT] = "text",
    };
    struct json_writer writer;
    struct span text;
    int64_t number;

    for (int i = 0; i < MXENGINE_ARGS; i++) {
        if (!span_is(key, args[i]))
            continue;
        if (json_string(value, &text))
            mxengine_job_set(job, (enum mxengine_arg)i, text);
        else { /* the content of an event, or sessions */
            writer = json_writer(&job->args[i]);
            json_put_value(&writer, NULL, value);
        }
        return 0;
    }
    if (span_is(key, "after") && json_int(value, &number))
        job->after_seq = number;
    else if (span_is(key, "count") && json_int(value, &number) && number > 0)
        job->count_max = number < SYNC_EVENTS_MAX ? (uint32_t)number : SYNC_EVENTS_MAX;
    else if (span_is(key, "waits"))
        return json_bool(value, &job->waits) ? 0 : TR_EINVAL;
    else if (span_is(key, "own"))
        return json_bool(value, &job->own) ? 0 : TR_EINVAL;
    else if (span_is(key, "timeoutMs") && json_int(value, &number) && number > 0)
        job->timeout_ns = TR_MILLISECONDS((uint64_t)number);
    else if (span_is(key, "act"))
        return json_string(value, &text) && wire_read_act(text, &job->act) ? 0 : TR_EINVAL;
    else if (span_is(key, "share"))
        return json_string(value, &text) && wire_read_policy(text, job) ? 0 : TR_EINVAL;
    else if (span_is(key, "sizeMax") && json_int(value, &number) && number > 0)
        job->file.size_max = (uint64_t)number < MXCLIENT_MEDIA_BYTES_MAX ? (uint64_t)number
                                                                         : MXCLIENT_MEDIA_BYTES_MAX;
    else if (span_is(key, "path"))
        return json_string(value, &text) ? wire_open(job, text) : TR_EINVAL;
    return 0;
}

int sync_wire_read(const struct json *request, struct mxengine_job **ret_job)
{
    enum mxengine_verb verb;
    struct mxengine_job *job;
    struct span name;
    int rc = 0;

    if (!json_string(json_get(request, "do"), &name) || !wire_read_verb(name, &verb))
        return TR_EINVAL;
    job = mxengine_job_create(verb);
    if (job == NULL)
        return TR_ENOMEM;
    job->count_max = SYNC_EVENTS_MAX;
    for (struct json_iter it = json_iterate(request); rc == 0 && json_next(&it);)
        rc = wire_take(job, it.key, it.value);
    if (rc != 0) {
        mxengine_job_unref(job);
        return rc;
    }
    *ret_job = job;
    return 0;
}

/* ---- answers ---------------------------------------------------------------------------------- */

static void wire_put_rooms(const struct mxengine_job *job, struct json_writer *writer)
{
    struct mxstore_room row;

    json_put_array(writer, "rooms");
    for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
        mxstore_row(job->rows, 0, i, MXSTORE_IS_room, &row);
        json_put_object(writer, NULL);
        json_put_string(writer, "roomId", row.room_id);
        json_put_string(writer, "membership", row.membership);
        json_put_bool(writer, "encrypted", row.is_encrypted != 0);
        if (row.algorithm.size > 0)
            json_put_string(writer, "algorithm", row.algorithm);
        json_put_bool(writer, "syncRoom", row.is_sync_room != 0);
        if (row.name.size > 0)
            json_put_string(writer, "name", row.name);
        if (row.inviter.size > 0)
            json_put_string(writer, "inviter", row.inviter);
        json_put_object(writer, "power");
        json_put_int(writer, "own", row.own_level);
        json_put_int(writer, "invite", row.invite_level);
        json_put_int(writer, "state", row.state_level);
        json_put_end(writer);
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* Write what is known about the author of an event, now and, if that differs, at its decryption. */
static void wire_put_author(const struct mxstore_readable *event, struct json_writer *writer)
{
    json_put_bool(writer, "own", event->is_own != 0);
    json_put_object(writer, "encryption");
    if (event->proof != MXSTORE_BY_UNKNOWN)
        json_put_bool(writer, "encrypted", event->proof != MXSTORE_BY_SERVER);
    if (event->device_id.size > 0) {
        json_put_string(writer, "deviceId", event->device_id);
        json_put_string(writer, "identityKey", event->identity_key);
    }
    json_put_text(writer, "trust", mxstore_proof_text(event->proof_now));
    if (event->proof_now != event->proof)
        json_put_text(writer, "formerTrust", mxstore_proof_text(event->proof));
    json_put_end(writer);
}

/* The answer, the list and the event are around a content. */
_Static_assert(MXCLIENT_EVENT_DEPTH_MAX + 3 <= JSON_WRITE_DEPTH_MAX, "every event can be written");

/* Write an event. A body that the key does not open, or that nests deeper than the engine stores it
 * today, has no content. */
void sync_wire_put_event(const struct mxstore_readable *event, const struct mx_pickle_key *key,
    struct json_writer *writer)
{
    struct json_doc doc = { .depth_max = MXCLIENT_EVENT_DEPTH_MAX };
    struct buffer body = { 0 };

    json_put_object(writer, NULL);
    json_put_int(writer, "seq", event->seq);
    json_put_string(writer, "roomId", event->room_id);
    json_put_string(writer, "eventId", event->event_id);
    json_put_string(writer, "sender", event->sender);
    json_put_string(writer, "type", event->type);
    json_put_int(writer, "originMs", event->origin_ms);
    wire_put_author(event, writer);
    if (mxclient_body_open(key, event->event_id, event->body, &body) == 0 &&
        json_parse_copy(&doc, mxclient_span(&body), 0) == 0)
        json_put_value(writer, "content", json_get(json_root(&doc), "content"));
    json_put_end(writer);
    mx_wipe_buffer(&body);
    mx_wipe_buffer(&doc.copy);
    json_doc_free(&doc);
}

static void wire_put_events(
    const struct mxengine_job *job, const struct mx_pickle_key *key, struct json_writer *writer)
{
    struct mxstore_readable row;

    json_put_array(writer, "events");
    for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
        mxstore_row(job->rows, 0, i, MXSTORE_IS_readable, &row);
        sync_wire_put_event(&row, key, writer);
    }
    json_put_end(writer);
}

/* Write an unsent event. `number` is the one to go on after. */
static void wire_put_unsent(
    const struct mxstore_outbox *row, const struct mx_pickle_key *key, struct json_writer *writer)
{
    struct json_doc doc = { .depth_max = MXCLIENT_EVENT_DEPTH_MAX };
    struct buffer content = { 0 };
    uint64_t number = 0;

    if (row->txn_id.size > 0)
        (void)span_u64((struct span){ row->txn_id.at + 1, row->txn_id.size - 1 }, &number);
    json_put_object(writer, NULL);
    json_put_string(writer, "txnId", row->txn_id);
    json_put_int(writer, "number", (int64_t)number);
    json_put_string(writer, "roomId", row->room_id);
    json_put_int(writer, "createdMs", row->created_ms);
    json_put_text(writer, "state",
        row->sending == MXSTORE_FAILED    ? "failed"
        : row->sending == MXSTORE_SENDING ? "sending"
                                          : "waiting");
    if (row->policy >= 0 && row->policy < WIRE_POLICIES)
        json_put_text(writer, "share", wire_policies[row->policy]);
    json_put_int(writer, "attempts", row->attempts);
    if (row->reason.size > 0)
        json_put_string(writer, "reason", row->reason);
    if (mxclient_body_open(key, row->txn_id, row->content, &content) == 0 &&
        json_parse_copy(&doc, mxclient_span(&content), 0) == 0)
        json_put_value(writer, "content", json_root(&doc));
    json_put_end(writer);
    mx_wipe_buffer(&content);
    mx_wipe_buffer(&doc.copy);
    json_doc_free(&doc);
}

static void wire_put_outbox(
    const struct mxengine_job *job, const struct mx_pickle_key *key, struct json_writer *writer)
{
    struct mxstore_outbox row;

    json_put_array(writer, "outbox");
    for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
        mxstore_row(job->rows, 0, i, MXSTORE_IS_outbox, &row);
        wire_put_unsent(&row, key, writer);
    }
    json_put_end(writer);
}

static void wire_put_status(const struct mxengine_status *status, struct json_writer *writer)
{
#define WIRE_NAME(name, text) #name,
    static const char *const states[] = { MXCLIENT_STATES(WIRE_NAME) };
#undef WIRE_NAME
    struct buffer problem = { 0 };

    json_put_bool(writer, "loaded", status->is_loaded);
    json_put_text(writer, "state", states[status->state]);
    json_put_text(writer, "stateText", mxclient_state_text(status->state));
    json_put_text(writer, "homeserver", status->homeserver);
    json_put_text(writer, "userId", status->user_id);
    json_put_text(writer, "deviceId", status->device_id);
    json_put_int(writer, "lastSeq", status->last_seq);
    json_put_int(writer, "firstSeq", status->first_seq);
    json_put_int(writer, "syncedMs", status->synced_ms);
    json_put_int(writer, "error", status->error);
    mxengine_explain(status, &problem);
    if (problem.size > 0)
        json_put_string(writer, "problem", mxclient_span(&problem));
    buffer_free(&problem);
    json_put_int(writer, "waitMs", (int64_t)status->wait_ms);
    json_put_int(writer, "waitStatus", status->wait_status);
    json_put_int(writer, "unsent", (int64_t)status->unsent);
    json_put_int(writer, "failed", (int64_t)status->failed);
    json_put_bool(writer, "halted", status->is_halted);
    json_put_int(writer, "undecrypted", (int64_t)status->undecrypted);
    json_put_int(writer, "keyConflicts", (int64_t)status->key_conflicts);
    json_put_bool(writer, "keysRefused", status->is_keys_refused);
    json_put_int(writer, "droppedSessions", (int64_t)status->dropped_sessions);
    json_put_int(writer, "gaps", status->gaps);
    json_put_bool(writer, "settled", status->is_settled);
    json_put_int(writer, "newsSeq", status->news_seq);
    json_put_bool(writer, "posting", status->is_posting);
    json_put_int(writer, "mediaBytes", (int64_t)status->media_bytes);
    json_put_int(
        writer, "mediaTotal", status->media_total > INT64_MAX ? -1 : (int64_t)status->media_total);
}

static void wire_put_news(const struct mxengine_job *job, struct json_writer *writer)
{
    const struct mxclient_verify_news *news = &job->news;

    json_put_int(writer, "seq", job->seq);
    json_put_text(writer, "step", mxclient_verify_step_text(news->step));
    json_put_text(writer, "transactionId", news->transaction_id);
    json_put_text(writer, "userId", news->user_id);
    json_put_text(writer, "deviceId", news->device_id);
    json_put_bool(writer, "ours", news->origin == MXCLIENT_ORIGIN_OURS);
    if (news->failure != NULL && news->step == MXCLIENT_VERIFY_CANCELLED) {
        json_put_text(writer, "failure", news->failure);
        json_put_text(writer, "reason", news->reason);
        json_put_bool(writer, "byPeer", news->is_by_peer);
    }
    if (news->step != MXCLIENT_VERIFY_COMPARE)
        return;
    if ((news->strings & MXCLIENT_SAS_EMOJI) != 0) {
        json_put_array(writer, "emoji");
        for (size_t i = 0; i < sizeof news->code.emoji; i++)
            json_put_int(writer, NULL, news->code.emoji[i]);
        json_put_end(writer);
    }
    json_put_array(writer, "decimals");
    for (size_t i = 0; i < sizeof news->code.decimals / sizeof news->code.decimals[0]; i++)
        json_put_int(writer, NULL, news->code.decimals[i]);
    json_put_end(writer);
}

static void wire_put_result(
    const struct mxengine_job *job, const struct mx_pickle_key *key, struct json_writer *writer)
{
    if (job->verb == MXENGINE_ROOMS)
        wire_put_rooms(job, writer);
    else if (job->verb == MXENGINE_EVENTS)
        wire_put_events(job, key, writer);
    else if (job->verb == MXENGINE_STATUS)
        wire_put_status(&job->status, writer);
    else if (job->verb == MXENGINE_NEWS)
        wire_put_news(job, writer);
    else if (job->verb == MXENGINE_OUTBOX)
        wire_put_outbox(job, key, writer);
    else if (job->verb == MXENGINE_DEVICES || job->verb == MXENGINE_UNVERIFIED)
        json_put_raw(writer, "devices", mxclient_span(&job->text));
    else if (job->verb == MXENGINE_MEMBERS)
        json_put_raw(writer, "members", mxclient_span(&job->text));
    else if (job->verb == MXENGINE_STATE)
        json_put_raw(writer, "content", mxclient_span(&job->text));
    else if (job->verb == MXENGINE_EXPORT)
        json_put_raw(writer, "sessions", mxclient_span(&job->text));
    else if (job->verb == MXENGINE_SENT)
        json_put_int(writer, "unverified", job->unverified);
    else if (job->verb == MXENGINE_IMPORT) {
        json_put_int(writer, "sessions", job->import.sessions);
        json_put_int(writer, "taken", job->import.taken);
        json_put_int(writer, "known", job->import.known);
        json_put_int(writer, "invalid", job->import.invalid);
    }
}

/* Other errors may be the runtime's, and the engine may still work on the job. */
bool sync_wire_has_reason(int status)
{
    return status == TR_EACCES || status == TR_ENOENT || status == TR_EPROTO || status == TR_EIO ||
           status == TR_ETOOBIG;
}

int sync_wire_write(const struct mxengine_job *job, int64_t id, int status,
    const struct mx_pickle_key *key, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    int rc;

    json_put_object(&writer, NULL);
    json_put_int(&writer, "id", id);
    json_put_bool(&writer, "ok", status == 0);
    if (job != NULL && (status == 0 || sync_wire_has_reason(status)) && job->id.size > 0)
        json_put_string(&writer, "result", mxclient_span(&job->id));
    if (status != 0) {
        json_put_int(&writer, "code", status);
        json_put_text(&writer, "text", sync_error_text(status));
    } else if (job != NULL)
        wire_put_result(job, key, &writer);
    json_put_end(&writer);
    rc = json_writer_end(&writer);
    return rc != 0 ? rc : buffer_append(out, "\n", 1);
}
