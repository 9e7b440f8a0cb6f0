/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines verify each other: all flows, and at each step each failure. */
#include "../sql/place.h"
#include "base/alloc.h"
#include "matrix/client/verify_content.h"
#include "mx_verify.h"
#include "shared.h"

enum { LETTERS = 10, ALL = 1000 }; /* request ready start accept key key mac mac done done */

static const char *const kinds[] = { "request", "ready", "start", "accept", "key", "mac", "done" };
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* The users of a case: two of them, or one with two devices. */
static const char *const pairs[][2] = { { "@ada:x", "@bob:y" }, { "@bob:y", "@ada:x" },
    { "@ada:x", "@ada:x" } };

static void check_done(struct mx_verify *stage)
{
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_STR(mxclient_verify_step_text(stage->engines[i].news.step), "done");
        CHECK(mx_verify_trusts(stage, i, 1 - i));
        CHECK_EQ_U64(stage->engines[i].client.verify.count, 0);
        CHECK_EQ_U64(stage->engines[i].client.skipped, 0);
    }
    CHECK(mx_verify_same(&stage->engines[0].seen, &stage->engines[1].seen));
}

/* ---- flows ------------------------------------------------------------------------------------ */

TEST(verify, two_devices_verify_each_other_whoever_asks_and_whoever_is_slow)
{
    for (int pair = 0; pair < 3; pair++)
        for (int slow = 0; slow < 4; slow++) {
            struct mx_verify stage;

            mx_verify_init(&stage, pairs[pair][0], pairs[pair][1]);
            stage.engines[0].is_slow = (slow & 1) != 0;
            stage.engines[1].is_slow = (slow & 2) != 0;
            mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
            mx_verify_run(&stage, ALL);
            CHECK_EQ_INT(stage.count, LETTERS);
            check_done(&stage);
            mx_verify_fini(&stage);
        }
}

/* Return the text of a member of the letter at this place. */
static bool letter_says(const struct mx_verify_letter *letter, const char *text)
{
    return memmem(letter->content.bytes, letter->content.size, text, strlen(text)) != NULL;
}

TEST(verify, the_messages_have_the_members_of_the_specification)
{
    static const char *const types[] = { "request", "ready", "start", "accept", "key", "key", "mac",
        "mac", "done", "done" };
    struct mx_verify stage;

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
    mx_verify_run(&stage, ALL);
    for (int i = 0; i < LETTERS; i++) {
        CHECK_EQ_STR(stage.letters[i].type + strlen(MX_VERIFY_PREFIX), types[i]);
        CHECK(letter_says(&stage.letters[i], stage.transaction));
    }
    CHECK_EQ_INT(stage.letters[4].from, 0); /* the key of the side that started comes first */
    CHECK(letter_says(&stage.letters[0], "\"methods\":[\"m.sas.v1\"],\"timestamp\":1800000000000"));
    CHECK(
        letter_says(&stage.letters[3], "\"message_authentication_code\":\"hkdf-hmac-sha256.v2\""));
    mx_verify_fini(&stage);
}

TEST(verify, either_side_may_start_and_of_two_starts_the_smaller_id_counts)
{
    for (int pair = 0; pair < 3; pair++)
        for (int mode = 0; mode < 2; mode++) {
            struct mx_verify stage;
            int winner, accepts = 0;

            mx_verify_init(&stage, pairs[pair][0], pairs[pair][1]);
            mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
            mx_verify_run(&stage, 1); /* the request; the answer is under way */
            /* Engine 1 starts before (mode 0) or after engine 0 has its ready. */
            if (mode == 1)
                mx_verify_deliver(&stage);
            CHECK_EQ_INT(mx_verify_act(&stage, 1, MXCLIENT_VERIFY_START), 0);
            mx_verify_run(&stage, ALL);
            check_done(&stage);
            winner = span_compare(
                mx_verify_place(&stage, 0).user_id, mx_verify_place(&stage, 1).user_id);
            if (winner == 0)
                winner = span_compare(
                    mx_verify_place(&stage, 0).device_id, mx_verify_place(&stage, 1).device_id);
            for (int i = 0; i < stage.count; i++)
                if (strstr(stage.letters[i].type, "accept") != NULL) {
                    CHECK_EQ_INT(stage.letters[i].from, winner < 0 ? 1 : 0);
                    accepts++;
                }
            CHECK_EQ_INT(accepts, 1);
            mx_verify_fini(&stage);
        }
}

/* Write a start of engine 0 with these MACs, as an old client does, without a request. */
static void put_bare_start(struct mx_verify *stage, const char *macs)
{
    struct mx_verify_letter *letter =
        mx_verify_letter(stage, 0, "start", mx_verify_place(stage, 1));
    struct mxclient_place place = mx_verify_place(stage, 0);

    (void)buffer_format(&letter->content,
        "{\"from_device\":\"%.*s\",\"method\":\"m.sas.v1\",\"transaction_id\":\"bare\","
        "\"key_agreement_protocols\":[\"curve25519\",\"curve25519-hkdf-sha256\"],\"hashes\":["
        "\"sha256\"],\"message_authentication_codes\":[%s],\"short_authentication_string\":["
        "\"decimal\"]}",
        (int)place.device_id.size, place.device_id.at, macs);
}

/* An old client, as bare crypto: it answers accept, key and mac of engine 1. */
struct old_client {
    struct mx_sas *sas;
    enum mx_sas_method method;
    struct mx_sas_code code;
};

static struct mx_sas_flow old_flow(struct mx_verify *stage)
{
    struct mxclient_place us = mx_verify_place(stage, 0), them = mx_verify_place(stage, 1);

    return (struct mx_sas_flow){ { us.user_id, us.device_id }, { them.user_id, them.device_id },
        SPAN("bare"), true };
}

static void old_key(struct mx_verify *stage, struct old_client *old)
{
    char key[MX_KEY_CHARS + 1];

    CHECK_EQ_INT(mx_sas_create(mx_stage_random(), &old->sas), 0);
    mx_key_text(mx_sas_key(old->sas), key);
    (void)buffer_format(&mx_verify_letter(stage, 0, "key", mx_verify_place(stage, 1))->content,
        "{\"transaction_id\":\"bare\",\"key\":\"%s\"}", key);
}

static void old_take_key(struct mx_verify *stage, struct old_client *old, struct span text)
{
    struct mx_sas_flow flow = old_flow(stage);
    struct mx_key key;

    CHECK_EQ_INT(mx_key_parse(text, &key), 0);
    CHECK_EQ_INT(mx_sas_set_their_key(old->sas, &key), 0);
    CHECK_EQ_INT(mx_sas_show(old->sas, &flow, &old->code), 0);
}

/* Write the MACs of keys with these ids and texts, sorted, and of their list. */
struct old_key {
    const char *id;
    const char *text;
};
static void old_macs(struct mx_verify *stage, struct mx_sas *sas, enum mx_sas_method method,
    const struct mx_sas_flow *flow, const struct old_key *keys, size_t count)
{
    struct mx_verify_letter *letter = mx_verify_letter(stage, 0, "mac", mx_verify_place(stage, 1));
    struct buffer list = { 0 };
    struct mx_sas_input input = { .method = method };
    char mac[MX_SAS_MAC_CHARS + 1];

    (void)buffer_format(&letter->content, "{\"transaction_id\":\"%.*s\",\"mac\":{",
        (int)flow->transaction.size, flow->transaction.at);
    for (size_t i = 0; i < count; i++)
        (void)buffer_format(&list, "%s%s", i == 0 ? "" : ",", keys[i].id);
    for (size_t i = count; i-- > 0;) { /* the order of members says nothing */
        input.key_id = span_of(keys[i].id);
        input.text = span_of(keys[i].text);
        CHECK_EQ_INT(mx_sas_mac(sas, flow, &input, mac), 0);
        (void)buffer_format(
            &letter->content, "\"%s\":\"%s\"%s", keys[i].id, mac, i == 0 ? "" : ",");
    }
    input.key_id = SPAN("KEY_IDS");
    input.text = mx_stage_span(&list);
    CHECK_EQ_INT(mx_sas_mac(sas, flow, &input, mac), 0);
    (void)buffer_format(&letter->content, "},\"keys\":\"%s\"}", mac);
    buffer_free(&list);
}

/* Write the MAC of engine 0's device. */
static void old_mac(struct mx_verify *stage, const struct old_client *old)
{
    struct mxclient_session *session = &stage->engines[0].client.session;
    struct mx_sas_flow flow = old_flow(stage);
    struct mxclient_sas_key key;

    mxclient_sas_key_init(
        &key, mxclient_span(&session->device_id), mx_account_signing_key(session->account));
    old_macs(stage, old->sas, old->method, &flow, &(struct old_key){ key.id, key.text }, 1);
}

/* Check the MAC of engine 1's device. */
static void old_take_mac(
    struct mx_verify *stage, const struct old_client *old, const struct json *content)
{
    struct mxclient_session *session = &stage->engines[1].client.session;
    struct mx_sas_flow flow = old_flow(stage);
    struct mxclient_sas_key key;
    struct mxclient_sas_choice choice = { .mac = old->method == MX_SAS_LEGACY ? 2 : 0 };

    mxclient_sas_key_init(
        &key, mxclient_span(&session->device_id), mx_account_signing_key(session->account));
    CHECK_EQ_INT(mxclient_sas_check_macs(content, old->sas, &flow, &choice, &key, 1), 0);
}

