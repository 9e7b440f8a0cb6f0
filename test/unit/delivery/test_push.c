/* SPDX-License-Identifier: Apache-2.0 */
/* The server wakes idle devices through a gateway: which devices, how often, and the content of the
 * request. */
#include <pthread.h>

#include "fake_server.h"
#include "site.h"

#define TALK "talk"

/* ---- a gateway that keeps what it is told --------------------------------------------------- */

enum { POSTS_MAX = 256 };

struct gateway {
    struct fake_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char posts[POSTS_MAX][256];
    uint32_t count;
    const char *refused; /* a token that is answered with `status` */
    const char *status;
    const char *page;  /* that comes with it; NULL: little */
    uint32_t refusals; /* so many times; the next is taken */
    bool is_held;      /* it keeps its answers to itself */
};

static void gateway_script(struct fake_connection *connection, void *data)
{
    struct gateway *gateway = data;
    static _Thread_local struct fake_request request;

    while (fake_read(connection, &request)) {
        const char *status = "200 OK", *page = NULL;

        CHECK_EQ_STR(request.method, "POST");
        CHECK_EQ_STR(request.path, "/wake?key=secret");
        pthread_mutex_lock(&gateway->lock);
        CHECK(gateway->count < POSTS_MAX);
        (void)snprintf(gateway->posts[gateway->count++], sizeof gateway->posts[0], "%.*s",
            (int)request.body_size, request.body);
        if (gateway->refused != NULL && gateway->refusals > 0 &&
            memmem(request.body, request.body_size, gateway->refused, strlen(gateway->refused)) !=
                NULL) {
            status = gateway->status;
            page = gateway->page;
            gateway->refusals--;
        }
        pthread_cond_broadcast(&gateway->changed);
        while (gateway->is_held)
            pthread_cond_wait(&gateway->changed, &gateway->lock);
        pthread_mutex_unlock(&gateway->lock);
        if (!fake_answer(connection, status, NULL, page == NULL ? "{}" : page))
            return;
    }
}

static uint32_t count_of(struct gateway *gateway, const char *token)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < gateway->count; i++)
        count += strstr(gateway->posts[i], token) != NULL;
    return count;
}

static uint32_t woken(struct gateway *gateway, const char *token)
{
    uint32_t count;

    pthread_mutex_lock(&gateway->lock);
    count = count_of(gateway, token);
    pthread_mutex_unlock(&gateway->lock);
    return count;
}

static void hold(struct gateway *gateway, bool is_held)
{
    pthread_mutex_lock(&gateway->lock);
    gateway->is_held = is_held;
    pthread_cond_broadcast(&gateway->changed);
    pthread_mutex_unlock(&gateway->lock);
}

/* Until the token was told so often. */
static void wait_woken(struct gateway *gateway, const char *token, uint32_t count)
{
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    pthread_mutex_lock(&gateway->lock);
    while (count_of(gateway, token) < count)
        CHECK_MSG(pthread_cond_timedwait(&gateway->changed, &gateway->lock, &limit) == 0,
            "%s was woken %u times, not %u", token, count_of(gateway, token), count);
    pthread_mutex_unlock(&gateway->lock);
}

/* ---- people with devices -------------------------------------------------------------------- */

struct play {
    struct site site;
    struct gateway gateway;
    struct caller alice, bob, carol;
    struct signer signer;
};

static void ask(struct play *play, const struct caller *caller, const char *call, const char *body,
    unsigned status, const char *part)
{
    site_expect(&play->site, caller, call, body, status, part);
}

static void register_token(struct play *play, const struct caller *caller, const char *token)
{
    struct buffer key = { 0 };
    char body[512], *text;

    buffer_append(&key, play->signer.public_key, 32);
    text = base64_of(&key);
    (void)snprintf(body, sizeof body,
        "{\"deviceName\":\"a\",\"deviceUUID\":\"phone\",\"signaturePublicKey\":\"%s\","
        "\"keyPackages\":[]}",
        text);
    ask(play, caller, "registerDevice", body, 200, "phone");
    (void)snprintf(body, sizeof body,
        "{\"deviceId\":\"phone\",\"pushToken\":\"%s\",\"platform\":\"ios\"}", token);
    ask(play, caller, "registerDeviceToken", body, 200, "{\"success\":true}");
    free(text);
    buffer_free(&key);
}

/* Alice makes a conversation, and adds one or two. */
static void make_convo(
    struct play *play, const char *id, const struct caller *first, const struct caller *second)
{
    char body[512];

