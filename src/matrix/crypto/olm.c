/* SPDX-License-Identifier: Apache-2.0 */
/* olm.c: Olm version 1, a double ratchet between two devices (the Olm specification, "Olm: A
 * Cryptographic Ratchet").
 *
 *     root ──ECDH(our ratchet key, their ratchet key)──> root'
 *      └─> chain key ──0x02──> chain key ──0x02──> ...       one chain per ratchet key
 *             └─0x01─> message key  └─0x01─> message key     one key per message
 *
 * 1. A message key is used once. The keys of skipped messages wait in `skipped`, oldest last.
 * 2. There is a sending chain unless the peer's newest chain is later; then the next message sent
 *    begins one, with a new ratchet key.
 * 3. Changes are made to a copy of the session, which replaces it only on success. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

enum { OLM_SECRET_BYTES = 32 };

const enum mx_backend mx_backend = MX_BACKEND_OWN;

/* A chain, with its chain key and next index; or a skipped message, with its key and index. */
struct olm_step {
    struct mx_key ratchet_key;
    uint8_t secret[OLM_SECRET_BYTES];
    uint32_t index;
};

struct mx_olm {
    struct mx_key their_identity;
    struct mx_key first_identity; /* of the device that began the session */
    struct mx_key base_key;       /* these three name the session */
    struct mx_key one_time_key;
    bool has_received;
    bool has_sending;
    uint8_t root[OLM_SECRET_BYTES];
    struct mx__key_pair ratchet; /* of the sending chain */
    struct olm_step sending;
    uint32_t chain_count;
    uint32_t skipped_count;
    struct olm_step chains[MX_OLM_CHAINS_MAX]; /* the newest first */
    struct olm_step skipped[MX_OLM_SKIPPED_MAX];
};

/* ---- ratchet --------------------------------------------------------------------------------- */

/* Derive a new root and the first chain key. An empty root begins the session. */
static void olm_derive(struct span root, struct span shared, const char *info,
    uint8_t ret_root[OLM_SECRET_BYTES], struct olm_step *ret_chain)
{
    uint8_t derived[2 * OLM_SECRET_BYTES];

    mx__hkdf(root, shared, span_of(info), derived, sizeof derived);
    memcpy(ret_root, derived, OLM_SECRET_BYTES);
    memcpy(ret_chain->secret, derived + OLM_SECRET_BYTES, OLM_SECRET_BYTES);
    ret_chain->index = 0;
    crypto_wipe(derived, sizeof derived);
}

/* Turn the root by the ratchet keys of both sides. MX_EKEY. */
static int olm_turn(
    struct mx_olm *olm, const struct mx_key *their_ratchet_key, struct olm_step *ret_chain)
{
    uint8_t shared[MX_KEY_BYTES];
    int rc = mx__agree(&olm->ratchet, their_ratchet_key, shared);

    if (rc != 0)
        return rc;
    olm_derive(MX__BYTES(olm->root), MX__BYTES(shared), "OLM_RATCHET", olm->root, ret_chain);
    crypto_wipe(shared, sizeof shared);
    return 0;
}

static void olm_message_secret(const struct olm_step *chain, uint8_t ret_secret[OLM_SECRET_BYTES])
{
    crypto_hmac_sha256(chain->secret, sizeof chain->secret, "\x01", 1, ret_secret);
}

static void olm_advance(struct olm_step *chain)
{
    crypto_hmac_sha256(chain->secret, sizeof chain->secret, "\x02", 1, chain->secret);
    chain->index++;
}

/* Insert at the front; the last one of a full list is dropped. */
static struct olm_step *olm_insert(struct olm_step *steps, uint32_t *count, uint32_t count_max)
{
    tr_assert(*count <= count_max);
    if (*count < count_max)
        ++*count;
    memmove(steps + 1, steps, (*count - 1) * sizeof *steps);
    return steps;
}

