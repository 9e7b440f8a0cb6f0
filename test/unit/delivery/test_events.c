/* SPDX-License-Identifier: Apache-2.0 */
/* Events of a stream other than messages. */
#include "convo_acts.h"
#include "http/frame.h"
#include "ops/flags.h"
#include "services/delivery/convo/event.h"

struct ear {
    int fd;
    struct web_answer heard;
};

/* Bob listens, and has heard something. */
static void ear_begin(struct ear *ear, struct cast *cast)
{
    *ear = (struct ear){ .fd = do_listen(&cast->site, &cast->bob, "convoId=g1&cursor=2") };
    do_say(&cast->site, &cast->ada, "g1", "first", 1, "persistent", 200, "first");
    CHECK(web_receive_until(ear->fd, &ear->heard, "\"id\":\"first\""));
}

static void ear_end(struct ear *ear)
{
    close(ear->fd);
    web_answer_free(&ear->heard);
}

__attribute__((format(printf, 2, 3))) static void hear(struct ear *ear, const char *format, ...)
{
    char wanted[1024];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(wanted, sizeof wanted, format, list);
    va_end(list);
    CHECK_MSG(web_receive_until(ear->fd, &ear->heard, wanted), "wanted %s, got %s", wanted,
        ear->heard.text);
}

static int count(const struct ear *ear, const char *text)
{
    int found = 0;

    for (const char *at = ear->heard.text; (at = strstr(at, text)) != NULL; at++)
        found++;
    return found;
}

/* ---- messages that are not stored ----------------------------------------------------------- */

TEST(event, an_ephemeral_message_has_no_cursor_to_resume_from)
{
    struct cast cast;
    struct ear ear;

    cast_begin(&cast);
    ear_begin(&ear, &cast);
    CHECK_EQ_INT(count(&ear, "\"cursor\":"), count(&ear, "\nid: "));
    do_say(&cast.site, &cast.ada, "g1", "typing", 1, "ephemeral", 200, "typing");
    hear(&ear, "\"ephemeral\":true},\"seq\":0}\n\n");
    CHECK_EQ_INT(count(&ear, "#messageEvent"), 2);
    CHECK_EQ_INT(count(&ear, "\"cursor\":"), 1);
    CHECK_EQ_INT(count(&ear, "\nid: "), 1);
    ear_end(&ear);
    cast_end(&cast);
}

/* ---- members and reads, by the actor and without it ----------------------------------------- */

static void check_members(uint32_t direct)
{
    struct cast cast;
    struct site *site = &cast.site;
    struct ear ear;
    char *commit;

    cast_begin(&cast);
    ear_begin(&ear, &cast);
    (void)flags_set("delivery.direct", direct);
    do_add(site, &cast.ada, "g1", 1, (const char *const[3]){ cast.eve.did, NULL, NULL });
    hear(&ear,
        "#membershipChangeEvent\",\"convoId\":\"g1\",\"epoch\":2,\"did\":\"%s\",\"dids\":[\"%s\"],"
        "\"action\":\"joined\"",
        cast.eve.did, cast.eve.did);
    commit = private_message("g1", 2, 3, "out");
    act(site, &cast.ada, "removeMember", 200, "newEpoch",
        "{\"convoId\":\"g1\",\"targetDid\":\"%s\",\"idempotencyKey\":\"k\",\"commit\":\"%s\"}",
        cast.cyd.did, commit);
    free(commit);
    hear(&ear, "\"did\":\"%s\",\"dids\":[\"%s\"],\"action\":\"removed\"", cast.cyd.did,
        cast.cyd.did);
    commit = private_message("g1", 3, 3, "leave");
    act(site, &cast.dan, "leaveConvo", 200, "newEpoch", "{\"convoId\":\"g1\",\"commit\":\"%s\"}",
        commit);
    free(commit);
    hear(&ear, "\"did\":\"%s\",\"dids\":[\"%s\"],\"action\":\"left\"", cast.dan.did, cast.dan.did);
    do_commit(site, &cast.ada, "g1", 4, "nobody comes or goes", "", 200, "newEpoch");
    do_say(site, &cast.ada, "g1", "last", 5, "persistent", 200, "last");
    hear(&ear, "\"id\":\"last\"");
    CHECK_EQ_INT(count(&ear, "event: membershipChangeEvent"), 3);
    (void)flags_set("delivery.direct", 0);
    ear_end(&ear);
    cast_end(&cast);
}

