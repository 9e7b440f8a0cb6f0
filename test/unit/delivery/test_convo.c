/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations over HTTP: the winner of an epoch, the answers to the losers, the stored rows. */
#include <pthread.h>

#include "convo_site.h"

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

static void create(const struct site *site, const struct caller *caller, const char *group)
{
    char body[256];

    (void)snprintf(body, sizeof body, "{\"groupId\":\"%s\",\"cipherSuite\":\"" SUITE "\"}", group);
    expect(site, caller, "createConvo", body, 200, "\"epoch\":0");
}

/* {"convoId": group, "didList": [did], "commit"?: commit} */
static struct web_answer add(const struct site *site, const struct caller *caller,
    const char *group, const char *did, const char *commit)
{
    struct buffer body = { 0 };
    struct web_answer answer;

    buffer_format(&body, "{\"convoId\":\"%s\",\"didList\":[\"%s\"]", group, did);
    if (commit != NULL)
        buffer_format(&body, ",\"commit\":\"%s\"", commit);
    buffer_append(&body, "}", 2);
    answer = caller_ask(site, caller, "addMembers", body.bytes);
    buffer_free(&body);
    return answer;
}

static struct web_answer say(const struct site *site, const struct caller *caller,
    const char *group, const char *id, uint64_t epoch, const char *text)
{
    char *message = private_message(group, epoch, 1, text);
    struct buffer body = { 0 };
    struct web_answer answer;

    buffer_format(&body,
        "{\"convoId\":\"%s\",\"msgId\":\"%s\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":%llu}",
        group, id, message, (unsigned long long)epoch);
    buffer_append(&body, "", 1);
    answer = caller_ask(site, caller, "sendMessage", body.bytes);
    buffer_free(&body);
    free(message);
    return answer;
}

static void expect_answer(struct web_answer answer, unsigned status, const char *part)
{
    CHECK_MSG(answer.status == status && strstr(answer.body, part) != NULL,
        "wanted %u with '%s', got:\n%s", status, part, answer.text);
    web_answer_free(&answer);
}

TEST(convo, is_created_once_and_seen_by_its_members_alone)
{
    struct caller ada, bob;
    struct site site;

    site_begin(&site);
    caller_begin(&ada);
    caller_begin(&bob);
    create(&site, &ada, "g1");
    expect(&site, &ada, "createConvo", "{\"groupId\":\"g1\",\"cipherSuite\":\"" SUITE "\"}", 409,
        "ConvoExists");
    expect(&site, &ada, "getConvo?convoId=g1", NULL, 200, ada.did);
    expect(&site, &ada, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":0");
    expect(&site, &bob, "getEpoch?convoId=g1", NULL, 403, "NotMember");
    expect(&site, &bob, "getConvo?convoId=nowhere", NULL, 404, "ConvoNotFound");
    expect(&site, &ada, "createConvo", "{\"groupId\":\"g2\",\"cipherSuite\":\"none\"}", 400,
        "InvalidCipherSuite");
    expect(&site, &ada, "createConvo", "{\"groupId\":7}", 400, "groupId must be a string");
    expect(&site, &ada, "createConvo", "{", 400, "InvalidRequest");
    expect(&site, &ada, "getConvos", NULL, 200, "\"id\":\"g1\"");
    expect(&site, &bob, "getConvos", NULL, 200, "\"conversations\":[]");
    caller_end(&ada);
    caller_end(&bob);
    site_end(&site);
}

/* ---- numbered: the server counts ------------------------------------------------------------ */

struct adder {
    const struct site *site;
    const struct caller *caller;
    char did[64];
    int64_t epoch;
    pthread_t thread;
};

static void *add_one(void *argument)
{
    struct adder *adder = argument;
    struct web_answer answer = add(adder->site, adder->caller, "g1", adder->did, NULL);
    struct json_doc doc = { 0 };

    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    CHECK(json_int(json_get(json_root(&doc), "newEpoch"), &adder->epoch));
    json_doc_free(&doc);
    web_answer_free(&answer);
    return NULL;
}

TEST(convo, ten_adds_at_once_without_commits_give_ten_epochs)
{
    enum { TEN = 10 };
    struct adder adders[TEN];
    struct caller ada;
    struct site site;
    unsigned seen = 0;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    for (int i = 0; i < TEN; i++) {
        adders[i] = (struct adder){ .site = &site, .caller = &ada };
        (void)snprintf(adders[i].did, sizeof adders[i].did, "did:plc:member%d", i);
        CHECK_EQ_INT(pthread_create(&adders[i].thread, NULL, add_one, &adders[i]), 0);
    }
    for (int i = 0; i < TEN; i++) {
        CHECK_EQ_INT(pthread_join(adders[i].thread, NULL), 0);
        CHECK(adders[i].epoch >= 1 && adders[i].epoch <= TEN);
        CHECK((seen >> adders[i].epoch & 1) == 0);
        seen |= 1u << adders[i].epoch;
    }
    expect(&site, &ada, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":10");
    expect_answer(add(&site, &ada, "g1", "did:plc:member0", NULL), 409, "AlreadyMember");
    caller_end(&ada);
    site_end(&site);
}

