/* SPDX-License-Identifier: Apache-2.0 */
/* driver_libolm.c: the driver's verbs on libolm. A reason is libolm's own name of the error. libolm
 * reads most texts in place, so each call gets a copy. */
#include <olm/inbound_group_session.h>
#include <olm/olm.h>
#include <olm/outbound_group_session.h>
#include <olm/sas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { RANDOM_BYTES = 1024, KEY_CHARS = 43 };

static struct driver_list accounts, sessions, groups, inbounds, verifications;

static void *theirs_memory(size_t size)
{
    void *memory = calloc(1, size + 1);

    driver_check(memory != NULL, "out of memory");
    return memory;
}

static char *theirs_copy(struct span text)
{
    char *copy = theirs_memory(text.size);

    memcpy(copy, text.at, text.size);
    return copy;
}

/* Return bytes that libolm may overwrite; valid until the next call. */
static uint8_t *theirs_random(void)
{
    static uint8_t bytes[RANDOM_BYTES];

    driver_random(NULL, bytes, sizeof bytes);
    return bytes;
}

static void theirs_check(size_t result, const char *what)
{
    driver_check(result != olm_error(), what);
}

/* ---- olm -------------------------------------------------------------------------------------- */

/* Write the value of a member of libolm's JSON. */
static void theirs_put_member(
    struct driver_line *line, const char *json, size_t size, const char *name)
{
    const char *at = memmem(json, size, name, strlen(name));

    driver_check(at != NULL, "libolm shows no key");
    driver_put_text(line, at + strlen(name), KEY_CHARS);
}

static const char *theirs_account(struct driver_line *line)
{
    OlmAccount *account = olm_account(theirs_memory(olm_account_size()));
    char json[256];
    size_t size;

    theirs_check(olm_create_account(account, theirs_random(), RANDOM_BYTES), "an account");
    size = olm_account_identity_keys(account, json, sizeof json);
    theirs_check(size, "identity keys");
    driver_add(line, &accounts, account);
    theirs_put_member(line, json, size, "\"curve25519\":\"");
    theirs_put_member(line, json, size, "\"ed25519\":\"");
    return NULL;
}

static const char *theirs_sign(struct driver_line *line)
{
    OlmAccount *account = driver_get(line, 1, &accounts);
    struct buffer bytes = driver_bytes(line, 2);
    char signature[128];
    size_t size = olm_account_signature_length(account);

    theirs_check(
        olm_account_sign(account, bytes.bytes, bytes.size, signature, size), "a signature");
    driver_put_text(line, signature, size);
    buffer_free(&bytes);
    return NULL;
}

static const char *theirs_one_time(struct driver_line *line)
{
    OlmAccount *account = driver_get(line, 1, &accounts);
    char json[256];
    size_t size;
    const char *at;

    theirs_check(olm_account_generate_one_time_keys(account, 1, theirs_random(), RANDOM_BYTES),
        "a one-time key");
    size = olm_account_one_time_keys(account, json, sizeof json - 1);
    theirs_check(size, "one-time keys");
    json[size] = '\0';
    at = strstr(json, ":{\""); /* {"curve25519":{"AAAAAQ":"KEY"}} */
    at = at == NULL ? NULL : strstr(at, "\":\"");
    driver_check(at != NULL, "libolm shows no one-time key");
    driver_put_text(line, at + 3, KEY_CHARS);
    olm_account_mark_keys_as_published(account);
    return NULL;
}

static OlmSession *theirs_session(void)
{
    return olm_session(theirs_memory(olm_session_size()));
}

static const char *theirs_olm_out(struct driver_line *line)
{
    OlmSession *session = theirs_session();

    if (olm_create_outbound_session(session, driver_get(line, 1, &accounts), line->words[2].at,
            line->words[2].size, line->words[3].at, line->words[3].size, theirs_random(),
            RANDOM_BYTES) == olm_error())
        return olm_session_last_error(session);
    driver_add(line, &sessions, session);
    return NULL;
}

/* Decrypt and write the plaintext, or return the reason. */
static const char *theirs_open(
    struct driver_line *line, OlmSession *session, size_t type, struct span body)
{
    char *copy = theirs_copy(body), *plaintext;
    size_t size = olm_decrypt_max_plaintext_length(session, type, copy, body.size);

    free(copy);
    if (size == olm_error())
        return olm_session_last_error(session);
    plaintext = theirs_memory(size);
    copy = theirs_copy(body);
    size = olm_decrypt(session, type, copy, body.size, plaintext, size);
    free(copy);
    if (size != olm_error())
        driver_put_hex(line, plaintext, size);
    free(plaintext);
    return size == olm_error() ? olm_session_last_error(session) : NULL;
}

