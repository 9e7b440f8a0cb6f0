/* SPDX-License-Identifier: Apache-2.0 */
/* What sendMessage carries: a bare message, or Catbird's envelope around it: its length in four
 * bytes, the message, zeros up to the bucket. Stored is what was sent; anything else is refused,
 * and nothing of it is stored. */
#include "convo_acts.h"
#include "services/delivery/mls/mls_message.h"

enum { NO_LENGTH = -1, REAL_LENGTH = -2 };

/* Of g1 at epoch 1, unless said otherwise. */
struct envelope {
    size_t total;       /* 0: as large as it comes out */
    int64_t length;     /* in front; REAL_LENGTH, or NO_LENGTH for a bare one */
    size_t message;     /* bytes of the message inside; 0: a short one */
    unsigned content;   /* 0: application */
    const char *group;  /* NULL: g1 */
    size_t dirty;       /* this byte is not zero; counted from the end, from 1 */
    int64_t said_epoch; /* in the request; 0: 1 */
    int64_t padded;     /* in the request; 0: not said */
};

static struct buffer message_of(const struct envelope *with)
{
    char secret[8192] = "said", *text;
    struct buffer bytes = { 0 };
    size_t size = 0;

    /* A longer secret makes a longer message, but for what its length takes. */
    for (size_t chars = 4; chars + 1 < sizeof secret; chars++) {
        memset(secret, 's', chars);
        secret[chars] = '\0';
        text = private_message(with->group == NULL ? "g1" : with->group, 1,
            with->content == 0 ? MLS_APPLICATION : with->content, secret);
        CHECK(buffer_reserve(&bytes, strlen(text)) != NULL);
        CHECK_EQ_INT(crypto_base64_decode(span_of(text), bytes.bytes, strlen(text), &size), 0);
        free(text);
        if (with->message == 0 || size >= with->message)
            break;
    }
    bytes.size = size;
    CHECK(with->message == 0 || size == with->message);
    return bytes;
}

static struct buffer envelope_make(const struct envelope *with)
{
    struct buffer message = message_of(with), bytes = { 0 };
    int64_t length = with->length == REAL_LENGTH ? (int64_t)message.size : with->length;

    if (length != NO_LENGTH)
        mls_put_number(&bytes, (uint64_t)length, 4);
    buffer_append(&bytes, message.bytes, message.size);
    while (bytes.size < with->total)
        buffer_append(&bytes, "", 1);
    CHECK(bytes.failed == 0 && (with->total == 0 || bytes.size == with->total));
    if (with->dirty > 0)
        bytes.bytes[bytes.size - with->dirty] = 1;
    buffer_free(&message);
    return bytes;
}

static char *base64_of(const struct buffer *bytes)
{
    char *text = malloc(crypto_base64_size(bytes->size) + 1);

    CHECK(text != NULL);
    text[crypto_base64_encode(bytes->bytes, bytes->size, text)] = '\0';
    return text;
}

/* Send it; if it is taken, it comes back as it was sent. */
static void send_it(
    struct cast *cast, const struct envelope *with, unsigned status, const char *part)
{
    static unsigned number;
    struct buffer bytes = envelope_make(with), body = { 0 };
    char *text = base64_of(&bytes);
    struct web_answer answer;

    buffer_format(&body,
        "{\"convoId\":\"g1\",\"msgId\":\"m%u\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":%lld",
        ++number, text, (long long)(with->said_epoch == 0 ? 1 : with->said_epoch));
    if (with->padded != 0)
        buffer_format(&body, ",\"paddedSize\":%lld", (long long)with->padded);
    buffer_append(&body, "}", 2);
    CHECK_EQ_INT(body.failed, 0);
    answer = caller_ask(&cast->site, &cast->bob, "sendMessage", body.bytes);
    CHECK_MSG(answer.status == status && strstr(answer.body, part) != NULL,
        "%zu bytes: wanted %u with '%s', got:\n%s", bytes.size, status, part, answer.text);
    if (status == 200) {
        char call[96];
        long long seq = strtoll(strstr(answer.body, "\"seq\":") + 6, NULL, 10);

        (void)snprintf(call, sizeof call, "getMessages?convoId=g1&sinceSeq=%lld", seq - 1);
        expect(&cast->site, &cast->cyd, call, NULL, 200, text);
    }
    web_answer_free(&answer);
    buffer_free(&body);
    buffer_free(&bytes);
    free(text);
}

static int64_t stored_messages(const struct cast *cast)
{
    return stored(&cast->site, "SELECT COUNT(*) FROM log WHERE kind = 1");
}