    site_create(&play->site, &play->alice, id);
    (void)snprintf(body, sizeof body, "{\"convoId\":\"%s\",\"didList\":[\"%s\"%s%s%s]}", id,
        first->did, second == NULL ? "" : ",\"", second == NULL ? "" : second->did,
        second == NULL ? "" : "\"");
    ask(play, &play->alice, "addMembers", body, 200, "\"newEpoch\":1");
}

static void say_numbered(
    struct play *play, const struct caller *caller, const char *id, unsigned number)
{
    struct buffer bytes = { 0 };
    char body[1024], *text;

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, MLS_PRIVATE, 2);
    mls_put_vector(&bytes, span_of(id));
    mls_put_number(&bytes, 1, 8);
    mls_put_number(&bytes, MLS_APPLICATION, 1);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("sender data of 28 bytes ...."));
    mls_put_vector(&bytes, SPAN("hello"));
    text = base64_of(&bytes);
    (void)snprintf(body, sizeof body,
        "{\"convoId\":\"%s\",\"msgId\":\"m-%u\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":1}",
        id, number, text);
    ask(play, caller, "sendMessage", body, 200, "\"seq\"");
    free(text);
    buffer_free(&bytes);
}

static void say(struct play *play, const struct caller *caller, const char *id)
{
    static unsigned number;

    say_numbered(play, caller, id, number++);
}

static void play_begin(struct play *play, const char *interval)
{
    struct buffer errors = { 0 };
    struct config config = { 0 };
    char file[256];

    *play = (struct play){ .gateway = { .refused = NULL } };
    CHECK_EQ_INT(pthread_mutex_init(&play->gateway.lock, NULL), 0);
    CHECK_EQ_INT(pthread_cond_init(&play->gateway.changed, NULL), 0);
    play->gateway.server = fake_server_start(gateway_script, &play->gateway, NULL);
    (void)snprintf(file, sizeof file,
        "[delivery]\npush_url = %s\npush_interval = %s\npush_allow_private = on\n",
        fake_server_url(play->gateway.server, "/wake?key=secret"), interval);
    CHECK_EQ_INT(
        config_load_bytes(span_of(file), "t.conf", &(struct config_sources){ 0 }, &config, &errors),
        0);
    site_begin_with(&play->site, &config);
    config_fini(&config);
    caller_begin(&play->alice);
    caller_begin(&play->bob);
    caller_begin(&play->carol);
    signer_begin(&play->signer);
}

static void play_end(struct play *play)
{
    caller_end(&play->alice);
    caller_end(&play->bob);
    caller_end(&play->carol);
    signer_end(&play->signer);
    site_end(&play->site);
    fake_server_stop(&play->gateway.server);
    pthread_cond_destroy(&play->gateway.changed);
    pthread_mutex_destroy(&play->gateway.lock);
}

/* ---- tokens --------------------------------------------------------------------------------- */

TEST(push, without_a_gateway_no_token_is_taken)
{
    struct caller bob;
    struct site site;

    site_begin(&site);
    caller_begin(&bob);
    site_expect(&site, &bob, "registerDeviceToken",
        "{\"deviceId\":\"phone\",\"pushToken\":\"t\",\"platform\":\"ios\"}", 501,
        "PushNotConfigured");
    site_expect(&site, &bob, "unregisterDeviceToken", "{\"deviceId\":\"phone\"}", 200, "true");
    caller_end(&bob);
    site_end(&site);
}

TEST(push, a_token_is_of_a_registered_device_and_told_to_nobody)
{
    static const char *const bad[] = { "{\"deviceId\":\"phone\",\"platform\":\"ios\"}",
        "{\"pushToken\":\"t\",\"platform\":\"ios\"}",
        "{\"deviceId\":\"phone\",\"pushToken\":\"t\",\"platform\":\"fax\"}",
        "{\"deviceId\":\"phone\",\"pushToken\":\"two words\",\"platform\":\"ios\"}",
        "{\"deviceId\":\"phone\",\"pushToken\":\"\",\"platform\":\"ios\"}" };
    struct web_answer answer;
    struct play play;

    play_begin(&play, "100ms");
    ask(&play, &play.bob, "registerDeviceToken",
        "{\"deviceId\":\"phone\",\"pushToken\":\"t\",\"platform\":\"ios\"}", 404, "DeviceNotFound");
    register_token(&play, &play.bob, "token-of-bob");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ask(&play, &play.bob, "registerDeviceToken", bad[i], 400, "InvalidRequest");
    answer = site_ask(&play.site, &play.bob, "listDevices", "");
    CHECK(answer.status == 200 && strstr(answer.text, "token-of-bob") == NULL);
    web_answer_free(&answer);
    play_end(&play);
}

