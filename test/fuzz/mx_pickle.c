/* SPDX-License-Identifier: Apache-2.0 */
/* mx_pickle.c: pickles of all kinds, by the first byte: any bytes, or any members under a right
 * seal, as a database of another version could have them. An accepted object must pickle to the
 * same members and be usable. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "matrix/crypto/mx_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}
#define COUNTING (&(struct mx_random){ count_up, &(uint8_t){ 0 } })

static const struct mx_pickle_key key = { { 1 } };

static struct span span_of_buffer(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

/* A kind whose one member is all of the input. */
struct raw {
    struct span members;
};
static void raw_pack(struct mx__pack *pack, void *object)
{
    struct raw *raw = object;
    char *copy = malloc(raw->members.size + 1);

    tr_assert(copy != NULL && pack->mode != MX__PACK_READ);
    memcpy(copy, raw->members.at, raw->members.size);
    mx__pack_bytes(pack, copy, raw->members.size);
    free(copy);
}

static void check_same(struct buffer *again, struct span pickle, bool is_sealed_here)
{
    if (is_sealed_here) /* with the same salt */
        tr_assert(again->size == pickle.size && memcmp(again->bytes, pickle.at, pickle.size) == 0);
    buffer_free(again);
}

static void try_account(struct span pickle, bool is_sealed_here)
{
    struct mx_account *account = NULL;
    struct buffer again = { 0 };

    if (mx_account_unpickle(pickle, &key, &account) != 0)
        return;
    tr_assert(mx_account_pickle(account, &key, COUNTING, &again) == 0);
    check_same(&again, pickle, is_sealed_here);
    tr_assert(mx_account_add_one_time_keys(account, 1, COUNTING) == 0);
    mx_account_skip_key_ids(account, 1);
    mx_account_rotate_fallback(account, COUNTING);
    mx_account_destroy(account);
}

static void try_olm(struct span pickle, bool is_sealed_here)
{
    struct buffer again = { 0 }, body = { 0 }, plaintext = { 0 };
    struct mx_olm *olm = NULL;
    enum mx_olm_type type;

    if (mx_olm_unpickle(pickle, &key, &olm) != 0)
        return;
    tr_assert(mx_olm_pickle(olm, &key, COUNTING, &again) == 0);
    check_same(&again, pickle, is_sealed_here);
    if (mx_olm_encrypt(olm, SPAN("text"), COUNTING, &type, &body) == 0)
        (void)mx_olm_decrypt(olm, type, span_of_buffer(&body), &plaintext);
    buffer_free(&body);
    buffer_free(&plaintext);
    mx_olm_destroy(olm);
}

static void try_outbound(struct span pickle, bool is_sealed_here)
{
    struct buffer again = { 0 }, body = { 0 };
    struct mx_outbound *outbound = NULL;

    if (mx_outbound_unpickle(pickle, &key, &outbound) != 0)
        return;
    tr_assert(mx_outbound_pickle(outbound, &key, COUNTING, &again) == 0);
    check_same(&again, pickle, is_sealed_here);
    (void)mx_outbound_encrypt(outbound, SPAN("text"), &body);
    buffer_free(&body);
    mx_outbound_destroy(outbound);
}

static void try_inbound(struct span pickle, bool is_sealed_here)
{
    struct buffer again = { 0 }, out = { 0 };
    struct mx_inbound *inbound = NULL;

    if (mx_inbound_unpickle(pickle, &key, &inbound) != 0)
        return;
    tr_assert(mx_inbound_pickle(inbound, &key, COUNTING, &again) == 0);
    check_same(&again, pickle, is_sealed_here);
    tr_assert(mx_inbound_export(inbound, UINT32_MAX, &out) == 0);
    buffer_free(&out);
    mx_inbound_destroy(inbound);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void (*const tries[])(struct span pickle, bool is_sealed_here) = { try_account, try_olm,
        try_outbound, try_inbound };
    struct buffer sealed = { 0 };
    struct raw raw;
    unsigned kind;

    if (size == 0)
        return 0;
    kind = data[0] % 4;
    raw.members = (struct span){ (const char *)data + 1, size - 1 };
    if (data[0] >= 128) {
        tries[kind](raw.members, false);
        return 0;
    }
    if (size > 1 << 19) /* more than a pickle has */
        return 0;
    tr_assert(mx__pickle(
                  &(struct mx__pickle_kind){
                      .id = (uint8_t)(kind + 1), .size = sizeof raw, .pack = raw_pack },
                  &raw, &key, COUNTING, &sealed) == 0);
    tries[kind](span_of_buffer(&sealed), true);
    buffer_free(&sealed);
    return 0;
}
