/* SPDX-License-Identifier: Apache-2.0 */
/* verify_content.c: SAS messages (Matrix specification, Client-Server API, "Short Authentication
 * String (SAS) verification"). The deprecated key agreement `curve25519` is not offered: every peer
 * of today knows its successor. */
#include "matrix/client/verify_content.h"

#include <stdlib.h>

#include <troupe/error.h>

#include "base/assert.h"

#define AGREEMENT "curve25519-hkdf-sha256"

/* The best one first. The second one is the first's name before it was stable. */
static const char *const content_macs[] = {
    "hkdf-hmac-sha256.v2",
    "org.matrix.msc3783.hkdf-hmac-sha256",
    "hkdf-hmac-sha256",
};
enum { CONTENT_MACS = sizeof content_macs / sizeof content_macs[0] };

static const char *const content_strings[] = { "decimal", "emoji" }; /* bits 1 and 2 */

/* ---- lists ------------------------------------------------------------------------------------ */

static void content_put_list(
    struct json_writer *writer, const char *name, const char *const *items, size_t count)
{
    json_put_array(writer, name);
    for (size_t i = 0; i < count; i++)
        json_put_text(writer, NULL, items[i]);
    json_put_end(writer);
}

/* Return whether a list has an item. */
static bool content_has(const struct json *list, const char *item)
{
    struct span text;

    for (struct json_iter it = json_iterate(list); json_next(&it);)
        if (json_string(it.value, &text) && span_is(text, item))
            return true;
    return false;
}

/* Return whether a member is a list of strings. */
static bool content_is_list(const struct json *list)
{
    struct span text;

    for (struct json_iter it = json_iterate(list); json_next(&it);)
        if (!json_string(it.value, &text))
            return false;
    return json_kind(list) == JSON_ARRAY;
}

static uint8_t content_read_strings(const struct json *list)
{
    uint8_t strings = 0;

    for (size_t i = 0; i < 2; i++)
        if (content_has(list, content_strings[i]))
            strings |= (uint8_t)(1u << i);
    return strings;
}

int mxclient_sas_read_methods(const struct json *content)
{
    const struct json *methods = json_get(content, "methods");

    if (!content_is_list(methods))
        return MXCLIENT_FAILED_INVALID;
    return content_has(methods, MXCLIENT_SAS_METHOD) ? 0 : MXCLIENT_FAILED_METHOD;
}

void mxclient_sas_put_methods(struct json_writer *writer)
{
    content_put_list(writer, "methods", (const char *const[]){ MXCLIENT_SAS_METHOD }, 1);
}

/* ---- start and accept ------------------------------------------------------------------------- */

void mxclient_sas_put_offer(struct json_writer *writer)
{
    json_put_text(writer, "method", MXCLIENT_SAS_METHOD);
    content_put_list(writer, "key_agreement_protocols", (const char *const[]){ AGREEMENT }, 1);
    content_put_list(writer, "hashes", (const char *const[]){ "sha256" }, 1);
    content_put_list(writer, "message_authentication_codes", content_macs, CONTENT_MACS);
    content_put_list(writer, "short_authentication_string", content_strings, 2);
}

int mxclient_sas_read_offer(const struct json *content, struct mxclient_sas_choice *ret_choice)
{
    const struct json *agreements = json_get(content, "key_agreement_protocols");
    const struct json *hashes = json_get(content, "hashes");
    const struct json *macs = json_get(content, "message_authentication_codes");
    const struct json *strings = json_get(content, "short_authentication_string");
    struct mxclient_sas_choice choice = { .strings = content_read_strings(strings) };
    struct span method;

    if (!json_string(json_get(content, "method"), &method))
        return MXCLIENT_FAILED_INVALID;
    if (!span_is(method, MXCLIENT_SAS_METHOD))
        return MXCLIENT_FAILED_METHOD;
    if (!content_is_list(agreements) || !content_is_list(hashes) || !content_is_list(macs) ||
        !content_is_list(strings))
        return MXCLIENT_FAILED_INVALID;
    while (choice.mac < CONTENT_MACS && !content_has(macs, content_macs[choice.mac]))
        choice.mac++;
    if (!content_has(agreements, AGREEMENT) || !content_has(hashes, "sha256") ||
        choice.mac == CONTENT_MACS || choice.strings == 0)
        return MXCLIENT_FAILED_METHOD;
    *ret_choice = choice;
    return 0;
}

void mxclient_sas_put_choice(
    struct json_writer *writer, const struct mxclient_sas_choice *choice, const char *commitment)
{
    tr_assert(choice->mac < CONTENT_MACS);
    json_put_text(writer, "method", MXCLIENT_SAS_METHOD);
    json_put_text(writer, "key_agreement_protocol", AGREEMENT);
    json_put_text(writer, "hash", "sha256");
    json_put_text(writer, "message_authentication_code", content_macs[choice->mac]);
    json_put_array(writer, "short_authentication_string");
    for (size_t i = 0; i < 2; i++)
        if ((choice->strings >> i & 1) != 0)
            json_put_text(writer, NULL, content_strings[i]);
    json_put_end(writer);
    json_put_text(writer, "commitment", commitment);
}

