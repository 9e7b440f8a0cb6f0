/* SPDX-License-Identifier: Apache-2.0 */
/* The link of `troupe sync` over an engine without a homeserver: its requests never answer. */
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../sql/place.h"
#include "cli/sync_link.h"

static const struct mx_pickle_key stage_key = { { 7 } };

static int stage_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    (void)data;
    (void)ctx;
    (void)call;
    (void)tag;
    return TR_EIO; /* no network */
}

static void stage_take(void *data, const struct tr_event *event, struct mxengine_answer *ret_answer)
{
    (void)data;
    (void)event;
    *ret_answer = (struct mxengine_answer){ .failed = TR_EIO };
}

static void stage_drop(void *data, struct mxengine_answer *answer)
{
    (void)data;
    (void)answer;
}

struct stage {
    struct place place;
    struct mxengine_options options;
    tr_sender engine, link;
    struct tr_done *engine_done, *link_done;
    int fd;
    struct buffer in;
};

static void stage_start_for(struct stage *stage, int listen_fd, uid_t uid)
{
    int pair[2];

    *stage = (struct stage){ 0 };
    place_init_in_memory(&stage->place);
    place_system(&stage->place);
    CHECK_EQ_INT(place_try_open(&stage->place, &(struct sql_options){ .url = stage->place.url,
                                                   .migrations = mxstore_migrations,
                                                   .migration_count = MXSTORE_MIGRATIONS }),
        0);
    stage->options = (struct mxengine_options){ .sql = stage->place.sql,
        .key = &stage_key,
        .transport = { .ask = stage_ask, .take = stage_take, .drop = stage_drop } };
    CHECK_EQ_INT(mxengine_spawn(stage->place.system, &stage->options,
                     &(struct tr_spawn_options){ .ret_done = &stage->engine_done }, &stage->engine),
        0);
    CHECK_EQ_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    CHECK_EQ_INT(sync_link_spawn(stage->place.system,
                     &(struct sync_link_options){ .engine = stage->engine,
                         .sql = stage->place.sql,
                         .key = &stage_key,
                         .listen_fd = listen_fd,
                         .client_fd = pair[1],
                         .uid = uid },
                     &(struct tr_spawn_options){ .ret_done = &stage->link_done }, &stage->link),
        0);
    stage->fd = pair[0];
}

static void stage_start(struct stage *stage)
{
    stage_start_for(stage, -1, geteuid());
}

static void stage_end(tr_sender *sender, struct tr_done **done)
{
    enum tr_why why;

    CHECK_EQ_INT(tr_stop(tr_sender_weaken(*sender)), 0);
    tr_sender_drop(sender);
    CHECK_EQ_INT(tr_done_wait(done, NULL, &why, TR_SECONDS(10)), 0);
}

static void stage_stop(struct stage *stage)
{
    close(stage->fd);
    stage_end(&stage->link, &stage->link_done);
    stage_end(&stage->engine, &stage->engine_done);
    place_finish(&stage->place);
    buffer_free(&stage->in);
}

static void stage_say(struct stage *stage, struct span text)
{
    for (size_t done = 0; done < text.size;) {
        ssize_t wrote = send(stage->fd, text.at + done, text.size - done, MSG_NOSIGNAL);

        if (wrote < 0) { /* full, or closed: the reader finds out */
            struct pollfd fd = { .fd = stage->fd, .events = POLLOUT };

            CHECK(poll(&fd, 1, 10000) > 0);
            if ((fd.revents & (POLLERR | POLLHUP)) != 0)
                return;
        } else
            done += (size_t)wrote;
    }
}

