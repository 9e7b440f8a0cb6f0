/* SPDX-License-Identifier: Apache-2.0 */
/* peer_troupe.c: our Matrix engine, driven by JSON lines; test/README.md has the commands and events.
 * Each command has a thread, so that commands that arrive together run side by side. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "matrix/client/body.h"
#include "matrix/client/media.h"
#include "matrix/client/olm.h"
#include "peer_engine.h"

enum { LINE_BYTES_MAX = 1 << 24 };

static struct {
    struct peer_engine engine;
    pthread_mutex_t lock;   /* of stdout */
    struct buffer lines;    /* read and not yet run */
    _Atomic int login;      /* enum mxstore_login, as stored last */
    _Atomic bool has_login; /* the engine runs */
    int64_t cursor;         /* of the last event that was told */
} peer = { .lock = PTHREAD_MUTEX_INITIALIZER, .lines = { .size_max = LINE_BYTES_MAX } };

/* ---- lines ------------------------------------------------------------------------------------ */

static void say_end(struct json_writer *writer, struct buffer *line)
{
    json_put_end(writer);
    if (json_writer_end(writer) != 0 || buffer_append(line, "\n", 1) != 0)
        peer_fail("a line cannot be written");
    pthread_mutex_lock(&peer.lock);
    for (size_t done = 0; done < line->size;) {
        ssize_t wrote = write(STDOUT_FILENO, line->bytes + done, line->size - done);

        if (wrote <= 0)
            _exit(0); /* the driver has ended */
        done += (size_t)wrote;
    }
    pthread_mutex_unlock(&peer.lock);
    mx_wipe_buffer(line);
}

static struct json_writer say_start(struct buffer *line, const char *event)
{
    struct json_writer writer = json_writer(line);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "event", event);
    return writer;
}

static void say_alone(const char *event)
{
    struct buffer line = { 0 };
    struct json_writer writer = say_start(&line, event);

    say_end(&writer, &line);
}

static struct span text_of(const struct json *line, const char *key)
{
    struct span text = { "", 0 };

    (void)json_string(json_get(line, key), &text);
    return text;
}

/* ---- the windows of the engine ---------------------------------------------------------------- */

/* Return a value of a step; an absent text is empty. */
static struct span value_text(const struct sql_unit *unit, const struct sql_step *step, uint32_t at)
{
    const struct sql_value *value = &unit->values[step->value_first + at];

    return value->kind == SQL_TEXT ? (struct span){ unit->bytes.bytes + value->offset, value->size }
                                   : SPAN("");
}

static int64_t value_int(const struct sql_unit *unit, const struct sql_step *step, uint32_t at)
{
    return unit->values[step->value_first + at].number;
}

/* Columns, in the order of store.h. */
enum { SESSION_LOGIN = 3 };
enum { EVENT_ID = 0, EVENT_ROOM = 2, EVENT_SENDER = 3, EVENT_STATUS = 6, EVENT_REASON = 7 };

static void on_session_stored(int login)
{
    struct buffer line = { 0 };
    struct json_writer writer;

    if (atomic_exchange(&peer.login, login) == login || login == MXSTORE_LOGGED_IN)
        return;
    writer = say_start(&line, "logged_out");
    json_put_bool(&writer, "soft", login == MXSTORE_SOFT_LOGGED_OUT);
    say_end(&writer, &line);
}

static void on_event_stored(const struct sql_unit *unit, const struct sql_step *step)
{
    struct buffer line = { 0 };
    struct json_writer writer;

    if (step->changed == 0 || value_int(unit, step, EVENT_STATUS) == MXSTORE_ENQUEUED)
        return;
    writer = say_start(&line, "undecryptable");
    json_put_string(&writer, "roomId", value_text(unit, step, EVENT_ROOM));
    json_put_string(&writer, "eventId", value_text(unit, step, EVENT_ID));
    json_put_string(&writer, "sender", value_text(unit, step, EVENT_SENDER));
    json_put_text(&writer, "code", mx_error_text((int)value_int(unit, step, EVENT_REASON)));
    say_end(&writer, &line);
}