/* ---- mls: the epoch inside the commit decides ----------------------------------------------- */

TEST(convo, one_commit_wins_an_epoch_and_the_others_hear_of_it)
{
    struct caller ada;
    struct site site;
    char *first, *second, *third;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    first = private_message("g1", 0, 3, "the first commit");
    second = private_message("g1", 0, 3, "a late commit");
    third = private_message("g1", 1, 3, "rebased");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", first), 200, "\"newEpoch\":1");
    expect_answer(add(&site, &ada, "g1", "did:plc:two", second), 409, "EpochConflict");
    expect_answer(add(&site, &ada, "g1", "did:plc:two", second), 409, first);
    expect_answer(add(&site, &ada, "g1", "did:plc:two", second), 409, "\"currentEpoch\":1");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", first), 200, "\"newEpoch\":1");
    expect_answer(add(&site, &ada, "g1", "did:plc:two", third), 200, "\"newEpoch\":2");
    expect(&site, &ada, "getCommits?convoId=g1&fromEpoch=0", NULL, 200, "\"baseEpoch\":1");
    free(first);
    free(second);
    free(third);
    caller_end(&ada);
    site_end(&site);
}

TEST(convo, is_mls_or_numbered_by_its_first_move)
{
    struct caller ada;
    struct site site;
    char *commit, *other;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "mls");
    create(&site, &ada, "numbered");
    commit = private_message("mls", 0, 3, "commit");
    other = private_message("numbered", 1, 3, "commit");
    expect_answer(add(&site, &ada, "mls", "did:plc:one", commit), 200, "\"newEpoch\":1");
    expect_answer(add(&site, &ada, "mls", "did:plc:two", NULL), 400, "CommitRequired");
    expect(&site, &ada, "leaveConvo", "{\"convoId\":\"mls\"}", 400, "without proposals");
    expect_answer(add(&site, &ada, "numbered", "did:plc:one", NULL), 200, "\"newEpoch\":1");
    expect_answer(add(&site, &ada, "numbered", "did:plc:two", other), 400, "NumberedConversation");
    expect(&site, &ada, "getEpoch?convoId=mls", NULL, 200, "\"currentEpoch\":1");
    expect(&site, &ada, "getEpoch?convoId=numbered", NULL, 200, "\"currentEpoch\":1");
    free(commit);
    free(other);
    caller_end(&ada);
    site_end(&site);
}

TEST(convo, a_commit_of_another_group_or_kind_is_refused)
{
    struct caller ada;
    struct site site;
    char *other, *message;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    other = private_message("g2", 0, 3, "commit");
    message = private_message("g1", 0, 1, "not a commit");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", other), 400, "InvalidCommit");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", message), 400, "InvalidCommit");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", "AAAA"), 400, "InvalidCommit");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", "%%%%"), 400, "InvalidRequest");
    expect(&site, &ada, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":0");
    free(other);
    free(message);
    caller_end(&ada);
    site_end(&site);
}

/* base64 of an external commit that nobody signed; free it. */
static char *unsigned_external_commit(const char *group, const struct caller *caller)
{
    struct buffer bytes = { 0 }, leaf = { 0 }, proposals = { 0 };
    char *text;

    mls_put_number(&proposals, 1, 1);
    mls_put_number(&proposals, 6, 2); /* external_init */
    mls_put_vector(&proposals, SPAN("kem output"));
    mls_put_vector(&leaf, SPAN("encryption key"));
    mls_put_vector(&leaf, SPAN("signature key"));
    mls_put_number(&leaf, 1, 2);
    mls_put_vector(&leaf, span_of(caller->did));
    for (int i = 0; i < 5; i++)
        mls_put_vector(&leaf, SPAN(""));
    mls_put_number(&leaf, 3, 1); /* from a commit */
    mls_put_vector(&leaf, SPAN(""));
    mls_put_vector(&leaf, SPAN(""));
    mls_put_vector(&leaf, SPAN("signature"));
    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, 1, 2);
    mls_put_vector(&bytes, span_of(group));
    mls_put_number(&bytes, 0, 8);
    mls_put_number(&bytes, 4, 1); /* a new member */
    mls_put_vector(&bytes, SPAN(""));
    mls_put_number(&bytes, 3, 1);
    mls_put_vector(&bytes, (struct span){ proposals.bytes, proposals.size });
    mls_put_number(&bytes, 1, 1);
    buffer_append(&bytes, leaf.bytes, leaf.size);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("signature"));
    mls_put_vector(&bytes, SPAN("confirmation tag"));
    text = malloc(crypto_base64_size(bytes.size) + 1);
    CHECK(text != NULL && bytes.failed == 0);
    text[crypto_base64_encode(bytes.bytes, bytes.size, text)] = '\0';
    buffer_free(&bytes);
    buffer_free(&leaf);
    buffer_free(&proposals);
    return text;
}

