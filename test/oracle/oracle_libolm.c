/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_libolm.c: compare Olm, Megolm and SAS with libolm.
 *
 * Each party of a conversation is a pair of twins: ours and libolm's, created from the same random
 * bytes and given the same input. Every text that twins produce must be equal byte for byte, so
 * each library reads what the other one writes, in both roles. Every message that arrives
 * (reordered, lost, doubled, corrupted, from a seed) must give both the same plaintext or the same
 * refusal, and no refusal may change a session. */
#include <olm/inbound_group_session.h>
#include <olm/olm.h>
#include <olm/outbound_group_session.h>
#include <olm/sas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "json/json.h"
#include "matrix/crypto/mxcrypto.h"

enum { TAPE_BYTES = 1024, PLAINTEXT_MAX = 700, MAIL_MAX = 4096 };

/* ---- the same random bytes for both twins ---------------------------------------------------- */

static struct base_random dice;
static uint8_t tape[TAPE_BYTES];
static size_t tape_used;

static void tape_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    CHECK(tape_used + size <= sizeof tape);
    memcpy(bytes, tape + tape_used, size);
    tape_used += size;
}
static const struct mx_random tape_random = { .fill = tape_fill };

/* New bytes. libolm overwrites what it is given, so it gets a copy. */
static uint8_t *tape_renew(void)
{
    static uint8_t copy[TAPE_BYTES];

    for (size_t i = 0; i < sizeof tape; i += sizeof(uint64_t)) {
        uint64_t word = base_random_next(&dice);

        memcpy(tape + i, &word, sizeof word);
    }
    memcpy(copy, tape, sizeof tape);
    tape_used = 0;
    return copy;
}

static size_t below(size_t bound)
{
    return (size_t)base_random_below(&dice, bound);
}

static void *memory(size_t size)
{
    void *memory = calloc(1, size + 1);

    CHECK(memory != NULL);
    return memory;
}

static char *copy_of(const char *text, size_t size)
{
    char *copy = memory(size);

    memcpy(copy, text, size);
    return copy;
}

static void check_same(const struct buffer *ours, const char *theirs, size_t size)
{
    CHECK_EQ_INT(ours->failed, 0);
    CHECK_EQ_U64(ours->size, size);
    CHECK(size == 0 || memcmp(ours->bytes, theirs, size) == 0);
}

/* ---- refusals -------------------------------------------------------------------------------- */

struct refusal {
    const char *theirs;
    int ours[5];
};

static const struct refusal refusals[] = {
    /* libolm has one reason for everything that finds no key or no matching MAC. */
    { "BAD_MESSAGE_MAC", { MX_EMAC, MX_EINDEX, MX_EGAP, MX_EKEY } },
    { "BAD_MESSAGE_FORMAT", { MX_EFORMAT } },
    { "BAD_MESSAGE_VERSION", { MX_EVERSION } },
    { "BAD_MESSAGE_KEY_ID", { MX_EONETIME } },
    { "BAD_SIGNATURE", { MX_ESIGNATURE } },
    { "UNKNOWN_MESSAGE_INDEX", { MX_EINDEX } },
};

/* More pairs, of changed messages alone. A pre-key message may have two faults, such as a one-time key
 * that was used and a part that cannot be read: each library names the one that it sees first. We check
 * the identity key, which the libolm call below does not get, so libolm derives other keys from it.
 * And libolm skips a field whose tag it does not know, where we refuse the message. */
static const struct refusal changed_refusals[] = {
    { "BAD_MESSAGE_MAC", { MX_ESESSION, MX_EFORMAT } },
    { "BAD_MESSAGE_KEY_ID", { MX_ESESSION, MX_EFORMAT, MX_EVERSION } },
    { "BAD_MESSAGE_FORMAT", { MX_ESESSION, MX_EONETIME } },
    { "BAD_MESSAGE_VERSION", { MX_ESESSION, MX_EONETIME } },
    { "BAD_SIGNATURE", { MX_EFORMAT } },
};

static bool is_refusal(const struct refusal *table, size_t count, int ours, const char *theirs)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; strcmp(table[i].theirs, theirs) == 0 && k < 5; k++)
            if (table[i].ours[k] == ours)
                return true;
    return false;
}