/* Let the old client answer the letters to it. */
static void old_run(struct mx_verify *stage, struct old_client *old, const char *mac_name)
{
    while (mx_verify_peek(stage) != NULL) {
        struct mx_verify_letter *letter = mx_verify_peek(stage);
        struct json_doc doc = { 0 };
        struct span text;

        if (letter->from == 0) {
            mx_verify_deliver(stage);
            mx_verify_look(stage, 1);
            continue;
        }
        stage->first++;
        CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&letter->content), 0), 0);
        if (strstr(letter->type, "accept") != NULL) {
            CHECK(letter_says(letter, mac_name));
            old_key(stage, old);
        } else if (strstr(letter->type, ".key") != NULL &&
                   json_string(json_get(json_root(&doc), "key"), &text)) {
            old_take_key(stage, old, text);
            old_mac(stage, old);
        } else if (strstr(letter->type, "mac") != NULL)
            old_take_mac(stage, old, json_root(&doc));
        else
            CHECK_MSG(false, "the old client got %s", letter->type);
        json_doc_free(&doc);
    }
}

TEST(verify, an_old_client_begins_with_a_start_and_says_no_done)
{
    static const struct {
        const char *macs;
        const char *chosen;
        enum mx_sas_method method;
    } cases[] = {
        { "\"hkdf-hmac-sha256\"", "\"hkdf-hmac-sha256\"", MX_SAS_LEGACY },
        { "\"hmac-sha256\",\"hkdf-hmac-sha256\"", "\"hkdf-hmac-sha256\"", MX_SAS_LEGACY },
        { "\"hkdf-hmac-sha256\",\"org.matrix.msc3783.hkdf-hmac-sha256\"",
            "\"org.matrix.msc3783.hkdf-hmac-sha256\"", MX_SAS_V2 },
        { "\"hkdf-hmac-sha256\",\"hkdf-hmac-sha256.v2\"", "\"hkdf-hmac-sha256.v2\"", MX_SAS_V2 },
    };

    for (size_t i = 0; i < 4; i++) {
        struct old_client old = { .method = cases[i].method };
        struct mx_verify stage;

        mx_verify_init(&stage, "@ada:x", "@bob:y");
        put_bare_start(&stage, cases[i].macs);
        old_run(&stage, &old, cases[i].chosen);
        CHECK_EQ_INT(stage.engines[1].news.step, MXCLIENT_VERIFY_COMPARE);
        CHECK_EQ_INT(stage.engines[1].news.strings, MXCLIENT_SAS_DECIMAL);
        CHECK(mx_verify_same(&stage.engines[1].seen, &old.code));
        CHECK(!mx_verify_trusts(&stage, 1, 0));
        CHECK_EQ_INT(mx_verify_act_on(&stage, 1, "bare", MXCLIENT_VERIFY_MATCH), 0);
        old_run(&stage, &old, "");
        mx_verify_look(&stage, 1);
        CHECK_EQ_INT(stage.engines[1].news.step, MXCLIENT_VERIFY_DONE);
        CHECK(mx_verify_trusts(&stage, 1, 0));
        mx_sas_destroy(old.sas);
        mx_verify_fini(&stage);
    }
}

TEST(verify, of_several_devices_the_first_that_is_ready_takes_part)
{
    for (int winner = 1; winner < 3; winner++) {
        struct mx_verify stage;

        mx_verify_init(&stage, "@ada:x", "@bob:y");
        mx_verify_add(&stage, "@bob:y");
        mx_verify_meet(&stage);
        stage.engines[1].is_silent = stage.engines[2].is_silent = true;
        mx_verify_request(
            &stage, 0, (struct mxclient_place){ .user_id = mx_verify_place(&stage, 1).user_id });
        CHECK_EQ_INT(stage.count, 2);
        mx_verify_run(&stage, ALL);
        /* Both users say yes at the same time. */
        CHECK_EQ_INT(mx_verify_act(&stage, winner, MXCLIENT_VERIFY_ACCEPT), 0);
        CHECK_EQ_INT(mx_verify_act(&stage, 3 - winner, MXCLIENT_VERIFY_ACCEPT), 0);
        stage.engines[1].is_silent = stage.engines[2].is_silent = false;
        mx_verify_run(&stage, ALL);
        CHECK_EQ_INT(stage.engines[0].news.step, MXCLIENT_VERIFY_DONE);
        CHECK_EQ_INT(stage.engines[winner].news.step, MXCLIENT_VERIFY_DONE);
        CHECK(mx_verify_trusts(&stage, 0, winner));
        CHECK(!mx_verify_trusts(&stage, 0, 3 - winner));
        CHECK(!mx_verify_trusts(&stage, 3 - winner, 0));
        mx_verify_check_failed(&stage, 3 - winner, "m.accepted", true, "the slower device");
        mx_verify_fini(&stage);
    }
}

TEST(verify, a_refusal_on_one_device_ends_the_question_on_all)
{
    struct mx_verify stage;

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    mx_verify_add(&stage, "@bob:y");
    mx_verify_meet(&stage);
    stage.engines[1].is_silent = stage.engines[2].is_silent = true;
    mx_verify_request(
        &stage, 0, (struct mxclient_place){ .user_id = mx_verify_place(&stage, 1).user_id });
    mx_verify_run(&stage, ALL);
    CHECK_EQ_INT(mx_verify_act(&stage, 2, MXCLIENT_VERIFY_CANCEL), 0);
    mx_verify_run(&stage, ALL);
    mx_verify_check_failed(&stage, 0, "m.user", true, "the asker");
    mx_verify_check_failed(&stage, 1, "m.user", true, "the other device");
    mx_verify_check_failed(&stage, 2, "m.user", false, "the refusing device");
    mx_verify_fini(&stage);
}

/* ---- failures at each step -------------------------------------------------------------------- */

/* Start a verification and stop before its letter `at` is delivered. */
static struct mx_verify_letter *stop_before(struct mx_verify *stage, int pair, int at)
{
    mx_verify_init(stage, pairs[pair][0], pairs[pair][1]);
    mx_verify_request(stage, 0, mx_verify_place(stage, 1));
    mx_verify_run(stage, at);
    CHECK(mx_verify_peek(stage) != NULL);
    return mx_verify_peek(stage);
}

/* Nobody trusts without a done, and nobody is left in the middle. */
static void check_ends(struct mx_verify *stage, const char *what)
{
    for (int i = 0; i < 2; i++) {
        struct mx_verify_engine *engine = &stage->engines[i];
        bool is_done = engine->news.step == MXCLIENT_VERIFY_DONE;

        CHECK_MSG(engine->client.verify.count == 0, "%s: engine %d goes on at %s", what, i,
            engine->client.verify.count == 0
                ? ""
                : mxclient_verify_step_text(engine->client.verify.flows[0]->step));
        CHECK_MSG(mx_verify_trusts(stage, i, 1 - i) == is_done, "%s: engine %d", what, i);
    }
}

static bool has_sent(struct mx_verify *stage, int from, const char *kind)
{
    for (int i = 0; i < stage->count; i++)
        if (stage->letters[i].from == from && strstr(stage->letters[i].type, kind) != NULL)
            return true;
    return false;
}

TEST(verify, either_user_may_cancel_at_each_step)
{
    for (int pair = 0; pair < 3; pair++)
        for (int at = 0; at < LETTERS; at++)
            for (int who = 0; who < 2; who++) {
                struct mx_verify stage;
                bool has_done, is_over;
                char what[64];

                snprintf(what, sizeof what, "pair %d, letter %d, user %d", pair, at, who);
                (void)stop_before(&stage, pair, at);
                if (at == 0 && who == 1) { /* has not heard of it */
                    CHECK_EQ_INT(mx_verify_act(&stage, 1, MXCLIENT_VERIFY_CANCEL), TR_ENOENT);
                    mx_verify_fini(&stage);
                    continue;
                }
                has_done = has_sent(&stage, who, "done");
                is_over = stage.engines[who].news.step == MXCLIENT_VERIFY_DONE;
                CHECK_EQ_INT(
                    mx_verify_act(&stage, who, MXCLIENT_VERIFY_CANCEL), is_over ? TR_ENOENT : 0);
                mx_verify_run(&stage, ALL);
                check_ends(&stage, what);
                if (!is_over)
                    mx_verify_check_failed(&stage, who, "m.user", false, what);
                if (!has_done) /* a done cannot be taken back */
                    mx_verify_check_failed(&stage, 1 - who, "m.user", true, what);
                mx_verify_fini(&stage);
            }
}

TEST(verify, a_lost_message_ends_in_a_timeout_after_ten_minutes)
{
    for (int at = 0; at < LETTERS; at++) {
        struct mx_verify stage;
        bool is_waiting;
        int other;

        (void)stop_before(&stage, 0, at);
        other = mx_verify_receiver(&stage, mx_verify_peek(&stage));
        stage.first++; /* lost */
        mx_verify_run(&stage, ALL);
        for (int i = 0; i < 2; i++) {
            stage.now_ms = 1800000000000 + MXCLIENT_VERIFY_MS - 1;
            mx_verify_tick(&stage, i);
        }
        mx_verify_run(&stage, ALL);
        /* After a lost MAC the peer's done comes out of order. */
        is_waiting = at > 0 && at != 6 && at != 7;
        if (is_waiting)
            CHECK(mxclient_verify_due_ms(&stage.engines[other].client) == stage.now_ms + 1);
        stage.now_ms++;
        for (int i = 0; i < 2; i++)
            mx_verify_tick(&stage, i);
        mx_verify_run(&stage, ALL);
        check_ends(&stage, "lost");
        if (at > 0)
            mx_verify_check_failed(
                &stage, other, is_waiting ? "m.timeout" : "m.unexpected_message", false, "lost");
        CHECK(mxclient_verify_due_ms(&stage.engines[other].client) == INT64_MAX);
        mx_verify_fini(&stage);
    }
}

TEST(verify, a_message_that_comes_after_the_deadline_is_too_late)
{
    for (int at = 1; at < LETTERS; at++) {
        struct mx_verify stage;
        int other;

        (void)stop_before(&stage, 0, at);
        other = mx_verify_receiver(&stage, mx_verify_peek(&stage));
        stage.now_ms += MXCLIENT_VERIFY_MS;
        mx_verify_run(&stage, ALL);
        mx_verify_check_failed(&stage, other, "m.timeout", false, "late");
        check_ends(&stage, "late");
        mx_verify_fini(&stage);
    }
}