static void on_commit(const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < unit->step_count; i++) {
        const struct sql_step *step = &unit->steps[i];
        struct span text = span_of(step->statement->text);

        if (span_starts(text, "INSERT INTO mx_session "))
            on_session_stored((int)value_int(unit, step, SESSION_LOGIN));
        else if (span_starts(text, "INSERT INTO mx_event "))
            on_event_stored(unit, step);
    }
}

static void say_members(struct span room_id, const struct json *events)
{
    for (struct json_iter it = json_iterate(events); json_next(&it);) {
        struct buffer line = { 0 };
        struct json_writer writer;

        if (!span_is(text_of(it.value, "type"), "m.room.member"))
            continue;
        writer = say_start(&line, "member");
        json_put_string(&writer, "roomId", room_id);
        json_put_string(&writer, "userId", text_of(it.value, "state_key"));
        json_put_string(
            &writer, "membership", text_of(json_get(it.value, "content"), "membership"));
        say_end(&writer, &line);
    }
}

/* Say that the server limits our requests, or refuses our token. */
static void say_refusal(const struct mxengine_answer *answer)
{
    struct buffer line = { 0 };
    struct json_doc doc = { 0 };
    struct json_writer writer;
    bool is_soft = false;

    if (answer->status == 429)
        say_alone("limited");
    if (answer->status != 401 || json_parse_copy(&doc, answer->body, 0) != 0)
        return;
    (void)json_bool(json_get(json_root(&doc), "soft_logout"), &is_soft);
    writer = say_start(&line, "token_refused");
    json_put_bool(&writer, "soft", is_soft);
    say_end(&writer, &line);
    json_doc_free(&doc);
}

/* The engine takes the answer before the next job: a command that follows finds the member changed. */
static void on_answer(enum mxclient_call call, const struct mxengine_answer *answer)
{
    static const char *const places[] = { "join", "invite", "leave" };
    static const char *const parts[] = { "state", "timeline", "invite_state" };
    struct json_doc doc = { 0 };
    const struct json *rooms;

    if (answer->failed == 0)
        say_refusal(answer);
    if (answer->failed != 0 || answer->status != 200)
        return;
    if (call == MXCLIENT_REFRESH)
        say_alone("refreshed");
    if (call != MXCLIENT_SYNC || json_parse_copy(&doc, answer->body, 0) != 0)
        return;
    rooms = json_get(json_root(&doc), "rooms");
    for (size_t i = 0; i < 3; i++)
        for (struct json_iter it = json_iterate(json_get(rooms, places[i])); json_next(&it);)
            for (size_t k = 0; k < 3; k++)
                say_members(it.key, json_get(json_get(it.value, parts[k]), "events"));
    json_doc_free(&doc);
}

/* ---- news ------------------------------------------------------------------------------------- */

SQL_STATEMENT(get_encrypted, "SELECT is_encrypted FROM mx_room WHERE room_id = $1");
SQL_STATEMENT(get_outbound, "SELECT session_id FROM mx_outbound WHERE room_id = $1");
SQL_STATEMENT(drop_outbound, "DELETE FROM mx_outbound WHERE room_id = $1");
SQL_STATEMENT(drop_sessions, "DELETE FROM mx_olm");

static bool room_is_encrypted(struct span room_id)
{
    struct sql_unit *unit = peer_sql(&peer.engine, &get_encrypted, room_id);
    bool is_encrypted = sql_unit_rows(unit, 0) == 1 && sql_row_int(unit, 0, 0, 0) != 0;

    sql_unit_destroy(unit);
    return is_encrypted;
}

static void say_message(const struct mxstore_event *event)
{
    struct buffer line = { 0 }, body = { 0 };
    struct json_doc doc = { 0 };
    struct json_writer writer;

    if (!span_is(event->type, "m.room.message"))
        return;
    if (mxclient_body_open(&peer_key, event->event_id, event->body, &body) != 0 ||
        json_parse_copy(&doc, mxclient_span(&body), 0) != 0)
        peer_fail("the body of an event cannot be opened");
    writer = say_start(&line, "message");
    json_put_string(&writer, "roomId", event->room_id);
    json_put_string(&writer, "eventId", event->event_id);
    json_put_string(&writer, "sender", event->sender);
    json_put_bool(&writer, "encrypted", room_is_encrypted(event->room_id));
    json_put_value(&writer, "content", json_get(json_root(&doc), "content"));
    say_end(&writer, &line);
    json_doc_free(&doc);
    mx_wipe_buffer(&body);
}

