/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of answers that no other case checks: epochs and types of messages, members in lists, the
 * retry time of a conflict. */
#include "convo_acts.h"

static struct json_doc ask_json(
    const struct site *site, const struct caller *caller, const char *call)
{
    struct web_answer answer = caller_ask(site, caller, call, NULL);
    struct json_doc doc = { 0 };

    CHECK_MSG(answer.status == 200, "%s: %.300s", call, answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    web_answer_free(&answer);
    return doc;
}

/* ---- getMessages ---------------------------------------------------------------------------- */

/* The sequence numbers of an answer, each with a space behind it. */
static void expect_seqs(struct cast *cast, const char *query, const char *seqs)
{
    struct buffer found = { 0 };
    struct json_doc doc;
    char call[128];
    int64_t seq;

    (void)snprintf(call, sizeof call, "getMessages?convoId=g1&%s", query);
    doc = ask_json(&cast->site, &cast->ada, call);
    for (struct json_iter it = json_iterate(json_get(json_root(&doc), "messages"));
         json_next(&it);) {
        CHECK(json_int(json_get(it.value, "seq"), &seq));
        buffer_format(&found, "%lld ", (long long)seq);
    }
    buffer_append(&found, "", 1);
    CHECK_MSG(strcmp(found.bytes, seqs) == 0, "%s: %s", query, found.bytes);
    CHECK(json_get(json_root(&doc), "gapInfo") == NULL); /* not everything was asked for */
    buffer_free(&found);
    json_doc_free(&doc);
}

TEST(page, has_what_was_asked_for_by_type_and_epoch)
{
    struct cast cast;
    struct site *site = &cast.site;
    char *proposal;

    cast_begin(&cast); /* seq 2 leads to epoch 1 */
    do_say(site, &cast.ada, "g1", "m3", 1, "persistent", 200, "\"seq\":3");
    proposal = private_message("g1", 1, 2, "p4");
    act(site, &cast.bob, "sendProposal", 200, "\"seq\":4",
        "{\"convoId\":\"g1\",\"msgId\":\"p4\",\"proposal\":\"%s\"}", proposal);
    free(proposal);
    do_commit(site, &cast.bob, "g1", 1, "c5", "", 200, "\"seq\":5");
    do_say(site, &cast.bob, "g1", "m6", 1, "persistent", 200, "\"seq\":6"); /* a little late */
    do_say(site, &cast.ada, "g1", "m7", 2, "persistent", 200, "\"seq\":7");
    expect_seqs(&cast, "type=proposal", "4 ");
    expect_seqs(&cast, "type=app", "3 6 7 ");
    expect_seqs(&cast, "type=commit", "2 5 ");
    expect_seqs(&cast, "fromEpoch=0", "2 3 4 5 6 7 ");
    expect_seqs(&cast, "fromEpoch=2", "5 7 ");
    expect_seqs(&cast, "fromEpoch=2&type=app", "7 ");
    expect_seqs(&cast, "fromEpoch=2&sinceSeq=5", "7 ");
    expect_seqs(&cast, "fromEpoch=2&limit=1", "5 ");
    expect_seqs(&cast, "fromEpoch=3", "");
    expect_seqs(&cast, "fromEpoch=2&sinceSeq=7", ""); /* from memory */
    expect(site, &cast.ada, "getMessages?convoId=g1&fromEpoch=-1", NULL, 400, "fromEpoch");
    expect(site, &cast.ada, "getMessages?convoId=g1&type=welcome", NULL, 400, "proposal");
    cast_end(&cast);
}

/* ---- getConvos ------------------------------------------------------------------------------ */

static int64_t count_of(const struct json *convo)
{
    int64_t count = -1;

    CHECK(json_int(json_get(convo, "memberCount"), &count));
    return count;
}

static bool has_member(const struct json *convo, size_t index, const char *did)
{
    struct span text;

    CHECK(json_string(json_get(json_at(json_get(convo, "members"), index), "did"), &text));
    return span_is(text, did);
}

TEST(list, of_conversations_names_the_members_of_each)
{
    struct cast cast;
    struct site *site = &cast.site;
    const struct json *convos;
    struct json_doc doc;
    char *commit = private_message("g1", 1, 3, "out");

    cast_begin(&cast);
    do_create(site, &cast.bob, "g0");
    do_create(site, &cast.cyd, "g2"); /* bob is not in this one */
    do_create(site, &cast.cyd, "g3");
    do_add(site, &cast.cyd, "g3", 0, (const char *const[3]){ cast.bob.did, NULL, NULL });
    act(site, &cast.ada, "removeMember", 200, "newEpoch",
        "{\"convoId\":\"g1\",\"targetDid\":\"%s\",\"idempotencyKey\":\"k\",\"commit\":\"%s\"}",
        cast.dan.did, commit);
    free(commit);
    doc = ask_json(site, &cast.bob, "getConvos");
    convos = json_get(json_root(&doc), "conversations");
    CHECK_EQ_INT(json_count(convos), 3);
    CHECK_EQ_INT(count_of(json_at(convos, 0)), 1);
    CHECK(has_member(json_at(convos, 0), 0, cast.bob.did));
    CHECK_EQ_INT(count_of(json_at(convos, 1)), 3);
    CHECK_EQ_INT(json_count(json_get(json_at(convos, 1), "members")), 3);
    CHECK(has_member(json_at(convos, 1), 0, cast.bob.did)); /* the caller first, then by age */
    CHECK(has_member(json_at(convos, 1), 1, cast.ada.did));
    CHECK_EQ_INT(count_of(json_at(convos, 2)), 2);
    CHECK(has_member(json_at(convos, 2), 1, cast.cyd.did));
    json_doc_free(&doc);
    doc = ask_json(site, &cast.bob, "getConvos?limit=1&cursor=g0");
    convos = json_get(json_root(&doc), "conversations");
    CHECK_EQ_INT(json_count(convos), 1);
    CHECK_EQ_INT(count_of(json_at(convos, 0)), 3);
    json_doc_free(&doc);
    cast_end(&cast);
}

TEST(list, of_conversations_has_a_hundred_members_of_each_and_counts_the_rest)
{
    struct cast cast;
    struct buffer body = { 0 };
    const struct json *convo;
    struct json_doc doc;

    cast_begin(&cast);
    do_create(&cast.site, &cast.eve, "many");
    buffer_format(&body, "{\"convoId\":\"many\",\"didList\":[\"%s\"", cast.bob.did);
    for (int i = 0; i < 118; i++)
        buffer_format(&body, ",\"did:plc:member%d\"", i);
    buffer_text(&body, "]}");
    buffer_append(&body, "", 1);
    expect(&cast.site, &cast.eve, "addMembers", body.bytes, 200, "newEpoch");
    buffer_free(&body);
    doc = ask_json(&cast.site, &cast.bob, "getConvos?cursor=g1");
    convo = json_at(json_get(json_root(&doc), "conversations"), 0);
    CHECK_EQ_INT(count_of(convo), 120);
    CHECK_EQ_INT(json_count(json_get(convo, "members")), 100);
    CHECK(has_member(convo, 0, cast.bob.did));
    CHECK(has_member(convo, 1, cast.eve.did));
    json_doc_free(&doc);
    cast_end(&cast);
}

/* ---- conflicts ------------------------------------------------------------------------------ */

TEST(conflict, says_when_to_try_again)
{
    struct cast cast;

    cast_begin(&cast);
    do_commit(&cast.site, &cast.ada, "g1", 1, "first", "", 200, "\"seq\":3");
    do_commit(&cast.site, &cast.bob, "g1", 1, "second", "", 409, "\"retryAfterMs\":0}");
    cast_end(&cast);
}
