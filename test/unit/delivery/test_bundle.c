/* SPDX-License-Identifier: Apache-2.0 */
/* Bundles of a commit, in JSON and as message/mls; and the check that the new tree has the members
 * that the request names. */
#include "crypto/digest.h"
#include "tree_site.h"

struct play {
    struct site site;
    struct caller ada, bob, cyd;
    struct signer ada_key, bob_key, cyd_key;
};

static void play_begin(struct play *play)
{
    site_begin(&play->site);
    caller_begin(&play->ada);
    caller_begin(&play->bob);
    caller_begin(&play->cyd);
    signer_begin(&play->ada_key);
    signer_begin(&play->bob_key);
    signer_begin(&play->cyd_key);
    site_create(&play->site, &play->ada, "g1");
}

static void play_end(struct play *play)
{
    signer_end(&play->ada_key);
    signer_end(&play->bob_key);
    signer_end(&play->cyd_key);
    caller_end(&play->ada);
    caller_end(&play->bob);
    caller_end(&play->cyd);
    site_end(&play->site);
}

/* ---- bytes and calls ------------------------------------------------------------------------ */

static void put_private(
    struct buffer *out, uint64_t epoch, enum mls_content content, const char *secret)
{
    mls_put_number(out, 1, 2);
    mls_put_number(out, MLS_PRIVATE, 2);
    mls_put_vector(out, SPAN("g1"));
    mls_put_number(out, epoch, 8);
    mls_put_number(out, content, 1);
    mls_put_vector(out, SPAN(""));
    mls_put_vector(out, SPAN("encrypted sender data, 28 by"));
    mls_put_vector(out, span_of(secret));
}

static char *private_of(uint64_t epoch, enum mls_content content, const char *secret)
{
    struct buffer bytes = { 0 };
    char *text;

    put_private(&bytes, epoch, content, secret);
    text = base64_of(&bytes);
    buffer_free(&bytes);
    return text;
}

/* POST of bytes as they are. */
static struct web_answer post_bytes(const struct site *site, const struct caller *caller,
    const char *call, const char *type, const struct buffer *bytes)
{
    char name[64], *header;
    struct web_answer answer = { 0 };
    struct buffer text = { 0 };
    int fd = web_connect(http_server_address(site->server));

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    header = caller_header(caller, name);
    buffer_format(&text,
        "POST /xrpc/" XRPC_PREFIX "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Type: "
        "%s\r\nContent-Length: %zu\r\n\r\n",
        call, header, type, bytes->size);
    buffer_append(&text, bytes->bytes, bytes->size);
    CHECK_EQ_INT(text.failed, 0);
    web_send(fd, text.bytes, text.size);
    web_receive(fd, &answer);
    close(fd);
    buffer_free(&text);
    free(header);
    return answer;
}

static void expect_bytes(const struct play *play, const char *call, const char *type,
    const struct buffer *bytes, unsigned status, const char *part)
{
    struct web_answer answer = post_bytes(&play->site, &play->ada, call, type, bytes);

    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "%s: wanted %u with '%s', got:\n%s", call, status, part, answer.text);
    web_answer_free(&answer);
}

__attribute__((format(printf, 6, 7))) static void act(const struct play *play,
    const struct caller *caller, const char *call, unsigned status, const char *part,
    const char *format, ...)
{
    char *text = malloc(1 << 16);
    va_list list;

    CHECK(text != NULL);
    va_start(list, format);
    (void)vsnprintf(text, 1 << 16, format, list);
    va_end(list);
    site_expect(&play->site, caller, call, text, status, part);
    free(text);
}

/* The log as "proposal commit app", with the seq of the first. */
static void expect_log(
    const struct play *play, const struct caller *caller, uint64_t since, const char *wanted)
{
    char call[128], seen[256] = "";
    struct reading reading;

    (void)snprintf(
        call, sizeof call, "getMessages?convoId=g1&sinceSeq=%llu", (unsigned long long)since);
    reading = site_read(&play->site, caller, call, "");
    for (struct json_iter it = json_iterate(json_get(reading.root, "messages")); json_next(&it);) {
        char *type = text_of(it.value, "messageType");

        CHECK_EQ_INT(int_of(it.value, "seq"), ++since);
        (void)snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s ", type);
        free(type);
    }
    CHECK_EQ_STR(seen, wanted);
    reading_end(&reading);
}