static void *tell_events(void *data)
{
    for (;;) {
        struct mxengine_job *job = mxengine_job_create(MXENGINE_EVENTS);
        struct mxstore_event row;
        int rc;

        job->after_seq = peer.cursor;
        job->waits = true;
        rc = peer_do(&peer.engine, job);
        for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(job->rows, 0); i++) {
            mxstore_row(job->rows, 0, i, MXSTORE_IS_event, &row);
            say_message(&row);
            peer.cursor = row.seq;
        }
        mxengine_job_unref(job);
    }
    return data;
}

static void say_verify(const struct mxclient_verify_news *news, const char *event)
{
    struct buffer line = { 0 };
    struct json_writer writer = say_start(&line, event);

    json_put_text(&writer, "transactionId", news->transaction_id);
    json_put_text(&writer, "userId", news->user_id);
    json_put_text(&writer, "deviceId", news->device_id);
    json_put_bool(&writer, "legacy", news->origin == MXCLIENT_ORIGIN_BARE);
    json_put_bool(&writer, "master", news->has_master);
    if (news->failure != NULL)
        json_put_text(&writer, "code", news->failure);
    json_put_array(&writer, "decimals");
    for (size_t i = 0; i < 3; i++)
        json_put_int(&writer, NULL, news->code.decimals[i]);
    json_put_end(&writer);
    json_put_array(&writer, "emoji");
    for (size_t i = 0; i < 7; i++)
        json_put_int(&writer, NULL, news->code.emoji[i]);
    json_put_end(&writer);
    say_end(&writer, &line);
}

static void *tell_verifications(void *data)
{
    struct mxclient_verify_news news;
    struct peer_cursor cursor = { 0 };

    for (;;) {
        if (peer_next_news(&peer.engine, &cursor, &news) != 0)
            continue; /* the next engine has news, too */
        if (news.step == MXCLIENT_VERIFY_ASKED)
            say_verify(&news, "verification_request");
        else if (news.step == MXCLIENT_VERIFY_COMPARE)
            say_verify(&news, "sas");
        else if (news.step == MXCLIENT_VERIFY_DONE)
            say_verify(&news, "verified");
        else if (news.step == MXCLIENT_VERIFY_CANCELLED)
            say_verify(&news, "cancelled");
    }
    return data;
}

/* ---- commands --------------------------------------------------------------------------------- */

/* Each adds its values to the answer and returns 0 or an error. */
typedef int (*command_fn)(const struct json *line, struct json_writer *answer);

/* Run a job with the texts of a line, and end it. An absent name of a text is NULL. */
struct job_text {
    enum mxengine_arg arg;
    const char *key;
};
static struct mxengine_job *job_of(
    enum mxengine_verb verb, const struct json *line, const struct job_text *texts, size_t count)
{
    struct mxengine_job *job = mxengine_job_create(verb);

    if (job == NULL)
        peer_fail("out of memory");
    for (size_t i = 0; i < count; i++)
        mxengine_job_set(job, texts[i].arg, text_of(line, texts[i].key));
    return job;
}
#define TEXTS(...)                                                                                 \
    (const struct job_text[]){ __VA_ARGS__ },                                                      \
        sizeof((const struct job_text[]){ __VA_ARGS__ }) / sizeof(struct job_text)

static int job_run(struct mxengine_job *job)
{
    int rc = peer_do(&peer.engine, job);

    mxengine_job_unref(job);
    return rc;
}

/* Wait until the engine is in a room whose encryption it knows. */
static void until_in_room(struct span room_id)
{
    for (bool is_in = false; !is_in; peer_wait_commit(&peer.engine)) {
        struct mxengine_job *job = mxengine_job_create(MXENGINE_ROOMS);
        struct mxstore_room row;

        if (peer_do(&peer.engine, job) == 0)
            for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
                mxstore_row(job->rows, 0, i, MXSTORE_IS_room, &row);
                is_in = is_in || (span_equal(row.room_id, room_id) && row.is_encrypted != 0 &&
                                     span_is(row.membership, "join"));
            }
        mxengine_job_unref(job);
        if (is_in)
            return;
    }
}

static void start_thread(void *(*run)(void *data), void *data)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, data) != 0 || pthread_detach(thread) != 0)
        peer_fail("a thread cannot start");
}