/* Read the next line; false at the end of the connection. */
static bool stage_line(struct stage *stage, struct json_doc *doc)
{
    const char *end = NULL;

    while (stage->in.size == 0 || (end = memchr(stage->in.bytes, '\n', stage->in.size)) == NULL) {
        struct pollfd fd = { .fd = stage->fd, .events = POLLIN };
        char *place = buffer_reserve(&stage->in, 4096);
        ssize_t got;

        CHECK(poll(&fd, 1, 10000) > 0);
        got = recv(stage->fd, place, 4096, 0);
        if (got <= 0)
            return false;
        buffer_grew(&stage->in, (size_t)got);
    }
    CHECK_EQ_INT(
        json_parse_copy(doc, (struct span){ stage->in.bytes, (size_t)(end - stage->in.bytes) },
            JSON_UNIQUE_KEYS),
        0);
    buffer_consume(&stage->in, (size_t)(end - stage->in.bytes) + 1);
    return true;
}

/* Ask and check the id and the code of the answer. */
static void stage_check(struct stage *stage, const char *request, int code)
{
    struct json_doc doc = { 0 };
    int64_t id = 0, got = 0;
    bool is_ok = false;

    stage_say(stage, span_of(request));
    CHECK(stage_line(stage, &doc));
    CHECK(json_int(json_get(json_root(&doc), "id"), &id));
    CHECK(json_bool(json_get(json_root(&doc), "ok"), &is_ok));
    (void)json_int(json_get(json_root(&doc), "code"), &got);
    CHECK_EQ_INT(id, 5);
    CHECK_EQ_INT(is_ok, code == 0);
    CHECK_EQ_INT(got, code);
    json_doc_free(&doc);
}

TEST(sync_link, requests_are_answered_with_their_ids)
{
    struct stage stage;

    stage_start(&stage);
    stage_check(&stage, "{\"id\":5,\"do\":\"status\"}\n", 0);
    stage_check(&stage, "{\"id\":5,\"do\":\"rooms\"}\n", 0);
    stage_check(&stage, "{\"id\":5,\"do\":\"events\"}\n", 0);
    stage_check(&stage, "{\"id\":5,\"do\":\"export\"}\n", 0);
    stage_check(&stage,
        "{\"id\":5,\"do\":\"send\",\"room\":\"!r:x\",\"type\":\"m\",\"content\":{}}\n", TR_EACCES);
    stage_check(&stage, "{\"id\":5,\"do\":\"devices\",\"user\":\"@a:x\"}\n", TR_EACCES);
    stage_check(&stage, "{\"id\":5,\"do\":\"logout\"}\n", TR_EBUSY);
    stage_stop(&stage);
}

TEST(sync_link, a_wrong_request_says_so)
{
    static const char *const wrong[] = {
        "{\"id\":5}\n",
        "{\"id\":5,\"do\":7}\n",
        "{\"id\":5,\"do\":\"dance\"}\n",
        "{\"id\":5,\"do\":\"act\",\"act\":\"dance\"}\n",
        "{\"id\":5,\"do\":\"events\",\"waits\":1}\n",
        "{\"id\":5,\"do\":\"upload\",\"path\":\"relative\"}\n",
        "{\"id\":5,\"do\":\"upload\",\"path\":\"/a\\u0000b\"}\n",
    };
    struct stage stage;

    stage_start(&stage);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        stage_check(&stage, wrong[i], TR_EINVAL);
    stage_check(&stage, "{\"id\":5,\"do\":\"upload\",\"path\":\"/nowhere/file\"}\n", TR_EIO);
    stage_check(&stage, "{\"id\":5,\"do\":\"upload\",\"path\":\"/tmp\"}\n", TR_EIO);
    stage_check(&stage, "{\"id\":5,\"do\":\"status\"}\n", 0);
    stage_stop(&stage);
}

TEST(sync_link, a_line_that_is_no_json_ends_the_connection)
{
    struct json_doc doc = { 0 };
    struct stage stage;

    stage_start(&stage);
    stage_say(&stage, SPAN("{\"id\":5,\"id\":6,\"do\":\"status\"}\n"));
    CHECK(!stage_line(&stage, &doc));
    stage_stop(&stage);
}