/* Like ours: a message that does not decrypt makes no session and uses up no one-time key. */
static const char *theirs_olm_in(struct driver_line *line)
{
    OlmAccount *account = driver_get(line, 1, &accounts);
    OlmSession *session = theirs_session();
    char *copy = theirs_copy(line->words[3]);
    size_t made = olm_create_inbound_session_from(
        session, account, line->words[2].at, line->words[2].size, copy, line->words[3].size);
    const char *reason;

    free(copy);
    if (made == olm_error())
        return olm_session_last_error(session);
    driver_add(line, &sessions, session);
    reason = theirs_open(line, session, 0, line->words[3]);
    if (reason == NULL)
        theirs_check(olm_remove_one_time_keys(account, session), "a one-time key");
    return reason;
}

static const char *theirs_olm_matches(struct driver_line *line)
{
    char *copy = theirs_copy(line->words[2]);

    driver_put_number(line, olm_matches_inbound_session(
                                driver_get(line, 1, &sessions), copy, line->words[2].size) == 1);
    free(copy);
    return NULL;
}

static const char *theirs_olm_encrypt(struct driver_line *line)
{
    OlmSession *session = driver_get(line, 1, &sessions);
    struct buffer plaintext = driver_bytes(line, 2);
    size_t size = olm_encrypt_message_length(session, plaintext.size);
    char *body = theirs_memory(size);

    driver_put_number(line, olm_encrypt_message_type(session));
    theirs_check(olm_encrypt(session, plaintext.bytes, plaintext.size, theirs_random(),
                     olm_encrypt_random_length(session), body, size),
        "libolm does not encrypt");
    driver_put_text(line, body, size);
    free(body);
    buffer_free(&plaintext);
    return NULL;
}

static const char *theirs_olm_decrypt(struct driver_line *line)
{
    return theirs_open(
        line, driver_get(line, 1, &sessions), driver_number(line, 2), line->words[3]);
}

/* ---- megolm ----------------------------------------------------------------------------------- */

static const char *theirs_group(struct driver_line *line)
{
    OlmOutboundGroupSession *group =
        olm_outbound_group_session(theirs_memory(olm_outbound_group_session_size()));
    uint8_t id[64];
    size_t size;

    theirs_check(olm_init_outbound_group_session(group, theirs_random(), RANDOM_BYTES), "a group");
    size = olm_outbound_group_session_id(group, id, sizeof id);
    theirs_check(size, "a group's id");
    driver_add(line, &groups, group);
    driver_put_text(line, id, size);
    return NULL;
}

static const char *theirs_group_key(struct driver_line *line)
{
    uint8_t key[512];
    size_t size = olm_outbound_group_session_key(driver_get(line, 1, &groups), key, sizeof key);

    theirs_check(size, "a group's key");
    driver_put_text(line, key, size);
    return NULL;
}

static const char *theirs_group_encrypt(struct driver_line *line)
{
    OlmOutboundGroupSession *group = driver_get(line, 1, &groups);
    struct buffer plaintext = driver_bytes(line, 2);
    size_t size = olm_group_encrypt_message_length(group, plaintext.size);
    uint8_t *body = theirs_memory(size);

    theirs_check(
        olm_group_encrypt(group, (const uint8_t *)plaintext.bytes, plaintext.size, body, size),
        "libolm does not encrypt");
    driver_put_text(line, body, size);
    free(body);
    buffer_free(&plaintext);
    return NULL;
}

static const char *theirs_add_inbound(struct driver_line *line,
    size_t (*init)(OlmInboundGroupSession *session, const uint8_t *key, size_t size))
{
    OlmInboundGroupSession *inbound =
        olm_inbound_group_session(theirs_memory(olm_inbound_group_session_size()));
    uint8_t id[64];
    size_t size;

    if (init(inbound, (const uint8_t *)line->words[1].at, line->words[1].size) == olm_error())
        return olm_inbound_group_session_last_error(inbound);
    size = olm_inbound_group_session_id(inbound, id, sizeof id);
    theirs_check(size, "an id");
    driver_add(line, &inbounds, inbound);
    driver_put_text(line, id, size);
    return NULL;
}

static const char *theirs_inbound(struct driver_line *line)
{
    return theirs_add_inbound(line, olm_init_inbound_group_session);
}

static const char *theirs_import(struct driver_line *line)
{
    return theirs_add_inbound(line, olm_import_inbound_group_session);
}