TEST(event, says_who_joined_left_or_was_removed)
{
    check_members(0);
}

TEST(event, says_who_joined_left_or_was_removed_without_the_actor)
{
    check_members(FLAG_ALL);
}

TEST(event, names_who_made_the_change)
{
    struct cast cast;
    struct ear ear;

    cast_begin(&cast);
    ear_begin(&ear, &cast);
    do_add(&cast.site, &cast.dan, "g1", 1, (const char *const[3]){ cast.eve.did, NULL, NULL });
    hear(&ear, "\"action\":\"joined\",\"actor\":\"%s\"", cast.dan.did);
    ear_end(&ear);
    cast_end(&cast);
}

static void read_to(struct cast *cast, const struct caller *caller, int seq)
{
    act(&cast->site, caller, "updateCursor", 200, "success", "{\"convoId\":\"g1\",\"seq\":%d}",
        seq);
}

static void check_reads(uint32_t direct)
{
    struct cast cast;
    struct ear ear;

    cast_begin(&cast);
    ear_begin(&ear, &cast); /* seq 3 */
    (void)flags_set("delivery.direct", direct);
    read_to(&cast, &cast.cyd, 3);
    hear(&ear, "#readEvent\",\"convoId\":\"g1\",\"epoch\":1,\"did\":\"%s\",\"readSeq\":3",
        cast.cyd.did);
    read_to(&cast, &cast.cyd, 3); /* no news */
    read_to(&cast, &cast.cyd, 2);
    do_say(&cast.site, &cast.ada, "g1", "second", 1, "persistent", 200, "second");
    read_to(&cast, &cast.dan, 1000); /* no further than there is */
    hear(&ear, "\"did\":\"%s\",\"readSeq\":4", cast.dan.did);
    CHECK_EQ_INT(count(&ear, "event: readEvent"), 2);
    (void)flags_set("delivery.direct", 0);
    ear_end(&ear);
    cast_end(&cast);
}

TEST(event, says_who_has_read_how_far)
{
    check_reads(0);
}

TEST(event, says_who_has_read_how_far_without_the_actor)
{
    check_reads(FLAG_ALL);
}

/* ---- wishes --------------------------------------------------------------------------------- */

TEST(event, says_that_a_device_is_new_and_that_one_wants_to_be_added_again)
{
    static const char key[] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    struct cast cast;
    struct ear ear;

    cast_begin(&cast);
    ear_begin(&ear, &cast);
    act(&cast.site, &cast.cyd, "registerDevice", 200, "\"pendingConvos\":[\"g1\"]",
        "{\"deviceName\":\"n\",\"deviceUUID\":\"phone\",\"signaturePublicKey\":\"%s\","
        "\"keyPackages\":[]}",
        key);
    hear(&ear,
        "#newDeviceEvent\",\"convoId\":\"g1\",\"epoch\":1,\"did\":\"%s\",\"deviceId\":\"phone\"",
        cast.cyd.did);
    act(&cast.site, &cast.dan, "readdition", 200, "{\"requested\":true,\"requestId\":\"",
        "{\"convoId\":\"g1\",\"deviceId\":\"watch\"}");
    hear(&ear,
        "#readditionRequestedEvent\",\"convoId\":\"g1\",\"epoch\":1,\"did\":\"%s\","
        "\"deviceId\":\"watch\"",
        cast.dan.did);
    expect(&cast.site, &cast.bob, "getPendingDeviceAdditions", NULL, 200, "\"deviceId\":\"watch\"");
    act(&cast.site, &cast.dan, "reissueWelcome", 200, "\"activeMembers\":3",
        "{\"convoId\":\"g1\"}");
    hear(&ear,
        "#readditionRequestedEvent\",\"convoId\":\"g1\",\"epoch\":1,\"did\":\"%s\",\"seq\":0",
        cast.dan.did);
    act(&cast.site, &cast.eve, "readdition", 403, "NotMember", "{\"convoId\":\"g1\"}");
    do_say(&cast.site, &cast.ada, "g1", "last", 1, "persistent", 200, "last");
    hear(&ear, "\"id\":\"last\"");
    CHECK_EQ_INT(count(&ear, "event: readditionRequestedEvent"), 2);
    ear_end(&ear);
    cast_end(&cast);
}

