/* SPDX-License-Identifier: Apache-2.0 */
/* driver_ours.c: the driver's verbs on mxcrypto.h. A reason is the code's name, so that the script can
 * compare it. */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "matrix/crypto/mxcrypto.h"

static const struct mx_random ours_random = { .fill = driver_random };
static struct driver_list accounts, sessions, groups, inbounds, verifications;

static const char *ours_reason(int rc)
{
#define OURS_NAME(name, number, text)                                                              \
    if (rc == name)                                                                                \
        return #name;
    MX_ERRORS(OURS_NAME)
#undef OURS_NAME
    driver_check(false, "an error has no name");
    return NULL;
}

static struct mx_key ours_key(const struct driver_line *line, size_t word)
{
    struct mx_key key = { 0 };

    driver_check(mx_key_parse(line->words[word], &key) == 0, "not a key");
    return key;
}

static void ours_put_key(struct driver_line *line, const struct mx_key *key)
{
    char text[MX_KEY_CHARS + 1];

    mx_key_text(key, text);
    driver_put_text(line, text, MX_KEY_CHARS);
}

/* ---- olm -------------------------------------------------------------------------------------- */

static const char *ours_account(struct driver_line *line)
{
    struct mx_account *account = NULL;

    driver_check(mx_account_create(&ours_random, &account) == 0, "out of memory");
    driver_add(line, &accounts, account);
    ours_put_key(line, mx_account_identity_key(account));
    ours_put_key(line, mx_account_signing_key(account));
    return NULL;
}

static const char *ours_sign(struct driver_line *line)
{
    struct buffer bytes = driver_bytes(line, 2), text = { 0 };
    uint8_t signature[MX_SIGNATURE_BYTES];

    mx_account_sign(driver_get(line, 1, &accounts), bytes.bytes, bytes.size, signature);
    driver_check(mx_base64_encode(signature, sizeof signature, &text) == 0, "out of memory");
    driver_put_text(line, text.bytes, text.size);
    buffer_free(&bytes);
    buffer_free(&text);
    return NULL;
}

static const char *ours_one_time(struct driver_line *line)
{
    struct mx_account *account = driver_get(line, 1, &accounts);
    struct mx_one_time_key key = { 0 };

    driver_check(
        mx_account_add_one_time_keys(account, 1, &ours_random) == 0 &&
            mx_account_one_time_key_at(account, mx_account_one_time_key_count(account) - 1, &key),
        "a one-time key");
    mx_account_mark_published(account, key.id);
    ours_put_key(line, &key.key);
    return NULL;
}

static const char *ours_olm_out(struct driver_line *line)
{
    struct mx_key identity = ours_key(line, 2), one_time = ours_key(line, 3);
    struct mx_olm *olm = NULL;
    int rc = mx_olm_create_outbound(
        driver_get(line, 1, &accounts), &identity, &one_time, &ours_random, &olm);

    if (rc != 0)
        return ours_reason(rc);
    driver_add(line, &sessions, olm);
    return NULL;
}

static const char *ours_olm_in(struct driver_line *line)
{
    struct mx_key identity = ours_key(line, 2);
    struct buffer plaintext = { 0 };
    struct mx_olm *olm = NULL;
    int rc = mx_olm_create_inbound(
        driver_get(line, 1, &accounts), &identity, line->words[3], &olm, &plaintext);

    if (rc == 0) {
        driver_add(line, &sessions, olm);
        driver_put_hex(line, plaintext.bytes, plaintext.size);
    }
    buffer_free(&plaintext);
    return rc == 0 ? NULL : ours_reason(rc);
}

static const char *ours_olm_matches(struct driver_line *line)
{
    driver_put_number(line, mx_olm_matches(driver_get(line, 1, &sessions), line->words[2]));
    return NULL;
}

static const char *ours_olm_encrypt(struct driver_line *line)
{
    struct buffer plaintext = driver_bytes(line, 2), body = { 0 };
    enum mx_olm_type type;
    int rc = mx_olm_encrypt(driver_get(line, 1, &sessions),
        (struct span){ plaintext.bytes, plaintext.size }, &ours_random, &type, &body);

    if (rc == 0) {
        driver_put_number(line, type);
        driver_put_text(line, body.bytes, body.size);
    }
    buffer_free(&plaintext);
    buffer_free(&body);
    return rc == 0 ? NULL : ours_reason(rc);
}

static const char *ours_olm_decrypt(struct driver_line *line)
{
    struct buffer plaintext = { 0 };
    int rc = mx_olm_decrypt(driver_get(line, 1, &sessions),
        driver_number(line, 2) == 0 ? MX_OLM_PRE_KEY : MX_OLM_NORMAL, line->words[3], &plaintext);

    if (rc == 0)
        driver_put_hex(line, plaintext.bytes, plaintext.size);
    buffer_free(&plaintext);
    return rc == 0 ? NULL : ours_reason(rc);
}

/* ---- megolm ----------------------------------------------------------------------------------- */

