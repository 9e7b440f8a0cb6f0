/* SPDX-License-Identifier: Apache-2.0 */
/* pickle.c: objects as bytes for a database. The format is our own:
 *
 *     "MXP" version(1) kind(1) salt(16) | AES-256-GCM of the members | tag(16)
 *
 * The highest bit of the kind says that the backend libolm wrote the members. The first 21 bytes are
 * authenticated with the rest; of a text also its place in the database. Key and nonce are HKDF(salt,
 * key of the host), so no two pickles share them, however many there are. */
#include <openssl/err.h>
#include <openssl/evp.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

enum {
    PICKLE_VERSION = 1,
    PICKLE_SALT_BYTES = 16,
    PICKLE_HEAD_BYTES = 5 + PICKLE_SALT_BYTES,
    PICKLE_TAG_BYTES = 16,
    PICKLE_BYTES_MAX = 1 << 20, /* an account with MX_ONE_TIME_KEYS_MAX keys has half of it */
    PICKLE_LIBOLM = 0x80,
};

/* ---- members --------------------------------------------------------------------------------- */

void *mx__pack_place(struct mx__pack *pack, size_t size)
{
    char *place = NULL;

    if (pack->mode == MX__PACK_WRITE && (place = buffer_reserve(&pack->bytes, size)) != NULL)
        buffer_grew(&pack->bytes, size);
    if (pack->mode == MX__PACK_READ && pack->rc == 0) {
        if (pack->bytes.size - pack->used < size)
            pack->rc = MX_EFORMAT;
        else
            place = pack->bytes.bytes + pack->used;
    }
    pack->used += size;
    return place;
}

void mx__pack_bytes(struct mx__pack *pack, void *bytes, size_t size)
{
    void *place = mx__pack_place(pack, size);

    if (place != NULL && pack->mode == MX__PACK_WRITE)
        memcpy(place, bytes, size);
    else if (place != NULL)
        memcpy(bytes, place, size);
}

void mx__pack_u64(struct mx__pack *pack, uint64_t *number)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(*number >> (56 - 8 * i));
    mx__pack_bytes(pack, bytes, sizeof bytes);
    for (int i = 0; pack->mode == MX__PACK_READ && i < 8; i++)
        *number = *number << 8 | bytes[i];
}

void mx__pack_u32(struct mx__pack *pack, uint32_t *number, uint32_t max)
{
    uint64_t wide = *number;

    mx__pack_u64(pack, &wide);
    if (wide <= max)
        *number = (uint32_t)wide;
    else if (pack->rc == 0)
        pack->rc = MX_EFORMAT;
}

void mx__pack_bool(struct mx__pack *pack, bool *truth)
{
    uint32_t number = *truth;

    mx__pack_u32(pack, &number, 1);
    *truth = number == 1;
}

void mx__pack_key_pair(struct mx__pack *pack, struct mx__key_pair *pair)
{
    mx__pack_bytes(pack, pair->public_key.bytes, sizeof pair->public_key.bytes);
    mx__pack_bytes(pack, pair->secret, sizeof pair->secret);
}

void mx__pack_signing_pair(struct mx__pack *pack, struct mx__signing_pair *pair)
{
    mx__pack_bytes(pack, pair->public_key.bytes, sizeof pair->public_key.bytes);
    mx__pack_bytes(pack, pair->secret, sizeof pair->secret);
}

void mx__pack_ratchet(struct mx__pack *pack, struct mx__ratchet *ratchet)
{
    mx__pack_bytes(pack, ratchet->parts, sizeof ratchet->parts);
    mx__pack_u32(pack, &ratchet->index, UINT32_MAX);
}

/* ---- encryption ------------------------------------------------------------------------------ */

struct pickle_secret {
    uint8_t key[32];
    uint8_t nonce[16]; /* GCM uses 12 */
};

/* Create a context that has authenticated the head and `about`; NULL when out of memory. */
static EVP_CIPHER_CTX *pickle_cipher(const struct mx_pickle_key *key, bool encrypts,
    const uint8_t head[PICKLE_HEAD_BYTES], struct span about)
{
    const struct span salt = { (const char *)head + 5, PICKLE_SALT_BYTES };
    struct pickle_secret secret;
    EVP_CIPHER_CTX *gcm;
    int written;

    mx__hkdf(salt, MX__BYTES(key->bytes), SPAN("TROUPE_MX_PICKLE"), &secret, sizeof secret);
    gcm = mx__aes_create(MX__AES_GCM, encrypts, secret.key, secret.nonce);
    crypto_wipe(&secret, sizeof secret);
    if (gcm != NULL && EVP_CipherUpdate(gcm, NULL, &written, head, PICKLE_HEAD_BYTES) == 1 &&
        (about.size == 0 ||
            EVP_CipherUpdate(gcm, NULL, &written, (const uint8_t *)about.at, (int)about.size) == 1))
        return gcm;
    mx__aes_destroy(gcm);
    return NULL;
}