TEST(refresh, is_asked_of_who_listens_and_says_whether_anybody_does)
{
    static const char body[] = "{\"convoId\":\"g1\"}";
    struct cast cast;
    struct ear ear, own;

    cast_begin(&cast);
    act(&cast.site, &cast.ada, "groupInfoRefresh", 200, "{\"requested\":false,\"activeMembers\":0}",
        "%s", body);
    ear_begin(&ear, &cast);
    act(&cast.site, &cast.bob, "groupInfoRefresh", 200, "{\"requested\":false,\"activeMembers\":0}",
        "%s", body); /* its own stream helps nobody */
    own = (struct ear){ .fd = do_listen(&cast.site, &cast.bob, "convoId=g1&cursor=2") };
    hear(&own, "\"id\":\"first\""); /* two streams of one member */
    (void)flags_set("delivery.direct", FLAG_ALL);
    act(&cast.site, &cast.ada, "groupInfoRefresh", 200, "{\"requested\":true,\"activeMembers\":1}",
        "%s", body);
    (void)flags_set("delivery.direct", 0);
    hear(&ear, "#groupInfoRefreshRequestedEvent\",\"convoId\":\"g1\",\"epoch\":1,\"did\":\"%s\"",
        cast.ada.did);
    act(&cast.site, &cast.eve, "groupInfoRefresh", 403, "NotMember", "%s", body);
    act(&cast.site, &cast.eve, "groupInfoRefresh", 404, "ConvoNotFound", "{\"convoId\":\"no\"}");
    ear_end(&own);
    ear_end(&ear);
    cast_end(&cast);
}

TEST(event, has_the_same_members_in_both_forms)
{
    const struct span dids[2] = { SPAN("did:plc:one"), SPAN("did:plc:two") };
    const struct delivery_event event = { .convo = SPAN("g1"),
        .kind = DELIVERY_MEMBERS,
        .epoch = 7,
        .dids = dids,
        .did_count = 2,
        .action = SPAN("joined"),
        .actor = SPAN("did:plc:ada") };
    static const char json[] = "\"dids\":[\"did:plc:one\",\"did:plc:two\"]";
    static const char wanted[] = "\x64"
                                 "dids\x82\x6b"
                                 "did:plc:one\x6b"
                                 "did:plc:two";
    struct http_frame *sse = delivery_event_frame(&event, false);
    struct http_frame *cbor = delivery_event_frame(&event, true);

    CHECK(sse != NULL && cbor != NULL);
    CHECK(memmem(http_frame_at(sse), sse->size, json, sizeof json - 1) != NULL);
    CHECK(memmem(http_frame_at(cbor), cbor->size, wanted, sizeof wanted - 1) != NULL);
    http_frame_unref(sse);
    http_frame_unref(cbor);
}

/* ---- the older name ------------------------------------------------------------------------- */

TEST(stream, has_its_older_name_too)
{
    struct web_answer heard = { 0 };
    struct buffer text = { 0 };
    struct cast cast;
    char *header;
    int fd;

    cast_begin(&cast);
    header = caller_header(&cast.bob, "streamConvoEvents");
    fd = web_connect(http_server_address(cast.site.server));
    buffer_format(&text,
        "GET /xrpc/blue.catbird.mls.streamConvoEvents?convoId=g1&cursor=2 HTTP/1.1\r\n"
        "Host: x\r\nAccept: text/event-stream\r\n%s\r\n",
        header);
    web_send(fd, text.bytes, text.size);
    do_say(&cast.site, &cast.ada, "g1", "m3", 1, "persistent", 200, "m3");
    CHECK_MSG(web_receive_until(fd, &heard, "\"id\":\"m3\""), "%s", heard.text);
    close(fd);
    buffer_free(&text);
    web_answer_free(&heard);
    free(header);
    cast_end(&cast);
}
