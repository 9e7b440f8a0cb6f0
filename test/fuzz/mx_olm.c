/* SPDX-License-Identifier: Apache-2.0 */
/* mx_olm.c: Olm messages, pre-key and normal, as bytes or as base64, by the first byte. A refused
 * message must leave the account and the session as they were. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "matrix/crypto/mxcrypto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static const struct mx_pickle_key key = { { 1 } };
static struct buffer account_pickle, session_pickle;
static struct mx_key alice_key;

static struct span span_of_buffer(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

/* Pickle with the same salt each time, so that equal objects give equal bytes. */
static struct buffer pickle_account(const struct mx_account *account)
{
    struct mx_random random = { count_up, &(uint8_t){ 0 } };
    struct buffer pickle = { 0 };

    tr_assert(mx_account_pickle(account, &key, &random, &pickle) == 0);
    return pickle;
}

static struct buffer pickle_session(const struct mx_olm *olm)
{
    struct mx_random random = { count_up, &(uint8_t){ 0 } };
    struct buffer pickle = { 0 };

    tr_assert(mx_olm_pickle(olm, &key, &random, &pickle) == 0);
    return pickle;
}

/* Bob's account and his session with alice, who has answered once. */
static void set_up(void)
{
    struct mx_random random = { count_up, &(uint8_t){ 0 } };
    struct mx_account *alice = NULL, *bob = NULL;
    struct mx_olm *to_bob = NULL, *to_alice = NULL;
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_one_time_key one_time;
    enum mx_olm_type type;
    int rc = mx_account_create(&random, &alice) | mx_account_create(&random, &bob) |
             mx_account_add_one_time_keys(bob, 2, &random);

    tr_assert(rc == 0 && mx_account_one_time_key_at(bob, 0, &one_time));
    alice_key = *mx_account_identity_key(alice);
    rc = mx_olm_create_outbound(
        alice, mx_account_identity_key(bob), &one_time.key, &random, &to_bob);
    rc |= mx_olm_encrypt(to_bob, SPAN("hello"), &random, &type, &body);
    account_pickle = pickle_account(bob); /* it still has the key of that message */
    rc |= mx_olm_create_inbound(bob, &alice_key, span_of_buffer(&body), &to_alice, &plaintext);
    tr_assert(rc == 0);
    session_pickle = pickle_session(to_alice);
    mx_account_destroy(alice);
    mx_account_destroy(bob);
    mx_olm_destroy(to_bob);
    mx_olm_destroy(to_alice);
    buffer_free(&body);
    buffer_free(&plaintext);
}

static void check_unchanged(struct buffer *pickle, const struct buffer *before)
{
    tr_assert(
        pickle->size == before->size && memcmp(pickle->bytes, before->bytes, before->size) == 0);
    buffer_free(pickle);
}

static void try_inbound(struct span body)
{
    struct mx_account *account = NULL;
    struct buffer plaintext = { 0 }, after;
    struct mx_olm *olm = NULL;
    int rc = mx_account_unpickle(span_of_buffer(&account_pickle), &key, &account);

    tr_assert(rc == 0);
    rc = mx_olm_create_inbound(account, &alice_key, body, &olm, &plaintext);
    if (rc != 0) {
        tr_assert(olm == NULL && plaintext.size == 0);
        after = pickle_account(account);
        check_unchanged(&after, &account_pickle);
    } else
        tr_assert(mx_olm_matches(olm, body));
    buffer_free(&plaintext);
    mx_olm_destroy(olm);
    mx_account_destroy(account);
}

static void try_decrypt(enum mx_olm_type type, struct span body)
{
    struct buffer plaintext = { 0 }, after;
    struct mx_olm *olm = NULL;
    int rc = mx_olm_unpickle(span_of_buffer(&session_pickle), &key, &olm);

    tr_assert(rc == 0);
    (void)mx_olm_matches(olm, body);
    rc = mx_olm_decrypt(olm, type, body, &plaintext);
    if (rc != 0) {
        tr_assert(plaintext.size == 0);
        after = pickle_session(olm);
        check_unchanged(&after, &session_pickle);
    } else /* a message decrypts once */
        tr_assert(mx_olm_decrypt(olm, type, body, &plaintext) != 0);
    buffer_free(&plaintext);
    mx_olm_destroy(olm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buffer body = { 0 };

    if (session_pickle.size == 0)
        set_up();
    if (size == 0)
        return 0;
    if ((data[0] & 4) != 0)
        buffer_append(&body, data + 1, size - 1); /* any text */
    else
        mx_base64_encode(data + 1, size - 1, &body);
    if ((data[0] & 3) == 0)
        try_inbound(span_of_buffer(&body));
    else
        try_decrypt((data[0] & 3) == 1 ? MX_OLM_PRE_KEY : MX_OLM_NORMAL, span_of_buffer(&body));
    buffer_free(&body);
    return 0;
}
