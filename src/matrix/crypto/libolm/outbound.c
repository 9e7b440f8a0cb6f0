/* SPDX-License-Identifier: Apache-2.0 */
/* outbound.c: the sending side of a Megolm session, by libolm. The last message index is not used,
 * as in our own code: libolm alone would begin at 0 again. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/libolm/libolm.h"

enum { OUTBOUND_RANDOM_BYTES = MX__RATCHET_BYTES + 32 };

MX__LIBOLM_TYPE(outbound_group_session, OlmOutboundGroupSession)

struct mx_outbound {
    OlmOutboundGroupSession *session; /* owned */
};

int mx_outbound_create(const struct mx_random *random, struct mx_outbound **ret_outbound)
{
    uint8_t bytes[OUTBOUND_RANDOM_BYTES];
    struct mx_outbound *outbound = base_calloc(sizeof *outbound);
    size_t rc;

    if (outbound == NULL)
        return TR_ENOMEM;
    outbound->session = mx__libolm_create(&libolm_outbound_group_session);
    if (outbound->session == NULL) {
        base_free(outbound);
        return TR_ENOMEM;
    }
    tr_assert(olm_init_outbound_group_session_random_length(outbound->session) == sizeof bytes);
    random->fill(random->data, bytes, sizeof bytes);
    rc = olm_init_outbound_group_session(outbound->session, bytes, sizeof bytes);
    tr_assert(rc != olm_error());
    crypto_wipe(bytes, sizeof bytes);
    *ret_outbound = outbound;
    return 0;
}

static void outbound_release(void *object)
{
    mx__libolm_destroy(&libolm_outbound_group_session, ((struct mx_outbound *)object)->session);
}

void mx_outbound_destroy(struct mx_outbound *outbound)
{
    if (outbound != NULL)
        outbound_release(outbound);
    base_free(outbound);
}

void mx_outbound_id(const struct mx_outbound *outbound, char ret_id[MX_SESSION_ID_CHARS + 1])
{
    size_t size =
        olm_outbound_group_session_id(outbound->session, (uint8_t *)ret_id, MX_SESSION_ID_CHARS);

    tr_assert(size == MX_SESSION_ID_CHARS);
    ret_id[size] = '\0';
}

uint32_t mx_outbound_index(const struct mx_outbound *outbound)
{
    return olm_outbound_group_session_message_index(outbound->session);
}

int mx_outbound_key(const struct mx_outbound *outbound, struct buffer *key)
{
    char *text = buffer_reserve(key, MX_SESSION_KEY_CHARS);
    size_t size;

    if (text == NULL)
        return key->failed;
    size = olm_outbound_group_session_key(outbound->session, (uint8_t *)text, MX_SESSION_KEY_CHARS);
    tr_assert(size == MX_SESSION_KEY_CHARS);
    buffer_grew(key, size);
    return 0;
}

int mx_outbound_encrypt(struct mx_outbound *outbound, struct span plaintext, struct buffer *body)
{
    size_t size, written;
    char *text;

    if (plaintext.size > MX_PLAINTEXT_BYTES_MAX)
        return MX_ETOOBIG;
    if (mx_outbound_index(outbound) == UINT32_MAX)
        return MX_EEXHAUSTED;
    size = olm_group_encrypt_message_length(outbound->session, plaintext.size);
    text = buffer_reserve(body, size);
    if (text == NULL)
        return body->failed;
    written = olm_group_encrypt(
        outbound->session, (const uint8_t *)plaintext.at, plaintext.size, (uint8_t *)text, size);
    tr_assert(written == size);
    buffer_grew(body, size);
    return 0;
}

static void outbound_pack(struct mx__pack *pack, void *object)
{
    struct mx_outbound *outbound = object;
    void *session = outbound->session;

    mx__libolm_pack(pack, &libolm_outbound_group_session, &session);
    outbound->session = session;
}

static const struct mx__pickle_kind outbound_kind = {
    .id = 3,
    .size = sizeof(struct mx_outbound),
    .pack = outbound_pack,
    .release = outbound_release,
};
MX__PICKLE(outbound, outbound_kind)