static bool olm_is_session(const struct mx_olm *olm, const struct mx__olm_pre_key *pre_key)
{
    return mx_key_equal(&olm->first_identity, &pre_key->identity) &&
           mx_key_equal(&olm->base_key, &pre_key->base_key) &&
           mx_key_equal(&olm->one_time_key, &pre_key->one_time_key);
}

/* ---- creating a session ---------------------------------------------------------------------- */

/* The three agreements of the handshake, in the order in which both sides hash them. */
struct olm_handshake {
    const struct mx__key_pair *ours[3];
    const struct mx_key *theirs[3];
};

static int olm_shake(const struct olm_handshake *handshake, uint8_t ret_root[OLM_SECRET_BYTES],
    struct olm_step *ret_chain)
{
    uint8_t shared[3][MX_KEY_BYTES];
    int rc = 0;

    for (int i = 0; i < 3 && rc == 0; i++)
        rc = mx__agree(handshake->ours[i], handshake->theirs[i], shared[i]);
    if (rc == 0)
        olm_derive((struct span){ NULL, 0 }, MX__BYTES(shared), "OLM_ROOT", ret_root, ret_chain);
    crypto_wipe(shared, sizeof shared);
    return rc;
}

int mx_olm_create_outbound(const struct mx_account *account, const struct mx_key *their_identity,
    const struct mx_key *their_one_time, const struct mx_random *random, struct mx_olm **ret_olm)
{
    struct mx_olm *olm = base_calloc(sizeof *olm);
    struct mx__key_pair base;
    int rc;

    if (olm == NULL)
        return TR_ENOMEM;
    mx__key_pair_generate(random, &base);
    mx__key_pair_generate(random, &olm->ratchet);
    olm->their_identity = *their_identity;
    olm->first_identity = *mx_account_identity_key(account);
    olm->base_key = base.public_key;
    olm->one_time_key = *their_one_time;
    rc = olm_shake(
        &(struct olm_handshake){
            .ours = { mx__account_identity(account), &base, &base },
            .theirs = { their_one_time, their_identity, their_one_time },
        },
        olm->root, &olm->sending);
    crypto_wipe(&base, sizeof base);
    olm->sending.ratchet_key = olm->ratchet.public_key;
    olm->has_sending = true;
    if (rc == 0)
        *ret_olm = olm;
    else
        mx_olm_destroy(olm);
    return rc;
}

static int olm_open(struct mx_olm *olm, struct span bytes, struct buffer *plaintext);

/* Fill a session from the sender's first message, which has the ratchet key of its chain. */
static int olm_accept(struct mx_olm *olm, const struct mx_account *account,
    const struct mx__olm_pre_key *pre_key, struct buffer *plaintext)
{
    const struct mx__key_pair *one_time = mx__account_find(account, &pre_key->one_time_key);
    struct mx__olm_message message;
    int rc;

    if (one_time == NULL)
        return MX_EONETIME;
    rc = mx__olm_read(pre_key->message, &message);
    if (rc != 0)
        return rc;
    rc = olm_shake(
        &(struct olm_handshake){
            .ours = { one_time, mx__account_identity(account), one_time },
            .theirs = { &pre_key->identity, &pre_key->base_key, &pre_key->base_key },
        },
        olm->root, &olm->chains[0]);
    if (rc != 0)
        return rc;
    olm->their_identity = olm->first_identity = pre_key->identity;
    olm->base_key = pre_key->base_key;
    olm->one_time_key = pre_key->one_time_key;
    olm->chains[0].ratchet_key = message.ratchet_key;
    olm->chain_count = 1;
    return olm_open(olm, pre_key->message, plaintext);
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
    if (rc == 0 && (olm = base_calloc(sizeof *olm)) == NULL)
        rc = TR_ENOMEM;
    if (rc == 0)
        rc = olm_accept(olm, account, &pre_key, plaintext);
    base_free(decoded);
    if (rc != 0) {
        mx_olm_destroy(olm);
        return rc;
    }
    mx__account_remove(account, &pre_key.one_time_key);
    *ret_olm = olm;
    return 0;
}