static const char *ours_group(struct driver_line *line)
{
    struct mx_outbound *outbound = NULL;
    char id[MX_SESSION_ID_CHARS + 1];

    driver_check(mx_outbound_create(&ours_random, &outbound) == 0, "out of memory");
    mx_outbound_id(outbound, id);
    driver_add(line, &groups, outbound);
    driver_put_text(line, id, MX_SESSION_ID_CHARS);
    return NULL;
}

static const char *ours_group_key(struct driver_line *line)
{
    struct buffer key = { 0 };

    driver_check(mx_outbound_key(driver_get(line, 1, &groups), &key) == 0, "out of memory");
    driver_put_text(line, key.bytes, key.size);
    buffer_free(&key);
    return NULL;
}

static const char *ours_group_encrypt(struct driver_line *line)
{
    struct buffer plaintext = driver_bytes(line, 2), body = { 0 };
    int rc = mx_outbound_encrypt(
        driver_get(line, 1, &groups), (struct span){ plaintext.bytes, plaintext.size }, &body);

    if (rc == 0)
        driver_put_text(line, body.bytes, body.size);
    buffer_free(&plaintext);
    buffer_free(&body);
    return rc == 0 ? NULL : ours_reason(rc);
}

static const char *ours_add_inbound(struct driver_line *line, int rc, struct mx_inbound *inbound)
{
    char id[MX_SESSION_ID_CHARS + 1];

    if (rc != 0)
        return ours_reason(rc);
    mx_inbound_id(inbound, id);
    driver_add(line, &inbounds, inbound);
    driver_put_text(line, id, MX_SESSION_ID_CHARS);
    return NULL;
}

static const char *ours_inbound(struct driver_line *line)
{
    struct mx_inbound *inbound = NULL;
    int rc = mx_inbound_create(line->words[1], &inbound);

    return ours_add_inbound(line, rc, inbound);
}

static const char *ours_import(struct driver_line *line)
{
    struct mx_inbound *inbound = NULL;
    int rc = mx_inbound_import(line->words[1], &inbound);

    return ours_add_inbound(line, rc, inbound);
}

static const char *ours_inbound_decrypt(struct driver_line *line)
{
    struct buffer plaintext = { 0 };
    uint32_t index = 0;
    int rc = mx_inbound_decrypt(driver_get(line, 1, &inbounds), line->words[2], &plaintext, &index);

    if (rc == 0) {
        driver_put_hex(line, plaintext.bytes, plaintext.size);
        driver_put_number(line, index);
    }
    buffer_free(&plaintext);
    return rc == 0 ? NULL : ours_reason(rc);
}

static const char *ours_inbound_export(struct driver_line *line)
{
    struct buffer text = { 0 };
    int rc =
        mx_inbound_export(driver_get(line, 1, &inbounds), (uint32_t)driver_number(line, 2), &text);

    if (rc == 0)
        driver_put_text(line, text.bytes, text.size);
    buffer_free(&text);
    return rc == 0 ? NULL : ours_reason(rc);
}

/* ---- sas -------------------------------------------------------------------------------------- */

static const char *ours_sas(struct driver_line *line)
{
    struct mx_sas *sas = NULL;

    driver_check(mx_sas_create(&ours_random, &sas) == 0, "out of memory");
    driver_add(line, &verifications, sas);
    ours_put_key(line, mx_sas_key(sas));
    return NULL;
}

static const char *ours_sas_their_key(struct driver_line *line)
{
    struct mx_key key = ours_key(line, 2);
    int rc = mx_sas_set_their_key(driver_get(line, 1, &verifications), &key);

    return rc == 0 ? NULL : ours_reason(rc);
}

static struct mx_sas_flow ours_flow(const struct driver_line *line)
{
    return (struct mx_sas_flow){ .us = { line->words[2], line->words[3] },
        .them = { line->words[4], line->words[5] },
        .transaction = line->words[6] };
}

static const char *ours_sas_show(struct driver_line *line)
{
    struct mx_sas_flow flow = ours_flow(line);
    struct mx_sas_code code;
    int rc;

    flow.we_started = driver_number(line, 7) == 1;
    rc = mx_sas_show(driver_get(line, 1, &verifications), &flow, &code);
    if (rc != 0)
        return ours_reason(rc);
    for (size_t i = 0; i < 3; i++)
        driver_put_number(line, code.decimals[i]);
    for (size_t i = 0; i < 7; i++)
        driver_put_number(line, code.emoji[i]);
    return NULL;
}

static const char *ours_sas_mac(struct driver_line *line)
{
    struct mx_sas_flow flow = ours_flow(line);
    struct mx_sas_input input = { .method = MX_SAS_V2,
        .is_theirs = driver_number(line, 7) == 1,
        .key_id = line->words[8],
        .text = line->words[9] };
    char mac[MX_SAS_MAC_CHARS + 1];
    int rc = mx_sas_mac(driver_get(line, 1, &verifications), &flow, &input, mac);

    if (rc != 0)
        return ours_reason(rc);
    driver_put_text(line, mac, MX_SAS_MAC_CHARS);
    return NULL;
}

#define DRIVER_ROW(name, count, text) .name = ours_##name,
const struct driver_backend driver_ours = { DRIVER_VERBS(DRIVER_ROW) };