TEST(verify, a_message_that_comes_twice_ends_the_verification)
{
    for (int at = 0; at < LETTERS; at++) {
        struct mx_verify stage;
        struct mx_verify_letter copy;
        int other;

        copy = *stop_before(&stage, 0, at);
        other = mx_verify_receiver(&stage, &copy);
        mx_verify_deliver(&stage);
        mx_verify_give(&stage, &copy, other);
        mx_verify_run(&stage, ALL);
        check_ends(&stage, "twice");
        if (at < LETTERS - 2)
            mx_verify_check_failed(&stage, other, "m.unexpected_message", false, "twice");
        else
            CHECK_EQ_INT(stage.engines[other].news.step, MXCLIENT_VERIFY_DONE);
        mx_verify_fini(&stage);
    }
}

/* Write a content that is right for any kind of message, but for secrets. */
static void put_any_content(struct mx_verify *stage, int from, struct buffer *out)
{
    struct mxclient_place place = mx_verify_place(stage, from);

    (void)buffer_format(out,
        "{\"transaction_id\":\"%s\",\"from_device\":\"%.*s\",\"methods\":[\"m.sas.v1\"],"
        "\"timestamp\":%lld,\"method\":\"m.sas.v1\",\"key_agreement_protocols\":["
        "\"curve25519-hkdf-sha256\"],\"hashes\":[\"sha256\"],\"message_authentication_codes\":["
        "\"hkdf-hmac-sha256.v2\"],\"short_authentication_string\":[\"emoji\",\"decimal\"],"
        "\"key_agreement_protocol\":\"curve25519-hkdf-sha256\",\"hash\":\"sha256\","
        "\"message_authentication_code\":\"hkdf-hmac-sha256.v2\",\"commitment\":"
        "\"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\",\"key\":"
        "\"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo\",\"mac\":{\"x\":\"y\"},\"keys\":\"z\"}",
        stage->transaction, (int)place.device_id.size, place.device_id.at,
        (long long)stage->now_ms);
}

/* Return whether the step has a move for a message of this kind. */
static bool is_welcome(const struct mx_verify_engine *victim, const char *kind)
{
    static const char *const welcome[MXCLIENT_VERIFY_STEP_COUNT] = {
        [MXCLIENT_VERIFY_REQUESTED] = "ready",
        [MXCLIENT_VERIFY_READY] = "start",
        [MXCLIENT_VERIFY_STARTED] = "start accept",
        [MXCLIENT_VERIFY_ACCEPTED] = "key",
        [MXCLIENT_VERIFY_KEY_SENT] = "key",
        [MXCLIENT_VERIFY_COMPARE] = "mac",
        [MXCLIENT_VERIFY_CONFIRMED] = "mac",
        [MXCLIENT_VERIFY_FINISHING] = "done",
    };
    const char *text = welcome[victim->client.verify.flows[0]->step];

    return text != NULL && strstr(text, kind) != NULL;
}

TEST(verify, a_message_out_of_order_ends_the_verification)
{
    int ended = 0, welcome = 0;

    for (int at = 1; at < LETTERS; at++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int from = 0; from < 2; from++) {
                struct buffer content = { 0 };
                struct mx_verify stage;
                struct mx_verify_engine *victim = &stage.engines[1 - from];
                bool is_over;
                char what[80];

                (void)stop_before(&stage, 0, at);
                snprintf(what, sizeof what, "before letter %d a %s from engine %d", at, kinds[kind],
                    from);
                is_over = victim->news.step == MXCLIENT_VERIFY_DONE;
                if (!is_over && is_welcome(victim, kinds[kind])) {
                    welcome++;
                    mx_verify_fini(&stage);
                    continue;
                }
                put_any_content(&stage, from, &content);
                mx_verify_forge(&stage, from, 1 - from, kinds[kind], mx_stage_span(&content));
                buffer_free(&content);
                mx_verify_run(&stage, ALL);
                check_ends(&stage, what);
                if (is_over)
                    CHECK_MSG(victim->news.step == MXCLIENT_VERIFY_DONE, "%s", what);
                else
                    mx_verify_check_failed(&stage, 1 - from, "m.unexpected_message", false, what);
                ended++;
                mx_verify_fini(&stage);
            }
    CHECK_EQ_INT(ended + welcome, (LETTERS - 1) * KINDS * 2);
    CHECK_EQ_INT(welcome, 19);
}

/* ---- changed contents ------------------------------------------------------------------------- */

/* Replace a member of the content by a JSON text; NULL removes it. */
static void edit(struct buffer *content, const char *member, const char *text)
{
    struct buffer out = { 0 };
    struct json_writer writer = json_writer(&out);
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(content), 0), 0);
    json_put_object(&writer, NULL);
    for (struct json_iter it = json_iterate(json_root(&doc)); json_next(&it);)
        if (!span_is(it.key, member)) {
            json_put_key(&writer, it.key);
            json_put_value(&writer, NULL, it.value);
        }
    if (text != NULL)
        json_put_raw(&writer, member, span_of(text));
    json_put_end(&writer);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    json_doc_free(&doc);
    buffer_free(content);
    *content = out;
}

#define ZERO_KEY "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\""
#define OTHER_KEY "\"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo\""
#define OTHER_MAC "\"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\""
#define METHOD "m.unknown_method"
#define INVALID "m.invalid_message"
#define MISMATCH "m.key_mismatch"
#define STRINGS "m.mismatched_sas"
#define COMMITMENT "m.mismatched_commitment"

/* A letter with one member changed, and the code of the side that notices. */
struct change {
    int letter;
    const char *member;
    const char *text;
    const char *code;
};
static const struct change changes[] = {
    { 1, "methods", "[\"m.qr_code.scan.v1\"]", METHOD },
    { 1, "methods", "[]", METHOD },
    { 1, "methods", "\"m.sas.v1\"", INVALID },
    { 1, "methods", "[\"m.sas.v1\",1]", INVALID },
    { 1, "methods", NULL, INVALID },
    { 1, "from_device", NULL, INVALID },
    { 1, "from_device", "7", INVALID },
    { 1, "from_device", "\"\"", INVALID },
    { 2, "method", "\"m.reciprocate.v1\"", METHOD },
    { 2, "method", NULL, INVALID },
    { 2, "from_device", NULL, INVALID },
    { 2, "key_agreement_protocols", "[\"curve25519\"]", METHOD },
    { 2, "key_agreement_protocols", NULL, INVALID },
    { 2, "hashes", "[\"md5\"]", METHOD },
    { 2, "hashes", "{}", INVALID },
    { 2, "message_authentication_codes", "[\"hmac-sha256\"]", METHOD },
    { 2, "message_authentication_codes", "[null]", INVALID },
    { 2, "short_authentication_string", "[\"audio\"]", METHOD },
    { 2, "short_authentication_string", "\"emoji\"", INVALID },
    { 2, "more", "0.5", INVALID }, /* has no canonical form */
    /* Somebody in between takes away the better MAC, or adds a member. */
    { 2, "message_authentication_codes", "[\"hkdf-hmac-sha256\"]", COMMITMENT },
    { 2, "more", "1", COMMITMENT },
    { 3, "key_agreement_protocol", "\"curve25519\"", METHOD },
    { 3, "key_agreement_protocol", NULL, INVALID },
    { 3, "hash", "\"sha512\"", METHOD },
    { 3, "hash", NULL, INVALID },
    { 3, "message_authentication_code", "\"hmac-sha256\"", METHOD },
    { 3, "message_authentication_code", "1", INVALID },
    { 3, "short_authentication_string", "[]", METHOD },
    { 3, "short_authentication_string", "[1]", INVALID },
    { 3, "commitment", NULL, INVALID },
    { 3, "commitment", "\"short\"", INVALID },
    { 3, "commitment", OTHER_MAC, COMMITMENT },
    { 3, "commitment", "\"==============================================\"", INVALID },
    { 4, "key", OTHER_KEY, STRINGS },
    { 4, "key", ZERO_KEY, INVALID },
    { 4, "key", "\"short\"", INVALID },
    { 4, "key", NULL, INVALID },
    { 5, "key", OTHER_KEY, COMMITMENT },
    { 5, "key", "\"?\"", INVALID },
    { 5, "key", NULL, INVALID },
    { 6, "keys", OTHER_MAC, MISMATCH },
    { 6, "keys", "\"\"", MISMATCH },
    { 6, "keys", NULL, INVALID },
    { 6, "mac", NULL, INVALID },
    { 6, "mac", "{}", INVALID },
    { 6, "mac", "[]", INVALID },
    { 6, "mac", "{\"ed25519:OTHER\":" OTHER_MAC "}", MISMATCH },
    { 6, "mac", "{\"a\":\"\",\"a\":\"\"}", INVALID },
    { 7, "keys", OTHER_MAC, MISMATCH },
    { 7, "mac", "{\"ed25519:OTHER\":" OTHER_MAC "}", MISMATCH },
};

TEST(verify, a_changed_content_ends_with_the_right_code)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const struct change *change = &changes[i];
        struct mx_verify stage;
        struct mx_verify_letter *letter = stop_before(&stage, (int)i % 3, change->letter);
        /* Changes of a start are noticed when it comes back as a commitment. */
        bool is_sender = change->letter == 2 && strcmp(change->code, COMMITMENT) == 0;
        int victim = is_sender ? letter->from : 1 - letter->from;
        const char *code = change->code;
        char what[80];

        snprintf(what, sizeof what, "change %zu of letter %d", i, change->letter);
        edit(&letter->content, change->member, change->text);
        mx_verify_run(&stage, ALL);
        check_ends(&stage, what);
        CHECK_MSG(!mx_verify_trusts(&stage, victim, 1 - victim), "%s", what);
        mx_verify_check_failed(&stage, victim, code, false, what);
        /* Both users notice strings that differ. */
        mx_verify_check_failed(&stage, 1 - victim, code, strcmp(code, STRINGS) != 0, what);
        mx_verify_fini(&stage);
    }
}