/* ---- who is woken --------------------------------------------------------------------------- */

TEST(push, a_message_wakes_the_others_and_tells_the_gateway_nothing_of_it)
{
    struct play play;

    play_begin(&play, "100ms");
    register_token(&play, &play.alice, "token-of-alice");
    register_token(&play, &play.bob, "token-of-bob");
    make_convo(&play, TALK, &play.bob, &play.carol); /* he is woken to look for his Welcome */
    wait_woken(&play.gateway, "token-of-bob", 1);
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-bob", 2);
    CHECK_EQ_STR(play.gateway.posts[0],
        "{\"token\":\"token-of-bob\",\"platform\":\"ios\",\"deviceId\":\"phone\"}");
    CHECK_EQ_INT(woken(&play.gateway, "token-of-alice"), 0);
    say(&play, &play.bob, TALK);
    wait_woken(&play.gateway, "token-of-alice", 1);
    say(&play, &play.carol, TALK); /* a sender without a device wakes both */
    wait_woken(&play.gateway, "token-of-alice", 2);
    wait_woken(&play.gateway, "token-of-bob", 3);
    play_end(&play);
}

/* The server that stored the message may have crashed before the wake-up, or not have known its
 * outcome. */
TEST(push, a_message_that_is_sent_again_wakes_those_who_do_not_know_it)
{
    struct play play;

    play_begin(&play, "100ms");
    register_token(&play, &play.carol, "token-of-carol");
    make_convo(&play, TALK, &play.bob, &play.carol);
    wait_woken(&play.gateway, "token-of-carol", 1);
    say_numbered(&play, &play.alice, TALK, 1000);
    wait_woken(&play.gateway, "token-of-carol", 2); /* and nothing wakes anybody any more */
    register_token(&play, &play.bob, "token-of-bob");
    say_numbered(&play, &play.alice, TALK, 1000);
    wait_woken(&play.gateway, "token-of-bob", 1);
    play_end(&play);
}

TEST(push, a_conversation_that_is_made_again_wakes_those_who_do_not_know_it)
{
    struct play play;
    char body[512];

    play_begin(&play, "100ms");
    (void)snprintf(body, sizeof body,
        "{\"groupId\":\"" TALK "\",\"cipherSuite\":\"" SITE_SUITE
        "\",\"idempotencyKey\":\"k-1\",\"initialMembers\":[\"%s\",\"%s\"]}",
        play.bob.did, play.carol.did);
    register_token(&play, &play.carol, "token-of-carol");
    ask(&play, &play.alice, "createConvo", body, 200, TALK);
    wait_woken(&play.gateway, "token-of-carol", 1); /* and nothing wakes anybody any more */
    register_token(&play, &play.bob, "token-of-bob");
    ask(&play, &play.alice, "createConvo", body, 200, TALK);
    wait_woken(&play.gateway, "token-of-bob", 1);
    play_end(&play);
}

/* Subscribes from the first event after the creation. */
static int listen_to_talk(struct play *play, const struct caller *caller)
{
    char request[2048], *header = caller_header(caller, "subscribeConvoEvents");
    int fd = web_connect(http_server_address(play->site.server));

    (void)snprintf(request, sizeof request,
        "GET /xrpc/" XRPC_PREFIX "subscribeConvoEvents?convoId=" TALK
        "&cursor=2 HTTP/1.1\r\nHost: x\r\n"
        "Accept: text/event-stream\r\n%s\r\n",
        header);
    web_send(fd, request, strlen(request));
    free(header);
    return fd;
}

TEST(push, who_listens_is_not_woken_until_the_stream_has_ended)
{
    struct web_answer answer = { 0 };
    struct play play;
    int fd;

    play_begin(&play, "100ms");
    make_convo(&play, TALK, &play.bob, &play.carol);
    register_token(&play, &play.bob, "token-of-bob");
    register_token(&play, &play.carol, "token-of-carol");
    fd = listen_to_talk(&play, &play.bob);
    say(&play, &play.alice, TALK);
    CHECK(web_receive_until(fd, &answer, "messageEvent")); /* from now on he listens */
    wait_woken(&play.gateway, "token-of-carol", 1);
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 2);
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 3);
    CHECK_MSG(woken(&play.gateway, "token-of-bob") <= 1, "he listens, and is woken");
    close(fd);
    for (uint32_t i = woken(&play.gateway, "token-of-bob");
         woken(&play.gateway, "token-of-bob") == i;) {
        say(&play, &play.alice, TALK); /* until the server has seen that he is gone */
        wait_woken(&play.gateway, "token-of-carol", woken(&play.gateway, "token-of-carol") + 1);
    }
    web_answer_free(&answer);
    play_end(&play);
}

