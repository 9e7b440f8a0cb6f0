/* SPDX-License-Identifier: Apache-2.0 */
/* The current keys of a pack, over HTTP: the callers that may change them, and the served document. */
#include "json/json_write.h"
#include "manifest/manifest.h"
#include "site.h"

struct signer {
    struct crypto_key *key;
    char text[CRYPTO_MULTIKEY_CHARS_MAX];
};

static struct signer signer(uint8_t number)
{
    const uint8_t seed[32] = { number };
    struct signer made = { 0 };

    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_EDDSA, seed, sizeof seed, &made.key), 0);
    CHECK(crypto_multikey_encode(made.key, made.text) > 0);
    return made;
}

/* As bytes: the helpers of the site would exchange its quotes. */
static void want_post(const struct site *site, const char *path, struct buffer *body,
    unsigned status, const char *part)
{
    struct web_answer answer;
    char full[256];

    CHECK_EQ_INT(buffer_append(body, "", 1), 0);
    (void)snprintf(full, sizeof full, "/v1/admin/%s", path);
    answer = web_ask(admin_address(site->admin), "POST", full, site->headers[TOKEN], body->bytes);
    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "%s: wanted %u with %s, got:\n%s", path, status, part, answer.text);
    web_answer_free(&answer);
    buffer_free(body);
}

static void put_pair(
    struct buffer *body, const char *name, const struct buffer *text, const char *signature)
{
    struct json_writer writer = json_writer(body);

    json_put_object(&writer, NULL);
    json_put_string(&writer, name, (struct span){ text->bytes, text->size });
    json_put_text(&writer, "signature", signature);
    json_put_end(&writer);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
}

/* A pack with one version, signed by `by`. */
static void add_signed(struct site *site, const char *version, const char *bytes,
    const struct signer *by, unsigned status, const char *part)
{
    struct manifest manifest = {
        .pack = "core", .type = "application/octet-stream", .created_s = 1
    };
    struct buffer text = { 0 }, body = { 0 };
    char signature[MANIFEST_SIGNATURE_CHARS + 1], path[128];
    uint8_t digest[32];

    site_add_version(site, "core", version, bytes);
    manifest.size = strlen(bytes);
    (void)snprintf(manifest.version, sizeof manifest.version, "%s", version);
    crypto_sha256(bytes, strlen(bytes), digest);
    manifest.sha256[crypto_hex_encode(digest, sizeof digest, manifest.sha256)] = '\0';
    memcpy(manifest.key, by->text, sizeof manifest.key);
    CHECK_EQ_INT(manifest_write(&manifest, &text), 0);
    CHECK_EQ_INT(manifest_sign(by->key, (struct span){ text.bytes, text.size }, signature), 0);
    put_pair(&body, "manifest", &text, signature);
    (void)snprintf(path, sizeof path, "packs/core/versions/%s/publish", version);
    want_post(site, path, &body, status, part);
    buffer_free(&text);
}

static void change_key(const struct site *site, const struct signer *by, const char *pack,
    bool is_retire, const struct signer *subject, unsigned status, const char *part)
{
    struct manifest_statement statement = { .created_s = 1, .is_retire = is_retire };
    struct buffer text = { 0 }, body = { 0 };
    char signature[MANIFEST_SIGNATURE_CHARS + 1];

    (void)snprintf(statement.pack, sizeof statement.pack, "%s", pack);
    memcpy(statement.key, by->text, sizeof statement.key);
    memcpy(statement.subject, subject->text, sizeof statement.subject);
    CHECK_EQ_INT(manifest_statement_write(&statement, &text), 0);
    CHECK_EQ_INT(manifest_sign(by->key, (struct span){ text.bytes, text.size }, signature), 0);
    put_pair(&body, "statement", &text, signature);
    want_post(site, "packs/core/keys", &body, status, part);
    buffer_free(&text);
}

/* Follow the served document as a client does. */
static int follow(const struct site *site, struct manifest_keys *keys)
{
    struct web_answer answer = site_ask(site, ANYONE, "GET", "packs/core/manifest", NULL);
    struct json_doc doc = { 0 };
    struct manifest manifest;
    const char *why = NULL;
    int rc;

    CHECK_EQ_U64(answer.status, 200);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), JSON_UNIQUE_KEYS), 0);
    rc = manifest_document_check(json_root(&doc), "core", keys, &manifest, &why);
    json_doc_free(&doc);
    web_answer_free(&answer);
    return rc;
}

TEST(keys, rotate_by_statements_and_clients_follow)
{
    struct signer ada = signer(1), bob = signer(2), eve = signer(3);
    struct manifest_keys keys = { 0 }, at_first;
    struct site site;

    site_begin(&site);
    site_register(&site, "core");
    change_key(&site, &ada, "core", false, &bob, 422, "SignatureInvalid"); /* no key counts yet */
    add_signed(&site, "1", "one", &ada, 200, "active_version");
    CHECK_EQ_INT(follow(&site, &keys), 0);
    CHECK_EQ_STR(keys.keys[0], ada.text);
    at_first = keys;

    change_key(&site, &eve, "core", false, &eve, 422, "SignatureInvalid");
    change_key(&site, &ada, "other", false, &bob, 422, "StatementInvalid");
    change_key(&site, &ada, "core", true, &ada, 409, "LastKey");
    change_key(&site, &ada, "core", true, &bob, 404, "KeyUnknown");
    change_key(&site, &ada, "core", false, &bob, 200, bob.text);
    change_key(&site, &ada, "core", false, &bob, 200, bob.text); /* again: nothing */
    add_signed(&site, "2", "two", &bob, 200, "active_version");
    CHECK_EQ_INT(follow(&site, &keys), 0);
    CHECK_EQ_U64(keys.count, 2);
    change_key(&site, &bob, "core", true, &ada, 200, "statement");
    add_signed(&site, "3", "three", &ada, 422, "KeyUnknown");
    site_close(&site);
    site_open(&site);
    /* One who has seen the first key alone is led to the second. */
    CHECK_EQ_INT(follow(&site, &at_first), 0);
    CHECK_EQ_U64(at_first.count, 1);
    CHECK_EQ_STR(at_first.keys[0], bob.text);
    want(&site, ANYONE, "GET packs/core/keys", NULL, 200, "'pack':'core'|statement|signature");
    want(&site, ANYONE, "GET packs/none/keys", NULL, 404, "PackNotFound");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_keys"), 3);
    site_end(&site);
    crypto_key_unref(&ada.key);
    crypto_key_unref(&bob.key);
    crypto_key_unref(&eve.key);
}

TEST(keys, change_by_administrators_alone_and_in_the_right_form)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1", "one");
    want(&site, ANYONE, "POST admin/packs/core/keys", "{}", 401, "");
    want(&site, USER, "POST admin/packs/core/keys", "{}", 403, "");
    want(&site, TOKENLESS, "POST admin/packs/core/keys", "{}", 401, "");
    want(&site, TOKEN, "POST admin/packs/core/keys", "{}", 400, "statement");
    want(&site, TOKEN, "POST admin/packs/core/keys", "{'statement':'x','signature':'y'}", 400,
        "signature");
    want(&site, TOKEN, "POST admin/packs/core/keys", "not json", 400, "InvalidRequest");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_keys"), 0);
    site_end(&site);
}
