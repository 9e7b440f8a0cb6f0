/* SPDX-License-Identifier: Apache-2.0 */
/* mx_sas.c: verification events. Two engines verify each other up to a message, by the first byte;
 * then one of them gets forged events, a line each: a letter for the kind, then the content. Upper
 * case goes to the first engine, lower case to the second. After that the honest messages go on.
 * Every verification must end, whatever was forged. A device is trusted only if both users saw the
 * same strings and its engine has sent its MAC. */
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LETTERS_MAX = 200, LINES_MAX = 30 };
#define PREFIX "m.key.verification."

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static const struct mx_pickle_key key = { { 1 } };
static uint8_t counter;
static const struct mx_random counting = { count_up, &counter };
static const char *const users[] = { "@ada:x", "@bob:y" };
static const char *const devices[] = { "A", "B" };

struct side {
    struct mxclient client;
    struct mx_sas_code seen;
    bool has_sent_mac;
};
struct letter {
    size_t from;
    char kind[32];
    struct buffer content;
};

static struct side sides[2];
static struct letter letters[LETTERS_MAX];
static size_t letter_count, letter_next;
static int64_t now_ms;

/* ---- two engines ------------------------------------------------------------------------------ */

static void know(struct mxclient *client, size_t other)
{
    char identity[MX_KEY_CHARS + 1], signing[MX_KEY_CHARS + 1];
    const struct mx_account *account = sides[other].client.session.account;
    int rc;

    mx_key_text(mx_account_identity_key(account), identity);
    mx_key_text(mx_account_signing_key(account), signing);
    rc = mxclient_devices_load_user(
        &client->devices, &(struct mxstore_user){ .user_id = span_of(users[other]) });
    rc |= mxclient_devices_load(
        &client->devices, &(struct mxstore_device){ .user_id = span_of(users[other]),
                              .device_id = span_of(devices[other]),
                              .identity_key = span_of(identity),
                              .signing_key = span_of(signing),
                              .body = SPAN("{}") });
    tr_assert(rc == 0);
}

static void set_up(void)
{
    counter = 0;
    letter_count = letter_next = 0;
    now_ms = 1800000000000;
    for (size_t i = 0; i < 2; i++) {
        struct mxclient_session *session = &sides[i].client.session;
        int rc;

        sides[i] = (struct side){ 0 };
        mxclient_session_init(session, &counting, &key);
        rc = mx_account_create(&counting, &session->account);
        rc |= buffer_text(&session->user_id, users[i]);
        rc |= buffer_text(&session->device_id, devices[i]);
        tr_assert(rc == 0);
        session->state = MXCLIENT_ACTIVE;
        mxclient_start(&sides[i].client);
    }
    know(&sides[0].client, 1);
    know(&sides[1].client, 0);
}

static void tear_down(void)
{
    for (size_t i = 0; i < 2; i++)
        mxclient_fini(&sides[i].client);
    for (size_t i = 0; i < letter_count; i++)
        buffer_free(&letters[i].content);
    memset(letters, 0, sizeof letters);
}

/* ---- messages --------------------------------------------------------------------------------- */

/* Take the messages of an engine to the other one; others are nobody's. */
static void collect(size_t from)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;

    while (mxclient_verify_next(&sides[from].client, unit, &request)) {
        struct span rest = mxclient_span(&request.target), kind = { NULL, 0 };
        struct json_doc doc = { 0 };
        const struct json *to;
        int rc = json_parse_copy(&doc, mxclient_span(&request.body), JSON_UNIQUE_KEYS);

        tr_assert(rc == 0);
        for (int i = 0; i < 6; i++)
            (void)span_cut(&rest, '/', &kind);
        tr_assert(mxclient_verify_is(kind) && kind.size < sizeof PREFIX + 16);
        to = json_get(json_get(json_root(&doc), "messages"), users[1 - from]);
        if (json_get(to, devices[1 - from]) != NULL && letter_count < LETTERS_MAX) {
            struct letter *letter = &letters[letter_count++];
            struct json_writer writer = json_writer(&letter->content);

            letter->from = from;
            memcpy(letter->kind, kind.at, kind.size);
            json_put_value(&writer, NULL, json_get(to, devices[1 - from]));
            sides[from].has_sent_mac =
                sides[from].has_sent_mac || strcmp(letter->kind, PREFIX "mac") == 0;
        }
        json_doc_free(&doc);
        mxclient_request_fini(&request);
    }
    sql_unit_destroy(unit);
}