static int do_login(const struct json *line, struct json_writer *answer)
{
    struct mxengine_status status;
    char path[4096];
    int rc = 0;

    if (text_of(line, "data").size > 0)
        (void)snprintf(
            path, sizeof path, "%.*s", (int)text_of(line, "data").size, text_of(line, "data").at);
    else
        (void)snprintf(path, sizeof path, "troupe-%d.db", (int)getpid());
    peer.engine.listener = (struct peer_listener){ on_commit, on_answer };
    peer_engine_open(&peer.engine, path);
    peer.has_login = true;
    for (status = peer_status(&peer.engine); !status.is_loaded; status = peer_status(&peer.engine))
        peer_wait_commit(&peer.engine);
    peer.cursor = status.last_seq;
    if (status.state == MXCLIENT_NEW)
        rc = job_run(job_of(MXENGINE_LOGIN, line,
            TEXTS({ MXENGINE_URL, "homeserver" }, { MXENGINE_USER, "user" },
                { MXENGINE_PASSWORD, "password" })));
    if (rc != 0)
        return rc;
    for (status = peer_status(&peer.engine); !status.is_settled; status = peer_status(&peer.engine))
        peer_wait_commit(&peer.engine);
    start_thread(tell_events, NULL);
    start_thread(tell_verifications, NULL);
    json_put_text(answer, "userId", status.user_id);
    json_put_text(answer, "deviceId", status.device_id);
    return 0;
}

static int do_create_room(const struct json *line, struct json_writer *answer)
{
    struct mxengine_job *job = job_of(MXENGINE_CREATE, line, TEXTS({ MXENGINE_NAME, "name" }));
    int rc = peer_do(&peer.engine, job);

    if (rc == 0) {
        until_in_room(mxclient_span(&job->id));
        json_put_string(answer, "roomId", mxclient_span(&job->id));
    }
    mxengine_job_unref(job);
    return rc;
}

static int do_join(const struct json *line, struct json_writer *answer)
{
    int rc = job_run(job_of(MXENGINE_JOIN, line, TEXTS({ MXENGINE_ROOM, "roomId" })));

    (void)answer;
    if (rc == 0)
        until_in_room(text_of(line, "roomId"));
    return rc;
}

static int do_invite(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return job_run(job_of(
        MXENGINE_INVITE, line, TEXTS({ MXENGINE_ROOM, "roomId" }, { MXENGINE_USER, "userId" })));
}

static int do_leave(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return job_run(job_of(MXENGINE_LEAVE, line, TEXTS({ MXENGINE_ROOM, "roomId" })));
}

/* Send an event and wait until it has left. */
static int send_content(
    struct span room_id, const struct buffer *content, struct json_writer *answer)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_SEND), *sent;
    struct sql_unit *unit;
    int rc;

    mxengine_job_set(job, MXENGINE_ROOM, room_id);
    mxengine_job_set(job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(job, MXENGINE_CONTENT, mxclient_span(content));
    rc = peer_do(&peer.engine, job);
    sent = mxengine_job_create(MXENGINE_SENT);
    mxengine_job_set(sent, MXENGINE_TEXT, mxclient_span(&job->id));
    mxengine_job_unref(job);
    if (rc == 0)
        rc = peer_do(&peer.engine, sent);
    if (rc == 0) {
        json_put_string(answer, "eventId", mxclient_span(&sent->id));
        unit = peer_sql(&peer.engine, &get_outbound, room_id);
        if (sql_unit_rows(unit, 0) == 1)
            json_put_string(answer, "sessionId", sql_row_bytes(unit, 0, 0, 0));
        sql_unit_destroy(unit);
    }
    mxengine_job_unref(sent);
    return rc;
}

static int do_send(const struct json *line, struct json_writer *answer)
{
    struct buffer content = { 0 };
    struct json_writer writer = json_writer(&content);
    int rc;

    if (json_get(line, "content") != NULL)
        json_put_value(&writer, NULL, json_get(line, "content"));
    else {
        json_put_object(&writer, NULL);
        json_put_text(&writer, "msgtype", "m.text");
        json_put_string(&writer, "body", text_of(line, "text"));
        json_put_end(&writer);
    }
    rc = json_writer_end(&writer);
    if (rc == 0)
        rc = send_content(text_of(line, "roomId"), &content, answer);
    mx_wipe_buffer(&content);
    return rc;
}

