/* SPDX-License-Identifier: Apache-2.0 */
/* mx_stage.h: what tests of matrix/crypto share: randomness from a seed, devices with a session. */
#ifndef TEST_LIB_MX_STAGE_H
#define TEST_LIB_MX_STAGE_H

#include <string.h>

#include "base/random.h"
#include "check.h"
#include "crypto/encoding.h"
#include "matrix/crypto/mxcrypto.h"

static inline void mx_stage_fill(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)base_random_next(data);
}

/* The random numbers of one case, from its seed. */
static inline const struct mx_random *mx_stage_random(void)
{
    static struct base_random dice;
    static const struct mx_random random = { .fill = mx_stage_fill, .data = &dice };

    if (dice.s[0] == 0 && dice.s[1] == 0)
        base_random_init(&dice, check_seed());
    return &random;
}

/* The bytes 0, 1, 2 and so on: for vectors that another program computes. */
static inline void mx_stage_count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}
#define MX_STAGE_COUNTING ((struct mx_random){ mx_stage_count_up, &(uint8_t){ 0 } })

static inline struct span mx_stage_span(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

static inline void mx_stage_check_text(const struct buffer *buffer, const char *text)
{
    CHECK_EQ_INT(buffer->failed, 0);
    CHECK_MSG(span_is(mx_stage_span(buffer), text), "\"%.*s\" is not \"%s\"", (int)buffer->size,
        buffer->bytes == NULL ? "" : buffer->bytes, text);
}

/* Decode hex into at least `size` bytes. */
static inline void mx_stage_hex(const char *hex, void *bytes, size_t size)
{
    size_t written = 0;

    CHECK_EQ_INT(crypto_hex_decode(span_of(hex), bytes, size, &written), 0);
    CHECK_EQ_U64(written, size);
}

/* Two devices; bob has one-time keys. */
struct mx_stage {
    struct mx_account *alice;
    struct mx_account *bob;
    struct mx_olm *to_bob;   /* alice's session */
    struct mx_olm *to_alice; /* bob's session; NULL until he has a message */
};

static inline void mx_stage_init(struct mx_stage *stage)
{
    struct mx_one_time_key key;

    *stage = (struct mx_stage){ 0 };
    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &stage->alice), 0);
    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &stage->bob), 0);
    CHECK_EQ_INT(mx_account_add_one_time_keys(stage->bob, 3, mx_stage_random()), 0);
    CHECK(mx_account_one_time_key_at(stage->bob, 1, &key));
    CHECK_EQ_INT(mx_olm_create_outbound(stage->alice, mx_account_identity_key(stage->bob), &key.key,
                     mx_stage_random(), &stage->to_bob),
        0);
}

static inline void mx_stage_fini(struct mx_stage *stage)
{
    mx_olm_destroy(stage->to_bob);
    mx_olm_destroy(stage->to_alice);
    mx_account_destroy(stage->alice);
    mx_account_destroy(stage->bob);
}

static inline enum mx_olm_type mx_stage_send(
    struct mx_olm *olm, const char *text, struct buffer *body)
{
    enum mx_olm_type type;

    buffer_clear(body);
    CHECK_EQ_INT(mx_olm_encrypt(olm, span_of(text), mx_stage_random(), &type, body), 0);
    return type;
}

static inline void mx_stage_receive(
    struct mx_olm *olm, enum mx_olm_type type, const struct buffer *body, const char *text)
{
    struct buffer plaintext = { 0 };

    CHECK_EQ_INT(mx_olm_decrypt(olm, type, mx_stage_span(body), &plaintext), 0);
    mx_stage_check_text(&plaintext, text);
    mx_wipe_buffer(&plaintext);
}

/* Bob takes alice's first message, so that both have a session. */
static inline void mx_stage_meet(struct mx_stage *stage)
{
    struct buffer body = { 0 }, plaintext = { 0 };

    CHECK_EQ_INT(mx_stage_send(stage->to_bob, "hello", &body), MX_OLM_PRE_KEY);
    CHECK_EQ_INT(mx_olm_create_inbound(stage->bob, mx_account_identity_key(stage->alice),
                     mx_stage_span(&body), &stage->to_alice, &plaintext),
        0);
    mx_stage_check_text(&plaintext, "hello");
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
}

#endif