TEST(sync_link, a_line_without_an_end_ends_the_connection)
{
    static char text[1 << 20];
    struct json_doc doc = { 0 };
    struct stage stage;

    memset(text, ' ', sizeof text);
    stage_start(&stage);
    for (size_t i = 0; i <= SYNC_LINE_MAX / sizeof text; i++)
        stage_say(&stage, (struct span){ text, sizeof text });
    CHECK(!stage_line(&stage, &doc));
    stage_stop(&stage);
}

/* Requests that wait do not stop others, and have a limit. */
TEST(sync_link, requests_over_the_limit_are_refused)
{
    const char *wait = "{\"id\":4,\"do\":\"events\",\"waits\":true}\n";
    struct stage stage;

    stage_start(&stage);
    for (int i = 0; i < SYNC_REQUESTS_MAX - 1; i++)
        stage_say(&stage, span_of(wait));
    stage_check(&stage, "{\"id\":5,\"do\":\"status\"}\n", 0);
    stage_say(&stage, span_of(wait));
    stage_check(&stage, "{\"id\":5,\"do\":\"status\"}\n", TR_EFULL);
    stage_stop(&stage);
}

TEST(sync_link, a_request_with_a_time_limit_ends)
{
    struct stage stage;

    stage_start(&stage);
    for (int i = 0; i < 20; i++) /* places come back */
        stage_check(&stage, "{\"id\":5,\"do\":\"news\",\"timeoutMs\":1}\n", TR_ETIMEOUT);
    stage_stop(&stage);
}

/* More requests give up than the engine has places for jobs: each frees its own. */
TEST(sync_link, requests_that_gave_up_free_their_places)
{
    struct stage stage;

    stage_start(&stage);
    for (int i = 0; i < 2 * MXENGINE_JOBS_MAX; i++)
        stage_check(
            &stage, "{\"id\":5,\"do\":\"events\",\"waits\":true,\"timeoutMs\":1}\n", TR_ETIMEOUT);
    stage_check(&stage, "{\"id\":5,\"do\":\"rooms\"}\n", 0);
    stage_stop(&stage);
}

/* ---- connections ------------------------------------------------------------------------------ */

/* Return a socket that listens under a name that the kernel chose, and its address. */
static int stage_listen(struct sockaddr_un *ret_address, socklen_t *ret_size)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

    *ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    CHECK_EQ_INT(bind(fd, (const struct sockaddr *)ret_address, sizeof ret_address->sun_family), 0);
    CHECK_EQ_INT(listen(fd, SOMAXCONN), 0);
    *ret_size = sizeof *ret_address;
    CHECK_EQ_INT(getsockname(fd, (struct sockaddr *)ret_address, ret_size), 0);
    return fd;
}

/* Connect in place of the connection that the stage has. */
static void stage_connect(struct stage *stage, const struct sockaddr_un *address, socklen_t size)
{
    close(stage->fd);
    stage->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_EQ_INT(connect(stage->fd, (const struct sockaddr *)address, size), 0);
}

TEST(sync_link, a_process_of_another_user_is_not_served)
{
    struct json_doc doc = { 0 };
    struct sockaddr_un address;
    struct stage stage;
    socklen_t size;
    int fd = stage_listen(&address, &size);

    stage_start_for(&stage, fd, geteuid() + 1);
    stage_connect(&stage, &address, size);
    CHECK(!stage_line(&stage, &doc));
    stage_stop(&stage);
    fd = stage_listen(&address, &size);
    stage_start_for(&stage, fd, geteuid());
    stage_connect(&stage, &address, size);
    CHECK(sync_link_is_of(stage.fd, geteuid()));
    CHECK(!sync_link_is_of(stage.fd, geteuid() + 1));
    stage_check(&stage, "{\"id\":5,\"do\":\"status\"}\n", 0);
    stage_stop(&stage);
}

/* ---- stored events ---------------------------------------------------------------------------- */