static void check_refusal(int ours, const char *theirs, bool is_corrupted)
{
    bool is_same = is_refusal(refusals, sizeof refusals / sizeof refusals[0], ours, theirs);

    if (is_corrupted)
        is_same =
            is_same || is_refusal(changed_refusals,
                           sizeof changed_refusals / sizeof changed_refusals[0], ours, theirs);
    CHECK_MSG(is_same, "libolm refuses with %s, we with: %s", theirs, mx_error_text(ours));
}

/* ---- accounts -------------------------------------------------------------------------------- */

struct party {
    struct mx_account *ours;
    OlmAccount *theirs;
    struct mx_olm *session;
    OlmSession *their_session; /* NULL without a session */
    struct mx_key identity;
};

static void party_create(struct party *party)
{
    uint8_t *random = tape_renew();
    char ed[MX_KEY_CHARS + 1], curve[MX_KEY_CHARS + 1], json[256], expected[256];
    size_t size;

    *party = (struct party){ .theirs = olm_account(memory(olm_account_size())) };
    CHECK_EQ_INT(mx_account_create(&tape_random, &party->ours), 0);
    CHECK(olm_create_account(party->theirs, random, TAPE_BYTES) != olm_error());
    party->identity = *mx_account_identity_key(party->ours);
    mx_key_text(&party->identity, curve);
    mx_key_text(mx_account_signing_key(party->ours), ed);
    (void)snprintf(
        expected, sizeof expected, "{\"curve25519\":\"%s\",\"ed25519\":\"%s\"}", curve, ed);
    size = olm_account_identity_keys(party->theirs, json, sizeof json - 1);
    CHECK(size != olm_error());
    json[size] = '\0';
    CHECK_EQ_STR(json, expected);
}

static void party_end_session(struct party *party)
{
    mx_olm_destroy(party->session);
    party->session = NULL;
    if (party->their_session != NULL)
        olm_clear_session(party->their_session);
    free(party->their_session);
    party->their_session = NULL;
}

static void party_destroy(struct party *party)
{
    party_end_session(party);
    mx_account_destroy(party->ours);
    olm_clear_account(party->theirs);
    free(party->theirs);
}

/* Check that libolm shows the public key under the one member of its JSON. */
static void check_key_shown(const char *json, size_t size, const struct mx_key *key)
{
    char text[MX_KEY_CHARS + 1];

    mx_key_text(key, text);
    CHECK(memmem(json, size, text, MX_KEY_CHARS) != NULL);
}

/* Add a one-time key, or a fallback key, to both twins and return it. */
static struct mx_key party_add_key(struct party *party, bool is_fallback)
{
    uint8_t *random = tape_renew();
    struct mx_one_time_key key = { 0 };
    char json[16384];
    size_t size;

    if (is_fallback) {
        mx_account_rotate_fallback(party->ours, &tape_random);
        CHECK(olm_account_generate_fallback_key(party->theirs, random, TAPE_BYTES) != olm_error());
        CHECK(mx_account_fallback_key(party->ours, &key));
        size = olm_account_unpublished_fallback_key(party->theirs, json, sizeof json);
    } else {
        CHECK_EQ_INT(mx_account_add_one_time_keys(party->ours, 1, &tape_random), 0);
        CHECK(olm_account_generate_one_time_keys(party->theirs, 1, random, TAPE_BYTES) !=
              olm_error());
        CHECK(mx_account_one_time_key_at(
            party->ours, mx_account_one_time_key_count(party->ours) - 1, &key));
        size = olm_account_one_time_keys(party->theirs, json, sizeof json);
    }
    CHECK(size != olm_error());
    check_key_shown(json, size, &key.key);
    mx_account_mark_published(party->ours, key.id);
    olm_account_mark_keys_as_published(party->theirs);
    return key.key;
}