static void commit_at(const struct play *play, uint64_t epoch)
{
    char *commit = commit_make("g1", epoch);

    act(play, &play->ada, "submitCommit", 200, "newEpoch", "{\"convoId\":\"g1\",\"commit\":\"%s\"}",
        commit);
    free(commit);
}

/* ---- message/mls ---------------------------------------------------------------------------- */

#define SEND "sendMessage?convoId=g1&epoch=1&msgId="

TEST(message_mls, is_sent_and_read_back_without_base64)
{
    struct buffer message = { 0 };
    struct reading reading;
    struct play play;
    char *wanted, *seen;

    play_begin(&play);
    commit_at(&play, 0);
    put_private(&message, 1, MLS_APPLICATION, "with a\0NUL it is no text");
    message.bytes[message.size - 1] = '\0';
    expect_bytes(&play, SEND "m1", "message/mls", &message, 200, "\"seq\":3");
    expect_bytes(&play, SEND "m1", "message/mls", &message, 200, "\"seq\":3"); /* the same again */
    expect_bytes(&play, SEND "m%32", "Message/MLS;version=mls10", &message, 200, "\"seq\":4");
    expect_bytes(&play, SEND "m3", "application/octet-stream", &message, 200, "\"seq\":5");
    expect_bytes(&play, SEND "m4&delivery=ephemeral", "message/mls", &message, 200, "\"seq\":0");
    reading = site_read(&play.site, &play.ada, "getMessages?convoId=g1&sinceSeq=2", "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "messages")), 3);
    wanted = base64_of(&message);
    for (size_t i = 0; i < 3; i++) {
        const struct json *one = json_at(json_get(reading.root, "messages"), i);

        seen = text_of(json_get(one, "ciphertext"), "$bytes");
        CHECK_EQ_STR(seen, wanted);
        free(seen);
    }
    free(wanted);
    reading_end(&reading);
    buffer_free(&message);
    play_end(&play);
}

TEST(acts, a_head_request_is_answered_like_a_get)
{
    static const char *const calls[] = { "getConvo", "getEpoch", "getPolicy" };
    struct web_answer answer;
    struct play play;
    char path[96], *header;

    play_begin(&play);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        (void)snprintf(path, sizeof path, "/xrpc/" XRPC_PREFIX "%s?convoId=g1", calls[i]);
        header = caller_header(&play.ada, calls[i]);
        answer = web_ask(http_server_address(play.site.server), "HEAD", path, header, "");
        CHECK_MSG(answer.status == 200, "%s: %u", calls[i], answer.status);
        web_answer_free(&answer);
        free(header);
    }
    play_end(&play);
}

TEST(message_mls, is_refused_when_the_query_or_the_body_is_wrong)
{
    static const struct {
        const char *call;
        const char *label;
    } cases[] = {
        { "sendMessage?convoId=g1&epoch=1", "msgId" },
        { "sendMessage?epoch=1&msgId=x", "convoId" },
        { "sendMessage?convoId=g1&msgId=x", "epoch" },
        { SEND "x&epoch=1", "InvalidRequest" },
        { SEND "%zz", "InvalidRequest" },
        { SEND "a%00b", "InvalidRequest" },
        { SEND "%ff", "InvalidRequest" },
        { "sendMessage?convoId=g1&msgId=x&epoch=2", "the epoch inside the message" },
        { "sendMessage?convoId=g1&msgId=x&epoch=one", "InvalidRequest" },
        { SEND "x&delivery=never", "InvalidRequest" },
        { SEND "x&paddedSize=17", "InvalidRequest" },
    };
    struct buffer message = { 0 }, empty = { 0 };
    struct play play;

    play_begin(&play);
    commit_at(&play, 0);
    put_private(&message, 1, MLS_APPLICATION, "words");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_bytes(&play, cases[i].call, "message/mls", &message, 400, cases[i].label);
    /* A list that ends in a comma has an empty last item. */
    expect_bytes(&play, "addMembers?convoId=g1&didList=did:plc:ewvi7nxzyoun6zhxrhs64oiz,",
        "message/mls", &message, 400, "didList[1] must not be empty.");
    expect_bytes(&play, SEND "x", "message/mls", &empty, 400, "InvalidRequest");
    expect_bytes(&play, SEND "x", "text/plain", &message, 400, "not JSON");
    message.size--;
    expect_bytes(&play, SEND "x", "message/mls", &message, 400, "InvalidMessage");
    expect_log(&play, &play.ada, 2, "");
    buffer_free(&message);
    play_end(&play);
}

