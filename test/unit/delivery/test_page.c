/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a conversation: pages hold a bounded number of bytes, a message has one id in every call,
 * and a member sees no message from before it joined. */
#include <sys/socket.h>

#include "convo_acts.h"
#include "ops/flags.h"

enum { LARGE = 9900000, ANSWER_MAX = 20 << 20 };

static char *filled(size_t size)
{
    char *text = malloc(size + 1);

    CHECK(text != NULL);
    memset(text, 'x', size);
    text[size] = '\0';
    return text;
}

/* POST, however long it is. */
__attribute__((format(printf, 6, 7))) static void post(const struct site *site,
    const struct caller *caller, const char *call, unsigned status, const char *part,
    const char *format, ...)
{
    char *body = NULL;
    va_list list;

    va_start(list, format);
    CHECK(vasprintf(&body, format, list) > 0);
    va_end(list);
    expect(site, caller, call, body, status, part);
    free(body);
}

static void say_large(
    const struct site *site, const struct caller *caller, const char *id, size_t size)
{
    char *secret = filled(size), *message = private_message("g1", 1, 1, secret);

    post(site, caller, "sendMessage", 200, id,
        "{\"convoId\":\"g1\",\"msgId\":\"%s\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":1}", id,
        message);
    free(message);
    free(secret);
}

static struct json_doc ask_page(const struct site *site, const struct caller *caller,
    const char *call, struct web_answer *ret_answer)
{
    struct json_doc doc = { 0 };

    *ret_answer = caller_ask(site, caller, call, NULL);
    CHECK_MSG(ret_answer->status == 200, "%s: %.300s", call, ret_answer->text);
    CHECK_MSG(ret_answer->size < ANSWER_MAX, "%s: %zu bytes", call, ret_answer->size);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(ret_answer->body), 0), 0);
    return doc;
}

static int64_t int_of(const struct json *object, const char *name)
{
    int64_t value = -1;

    CHECK_MSG(json_int(json_get(object, name), &value), "no %s", name);
    return value;
}

static bool bool_of(const struct json *object, const char *name)
{
    bool value = false;

    CHECK_MSG(json_bool(json_get(object, name), &value), "no %s", name);
    return value;
}

static void text_of(const struct json *object, const char *name, char text[64])
{
    struct span span;

    CHECK_MSG(json_string(json_get(object, name), &span) && span.size < 64, "no %s", name);
    memcpy(text, span.at, span.size);
    text[span.size] = '\0';
}

TEST_LONG(page, of_seven_large_messages_is_cut_and_says_so, 240)
{
    struct cast cast;
    int64_t since = 2;
    int seen = 0, pages = 0;
    bool has_more = true;

    cast_begin(&cast);
    do_say(&cast.site, &cast.ada, "g1", "m0", 1, "persistent", 200, "m0");
    for (int i = 1; i <= 7; i++) {
        char id[16];

        (void)snprintf(id, sizeof id, "m%d", i);
        say_large(&cast.site, &cast.ada, id, LARGE);
    }
    do_say(&cast.site, &cast.ada, "g1", "m8", 1, "persistent", 200, "m8");
    for (; has_more; pages++) {
        struct web_answer answer;
        char call[80];
        struct json_doc doc;

        (void)snprintf(
            call, sizeof call, "getMessages?convoId=g1&limit=100&sinceSeq=%lld", (long long)since);
        doc = ask_page(&cast.site, &cast.bob, call, &answer);
        for (struct json_iter it = json_iterate(json_get(json_root(&doc), "messages"));
             json_next(&it); seen++) {
            char id[64], wanted[16];

            (void)snprintf(wanted, sizeof wanted, "m%d", seen);
            text_of(it.value, "id", id);
            CHECK_MSG(strcmp(id, wanted) == 0, "%s where %s should be", id, wanted);
            CHECK(json_get(json_get(it.value, "ciphertext"), "$bytes") != NULL);
        }
        has_more = bool_of(json_root(&doc), "hasMore");
        since = int_of(json_root(&doc), "lastSeq");
        CHECK(!bool_of(json_get(json_root(&doc), "gapInfo"), "hasGaps"));
        json_doc_free(&doc);
        web_answer_free(&answer);
    }
    CHECK_EQ_INT(seen, 9);
    CHECK_EQ_INT(pages, 8); /* m0; then each large one, the last with the small one behind it */
    cast_end(&cast);
}