TEST(convo, an_external_commit_that_cannot_be_checked_is_refused)
{
    struct buffer body = { 0 };
    struct caller ada;
    struct site site;
    char *commit;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    commit = unsigned_external_commit("g1", &ada);
    buffer_format(&body, "{\"convoId\":\"g1\",\"externalCommit\":\"%s\"}", commit);
    buffer_append(&body, "", 1);
    expect(&site, &ada, "processExternalCommit", body.bytes, 400, "no group info of its epoch");
    expect(&site, &ada, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":0");
    buffer_free(&body);
    free(commit);
    caller_end(&ada);
    site_end(&site);
}

/* ---- messages ------------------------------------------------------------------------------- */

TEST(message, is_numbered_kept_and_read_by_who_was_in)
{
    struct caller ada, bob, eve;
    struct site site;
    char *first, *second;

    site_begin(&site);
    caller_begin(&ada);
    caller_begin(&bob);
    caller_begin(&eve);
    create(&site, &ada, "g1");
    first = private_message("g1", 0, 3, "add bob");
    second = private_message("g1", 1, 3, "remove bob");
    expect_answer(add(&site, &ada, "g1", bob.did, first), 200, "\"newEpoch\":1");
    expect_answer(say(&site, &ada, "g1", "m1", 1, "hello bob"), 200, "\"seq\":3");
    expect_answer(say(&site, &ada, "g1", "m1", 1, "hello bob"), 200, "\"seq\":3");
    expect_answer(say(&site, &ada, "g1", "m1", 1, "something else"), 409, "IdempotencyConflict");
    expect_answer(say(&site, &eve, "g1", "m2", 1, "let me in"), 403, "NotMember");
    expect_answer(say(&site, &bob, "g1", "m3", 7, "from the future"), 409, "EpochMismatch");
    expect(&site, &bob, "getMessages?convoId=g1", NULL, 200, "\"id\":\"m1\"");
    expect(&site, &bob, "getUnread", NULL, 200, "\"g1\":1");
    expect(&site, &ada, "getUnread", NULL, 200, "\"g1\":0");
    expect(&site, &bob, "updateCursor", "{\"convoId\":\"g1\",\"seq\":3}", 200, "success");
    expect(&site, &bob, "getUnread", NULL, 200, "\"g1\":0");
    expect(&site, &eve, "getMessages?convoId=g1", NULL, 403, "NotMember");
    {
        struct buffer body = { 0 };

        buffer_format(&body,
            "{\"convoId\":\"g1\",\"targetDid\":\"%s\",\"idempotencyKey\":\"k\",\"commit\":\"%s\"}",
            bob.did, second);
        buffer_append(&body, "", 1);
        expect(&site, &bob, "removeMember", body.bytes, 400, "CannotRemoveSelf");
        expect(&site, &ada, "removeMember", body.bytes, 200, "\"epochHint\":2");
        buffer_free(&body);
    }
    expect_answer(say(&site, &ada, "g1", "m4", 2, "without bob"), 200, "\"seq\":5");
    expect_answer(say(&site, &bob, "g1", "m5", 2, "still here"), 403, "NotMember");
    expect(&site, &bob, "getMessages?convoId=g1", NULL, 200, "\"lastSeq\":4");
    expect(&site, &ada, "getMessages?convoId=g1", NULL, 200, "\"lastSeq\":5");
    free(first);
    free(second);
    caller_end(&ada);
    caller_end(&bob);
    caller_end(&eve);
    site_end(&site);
}

TEST(convo, stays_what_it_was_after_a_restart)
{
    struct caller ada;
    struct site site;
    char *first, *second;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    first = private_message("g1", 0, 3, "commit");
    second = private_message("g1", 0, 3, "another");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", first), 200, "\"newEpoch\":1");
    site_close(&site);
    site_open(&site);
    expect(&site, &ada, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    expect_answer(add(&site, &ada, "g1", "did:plc:two", second), 409, "EpochConflict");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", first), 200, "\"newEpoch\":1");
    expect_answer(say(&site, &ada, "g1", "m1", 1, "still numbered"), 200, "\"seq\":3");
    free(first);
    free(second);
    caller_end(&ada);
    site_end(&site);
}