TEST(message_mls, carries_a_whole_bundle)
{
    struct buffer bundle = { 0 };
    const char *hashes[1];
    char hash[65], *welcome;
    unsigned char bytes[1024];
    struct play play;
    size_t size;

    play_begin(&play);
    site_publish(&play.site, &play.bob, (struct package_options){ .signer = &play.bob_key }, hash);
    CHECK_EQ_INT(site_claim(&play.site, &play.ada, play.bob.did, NULL), 1);
    hashes[0] = hash;
    welcome = welcome_make(hashes, 1);
    CHECK_EQ_INT(crypto_base64_decode(span_of(welcome), bytes, sizeof bytes, &size), 0);
    put_private(&bundle, 0, MLS_PROPOSAL, "add bob");
    put_private(&bundle, 0, MLS_COMMIT, "as proposed");
    buffer_append(&bundle, bytes, size);
    put_private(&bundle, 1, MLS_APPLICATION, "welcome");
    put_private(&bundle, 0, MLS_PROPOSAL, "and more");
    expect_bytes(&play, "submitCommit?convoId=g1&idempotencyKey=k1", "message/mls", &bundle, 200,
        "\"seq\":4");
    expect_bytes(&play, "submitCommit?convoId=g1&idempotencyKey=k1", "message/mls", &bundle, 200,
        "\"seq\":4");
    expect_log(&play, &play.ada, 1, "proposal proposal commit app ");
    expect_log(&play, &play.bob, 4, "app "); /* a member added by the commit sees later messages */
    site_expect(&play.site, &play.bob, "getWelcome?convoId=g1", "", 200, welcome);
    bundle.size = 0;
    put_private(&bundle, 1, MLS_COMMIT, "without bob");
    {
        char call[256];

        (void)snprintf(call, sizeof call, "submitCommit?convoId=g1&removes=%s", play.bob.did);
        expect_bytes(&play, call, "message/mls", &bundle, 200, "\"newEpoch\":2");
    }
    site_expect(&play.site, &play.bob, "getEpoch?convoId=g1", "", 403, "NotMember");
    free(welcome);
    buffer_free(&bundle);
    play_end(&play);
}

TEST(message_mls, bundle_has_one_of_each)
{
    struct buffer bundle = { 0 };
    struct play play;

    play_begin(&play);
    put_private(&bundle, 0, MLS_COMMIT, "one");
    put_private(&bundle, 0, MLS_COMMIT, "two");
    expect_bytes(&play, "submitCommit?convoId=g1", "message/mls", &bundle, 400, "one commit");
    bundle.size = 0;
    put_private(&bundle, 0, MLS_PROPOSAL, "alone");
    expect_bytes(
        &play, "submitCommit?convoId=g1", "message/mls", &bundle, 400, "commit is missing");
    put_private(&bundle, 0, MLS_COMMIT, "one");
    bundle.size--;
    expect_bytes(&play, "submitCommit?convoId=g1", "message/mls", &bundle, 400, "InvalidRequest");
    expect_log(&play, &play.ada, 1, "");
    buffer_free(&bundle);
    play_end(&play);
}

/* ---- proposals ------------------------------------------------------------------------------ */

TEST(proposals, of_a_bundle_are_stored_before_the_commit_and_heard_so)
{
    char *first = private_of(0, MLS_PROPOSAL, "first"),
         *second = private_of(0, MLS_PROPOSAL, "2nd");
    char *commit = private_of(0, MLS_COMMIT, "both"), *header;
    struct web_answer heard = { 0 };
    struct buffer text = { 0 };
    const char *at;
    struct play play;
    int fd;

    play_begin(&play);
    header = caller_header(&play.ada, "subscribeConvoEvents");
    fd = web_connect(http_server_address(play.site.server));
    buffer_format(&text,
        "GET /xrpc/" XRPC_PREFIX "subscribeConvoEvents?convoId=g1 HTTP/1.1\r\nHost: x\r\n%s\r\n",
        header);
    web_send(fd, text.bytes, text.size);
    CHECK(web_receive_until(fd, &heard, "\r\n\r\n"));
    act(&play, &play.ada, "submitCommit", 200, "\"seq\":4",
        "{\"convoId\":\"g1\",\"commit\":\"%s\",\"proposals\":[\"%s\",{\"$bytes\":\"%s\"}]}", commit,
        first, second);
    CHECK(web_receive_until(fd, &heard, commit));
    at = strstr(heard.text, first);
    CHECK(at != NULL && (at = strstr(at, second)) != NULL && strstr(at, commit) != NULL);
    expect_log(&play, &play.ada, 1, "proposal proposal commit ");
    close(fd);
    web_answer_free(&heard);
    buffer_free(&text);
    free(header);
    free(first);
    free(second);
    free(commit);
    play_end(&play);
}