TEST(libolm, signatures_are_equal)
{
    uint8_t signature[MX_SIGNATURE_BYTES];
    struct buffer text = { 0 };
    struct party party;
    char theirs[128];

    base_random_init(&dice, check_seed());
    for (int i = 0; i < 200; i++) {
        uint8_t *bytes;
        size_t size = below(PLAINTEXT_MAX);

        party_create(&party);
        bytes = tape_renew();
        mx_account_sign(party.ours, bytes, size, signature);
        buffer_clear(&text);
        mx_base64_encode(signature, sizeof signature, &text);
        CHECK(olm_account_sign(party.theirs, bytes, size, theirs, sizeof theirs) != olm_error());
        check_same(&text, theirs, MX_SIGNATURE_CHARS);
        CHECK_EQ_INT(mx_verify(mx_account_signing_key(party.ours), bytes, size, signature), 0);
        party_destroy(&party);
    }
    buffer_free(&text);
}

/* ---- olm ------------------------------------------------------------------------------------- */

struct mail {
    struct buffer body;
    struct buffer plaintext; /* what the sender meant */
    enum mx_olm_type type;
    uint32_t index; /* of Megolm */
};

static struct mail mails[MAIL_MAX];
static size_t mail_count;

static struct mail *mail_add(void)
{
    struct mail *mail;
    size_t size = below(4) == 0 ? below(PLAINTEXT_MAX) : below(40);
    uint8_t *random = tape_renew();

    CHECK(mail_count < MAIL_MAX);
    mail = &mails[mail_count++];
    *mail = (struct mail){ 0 };
    buffer_append(&mail->plaintext, random, size);
    if (size == 0)
        buffer_reserve(&mail->plaintext, 1);
    return mail;
}

static void mail_remove(size_t index)
{
    buffer_free(&mails[index].body);
    buffer_free(&mails[index].plaintext);
    memmove(&mails[index], &mails[index + 1], (--mail_count - index) * sizeof mails[0]);
}

static void mail_clear(void)
{
    while (mail_count > 0)
        mail_remove(mail_count - 1);
}

