/* SPDX-License-Identifier: Apache-2.0 */
/* inbound.c: the receiving side of a Megolm session, by libolm.
 *
 * 1. Our code checks formats, versions and signatures first: libolm accepts a signature in a second
 *    form (CVE-2024-45193). libolm checks them again.
 * 2. libolm counts indices in a ring and would advance a ratchet over its end. So a message must be
 *    less than 2^31 after the first one known; our own code has no such limit.
 * 3. A message with a right signature and a wrong MAC advances libolm's latest ratchet. All messages
 *    from the first index on stay readable. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/libolm/libolm.h"

enum { INBOUND_SPAN_BITS = 31 };

MX__LIBOLM_TYPE(inbound_group_session, OlmInboundGroupSession)

struct mx_inbound {
    OlmInboundGroupSession *session; /* owned */
    struct mx_key signing_key;
};

/* ---- creating -------------------------------------------------------------------------------- */

static void inbound_release(void *object)
{
    mx__libolm_destroy(&libolm_inbound_group_session, ((struct mx_inbound *)object)->session);
}

void mx_inbound_destroy(struct mx_inbound *inbound)
{
    if (inbound != NULL)
        inbound_release(inbound);
    base_free(inbound);
}

/* Take the signing key from the id. MX_EKEY. */
static int inbound_learn_key(struct mx_inbound *inbound)
{
    char id[MX_SESSION_ID_CHARS + 1];

    mx_inbound_id(inbound, id);
    return mx_key_parse(span_of(id), &inbound->signing_key);
}

typedef size_t inbound_init_fn(OlmInboundGroupSession *session, const uint8_t *text, size_t size);

static int inbound_from_text(
    inbound_init_fn *init, const struct buffer *text, struct mx_inbound **ret_inbound)
{
    struct mx_inbound *inbound = base_calloc(sizeof *inbound);
    int rc = TR_ENOMEM;

    if (inbound == NULL)
        return rc;
    inbound->session = mx__libolm_create(&libolm_inbound_group_session);
    if (inbound->session != NULL)
        rc = init(inbound->session, (const uint8_t *)text->bytes, text->size) != olm_error()
                 ? inbound_learn_key(inbound)
                 : mx__libolm_error(olm_inbound_group_session_last_error_code(inbound->session));
    if (rc == 0)
        *ret_inbound = inbound;
    else
        mx_inbound_destroy(inbound);
    return rc;
}

/* Write the bytes in the one form of base64 that libolm reads, and create the session. */
static int inbound_from_bytes(
    inbound_init_fn *init, const uint8_t *bytes, size_t size, struct mx_inbound **ret_inbound)
{
    struct buffer text = { 0 };
    int rc = mx_base64_encode(bytes, size, &text);

    if (rc == 0)
        rc = inbound_from_text(init, &text, ret_inbound);
    mx_wipe_buffer(&text);
    return rc;
}