TEST(page, says_that_there_is_more_exactly_if_there_is)
{
    struct cast cast;

    cast_begin(&cast);
    do_say(&cast.site, &cast.ada, "g1", "m1", 1, "persistent", 200, "m1");
    do_say(&cast.site, &cast.ada, "g1", "m2", 1, "persistent", 200, "m2");
    expect(&cast.site, &cast.bob, "getMessages?convoId=g1&limit=1", NULL, 200, "\"hasMore\":true");
    expect(&cast.site, &cast.bob, "getMessages?convoId=g1&limit=2", NULL, 200, "\"hasMore\":false");
    expect(
        &cast.site, &cast.bob, "getMessages?convoId=g1&sinceSeq=4", NULL, 200, "\"hasMore\":false");
    cast_end(&cast);
}

/* Four commits of 5 MB: a page, and a 409, have as many as fit. */
TEST_LONG(page, of_large_commits_is_cut_and_so_is_a_409, 120)
{
    char *secret = filled(5000000);
    int64_t epoch = 2;
    bool has_more = true;
    struct cast cast;
    int pages = 0;

    cast_begin(&cast);
    for (uint64_t i = 1; i <= 4; i++) {
        char *commit = private_message("g1", i, 3, secret);

        post(&cast.site, &cast.ada, "submitCommit", 200, "newEpoch",
            "{\"convoId\":\"g1\",\"commit\":\"%s\"}", commit);
        free(commit);
    }
    for (; has_more; pages++) {
        struct web_answer answer;
        struct json_doc doc;
        char call[80];

        (void)snprintf(call, sizeof call, "getCommits?convoId=g1&fromEpoch=%lld", (long long)epoch);
        doc = ask_page(&cast.site, &cast.bob, call, &answer);
        for (struct json_iter it = json_iterate(json_get(json_root(&doc), "commits"));
             json_next(&it); epoch++)
            CHECK_EQ_INT(int_of(it.value, "epoch"), epoch);
        has_more = bool_of(json_root(&doc), "hasMore");
        json_doc_free(&doc);
        web_answer_free(&answer);
    }
    CHECK_EQ_INT(epoch, 6);
    CHECK_EQ_INT(pages, 4);
    {
        char *commit = private_message("g1", 1, 3, "late"), *body = NULL;
        struct web_answer answer;
        struct json_doc doc = { 0 };

        CHECK(asprintf(&body, "{\"convoId\":\"g1\",\"commit\":\"%s\"}", commit) > 0);
        answer = caller_ask(&cast.site, &cast.bob, "submitCommit", body);
        CHECK_EQ_INT(answer.status, 409);
        CHECK(answer.size < ANSWER_MAX);
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
        CHECK_EQ_INT(json_count(json_get(json_root(&doc), "commits")), 1);
        CHECK_EQ_INT(int_of(json_root(&doc), "currentEpoch"), 5); /* there is more to get */
        json_doc_free(&doc);
        web_answer_free(&answer);
        free(body);
        free(commit);
    }
    free(secret);
    cast_end(&cast);
}