static void event_put(
    struct stage *stage, const char *id, int64_t seq, int status, int reason, struct span body)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_put(unit, MXSTORE_IS_event,
        &(struct mxstore_event){ .event_id = span_of(id),
            .seq = seq,
            .room_id = SPAN("!r:x"),
            .sender = SPAN("@a:x"),
            .type = SPAN("m.room.encrypted"),
            .origin_ms = 1000 + seq,
            .status = status,
            .reason = reason,
            .body = body });
    CHECK_EQ_INT(sql_write_wait(stage->place.sql, unit), 0);
    sql_unit_destroy(unit);
}

static void held_put(struct stage *stage, const char *id, int64_t seq, int status, int reason)
{
    event_put(stage, id, seq, status, reason, SPAN("{}"));
}

/* Ask, and compare the line of the answer. */
static void held_check(struct stage *stage, const char *request, const char *answer)
{
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);
    struct json_doc doc = { 0 };

    stage_say(stage, span_of(request));
    CHECK(stage_line(stage, &doc));
    json_put_value(&writer, NULL, json_root(&doc));
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    (void)buffer_append(&line, "", 1);
    CHECK_EQ_STR(line.bytes, answer);
    buffer_free(&line);
    json_doc_free(&doc);
}

TEST(sync_link, events_that_cannot_be_read_say_why)
{
    struct stage stage;

    stage_start(&stage);
    held_check(&stage, "{\"id\":5,\"do\":\"timeline\"}\n", "{\"id\":5,\"ok\":true,\"events\":[]}");
    held_check(&stage, "{\"id\":5,\"do\":\"unread\"}\n", "{\"id\":5,\"ok\":true,\"unread\":[]}");
    held_put(&stage, "$1", 1, MXSTORE_HELD, MX_ESESSION);
    held_put(&stage, "$2", 2, MXSTORE_ENQUEUED, 0);
    held_put(&stage, "$3", 3, MXSTORE_ABANDONED, MX_EINDEX);
    held_put(&stage, "$4", 4, MXSTORE_HELD, MX_EBLOCKED);
    held_check(&stage, "{\"id\":5,\"do\":\"timeline\",\"after\":2}\n",
        "{\"id\":5,\"ok\":true,\"events\":["
        "{\"seq\":3,\"roomId\":\"!r:x\",\"eventId\":\"$3\",\"sender\":\"@a:x\","
        "\"type\":\"m.room.encrypted\",\"originMs\":1003,\"unread\":\"abandoned\",\"code\":-4209,"
        "\"reason\":\"The event repeats another event's message index: it is a replay.\"},"
        "{\"seq\":4,\"roomId\":\"!r:x\",\"eventId\":\"$4\",\"sender\":\"@a:x\","
        "\"type\":\"m.room.encrypted\",\"originMs\":1004,\"unread\":\"held\",\"code\":-4216,"
        "\"reason\":\"The sender has blocked this device.\"}]}");
    held_put(&stage, "$5", 5, MXSTORE_HELD, MX_EBLOCKED);
    held_check(&stage, "{\"id\":5,\"do\":\"unread\"}\n",
        "{\"id\":5,\"ok\":true,\"unread\":["
        "{\"unread\":\"held\",\"code\":-4216,\"reason\":\"The sender has blocked this device.\","
        "\"events\":2},"
        "{\"unread\":\"held\",\"code\":-4211,\"reason\":\"The key has not come. It may come late; "
        "`troupe sync keys import` brings keys of another device.\",\"events\":1},"
        "{\"unread\":\"abandoned\",\"code\":-4209,\"reason\":\"The event repeats another event's "
        "message index: it is a replay.\",\"events\":1}]}");
    stage_stop(&stage);
}

/* Read the numbers of the events after one. Returns how many there are. */
static size_t timeline_read(struct stage *stage, int64_t after, int64_t seqs[2 * SYNC_EVENTS_MAX])
{
    struct json_doc doc = { 0 };
    char request[64];
    size_t count = 0;

    (void)snprintf(request, sizeof request, "{\"id\":5,\"do\":\"timeline\",\"after\":%lld}\n",
        (long long)after);
    stage_say(stage, span_of(request));
    CHECK(stage_line(stage, &doc));
    for (struct json_iter it = json_iterate(json_get(json_root(&doc), "events")); json_next(&it);)
        CHECK(json_int(json_get(it.value, "seq"), &seqs[count++]));
    json_doc_free(&doc);
    return count;
}