/* ---- streams -------------------------------------------------------------------------------- */

/* `more` is header lines, each with its CRLF. */
static int listen_with(
    const struct site *site, const struct caller *caller, const char *query, const char *more)
{
    char *header = caller_header(caller, "subscribeConvoEvents");
    int fd = web_connect(http_server_address(site->server));
    struct buffer text = { 0 };

    buffer_format(&text,
        "GET /xrpc/blue.catbird.mls.subscribeConvoEvents?%s HTTP/1.1\r\nHost: x\r\n%s%s\r\n", query,
        header, more);
    web_send(fd, text.bytes, text.size);
    buffer_free(&text);
    free(header);
    return fd;
}

static int listen_to(const struct site *site, const struct caller *caller, const char *query)
{
    return listen_with(site, caller, query, "");
}

static void remove_one(const struct site *site, const struct caller *caller, const char *group,
    const char *did, const char *commit)
{
    struct buffer body = { 0 };

    buffer_format(&body,
        "{\"convoId\":\"%s\",\"targetDid\":\"%s\",\"idempotencyKey\":\"k\",\"commit\":\"%s\"}",
        group, did, commit);
    buffer_append(&body, "", 1);
    expect(site, caller, "removeMember", body.bytes, 200, "epochHint");
    buffer_free(&body);
}

TEST(stream, hears_what_it_missed_then_what_happens_without_gap_or_repeat)
{
    struct web_answer heard = { 0 };
    struct caller ada;
    struct site site;
    char *commit, part[64];
    const char *at;
    int fd;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    commit = private_message("g1", 0, 3, "commit");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", commit), 200, "\"newEpoch\":1");
    expect_answer(say(&site, &ada, "g1", "m3", 1, "one"), 200, "\"seq\":3");
    expect_answer(say(&site, &ada, "g1", "m4", 1, "two"), 200, "\"seq\":4");
    fd = listen_to(&site, &ada, "convoId=g1&cursor=2");
    CHECK(web_receive_until(fd, &heard, "id: 4\n"));
    expect_answer(say(&site, &ada, "g1", "m5", 1, "three"), 200, "\"seq\":5");
    CHECK(web_receive_until(fd, &heard, "id: 5\n"));
    CHECK(strstr(heard.text, "id: 2\n") == NULL);
    at = heard.text;
    for (int seq = 3; seq <= 5; seq++) {
        (void)snprintf(part, sizeof part, "id: %d\n", seq);
        at = strstr(at, part);
        CHECK(at != NULL);
        CHECK(strstr(at + 1, part) == NULL);
    }
    close(fd);
    web_answer_free(&heard);
    free(commit);
    caller_end(&ada);
    site_end(&site);
}

/* An EventSource that comes back asks for the same URL as before: its header is what it knows. */
TEST(stream, goes_on_after_the_last_event_id_whatever_the_cursor_says)
{
    struct web_answer heard = { 0 }, refused = { 0 };
    struct caller ada;
    struct site site;
    char *commit;
    int fd;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    commit = private_message("g1", 0, 3, "commit");
    expect_answer(add(&site, &ada, "g1", "did:plc:one", commit), 200, "\"newEpoch\":1");
    expect_answer(say(&site, &ada, "g1", "m3", 1, "one"), 200, "\"seq\":3");
    expect_answer(say(&site, &ada, "g1", "m4", 1, "two"), 200, "\"seq\":4");
    fd = listen_with(&site, &ada, "convoId=g1&cursor=0", "Last-Event-ID: 3\r\n");
    CHECK(web_receive_until(fd, &heard, "id: 4\n"));
    CHECK_MSG(strstr(heard.text, "id: 3\n") == NULL, "%s", heard.text);
    CHECK(strstr(heard.text, "id: 2\n") == NULL);
    expect_answer(say(&site, &ada, "g1", "m5", 1, "three"), 200, "\"seq\":5");
    CHECK(web_receive_until(fd, &heard, "id: 5\n"));
    close(fd);
    web_answer_free(&heard);
    fd = listen_with(&site, &ada, "convoId=g1&cursor=0", "Last-Event-ID: 3x\r\n");
    CHECK(web_receive_until(fd, &refused, "InvalidCursor"));
    CHECK(strstr(refused.text, "HTTP/1.1 400 ") != NULL);
    close(fd);
    web_answer_free(&refused);
    free(commit);
    caller_end(&ada);
    site_end(&site);
}