/* Start a verification, with the old MAC or the new one, and stop before the MAC of engine `from`. If
 * the other user is slow, the MAC comes while it compares. */
static struct mx_verify_letter *stop_before_mac(
    struct mx_verify *stage, int from, bool is_legacy, bool is_slow)
{
    (void)stop_before(stage, 0, 3);
    if (is_legacy) {
        stage->engines[1].client.verify.flows[0]->choice.mac = 2;
        edit(
            &mx_verify_peek(stage)->content, "message_authentication_code", "\"hkdf-hmac-sha256\"");
    }
    stage->engines[1 - from].is_silent = is_slow;
    for (;;) {
        struct mx_verify_letter *next = mx_verify_peek(stage);

        CHECK(next != NULL);
        if (next->from == from && strstr(next->type, "mac") != NULL)
            return next;
        mx_verify_run(stage, stage->first + 1);
    }
}

TEST(verify, a_wrong_mac_is_noticed_whoever_confirms_first)
{
    for (int mode = 0; mode < 16; mode++) {
        struct mx_verify stage;
        int from = mode & 1;
        bool is_slow = (mode & 4) != 0;
        struct mx_verify_letter *letter = stop_before_mac(&stage, from, (mode & 2) != 0, is_slow);
        char *mac;

        CHECK_EQ_INT(stage.engines[1 - from].client.verify.flows[0]->step,
            is_slow ? MXCLIENT_VERIFY_COMPARE : MXCLIENT_VERIFY_CONFIRMED);
        (void)buffer_append(&letter->content, "", 1);
        letter->content.size--;
        mac = strstr(letter->content.bytes, (mode & 8) != 0 ? "\"keys\"" : "\"ed25519:");
        mac = strstr(mac, "\":\"") + 3; /* its first character */
        *mac = *mac == 'A' ? 'B' : 'A';
        mx_verify_run(&stage, ALL);
        mx_verify_check_failed(&stage, 1 - from, "m.key_mismatch", false, "wrong MAC");
        check_ends(&stage, "wrong MAC");
        CHECK(!mx_verify_trusts(&stage, 0, 1) && !mx_verify_trusts(&stage, 1, 0));
        mx_verify_fini(&stage);
    }
}

TEST(verify, the_old_mac_verifies_too)
{
    struct mx_verify stage;

    (void)stop_before_mac(&stage, 0, true, false);
    mx_verify_run(&stage, ALL);
    check_done(&stage);
    mx_verify_fini(&stage);
}

TEST(verify, users_who_see_different_strings_end_it)
{
    for (int who = 0; who < 2; who++) {
        struct mx_verify stage;

        mx_verify_init(&stage, "@ada:x", "@bob:y");
        stage.engines[who].is_silent = true;
        mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
        mx_verify_run(&stage, ALL);
        if (who == 1) {
            CHECK_EQ_INT(mx_verify_act(&stage, 1, MXCLIENT_VERIFY_MATCH), TR_EBUSY);
            CHECK_EQ_INT(mx_verify_act(&stage, 1, MXCLIENT_VERIFY_MISMATCH), TR_EBUSY);
            CHECK_EQ_INT(mx_verify_act(&stage, 1, MXCLIENT_VERIFY_ACCEPT), 0);
            mx_verify_run(&stage, ALL);
        }
        CHECK_EQ_INT(mx_verify_act(&stage, who, MXCLIENT_VERIFY_ACCEPT), TR_EBUSY);
        CHECK_EQ_INT(mx_verify_act(&stage, who, MXCLIENT_VERIFY_MISMATCH), 0);
        mx_verify_run(&stage, ALL);
        mx_verify_check_failed(&stage, who, STRINGS, false, "mismatch");
        mx_verify_check_failed(&stage, 1 - who, STRINGS, true, "mismatch");
        check_ends(&stage, "mismatch");
        mx_verify_fini(&stage);
    }
}

/* ---- keys of the user ------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct old_key *)a)->id, ((const struct old_key *)b)->id);
}

TEST(verify, a_mac_of_the_master_key_is_checked_if_the_key_is_known)
{
    enum { IS_KNOWN = 1, IS_WRONG = 2, IS_ALONE = 4 };
    static const struct {
        int how;
        const char *code; /* NULL: done */
        bool has_master;
    } cases[] = {
        { 0, NULL, false },
        { IS_KNOWN, NULL, true },
        { IS_WRONG, NULL, false }, /* nobody can tell */
        { IS_KNOWN | IS_WRONG, MISMATCH, false },
        { IS_ALONE, MISMATCH, false },
        { IS_KNOWN | IS_ALONE, MISMATCH, false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx_verify stage;
        struct mxclient_flow *flow;
        struct mxclient_session *ada = &stage.engines[0].client.session;
        struct mx_sas_flow names;
        struct mxclient_sas_key keys[2];
        struct old_key list[2];
        struct buffer devices = { 0 }, more = { 0 };
        struct mx_key master;
        char text[MX_KEY_CHARS + 1];

        (void)stop_before(&stage, 0, 6); /* ada's MAC */
        mx_stage_random()->fill(mx_stage_random()->data, master.bytes, sizeof master.bytes);
        mx_key_text(&master, text);
        if ((cases[i].how & IS_KNOWN) != 0) {
            (void)buffer_format(&more,
                ",\"master_keys\":{\"@ada:x\":{\"user_id\":\"@ada:x\",\"usage\":[\"master\"],"
                "\"keys\":{\"ed25519:%s\":\"%s\"}}}",
                text, text);
            (void)buffer_append(&more, "", 1);
            mx_verify_put_devices(&stage, "@ada:x", &devices);
            mx_verify_query(&stage, 1, "@ada:x", devices.bytes, more.bytes);
        }
        stage.first++;
        flow = stage.engines[0].client.verify.flows[0];
        names =
            (struct mx_sas_flow){ { mxclient_span(&ada->user_id), mxclient_span(&ada->device_id) },
                { mx_verify_place(&stage, 1).user_id, mx_verify_place(&stage, 1).device_id },
                mxclient_span(&flow->transaction_id), true };
        mxclient_sas_key_init(&keys[0], span_of(text), &master);
        mxclient_sas_key_init(
            &keys[1], mxclient_span(&ada->device_id), mx_account_signing_key(ada->account));
        list[0] = (struct old_key){ keys[0].id,
            (cases[i].how & IS_WRONG) != 0 ? keys[1].text : keys[0].text };
        list[1] = (struct old_key){ keys[1].id, keys[1].text };
        if ((cases[i].how & IS_ALONE) == 0)
            qsort(list, 2, sizeof list[0], compare_keys);
        old_macs(
            &stage, flow->sas, MX_SAS_V2, &names, list, (cases[i].how & IS_ALONE) != 0 ? 1 : 2);
        /* It takes the place of the one that was left out. */
        {
            struct mx_verify_letter last = stage.letters[stage.count - 1];

            memmove(&stage.letters[stage.first + 1], &stage.letters[stage.first],
                (size_t)(stage.count - 1 - stage.first) * sizeof last);
            stage.letters[stage.first] = last;
        }
        mx_verify_run(&stage, ALL);
        if (cases[i].code != NULL)
            mx_verify_check_failed(&stage, 1, cases[i].code, false, "master key");
        else
            check_done(&stage);
        CHECK(stage.engines[1].news.has_master == cases[i].has_master);
        check_ends(&stage, "master key");
        buffer_free(&devices);
        buffer_free(&more);
        mx_verify_fini(&stage);
    }
}

/* ---- devices ---------------------------------------------------------------------------------- */

TEST(verify, a_device_that_changes_or_goes_ends_it_at_each_step)
{
    for (int at = 1; at < LETTERS; at++)
        for (int who = 0; who < 2; who++)
            for (int how = 0; how < 5; how++) {
                struct mx_verify stage;
                struct mxclient_device *device;
                struct mxclient_place place;
                char user[64], what[64];
                bool is_over, has_done;

                (void)stop_before(&stage, 0, at);
                snprintf(what, sizeof what, "before letter %d, engine %d", at, who);
                is_over = stage.engines[who].news.step == MXCLIENT_VERIFY_DONE;
                has_done = has_sent(&stage, who, "done");
                place = mx_verify_place(&stage, 1 - who);
                snprintf(user, sizeof user, "%.*s", (int)place.user_id.size, place.user_id.at);
                device = mx_verify_device(&stage, who, 1 - who);
                if (how == 2)
                    device->trust = MXSTORE_BLOCKED;
                else if (how == 3)
                    device->signing_key.bytes[0] ^= 1;
                else if (how == 4)
                    device->identity_key.bytes[0] ^= 1;
                else
                    mx_verify_query(&stage, who, user, "", "");
                if (how == 1)
                    mx_verify_tick(&stage, who);
                mx_verify_run(&stage, ALL);
                if (!is_over) {
                    mx_verify_check_failed(&stage, who, MISMATCH, false, what);
                    CHECK(!mx_verify_trusts(&stage, who, 1 - who));
                }
                if (!has_done)
                    mx_verify_check_failed(&stage, 1 - who, MISMATCH, true, what);
                mx_verify_fini(&stage);
            }
}

