/* SPDX-License-Identifier: Apache-2.0 */
#include "bodies.h"

#include <inttypes.h>

#include "base/random.h"

#define SYNC_BYTES ((size_t)990 * 1000)

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_base64(struct buffer *out, struct base_random *random, unsigned size)
{
    for (unsigned i = 0; i < size; i++)
        buffer_append(out, &base64_digits[base_random_below(random, 64)], 1);
}

static void put_lower(struct buffer *out, struct base_random *random, unsigned size)
{
    for (unsigned i = 0; i < size; i++)
        buffer_append(out, &base64_digits[26 + base_random_below(random, 26)], 1);
}

void body_add_members(struct buffer *out)
{
    struct base_random random;

    base_random_init(&random, 1);
    buffer_text(out, "{\"convoId\":\"");
    put_lower(out, &random, 13);
    buffer_text(out, "\",\"idempotencyKey\":\"");
    put_lower(out, &random, 36);
    buffer_text(out, "\",\"expectedEpoch\":41,\"didList\":[");
    for (int i = 0; i < 4; i++) {
        buffer_text(out, i == 0 ? "\"did:plc:" : ",\"did:plc:");
        put_lower(out, &random, 24);
        buffer_text(out, "\"");
    }
    buffer_text(out, "],\"keyPackageHashes\":[");
    for (int i = 0; i < 4; i++) {
        buffer_text(out, i == 0 ? "{\"did\":\"did:plc:" : ",{\"did\":\"did:plc:");
        put_lower(out, &random, 24);
        buffer_format(out, "\",\"deviceIndex\":%d,\"hash\":\"", i);
        put_lower(out, &random, 32);
        buffer_text(out, "\"}");
    }
    buffer_text(out, "],\"commit\":\"");
    put_base64(out, &random, 240);
    buffer_text(out, "\",\"confirmed\":true,\"welcome\":null}");
}

static const char *const words[] = { "hello", "the", "build", "is", "green", "again", "and",
    "someone", "should", "look", "at", "this", "before", "we", "ship", "it", "tomorrow", "morning",
    "because", "of", "a", "meeting", "with", "everyone", "who", "reads", "logs" };
static const char *const foreign[] = { "\xf0\x9f\x8e\x89", "\xf0\x9f\x91\x8d", "\xe2\x9c\x85",
    "gr\xc3\xbcn", "\xd0\xbf\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82",
    "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf", "na\xc3\xafve" };
static const char *const escapes[] = { "\\n", "\\\"", "\\n> ", "\\t", "\\u003c", "\\ud83d\\ude00" };

static const char *pick(struct base_random *random, const char *const *list, size_t count)
{
    return list[base_random_below(random, count)];
}
#define PICK(random, list) pick(random, list, sizeof(list) / sizeof((list)[0]))

static void put_sentence(struct buffer *out, struct base_random *random)
{
    unsigned count = 3 + (unsigned)base_random_below(random, 22);
    bool is_foreign = base_random_below(random, 6) == 0;
    bool is_escaped = base_random_below(random, 5) == 0;

    for (unsigned i = 0; i < count; i++) {
        buffer_text(out, PICK(random, words));
        if (is_foreign && i % 2 == 0) {
            buffer_text(out, " ");
            buffer_text(out, PICK(random, foreign));
        }
        if (is_escaped && i % 8 == 4)
            buffer_text(out, PICK(random, escapes));
        if (i + 1 < count)
            buffer_text(out, " ");
    }
}

static void put_user(struct buffer *out, struct base_random *random)
{
    buffer_text(out, "@");
    put_lower(out, random, 4 + (unsigned)base_random_below(random, 9));
    buffer_text(out, ":example.org");
}

static void put_event_end(struct buffer *out, struct base_random *random, uint64_t number)
{
    buffer_text(out, ",\"sender\":\"");
    put_user(out, random);
    buffer_format(out,
        "\",\"origin_server_ts\":%" PRIu64 ",\"unsigned\":{\"age\":%" PRIu64 "},\"event_id\":\"$",
        1700000000000u + number * 977, 100000000u - number * 17);
    put_base64(out, random, 43);
    buffer_text(out, "\"}");
}

static void put_event(struct buffer *out, struct base_random *random, uint64_t number)
{
    switch (base_random_below(random, 8)) {
    case 0:
        buffer_text(out, "{\"type\":\"m.room.member\",\"state_key\":\"");
        put_user(out, random);
        buffer_text(out, "\",\"content\":{\"membership\":\"join\",\"displayname\":\"");
        put_lower(out, random, 9);
        buffer_text(out, "\",\"avatar_url\":null,\"is_direct\":false}");
        break;
    case 1:
    case 2:
        buffer_text(out, "{\"type\":\"m.room.encrypted\",\"content\":{\"algorithm\":"
                            "\"m.megolm.v1.aes-sha2\",\"ciphertext\":\"");
        put_base64(out, random, 200 + (unsigned)base_random_below(random, 200));
        buffer_text(out, "\",\"device_id\":\"JLAFKJWSCS\",\"session_id\":\"");
        put_base64(out, random, 43);
        buffer_text(out, "\"}");
        break;
    case 3:
        buffer_text(
            out, "{\"type\":\"m.reaction\",\"content\":{\"m.relates_to\":{\"event_id\":\"$");
        put_base64(out, random, 43);
        buffer_text(out, "\",\"key\":\"");
        buffer_text(out, PICK(random, foreign));
        buffer_text(out, "\",\"rel_type\":\"m.annotation\"}}");
        break;
    default:
        buffer_text(
            out, "{\"type\":\"m.room.message\",\"content\":{\"msgtype\":\"m.text\",\"body\":\"");
        put_sentence(out, random);
        buffer_text(out, "\"}");
        break;
    }
    put_event_end(out, random, number);
}

static void put_room(struct buffer *out, struct base_random *random, uint64_t *io_number)
{
    unsigned count = 5 + (unsigned)base_random_below(random, 20);

    buffer_text(out, "\"!");
    put_lower(out, random, 18);
    buffer_text(out, ":example.org\":{\"timeline\":{\"events\":[");
    for (unsigned i = 0; i < count; i++) {
        if (i > 0)
            buffer_text(out, ",");
        put_event(out, random, (*io_number)++);
    }
    buffer_text(out,
        "],\"limited\":true,\"prev_batch\":\"s72594_4483_1934\"},\"state\":{\"events\":[]},"
        "\"ephemeral\":{\"events\":[{\"type\":\"m.receipt\",\"content\":{\"$");
    put_base64(out, random, 43);
    buffer_text(out, "\":{\"m.read\":{\"");
    put_user(out, random);
    buffer_format(out,
        "\":{\"ts\":%" PRIu64 "}}}}}]},\"account_data\":{\"events\":[]},"
        "\"unread_notifications\":{\"highlight_count\":%u,\"notification_count\":%u},"
        "\"summary\":{\"m.joined_member_count\":%u}}",
        1700000000000u + *io_number, count / 7, count, count * 3);
}

void body_sync(struct buffer *out)
{
    struct base_random random;
    uint64_t number = 0;
    bool first = true;

    base_random_init(&random, 2);
    buffer_text(out, "{\"next_batch\":\"s72595_4483_1935\",\"rooms\":{\"join\":{");
    while (out->size < SYNC_BYTES && out->failed == 0) {
        if (!first)
            buffer_text(out, ",");
        first = false;
        put_room(out, &random, &number);
    }
    buffer_text(out, "},\"invite\":{},\"leave\":{}},\"device_one_time_keys_count\":"
                        "{\"signed_curve25519\":50}}");
}
