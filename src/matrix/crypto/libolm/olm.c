/* SPDX-License-Identifier: Apache-2.0 */
/* olm.c: a session between two devices, by libolm. The account stays ours, with its 5,000 one-time
 * keys and its ids: for each handshake its keys go into an account of libolm that lives no longer.
 *
 * 1. Our code reads every message first: libolm does not check the version of a pre-key message and
 *    reads through NULL if its identity key is missing. libolm sees the pre-key part as we write it
 *    again, so the two cannot read different fields. The inner message has a MAC and stays as it is.
 * 2. libolm agrees with keys of small order, so each key is checked before libolm gets it: a ratchet
 *    key too, which our own code would refuse at the next message that is sent.
 * 3. The limits of chains, skipped keys and gaps are those of mxcrypto.h. For a message over them and
 *    for a repeated one, libolm has one reason: MX_EMAC, where our own code says MX_EGAP or MX_EINDEX.
 * 4. libolm counts no end of a sending chain: after 2^32 messages without an answer, the peer refuses
 *    the next ones. Our own code says MX_EEXHAUSTED. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/libolm/libolm.h"

MX__LIBOLM_TYPE(session, OlmSession)
MX__LIBOLM_TYPE(account, OlmAccount)

struct mx_olm {
    OlmSession *session; /* owned */
    struct mx_key their_identity;
};

const enum mx_backend mx_backend = MX_BACKEND_LIBOLM;

/* ---- keys ------------------------------------------------------------------------------------ */

/* Check for small order: the agreement of such a key with any secret is zero. MX_EKEY. */
static int olm_check_key(const struct mx_key *key)
{
    struct mx__key_pair pair = { .secret = { 1 } };
    uint8_t shared[MX_KEY_BYTES];

    return mx__agree(&pair, key, shared);
}

/* Create an account of libolm with our identity key and a one-time key, or NULL for none. libolm
 * makes keys from the bytes that its caller calls random. NULL when out of memory. */
static OlmAccount *olm_account_of(
    const struct mx__key_pair *identity, const struct mx__key_pair *one_time)
{
    uint8_t bytes[2 * MX_KEY_BYTES] = {
        0
    }; /* a signing key, which sessions do not use; identity */
    OlmAccount *account = mx__libolm_create(&libolm_account);
    size_t rc;

    if (account == NULL)
        return NULL;
    tr_assert(olm_create_account_random_length(account) == sizeof bytes);
    memcpy(bytes + MX_KEY_BYTES, identity->secret, MX_KEY_BYTES);
    rc = olm_create_account(account, bytes, sizeof bytes);
    tr_assert(rc != olm_error());
    if (one_time != NULL) {
        memcpy(bytes, one_time->secret, MX_KEY_BYTES);
        rc = olm_account_generate_one_time_keys(account, 1, bytes, MX_KEY_BYTES);
        tr_assert(rc != olm_error());
    }
    crypto_wipe(bytes, sizeof bytes);
    return account;
}

/* Append a pre-key message as libolm writes it. */
static int olm_pre_key_text(const struct mx__olm_pre_key *pre_key, struct buffer *text)
{
    struct buffer message = { 0 };

    buffer_append(&message, &(uint8_t){ MX__MESSAGE_VERSION }, 1);
    mx__put_bytes(&message, 0x0a, MX__BYTES(pre_key->one_time_key.bytes));
    mx__put_bytes(&message, 0x12, MX__BYTES(pre_key->base_key.bytes));
    mx__put_bytes(&message, 0x1a, MX__BYTES(pre_key->identity.bytes));
    mx__put_bytes(&message, 0x22, pre_key->message);
    return mx__body_encode(&message, text);
}

static int olm_error_of(const struct mx_olm *olm)
{
    return mx__libolm_error(olm_session_last_error_code(olm->session));
}

/* ---- creating a session ---------------------------------------------------------------------- */

static void olm_release(void *object)
{
    mx__libolm_destroy(&libolm_session, ((struct mx_olm *)object)->session);
}

void mx_olm_destroy(struct mx_olm *olm)
{
    if (olm != NULL)
        olm_release(olm);
    base_free(olm);
}

/* Create a session without keys; NULL when out of memory. */
static struct mx_olm *olm_create(const struct mx_key *their_identity)
{
    struct mx_olm *olm = base_calloc(sizeof *olm);

    if (olm == NULL)
        return NULL;
    olm->their_identity = *their_identity;
    olm->session = mx__libolm_create(&libolm_session);
    if (olm->session != NULL)
        return olm;
    base_free(olm);
    return NULL;
}