TEST(verify, a_device_that_comes_back_with_other_keys_is_not_verified)
{
    struct mx_verify stage;
    struct mxclient_session other;
    struct mxclient_place place;
    struct buffer devices = { 0 };

    (void)stop_before(&stage, 0, 6);
    /* Another account under the same names. */
    mx_client_discover(&other);
    CHECK_EQ_INT(mx_client_login(&other, "@bob:y", "", 0), 0);
    place = mx_verify_place(&stage, 1);
    buffer_clear(&other.device_id);
    (void)buffer_span(&other.device_id, place.device_id);
    (void)buffer_format(&devices, "\"%.*s\":", (int)place.device_id.size, place.device_id.at);
    CHECK_EQ_INT(mxclient_keys_device(&other, &devices), 0);
    (void)buffer_append(&devices, "", 1);
    mx_verify_query(&stage, 0, "@bob:y", devices.bytes, "");
    CHECK_EQ_U64(stage.engines[0].client.devices.rejected, 1);
    mx_verify_run(&stage, ALL);
    mx_verify_check_failed(&stage, 0, MISMATCH, false, "other keys");
    CHECK(!mx_verify_trusts(&stage, 0, 1));
    buffer_free(&devices);
    mxclient_session_fini(&other);
    mx_verify_fini(&stage);
}

TEST(verify, a_request_from_a_device_that_is_not_known_waits_for_its_keys)
{
    struct mx_verify stage = { .now_ms = 1800000000000 };
    struct mxclient_request query;

    mx_verify_add(&stage, "@ada:x");
    mx_verify_add(&stage, "@ada:x");
    /* The new device knows the old one, and not the other way round. */
    {
        struct buffer devices = { 0 };

        mx_verify_put_devices(&stage, "@ada:x", &devices);
        mx_verify_query(&stage, 0, "@ada:x", devices.bytes, "");
        buffer_free(&devices);
    }
    mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
    mx_verify_run(&stage, ALL);
    CHECK_EQ_U64(stage.engines[1].client.verify.count, 1);
    CHECK_EQ_STR(stage.engines[1].news.transaction_id, ""); /* no question yet */
    CHECK_EQ_INT(mx_verify_act(&stage, 1, MXCLIENT_VERIFY_ACCEPT), TR_EBUSY);
    /* The user is tracked now, so that its devices are asked for. */
    CHECK(mxclient_devices_query(&stage.engines[1].client.devices, stage.now_ms, &query));
    CHECK_EQ_INT(mxclient_devices_answered(&stage.engines[1].client.devices,
                     &(struct mxclient_outcome){ .verdict = MXCLIENT_REFUSED }, NULL, 0, NULL),
        0);
    mxclient_request_fini(&query);
    stage.now_ms += MXCLIENT_QUERY_PAUSE_MS;
    mx_verify_meet(&stage);
    mx_verify_tick(&stage, 1);
    mx_verify_run(&stage, ALL);
    check_done(&stage);
    mx_verify_fini(&stage);
}

/* ---- requests that are not taken -------------------------------------------------------------- */

/* Give engine 1 a request of engine 0 with this id and time. */
static void forge_request(
    struct mx_verify *stage, const char *transaction, const char *device, int64_t timestamp)
{
    struct buffer content = { 0 };

    (void)buffer_format(&content,
        "{\"transaction_id\":\"%s\",\"from_device\":\"%s\",\"methods\":[\"m.sas.v1\"],"
        "\"timestamp\":%lld}",
        transaction, device, (long long)timestamp);
    mx_verify_forge(stage, 0, 1, "request", mx_stage_span(&content));
    buffer_free(&content);
}

static char *device_name(struct mx_verify *stage, int of, char name[64])
{
    struct mxclient_place place = mx_verify_place(stage, of);

    snprintf(name, 64, "%.*s", (int)place.device_id.size, place.device_id.at);
    return name;
}

TEST(verify, a_request_with_a_time_out_of_range_is_ignored)
{
    static const struct {
        int64_t offset_ms;
        bool is_taken;
    } cases[] = {
        { 0, true },
        { -MXCLIENT_VERIFY_MS, true },
        { -MXCLIENT_VERIFY_MS - 1, false },
        { MXCLIENT_VERIFY_AHEAD_MS, true },
        { MXCLIENT_VERIFY_AHEAD_MS + 1, false },
        { -1800000000000, false },
        { INT64_MAX - 1800000000000, false },
        { INT64_MIN + 1, false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx_verify stage;
        char name[64];

        mx_verify_init(&stage, "@ada:x", "@bob:y");
        stage.engines[1].is_silent = true;
        forge_request(&stage, "t", device_name(&stage, 0, name),
            cases[i].offset_ms < -1800000000000 ? cases[i].offset_ms
                                                : stage.now_ms + cases[i].offset_ms);
        CHECK_EQ_U64(stage.engines[1].client.verify.count, cases[i].is_taken ? 1 : 0);
        CHECK_EQ_U64(stage.engines[1].client.skipped, cases[i].is_taken ? 0 : 1);
        CHECK_EQ_INT(stage.count, 0); /* and not answered */
        mx_verify_fini(&stage);
    }
}

TEST(verify, a_question_goes_away_after_two_minutes_and_cancels_nothing)
{
    struct mx_verify stage;

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    stage.engines[1].is_silent = true;
    mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
    mx_verify_run(&stage, ALL);
    CHECK(
        mxclient_verify_due_ms(&stage.engines[1].client) == stage.now_ms + MXCLIENT_VERIFY_ASK_MS);
    stage.now_ms += MXCLIENT_VERIFY_ASK_MS;
    mx_verify_tick(&stage, 1);
    mx_verify_run(&stage, ALL);
    mx_verify_check_failed(&stage, 1, "m.timeout", false, "no answer");
    CHECK_EQ_INT(stage.count, 1); /* another device of the user may still answer */
    CHECK_EQ_INT(stage.engines[0].news.step, MXCLIENT_VERIFY_REQUESTED);
    mx_verify_fini(&stage);
}

TEST(verify, a_request_without_a_method_in_common_is_shown_and_not_cancelled)
{
    struct mx_verify stage;
    struct mx_verify_letter *letter = stop_before(&stage, 0, 0);

    edit(&letter->content, "methods", "[\"m.qr_code.show.v1\"]");
    mx_verify_run(&stage, ALL);
    mx_verify_check_failed(&stage, 1, METHOD, false, "no method");
    CHECK_EQ_INT(stage.count, 1);
    mx_verify_fini(&stage);
}

TEST(verify, a_second_request_of_a_device_ends_both)
{
    for (int at = 1; at < 9; at++) {
        struct mx_verify stage;
        char name[64];
        int told = 0;

        (void)stop_before(&stage, 0, at);
        forge_request(&stage, "second", device_name(&stage, 0, name), stage.now_ms);
        for (int i = 0; i < stage.count; i++)
            told += strstr(stage.letters[i].type, "cancel") != NULL;
        CHECK_EQ_INT(told, 2);
        mx_verify_run(&stage, ALL);
        mx_verify_check_failed(&stage, 1, "m.unexpected_message", false, "second");
        check_ends(&stage, "second");
        mx_verify_fini(&stage);
    }
}

TEST(verify, requests_of_blocked_or_own_devices_are_ignored)
{
    struct mx_verify stage;
    char name[64];

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    mx_verify_device(&stage, 1, 0)->trust = MXSTORE_BLOCKED;
    forge_request(&stage, "t", device_name(&stage, 0, name), stage.now_ms);
    CHECK_EQ_U64(stage.engines[1].client.skipped, 1);
    CHECK_EQ_U64(stage.engines[1].client.verify.count, 0);
    CHECK_EQ_INT(stage.count, 0);
    mx_verify_fini(&stage);

    mx_verify_init(&stage, "@ada:x", "@ada:x");
    forge_request(&stage, "t", device_name(&stage, 1, name), stage.now_ms); /* its own name */
    CHECK_EQ_U64(stage.engines[1].client.skipped, 1);
    CHECK_EQ_U64(stage.engines[1].client.verify.count, 0);
    mx_verify_fini(&stage);
}

TEST(verify, asking_says_what_is_missing)
{
    struct mx_verify stage;
    struct mxclient *client = &stage.engines[0].client;
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_place bob;
    char id[MXCLIENT_VERIFY_ID_CHARS + 1];

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    bob = mx_verify_place(&stage, 1);
#define ASK(user, device)                                                                          \
    mxclient_verify_request(client, (struct mxclient_place){ user, device }, 1, unit, id)
    CHECK_EQ_INT(ASK(SPAN("@eve:z"), SPAN("D")), TR_EAGAIN);
    CHECK(mxclient_devices_user(&client->devices, SPAN("@eve:z"))->is_outdated);
    CHECK_EQ_INT(ASK(bob.user_id, SPAN("D")), TR_ENOENT);
    CHECK_EQ_INT(
        ASK(mx_verify_place(&stage, 0).user_id, mx_verify_place(&stage, 0).device_id), TR_EINVAL);
    CHECK_EQ_INT(ASK(mx_verify_place(&stage, 0).user_id, ((struct span){ NULL, 0 })), TR_ENOENT);
    mx_verify_device(&stage, 0, 1)->trust = MXSTORE_BLOCKED;
    CHECK_EQ_INT(ASK(bob.user_id, bob.device_id), TR_EACCES);
    CHECK_EQ_INT(ASK(bob.user_id, ((struct span){ NULL, 0 })), TR_ENOENT);
    mx_verify_device(&stage, 0, 1)->trust = MXSTORE_UNVERIFIED;
    for (int i = 0; i < MXCLIENT_VERIFY_PER_USER_MAX; i++) {
        memset(id, 'x', sizeof id);
        CHECK_EQ_INT(ASK(bob.user_id, bob.device_id), 0);
        CHECK_EQ_INT(id[MXCLIENT_VERIFY_ID_CHARS], '\0');
    }
    CHECK_EQ_INT(ASK(bob.user_id, bob.device_id), TR_ELIMIT);
    CHECK_EQ_INT(
        mxclient_verify_act(client, SPAN("other"), MXCLIENT_VERIFY_MATCH, 1, unit), TR_ENOENT);
#undef ASK
    sql_unit_destroy(unit);
    mx_verify_fini(&stage);
}

/* ---- floods ----------------------------------------------------------------------------------- */

TEST(verify, messages_of_unknown_verifications_are_answered_but_cancels)
{
    struct mx_verify stage;
    int answers;

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    for (int kind = 0; kind < KINDS; kind++) {
        answers = stage.count;
        mx_verify_forge(&stage, 0, 1, kinds[kind], SPAN("{\"transaction_id\":\"none\"}"));
        /* A request or start without from_device is nobody's. */
        CHECK_EQ_INT(stage.count - answers, kind == 0 || kind == 2 ? 0 : 1);
        if (stage.count > answers) {
            CHECK(letter_says(&stage.letters[answers], "m.unknown_transaction"));
            CHECK_EQ_STR(stage.letters[answers].device, "*");
        }
    }
    answers = stage.count;
    mx_verify_forge(
        &stage, 0, 1, "ready", SPAN("{\"transaction_id\":\"none\",\"from_device\":\"D\"}"));
    CHECK_EQ_STR(stage.letters[answers].device, "D");
    answers = stage.count;
    mx_verify_forge(
        &stage, 0, 1, "cancel", SPAN("{\"transaction_id\":\"none\",\"code\":\"m.user\"}"));
    mx_verify_forge(&stage, 0, 1, "key", SPAN("{\"transaction_id\":\"\"}"));
    mx_verify_forge(&stage, 0, 1, "key", SPAN("{}"));
    mx_verify_forge(&stage, 0, 1, "key", SPAN("null"));
    mx_verify_forge(&stage, 0, 1, "unheard_of", SPAN("{\"transaction_id\":\"none\"}"));
    CHECK_EQ_INT(stage.count, answers);
    mx_verify_fini(&stage);
}

TEST(verify, a_flood_leaves_room_for_the_verification_under_way)
{
    struct mx_verify stage;
    struct mxclient *bob = &stage.engines[1].client;
    struct sql_unit *unit = sql_unit_create(0);
    struct json_doc doc = { 0 };
    int64_t txns;

    (void)stop_before(&stage, 0, 4);
    txns = bob->session.txn_next;
    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("{\"transaction_id\":\"none\"}"), 0), 0);
    for (int i = 0; i < 1000; i++)
        CHECK_EQ_INT(mxclient_verify_take(bob,
                         &(struct mxclient_verify_event){
                             SPAN(MX_VERIFY_PREFIX "key"), SPAN("@eve:z"), json_root(&doc) },
                         stage.now_ms, unit),
            0);
    CHECK_EQ_U64(bob->verify.message_count, MXCLIENT_VERIFY_MESSAGES_STRAY_MAX);
    CHECK_EQ_INT(bob->session.txn_next - txns, MXCLIENT_VERIFY_MESSAGES_STRAY_MAX);
    bob->is_account_changed = false;
    sql_unit_destroy(unit);
    json_doc_free(&doc);
    bob->skipped = 0;
    mx_verify_run(&stage, ALL);
    check_done(&stage);
    mx_verify_fini(&stage);
}