/* Somebody asks for a large message and does not take it: there is no room for another. */
TEST_LONG(page, is_refused_while_too_much_waits_for_its_clients, 60)
{
    static const char call[] = "getMessages?convoId=g1&sinceSeq=4";
    const int small = 4096;
    unsigned status;
    struct web_answer heard = { 0 }, answer;
    struct delivery *delivery;
    struct cast cast;
    char *header, *text = NULL;
    int fd;

    cast_begin(&cast);
    delivery = cast.site.delivery;
    do_say(&cast.site, &cast.ada, "g1", "m0", 1, "persistent", 200, "m0");
    do_commit(&cast.site, &cast.ada, "g1", 1, "a commit", "", 200, "newEpoch");
    {
        char *secret = filled(LARGE), *message = private_message("g1", 2, 1, secret);

        post(&cast.site, &cast.ada, "sendMessage", 200, "m1",
            "{\"convoId\":\"g1\",\"msgId\":\"m1\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":2}",
            message);
        free(message);
        free(secret);
    }
    delivery->calls.answer_bytes_max = UINT64_C(20) << 20;
    fd = web_connect(http_server_address(cast.site.server));
    CHECK_EQ_INT(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    header = caller_header(&cast.bob, "getMessages");
    CHECK(asprintf(&text,
              "GET /xrpc/blue.catbird.mls.getMessages?convoId=g1&sinceSeq=4 HTTP/1.1\r\n"
              "Host: x\r\n%s\r\n",
              header) > 0);
    web_send(fd, text, strlen(text));
    CHECK(web_receive_until(fd, &heard, "200 OK"));
    answer = caller_ask(&cast.site, &cast.cyd, call, NULL);
    CHECK_MSG(
        answer.status == 503 && strstr(answer.text, "Retry-After:") != NULL, "%.300s", answer.text);
    web_answer_free(&answer);
    expect(&cast.site, &cast.cyd, "getMessages?convoId=g1&limit=1", NULL, 200, "m0"); /* small */
    close(fd);
    do { /* the server hears that the client is gone; the case has a limit */
        answer = caller_ask(&cast.site, &cast.cyd, call, NULL);
        status = answer.status;
        CHECK(status == 200 || status == 503);
        web_answer_free(&answer);
    } while (status == 503);
    web_answer_free(&heard);
    free(text);
    free(header);
    cast_end(&cast);
}

/* Eight messages that are more than a page together, and few. */
TEST(stream, that_catches_up_goes_on_until_there_is_nothing)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    for (int i = 1; i <= 8; i++) {
        char id[16];

        (void)snprintf(id, sizeof id, "m%d", i);
        say_large(&cast.site, &cast.ada, id, 90000);
    }
    fd = do_listen(&cast.site, &cast.bob, "convoId=g1&cursor=2");
    CHECK_MSG(web_receive_until(fd, &heard, "\"id\":\"m8\""), "%zu bytes came", heard.size);
    for (int i = 1; i <= 8; i++) {
        char id[24];

        (void)snprintf(id, sizeof id, "\"id\":\"m%d\"", i);
        CHECK_MSG(strstr(heard.text, id) != NULL, "%s is missing", id);
    }
    close(fd);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* ---- ids ------------------------------------------------------------------------------------ */

static void id_of_first(
    const struct cast *cast, const char *call, const char *list, char ret_id[64])
{
    struct web_answer answer;
    struct json_doc doc = ask_page(&cast->site, &cast->bob, call, &answer);
    struct json_iter it = json_iterate(json_get(json_root(&doc), list));

    CHECK_MSG(json_next(&it), "%s: nothing", call);
    text_of(it.value, "id", ret_id);
    json_doc_free(&doc);
    web_answer_free(&answer);
}