/* ---- attachments ------------------------------------------------------------------------------ */

static int file_open(struct mxengine_job *job, const char *path, int flags)
{
    struct stat about;

    job->file.fd = open(path, flags | O_CLOEXEC, 0600);
    if (job->file.fd < 0 || fstat(job->file.fd, &about) != 0)
        return TR_EIO;
    job->file.size = (uint64_t)about.st_size;
    job->file.size_max = MXCLIENT_MEDIA_BYTES_MAX;
    return 0;
}

static int do_attach(const struct json *line, struct json_writer *answer)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_UPLOAD);
    struct mxclient_media media = { .name = text_of(line, "name") };
    char path[4096], sealed[64];
    struct buffer content = { 0 };
    int rc;

    (void)snprintf(
        path, sizeof path, "%.*s", (int)text_of(line, "path").size, text_of(line, "path").at);
    (void)snprintf(sealed, sizeof sealed, "sealed-%d-%p", (int)getpid(), (void *)job);
    rc = mxclient_media_encrypt_file(
        tr_env_real(), path, sealed, &peer_random, MXCLIENT_MEDIA_BYTES_MAX, &media);
    if (rc == 0)
        rc = file_open(job, sealed, O_RDONLY);
    if (rc == 0)
        rc = peer_do(&peer.engine, job);
    if (rc == 0)
        rc = mxclient_media_set_url(mxclient_span(&job->id), &media) ? 0 : TR_EPROTO;
    if (rc == 0)
        rc = mxclient_media_put(&media, &content);
    if (rc == 0)
        rc = send_content(text_of(line, "roomId"), &content, answer);
    (void)unlink(sealed);
    mx_wipe_buffer(&content);
    mxengine_job_unref(job);
    return rc;
}

static int put_sha256(const char *path, struct json_writer *answer)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    char hex[2 * CRYPTO_SHA256_BYTES + 1];
    struct buffer bytes = { 0 };
    FILE *file = fopen(path, "rb");
    size_t got = 1;

    while (file != NULL && got > 0) {
        char *place = buffer_reserve(&bytes, 65536);

        got = place == NULL ? 0 : fread(place, 1, 65536, file);
        buffer_grew(&bytes, got);
    }
    if (file == NULL || fclose(file) != 0)
        return TR_EIO;
    crypto_sha256(bytes.bytes, bytes.size, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    json_put_int(answer, "size", (int64_t)bytes.size);
    json_put_text(answer, "sha256", hex);
    buffer_free(&bytes);
    return 0;
}

static int do_download(const struct json *line, struct json_writer *answer)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_DOWNLOAD);
    struct mxclient_media media = { 0 };
    char part[64], path[64];
    int rc = mxclient_media_read(json_get(line, "content"), &media);

    (void)snprintf(part, sizeof part, "part-%d-%p", (int)getpid(), (void *)job);
    (void)snprintf(path, sizeof path, "file-%d-%p", (int)getpid(), (void *)job);
    mxengine_job_set(job, MXENGINE_URL, media.url.at == NULL ? SPAN("") : media.url);
    if (rc == 0)
        rc = file_open(job, part, O_RDWR | O_CREAT);
    if (rc == 0)
        rc = peer_do(&peer.engine, job);
    if (rc == 0)
        rc = mxclient_media_save(tr_env_real(), part, path, MXCLIENT_MEDIA_BYTES_MAX, &media);
    if (rc == 0)
        rc = put_sha256(path, answer);
    (void)unlink(path);
    mxengine_job_unref(job);
    return rc;
}

/* ---- devices and verifications ---------------------------------------------------------------- */