static const char *theirs_inbound_decrypt(struct driver_line *line)
{
    OlmInboundGroupSession *inbound = driver_get(line, 1, &inbounds);
    struct span body = line->words[2];
    uint8_t *copy = (uint8_t *)theirs_copy(body), *plaintext;
    size_t size = olm_group_decrypt_max_plaintext_length(inbound, copy, body.size);
    uint32_t index = 0;

    free(copy);
    if (size == olm_error())
        return olm_inbound_group_session_last_error(inbound);
    plaintext = theirs_memory(size);
    copy = (uint8_t *)theirs_copy(body);
    size = olm_group_decrypt(inbound, copy, body.size, plaintext, size, &index);
    free(copy);
    if (size != olm_error()) {
        driver_put_hex(line, plaintext, size);
        driver_put_number(line, index);
    }
    free(plaintext);
    return size == olm_error() ? olm_inbound_group_session_last_error(inbound) : NULL;
}

static const char *theirs_inbound_export(struct driver_line *line)
{
    OlmInboundGroupSession *inbound = driver_get(line, 1, &inbounds);
    uint8_t text[512];
    size_t size = olm_export_inbound_group_session(
        inbound, text, sizeof text, (uint32_t)driver_number(line, 2));

    if (size == olm_error())
        return olm_inbound_group_session_last_error(inbound);
    driver_put_text(line, text, olm_export_inbound_group_session_length(inbound));
    return NULL;
}

/* ---- sas -------------------------------------------------------------------------------------- */

struct theirs_sas {
    OlmSAS *sas;
    char key[KEY_CHARS];
    struct buffer their_key;
};

static const char *theirs_sas(struct driver_line *line)
{
    struct theirs_sas *it = theirs_memory(sizeof *it);

    it->sas = olm_sas(theirs_memory(olm_sas_size()));
    theirs_check(olm_create_sas(it->sas, theirs_random(), RANDOM_BYTES), "a verification");
    theirs_check(olm_sas_get_pubkey(it->sas, it->key, sizeof it->key), "a key");
    driver_add(line, &verifications, it);
    driver_put_text(line, it->key, sizeof it->key);
    return NULL;
}

static const char *theirs_sas_their_key(struct driver_line *line)
{
    struct theirs_sas *it = driver_get(line, 1, &verifications);
    char *copy = theirs_copy(line->words[2]);
    size_t size = olm_sas_set_their_key(it->sas, copy, line->words[2].size);

    free(copy);
    (void)buffer_span(&it->their_key, line->words[2]);
    return size == olm_error() ? olm_sas_last_error(it->sas) : NULL;
}

static const char *theirs_sas_show(struct driver_line *line)
{
    struct theirs_sas *it = driver_get(line, 1, &verifications);
    struct span own = { it->key, KEY_CHARS }, their = { it->their_key.bytes, it->their_key.size };
    struct span names[2][3] = { { line->words[2], line->words[3], own },
        { line->words[4], line->words[5], their } };
    size_t second = driver_number(line, 7); /* we started: we are the first */
    struct buffer info = { 0 };
    uint8_t bytes[6];
    uint64_t bits = 0;

    (void)buffer_text(&info, "MATRIX_KEY_VERIFICATION_SAS|");
    for (size_t i = 0; i < 6; i++) {
        (void)buffer_span(&info, names[i < 3 ? 1 - second : second][i % 3]);
        (void)buffer_text(&info, "|");
    }
    (void)buffer_span(&info, line->words[6]);
    theirs_check(olm_sas_generate_bytes(it->sas, info.bytes, info.size, bytes, 6), "bytes");
    buffer_free(&info);
    for (size_t i = 0; i < 6; i++)
        bits = bits << 8 | bytes[i];
    for (int i = 0; i < 3; i++)
        driver_put_number(line, (bits >> (35 - 13 * i) & 0x1fff) + 1000);
    for (int i = 0; i < 7; i++)
        driver_put_number(line, bits >> (42 - 6 * i) & 0x3f);
    return NULL;
}

static const char *theirs_sas_mac(struct driver_line *line)
{
    struct theirs_sas *it = driver_get(line, 1, &verifications);
    size_t first = driver_number(line, 7) == 1 ? 4 : 2; /* the sender of the MAC */
    struct buffer info = { 0 };
    char mac[64];
    size_t size = olm_sas_mac_length(it->sas);

    (void)buffer_text(&info, "MATRIX_KEY_VERIFICATION_MAC");
    (void)buffer_span(&info, line->words[first]);
    (void)buffer_span(&info, line->words[first + 1]);
    (void)buffer_span(&info, line->words[6 - first]);
    (void)buffer_span(&info, line->words[7 - first]);
    (void)buffer_span(&info, line->words[6]);
    (void)buffer_span(&info, line->words[8]);
    theirs_check(olm_sas_calculate_mac_fixed_base64(it->sas, line->words[9].at, line->words[9].size,
                     info.bytes, info.size, mac, size),
        "a MAC");
    buffer_free(&info);
    driver_put_text(line, mac, size);
    return NULL;
}

#define DRIVER_ROW(name, count, text) .name = theirs_##name,
const struct driver_backend driver_libolm = { DRIVER_VERBS(DRIVER_ROW) };