void mx_olm_destroy(struct mx_olm *olm)
{
    if (olm != NULL)
        crypto_wipe(olm, sizeof *olm);
    base_free(olm);
}

/* ---- asking ---------------------------------------------------------------------------------- */

void mx_olm_id(const struct mx_olm *olm, char ret_id[MX_OLM_ID_CHARS + 1])
{
    const struct mx_key names[] = { olm->first_identity, olm->base_key, olm->one_time_key };
    struct mx_key id;

    crypto_sha256(names, sizeof names, id.bytes);
    mx_key_text(&id, ret_id);
}

const struct mx_key *mx_olm_their_identity(const struct mx_olm *olm)
{
    return &olm->their_identity;
}

bool mx_olm_has_received(const struct mx_olm *olm)
{
    return olm->has_received;
}

bool mx_olm_matches(const struct mx_olm *olm, struct span body)
{
    struct mx__olm_pre_key pre_key;
    struct span bytes;
    uint8_t *decoded;
    bool is_match;

    if (mx__body_decode(body, &decoded, &bytes) != 0)
        return false;
    is_match = mx__olm_read_pre_key(bytes, &pre_key) == 0 && olm_is_session(olm, &pre_key);
    base_free(decoded);
    return is_match;
}

/* ---- encrypting ------------------------------------------------------------------------------ */

static int olm_begin_sending(struct mx_olm *olm, const struct mx_random *random)
{
    int rc;

    tr_assert(olm->chain_count > 0); /* without one the session would have a sending chain */
    mx__key_pair_generate(random, &olm->ratchet);
    rc = olm_turn(olm, &olm->chains[0].ratchet_key, &olm->sending);
    if (rc != 0)
        return rc;
    olm->sending.ratchet_key = olm->ratchet.public_key;
    olm->has_sending = true;
    return 0;
}

/* Append the message without the pre-key part and advance the sending chain. */
static int olm_seal(struct mx_olm *olm, struct span plaintext, struct buffer *message)
{
    uint8_t secret[OLM_SECRET_BYTES];
    struct mx__message_keys keys;
    int rc;

    if (olm->sending.index == UINT32_MAX)
        return MX_EEXHAUSTED;
    buffer_append(message, &(uint8_t){ MX__MESSAGE_VERSION }, 1);
    mx__put_bytes(message, 0x0a, MX__BYTES(olm->sending.ratchet_key.bytes));
    mx__put_number(message, 0x10, olm->sending.index);
    olm_message_secret(&olm->sending, secret);
    mx__message_keys(MX__BYTES(secret), "OLM_KEYS", &keys);
    rc = mx__seal(&keys, 0x22, plaintext, message);
    olm_advance(&olm->sending);
    crypto_wipe(&keys, sizeof keys);
    crypto_wipe(secret, sizeof secret);
    return rc;
}

static void olm_wrap(const struct mx_olm *olm, struct buffer *message)
{
    struct buffer inner = *message;

    *message = (struct buffer){ 0 };
    buffer_append(message, &(uint8_t){ MX__MESSAGE_VERSION }, 1);
    mx__put_bytes(message, 0x0a, MX__BYTES(olm->one_time_key.bytes));
    mx__put_bytes(message, 0x12, MX__BYTES(olm->base_key.bytes));
    mx__put_bytes(message, 0x1a, MX__BYTES(olm->first_identity.bytes));
    mx__put_bytes(message, 0x22, (struct span){ inner.bytes, inner.size });
    buffer_free(&inner);
}