static int do_devices(const struct json *line, struct json_writer *answer)
{
    struct mxengine_job *job = job_of(MXENGINE_DEVICES, line, TEXTS({ MXENGINE_USER, "userId" }));
    struct json_doc doc = { 0 };
    int rc = peer_do(&peer.engine, job);

    if (rc == 0)
        rc = json_parse_copy(&doc, mxclient_span(&job->text), 0);
    json_put_array(answer, "devices");
    for (struct json_iter it = json_iterate(rc == 0 ? json_root(&doc) : NULL); json_next(&it);) {
        json_put_object(answer, NULL);
        json_put_string(answer, "deviceId", text_of(it.value, "deviceId"));
        json_put_string(answer, "ed25519", text_of(it.value, "ed25519"));
        json_put_string(answer, "curve25519", text_of(it.value, "curve25519"));
        json_put_bool(answer, "verified", span_is(text_of(it.value, "trust"), "verified"));
        json_put_value(answer, "crossSigned", json_get(it.value, "crossSigned"));
        json_put_end(answer);
    }
    json_put_end(answer);
    json_doc_free(&doc);
    mxengine_job_unref(job);
    return rc;
}

static int do_verify(const struct json *line, struct json_writer *answer)
{
    struct mxengine_job *job = job_of(
        MXENGINE_VERIFY, line, TEXTS({ MXENGINE_USER, "userId" }, { MXENGINE_DEVICE, "deviceId" }));
    int rc = peer_do(&peer.engine, job);

    if (rc == 0)
        json_put_string(answer, "transactionId", mxclient_span(&job->id));
    mxengine_job_unref(job);
    return rc;
}

static int act_on(const struct json *line, enum mxclient_verify_act act)
{
    struct mxengine_job *job =
        job_of(MXENGINE_ACT, line, TEXTS({ MXENGINE_TEXT, "transactionId" }));

    job->act = act;
    return job_run(job);
}

static int do_accept(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(line, MXCLIENT_VERIFY_ACCEPT);
}

static int do_confirm(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(line, MXCLIENT_VERIFY_MATCH);
}

static int do_mismatch(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(line, MXCLIENT_VERIFY_MISMATCH);
}

static int do_cancel(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(line, MXCLIENT_VERIFY_CANCEL);
}

/* ---- changes of the database while the engine is down ------------------------------------------ */

static int do_restart(const struct json *line, struct json_writer *answer)
{
    (void)line;
    (void)answer;
    peer_engine_down(&peer.engine);
    peer_engine_up(&peer.engine);
    return 0;
}

static int do_pass_time(const struct json *line, struct json_writer *answer)
{
    int64_t ms = 0;

    if (!json_int(json_get(line, "ms"), &ms) || ms < 0)
        return TR_EINVAL;
    peer_pass_ms(ms);
    return do_restart(line, answer);
}

/* Lose a room's session, so that the next event has another. */
static int do_rotate(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    peer_engine_down(&peer.engine);
    sql_unit_destroy(peer_sql(&peer.engine, &drop_outbound, text_of(line, "roomId")));
    peer_engine_up(&peer.engine);
    return 0;
}

/* Lose all Olm sessions, as a damaged store would. */
static int do_forget(const struct json *line, struct json_writer *answer)
{
    (void)line;
    (void)answer;
    peer_engine_down(&peer.engine);
    sql_unit_destroy(peer_sql(&peer.engine, &drop_sessions, (struct span){ NULL, 0 }));
    peer_engine_up(&peer.engine);
    return 0;
}

/* Store an Olm session that the device cannot read: its one-time key is made up. */
static int wedge_store(struct mxclient *client, struct mxclient_place place)
{
    int64_t now_ms = (int64_t)(peer.engine.env.wall_ns(peer.engine.env.data) / 1000000);
    struct mxclient_device *device = mxclient_devices_find(&client->devices, place);
    struct sql_unit *unit = sql_unit_create(0);
    struct buffer lost = { 0 };
    struct mx_key key;
    int rc = device == NULL ? TR_ENOENT : 0;

    crypto_random_fill(key.bytes, sizeof key.bytes);
    if (rc == 0)
        rc = mxclient_olm_start(client, device, &key, now_ms);
    if (rc == 0)
        rc = mxclient_olm_encrypt(client, place, device, SPAN("m.dummy"), SPAN("{}"), unit, &lost);
    if (rc == 0)
        rc = sql_write_wait(peer.engine.sql, unit);
    sql_unit_destroy(unit);
    buffer_free(&lost);
    return rc;
}