int mx_inbound_create(struct span session_key, struct mx_inbound **ret_inbound)
{
    uint8_t bytes[MX__SESSION_KEY_BYTES];
    int rc = mx__session_key_read(session_key, bytes);

    if (rc == 0)
        rc = inbound_from_bytes(olm_init_inbound_group_session, bytes, sizeof bytes, ret_inbound);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

int mx_inbound_import(struct span session_export, struct mx_inbound **ret_inbound)
{
    uint8_t bytes[MX__SESSION_EXPORT_BYTES];
    int rc = mx__session_export_read(session_export, bytes);

    if (rc == 0)
        rc = inbound_from_bytes(olm_import_inbound_group_session, bytes, sizeof bytes, ret_inbound);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

/* ---- asking ---------------------------------------------------------------------------------- */

void mx_inbound_id(const struct mx_inbound *inbound, char ret_id[MX_SESSION_ID_CHARS + 1])
{
    size_t size =
        olm_inbound_group_session_id(inbound->session, (uint8_t *)ret_id, MX_SESSION_ID_CHARS);

    tr_assert(size == MX_SESSION_ID_CHARS);
    ret_id[size] = '\0';
}

uint32_t mx_inbound_first_index(const struct mx_inbound *inbound)
{
    return olm_inbound_group_session_first_known_index(inbound->session);
}

bool mx_inbound_is_verified(const struct mx_inbound *inbound)
{
    return olm_inbound_group_session_is_verified(inbound->session) != 0;
}

static bool inbound_has_index(const struct mx_inbound *inbound, uint32_t index)
{
    uint32_t first = mx_inbound_first_index(inbound);

    return index >= first && index - first < UINT32_C(1) << INBOUND_SPAN_BITS;
}

/* Write the export format from `index` on. MX_EINDEX. */
static int inbound_export_text(
    const struct mx_inbound *inbound, uint32_t index, char ret_text[MX_SESSION_EXPORT_CHARS])
{
    size_t size;

    if (!inbound_has_index(inbound, index))
        return MX_EINDEX;
    size = olm_export_inbound_group_session(
        inbound->session, (uint8_t *)ret_text, MX_SESSION_EXPORT_CHARS, index);
    tr_assert(size == MX_SESSION_EXPORT_CHARS);
    return 0;
}

int mx_inbound_export(const struct mx_inbound *inbound, uint32_t index, struct buffer *out)
{
    char *text = buffer_reserve(out, MX_SESSION_EXPORT_CHARS);
    int rc = text == NULL ? out->failed : inbound_export_text(inbound, index, text);

    if (rc == 0)
        buffer_grew(out, MX_SESSION_EXPORT_CHARS);
    return rc;
}

/* Both copies are exported from the later of their first indices: then equal texts are one ratchet
 * under one key. */
enum mx_copy mx_inbound_compare(const struct mx_inbound *inbound, const struct mx_inbound *other)
{
    uint32_t first = mx_inbound_first_index(inbound);
    uint32_t first_other = mx_inbound_first_index(other);
    uint32_t later = first > first_other ? first : first_other;
    char texts[2][MX_SESSION_EXPORT_CHARS];
    bool is_same = inbound_export_text(inbound, later, texts[0]) == 0 &&
                   inbound_export_text(other, later, texts[1]) == 0 &&
                   crypto_equal(texts[0], texts[1], sizeof texts[0]);

    crypto_wipe(texts, sizeof texts);
    if (!is_same)
        return MX_COPY_UNRELATED;
    if (first == first_other)
        return MX_COPY_EQUAL;
    return first_other < first ? MX_COPY_BETTER : MX_COPY_WORSE;
}

/* ---- decrypting ------------------------------------------------------------------------------ */

static int inbound_open(
    struct mx_inbound *inbound, struct span message, uint32_t index, struct buffer *plaintext)
{
    char *place = buffer_reserve(plaintext, message.size);
    struct buffer text = { 0 };
    uint32_t index_read = 0;
    size_t size;
    int rc;

    if (place == NULL)
        return plaintext->failed;
    rc = mx_base64_encode(message.at, message.size, &text);
    if (rc == 0) {
        size = olm_group_decrypt(inbound->session, (uint8_t *)text.bytes, text.size,
            (uint8_t *)place, message.size, &index_read);
        if (size == olm_error())
            rc = mx__libolm_error(olm_inbound_group_session_last_error_code(inbound->session));
        else if (index_read == index)
            buffer_grew(plaintext, size);
        else {
            crypto_wipe(place, size);
            rc = MX_EFORMAT; /* libolm reads another index than the one that was checked */
        }
    }
    buffer_free(&text);
    return rc;
}

int mx_inbound_decrypt(
    struct mx_inbound *inbound, struct span body, struct buffer *plaintext, uint32_t *ret_index)
{
    struct mx__megolm_message read;
    struct span message;
    uint8_t *decoded;
    int rc = mx__body_decode(body, &decoded, &message);

    if (rc != 0)
        return rc;
    rc = mx__megolm_read(message, &inbound->signing_key, &read);
    if (rc == 0 && !inbound_has_index(inbound, read.index))
        rc = MX_EINDEX;
    if (rc == 0)
        rc = inbound_open(inbound, message, read.index, plaintext);
    if (rc == 0)
        *ret_index = read.index;
    base_free(decoded);
    return rc;
}

/* ---- pickling -------------------------------------------------------------------------------- */

static void inbound_pack(struct mx__pack *pack, void *object)
{
    struct mx_inbound *inbound = object;
    void *session = inbound->session;

    mx__libolm_pack(pack, &libolm_inbound_group_session, &session);
    inbound->session = session;
    if (pack->mode == MX__PACK_READ && pack->rc == 0)
        pack->rc = inbound_learn_key(inbound);
}

static const struct mx__pickle_kind inbound_kind = {
    .id = 4,
    .size = sizeof(struct mx_inbound),
    .pack = inbound_pack,
    .release = inbound_release,
};
MX__PICKLE(inbound, inbound_kind)