int mxclient_sas_read_choice(const struct json *content, struct mxclient_sas_choice *ret_choice,
    char ret_commitment[MX_SAS_COMMITMENT_CHARS + 1])
{
    const struct json *strings = json_get(content, "short_authentication_string");
    struct mxclient_sas_choice choice = { .strings = content_read_strings(strings) };
    struct span agreement, hash, mac, commitment;

    if (!json_string(json_get(content, "key_agreement_protocol"), &agreement) ||
        !json_string(json_get(content, "hash"), &hash) ||
        !json_string(json_get(content, "message_authentication_code"), &mac) ||
        !content_is_list(strings) || !json_string(json_get(content, "commitment"), &commitment))
        return MXCLIENT_FAILED_INVALID;
    while (commitment.size > 0 && commitment.at[commitment.size - 1] == '=')
        commitment.size--;
    if (commitment.size != MX_SAS_COMMITMENT_CHARS)
        return MXCLIENT_FAILED_INVALID;
    while (choice.mac < CONTENT_MACS && !span_is(mac, content_macs[choice.mac]))
        choice.mac++;
    if (!span_is(agreement, AGREEMENT) || !span_is(hash, "sha256") || choice.mac == CONTENT_MACS ||
        choice.strings == 0)
        return MXCLIENT_FAILED_METHOD;
    memcpy(ret_commitment, commitment.at, commitment.size);
    ret_commitment[commitment.size] = '\0';
    *ret_choice = choice;
    return 0;
}

/* ---- mac -------------------------------------------------------------------------------------- */

void mxclient_sas_key_init(
    struct mxclient_sas_key *key, struct span name, const struct mx_key *value)
{
    tr_assert(name.size <= MXCLIENT_ID_BYTES_MAX);
    *key = (struct mxclient_sas_key){ .id = "ed25519:" };
    memcpy(key->id + sizeof "ed25519:" - 1, name.at, name.size);
    mx_key_text(value, key->text);
}

static enum mx_sas_method content_method(const struct mxclient_sas_choice *choice)
{
    enum mx_sas_method method = MX_SAS_LEGACY;
    bool is_known = mx_sas_method_parse(span_of(content_macs[choice->mac]), &method);

    tr_assert(is_known);
    return method;
}

int mxclient_sas_put_macs(struct json_writer *writer, const struct mx_sas *sas,
    const struct mx_sas_flow *flow, const struct mxclient_sas_choice *choice,
    const struct mxclient_sas_key *key)
{
    struct mx_sas_input of_key = {
        .method = content_method(choice), .key_id = span_of(key->id), .text = span_of(key->text)
    };
    struct mx_sas_input of_list = {
        .method = of_key.method, .key_id = SPAN("KEY_IDS"), .text = span_of(key->id)
    };
    char mac[MX_SAS_MAC_CHARS + 1], list[MX_SAS_MAC_CHARS + 1];
    int rc = mx_sas_mac(sas, flow, &of_key, mac);

    if (rc == 0)
        rc = mx_sas_mac(sas, flow, &of_list, list);
    if (rc != 0)
        return rc;
    json_put_object(writer, "mac");
    json_put_text(writer, key->id, mac);
    json_put_end(writer);
    json_put_text(writer, "keys", list);
    return 0;
}

static int content_compare(const void *a, const void *b)
{
    return span_compare(*(const struct span *)a, *(const struct span *)b);
}

/* Append the sorted ids of a mac, with commas between. Two equal ids have no order: INVALID. */
static int content_list_ids(const struct json *macs, struct buffer *out)
{
    struct span ids[MXCLIENT_SAS_MACS_MAX];
    size_t count = json_count(macs), i = 0;

    if (json_kind(macs) != JSON_OBJECT || count == 0 || count > MXCLIENT_SAS_MACS_MAX)
        return MXCLIENT_FAILED_INVALID;
    for (struct json_iter it = json_iterate(macs); json_next(&it);)
        ids[i++] = it.key;
    qsort(ids, count, sizeof ids[0], content_compare);
    for (i = 0; i < count; i++) {
        if (ids[i].size > MXCLIENT_ID_BYTES_MAX || (i > 0 && span_equal(ids[i], ids[i - 1])))
            return MXCLIENT_FAILED_INVALID;
        (void)buffer_text(out, i == 0 ? "" : ",");
        (void)buffer_span(out, ids[i]);
    }
    return out->failed;
}

static int content_check(const struct mx_sas *sas, const struct mx_sas_flow *flow,
    const struct mx_sas_input *input, const struct json *value)
{
    struct span mac;
    int rc;

    if (!json_string(value, &mac))
        return MXCLIENT_FAILED_INVALID;
    rc = mx_sas_check_mac(sas, flow, input, mac);
    return rc == 0 || rc == TR_ENOMEM ? rc : MXCLIENT_FAILED_MAC;
}

int mxclient_sas_check_macs(const struct json *content, const struct mx_sas *sas,
    const struct mx_sas_flow *flow, const struct mxclient_sas_choice *choice,
    struct mxclient_sas_key *keys, size_t count)
{
    struct mx_sas_input input = {
        .method = content_method(choice), .is_theirs = true, .key_id = SPAN("KEY_IDS")
    };
    const struct json *macs = json_get(content, "mac");
    struct buffer list = { 0 };
    int rc = content_list_ids(macs, &list);

    input.text = (struct span){ list.bytes, list.size };
    if (rc == 0)
        rc = content_check(sas, flow, &input, json_get(content, "keys"));
    buffer_free(&list);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct json *mac = json_get(macs, keys[i].id);

        if (mac == NULL)
            continue;
        input.key_id = span_of(keys[i].id);
        input.text = span_of(keys[i].text);
        rc = content_check(sas, flow, &input, mac);
        keys[i].is_checked = rc == 0;
    }
    return rc == 0 && !keys[0].is_checked ? MXCLIENT_FAILED_NO_KEY : rc;
}