static int do_wedge(const struct json *line, struct json_writer *answer)
{
    struct mxclient_place place = { text_of(line, "userId"), text_of(line, "deviceId") };
    struct mxclient client = { .policy = MXCLIENT_SHARE_ALL };
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    (void)answer;
    peer_engine_down(&peer.engine);
    mxclient_session_init(&client.session, &peer_random, &peer_key);
    mxclient_load_read(unit);
    rc = sql_read_wait(peer.engine.sql, unit);
    if (rc == 0)
        rc = mxclient_load(&client, unit, 0);
    if (rc == 0)
        rc = wedge_store(&client, place);
    sql_unit_destroy(unit);
    mxclient_fini(&client);
    peer_engine_up(&peer.engine);
    return rc;
}

static int do_counts(const struct json *line, struct json_writer *answer)
{
    struct mxengine_status status = peer_status(&peer.engine);

    (void)line;
    json_put_text(answer, "deviceId", status.device_id);
    json_put_int(answer, "undecrypted", (int64_t)(peer.engine.undecrypted + status.undecrypted));
    json_put_int(answer, "skipped", (int64_t)status.skipped);
    return 0;
}

static int do_logout(const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return job_run(job_of(MXENGINE_LOGOUT, line, NULL, 0));
}

/* ---- the loop --------------------------------------------------------------------------------- */

static const struct command {
    const char *name;
    command_fn run;
} commands[] = {
    { "login", do_login },
    { "create_room", do_create_room },
    { "join", do_join },
    { "invite", do_invite },
    { "leave", do_leave },
    { "send", do_send },
    { "attach", do_attach },
    { "download", do_download },
    { "devices", do_devices },
    { "rotate", do_rotate },
    { "pass_time", do_pass_time },
    { "wedge", do_wedge },
    { "forget", do_forget },
    { "restart", do_restart },
    { "counts", do_counts },
    { "verify", do_verify },
    { "accept", do_accept },
    { "confirm", do_confirm },
    { "mismatch", do_mismatch },
    { "cancel", do_cancel },
    { "logout", do_logout },
};

static int command_run(const struct json *line, struct json_writer *answer)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (span_is(text_of(line, "do"), commands[i].name) &&
            peer.has_login == (commands[i].run != do_login))
            return commands[i].run(line, answer);
    return TR_EUNSUPPORTED;
}

/* Run a command, a document that this owns, and answer it. */
static void *line_run(void *data)
{
    struct json_doc *doc = data;
    const struct json *line = json_root(doc);
    struct buffer values = { 0 }, failed = { 0 };
    struct json_writer answer = json_writer(&values), refusal = json_writer(&failed);
    int rc;

    json_put_object(&answer, NULL);
    rc = command_run(line, &answer);
    if (rc == 0) {
        json_put_value(&answer, "id", json_get(line, "id"));
        json_put_bool(&answer, "ok", true);
        say_end(&answer, &values);
    } else {
        json_put_object(&refusal, NULL);
        json_put_value(&refusal, "id", json_get(line, "id"));
        json_put_bool(&refusal, "ok", false);
        json_put_text(&refusal, "error", mx_error_text(rc));
        say_end(&refusal, &failed);
        buffer_free(&values);
    }
    json_doc_free(doc);
    free(doc);
    return NULL;
}

/* Start the commands that have arrived; false if one of them ends the program. */
static bool lines_run(void)
{
    const char *end;

    while (peer.lines.size > 0 && (end = memchr(peer.lines.bytes, '\n', peer.lines.size)) != NULL) {
        size_t size = (size_t)(end - peer.lines.bytes);
        struct json_doc *doc = calloc(1, sizeof *doc);

        if (doc == NULL ||
            json_parse_copy(doc, (struct span){ peer.lines.bytes, size }, JSON_UNIQUE_KEYS) != 0)
            peer_fail("a line is no JSON");
        buffer_consume(&peer.lines, size + 1);
        if (span_is(text_of(json_root(doc), "do"), "stop"))
            return false;
        start_thread(line_run, doc);
    }
    return true;
}

int main(void)
{
    ssize_t got;

    say_alone("ready");
    do {
        char *place = buffer_reserve(&peer.lines, 65536);

        got = place == NULL ? -1 : read(STDIN_FILENO, place, 65536);
        if (got > 0)
            buffer_grew(&peer.lines, (size_t)got);
    } while (got > 0 && lines_run());
    if (peer.has_login)
        peer_engine_close(&peer.engine);
    _exit(0); /* threads of the news wait for an engine that never comes */
}