TEST(stream, of_a_removed_member_ends_after_the_commit_that_removed_it)
{
    struct web_answer heard = { 0 };
    struct caller ada, bob;
    struct site site;
    char *first, *second;
    int fd;

    site_begin(&site);
    caller_begin(&ada);
    caller_begin(&bob);
    create(&site, &ada, "g1");
    first = private_message("g1", 0, 3, "add bob");
    second = private_message("g1", 1, 3, "remove bob");
    expect_answer(add(&site, &ada, "g1", bob.did, first), 200, "\"newEpoch\":1");
    expect_answer(say(&site, &ada, "g1", "m3", 1, "hello"), 200, "\"seq\":3");
    fd = listen_to(&site, &bob, "convoId=g1&cursor=0");
    CHECK(web_receive_until(fd, &heard, "id: 3\n"));
    remove_one(&site, &ada, "g1", bob.did, second);
    expect_answer(say(&site, &ada, "g1", "m5", 2, "without bob"), 200, "\"seq\":5");
    CHECK(!web_receive_until(fd, &heard, "id: 5\n")); /* it ends before that */
    CHECK(strstr(heard.text, "id: 4\n") != NULL);
    CHECK(strstr(heard.text, "removed") != NULL);
    close(fd);
    web_answer_free(&heard);
    expect(&site, &bob, "subscribeConvoEvents?convoId=g1", NULL, 403, "NotMember");
    free(first);
    free(second);
    caller_end(&ada);
    caller_end(&bob);
    site_end(&site);
}

/* The ticket for the conversation, whose id is written in JSON; the caller's to free. */
static char *ticket_of(const struct site *site, const struct caller *caller, const char *convo)
{
    struct web_answer answer;
    struct json_doc doc = { 0 };
    struct span ticket;
    char body[256], *text;

    (void)snprintf(body, sizeof body, "{\"convoId\":\"%s\"}", convo);
    answer = caller_ask(site, caller, "getSubscriptionTicket", body);
    CHECK_MSG(answer.status == 200, "%s: %s", convo, answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    CHECK(json_string(json_get(json_root(&doc), "ticket"), &ticket));
    text = strndup(ticket.at, ticket.size);
    CHECK(text != NULL);
    json_doc_free(&doc);
    web_answer_free(&answer);
    return text;
}

/* `convo` as it is in a query. */
static void use_ticket(
    const struct site *site, const char *convo, const char *ticket, unsigned status)
{
    int fd = web_connect(http_server_address(site->server));
    struct web_answer heard = { 0 };
    struct buffer text = { 0 };

    buffer_format(&text,
        "GET /xrpc/blue.catbird.mls.subscribeConvoEvents?convoId=%s&ticket=%s HTTP/1.1\r\n"
        "Host: x\r\n\r\n",
        convo, ticket);
    web_send(fd, text.bytes, text.size);
    CHECK(web_receive_until(fd, &heard, status == 200 ? "text/event-stream" : "TicketRefused"));
    CHECK_EQ_INT(heard.status, status);
    buffer_free(&text);
    web_answer_free(&heard);
    close(fd);
}

TEST(stream, opens_with_a_ticket_for_its_conversation_alone)
{
    struct caller ada;
    struct site site;
    char *ticket;

    site_begin(&site);
    caller_begin(&ada);
    create(&site, &ada, "g1");
    create(&site, &ada, "g2");
    ticket = ticket_of(&site, &ada, "g1");
    use_ticket(&site, "g1", ticket, 200);
    use_ticket(&site, "g2", ticket, 401);
    free(ticket);
    caller_end(&ada);
    site_end(&site);
}

TEST(stream, opens_with_a_ticket_for_any_id_that_a_conversation_may_have)
{
    static const struct {
        const char *json, *query;
    } ids[] = {
        { "\u00e9t\u00e9", "%C3%A9t%C3%A9" },
        { "say \\\"hi\\\"", "say%20%22hi%22" },
        { "back\\\\slash", "back%5Cslash" },
        { "bell\\u0007", "bell%07" },
        { "-", "-" },
    };
    struct caller ada;
    struct site site;

    site_begin(&site);
    caller_begin(&ada);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char *ticket;

        create(&site, &ada, ids[i].json);
        ticket = ticket_of(&site, &ada, ids[i].json);
        use_ticket(&site, ids[i].query, ticket, 200);
        use_ticket(&site, "other", ticket, 401);
        free(ticket);
    }
    caller_end(&ada);
    site_end(&site);
}