TEST(verify, an_id_in_use_is_of_no_use_to_another_user)
{
    for (int kind = 0; kind <= KINDS; kind++) {
        struct mx_verify stage;
        struct buffer content = { 0 };

        mx_verify_init(&stage, "@ada:x", "@bob:y");
        mx_verify_add(&stage, "@eve:z");
        mx_verify_meet(&stage);
        mx_verify_request(&stage, 0, mx_verify_place(&stage, 1));
        mx_verify_run(&stage, 6);
        put_any_content(&stage, 2, &content);
        mx_verify_forge(
            &stage, 2, 0, kind == KINDS ? "cancel" : kinds[kind], mx_stage_span(&content));
        CHECK_EQ_U64(stage.engines[0].client.skipped, 1);
        stage.engines[0].client.skipped = 0;
        mx_verify_run(&stage, ALL);
        check_done(&stage);
        buffer_free(&content);
        mx_verify_fini(&stage);
    }
}

/* ---- the database ----------------------------------------------------------------------------- */

struct disk {
    struct mx_verify stage;
    struct place places[2];
};

static void disk_init(struct disk *disk)
{
    disk->stage = (struct mx_verify){ .now_ms = 1800000000000 };
    for (int i = 0; i < 2; i++) {
        struct mx_verify_engine *engine = &disk->stage.engines[i];
        struct sql_options options;
        struct sql_unit *unit = sql_unit_create(0);

        place_init_in_memory(&disk->places[i]);
        place_system(&disk->places[i]);
        options = (struct sql_options){ .url = disk->places[i].url,
            .migrations = mxstore_migrations,
            .migration_count = MXSTORE_MIGRATIONS,
            .readers = 1 };
        CHECK_EQ_INT(place_try_open(&disk->places[i], &options), 0);
        mx_verify_add(&disk->stage, pairs[0][i]);
        CHECK_EQ_INT(mxclient_session_put(&engine->client.session, unit), 0);
        engine->sql = disk->places[i].sql;
        mx_verify_commit(engine, unit);
    }
    mx_verify_meet(&disk->stage);
}

static void disk_fini(struct disk *disk)
{
    mx_verify_fini(&disk->stage);
    for (int i = 0; i < 2; i++)
        place_finish(&disk->places[i]);
}

/* Drop a client and load it again. */
static void disk_restart(struct disk *disk, int of)
{
    struct mx_verify_engine *engine = &disk->stage.engines[of];
    struct sql_unit *unit = sql_unit_create(0);

    mxclient_fini(&engine->client);
    engine->client = (struct mxclient){ 0 };
    mxclient_session_init(&engine->client.session, mx_stage_random(), &mx_client_key);
    mxclient_load_read(unit);
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    CHECK_EQ_INT(mxclient_load(&engine->client, unit, disk->stage.now_ms), 0);
    sql_unit_destroy(unit);
}

/* Check the stored step; NULL: there is no row. */
static void check_stored(struct disk *disk, int of, const char *step)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_verification row;

    mxstore_get(unit, MXSTORE_IS_verification, span_of(disk->stage.transaction));
    CHECK_EQ_INT(sql_read_wait(disk->stage.engines[of].sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), step == NULL ? 0 : 1);
    if (step != NULL) {
        mxstore_row(unit, 0, 0, MXSTORE_IS_verification, &row);
        CHECK_MSG(span_is(row.step, step), "%.*s is not %s", (int)row.step.size, row.step.at, step);
    }
    sql_unit_destroy(unit);
}

TEST(verify, the_end_and_the_trust_survive_a_restart_together)
{
    struct disk disk;

    disk_init(&disk);
    mx_verify_request(&disk.stage, 0, mx_verify_place(&disk.stage, 1));
    mx_verify_run(&disk.stage, ALL);
    check_done(&disk.stage);
    for (int i = 0; i < 2; i++) {
        disk_restart(&disk, i);
        check_stored(&disk, i, "done");
        CHECK(mx_verify_trusts(&disk.stage, i, 1 - i));
        CHECK_EQ_U64(disk.stage.engines[i].client.verify.count, 0);
        CHECK(mxclient_verify_due_ms(&disk.stage.engines[i].client) == INT64_MAX);
    }
    disk_fini(&disk);
}

TEST_LONG(verify, a_restart_in_the_middle_cancels_and_tells_the_peer, 60)
{
    for (int at = 0; at < LETTERS; at++)
        for (int who = 0; who < 2; who++)
            for (int order = 0; order < 2; order++) {
                struct disk disk;
                struct mx_verify *stage = &disk.stage;
                bool is_over, is_stored, has_done;
                int64_t txn_next;
                char what[64];

                disk_init(&disk);
                mx_verify_request(stage, 0, mx_verify_place(stage, 1));
                mx_verify_run(stage, at);
                snprintf(
                    what, sizeof what, "before letter %d, engine %d, order %d", at, who, order);
                is_over = stage->engines[who].news.step == MXCLIENT_VERIFY_DONE;
                is_stored = at > 0 || who == 0;
                has_done = has_sent(stage, who, "done");
                txn_next = stage->engines[who].client.session.txn_next;
                disk_restart(&disk, who);
                CHECK(stage->engines[who].client.session.txn_next == txn_next);
                stage->engines[who].compares = false;
                CHECK(mxclient_verify_due_ms(&stage->engines[who].client) ==
                      (is_over || !is_stored ? INT64_MAX : INT64_MIN));
                if (order == 0) /* before or after the messages under way */
                    mx_verify_tick(stage, who);
                mx_verify_run(stage, ALL);
                mx_verify_tick(stage, who);
                mx_verify_run(stage, ALL);
                CHECK_MSG(stage->engines[who].client.verify.count == 0, "%s", what);
                if (!is_stored) {
                    disk_fini(&disk);
                    continue;
                }
                check_stored(&disk, who, is_over ? "done" : "cancelled");
                CHECK(mx_verify_trusts(stage, who, 1 - who) == is_over);
                if (!is_over)
                    mx_verify_check_failed(stage, who, "m.user", false, what);
                if (!has_done) {
                    mx_verify_check_failed(stage, 1 - who, "m.user", true, what);
                    check_stored(&disk, 1 - who, "cancelled");
                }
                disk_fini(&disk);
            }
}

TEST(verify, an_unanswered_request_is_not_stored)
{
    struct disk disk;

    disk_init(&disk);
    disk.stage.engines[1].is_silent = true;
    mx_verify_request(&disk.stage, 0, mx_verify_place(&disk.stage, 1));
    mx_verify_run(&disk.stage, ALL);
    check_stored(&disk, 0, "requested");
    check_stored(&disk, 1, NULL);
    disk.stage.now_ms += MXCLIENT_VERIFY_ASK_MS;
    mx_verify_tick(&disk.stage, 1);
    check_stored(&disk, 1, NULL);
    CHECK_EQ_U64(disk.stage.engines[1].client.verify.message_count, 0);
    disk_fini(&disk);
}

