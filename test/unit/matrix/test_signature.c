/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "matrix/crypto/mx_private.h"
#include "mx_stage.h"
#include "shared.h"

static struct span member_text(const struct json *object, const char *key)
{
    struct span text = { NULL, 0 };

    CHECK(json_string(json_get(object, key), &text));
    return text;
}

/* The nine cases of libcmatrix are the first nine of these ten. */
TEST(signature, canonical_json_of_the_specification)
{
    struct json_doc doc = { 0 }, given = { 0 };
    struct buffer out = { 0 };
    unsigned count = 0;
    size_t size;
    char *text = shared_read("vectors/matrix/spec-vectors.json", &size);

    CHECK_EQ_INT(json_parse(&doc, text, size, 0), 0);
    for (struct json_iter it = json_iterate(json_get(json_root(&doc), "canonical_json"));
         json_next(&it); count++) {
        CHECK_EQ_INT(json_parse_copy(&given, member_text(it.value, "given"), JSON_UNIQUE_KEYS), 0);
        buffer_clear(&out);
        CHECK_EQ_INT(json_canonical(json_root(&given), NULL, &out), 0);
        CHECK(span_equal(mx_stage_span(&out), member_text(it.value, "canonical")));
    }
    CHECK_EQ_U64(count, 10);
    buffer_free(&out);
    json_doc_free(&given);
    json_doc_free(&doc);
    free(text);
}

TEST(signature, json_signing_of_the_specification)
{
    const struct json *signing, *cases;
    struct mx__signing_pair pair = { 0 };
    struct json_doc doc = { 0 };
    unsigned count = 0;
    size_t size, used;
    char *text = shared_read("vectors/matrix/spec-vectors.json", &size);

    CHECK_EQ_INT(json_parse(&doc, text, size, 0), 0);
    signing = json_get(json_root(&doc), "json_signing");
    CHECK_EQ_INT(mx_base64_decode(member_text(signing, "seed"), pair.secret, 32, &used), 0);
    mx__signing_pair_derive(&pair);
    cases = json_get(signing, "cases");
    for (struct json_iter it = json_iterate(cases); json_next(&it); count++) {
        CHECK_EQ_INT(mx_verify_json(json_get(it.value, "signed"), SPAN("domain"), SPAN("ed25519:1"),
                         &pair.public_key),
            0);
        CHECK_EQ_INT(mx_verify_json(json_get(it.value, "given"), SPAN("domain"), SPAN("ed25519:1"),
                         &pair.public_key),
            MX_ESIGNATURE);
    }
    CHECK_EQ_U64(count, 2);
    json_doc_free(&doc);
    free(text);
}

/* ---- the wire capture: what two real clients signed ------------------------------------------ */

/* Return the size of the object at `text`; 0 if the capture cuts it. */
static size_t object_size(const char *text)
{
    size_t depth = 0;

    for (size_t i = 0; text[i] != '\0' && text[i] != '\n'; i++) {
        depth += text[i] == '{';
        depth -= text[i] == '}';
        if (depth == 0)
            return i + 1;
    }
    return 0;
}

static const struct json *first_member(const struct json *object, struct span *ret_key)
{
    struct json_iter it = json_iterate(object);

    CHECK(json_next(&it));
    *ret_key = it.key;
    return it.value;
}

/* Verify an object with its one signature; the keys of both devices are in the capture. */
static void check_signed(const struct json *object, const char *wire)
{
    const struct json *by_user;
    struct span user, key_id;
    struct mx_key key;
    char member[64];
    const char *at;

    by_user = first_member(json_get(object, "signatures"), &user);
    first_member(by_user, &key_id);
    (void)snprintf(member, sizeof member, "\"keys\":{\"curve25519:%.*s\":", (int)key_id.size - 8,
        key_id.at + 8);
    at = strstr(wire, member);
    CHECK(at != NULL);
    at = strstr(at, "\"ed25519:");
    CHECK_EQ_INT(mx_key_parse((struct span){ strchr(at, ':') + 8, MX_KEY_CHARS }, &key), 0);
    CHECK_EQ_INT(mx_verify_json(object, user, key_id, &key), 0);
    key.bytes[0] ^= 1;
    CHECK_EQ_INT(mx_verify_json(object, user, key_id, &key), MX_ESIGNATURE);
}

TEST(signature, keys_of_real_clients_verify)
{
    struct json_doc doc = { 0 };
    unsigned devices = 0, keys = 0;
    size_t size;
    char *wire = shared_read("vectors/matrix/sas-and-megolm-wire.txt", &size);

    for (const char *at = strchr(wire, '{'); at != NULL; at = strchr(at + 1, '{')) {
        size = object_size(at);
        if (size == 0 || json_parse_copy(&doc, (struct span){ at, size }, JSON_UNIQUE_KEYS) != 0 ||
            json_get(json_root(&doc), "signatures") == NULL)
            continue;
        devices += json_get(json_root(&doc), "device_id") != NULL;
        keys += json_get(json_root(&doc), "key") != NULL;
        check_signed(json_root(&doc), wire);
    }
    CHECK(devices >= 2);
    CHECK(keys >= 4);
    json_doc_free(&doc);
    free(wire);
}

/* ---- our own --------------------------------------------------------------------------------- */

TEST(signature, a_signed_object_keeps_what_it_had)
{
    struct mx_account *account = NULL;
    struct json_doc doc = { 0 };
    struct buffer out = { 0 };
    const struct json *root;
    struct span text;

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &account), 0);
    CHECK_EQ_INT(json_parse_copy(&doc,
                     SPAN("{\"b\":1,\"a\":[true,null],\"unsigned\":{\"age\":3},\"signatures\":"
                          "{\"@c:x\":{\"ed25519:C\":\"c\"},\"@a:x\":{\"ed25519:M\":\"m\",\"ed25519:"
                          "A\":\"old\"}}}"),
                     JSON_UNIQUE_KEYS),
        0);
    CHECK_EQ_INT(mx_account_sign_json(account, json_root(&doc), SPAN("@a:x"), SPAN("A"), &out), 0);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&out), JSON_UNIQUE_KEYS), 0);
    root = json_root(&doc);
    CHECK_EQ_INT(
        mx_verify_json(root, SPAN("@a:x"), SPAN("ed25519:A"), mx_account_signing_key(account)), 0);
    CHECK(
        json_string(json_get(json_get(json_get(root, "signatures"), "@c:x"), "ed25519:C"), &text));
    CHECK(
        json_string(json_get(json_get(json_get(root, "signatures"), "@a:x"), "ed25519:M"), &text));
    CHECK_EQ_U64(json_count(json_get(root, "unsigned")), 1);
    buffer_free(&out);
    json_doc_free(&doc);
    mx_account_destroy(account);
}

TEST(signature, an_object_without_canonical_form_is_not_signed)
{
    static const char *const texts[] = { "{\"a\":1.5}", "{\"a\":9007199254740992}", "[1]", "7",
        "{\"a\":1,\"a\":1}" };
    struct mx_account *account = NULL;
    struct json_doc doc = { 0 };
    struct buffer out = { 0 };

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &account), 0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(texts[i]), 0), 0);
        CHECK_EQ_INT(mx_account_sign_json(account, json_root(&doc), SPAN("@a:x"), SPAN("A"), &out),
            MX_EFORMAT);
        CHECK_EQ_U64(out.size, 0);
    }
    json_doc_free(&doc);
    mx_account_destroy(account);
}