int mx_olm_encrypt(struct mx_olm *olm, struct span plaintext, const struct mx_random *random,
    enum mx_olm_type *ret_type, struct buffer *body)
{
    struct mx_olm next = *olm;
    struct buffer message = { 0 };
    int rc = plaintext.size > MX_PLAINTEXT_BYTES_MAX ? MX_ETOOBIG : 0;

    if (rc == 0 && !next.has_sending)
        rc = olm_begin_sending(&next, random);
    if (rc == 0)
        rc = olm_seal(&next, plaintext, &message);
    if (rc == 0 && !olm->has_received)
        olm_wrap(olm, &message);
    if (rc == 0)
        rc = mx__body_encode(&message, body);
    if (rc == 0) {
        *ret_type = olm->has_received ? MX_OLM_NORMAL : MX_OLM_PRE_KEY;
        *olm = next;
    }
    buffer_free(&message);
    crypto_wipe(&next, sizeof next);
    return rc;
}

/* ---- decrypting ------------------------------------------------------------------------------ */

static int olm_open_with(const uint8_t secret[OLM_SECRET_BYTES],
    const struct mx__olm_message *message, struct buffer *plaintext)
{
    struct mx__message_keys keys;
    int rc;

    mx__message_keys((struct span){ (const char *)secret, OLM_SECRET_BYTES }, "OLM_KEYS", &keys);
    rc = mx__open(&keys, message->authenticated, message->ciphertext, plaintext);
    crypto_wipe(&keys, sizeof keys);
    return rc;
}

static int olm_open_skipped(
    struct mx_olm *olm, const struct mx__olm_message *message, struct buffer *plaintext)
{
    struct olm_step *skipped = olm->skipped, *end = skipped + olm->skipped_count;
    int rc;

    while (skipped < end && (skipped->index != message->index ||
                                !mx_key_equal(&skipped->ratchet_key, &message->ratchet_key)))
        skipped++;
    if (skipped == end)
        return MX_EINDEX;
    rc = olm_open_with(skipped->secret, message, plaintext);
    memmove(skipped, skipped + 1, (size_t)(end - skipped - 1) * sizeof *skipped);
    olm->skipped_count--;
    crypto_wipe(end - 1, sizeof *end);
    return rc;
}

static struct olm_step *olm_find_chain(struct mx_olm *olm, const struct mx_key *ratchet_key)
{
    for (uint32_t i = 0; i < olm->chain_count; i++)
        if (mx_key_equal(&olm->chains[i].ratchet_key, ratchet_key))
            return &olm->chains[i];
    return NULL;
}

/* The peer has a new ratchet key. It answers our newest one, which is used up with that. */
static int olm_add_chain(struct mx_olm *olm, const struct mx_key *ratchet_key)
{
    struct olm_step *chain;
    int rc;

    if (!olm->has_sending)
        return MX_EINDEX; /* a chain that was dropped: the peer has no newer key of ours to answer */
    chain = olm_insert(olm->chains, &olm->chain_count, MX_OLM_CHAINS_MAX);
    chain->ratchet_key = *ratchet_key;
    rc = olm_turn(olm, ratchet_key, chain);
    olm->has_sending = false;
    crypto_wipe(&olm->ratchet, sizeof olm->ratchet);
    crypto_wipe(&olm->sending, sizeof olm->sending);
    return rc;
}

static int olm_skip(struct mx_olm *olm, struct olm_step *chain, uint32_t index)
{
    struct olm_step *skipped;

    if (index - chain->index > MX_OLM_GAP_MAX)
        return MX_EGAP;
    for (; chain->index < index; olm_advance(chain)) {
        skipped = olm_insert(olm->skipped, &olm->skipped_count, MX_OLM_SKIPPED_MAX);
        skipped->ratchet_key = chain->ratchet_key;
        skipped->index = chain->index;
        olm_message_secret(chain, skipped->secret);
    }
    return 0;
}