/* However many others do. */
TEST(push, who_listens_in_a_crowd_is_not_woken)
{
    enum { CROWD = 100 };
    static struct caller crowd[CROWD];
    struct buffer body = { 0 };
    struct play play;
    int fds[CROWD];

    play_begin(&play, "100ms");
    make_convo(&play, TALK, &play.bob, &play.carol);
    buffer_text(&body, "{\"convoId\":\"" TALK "\",\"didList\":[");
    for (int i = 0; i < CROWD; i++) {
        caller_begin(&crowd[i]);
        buffer_format(&body, "%s\"%s\"", i == 0 ? "" : ",", crowd[i].did);
    }
    buffer_append(&body, "]}", sizeof "]}");
    ask(&play, &play.alice, "addMembers", body.bytes, 200, "\"newEpoch\":2");
    buffer_free(&body);
    for (int i = 0; i < CROWD; i++)
        fds[i] = listen_to_talk(&play, &crowd[i]);
    for (int i = 0; i < CROWD; i++) {
        struct web_answer answer = { 0 };

        say(&play, &play.alice, TALK);
        CHECK(web_receive_until(fds[i], &answer, "messageEvent"));
        web_answer_free(&answer);
    }
    register_token(&play, &crowd[0], "token-of-one");
    register_token(&play, &play.carol, "token-of-carol");
    for (uint32_t i = 1; i <= 3; i++) {
        say(&play, &play.alice, TALK);
        wait_woken(&play.gateway, "token-of-carol", i);
    }
    CHECK_EQ_INT(woken(&play.gateway, "token-of-one"), 0);
    for (int i = 0; i < CROWD; i++) {
        close(fds[i]);
        caller_end(&crowd[i]);
    }
    play_end(&play);
}

TEST(push, who_left_or_took_the_token_back_is_not_woken)
{
    struct play play;
    char body[256];

    play_begin(&play, "100ms");
    make_convo(&play, TALK, &play.bob, &play.carol);
    register_token(&play, &play.bob, "token-of-bob");
    register_token(&play, &play.carol, "token-of-carol");
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-bob", 1);
    wait_woken(&play.gateway, "token-of-carol", 1);
    ask(&play, &play.bob, "unregisterDeviceToken", "{\"deviceId\":\"phone\"}", 200, "true");
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 2);
    register_token(&play, &play.bob, "another-of-bob");
    ask(&play, &play.bob, "deleteDevice", "{\"deviceId\":\"phone\"}", 200, "true");
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 3);
    register_token(&play, &play.bob, "third-of-bob");
    (void)snprintf(
        body, sizeof body, "{\"convoId\":\"" TALK "\",\"targetDid\":\"%s\"}", play.bob.did);
    ask(&play, &play.alice, "removeMember", body, 200, "true");
    wait_woken(&play.gateway, "token-of-carol", 4);
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 5);
    CHECK_EQ_INT(woken(&play.gateway, "token-of-bob"), 1);
    CHECK_EQ_INT(woken(&play.gateway, "another-of-bob"), 0);
    CHECK_EQ_INT(woken(&play.gateway, "third-of-bob"), 0);
    play_end(&play);
}

/* Its wake-up was to be tried again. */
TEST(push, a_token_that_was_taken_back_is_told_no_more)
{
    struct play play;

    play_begin(&play, "2s");
    register_token(&play, &play.carol, "token-of-carol");
    make_convo(&play, TALK, &play.bob, &play.carol);
    wait_woken(&play.gateway, "token-of-carol", 1);
    register_token(&play, &play.bob, "token-of-bob");
    play.gateway.refused = "token-of-bob";
    play.gateway.status = "503 Service Unavailable";
    play.gateway.refusals = 1;
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-bob", 1);
    ask(&play, &play.bob, "unregisterDeviceToken", "{\"deviceId\":\"phone\"}", 200, "true");
    wait_woken(&play.gateway, "token-of-carol", 2);
    for (uint32_t i = 3; i <= 4; i++) { /* each takes as long as a device rests */
        say(&play, &play.alice, TALK);
        wait_woken(&play.gateway, "token-of-carol", i);
    }
    CHECK_EQ_INT(woken(&play.gateway, "token-of-bob"), 1);
    play_end(&play);
}

/* ---- how often ------------------------------------------------------------------------------ */