TEST(envelope, of_a_bucket_is_taken_and_kept_as_it_was_sent)
{
    static const size_t buckets[] = { 512, 1024, 2048, 4096, 8192, 16384, 24576 };
    enum { BUCKETS = sizeof buckets / sizeof buckets[0] };
    struct cast cast;

    cast_begin(&cast);
    for (size_t i = 0; i < BUCKETS; i++)
        send_it(
            &cast, &(struct envelope){ .total = buckets[i], .length = REAL_LENGTH }, 200, "seq");
    /* To the brim; with its size said; and without an envelope, of whatever size. */
    send_it(
        &cast, &(struct envelope){ .total = 512, .length = REAL_LENGTH, .message = 508 }, 200, "");
    send_it(
        &cast, &(struct envelope){ .total = 512, .length = REAL_LENGTH, .padded = 512 }, 200, "");
    send_it(&cast, &(struct envelope){ .length = NO_LENGTH }, 200, "seq");
    send_it(&cast, &(struct envelope){ .length = NO_LENGTH, .message = 513 }, 200, "seq");
    CHECK_EQ_INT(stored_messages(&cast), BUCKETS + 4);
    cast_end(&cast);
}

TEST(envelope, of_another_size_is_refused)
{
    static const size_t sizes[] = { 256, 511, 513, 1023, 1536, 4095, 6144, 8191, 8193, 12288 };
    struct cast cast;

    cast_begin(&cast);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        send_it(&cast, &(struct envelope){ .total = sizes[i], .length = REAL_LENGTH }, 400,
            "\"error\":\"InvalidMessage\",\"message\":\"A padded message must have 512");
    send_it(&cast, &(struct envelope){ .total = 512, .length = REAL_LENGTH, .padded = 1024 }, 400,
        "InvalidRequest");
    CHECK_EQ_INT(stored_messages(&cast), 0);
    cast_end(&cast);
}

TEST(envelope, whose_padding_is_not_zeros_is_refused)
{
    struct cast cast;
    struct buffer message;
    size_t first;

    cast_begin(&cast);
    message = message_of(&(struct envelope){ 0 });
    first = 512 - 4 - message.size; /* right behind the message */
    buffer_free(&message);
#define DIRTY(at) &(struct envelope){ .total = 512, .length = REAL_LENGTH, .dirty = (at) }
    send_it(&cast, DIRTY(1), 400, "\"message\":\"The padding is not all zeros.\"");
    send_it(&cast, DIRTY(first / 2), 400, "InvalidMessage");
    send_it(&cast, DIRTY(first), 400, "InvalidMessage");
    CHECK_EQ_INT(stored_messages(&cast), 0);
    cast_end(&cast);
}

TEST(envelope, whose_length_is_not_the_messages_is_refused)
{
    struct cast cast;
    struct buffer message;
    int64_t size;

    cast_begin(&cast);
    message = message_of(&(struct envelope){ 0 });
    size = (int64_t)message.size;
    buffer_free(&message);
#define LENGTH(is) &(struct envelope){ .total = 512, .length = (is) }
    send_it(&cast, LENGTH(0), 400, "InvalidMessage");
    send_it(&cast, LENGTH(1), 400, "InvalidMessage");
    send_it(&cast, LENGTH(size - 1), 400, "InvalidMessage");
    send_it(&cast, LENGTH(size + 1), 400, "InvalidMessage");
    send_it(&cast, LENGTH(508), 400, "InvalidMessage");
    send_it(&cast, LENGTH(509), 400,
        "The ciphertext must be an MLS message (RFC 9420), or one padded to a bucket.");
    send_it(&cast, LENGTH(512), 400, "must be an MLS message");
    send_it(&cast, LENGTH(0x7fffffff), 400, "must be an MLS message");
    send_it(&cast, LENGTH(0xffffffff), 400, "must be an MLS message");
    CHECK_EQ_INT(stored_messages(&cast), 0);
    cast_end(&cast);
}

/* The server looks inside: the envelope hides nothing from the rules for bare messages. */
TEST(envelope, is_opened_before_the_message_is_judged)
{
    struct cast cast;

    cast_begin(&cast);
#define PADDED .total = 512, .length = REAL_LENGTH
    send_it(&cast, &(struct envelope){ PADDED, .content = MLS_COMMIT }, 400, "InvalidMessage");
    send_it(&cast, &(struct envelope){ PADDED, .content = MLS_PROPOSAL }, 400, "InvalidMessage");
    send_it(&cast, &(struct envelope){ PADDED, .group = "g2" }, 400, "belongs to another group");
    send_it(&cast, &(struct envelope){ PADDED, .said_epoch = 2 }, 400, "InvalidRequest");
    CHECK_EQ_INT(stored_messages(&cast), 0);
    cast_end(&cast);
}
