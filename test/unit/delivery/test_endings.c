/* SPDX-License-Identifier: Apache-2.0 */
/* How streams end: of clients that do not read, that come at a bad moment, that may not listen. */
#include <poll.h>

#include "convo_acts.h"
#include "http/connection.h"
#include "json/cbor.h"
#include "ops/flags.h"
#include "services/delivery/convo/convo.h"
#include "support/metric.h"

enum { BIG = 180000, SAID_MAX = 200 };

static int64_t metric_of(const char *name)
{
    int64_t count = 0;

    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0)
            count += metric_get(metric);
    return count;
}

/* ---- what is said --------------------------------------------------------------------------- */

static void say_big(struct cast *cast, int number, const char *delivery)
{
    char *secret = malloc(BIG + 1), *message, *body = NULL;

    CHECK(secret != NULL);
    memset(secret, 'x', BIG);
    secret[BIG] = '\0';
    message = private_message("g1", 1, 1, secret);
    CHECK(asprintf(&body,
              "{\"convoId\":\"g1\",\"msgId\":\"m%d\",\"ciphertext\":{\"$bytes\":\"%s\"},"
              "\"epoch\":1,\"delivery\":\"%s\"}",
              number, message, delivery) > 0);
    expect(&cast->site, &cast->ada, "sendMessage", body, 200, "messageId");
    free(body);
    free(message);
    free(secret);
}

/* Sends messages until a stream is full. They are numbered from 3 on; returns the last number. */
static int say_too_much(struct cast *cast, const char *delivery)
{
    int64_t before = metric_of("troupe_http_slow_streams_total");
    int said = 2;

    while (metric_of("troupe_http_slow_streams_total") == before) {
        CHECK_MSG(said < SAID_MAX, "it holds %d messages of %d bytes", said - 2, BIG);
        say_big(cast, ++said, delivery);
    }
    CHECK_EQ_INT(metric_of("troupe_http_slow_streams_total"), before + 1);
    say_big(cast, ++said, delivery); /* the others go on */
    return said;
}

/* ---- server-sent events --------------------------------------------------------------------- */

/* Whole events only: each must be the next one. Returns the last. */
static int follow(const char *text, int last)
{
    static const char end[] = "\"seq\":";

    for (const char *at = text; (at = strstr(at, end)) != NULL;) {
        char *behind;
        int seq = (int)strtol(at + sizeof end - 1, &behind, 10);

        at = behind;
        if (strncmp(behind, "}\n\n", 3) != 0)
            continue; /* the one inside the message */
        CHECK_MSG(seq == last + 1, "%d came after %d", seq, last);
        last = seq;
    }
    return last;
}

/* The last event is the notice, and the body ends behind it. The rest is in *heard; returns the
 * cursor. */
static int take_notice(struct web_answer *heard)
{
    static const char head[] = "event: infoEvent\ndata: {";
    char *notice = strstr(heard->text, head), *cursor;
    char wanted[128];
    int seq;

    CHECK_MSG(notice != NULL, "it ends with: %s",
        heard->text + (heard->size > 200 ? heard->size - 200 : 0));
    cursor = strstr(notice, "\"cursor\":\"");
    CHECK(cursor != NULL);
    seq = (int)strtol(cursor + 10, NULL, 10);
    (void)snprintf(wanted, sizeof wanted,
        "\"convoId\":\"g1\",\"info\":\"ConsumerTooSlow\",\"seq\":%d}\n\n\r\n0\r\n\r\n", seq);
    CHECK_MSG(strstr(notice, wanted) != NULL, "wanted %s, got %s", wanted, notice);
    *notice = '\0';
    return seq;
}

/* The first that comes is this one. */
static void expect_first(int fd, int seq)
{
    struct web_answer heard = { 0 };
    char wanted[32];

    (void)snprintf(wanted, sizeof wanted, "\"seq\":%d}\n\n", seq);
    CHECK_MSG(web_receive_until(fd, &heard, wanted), "%s", heard.text);
    CHECK_EQ_INT(follow(heard.text, seq - 1), seq);
    web_answer_free(&heard);
}