TEST(push, many_messages_are_one_wake_up)
{
    struct play play;

    play_begin(&play, "1h");
    register_token(&play, &play.bob, "token-of-bob");
    register_token(&play, &play.carol, "token-of-carol");
    make_convo(&play, TALK, &play.bob, NULL);
    wait_woken(&play.gateway, "token-of-bob", 1);
    for (int i = 0; i < 20; i++)
        say(&play, &play.alice, TALK);
    make_convo(&play, "other", &play.bob, &play.carol); /* nor is he by another one */
    wait_woken(&play.gateway, "token-of-carol", 1);
    CHECK_EQ_INT(woken(&play.gateway, "token-of-bob"), 1);
    play_end(&play);
}

/* ---- answers of the gateway ----------------------------------------------------------------- */

SQL_STATEMENT(count_tokens, "SELECT COUNT(*) FROM push_tokens");

static int64_t tokens_stored(struct play *play)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t count;

    sql_unit_step(unit, &count_tokens, 1);
    CHECK_EQ_INT(sql_read_wait(play->site.sql, unit), 0);
    count = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return count;
}

/* As proxies in front of a gateway answer in its place. */
static const char *long_page(void)
{
    static char page[16384];

    memset(page, '-', sizeof page - 1);
    return page;
}

static void expect_deleted(const char *page)
{
    struct play play;

    play_begin(&play, "100ms");
    make_convo(&play, TALK, &play.bob, &play.carol);
    register_token(&play, &play.bob, "token-of-bob");
    register_token(&play, &play.carol, "token-of-carol");
    play.gateway.refused = "token-of-bob";
    play.gateway.status = "410 Gone";
    play.gateway.page = page;
    play.gateway.refusals = 1;
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-bob", 1);
    while (tokens_stored(&play) == 2) { /* the case has a limit */
    }
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 2);
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-carol", 3);
    CHECK_EQ_INT(woken(&play.gateway, "token-of-bob"), 1);
    CHECK_EQ_INT(tokens_stored(&play), 1);
    play_end(&play);
}

TEST(push, a_token_that_is_gone_is_deleted)
{
    expect_deleted(NULL);
}

TEST(push, a_token_that_is_gone_is_deleted_however_much_is_said_of_it)
{
    expect_deleted(long_page());
}

TEST(push, who_has_another_token_when_the_first_is_gone_is_told_by_that)
{
    struct play play;

    play_begin(&play, "100ms");
    make_convo(&play, TALK, &play.bob, NULL);
    register_token(&play, &play.bob, "token-of-bob");
    play.gateway.refused = "token-of-bob";
    play.gateway.status = "410 Gone";
    play.gateway.refusals = 1;
    hold(&play.gateway, true);
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-bob", 1);
    register_token(&play, &play.bob, "another-of-bob");
    hold(&play.gateway, false);
    wait_woken(&play.gateway, "another-of-bob", 1);
    CHECK_EQ_INT(tokens_stored(&play), 1);
    play_end(&play);
}

static void expect_tries(const char *status, const char *page, uint32_t refusals, uint32_t tries)
{
    struct play play;

    play_begin(&play, "100ms");
    make_convo(&play, TALK, &play.bob, NULL);
    make_convo(&play, "other", &play.carol, NULL);
    register_token(&play, &play.bob, "token-of-bob");
    register_token(&play, &play.carol, "token-of-carol");
    play.gateway.refused = "token-of-bob";
    play.gateway.status = status;
    play.gateway.page = page;
    play.gateway.refusals = refusals;
    say(&play, &play.alice, TALK);
    wait_woken(&play.gateway, "token-of-bob", tries);
    for (uint32_t i = 1; i <= 4; i++) { /* each takes as long as a device rests */
        say(&play, &play.alice, "other");
        wait_woken(&play.gateway, "token-of-carol", i);
    }
    CHECK_EQ_INT(woken(&play.gateway, "token-of-bob"), tries);
    CHECK_EQ_INT(tokens_stored(&play), 2);
    play_end(&play);
}

TEST(push, a_gateway_in_trouble_is_tried_again_until_it_takes_it)
{
    expect_tries("500 Internal Server Error", NULL, 1, 2);
}

TEST(push, a_gateway_in_trouble_is_tried_again_however_long_its_page_is)
{
    expect_tries("502 Bad Gateway", long_page(), 1, 2);
}

TEST(push, a_gateway_in_trouble_is_tried_three_times_at_most)
{
    expect_tries("503 Service Unavailable", NULL, 100, 3);
}

TEST(push, what_a_gateway_refuses_is_not_tried_again)
{
    expect_tries("400 Bad Request", NULL, 100, 1);
}