static void check_ids(uint32_t direct)
{
    char *message = NULL, id[64], same[64], event[96];
    struct web_answer heard = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", direct);
    fd = do_listen(&cast.site, &cast.bob, "convoId=g1&cursor=2");
    do_say(&cast.site, &cast.ada, "g1", "a:b:c", 1, "persistent", 200, "\"messageId\":\"a:b:c\"");
    id_of_first(&cast, "getMessages?convoId=g1&sinceSeq=2", "messages", id);
    CHECK_MSG(strcmp(id, "a:b:c") == 0, "%s", id);
    message = private_message("g1", 1, 1, "with a key");
    act(&cast.site, &cast.ada, "sendMessage", 200, "\"messageId\":\"named\"",
        "{\"convoId\":\"g1\",\"msgId\":\"named\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":1,"
        "\"idempotencyKey\":\"key-1\"}",
        message);
    /* Again: the first answer, whatever the message is called now. */
    act(&cast.site, &cast.ada, "sendMessage", 200, "\"messageId\":\"named\"",
        "{\"convoId\":\"g1\",\"msgId\":\"other\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":1,"
        "\"idempotencyKey\":\"key-1\"}",
        message);
    id_of_first(&cast, "getMessages?convoId=g1&sinceSeq=3", "messages", id);
    CHECK_MSG(strcmp(id, "named") == 0, "%s", id);
    do_commit(&cast.site, &cast.ada, "g1", 1, "a commit", "", 200, "newEpoch");
    id_of_first(&cast, "getMessages?convoId=g1&sinceSeq=4", "messages", id);
    id_of_first(&cast, "getCommits?convoId=g1&fromEpoch=2", "commits", same);
    CHECK_MSG(strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32, "%s", id);
    CHECK_MSG(strcmp(id, same) == 0, "%s, %s", id, same);
    id_of_first(&cast, "getReceipts?convoId=g1&fromSeq=5", "receipts", same);
    CHECK_MSG(strcmp(id, same) == 0, "%s, %s", id, same);
    (void)snprintf(event, sizeof event, "\"id\":\"%s\"", id);
    CHECK(web_receive_until(fd, &heard, event));
    CHECK(strstr(heard.text, "\"id\":\"a:b:c\"") != NULL);
    CHECK(strstr(heard.text, "\"id\":\"named\"") != NULL);
    CHECK(strstr(heard.text, "key-1") == NULL);
    {
        char *commit = private_message("g1", 1, 3, "late");

        act(&cast.site, &cast.bob, "submitCommit", 409, event,
            "{\"convoId\":\"g1\",\"commit\":\"%s\"}", commit);
        free(commit);
    }
    (void)flags_set("delivery.direct", 0);
    close(fd);
    web_answer_free(&heard);
    free(message);
    cast_end(&cast);
}

TEST(id, is_the_senders_or_one_of_the_servers_wherever_it_is_shown)
{
    check_ids(0);
}

TEST(id, is_the_same_without_an_actor)
{
    check_ids(FLAG_ALL);
}

/* ---- what is whose -------------------------------------------------------------------------- */

TEST(conflict, tells_nothing_of_the_time_before_the_caller_joined)
{
    struct cast cast;
    struct web_answer answer;
    struct json_doc doc = { 0 };
    struct json_iter it;
    char *commit, body[1024];

    cast_begin(&cast);
    do_commit(&cast.site, &cast.ada, "g1", 1, "one", "", 200, "newEpoch");
    do_commit(&cast.site, &cast.ada, "g1", 2, "two", "", 200, "newEpoch");
    do_add(&cast.site, &cast.ada, "g1", 3, (const char *const[3]){ cast.eve.did });
    do_commit(&cast.site, &cast.ada, "g1", 4, "four", "", 200, "newEpoch");
    commit = private_message("g1", 1, 3, "of one who was not there");
    (void)snprintf(body, sizeof body, "{\"convoId\":\"g1\",\"commit\":\"%s\"}", commit);
    answer = caller_ask(&cast.site, &cast.eve, "submitCommit", body);
    CHECK_EQ_INT(answer.status, 409);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    CHECK_EQ_INT(int_of(json_root(&doc), "currentEpoch"), 5);
    it = json_iterate(json_get(json_root(&doc), "commits"));
    CHECK(json_next(&it));
    CHECK_EQ_INT(int_of(it.value, "baseEpoch"), 4);
    CHECK(!json_next(&it));
    json_doc_free(&doc);
    web_answer_free(&answer);
    expect(&cast.site, &cast.bob, "submitCommit", body, 409, "\"baseEpoch\":2"); /* who was */
    free(commit);
    cast_end(&cast);
}

