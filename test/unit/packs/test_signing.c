/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing with a signed manifest: it matches the upload and is signed by a key of the pack. */
#include "manifest/manifest.h"
#include "site.h"

/* The body of a publish: a manifest about these bytes, signed. In memory that is the caller's. */
static char *signed_body(const struct crypto_key *key, const char *pack, const char *version,
    const char *bytes, int64_t created_s)
{
    struct manifest manifest = { .size = strlen(bytes), .created_s = created_s };
    char signature[MANIFEST_SIGNATURE_CHARS + 1], hex[65];
    struct buffer text = { 0 }, body = { 0 };
    struct json_writer writer = json_writer(&body);
    uint8_t digest[32];

    crypto_sha256(bytes, strlen(bytes), digest);
    hex[crypto_hex_encode(digest, sizeof digest, hex)] = '\0';
    (void)snprintf(manifest.pack, sizeof manifest.pack, "%s", pack);
    (void)snprintf(manifest.version, sizeof manifest.version, "%s", version);
    (void)snprintf(manifest.type, sizeof manifest.type, "application/octet-stream");
    (void)snprintf(manifest.sha256, sizeof manifest.sha256, "%s", hex);
    CHECK(crypto_multikey_encode(key, manifest.key) > 0);
    CHECK_EQ_INT(manifest_write(&manifest, &text), 0);
    CHECK_EQ_INT(manifest_sign(key, (struct span){ text.bytes, text.size }, signature), 0);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "manifest", (struct span){ text.bytes, text.size });
    json_put_text(&writer, "signature", signature);
    json_put_end(&writer);
    buffer_append(&body, "", 1);
    CHECK_EQ_INT(body.failed, 0);
    buffer_free(&text);
    return body.bytes;
}

static void want_published(
    struct site *site, const char *version, const char *body, unsigned status, const char *parts)
{
    char call[160];

    (void)snprintf(call, sizeof call, "POST admin/packs/core/versions/%s/publish", version);
    want(site, TOKEN, call, body, status, parts);
}

static void begin(struct site *site, struct crypto_key **ret_key)
{
    site_begin(site);
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_EDDSA, ret_key), 0);
    site_register(site, "core");
    site_add_version(site, "core", "1.0.0", "one");
    site_add_version(site, "core", "1.1.0", "two");
}

TEST(signing, the_first_key_is_the_packs_and_later_versions_need_it)
{
    struct crypto_key *key, *other;
    char *body, *wrong;
    struct site site;

    begin(&site, &key);
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_EDDSA, &other), 0);
    body = signed_body(key, "core", "1.0.0", "one", 1770000000);
    want_published(&site, "1.0.0", body, 200, "'is_signed':true|'active_version':'1.0.0'");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200,
        "'manifest':'{|'signature':'|'keys':[{'key':'z6Mk");
    want(&site, ANYONE, "GET packs/manifest", NULL, 200, "'manifest':'{|z6Mk");
    want_published(&site, "1.1.0", NULL, 422, "ManifestRequired");
    wrong = signed_body(other, "core", "1.1.0", "two", 1770000000);
    want_published(&site, "1.1.0", wrong, 422, "KeyUnknown");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_keys"), 1);
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "1.0.0");
    base_free(body);
    body = signed_body(key, "core", "1.1.0", "two", 1770000000);
    want_published(&site, "1.1.0", body, 200, "'active_version':'1.1.0'");
    /* One that is signed goes back and forth without it. */
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "1.0.0");
    want_published(&site, "1.1.0", NULL, 200, "'active_version':'1.1.0'");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_keys"), 1);
    base_free(body);
    base_free(wrong);
    crypto_key_unref(&key);
    crypto_key_unref(&other);
    site_end(&site);
}

TEST(signing, a_manifest_about_something_else_is_refused_and_nothing_is_published)
{
    struct crypto_key *key;
    struct site site;
    char *body, *at;

    begin(&site, &key);
    body = signed_body(key, "core", "1.0.0", "other bytes", 1770000000);
    want_published(&site, "1.0.0", body, 422, "ManifestMismatch");
    base_free(body);
    body = signed_body(key, "core", "1.1.0", "two", 1770000000);
    want_published(&site, "1.0.0", body, 422, "ManifestMismatch");
    base_free(body);
    body = signed_body(key, "corn", "1.0.0", "one", 1770000000);
    want_published(&site, "1.0.0", body, 422, "ManifestMismatch");
    base_free(body);
    body = signed_body(key, "core", "1.0.0", "one", 1770000000);
    at = strstr(body, "1770000000");
    CHECK(at != NULL);
    *at = '2';
    want_published(&site, "1.0.0", body, 422, "SignatureInvalid");
    want_published(&site, "1.0.0", "{'manifest':'{}','signature':'x'}", 422, "ManifestInvalid");
    want_published(&site, "1.0.0", "{'manifest':'{}'}", 400, "InvalidRequest");
    want_published(&site, "1.0.0", "{'signature':'x'}", 400, "InvalidRequest");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_keys"), 0);
    CHECK_EQ_INT(
        site_number(&site, "SELECT COUNT(*) FROM pack_versions WHERE manifest IS NOT NULL"), 0);
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 404, "PackNotFound");
    base_free(body);
    crypto_key_unref(&key);
    site_end(&site);
}

TEST(signing, a_version_keeps_the_manifest_it_has)
{
    struct crypto_key *key;
    struct site site;
    char *body, *later;

    begin(&site, &key);
    want_published(&site, "1.0.0", NULL, 200, "'is_signed':false");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "'manifest':null,'signature':null");
    /* It is active, and becomes a signed one. */
    body = signed_body(key, "core", "1.0.0", "one", 1770000000);
    want_published(&site, "1.0.0", body, 200, "'is_signed':true");
    want_published(&site, "1.0.0", body, 200, "'is_signed':true");
    later = signed_body(key, "core", "1.0.0", "one", 1770000001);
    want_published(&site, "1.0.0", later, 409, "AlreadySigned");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_audit WHERE action ="
                                    " 'publish_version'"),
        2);
    base_free(body);
    base_free(later);
    crypto_key_unref(&key);
    site_end(&site);
}