static int pickle_seal(const struct mx_pickle_key *key, const uint8_t head[PICKLE_HEAD_BYTES],
    struct span about, struct span members, struct buffer *out)
{
    char *at = buffer_reserve(out, PICKLE_HEAD_BYTES + members.size + PICKLE_TAG_BYTES);
    uint8_t *body;
    EVP_CIPHER_CTX *gcm;
    int last = 0, rc;

    if (at == NULL)
        return out->failed;
    gcm = pickle_cipher(key, true, head, about);
    if (gcm == NULL)
        return TR_ENOMEM;
    memcpy(at, head, PICKLE_HEAD_BYTES);
    body = (uint8_t *)at + PICKLE_HEAD_BYTES;
    mx__aes_update(gcm, members, body);
    rc =
        EVP_CipherFinal_ex(gcm, body + members.size, &last) == 1 &&
        EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_AEAD_GET_TAG, PICKLE_TAG_BYTES, body + members.size) == 1;
    tr_assert(rc == 1 && last == 0);
    mx__aes_destroy(gcm);
    buffer_grew(out, PICKLE_HEAD_BYTES + members.size + PICKLE_TAG_BYTES);
    return 0;
}

static int pickle_open(
    const struct mx_pickle_key *key, struct span pickle, struct span about, struct buffer *members)
{
    const size_t size = pickle.size - PICKLE_HEAD_BYTES - PICKLE_TAG_BYTES;
    const uint8_t *head = (const uint8_t *)pickle.at;
    uint8_t tag[PICKLE_TAG_BYTES];
    char *out = buffer_reserve(members, size + 1);
    EVP_CIPHER_CTX *gcm;
    int last = 0, rc = 0;

    if (out == NULL)
        return members->failed;
    gcm = pickle_cipher(key, false, head, about);
    if (gcm == NULL)
        return TR_ENOMEM;
    mx__aes_update(gcm, (struct span){ pickle.at + PICKLE_HEAD_BYTES, size }, (uint8_t *)out);
    memcpy(tag, head + PICKLE_HEAD_BYTES + size, sizeof tag);
    if (EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_AEAD_SET_TAG, sizeof tag, tag) != 1 ||
        EVP_CipherFinal_ex(gcm, (uint8_t *)out + size, &last) != 1) {
        ERR_clear_error();
        crypto_wipe(out, size); /* not authenticated, yet it may be the text */
        rc = MX_EMAC;
    }
    mx__aes_destroy(gcm);
    if (rc == 0)
        buffer_grew(members, size);
    return rc;
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Return the byte of a kind in this build. All objects of a backend are marked, also the account,
 * which is ours in both: it is loaded first, so a store of the other backend is refused as a whole. */
static uint8_t pickle_kind_byte(const struct mx__pickle_kind *kind)
{
    bool is_libolm = mx_backend == MX_BACKEND_LIBOLM && !kind->is_shared;

    return is_libolm ? kind->id | PICKLE_LIBOLM : kind->id;
}

int mx__pickle(const struct mx__pickle_kind *kind, const void *object,
    const struct mx_pickle_key *key, const struct mx_random *random, struct buffer *out)
{
    uint8_t head[PICKLE_HEAD_BYTES] = { 'M', 'X', 'P', PICKLE_VERSION, pickle_kind_byte(kind) };
    struct mx__pack pack = { .mode = MX__PACK_COUNT };
    void *copy = base_alloc(kind->size); /* `pack` also reads: it must not see a const object */
    int rc = TR_ENOMEM;

    if (copy == NULL)
        return TR_ENOMEM;
    memcpy(copy, object, kind->size);
    kind->pack(&pack, copy);
    tr_assert(pack.used <= PICKLE_BYTES_MAX - PICKLE_HEAD_BYTES - PICKLE_TAG_BYTES);
    pack.mode = MX__PACK_WRITE;
    /* The room is made once: a buffer that grows leaves copies of the secrets behind. */
    if (buffer_reserve(&pack.bytes, pack.used) != NULL) {
        kind->pack(&pack, copy);
        tr_assert(pack.rc == 0 && pack.bytes.failed == 0);
        random->fill(random->data, head + 5, PICKLE_SALT_BYTES);
        rc = pickle_seal(
            key, head, SPAN(""), (struct span){ pack.bytes.bytes, pack.bytes.size }, out);
    }
    mx_wipe_buffer(&pack.bytes);
    crypto_wipe(copy, kind->size);
    base_free(copy);
    return rc;
}