static void check_notices(uint32_t direct)
{
    struct web_answer heard = { 0 };
    char wanted[256];
    struct cast cast;
    int fd;

    cast_begin(&cast);
    fd = do_listen(&cast.site, &cast.bob, "convoId=g1&cursor=2");
    do_say(&cast.site, &cast.ada, "g1", "first", 1, "persistent", 200, "first");
    CHECK(web_receive_until(fd, &heard, "\"id\":\"first\"")); /* it listens */
    (void)flags_set("delivery.direct", direct);
    act(&cast.site, &cast.ada, "promoteModerator", 200, "ok",
        "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}", cast.cyd.did);
    (void)snprintf(wanted, sizeof wanted,
        "#roleChangeEvent\",\"convoId\":\"g1\",\"epoch\":1,\"did\":\"%s\",\"isAdmin\":false,"
        "\"isModerator\":true",
        cast.cyd.did);
    CHECK_MSG(web_receive_until(fd, &heard, wanted), "wanted %s, got %s", wanted, heard.text);
    act(&cast.site, &cast.ada, "updatePolicy", 200, "success",
        "{\"convoId\":\"g1\",\"maxMembers\":7}");
    CHECK_MSG(web_receive_until(fd, &heard, "#policyChangeEvent\",\"convoId\":\"g1\""),
        "no event of the policy: %s", heard.text);
    (void)flags_set("delivery.direct", 0);
    close(fd);
    web_answer_free(&heard);
    cast_end(&cast);
}

TEST(stream, tells_of_roles_and_policies)
{
    check_notices(0);
}

TEST(stream, tells_of_roles_and_policies_that_changed_without_the_actor)
{
    check_notices(FLAG_ALL);
}

/* ---- a cursor that is not in the log -------------------------------------------------------- */

TEST(ahead, whose_cursor_is_not_in_the_log_is_told_where_that_ends)
{
    static const char *const calls[] = { "getMessages?convoId=g1&sinceSeq=3",
        "getMessages?convoId=g1&sinceSeq=9000000000000000000&type=app&limit=1",
        "getMessages?convoId=g1&sinceSeq=3&fromEpoch=1" };
    struct cast cast;

    cast_begin(&cast);
    for (int direct = 0; direct < 2; direct++) {
        (void)flags_set("delivery.direct", direct == 1 ? FLAG_ALL : 0);
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
            expect(&cast.site, &cast.bob, calls[i], NULL, 409, "\"error\":\"CursorAhead\"");
            expect(
                &cast.site, &cast.bob, calls[i], NULL, 409, "\"currentSeq\":2,\"currentEpoch\":1}");
        }
        expect(&cast.site, &cast.bob, "getMessages?convoId=g1&sinceSeq=2", NULL, 200,
            "\"messages\":[]");
    }
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

/* A stranger gets its usual refusal; a removed member does not learn the end of the log. */
TEST(ahead, who_is_not_in_is_not_told_where_the_log_ends)
{
    static const char call[] = "getMessages?convoId=g1&sinceSeq=9";
    struct web_answer answer;
    struct cast cast;
    char more[256];

    cast_begin(&cast);
    (void)snprintf(more, sizeof more, ",\"removes\":[\"%s\"]", cast.dan.did);
    do_commit(&cast.site, &cast.ada, "g1", 1, "a remove", more, 200, "newEpoch");
    expect(&cast.site, &cast.eve, call, NULL, 403, "NotMember");
    answer = caller_ask(&cast.site, &cast.dan, call, NULL);
    CHECK_EQ_INT(answer.status, 200);
    CHECK_MSG(strstr(answer.text, "currentSeq") == NULL, "%s", answer.text);
    web_answer_free(&answer);
    cast_end(&cast);
}

TEST(ahead, a_cursor_that_only_the_database_knows_is_good)
{
    struct cast cast;

    cast_begin(&cast);
    expect(
        &cast.site, &cast.bob, "getMessages?convoId=g1&sinceSeq=2", NULL, 200, "\"messages\":[]");
    do_grow_unseen(&cast.site);
    expect(
        &cast.site, &cast.bob, "getMessages?convoId=g1&sinceSeq=3", NULL, 200, "\"currentSeq\":3");
    expect(
        &cast.site, &cast.bob, "getMessages?convoId=g1&sinceSeq=4", NULL, 409, "\"currentSeq\":3");
    cast_end(&cast);
}