/* Take the next message and leave it without an answer. */
static void take_message(struct disk *disk, int of, struct mxclient_request *ret_request)
{
    struct sql_unit *unit = sql_unit_create(0);

    CHECK(mxclient_verify_next(&disk->stage.engines[of].client, unit, ret_request));
    mx_verify_commit(&disk->stage.engines[of], unit);
}

/* Let a user act, and lose the server's answer to the last message: a restart repeats it. */
static void check_repeated(struct disk *disk, int of, enum mxclient_verify_act act)
{
    struct mx_verify_engine *engine = &disk->stage.engines[of];
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request first, again;

    CHECK_EQ_INT(mxclient_verify_act(&engine->client, span_of(disk->stage.transaction), act,
                     disk->stage.now_ms, unit),
        0);
    mx_verify_commit(engine, unit);
    take_message(disk, of, &first);
    disk_restart(disk, of);
    CHECK(mxclient_verify_due_ms(&engine->client) == INT64_MAX);
    take_message(disk, of, &again);
    CHECK(span_equal(mxclient_span(&first.target), mxclient_span(&again.target)));
    CHECK(span_equal(mxclient_span(&first.body), mxclient_span(&again.body)));
    mxclient_request_fini(&first);
    mxclient_request_fini(&again);
    disk_restart(disk, of);
    mx_verify_collect(&disk->stage, of);
    check_stored(disk, of, "cancelled");
    disk_restart(disk, of);
    CHECK_EQ_U64(engine->client.verify.message_count, 0);
    mx_verify_run(&disk->stage, ALL);
    check_stored(disk, 1 - of, "cancelled");
}

TEST(verify, a_cancel_survives_a_restart_until_the_server_has_it)
{
    for (int of = 0; of < 2; of++) {
        struct disk disk;

        disk_init(&disk);
        mx_verify_request(&disk.stage, 0, mx_verify_place(&disk.stage, 1));
        disk.stage.engines[of].is_silent = true;
        mx_verify_run(&disk.stage, ALL);
        check_repeated(&disk, of, of == 0 ? MXCLIENT_VERIFY_MISMATCH : MXCLIENT_VERIFY_CANCEL);
        disk_fini(&disk);
    }
}

TEST(verify, a_damaged_last_message_cancels_the_verification)
{
    static const char *const steps[] = { "done m1", "done m1 m.key.verification.done",
        "done m1 m.other {}", "other m1 m.key.verification.done {}",
        "done m123456789012345678901234567890123456789 m.key.verification.done {}" };

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct mx_verify stage;
        struct mxclient *ada = &stage.engines[0].client;
        struct mxstore_verification row = { .transaction_id = SPAN("t"),
            .user_id = SPAN("@bob:y"),
            .device_id = SPAN("*"),
            .step = span_of(steps[i]) };

        mx_verify_init(&stage, "@ada:x", "@bob:y");
        CHECK_EQ_INT(mxclient_verify_load(ada, &row), 0);
        CHECK_EQ_U64(ada->verify.message_count, 0);
        CHECK(mxclient_verify_due_ms(ada) == INT64_MIN);
        mx_verify_fini(&stage);
    }
}

/* ---- strangers -------------------------------------------------------------------------------- */

/* Let an engine query devices, of one user alone, and answer; then time goes on. */
static void answer_query(struct mx_verify *stage, int of, const char *user, const char *devices)
{
    struct mxclient *client = &stage->engines[of].client;
    struct mxclient_outcome done = { .verdict = MXCLIENT_DONE };
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    struct buffer text = { 0 };
    struct json_doc doc = { 0 };

    CHECK(mxclient_devices_query(&client->devices, stage->now_ms, &request));
    (void)buffer_format(&text, "\"device_keys\":{\"%s\":[]}}", user);
    CHECK(memmem(request.body.bytes, request.body.size, text.bytes, text.size) != NULL);
    mxclient_request_fini(&request);
    buffer_clear(&text);
    (void)buffer_format(&text, "{\"device_keys\":{\"%s\":{%s}}}", user, devices);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), 0), 0);
    CHECK_EQ_INT(
        mxclient_devices_answered(&client->devices, &done, json_root(&doc), stage->now_ms, unit),
        0);
    mx_verify_commit(&stage->engines[of], unit);
    mx_verify_tick(stage, of);
    buffer_free(&text);
    json_doc_free(&doc);
}

/* Count the rows of eve as a user. */
static uint32_t count_eve(struct disk *disk)
{
    struct sql_unit *unit = sql_unit_create(0);
    uint32_t count;

    mxstore_get(unit, MXSTORE_IS_user, SPAN("@eve:z"));
    CHECK_EQ_INT(sql_read_wait(disk->stage.engines[1].sql, unit), 0);
    count = sql_unit_rows(unit, 0);
    sql_unit_destroy(unit);
    return count;
}

/* Eve, whom bob does not know, asks him for a verification. */
static void eve_asks(struct disk *disk)
{
    struct mx_verify *stage = &disk->stage;
    struct buffer devices = { 0 };

    disk_init(disk);
    mx_verify_add(stage, "@eve:z");
    mx_verify_put_devices(stage, "@bob:y", &devices);
    mx_verify_query(stage, 2, "@bob:y", devices.bytes, "");
    buffer_free(&devices);
    mx_verify_request(stage, 2, mx_verify_place(stage, 1));
    mx_verify_run(stage, ALL);
    CHECK_EQ_INT(stage->count, 1);
    CHECK_EQ_U64(stage->engines[1].client.verify.count, 1);
}

TEST(verify, a_stranger_is_verified_after_a_query_and_stored_after_the_user_accepts)
{
    struct disk disk;
    struct mx_verify *stage = &disk.stage;
    struct buffer devices = { 0 };

    eve_asks(&disk);
    stage->engines[1].is_silent = true;
    mx_verify_put_devices(stage, "@eve:z", &devices);
    answer_query(stage, 1, "@eve:z", devices.bytes);
    buffer_free(&devices);
    mx_verify_run(stage, ALL);
    CHECK_EQ_INT(stage->engines[1].news.step, MXCLIENT_VERIFY_ASKED);
    CHECK_EQ_U64(count_eve(&disk), 0);
    stage->engines[1].is_silent = false;
    CHECK_EQ_INT(mx_verify_act(stage, 1, MXCLIENT_VERIFY_ACCEPT), 0);
    CHECK_EQ_U64(count_eve(&disk), 1);
    mx_verify_run(stage, ALL);
    CHECK(mx_verify_trusts(stage, 1, 2) && mx_verify_trusts(stage, 2, 1));
    disk_restart(&disk, 1);
    CHECK(mx_verify_trusts(stage, 1, 2));
    disk_fini(&disk);
}

TEST(verify, a_stranger_without_keys_or_whom_the_user_refuses_is_told_and_forgotten)
{
    for (int has_keys = 0; has_keys < 2; has_keys++) {
        struct disk disk;
        struct mx_verify *stage = &disk.stage;
        struct buffer devices = { 0 };

        eve_asks(&disk);
        stage->engines[1].is_silent = true;
        mx_verify_put_devices(stage, "@eve:z", &devices);
        answer_query(stage, 1, "@eve:z", has_keys ? devices.bytes : "");
        buffer_free(&devices);
        if (has_keys)
            CHECK_EQ_INT(mx_verify_act(stage, 1, MXCLIENT_VERIFY_CANCEL), 0);
        mx_verify_run(stage, ALL);
        mx_verify_check_failed(
            stage, 2, has_keys ? "m.user" : "m.invalid_message", true, "a stranger");
        CHECK(mxclient_devices_user(&stage->engines[1].client.devices, SPAN("@eve:z")) == NULL);
        CHECK_EQ_U64(count_eve(&disk), 0);
        disk_fini(&disk);
    }
}

TEST(verify, a_stranger_whose_server_is_silent_is_told_after_two_minutes)
{
    struct disk disk;
    struct mx_verify *stage = &disk.stage;

    eve_asks(&disk);
    stage->now_ms += MXCLIENT_VERIFY_ASK_MS;
    mx_verify_tick(stage, 1);
    mx_verify_run(stage, ALL);
    mx_verify_check_failed(stage, 2, "m.timeout", true, "a silent server");
    CHECK(mxclient_devices_user(&stage->engines[1].client.devices, SPAN("@eve:z")) == NULL);
    disk_fini(&disk);
}

TEST(verify, a_new_device_of_a_known_user_is_queried_once)
{
    struct mx_verify stage;
    struct mxclient *bob = &stage.engines[1].client;

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    forge_request(&stage, "t", "NEW", stage.now_ms);
    CHECK_EQ_U64(bob->verify.count, 1);
    CHECK_EQ_INT(stage.count, 0);
    answer_query(&stage, 1, "@ada:x", "");
    CHECK_EQ_INT(stage.count, 1);
    CHECK(letter_says(&stage.letters[0], "m.invalid_message"));
    CHECK(mxclient_devices_user(&bob->devices, SPAN("@ada:x")) != NULL);
    mx_verify_look(&stage, 1);
    CHECK_EQ_U64(bob->verify.count, 0);
    mx_verify_fini(&stage);
}