static int pickle_check_head(uint8_t kind, struct span pickle)
{
    if (pickle.size > PICKLE_BYTES_MAX)
        return MX_ETOOBIG;
    if (pickle.size < PICKLE_HEAD_BYTES + PICKLE_TAG_BYTES || memcmp(pickle.at, "MXP", 3) != 0)
        return MX_EFORMAT;
    if (pickle.at[3] != PICKLE_VERSION)
        return MX_EVERSION;
    if ((uint8_t)pickle.at[4] == (kind ^ PICKLE_LIBOLM))
        return MX_EBACKEND;
    return (uint8_t)pickle.at[4] == kind ? 0 : MX_EFORMAT;
}

int mx__unpickle(const struct mx__pickle_kind *kind, struct span pickle,
    const struct mx_pickle_key *key, void **ret_object)
{
    struct mx__pack pack = { .mode = MX__PACK_READ };
    void *object;
    int rc = pickle_check_head(pickle_kind_byte(kind), pickle);

    if (rc != 0)
        return rc;
    object = base_calloc(kind->size);
    rc = object == NULL ? TR_ENOMEM : pickle_open(key, pickle, SPAN(""), &pack.bytes);
    if (rc == 0) {
        kind->pack(&pack, object);
        rc = pack.rc == 0 && pack.used != pack.bytes.size ? MX_EFORMAT : pack.rc;
    }
    mx_wipe_buffer(&pack.bytes);
    if (rc == 0)
        *ret_object = object;
    else if (object != NULL) {
        if (kind->release != NULL)
            kind->release(object);
        crypto_wipe(object, kind->size);
        base_free(object);
    }
    return rc;
}

/* ---- secrets --------------------------------------------------------------------------------- */

struct pickle_text {
    uint32_t size;
    uint8_t bytes[MX_SECRET_BYTES_MAX];
};

static void pickle_text_pack(struct mx__pack *pack, void *object)
{
    struct pickle_text *text = object;

    mx__pack_u32(pack, &text->size, MX_SECRET_BYTES_MAX);
    mx__pack_bytes(pack, text->bytes, text->size);
}

static const struct mx__pickle_kind pickle_text_kind = {
    .id = 5,
    .is_shared = true,
    .size = sizeof(struct pickle_text),
    .pack = pickle_text_pack,
};

int mx_secret_seal(struct span secret, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out)
{
    struct pickle_text text;
    int rc;

    if (secret.size > sizeof text.bytes)
        return MX_ETOOBIG;
    text.size = (uint32_t)secret.size;
    if (secret.size > 0)
        memcpy(text.bytes, secret.at, secret.size);
    rc = mx__pickle(&pickle_text_kind, &text, key, random, out);
    crypto_wipe(text.bytes, secret.size);
    return rc;
}

int mx_secret_open(struct span sealed, const struct mx_pickle_key *key, struct buffer *secret)
{
    struct pickle_text *text;
    void *object = NULL;
    int rc = mx__unpickle(&pickle_text_kind, sealed, key, &object);

    if (rc != 0)
        return rc;
    text = object;
    rc = buffer_append(secret, text->bytes, text->size);
    crypto_wipe(text, sizeof *text);
    base_free(text);
    return rc;
}

/* ---- texts ----------------------------------------------------------------------------------- */

enum { PICKLE_TEXT = 6 }; /* beside the ids of the kinds */

int mx_text_seal(struct span text, struct span about, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out)
{
    uint8_t head[PICKLE_HEAD_BYTES] = { 'M', 'X', 'P', PICKLE_VERSION, PICKLE_TEXT };

    if (text.size > MX_TEXT_BYTES_MAX || about.size > MX_TEXT_BYTES_MAX)
        return MX_ETOOBIG;
    random->fill(random->data, head + 5, PICKLE_SALT_BYTES);
    return pickle_seal(key, head, about, text, out);
}

int mx_text_open(
    struct span sealed, struct span about, const struct mx_pickle_key *key, struct buffer *text)
{
    int rc = pickle_check_head(PICKLE_TEXT, sealed);

    if (rc == 0 && about.size > MX_TEXT_BYTES_MAX)
        rc = MX_ETOOBIG;
    return rc == 0 ? pickle_open(key, sealed, about, text) : rc;
}