static struct span span_of_buffer(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

static void party_start_session(
    struct party *party, const struct party *peer, const struct mx_key *one_time)
{
    uint8_t *random = tape_renew();
    char identity[MX_KEY_CHARS + 1], key[MX_KEY_CHARS + 1];

    party_end_session(party);
    mx_key_text(&peer->identity, identity);
    mx_key_text(one_time, key);
    CHECK_EQ_INT(mx_olm_create_outbound(
                     party->ours, &peer->identity, one_time, &tape_random, &party->session),
        0);
    party->their_session = olm_session(memory(olm_session_size()));
    CHECK(olm_create_outbound_session(party->their_session, party->theirs, identity, MX_KEY_CHARS,
              key, MX_KEY_CHARS, random, TAPE_BYTES) != olm_error());
}

static void check_same_session(const struct party *party)
{
    char ours[MX_OLM_ID_CHARS + 1], theirs[128];

    mx_olm_id(party->session, ours);
    CHECK_EQ_U64(olm_session_id(party->their_session, theirs, sizeof theirs), MX_OLM_ID_CHARS);
    CHECK(memcmp(ours, theirs, MX_OLM_ID_CHARS) == 0);
    CHECK_EQ_INT(mx_olm_has_received(party->session),
        olm_session_has_received_message(party->their_session) != 0);
}

static void party_send(struct party *party)
{
    struct mail *mail = mail_add();
    uint8_t *random = tape_renew();
    size_t size, random_size = olm_encrypt_random_length(party->their_session);
    char *theirs;

    CHECK_EQ_U64(olm_encrypt_message_type(party->their_session),
        mx_olm_has_received(party->session) ? MX_OLM_NORMAL : MX_OLM_PRE_KEY);
    size = olm_encrypt_message_length(party->their_session, mail->plaintext.size);
    theirs = memory(size);
    CHECK_EQ_U64(olm_encrypt(party->their_session, mail->plaintext.bytes, mail->plaintext.size,
                     random, random_size, theirs, size),
        size);
    CHECK_EQ_INT(mx_olm_encrypt(party->session, span_of_buffer(&mail->plaintext), &tape_random,
                     &mail->type, &mail->body),
        0);
    CHECK_EQ_U64(tape_used, random_size); /* as much randomness as libolm, at the same time */
    check_same(&mail->body, theirs, size);
    free(theirs);
}

/* libolm decodes in place, so every call gets a copy. Returns NULL and the reason on a refusal. */
static char *libolm_decrypt(
    OlmSession *session, const struct mail *mail, size_t *ret_size, const char **ret_error)
{
    char *copy = copy_of(mail->body.bytes, mail->body.size), *plaintext = NULL;
    size_t size = olm_decrypt_max_plaintext_length(session, mail->type, copy, mail->body.size);

    free(copy);
    if (size != olm_error()) {
        copy = copy_of(mail->body.bytes, mail->body.size);
        plaintext = memory(size);
        size = olm_decrypt(session, mail->type, copy, mail->body.size, plaintext, size);
        free(copy);
    }
    if (size == olm_error()) {
        *ret_error = olm_session_last_error(session);
        free(plaintext);
        return NULL;
    }
    *ret_size = size;
    return plaintext;
}

/* Returns whether both took the message. */
static bool check_same_result(int rc, const struct buffer *ours, char *theirs, size_t size,
    const char *error, bool is_corrupted)
{
    /* X25519 ignores the last bit of a key, and libolm is not told whose identity key it must be. */
    if (is_corrupted && rc == MX_ESESSION && theirs != NULL) {
        free(theirs);
        return false;
    }
    CHECK_MSG((rc == 0) == (theirs != NULL), "we: %s, libolm: %s", mx_error_text(rc),
        theirs != NULL ? "success" : error);
    if (theirs == NULL) {
        CHECK_EQ_U64(ours->size, 0);
        check_refusal(rc, error, is_corrupted);
        return false;
    }
    check_same(ours, theirs, size);
    free(theirs);
    return true;
}

static bool party_accept(
    struct party *party, const struct party *peer, const struct mail *mail, bool is_corrupted)
{
    OlmSession *theirs = olm_session(memory(olm_session_size()));
    char *copy = copy_of(mail->body.bytes, mail->body.size), *plaintext = NULL;
    const char *error = "";
    struct mx_olm *ours = NULL;
    struct buffer out = { 0 };
    size_t size = 0;
    bool is_taken;
    int rc = mx_olm_create_inbound(
        party->ours, &peer->identity, span_of_buffer(&mail->body), &ours, &out);

    /* Not olm_create_inbound_session_from, which reads through NULL if the message has no identity
     * key. */
    if (olm_create_inbound_session(theirs, party->theirs, copy, mail->body.size) == olm_error())
        error = olm_session_last_error(theirs);
    else
        plaintext = libolm_decrypt(theirs, mail, &size, &error);
    free(copy);
    is_taken = check_same_result(rc, &out, plaintext, size, error, is_corrupted);
    buffer_free(&out);
    if (is_taken) {
        olm_remove_one_time_keys(party->theirs, theirs); /* fails for a fallback key */
        party_end_session(party);
        party->session = ours;
        party->their_session = theirs;
    } else {
        olm_clear_session(theirs);
        free(theirs);
    }
    return is_taken;
}

static bool party_matches(const struct party *party, const struct mail *mail, bool is_corrupted)
{
    char *copy;
    size_t theirs;
    bool ours;

    if (party->session == NULL)
        return false;
    copy = copy_of(mail->body.bytes, mail->body.size);
    theirs = olm_matches_inbound_session(party->their_session, copy, mail->body.size);
    free(copy);
    ours = mx_olm_matches(party->session, span_of_buffer(&mail->body));
    CHECK(is_corrupted || ours == (theirs == 1));
    return ours;
}

static bool party_receive(
    struct party *party, const struct party *peer, const struct mail *mail, bool is_corrupted)
{
    struct buffer out = { 0 };
    const char *error = "";
    size_t size = 0;
    char *plaintext;
    bool is_taken;
    int rc;

    if (mail->type == MX_OLM_PRE_KEY && !party_matches(party, mail, is_corrupted))
        return party_accept(party, peer, mail, is_corrupted);
    if (party->session == NULL)
        return false;
    rc = mx_olm_decrypt(party->session, mail->type, span_of_buffer(&mail->body), &out);
    plaintext = libolm_decrypt(party->their_session, mail, &size, &error);
    is_taken = check_same_result(rc, &out, plaintext, size, error, is_corrupted);
    if (is_taken && !is_corrupted)
        check_same(&out, mail->plaintext.bytes, mail->plaintext.size);
    buffer_free(&out);
    return is_taken;
}

/* Change a bit of the message, not of its base64: libolm ignores characters that are not base64.
 * Not the version either, which libolm does not check on pre-key messages. */
static void mail_corrupt(struct mail *mail)
{
    struct buffer changed = { 0 };
    uint8_t *bytes = memory(mail->body.size);
    size_t size = 0;

    CHECK_EQ_INT(mx_base64_decode(span_of_buffer(&mail->body), bytes, mail->body.size, &size), 0);
    bytes[1 + below(size - 1)] ^= (uint8_t)(1u << below(8));
    mx_base64_encode(bytes, size, &changed);
    buffer_free(&mail->body);
    mail->body = changed;
    free(bytes);
}

/* Restart our twin from its pickles; libolm's runs on. */
static void party_restart(struct party *party)
{
    const struct mx_pickle_key key = { { 7 } };
    struct buffer account = { 0 }, session = { 0 };

    tape_renew();
    CHECK_EQ_INT(mx_account_pickle(party->ours, &key, &tape_random, &account), 0);
    mx_account_destroy(party->ours);
    CHECK_EQ_INT(mx_account_unpickle(span_of_buffer(&account), &key, &party->ours), 0);
    if (party->session != NULL) {
        CHECK_EQ_INT(mx_olm_pickle(party->session, &key, &tape_random, &session), 0);
        mx_olm_destroy(party->session);
        CHECK_EQ_INT(mx_olm_unpickle(span_of_buffer(&session), &key, &party->session), 0);
    }
    buffer_free(&account);
    buffer_free(&session);
}

static void converse(void)
{
    struct party parties[2];
    size_t burst_max = below(3) == 0 ? 60 : 6;
    unsigned taken = 0;

    party_create(&parties[0]);
    party_create(&parties[1]);
    for (size_t turn = 0, turns = 5 + below(20); turn < turns; turn++) {
        size_t from = below(2);
        struct party *sender = &parties[from], *receiver = &parties[1 - from];

        mail_clear();
        if (below(5) == 0)
            party_restart(&parties[below(2)]);
        if (sender->session == NULL || below(20) == 0) {
            struct mx_key key = party_add_key(receiver, below(4) == 0);

            party_start_session(sender, receiver, &key);
        }
        for (size_t i = 0, count = below(2000) == 0 ? 2100 : 1 + below(burst_max); i < count; i++)
            party_send(sender);
        for (size_t i = 0, count = below(mail_count * 2 > 120 ? 120 : mail_count * 2);
             mail_count > 0 && i < count; i++) {
            size_t index = below(3) == 0 ? below(mail_count) : 0; /* in order, or any */
            unsigned fate = (unsigned)below(10);

            if (fate == 0) {
                mail_corrupt(&mails[index]);
                party_receive(receiver, sender, &mails[index], true);
                fate = 1;
            } else if (fate != 1) /* 1: lost */
                taken += party_receive(receiver, sender, &mails[index], false);
            if (fate != 2) /* 2: it will come again */
                mail_remove(index);
        }
        if (receiver->session != NULL)
            check_same_session(receiver);
    }
    mail_clear();
    party_destroy(&parties[0]);
    party_destroy(&parties[1]);
    CHECK(taken > 0 || burst_max < 7);
}

TEST_LONG(libolm, olm_conversations_are_equal, 300)
{
    for (uint64_t seed; check_each_seed(&seed, check_rounds(1000, 10000));) {
        base_random_init(&dice, seed);
        converse();
    }
}

/* ---- megolm ---------------------------------------------------------------------------------- */

struct room {
    struct mx_outbound *outbound;
    OlmOutboundGroupSession *their_outbound;
    struct mx_inbound *inbound;
    OlmInboundGroupSession *their_inbound;
};

static void room_end_inbound(struct room *room)
{
    mx_inbound_destroy(room->inbound);
    if (room->their_inbound != NULL)
        olm_clear_inbound_group_session(room->their_inbound);
    free(room->their_inbound);
}

static void room_join(struct room *room)
{
    struct buffer key = { 0 };
    char theirs[512];
    size_t size =
        olm_outbound_group_session_key(room->their_outbound, (uint8_t *)theirs, sizeof theirs);

    CHECK_EQ_INT(mx_outbound_key(room->outbound, &key), 0);
    CHECK_EQ_U64(size, MX_SESSION_KEY_CHARS);
    check_same(&key, theirs, size);
    room_end_inbound(room);
    CHECK_EQ_INT(mx_inbound_create(span_of_buffer(&key), &room->inbound), 0);
    room->their_inbound = olm_inbound_group_session(memory(olm_inbound_group_session_size()));
    CHECK(olm_init_inbound_group_session(room->their_inbound, (uint8_t *)theirs, size) !=
          olm_error());
    buffer_free(&key);
}

/* Replace the inbound twins by what they export at a random index, each by the other's text. */
static void room_forward(struct room *room)
{
    uint32_t index = mx_inbound_first_index(room->inbound) + (uint32_t)below(20);
    struct buffer ours = { 0 };
    char theirs[512];
    size_t size = olm_export_inbound_group_session_length(room->their_inbound);

    CHECK(olm_export_inbound_group_session(
              room->their_inbound, (uint8_t *)theirs, sizeof theirs, index) != olm_error());
    CHECK_EQ_INT(mx_inbound_export(room->inbound, index, &ours), 0);
    check_same(&ours, theirs, size);
    CHECK_EQ_U64(size, MX_SESSION_EXPORT_CHARS);
    room_end_inbound(room);
    CHECK_EQ_INT(mx_inbound_import((struct span){ theirs, size }, &room->inbound), 0);
    room->their_inbound = olm_inbound_group_session(memory(olm_inbound_group_session_size()));
    CHECK(olm_import_inbound_group_session(room->their_inbound, (uint8_t *)ours.bytes, ours.size) !=
          olm_error());
    CHECK(!mx_inbound_is_verified(room->inbound));
    buffer_free(&ours);
}

static void room_send(struct room *room)
{
    struct mail *mail = mail_add();
    size_t size = olm_group_encrypt_message_length(room->their_outbound, mail->plaintext.size);
    char *theirs = memory(size);

    mail->index = mx_outbound_index(room->outbound);
    CHECK_EQ_U64(olm_outbound_group_session_message_index(room->their_outbound), mail->index);
    CHECK_EQ_U64(olm_group_encrypt(room->their_outbound, (uint8_t *)mail->plaintext.bytes,
                     mail->plaintext.size, (uint8_t *)theirs, size),
        size);
    CHECK_EQ_INT(
        mx_outbound_encrypt(room->outbound, span_of_buffer(&mail->plaintext), &mail->body), 0);
    check_same(&mail->body, theirs, size);
    free(theirs);
}

static char *libolm_group_decrypt(OlmInboundGroupSession *session, const struct mail *mail,
    size_t *ret_size, const char **ret_error, uint32_t *ret_index)
{
    char *copy = copy_of(mail->body.bytes, mail->body.size), *plaintext = NULL;
    size_t size = olm_group_decrypt_max_plaintext_length(session, (uint8_t *)copy, mail->body.size);

    free(copy);
    if (size != olm_error()) {
        copy = copy_of(mail->body.bytes, mail->body.size);
        plaintext = memory(size);
        size = olm_group_decrypt(
            session, (uint8_t *)copy, mail->body.size, (uint8_t *)plaintext, size, ret_index);
        free(copy);
    }
    if (size == olm_error()) {
        *ret_error = olm_inbound_group_session_last_error(session);
        free(plaintext);
        return NULL;
    }
    *ret_size = size;
    return plaintext;
}

static void room_receive(struct room *room, const struct mail *mail, bool is_corrupted)
{
    uint32_t index = 0, their_index = 0;
    struct buffer out = { 0 };
    const char *error = "";
    size_t size = 0;
    int rc = mx_inbound_decrypt(room->inbound, span_of_buffer(&mail->body), &out, &index);
    char *plaintext = libolm_group_decrypt(room->their_inbound, mail, &size, &error, &their_index);

    if (check_same_result(rc, &out, plaintext, size, error, is_corrupted)) {
        CHECK(!is_corrupted);
        CHECK_EQ_U64(index, mail->index);
        CHECK_EQ_U64(their_index, mail->index);
        check_same(&out, mail->plaintext.bytes, mail->plaintext.size);
    }
    CHECK_EQ_INT(mx_inbound_is_verified(room->inbound),
        olm_inbound_group_session_is_verified(room->their_inbound) != 0);
    CHECK_EQ_U64(mx_inbound_first_index(room->inbound),
        olm_inbound_group_session_first_known_index(room->their_inbound));
    buffer_free(&out);
}

static void room_restart(struct room *room)
{
    const struct mx_pickle_key key = { { 7 } };
    struct buffer outbound = { 0 }, inbound = { 0 };

    tape_renew();
    CHECK_EQ_INT(mx_outbound_pickle(room->outbound, &key, &tape_random, &outbound), 0);
    CHECK_EQ_INT(mx_inbound_pickle(room->inbound, &key, &tape_random, &inbound), 0);
    mx_outbound_destroy(room->outbound);
    mx_inbound_destroy(room->inbound);
    CHECK_EQ_INT(mx_outbound_unpickle(span_of_buffer(&outbound), &key, &room->outbound), 0);
    CHECK_EQ_INT(mx_inbound_unpickle(span_of_buffer(&inbound), &key, &room->inbound), 0);
    buffer_free(&outbound);
    buffer_free(&inbound);
}

static void room_talk(void)
{
    uint8_t *random = tape_renew();
    struct room room = { 0 };
    char ours[MX_SESSION_ID_CHARS + 1], theirs[128];

    room.their_outbound = olm_outbound_group_session(memory(olm_outbound_group_session_size()));
    CHECK(olm_init_outbound_group_session(room.their_outbound, random, TAPE_BYTES) != olm_error());
    CHECK_EQ_INT(mx_outbound_create(&tape_random, &room.outbound), 0);
    mx_outbound_id(room.outbound, ours);
    CHECK_EQ_U64(
        olm_outbound_group_session_id(room.their_outbound, (uint8_t *)theirs, sizeof theirs),
        MX_SESSION_ID_CHARS);
    CHECK(memcmp(ours, theirs, MX_SESSION_ID_CHARS) == 0);
    for (size_t i = below(5); i > 0; i--)
        room_send(&room);
    room_join(&room);
    for (size_t turn = 0; turn < 6; turn++) {
        for (size_t i = below(below(30) == 0 ? 300 : 12); i > 0; i--)
            room_send(&room);
        for (size_t i = below(24); mail_count > 0 && i > 0; i--) {
            size_t index = below(mail_count);
            unsigned fate = (unsigned)below(10);

            if (fate == 0)
                mail_corrupt(&mails[index]);
            if (fate != 1)
                room_receive(&room, &mails[index], fate == 0);
            if (fate < 5)
                mail_remove(index);
        }
        if (below(4) == 0)
            room_restart(&room);
        if (below(6) == 0)
            room_forward(&room);
        else if (below(10) == 0)
            room_join(&room);
    }
    mail_clear();
    room_end_inbound(&room);
    mx_outbound_destroy(room.outbound);
    olm_clear_outbound_group_session(room.their_outbound);
    free(room.their_outbound);
}

TEST_LONG(libolm, megolm_conversations_are_equal, 300)
{
    for (uint64_t seed; check_each_seed(&seed, check_rounds(1000, 10000));) {
        base_random_init(&dice, seed);
        room_talk();
    }
}

/* ---- sas ------------------------------------------------------------------------------------- */

struct verifier {
    struct mx_sas *ours;
    OlmSAS *theirs;
    char key[MX_KEY_CHARS + 1];
};

static void verifier_create(struct verifier *verifier)
{
    uint8_t *random = tape_renew();
    char key[64];

    verifier->theirs = olm_sas(memory(olm_sas_size()));
    CHECK(olm_create_sas(verifier->theirs, random, TAPE_BYTES) != olm_error());
    CHECK_EQ_INT(mx_sas_create(&tape_random, &verifier->ours), 0);
    mx_key_text(mx_sas_key(verifier->ours), verifier->key);
    CHECK(olm_sas_get_pubkey(verifier->theirs, key, sizeof key) != olm_error());
    CHECK(memcmp(key, verifier->key, MX_KEY_CHARS) == 0);
}

static void verifier_meet(struct verifier *verifier, const struct verifier *peer)
{
    char *key = copy_of(peer->key, MX_KEY_CHARS);

    CHECK_EQ_INT(mx_sas_set_their_key(verifier->ours, mx_sas_key(peer->ours)), 0);
    CHECK(olm_sas_set_their_key(verifier->theirs, key, MX_KEY_CHARS) != olm_error());
    free(key);
}

static void verifier_destroy(struct verifier *verifier)
{
    mx_sas_destroy(verifier->ours);
    olm_clear_sas(verifier->theirs);
    free(verifier->theirs);
}

static void check_same_code(const struct verifier *verifier, const struct verifier *peer,
    const struct mx_sas_flow *flow, const char *first, const char *second)
{
    struct mx_sas_code code;
    uint8_t bytes[6];
    char info[512];
    uint64_t bits = 0;
    bool starts = flow->we_started;

    (void)snprintf(info, sizeof info, "MATRIX_KEY_VERIFICATION_SAS|%s|%s|%s|%s|txn", first,
        starts ? verifier->key : peer->key, second, starts ? peer->key : verifier->key);
    CHECK(olm_sas_generate_bytes(verifier->theirs, info, strlen(info), bytes, 6) != olm_error());
    CHECK_EQ_INT(mx_sas_show(verifier->ours, flow, &code), 0);
    for (int i = 0; i < 6; i++)
        bits = bits << 8 | bytes[i];
    for (int i = 0; i < 3; i++)
        CHECK_EQ_U64(code.decimals[i], (bits >> (35 - 13 * i) & 0x1fff) + 1000);
    for (int i = 0; i < 7; i++)
        CHECK_EQ_U64(code.emoji[i], bits >> (42 - 6 * i) & 0x3f);
}

static void check_same_mac(
    const struct verifier *verifier, const struct mx_sas_flow *flow, const char *info, size_t size)
{
    struct mx_sas_input input = { .key_id = SPAN("KEY_IDS"), .text = { (char *)tape, size } };
    char ours[MX_SAS_MAC_CHARS + 1], theirs[64];

    CHECK_EQ_INT(mx_sas_mac(verifier->ours, flow, &input, ours), 0);
    CHECK(olm_sas_calculate_mac_fixed_base64(verifier->theirs, tape, size, info, strlen(info),
              theirs, sizeof theirs) != olm_error());
    CHECK(memcmp(ours, theirs, MX_SAS_MAC_CHARS) == 0);
    input.method = MX_SAS_LEGACY;
    CHECK_EQ_INT(mx_sas_mac(verifier->ours, flow, &input, ours), 0);
    CHECK(olm_sas_calculate_mac(verifier->theirs, tape, size, info, strlen(info), theirs,
              sizeof theirs) != olm_error());
    CHECK(memcmp(ours, theirs, MX_SAS_MAC_CHARS) == 0);
}

TEST(libolm, verifications_are_equal)
{
    const struct mx_sas_party alice = { SPAN("@alice:x"), SPAN("ADEV") };
    const struct mx_sas_party bob = { SPAN("@bob:x"), SPAN("BDEV") };
    struct verifier a, b;

    for (uint64_t seed; check_each_seed(&seed, check_rounds(1000, 10000));) {
        base_random_init(&dice, seed);
        struct mx_sas_flow flow = { alice, bob, SPAN("txn"), below(2) == 0 };
        const char *names[] = { "@alice:x|ADEV", "@bob:x|BDEV" };

        verifier_create(&a);
        verifier_create(&b);
        verifier_meet(&a, &b);
        verifier_meet(&b, &a);
        check_same_code(&a, &b, &flow, names[!flow.we_started], names[flow.we_started]);
        check_same_mac(&a, &flow, "MATRIX_KEY_VERIFICATION_MAC@alice:xADEV@bob:xBDEVtxnKEY_IDS",
            below(sizeof tape));
        verifier_destroy(&a);
        verifier_destroy(&b);
    }
}