/* Each of many strangers asks; no answer of a server comes. */
TEST(verify, a_crowd_of_strangers_leaves_room_and_no_trace)
{
    struct mx_verify stage;
    struct mxclient *bob = &stage.engines[1].client;
    struct sql_unit *unit = sql_unit_create(0);
    struct json_doc doc = { 0 };
    uint32_t known;
    char name[64];

    mx_verify_init(&stage, "@ada:x", "@bob:y");
    stage.engines[1].is_silent = true;
    known = bob->devices.users.count;
    for (int i = 0; i < 1000; i++) {
        char content[200], user[32];

        snprintf(user, sizeof user, "@s%d:z", i);
        snprintf(content, sizeof content,
            "{\"transaction_id\":\"t%d\",\"from_device\":\"D\",\"methods\":[\"m.sas.v1\"],"
            "\"timestamp\":1800000000000}",
            i);
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(content), 0), 0);
        CHECK_EQ_INT(mxclient_verify_take(bob,
                         &(struct mxclient_verify_event){
                             SPAN(MX_VERIFY_PREFIX "request"), span_of(user), json_root(&doc) },
                         stage.now_ms, unit),
            0);
    }
    CHECK(sql_unit_is_empty(unit));
    CHECK_EQ_U64(bob->verify.count, MXCLIENT_VERIFY_GUESTS_MAX);
    CHECK_EQ_U64(bob->devices.users.count, known + MXCLIENT_VERIFY_GUESTS_MAX);
    CHECK_EQ_U64(bob->verify.message_count, MXCLIENT_VERIFY_MESSAGES_STRAY_MAX);
    sql_unit_destroy(unit);
    json_doc_free(&doc);
    mx_verify_collect(&stage, 1);
    for (int i = 0; i < stage.count; i++)
        CHECK(letter_says(&stage.letters[i], "m.user"));
    forge_request(&stage, "t", device_name(&stage, 0, name), stage.now_ms);
    mx_verify_look(&stage, 1);
    CHECK_EQ_INT(stage.engines[1].news.step, MXCLIENT_VERIFY_ASKED); /* ada's */
    stage.now_ms += MXCLIENT_VERIFY_ASK_MS;
    mx_verify_tick(&stage, 1);
    mx_verify_look(&stage, 1);
    CHECK_EQ_U64(bob->verify.count, 0);
    CHECK_EQ_U64(bob->devices.users.count, known);
    mx_verify_fini(&stage);
}

/* ---- messages of others ----------------------------------------------------------------------- */

/* Read the content that a client sent to one device, from the capture. */
static const struct json *captured(struct json_doc *doc, const char *wire, const char *event)
{
    const char *line = strstr(wire, event);
    const struct json *value;

    CHECK(line != NULL);
    line = strchr(line, '{');
    CHECK_EQ_INT(json_parse_copy(doc, (struct span){ line, strcspn(line, "\n") }, 0), 0);
    value = json_get(json_root(doc), "messages");
    for (int level = 0; level < 2; level++) {
        struct json_iter it = json_iterate(value);

        CHECK(json_next(&it));
        value = it.value;
    }
    return value;
}

TEST(verify, the_messages_of_real_clients_are_read)
{
    size_t size;
    char *wire = shared_read("vectors/matrix/sas-and-megolm-wire.txt", &size);
    char commitment[MX_SAS_COMMITMENT_CHARS + 1];
    struct mxclient_sas_choice offered, chosen;
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(
        mxclient_sas_read_methods(captured(&doc, wire, "sendToDevice/m.key.verification.request")),
        0);
    CHECK_EQ_INT(
        mxclient_sas_read_methods(captured(&doc, wire, "sendToDevice/m.key.verification.ready")),
        0);
    CHECK_EQ_INT(mxclient_sas_read_offer(
                     captured(&doc, wire, "sendToDevice/m.key.verification.start"), &offered),
        0);
    CHECK_EQ_INT(
        mxclient_sas_read_choice(
            captured(&doc, wire, "sendToDevice/m.key.verification.accept"), &chosen, commitment),
        0);
    /* We choose as the real client does. */
    CHECK_EQ_INT(offered.mac, chosen.mac);
    CHECK_EQ_INT(offered.strings, chosen.strings);
    CHECK_EQ_STR(commitment, "HXg2Xn2Mjc1qFOQHVusQaZXIq9/iR2Iizlo/6ZwYTwg");
    json_doc_free(&doc);
    free(wire);
}

TEST(verify, an_encrypted_message_is_as_good_as_one_in_the_clear)
{
    struct mx_verify stage;
    struct mxclient *ada = &stage.engines[0].client, *bob = &stage.engines[1].client;
    struct mx_verify_letter *letter;
    struct mx_one_time_key key;
    struct buffer body = { 0 }, event = { 0 };
    struct sql_unit *unit = sql_unit_create(0);
    struct json_doc doc = { 0 };

    letter = stop_before(&stage, 0, 0);
    CHECK_EQ_INT(mx_account_add_one_time_keys(bob->session.account, 1, mx_stage_random()), 0);
    CHECK(mx_account_one_time_key_at(bob->session.account, 0, &key));
    CHECK_EQ_INT(mxclient_olm_start(ada, mx_verify_device(&stage, 0, 1), &key.key, 1), 0);
    CHECK_EQ_INT(
        mxclient_olm_encrypt(ada, mx_verify_place(&stage, 1), mx_verify_device(&stage, 0, 1),
            span_of(letter->type), mx_stage_span(&letter->content), unit, &body),
        0);
    (void)buffer_format(&event,
        "{\"type\":\"m.room.encrypted\",\"sender\":\"@ada:x\",\"content\":%.*s}", (int)body.size,
        body.bytes);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&event), 0), 0);
    CHECK_EQ_INT(mxclient_to_device_take(bob, json_root(&doc), stage.now_ms, unit), 0);
    stage.first++;
    mx_verify_run(&stage, ALL);
    check_done(&stage);
    json_doc_free(&doc);
    buffer_free(&body);
    buffer_free(&event);
    sql_unit_destroy(unit);
    mx_verify_fini(&stage);
}

/* ---- memory and chance ------------------------------------------------------------------------ */

/* Without memory an engine says so, and its owner drops and loads it. Nothing leaks or crashes. */
TEST_LONG(verify, each_failed_allocation_is_reported, 60)
{
    int failures = 0;

    for (int at = 0; at < LETTERS; at++)
        for (uint64_t countdown = 1; countdown < 200; countdown++) {
            struct mx_verify stage;
            struct mx_verify_letter *letter = stop_before(&stage, 0, at);
            struct mxclient_verify_event event = { .type = span_of(letter->type) };
            int to = mx_verify_receiver(&stage, letter);
            struct sql_unit *unit = sql_unit_create(0);
            struct json_doc doc = { 0 };
            uint64_t hits;
            int rc;

            event.sender = mx_verify_place(&stage, letter->from).user_id;
            CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&letter->content), 0), 0);
            event.content = json_root(&doc);
            (void)base_fault_countdown(countdown, 1);
            rc = mxclient_verify_take(&stage.engines[to].client, &event, stage.now_ms, unit);
            hits = base_fault_countdown(0, 0);
            CHECK_MSG(rc == 0 || rc == TR_ENOMEM, "letter %d: %d", at, rc);

            failures += rc == TR_ENOMEM ? 1 : 0;
            CHECK(rc == TR_ENOMEM || !mx_verify_trusts(&stage, to, 1 - to) || at >= 8);
            sql_unit_destroy(unit);
            json_doc_free(&doc);
            mx_verify_fini(&stage);
            if (hits < countdown)
                break; /* the one to fail did not come */
        }
    CHECK_MSG(failures > 40, "%d", failures);
}

/* Users, clocks and the network act at random. Trust needs a done, and a done needs the strings. */
TEST_LONG(verify, chance_never_verifies_a_device_by_mistake, 60)
{
    unsigned done = 0, ends = 0;

    for (uint64_t seed; check_each_seed(&seed, 400);) {
        struct base_random dice;
        struct mx_verify stage;

        base_random_init(&dice, seed);
        mx_verify_init(&stage, pairs[seed % 3][0], pairs[seed % 3][1]);
        for (int i = 0; i < 2; i++) {
            stage.engines[i].is_slow = base_random_below(&dice, 2) == 0;
            if (i == 0 || base_random_below(&dice, 4) == 0)
                mx_verify_request(&stage, i, mx_verify_place(&stage, 1 - i));
        }
        while (stage.first < stage.count && stage.count < MX_VERIFY_LETTERS - 20) {
            int who = (int)base_random_below(&dice, 2);
            uint64_t chance = base_random_below(&dice, 60);

            mx_verify_answer_all(&stage);
            if (chance == 0)
                stage.first++; /* lost */
            else if (chance == 1) {
                stage.now_ms += (int64_t)base_random_below(&dice, MXCLIENT_VERIFY_MS);
                mx_verify_tick(&stage, who);
            } else if (chance == 2)
                (void)mx_verify_act(
                    &stage, who, (enum mxclient_verify_act)base_random_below(&dice, 5));
            else if (chance == 3 && stage.first > 0)
                mx_verify_give(&stage, &stage.letters[stage.first - 1],
                    mx_verify_receiver(&stage, &stage.letters[stage.first - 1]));
            if (stage.first < stage.count)
                mx_verify_deliver(&stage);
            mx_verify_answer_all(&stage);
        }
        stage.now_ms += MXCLIENT_VERIFY_MS + MXCLIENT_VERIFY_AHEAD_MS;
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < 2; i++) {
                mx_verify_tick(&stage, i);
                mx_verify_run(&stage, ALL);
            }
        for (int i = 0; i < 2; i++) {
            CHECK_EQ_U64(stage.engines[i].client.verify.count, 0);
            ends++;
            if (mx_verify_trusts(&stage, i, 1 - i)) {
                CHECK(mx_verify_same(&stage.engines[0].seen, &stage.engines[1].seen));
                CHECK(has_sent(&stage, i, "mac") && has_sent(&stage, 1 - i, "done"));
                done++;
            }
        }
        mx_verify_fini(&stage);
    }
    CHECK_MSG(ends < 100 || (done > ends / 4 && done < ends), "%u of %u", done, ends);
}