static int olm_open(struct mx_olm *olm, struct span bytes, struct buffer *plaintext)
{
    uint8_t secret[OLM_SECRET_BYTES];
    struct mx__olm_message message;
    struct olm_step *chain;
    int rc = mx__olm_read(bytes, &message);

    if (rc != 0)
        return rc;
    tr_assert(olm->chain_count <= MX_OLM_CHAINS_MAX && olm->skipped_count <= MX_OLM_SKIPPED_MAX);
    chain = olm_find_chain(olm, &message.ratchet_key);
    if (chain == NULL) {
        rc = olm_add_chain(olm, &message.ratchet_key);
        chain = &olm->chains[0];
    }
    if (rc != 0)
        return rc;
    if (message.index < chain->index)
        return olm_open_skipped(olm, &message, plaintext);
    rc = olm_skip(olm, chain, message.index);
    if (rc != 0)
        return rc;
    olm_message_secret(chain, secret);
    rc = olm_open_with(secret, &message, plaintext);
    olm_advance(chain);
    olm->has_received = true;
    crypto_wipe(secret, sizeof secret);
    return rc;
}

int mx_olm_decrypt(
    struct mx_olm *olm, enum mx_olm_type type, struct span body, struct buffer *plaintext)
{
    struct mx__olm_pre_key pre_key;
    struct mx_olm next = *olm;
    struct span bytes;
    uint8_t *decoded;
    int rc = mx__body_decode(body, &decoded, &bytes);

    if (rc != 0)
        goto done;
    if (type == MX_OLM_PRE_KEY) {
        rc = mx__olm_read_pre_key(bytes, &pre_key);
        if (rc == 0 && !olm_is_session(olm, &pre_key))
            rc = MX_ESESSION;
        bytes = rc == 0 ? pre_key.message : bytes;
    }
    if (rc == 0)
        rc = olm_open(&next, bytes, plaintext);
    if (rc == 0)
        *olm = next;
    base_free(decoded);
done:
    crypto_wipe(&next, sizeof next);
    return rc;
}

/* ---- pickling -------------------------------------------------------------------------------- */

static void olm_pack_steps(struct mx__pack *pack, struct olm_step *steps, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mx__pack_bytes(pack, steps[i].ratchet_key.bytes, MX_KEY_BYTES);
        mx__pack_bytes(pack, steps[i].secret, sizeof steps[i].secret);
        mx__pack_u32(pack, &steps[i].index, UINT32_MAX);
    }
}

static void olm_pack(struct mx__pack *pack, void *object)
{
    struct mx_olm *olm = object;

    mx__pack_bytes(pack, olm->their_identity.bytes, MX_KEY_BYTES);
    mx__pack_bytes(pack, olm->first_identity.bytes, MX_KEY_BYTES);
    mx__pack_bytes(pack, olm->base_key.bytes, MX_KEY_BYTES);
    mx__pack_bytes(pack, olm->one_time_key.bytes, MX_KEY_BYTES);
    mx__pack_bool(pack, &olm->has_received);
    mx__pack_bool(pack, &olm->has_sending);
    mx__pack_bytes(pack, olm->root, sizeof olm->root);
    mx__pack_key_pair(pack, &olm->ratchet);
    olm_pack_steps(pack, &olm->sending, 1);
    mx__pack_u32(pack, &olm->chain_count, MX_OLM_CHAINS_MAX);
    olm_pack_steps(pack, olm->chains, olm->chain_count);
    mx__pack_u32(pack, &olm->skipped_count, MX_OLM_SKIPPED_MAX);
    olm_pack_steps(pack, olm->skipped, olm->skipped_count);
    if (pack->rc == 0 && !olm->has_sending && olm->chain_count == 0)
        pack->rc = MX_EFORMAT; /* it could neither send nor receive */
}

static const struct mx__pickle_kind olm_kind = {
    .id = 2,
    .size = sizeof(struct mx_olm),
    .pack = olm_pack,
};
MX__PICKLE(olm, olm_kind)