/* Most events of the first pages are of one kind, then of the other, so that either kind ends a page. */
TEST(sync_link, a_timeline_has_all_events_by_their_numbers)
{
    enum { COUNT = 4 * SYNC_EVENTS_MAX };
    int64_t seqs[2 * SYNC_EVENTS_MAX], after = 0;
    struct stage stage;
    size_t count;

    stage_start(&stage);
    for (int i = 1; i <= COUNT; i++) {
        bool is_held = (i % 10 == 0) != (i > COUNT / 2);
        char id[16];

        (void)snprintf(id, sizeof id, "$%d", i);
        held_put(
            &stage, id, i, is_held ? MXSTORE_HELD : MXSTORE_ENQUEUED, is_held ? MX_ESESSION : 0);
    }
    while ((count = timeline_read(&stage, after, seqs)) > 0)
        for (size_t i = 0; i < count; i++)
            CHECK_EQ_INT(seqs[i], ++after);
    CHECK_EQ_INT(after, COUNT);
    stage_stop(&stage);
}

/* A database of a former version has events that nest deeper than an answer may. */
TEST(sync_link, an_event_too_deep_for_the_answer_is_written_without_its_content)
{
    struct buffer body = { 0 };
    struct stage stage;

    stage_start(&stage);
    (void)buffer_text(&body, "{\"content\":{\"a\":");
    for (int i = 0; i < 62; i++)
        (void)buffer_text(&body, "[");
    for (int i = 0; i < 62; i++)
        (void)buffer_text(&body, "]");
    (void)buffer_text(&body, "}}");
    event_put(&stage, "$1", 1, MXSTORE_ENQUEUED, 0, mxclient_span(&body));
    event_put(&stage, "$2", 2, MXSTORE_ENQUEUED, 0, SPAN("{\"content\":{\"a\":1}}"));
    held_check(&stage, "{\"id\":5,\"do\":\"events\"}\n",
        "{\"id\":5,\"ok\":true,\"events\":["
        "{\"seq\":1,\"roomId\":\"!r:x\",\"eventId\":\"$1\",\"sender\":\"@a:x\","
        "\"type\":\"m.room.encrypted\",\"originMs\":1001,\"own\":false,"
        "\"encryption\":{\"trust\":\"unknown\"}},"
        "{\"seq\":2,\"roomId\":\"!r:x\",\"eventId\":\"$2\",\"sender\":\"@a:x\","
        "\"type\":\"m.room.encrypted\",\"originMs\":1002,\"own\":false,"
        "\"encryption\":{\"trust\":\"unknown\"},\"content\":{\"a\":1}}]}");
    buffer_free(&body);
    stage_stop(&stage);
}

/* ---- authors of events ------------------------------------------------------------------------ */

static void author_put(struct stage *stage, int64_t seq, enum mxstore_proof proof, bool is_own)
{
    struct sql_unit *unit = sql_unit_create(0);
    bool has_device = proof > MXSTORE_BY_SERVER;
    char id[8];

    snprintf(id, sizeof id, "$%d", (int)seq);
    mxstore_put(unit, MXSTORE_IS_event,
        &(struct mxstore_event){ .event_id = span_of(id),
            .seq = seq,
            .room_id = SPAN("!r:x"),
            .sender = SPAN("@a:x"),
            .type = SPAN("m.x"),
            .status = MXSTORE_ENQUEUED,
            .body = SPAN("{\"content\":{}}"),
            .proof = proof,
            .device_id = has_device ? SPAN("D") : (struct span){ NULL, 0 },
            .identity_key = has_device ? SPAN("K") : (struct span){ NULL, 0 },
            .is_own = is_own });
    mxstore_put(unit, MXSTORE_IS_device,
        &(struct mxstore_device){ .user_id = SPAN("@a:x"),
            .device_id = SPAN("D"),
            .identity_key = SPAN("K"),
            .signing_key = SPAN("S"),
            .trust = MXSTORE_VERIFIED,
            .body = SPAN("{}") });
    CHECK_EQ_INT(sql_write_wait(stage->place.sql, unit), 0);
    sql_unit_destroy(unit);
}