/* From there on nothing is missing and nothing comes twice. */
static void expect_rest(struct cast *cast, int cursor, int said)
{
    struct web_answer rest = { 0 };
    char query[64], wanted[32];
    int fd;

    (void)snprintf(query, sizeof query, "convoId=g1&cursor=%d", cursor);
    (void)snprintf(wanted, sizeof wanted, "\"seq\":%d}\n\n", said);
    fd = do_listen(&cast->site, &cast->bob, query);
    CHECK_MSG(web_receive_until(fd, &rest, wanted), "%zu bytes came", rest.size);
    close(fd);
    CHECK_EQ_INT(follow(rest.text, cursor), said);
    web_answer_free(&rest);
}

TEST_LONG(slow, events_that_waited_come_then_where_to_resume_then_the_end, 60)
{
    struct web_answer heard;
    struct cast cast;
    int fd, cursor, said;

    cast_begin(&cast);
    fd = do_listen(&cast.site, &cast.bob, "convoId=g1&cursor=2");
    said = say_too_much(&cast, "persistent");
    for (int i = 0; metric_of("troupe_delivery_subscribers") > 0; i++) {
        CHECK_MSG(i < 15000, "the conversation keeps it");
        (void)poll(NULL, 0, 1);
    }
    web_receive(fd, &heard);
    close(fd);
    cursor = take_notice(&heard);
    CHECK_MSG(cursor > 2 && cursor < said, "resume at %d of %d", cursor, said);
    CHECK_EQ_INT(follow(heard.text, 2), cursor);
    expect_rest(&cast, cursor, said);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* Its first event is the 3rd, but of that it did not hear: ephemeral ones filled it. */
TEST_LONG(slow, who_heard_of_nothing_stored_resumes_where_it_began, 60)
{
    struct web_answer heard;
    struct cast cast;
    int fd;

    cast_begin(&cast);
    fd = do_listen(&cast.site, &cast.bob, "convoId=g1");
    while (metric_of("troupe_delivery_subscribers") == 0)
        do_say(&cast.site, &cast.ada, "g1", "early", 1, "ephemeral", 200, "");
    (void)say_too_much(&cast, "ephemeral");
    say_big(&cast, 0, "persistent");
    web_receive(fd, &heard);
    close(fd);
    CHECK_EQ_INT(take_notice(&heard), 2);
    expect_rest(&cast, 2, 3);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* ---- WebSocket ------------------------------------------------------------------------------ */

static int listen_by_socket(struct cast *cast, const char *query)
{
    return do_listen_with(&cast->site, &cast->bob, query,
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
}

static struct web_answer hear_socket(int fd)
{
    struct web_answer heard;

    web_receive(fd, &heard);
    close(fd);
    CHECK_EQ_INT(heard.status, 101);
    return heard;
}

struct socket_frame {
    unsigned first; /* byte: 0x82 a message, 0x88 the end */
    struct span payload;
};

static struct socket_frame take_frame(struct span *rest)
{
    const unsigned char *bytes = (const unsigned char *)rest->at;
    size_t digits, size, head;

    CHECK(rest->size >= 2);
    digits = bytes[1] == 126 ? 2 : bytes[1] == 127 ? 8 : 0;
    size = digits == 0 ? bytes[1] : 0;
    head = 2 + digits;
    CHECK(rest->size >= head);
    for (size_t i = 0; i < digits; i++)
        size = size << 8 | bytes[2 + i];
    CHECK(rest->size - head >= size);
    *rest = (struct span){ rest->at + head + size, rest->size - head - size };
    return (struct socket_frame){ bytes[0], { (const char *)bytes + head, size } };
}

/* A message of two values: `doc` has the second. Returns the first one's op. */
static int64_t open_message(struct span payload, struct json_doc *doc)
{
    struct json_doc head = { 0 };
    size_t used;
    int64_t op;

    CHECK_EQ_INT(cbor_parse_first(&head, payload, &used), 0);
    CHECK(json_int(json_get(json_root(&head), "op"), &op));
    CHECK_EQ_INT(json_get(json_root(&head), "t") != NULL, op == 1); /* an error has no type */
    json_doc_free(&head);
    CHECK_EQ_INT(cbor_parse(doc, (struct span){ payload.at + used, payload.size - used }), 0);
    return op;
}

static void expect_text(const struct json_doc *doc, const char *key, const char *wanted)
{
    struct span text;

    CHECK(json_string(json_get(json_root(doc), key), &text));
    CHECK_MSG(span_is(text, wanted), "%s is %.*s", key, (int)text.size, text.at);
}

static void expect_close(struct span *rest, unsigned code)
{
    struct socket_frame frame = take_frame(rest);
    const unsigned char *bytes = (const unsigned char *)frame.payload.at;

    CHECK_EQ_INT(frame.first, 0x88);
    CHECK(frame.payload.size >= 2);
    CHECK_EQ_INT(bytes[0] << 8 | bytes[1], code);
    CHECK_EQ_INT(rest->size, 0);
}

static struct span frames_of(const struct web_answer *heard)
{
    return (struct span){ heard->body, heard->size - (size_t)(heard->body - heard->text) };
}

TEST_LONG(slow, a_socket_hears_the_error_with_the_cursor_and_closes_with_1013, 60)
{
    struct web_answer heard;
    struct span rest;
    struct json_doc doc = { 0 };
    struct cast cast;
    char cursor[16];
    int64_t seq;
    int fd, last = 2, said;

    cast_begin(&cast);
    fd = listen_by_socket(&cast, "convoId=g1&cursor=2");
    said = say_too_much(&cast, "persistent");
    web_send(fd, "\x88\x80\0\0\0\0", 6); /* our goodbye: the server need not wait for it */
    heard = hear_socket(fd);
    rest = frames_of(&heard);
    while (open_message(take_frame(&rest).payload, &doc) == 1) {
        CHECK(json_int(json_get(json_root(&doc), "seq"), &seq));
        CHECK_EQ_INT(seq, ++last);
        json_doc_free(&doc);
    }
    CHECK_MSG(last > 2 && last < said, "heard up to %d of %d", last, said);
    expect_text(&doc, "error", "ConsumerTooSlow");
    (void)snprintf(cursor, sizeof cursor, "%d", last);
    expect_text(&doc, "cursor", cursor);
    json_doc_free(&doc);
    expect_close(&rest, 1013);
    expect_rest(&cast, last, said);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* ---- a cursor that is not in the log -------------------------------------------------------- */

static void expect_ahead(struct cast *cast)
{
    struct web_answer heard;
    int fd = do_listen(&cast->site, &cast->bob, "convoId=g1&cursor=9");

    web_receive(fd, &heard);
    close(fd);
    CHECK_EQ_INT(heard.status, 200);
    CHECK_MSG(strstr(heard.text,
                  "id: 2\nevent: infoEvent\n"
                  "data: {\"$type\":\"blue.catbird.mls.subscribeConvoEvents#infoEvent\","
                  "\"cursor\":\"2\",\"convoId\":\"g1\",\"info\":\"CursorAhead\",\"seq\":2}\n\n"
                  "\r\n0\r\n\r\n") != NULL,
        "%s", heard.text);
    web_answer_free(&heard);
}

TEST(ahead, whose_cursor_is_not_in_the_log_hears_where_that_ends_and_goes_on_there)
{
    struct cast cast;

    cast_begin(&cast);
    expect_ahead(&cast);
    do_say(&cast.site, &cast.ada, "g1", "m", 1, "persistent", 200, "\"seq\":3");
    expect_rest(&cast, 2, 3);
    cast_end(&cast);
}

TEST(ahead, without_the_actor_it_hears_the_same)
{
    struct cast cast;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", FLAG_ALL); /* there is no file to keep it */
    expect_ahead(&cast);
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

TEST(ahead, a_socket_hears_it_as_an_error_and_closes_with_1008)
{
    struct web_answer heard;
    struct span rest;
    struct json_doc doc = { 0 };
    struct cast cast;

    cast_begin(&cast);
    heard = hear_socket(listen_by_socket(&cast, "convoId=g1&cursor=3"));
    rest = frames_of(&heard);
    CHECK_EQ_INT(open_message(take_frame(&rest).payload, &doc), -1);
    expect_text(&doc, "error", "CursorAhead");
    expect_text(&doc, "cursor", "2");
    expect_close(&rest, 1008);
    json_doc_free(&doc);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* As of a unit whose end the actor was not told. */
TEST(ahead, a_cursor_that_only_the_database_knows_is_good)
{
    struct cast cast;
    int fd;

    cast_begin(&cast);
    do_grow_unseen(&cast.site);
    fd = do_listen(&cast.site, &cast.bob, "convoId=g1&cursor=3");
    while (metric_of("troupe_delivery_subscribers") == 0)
        (void)poll(NULL, 0, 1);
    do_say(&cast.site, &cast.ada, "g1", "m", 1, "persistent", 200, "\"seq\":4");
    expect_first(fd, 4);
    close(fd);
    cast_end(&cast);
}

/* ---- a bad moment --------------------------------------------------------------------------- */

TEST(busy, a_socket_whose_log_cannot_be_read_is_told_to_try_again)
{
    struct web_answer heard;
    struct span rest;
    struct json_doc doc = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    plant(&cast.site, "ALTER TABLE log RENAME TO hidden");
    fd = listen_by_socket(&cast, "convoId=g1&cursor=0");
    heard = hear_socket(fd);
    rest = frames_of(&heard);
    CHECK_EQ_INT(open_message(take_frame(&rest).payload, &doc), 1);
    expect_text(&doc, "info", "busy");
    expect_text(&doc, "cursor", "0");
    expect_close(&rest, 1013);
    json_doc_free(&doc);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* Stands where a connection is, and notes with which code its stream ends. */
static enum tr_next listener_handle(void *state, struct tr_context *ctx, void *memory)
{
    const struct http_message *message = memory;
    _Atomic int *code = *(_Atomic int **)state;

    (void)ctx;
    if (message->kind == MESSAGE_END)
        atomic_store(code, (int)message->code);
    http_frame_unref(message->frame);
    return TR_GO;
}

static const struct tr_type listener_type = {
    .name = "listener",
    .message_size = sizeof(struct http_message),
    .state_size = sizeof(_Atomic int *),
    .handle = listener_handle,
};

/* Past the look at who asks, which has its own answer: the conversation itself refuses it. The stream's
 * end would be told to no actor, as when the actor that watches it has ended. */
static int refusal_of(const struct cast *cast, const struct caller *caller)
{
    const struct delivery *delivery = cast->site.delivery;
    struct auth_claims claims = { .kind = AUTH_SERVICE, .issuer = span_of(caller->did) };
    struct act *act = act_create(&subscribe_act_type, &claims);
    struct act_envelope message = { .act = act };
    _Atomic int code = 0, *place = &code;
    tr_sender listener, convo;

    CHECK(act != NULL);
    CHECK_EQ_INT(tr_spawn(cast->site.system, &listener_type, &place, NULL, &listener), 0);
    act->convo = SPAN("g1");
    act_subscribe(act)->stream = (http_stream){ tr_sender_weaken(listener), 1 };
    CHECK_EQ_INT(tr_registry_get(delivery->convos, "g1", 2, "a stream", &convo), 0);
    CHECK_EQ_INT(tr_tell(convo, &message, sizeof message), 0);
    for (int i = 0; atomic_load(&code) == 0; i++) {
        CHECK_MSG(i < 15000, "its stream is left open");
        (void)poll(NULL, 0, 1);
    }
    tr_sender_drop(&convo);
    tr_sender_drop(&listener);
    return atomic_load(&code);
}

TEST(refused, who_may_not_listen_and_who_may_try_again_are_told_apart)
{
    struct cast cast;

    cast_begin(&cast);
    CHECK_EQ_INT(refusal_of(&cast, &cast.eve), 1008); /* no member */
    CHECK_EQ_INT(refusal_of(&cast, &cast.bob), 1012); /* another actor watches the stream */
    plant(&cast.site, "ALTER TABLE convos RENAME TO hidden");
    site_close(&cast.site);
    site_open(&cast.site); /* it has to be read again */
    CHECK_EQ_INT(refusal_of(&cast, &cast.bob), 1013);
    cast_end(&cast);
}