/* Begin a session with an account of libolm, which the caller destroys. */
static int olm_begin(struct mx_olm *olm, const OlmAccount *account,
    const struct mx_key *their_one_time, const struct mx_random *random)
{
    char identity[MX_KEY_CHARS + 1], one_time[MX_KEY_CHARS + 1];
    uint8_t bytes[2 * MX_KEY_BYTES]; /* base key, ratchet key */
    size_t rc;

    tr_assert(olm_create_outbound_session_random_length(olm->session) == sizeof bytes);
    random->fill(random->data, bytes, sizeof bytes);
    mx_key_text(&olm->their_identity, identity);
    mx_key_text(their_one_time, one_time);
    rc = olm_create_outbound_session(
        olm->session, account, identity, MX_KEY_CHARS, one_time, MX_KEY_CHARS, bytes, sizeof bytes);
    crypto_wipe(bytes, sizeof bytes);
    return rc == olm_error() ? olm_error_of(olm) : 0;
}

int mx_olm_create_outbound(const struct mx_account *account, const struct mx_key *their_identity,
    const struct mx_key *their_one_time, const struct mx_random *random, struct mx_olm **ret_olm)
{
    OlmAccount *theirs = NULL;
    struct mx_olm *olm;
    int rc = olm_check_key(their_identity);

    if (rc == 0)
        rc = olm_check_key(their_one_time);
    if (rc != 0)
        return rc;
    olm = olm_create(their_identity);
    if (olm == NULL)
        return TR_ENOMEM;
    theirs = olm_account_of(mx__account_identity(account), NULL);
    rc = theirs == NULL ? TR_ENOMEM : olm_begin(olm, theirs, their_one_time, random);
    mx__libolm_destroy(&libolm_account, theirs);
    if (rc == 0)
        *ret_olm = olm;
    else
        mx_olm_destroy(olm);
    return rc;
}

static int olm_open(struct mx_olm *olm, struct span bytes, struct buffer *plaintext);

/* Take a pre-key message with an account of libolm, which the caller destroys. */
static int olm_accept(struct mx_olm *olm, OlmAccount *account,
    const struct mx__olm_pre_key *pre_key, struct buffer *plaintext)
{
    char identity[MX_KEY_CHARS + 1];
    struct buffer text = { 0 };
    int rc = olm_pre_key_text(pre_key, &text);

    mx_key_text(&pre_key->identity, identity);
    if (rc == 0 && olm_create_inbound_session_from(olm->session, account, identity, MX_KEY_CHARS,
                       text.bytes, text.size) == olm_error())
        rc = olm_error_of(olm);
    buffer_free(&text);
    return rc == 0 ? olm_open(olm, pre_key->message, plaintext) : rc;
}

static int olm_accept_with(struct mx_olm *olm, const struct mx_account *account,
    const struct mx__olm_pre_key *pre_key, struct buffer *plaintext)
{
    const struct mx__key_pair *one_time = mx__account_find(account, &pre_key->one_time_key);
    OlmAccount *theirs;
    int rc;

    if (one_time == NULL)
        return MX_EONETIME;
    rc = olm_check_key(&pre_key->identity);
    if (rc == 0)
        rc = olm_check_key(&pre_key->base_key);
    if (rc != 0)
        return rc;
    theirs = olm_account_of(mx__account_identity(account), one_time);
    rc = theirs == NULL ? TR_ENOMEM : olm_accept(olm, theirs, pre_key, plaintext);
    mx__libolm_destroy(&libolm_account, theirs);
    return rc;
}

int mx_olm_create_inbound(struct mx_account *account, const struct mx_key *their_identity,
    struct span body, struct mx_olm **ret_olm, struct buffer *plaintext)
{
    struct mx__olm_pre_key pre_key;
    struct mx_olm *olm = NULL;
    struct span bytes;
    uint8_t *decoded;
    int rc = mx__body_decode(body, &decoded, &bytes);