#define AUTHOR_EVENT(seq, own, encryption)                                                         \
    "{\"seq\":" seq ",\"roomId\":\"!r:x\",\"eventId\":\"$" seq "\",\"sender\":\"@a:x\","           \
    "\"type\":\"m.x\",\"originMs\":0,\"own\":" own ",\"encryption\":{" encryption                  \
    "},\"content\":{}}"
#define AUTHOR_DEVICE "\"encrypted\":true,\"deviceId\":\"D\",\"identityKey\":\"K\","

TEST(sync_link, an_event_says_whether_and_by_which_device_it_was_encrypted)
{
    struct stage stage;

    stage_start(&stage);
    author_put(&stage, 1, MXSTORE_BY_UNKNOWN, false);
    author_put(&stage, 2, MXSTORE_BY_SERVER, false);
    author_put(&stage, 3, MXSTORE_BY_UNVERIFIED, false);
    author_put(&stage, 4, MXSTORE_BY_VERIFIED, false);
    author_put(&stage, 5, MXSTORE_BY_IMPORTED, false);
    author_put(&stage, 6, MXSTORE_BY_US, true);
    held_check(&stage, "{\"id\":5,\"do\":\"events\",\"own\":true}\n",
        "{\"id\":5,\"ok\":true,\"events\":[" AUTHOR_EVENT(
            "1", "false", "\"trust\":\"unknown\"") "," AUTHOR_EVENT("2", "false",
            "\"encrypted\":false,\"trust\":\"unencrypted\"") "," AUTHOR_EVENT("3", "false",
            AUTHOR_DEVICE
            "\"trust\":\"verified\",\"formerTrust\":\"unverified\"") "," AUTHOR_EVENT("4", "false",
            AUTHOR_DEVICE "\"trust\":\"verified\"") "," AUTHOR_EVENT("5", "false",
            AUTHOR_DEVICE "\"trust\":\"imported\"") "," AUTHOR_EVENT("6", "true",
            AUTHOR_DEVICE "\"trust\":\"own\"") "]}");
    held_check(&stage, "{\"id\":5,\"do\":\"events\",\"after\":4}\n",
        "{\"id\":5,\"ok\":true,\"events\":[" AUTHOR_EVENT(
            "5", "false", AUTHOR_DEVICE "\"trust\":\"imported\"") "]}");
    stage_stop(&stage);
}

/* A connection may end while its request is on the way to the store. */
TEST(sync_link, reads_of_the_store_count_like_other_requests)
{
    const char *wait = "{\"id\":4,\"do\":\"events\",\"waits\":true}\n";
    struct stage stage;

    stage_start(&stage);
    for (int i = 0; i < SYNC_REQUESTS_MAX; i++)
        stage_say(&stage, span_of(wait));
    stage_check(&stage, "{\"id\":5,\"do\":\"timeline\"}\n", TR_EFULL);
    stage_stop(&stage);
    stage_start(&stage);
    for (int i = 0; i < SYNC_REQUESTS_MAX; i++)
        stage_say(&stage, SPAN("{\"id\":4,\"do\":\"timeline\"}\n"));
    stage_stop(&stage);
}

TEST(sync_link, members_and_state_need_a_login)
{
    struct stage stage;

    stage_start(&stage);
    stage_check(&stage, "{\"id\":5,\"do\":\"members\",\"room\":\"!r:x\"}\n", TR_EACCES);
    stage_check(&stage, "{\"id\":5,\"do\":\"leave\",\"room\":\"!r:x\"}\n", TR_EACCES);
    stage_stop(&stage);
}