static void give(size_t to, struct span type, struct span content)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct json_doc doc = { 0 };
    struct mxclient_verify_event event = { type, span_of(users[1 - to]), NULL };
    int rc = json_parse_copy(&doc, content, 0);

    if (rc == 0) {
        event.content = json_root(&doc);
        rc = mxclient_verify_take(&sides[to].client, &event, now_ms, unit);
        tr_assert(rc == 0);
    }
    json_doc_free(&doc);
    sql_unit_destroy(unit);
    collect(to);
}

static void act(size_t of, const char *transaction, enum mxclient_verify_act what)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_verify_act(&sides[of].client, span_of(transaction), what, now_ms, unit);

    tr_assert(rc == 0 || rc == TR_EBUSY || rc == TR_ENOENT);
    sql_unit_destroy(unit);
    collect(of);
}

/* The users say yes to everything: only the code protects them here. */
static void answer(size_t of)
{
    struct mxclient_verify_news news;

    while (mxclient_verify_news(&sides[of].client, &news)) {
        tr_assert((news.step == MXCLIENT_VERIFY_CANCELLED) == (news.failure != NULL));
        if (news.step == MXCLIENT_VERIFY_ASKED)
            act(of, news.transaction_id, MXCLIENT_VERIFY_ACCEPT);
        if (news.step == MXCLIENT_VERIFY_COMPARE) {
            sides[of].seen = news.code;
            act(of, news.transaction_id, MXCLIENT_VERIFY_MATCH);
        }
    }
}

static void deliver(size_t until)
{
    answer(0);
    answer(1);
    while (letter_next < letter_count && letter_next < until) {
        struct letter letter = letters[letter_next++];

        give(1 - letter.from, span_of(letter.kind), mxclient_span(&letter.content));
        answer(0);
        answer(1);
    }
}

/* ---- the forger ------------------------------------------------------------------------------- */

static void forge(struct span line)
{
    static const char *const kinds[] = { "request", "ready", "start", "accept", "key", "mac",
        "done", "cancel" };
    struct buffer type = { 0 };
    unsigned letter;

    if (line.size == 0)
        return;
    letter = (unsigned char)line.at[0];
    (void)buffer_text(&type, PREFIX);
    (void)buffer_text(&type, kinds[letter % 8]);
    give((letter & 0x20) == 0 ? 0 : 1, mxclient_span(&type),
        (struct span){ line.at + 1, line.size - 1 });
    buffer_free(&type);
    answer(0);
    answer(1);
}

static void tick(void)
{
    for (size_t i = 0; i < 2; i++) {
        struct sql_unit *unit = sql_unit_create(0);
        int rc = mxclient_verify_tick(&sides[i].client, now_ms, unit);

        tr_assert(rc == 0);
        sql_unit_destroy(unit);
        collect(i);
    }
}

static bool trusts(size_t of)
{
    struct mxclient_place place = { span_of(users[1 - of]), span_of(devices[1 - of]) };

    return mxclient_devices_find(&sides[of].client.devices, place)->trust == MXSTORE_VERIFIED;
}

static void check(void)
{
    const struct mx_sas_code *a = &sides[0].seen, *b = &sides[1].seen;

    for (size_t i = 0; i < 2; i++) {
        tr_assert(sides[i].client.verify.count == 0);
        tr_assert(mxclient_verify_due_ms(&sides[i].client) == INT64_MAX);
        if (trusts(i)) {
            tr_assert(memcmp(a->decimals, b->decimals, sizeof a->decimals) == 0);
            tr_assert(memcmp(a->emoji, b->emoji, sizeof a->emoji) == 0);
            tr_assert(sides[1 - i].has_sent_mac);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest, line;
    char transaction[MXCLIENT_VERIFY_ID_CHARS + 1];
    struct sql_unit *unit;
    int rc, lines = 0;

    if (size == 0)
        return 0;
    rest = (struct span){ (const char *)data + 1, size - 1 };
    set_up();
    unit = sql_unit_create(0);
    rc = mxclient_verify_request(&sides[0].client,
        (struct mxclient_place){ span_of(users[1]), span_of(devices[1]) }, now_ms, unit,
        transaction);
    tr_assert(rc == 0);
    sql_unit_destroy(unit);
    collect(0);
    deliver(data[0] % 11);
    while (span_cut(&rest, '\n', &line) && lines++ < LINES_MAX)
        forge(line);
    deliver(LETTERS_MAX);
    now_ms += 2 * (int64_t)MXCLIENT_VERIFY_MS;
    for (int i = 0; i < 2; i++) {
        tick();
        deliver(LETTERS_MAX);
    }
    check();
    tr_assert(size > 1 || (trusts(0) && trusts(1))); /* without a forger both do */
    tear_down();
    return 0;
}