    if (rc != 0)
        return rc;
    rc = mx__olm_read_pre_key(bytes, &pre_key);
    if (rc == 0 && !mx_key_equal(&pre_key.identity, their_identity))
        rc = MX_ESESSION;
    if (rc == 0 && (olm = olm_create(their_identity)) == NULL)
        rc = TR_ENOMEM;
    if (rc == 0)
        rc = olm_accept_with(olm, account, &pre_key, plaintext);
    base_free(decoded);
    if (rc != 0) {
        mx_olm_destroy(olm);
        return rc;
    }
    mx__account_remove(account, &pre_key.one_time_key);
    *ret_olm = olm;
    return 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

void mx_olm_id(const struct mx_olm *olm, char ret_id[MX_OLM_ID_CHARS + 1])
{
    size_t size = olm_session_id(olm->session, ret_id, MX_OLM_ID_CHARS);

    tr_assert(size == MX_OLM_ID_CHARS);
    ret_id[size] = '\0';
}

const struct mx_key *mx_olm_their_identity(const struct mx_olm *olm)
{
    return &olm->their_identity;
}

bool mx_olm_has_received(const struct mx_olm *olm)
{
    return olm_session_has_received_message(olm->session) != 0;
}

/* Say whether a pre-key message belongs to this session. MX_ESESSION, TR_ENOMEM. */
static int olm_match(const struct mx_olm *olm, const struct mx__olm_pre_key *pre_key)
{
    struct buffer text = { 0 };
    int rc = olm_pre_key_text(pre_key, &text);

    if (rc == 0 && olm_matches_inbound_session(olm->session, text.bytes, text.size) != 1)
        rc = MX_ESESSION;
    buffer_free(&text);
    return rc;
}

bool mx_olm_matches(const struct mx_olm *olm, struct span body)
{
    struct mx__olm_pre_key pre_key;
    struct span bytes;
    uint8_t *decoded;
    bool is_match;

    if (mx__body_decode(body, &decoded, &bytes) != 0)
        return false;
    is_match = mx__olm_read_pre_key(bytes, &pre_key) == 0 && olm_match(olm, &pre_key) == 0;
    base_free(decoded);
    return is_match;
}

/* ---- encrypting ------------------------------------------------------------------------------ */

int mx_olm_encrypt(struct mx_olm *olm, struct span plaintext, const struct mx_random *random,
    enum mx_olm_type *ret_type, struct buffer *body)
{
    uint8_t bytes[MX_KEY_BYTES]; /* for a ratchet key, if a chain begins */
    size_t size, written, random_size = olm_encrypt_random_length(olm->session);
    char *text;

    if (plaintext.size > MX_PLAINTEXT_BYTES_MAX)
        return MX_ETOOBIG;
    size = olm_encrypt_message_length(olm->session, plaintext.size);
    text = buffer_reserve(body, size);
    if (text == NULL)
        return body->failed;
    tr_assert(random_size <= sizeof bytes);
    if (random_size > 0)
        random->fill(random->data, bytes, random_size);
    *ret_type = olm_encrypt_message_type(olm->session) == OLM_MESSAGE_TYPE_PRE_KEY ? MX_OLM_PRE_KEY
                                                                                   : MX_OLM_NORMAL;
    written =
        olm_encrypt(olm->session, plaintext.at, plaintext.size, bytes, random_size, text, size);
    tr_assert(written == size);
    crypto_wipe(bytes, sizeof bytes);
    buffer_grew(body, size);
    return 0;
}

/* ---- decrypting ------------------------------------------------------------------------------ */

/* Append the plaintext of a message without pre-key part. */
static int olm_open(struct mx_olm *olm, struct span bytes, struct buffer *plaintext)
{
    struct mx__olm_message message;
    struct buffer text = { 0 };
    char *place;
    size_t size;
    int rc = mx__olm_read(bytes, &message);

    if (rc == 0)
        rc = olm_check_key(&message.ratchet_key);
    if (rc != 0)
        return rc;
    place = buffer_reserve(plaintext, bytes.size);
    if (place == NULL)
        return plaintext->failed;
    rc = mx_base64_encode(bytes.at, bytes.size, &text);
    if (rc == 0) {
        size = olm_decrypt(
            olm->session, OLM_MESSAGE_TYPE_MESSAGE, text.bytes, text.size, place, bytes.size);
        if (size == olm_error())
            rc = olm_error_of(olm);
        else
            buffer_grew(plaintext, size);
    }
    buffer_free(&text);
    return rc;
}

int mx_olm_decrypt(
    struct mx_olm *olm, enum mx_olm_type type, struct span body, struct buffer *plaintext)
{
    struct mx__olm_pre_key pre_key;
    struct span bytes;
    uint8_t *decoded;
    int rc = mx__body_decode(body, &decoded, &bytes);

    if (rc != 0)
        return rc;
    if (type == MX_OLM_PRE_KEY) {
        rc = mx__olm_read_pre_key(bytes, &pre_key);
        if (rc == 0)
            rc = olm_match(olm, &pre_key);
        bytes = rc == 0 ? pre_key.message : bytes;
    }
    if (rc == 0)
        rc = olm_open(olm, bytes, plaintext);
    base_free(decoded);
    return rc;
}

/* ---- pickling -------------------------------------------------------------------------------- */

static void olm_pack(struct mx__pack *pack, void *object)
{
    struct mx_olm *olm = object;
    void *session = olm->session;

    mx__pack_bytes(pack, olm->their_identity.bytes, MX_KEY_BYTES);
    mx__libolm_pack(pack, &libolm_session, &session);
    olm->session = session;
}

static const struct mx__pickle_kind olm_kind = {
    .id = 2,
    .size = sizeof(struct mx_olm),
    .pack = olm_pack,
    .release = olm_release,
};
MX__PICKLE(olm, olm_kind)