TEST(proposals, of_another_epoch_or_group_refuse_the_bundle)
{
    char *late = private_of(1, MLS_PROPOSAL, "late"), *early = private_of(0, MLS_APPLICATION, "x");
    char *commit = private_of(0, MLS_COMMIT, "it"), *good = private_of(0, MLS_PROPOSAL, "good");
    char *foreign = commit_make("g2", 0);
    const char *const wrong[] = { late, commit, foreign, early };
    struct play play;

    play_begin(&play);
    for (size_t i = 0; i < 4; i++)
        act(&play, &play.ada, "submitCommit", 400, "InvalidMessage",
            "{\"convoId\":\"g1\",\"commit\":\"%s\",\"proposals\":[\"%s\",\"%s\"]}", commit, good,
            wrong[i]);
    act(&play, &play.ada, "submitCommit", 400, "InvalidMessage",
        "{\"convoId\":\"g1\",\"commit\":\"%s\",\"appMessage\":\"%s\"}", commit, early);
    expect_log(&play, &play.ada, 1, "");
    site_expect(&play.site, &play.ada, "getEpoch?convoId=g1", "", 200, "\"currentEpoch\":0");
    free(late);
    free(early);
    free(commit);
    free(good);
    free(foreign);
    play_end(&play);
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* base64 of a group info of this epoch, signed by the first leaf; without a tree if count is 0. */
static char *group_info_of(
    const char *group, uint64_t epoch, const struct leaf *leaves, size_t count)
{
    return info_make(&(struct info_options){
        .group = { .id = span_of(group), .epoch = epoch }, .leaves = leaves, .count = count });
}

/* addMembers or submitCommit at `epoch` with a tree of these; `more` has further members. */
static void commit_with(const struct play *play, const char *call, uint64_t epoch,
    const struct leaf *leaves, size_t count, const char *more, unsigned status, const char *part)
{
    char *info = group_info_of("g1", epoch + 1, leaves, count), *commit = commit_make("g1", epoch);

    act(play, leaves[0].who, call, status, part,
        "{\"convoId\":\"g1\",\"commit\":\"%s\",\"groupInfo\":\"%s\"%s}", commit, info, more);
    free(info);
    free(commit);
}

static char *list_of(const char *name, const struct caller *who)
{
    static char texts[4][256];
    static unsigned at;
    char *text = texts[at++ % 4];

    (void)snprintf(text, sizeof texts[0], ",\"%s\":[\"%s\"]", name, who->did);
    return text;
}

TEST(roster, of_the_tree_is_whom_the_commit_names)
{
    struct play play;

    play_begin(&play);
    {
        const struct leaf all[] = { { &play.ada, &play.ada_key, NULL },
            { &play.bob, &play.bob_key, "phone" }, { &play.bob, &play.bob_key, "laptop" },
            { &play.cyd, &play.cyd_key, NULL } };
        const char *bob = list_of("didList", &play.bob);
        const char *no_bob = list_of("removes", &play.bob), *no_cyd = list_of("removes", &play.cyd);

        /* bob is added and not named; named and not added; cyd comes along unnamed */
        commit_with(&play, "submitCommit", 0, all, 2, "", 400, "RosterMismatch");
        commit_with(&play, "addMembers", 0, all, 1, bob, 400, "RosterMismatch");
        commit_with(&play, "addMembers", 0, all, 4, bob, 400, "RosterMismatch");
        expect_log(&play, &play.ada, 1, "");
        commit_with(&play, "addMembers", 0, all, 2, bob, 200, "\"newEpoch\":1");
        /* another device of bob's is nobody new; nor is one fewer anybody gone */
        commit_with(&play, "submitCommit", 1, all, 3, "", 200, "\"newEpoch\":2");
        commit_with(&play, "submitCommit", 2, all, 2, "", 200, "\"newEpoch\":3");
        commit_with(
            &play, "addMembers", 3, all, 4, list_of("didList", &play.cyd), 200, "Epoch\":4");
        /* somebody is gone and not named; named and not gone; another one is gone */
        commit_with(&play, "submitCommit", 4, all, 3, "", 400, "RosterMismatch");
        commit_with(&play, "submitCommit", 4, all, 4, no_bob, 400, "RosterMismatch");
        commit_with(&play, "submitCommit", 4, all, 3, no_bob, 400, "RosterMismatch");
        commit_with(&play, "submitCommit", 4, all, 3, no_cyd, 200, "\"newEpoch\":5");
        /* no tree: nothing to compare */
        commit_with(&play, "submitCommit", 5, all, 0, "", 200, "\"newEpoch\":6");
    }
    play_end(&play);
}

/* A commit cannot remove its own committer: the leaf stays until another member's commit. */
TEST(roster, keeps_the_leaf_of_who_left_until_somebody_removes_it)
{
    struct play play;

    play_begin(&play);
    {
        const struct leaf both[] = { { &play.ada, &play.ada_key, NULL },
            { &play.bob, &play.bob_key, NULL }, { &play.cyd, &play.cyd_key, NULL } };
        const struct leaf bob_first[] = { both[1], both[0] };

        commit_with(&play, "addMembers", 0, both, 2, list_of("didList", &play.bob), 200, "Epoch");
        commit_with(&play, "leaveConvo", 1, bob_first, 2, "", 200, "\"newEpoch\":2");
        commit_with(&play, "submitCommit", 2, both, 2, "", 200, "\"newEpoch\":3");
        commit_with(&play, "submitCommit", 3, both, 1, "", 200, "\"newEpoch\":4");
        /* but nobody brings bob back unnamed */
        commit_with(&play, "submitCommit", 4, both, 2, "", 400, "RosterMismatch");
    }
    play_end(&play);
}

/* Named at the creation, before there was a leaf. */
TEST(roster, waits_for_who_was_named_at_the_creation)
{
    struct play play;

    play_begin(&play);
    act(&play, &play.ada, "createConvo", 200, "g2",
        "{\"groupId\":\"g2\",\"cipherSuite\":\"" SITE_SUITE "\",\"initialMembers\":[\"%s\"]}",
        play.bob.did);
    {
        const struct leaf ada[] = { { &play.ada, &play.ada_key, NULL },
            { &play.cyd, &play.cyd_key, NULL } };
        char *info = group_info_of("g3", 0, ada, 2);

        act(&play, &play.ada, "createConvo", 400, "RosterMismatch",
            "{\"groupId\":\"g3\",\"cipherSuite\":\"" SITE_SUITE "\",\"groupInfo\":\"%s\"}", info);
        free(info);
        info = group_info_of("g4", 0, ada, 1);
        act(&play, &play.ada, "createConvo", 200, "g4",
            "{\"groupId\":\"g4\",\"cipherSuite\":\"" SITE_SUITE
            "\",\"groupInfo\":\"%s\",\"initialMembers\":[\"%s\"]}",
            info, play.bob.did);
        free(info);
    }
    play_end(&play);
}

/* GET with Accept: message/mls; its body must begin with these bytes. */
static void expect_mls(
    const struct play *play, const char *call, const char *beginning, size_t size)
{
    char name[64], *header, *both;
    struct web_answer answer;

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    header = caller_header(&play->ada, name);
    both = malloc(strlen(header) + 64);
    CHECK(both != NULL);
    (void)snprintf(both, strlen(header) + 64, "%sAccept: text/html, message/mls;q=1\r\n", header);
    answer = site_ask_with(&play->site, both, call, "");
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_MSG(strcasestr(answer.text, "content-type: message/mls\r\n") != NULL, "%s", answer.text);
    CHECK(memcmp(answer.body, beginning, size) == 0);
    web_answer_free(&answer);
    free(both);
    free(header);
}

TEST(message_mls, is_what_one_commit_and_the_group_info_come_as_to_who_asks)
{
    struct play play;

    play_begin(&play);
    {
        const struct leaf ada[] = { { &play.ada, &play.ada_key, NULL } };

        commit_with(&play, "submitCommit", 0, ada, 1, "", 200, "\"newEpoch\":1");
        expect_mls(&play, "getGroupInfo?convoId=g1", "\0\1\0\4\0\1\0\1", 8);
        expect_mls(&play, "getCommits?convoId=g1&fromEpoch=1", "\0\1\0\2\2g1", 7);
        commit_at(&play, 1);
        expect_mls(&play, "getCommits?convoId=g1&fromEpoch=2&toEpoch=2", "\0\1\0\2\2g1", 7);
    }
    play_end(&play);
}

/* ---- refused input -------------------------------------------------------------------------- */

TEST(input, that_names_somebody_twice_or_holds_nul_is_refused)
{
    char *commit = commit_make("g1", 0);
    struct play play;

    play_begin(&play);
    act(&play, &play.ada, "submitCommit", 400, "must not name an account twice",
        "{\"convoId\":\"g1\",\"commit\":\"%s\",\"removes\":[\"%s\",\"%s\"]}", commit, play.bob.did,
        play.bob.did);
    act(&play, &play.ada, "addMembers", 400, "must not name an account twice",
        "{\"convoId\":\"g1\",\"commit\":\"%s\",\"didList\":[\"%s\",\"%s\"]}", commit, play.bob.did,
        play.bob.did);
    act(&play, &play.ada, "createConvo", 400, "NUL",
        "{\"groupId\":\"g\\u00007\",\"cipherSuite\":\"" SITE_SUITE "\"}");
    act(&play, &play.ada, "createConvo", 400, "NUL",
        "{\"groupId\":\"g7\",\"cipherSuite\":\"" SITE_SUITE
        "\",\"metadata\":{\"name\":\"a\\\\\\u0000\"}}");
    act(&play, &play.ada, "createConvo", 200, "u0000",
        "{\"groupId\":\"g7\",\"cipherSuite\":\"" SITE_SUITE
        "\",\"metadata\":{\"name\":\"a\\\\u0000\"}}"); /* a backslash, then five letters */
    free(commit);
    play_end(&play);
}

TEST(input, malformed_in_the_query_is_not_absent)
{
    static const char *const calls[] = {
        "getConvos?cursor=%ff",
        "getConvos?limit=%zz",
        "getConvos?limit=1&limit=2",
        "getMessages?convoId=g1&sinceSeq=%00",
        "getMessages?convoId=g1&type=%e2%28",
        "getMessages?convoId=g1&limit=1&limit=1",
        "getCommits?convoId=g1&fromEpoch=0&toEpoch=%",
        "getGroupInfo?convoId=g1&pskHash=%zz",
        "getConvo?convoId=%ff",
        "getConvo?convoId=g1&convoId=g1",
        "getKeyPackages?dids=did:key:zzzz&peek=%ff",
        "getReports?convoId=g1&status=%ff",
        "getReports?convoId=g1&cursor=%ff",
        "listInvites?convoId=g1&includeRevoked=%ff",
        "listInvites?convoId=g1&includeRevoked=perhaps",
        "listChatRequests?cursor=%zz",
        "listChatRequests?direction=%zz",
        "listChatRequests?direction=sideways",
        "listChatRequests?status=%zz",
        "getExpectedConversations?cursor=%zz",
        "subscribeConvoEvents?convoId=g1&cursor=%zz",
        "subscribeConvoEvents?convoId=g1&cursor=1&cursor=2",
    };
    struct play play;

    play_begin(&play);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        site_expect(&play.site, &play.ada, calls[i], "", 400, "\"error\":\"Invalid");
    play_end(&play);
}

/* ---- events and cleanup --------------------------------------------------------------------- */

TEST(packages, that_run_low_are_told_to_their_owner_and_to_nobody_else)
{
    struct web_answer heard[2] = { { 0 }, { 0 } };
    int fds[2];
    struct play play;

    play_begin(&play);
    act(&play, &play.ada, "createConvo", 200, "g2",
        "{\"groupId\":\"g2\",\"cipherSuite\":\"" SITE_SUITE "\",\"initialMembers\":[\"%s\"]}",
        play.bob.did);
    site_publish(&play.site, &play.bob, (struct package_options){ .signer = &play.bob_key }, NULL);
    site_publish(&play.site, &play.bob, (struct package_options){ .signer = &play.bob_key }, NULL);
    for (int i = 0; i < 2; i++) {
        char *header = caller_header(i == 0 ? &play.bob : &play.ada, "subscribeConvoEvents");
        struct buffer text = { 0 };

        fds[i] = web_connect(http_server_address(play.site.server));
        buffer_format(&text,
            "GET /xrpc/" XRPC_PREFIX "subscribeConvoEvents?convoId=g2 HTTP/1.1\r\nHost: "
            "x\r\n%s\r\n",
            header);
        web_send(fds[i], text.bytes, text.size);
        CHECK(web_receive_until(fds[i], &heard[i], "\r\n\r\n"));
        buffer_free(&text);
        free(header);
    }
    /* both are subscribed by now */
    site_expect(&play.site, &play.ada, "getEpoch?convoId=g2", "", 200, "currentEpoch");
    CHECK_EQ_INT(site_claim(&play.site, &play.cyd, play.bob.did, NULL), 1);
    CHECK(web_receive_until(fds[0], &heard[0], "keyPackagesLowEvent"));
    CHECK(web_receive_until(fds[0], &heard[0], "\n\n"));
    CHECK_MSG(strstr(heard[0].text, "\"available\":1") != NULL, "%s", heard[0].text);
    CHECK_MSG(strstr(heard[0].text, "\"threshold\":20") != NULL, "%s", heard[0].text);
    /* the next event reaches both, so the other one did not get this one before it */
    {
        char *commit = commit_make("g2", 0);

        act(&play, &play.ada, "submitCommit", 200, "newEpoch",
            "{\"convoId\":\"g2\",\"commit\":\"%s\"}", commit);
        CHECK(web_receive_until(fds[1], &heard[1], commit));
        free(commit);
    }
    CHECK_MSG(strstr(heard[1].text, "keyPackagesLow") == NULL, "%s", heard[1].text);
    for (int i = 0; i < 2; i++) {
        close(fds[i]);
        web_answer_free(&heard[i]);
    }
    play_end(&play);
}

TEST(jobs, take_away_what_is_past_its_time)
{
    struct cleanup_done done;
    struct play play;

    play_begin(&play);
    act(&play, &play.ada, "sendChatRequest", 200, "requestId",
        "{\"recipientDid\":\"%s\",\"heldMessages\":[\"YWJj\",\"ZGVm\"]}", play.bob.did);
    act(&play, &play.ada, "createInvite", 200, "inviteId",
        "{\"convoId\":\"g1\",\"pskHash\":"
        "\"0123456789012345678901234567890123456789012345678901234567890123\"}");
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.held + done.requests + done.invites + done.audits, 0);
    site_advance_s(36 * 86400); /* a request is good for thirty days, and kept for another week */
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.held + done.requests, 0);
    site_advance_s(2 * 86400);
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.held, 2);
    CHECK_EQ_INT(done.requests, 1);
    site_advance_s(60 * 86400);
    CHECK_EQ_INT(site_tidy(&play.site).invites + done.invites, 1);
    CHECK_EQ_INT(done.audits, 0);
    site_advance_s(300 * 86400);
    done = site_tidy(&play.site);
    CHECK_MSG(done.audits >= 2, "%lld", (long long)done.audits);
    CHECK_EQ_INT(site_tidy(&play.site).audits, 0);
    play_end(&play);
}

/* Consent lasts; messages that waited for it do not. */
TEST(jobs, keep_a_request_that_was_accepted)
{
    struct reading reading;
    struct cleanup_done done;
    struct play play;
    char *id;

    play_begin(&play);
    {
        char body[256];

        (void)snprintf(body, sizeof body, "{\"recipientDid\":\"%s\",\"heldMessages\":[\"YWJj\"]}",
            play.bob.did);
        reading = site_read(&play.site, &play.ada, "sendChatRequest", body);
    }
    id = text_of(reading.root, "requestId");
    reading_end(&reading);
    act(&play, &play.bob, "acceptChatRequest", 200, "YWJj", "{\"requestId\":\"%s\"}", id);
    site_advance_s(400 * 86400);
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.held, 1);
    CHECK_EQ_INT(done.requests, 0);
    act(&play, &play.bob, "acceptChatRequest", 200, "\"heldMessages\":[]", "{\"requestId\":\"%s\"}",
        id);
    free(id);
    play_end(&play);
}
