/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "check.h"
#include "json/json_write.h"
#include "manifest/manifest.h"

#define SHA256 "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"

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

static struct manifest example(const struct signer *by)
{
    struct manifest manifest = { .pack = "core",
        .version = "1.2.0",
        .type = "application/zip",
        .sha256 = SHA256,
        .size = 3,
        .created_s = 1770000000 };

    memcpy(manifest.key, by->text, sizeof manifest.key);
    return manifest;
}

static struct span span(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

/* A text and its signature. */
struct said {
    struct buffer text;
    char signature[MANIFEST_SIGNATURE_CHARS + 1];
};

static struct said say_manifest(const struct signer *by, const struct manifest *manifest)
{
    struct said said = { 0 };

    CHECK_EQ_INT(manifest_write(manifest, &said.text), 0);
    CHECK_EQ_INT(manifest_sign(by->key, span(&said.text), said.signature), 0);
    return said;
}

static struct said say_key(
    const struct signer *by, const char *pack, bool is_retire, const struct signer *subject)
{
    struct manifest_statement statement = { .created_s = 1, .is_retire = is_retire };
    struct said said = { 0 };

    strncpy(statement.pack, pack, sizeof statement.pack - 1);
    memcpy(statement.key, by->text, sizeof statement.key);
    memcpy(statement.subject, subject->text, sizeof statement.subject);
    CHECK_EQ_INT(manifest_statement_write(&statement, &said.text), 0);
    CHECK_EQ_INT(manifest_sign(by->key, span(&said.text), said.signature), 0);
    return said;
}

static void end_said(struct said *said)
{
    buffer_free(&said->text);
}

TEST(manifest, is_canonical_json_and_reads_back)
{
    struct signer ada = signer(1);
    struct manifest manifest = example(&ada), back;
    struct said said = say_manifest(&ada, &manifest);
    struct buffer canonical = { 0 };
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(json_parse_copy(&doc, span(&said.text), JSON_UNIQUE_KEYS), 0);
    CHECK_EQ_INT(json_canonical(json_root(&doc), NULL, &canonical), 0);
    CHECK(span_equal(span(&canonical), span(&said.text)));
    CHECK_EQ_INT(manifest_read(span(&said.text), &back, NULL), 0);
    CHECK_EQ_STR(back.pack, manifest.pack);
    CHECK_EQ_STR(back.version, manifest.version);
    CHECK_EQ_STR(back.type, manifest.type);
    CHECK_EQ_STR(back.sha256, manifest.sha256);
    CHECK_EQ_STR(back.key, manifest.key);
    CHECK_EQ_U64(back.size, 3);
    CHECK_EQ_INT(back.created_s, 1770000000);
    json_doc_free(&doc);
    buffer_free(&canonical);
    end_said(&said);
    crypto_key_unref(&ada.key);
}

/* Each text differs in one place from a valid one; %s is the key. */
TEST(manifest, another_text_for_the_same_meaning_is_refused)
{
    static const char *const forms[] = {
        "{\"created\":1, \"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"key\":\"%s\",\"created\":1,\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"c\\u006fre\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3.0,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\",\"x\":0}",
        "{\"created\":1,\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}\n",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"../core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"2C26B46B68FFC68FF99B453C1D304"
        "13413422D706483BFA0F98A5E886266E7AE\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":-1,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":9007199254740992,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\\u0000x\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"x%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}",
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\"}",
        "[\"%s\"]",
    };
    static const char good[] =
        "{\"created\":1,\"key\":\"%s\",\"pack\":\"core\",\"sha256\":\"" SHA256
        "\",\"size\":3,\"type\":\"a/b\",\"version\":\"1\"}";
    struct signer ada = signer(1);
    struct manifest manifest;
    struct buffer text = { 0 };

    for (size_t i = 0; i <= sizeof forms / sizeof forms[0]; i++) {
        const char *form = i == 0 ? good : forms[i - 1];
        const char *mark = strstr(form, "%s"), *why = NULL;
        int rc;

        buffer_clear(&text);
        buffer_append(&text, form, (size_t)(mark - form));
        buffer_text(&text, ada.text);
        buffer_text(&text, mark + 2);
        rc = manifest_read(span(&text), &manifest, &why);
        CHECK_MSG(rc == (i == 0 ? 0 : TR_EPROTO), "form %zu: %d", i, rc);
        CHECK((why == NULL) == (i == 0));
    }
    buffer_free(&text);
    crypto_key_unref(&ada.key);
}

TEST(manifest, names_are_plain)
{
    static const char *const bad[] = { "", ".", "..", ".a", "A", "a/b", "a b", "a%2f", "a\\b",
        "\xc3\xa9", "a\n" };
    char long_name[MANIFEST_PACK_CHARS_MAX + 2];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(!manifest_is_pack(span_of(bad[i])), "%s", bad[i]);
    CHECK(!manifest_is_pack((struct span){ "a\0b", 3 }));
    memset(long_name, 'a', sizeof long_name);
    CHECK(manifest_is_pack((struct span){ long_name, MANIFEST_PACK_CHARS_MAX }));
    CHECK(!manifest_is_pack((struct span){ long_name, MANIFEST_PACK_CHARS_MAX + 1 }));
    CHECK(manifest_is_pack(span_of("core.v2_x-1")));
    CHECK(manifest_is_version(span_of("1.0.0-rc.1+B5")));
    CHECK(!manifest_is_version(span_of("../1")));
    CHECK(!manifest_is_version(span_of("..")));
    CHECK(manifest_is_type(span_of("application/vnd.a+json")));
    CHECK(!manifest_is_type(span_of("text/html; charset=utf-8")));
    CHECK(!manifest_is_type(span_of("text")));
    CHECK(!manifest_is_type(span_of("/x")));
    CHECK(!manifest_is_type(span_of("a/b/c")));
    CHECK(!manifest_is_type(span_of("a/b\r\nX: y")));
}

TEST(manifest, what_is_no_manifest_is_not_written)
{
    struct signer ada = signer(1);
    struct buffer out = { 0 };
    struct manifest manifest;

    manifest = example(&ada);
    manifest.pack[0] = '/';
    CHECK_EQ_INT(manifest_write(&manifest, &out), TR_EINVAL);
    manifest = example(&ada);
    manifest.sha256[63] = '\0';
    CHECK_EQ_INT(manifest_write(&manifest, &out), TR_EINVAL);
    manifest = example(&ada);
    manifest.key[5] = '0'; /* not in the alphabet */
    CHECK_EQ_INT(manifest_write(&manifest, &out), TR_EINVAL);
    CHECK_EQ_U64(out.size, 0);
    crypto_key_unref(&ada.key);
}

TEST(manifest, key_of_another_kind_cannot_sign)
{
    struct crypto_key *key = NULL;
    char signature[MANIFEST_SIGNATURE_CHARS + 1];
    char text[CRYPTO_MULTIKEY_CHARS_MAX];
    struct manifest_keys keys = { 0 };

    CHECK_EQ_INT(crypto_key_generate(CRYPTO_ES256, &key), 0);
    CHECK_EQ_INT(manifest_sign(key, SPAN("x"), signature), TR_EACCES);
    CHECK(crypto_multikey_encode(key, text) > 0);
    CHECK_EQ_INT(manifest_keys_add(&keys, span_of(text)), TR_EPROTO);
    CHECK_EQ_U64(keys.count, 0);
    crypto_key_unref(&key);
}

/* ---- publishing ----------------------------------------------------------------------------- */

static const char *check(const struct said *said, const char *signature,
    const struct manifest_keys *keys, const struct manifest *expected)
{
    struct manifest_refusal refusal = { "", "" };
    struct manifest manifest;

    return manifest_check(
               span(&said->text), span_of(signature), keys, expected, &manifest, &refusal) == 0
               ? "ok"
               : refusal.label;
}

TEST(manifest, publish_wants_the_right_facts_and_a_key_of_the_pack)
{
    struct signer ada = signer(1), bob = signer(2);
    struct manifest manifest = example(&ada), other;
    struct said said = say_manifest(&ada, &manifest), by_bob;
    struct manifest_keys none = { 0 }, adas = { 0 }, bobs = { 0 };
    char bent[MANIFEST_SIGNATURE_CHARS + 1];

    CHECK_EQ_INT(manifest_keys_add(&adas, span_of(ada.text)), 0);
    CHECK_EQ_INT(manifest_keys_add(&bobs, span_of(bob.text)), 0);
    CHECK_EQ_STR(check(&said, said.signature, &none, &manifest), "ok");
    CHECK_EQ_STR(check(&said, said.signature, &adas, &manifest), "ok");
    CHECK_EQ_STR(check(&said, said.signature, &bobs, &manifest), "KeyUnknown");
    CHECK_EQ_STR(check(&said, "", &adas, &manifest), "SignatureInvalid");
    memcpy(bent, said.signature, sizeof bent);
    bent[10] = bent[10] == 'A' ? 'B' : 'A';
    CHECK_EQ_STR(check(&said, bent, &none, &manifest), "SignatureInvalid");
    /* The text names ada's key, but bob signed it. */
    by_bob = say_manifest(&bob, &manifest);
    CHECK_EQ_STR(check(&by_bob, by_bob.signature, &none, &manifest), "SignatureInvalid");

    other = manifest;
    other.size = 4;
    CHECK_EQ_STR(check(&said, said.signature, &adas, &other), "ManifestMismatch");
    other = manifest;
    other.sha256[0] = '3';
    CHECK_EQ_STR(check(&said, said.signature, &adas, &other), "ManifestMismatch");
    other = manifest;
    other.version[0] = '2';
    CHECK_EQ_STR(check(&said, said.signature, &adas, &other), "ManifestMismatch");
    other = manifest;
    other.pack[0] = 'x';
    CHECK_EQ_STR(check(&said, said.signature, &adas, &other), "ManifestMismatch");
    other = manifest;
    other.type[0] = 'x';
    CHECK_EQ_STR(check(&said, said.signature, &adas, &other), "ManifestMismatch");
    said.text.bytes[0] = ' ';
    CHECK_EQ_STR(check(&said, said.signature, &adas, &manifest), "ManifestInvalid");
    end_said(&said);
    end_said(&by_bob);
    crypto_key_unref(&ada.key);
    crypto_key_unref(&bob.key);
}

/* ---- rotation ------------------------------------------------------------------------------- */

static int apply(struct manifest_keys *keys, const struct said *said)
{
    return manifest_keys_apply(keys, "core", span(&said->text), span_of(said->signature));
}

TEST(keys, change_by_statements_of_keys_that_count)
{
    struct signer ada = signer(1), bob = signer(2), eve = signer(3);
    struct manifest_keys keys = { 0 };
    struct said add_bob = say_key(&ada, "core", false, &bob);
    struct said retire_ada = say_key(&bob, "core", true, &ada);
    struct said add_eve = say_key(&eve, "core", false, &eve);
    struct said elsewhere = say_key(&ada, "other", false, &eve);
    struct said by_ada_again = say_key(&ada, "core", false, &eve);
    struct said retire_bob = say_key(&bob, "core", true, &bob);

    CHECK_EQ_INT(manifest_keys_add(&keys, span_of(ada.text)), 0);
    CHECK_EQ_INT(apply(&keys, &retire_ada), TR_EACCES); /* bob is not valid yet */
    CHECK_EQ_INT(apply(&keys, &add_eve), TR_EACCES);
    CHECK_EQ_INT(apply(&keys, &elsewhere), TR_EPROTO);
    CHECK_EQ_INT(apply(&keys, &add_bob), 0);
    CHECK_EQ_U64(keys.count, 2);
    CHECK_EQ_INT(apply(&keys, &add_bob), 0); /* a second time changes nothing */
    CHECK_EQ_U64(keys.count, 2);
    CHECK_EQ_INT(apply(&keys, &retire_ada), 0);
    CHECK_EQ_U64(keys.count, 1);
    CHECK(manifest_keys_has(&keys, bob.text));
    CHECK_EQ_INT(apply(&keys, &by_ada_again), TR_EACCES); /* ada is retired */
    CHECK_EQ_INT(apply(&keys, &retire_ada), TR_ENOENT);
    CHECK_EQ_INT(apply(&keys, &retire_bob), TR_EINVAL); /* the last one stays */
    add_bob.signature[3] = add_bob.signature[3] == 'A' ? 'B' : 'A';
    CHECK_EQ_INT(manifest_keys_add(&keys, span_of(ada.text)), 0);
    CHECK_EQ_INT(apply(&keys, &add_bob), TR_EACCES);
    end_said(&add_bob);
    end_said(&retire_ada);
    end_said(&add_eve);
    end_said(&elsewhere);
    end_said(&by_ada_again);
    end_said(&retire_bob);
    crypto_key_unref(&ada.key);
    crypto_key_unref(&bob.key);
    crypto_key_unref(&eve.key);
}

TEST(keys, are_bounded)
{
    struct manifest_keys keys = { 0 };
    struct signer made;

    for (uint8_t i = 0; i <= MANIFEST_KEYS_MAX; i++) {
        made = signer((uint8_t)(i + 1));
        CHECK_EQ_INT(
            manifest_keys_add(&keys, span_of(made.text)), i < MANIFEST_KEYS_MAX ? 0 : TR_ELIMIT);
        crypto_key_unref(&made.key);
    }
}

/* {"manifest":…,"signature":…,"keys":[{"key":first}, statements…]} */
static struct buffer document(const struct said *said, const struct signer *first,
    const struct said *statements, size_t count)
{
    struct buffer out = { 0 };
    struct json_writer writer = json_writer(&out);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "anything", "else");
    json_put_string(&writer, "manifest", span(&said->text));
    json_put_text(&writer, "signature", said->signature);
    json_put_array(&writer, "keys");
    json_put_object(&writer, NULL);
    json_put_text(&writer, "key", first->text);
    json_put_end(&writer);
    for (size_t i = 0; i < count; i++) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "statement", span(&statements[i].text));
        json_put_text(&writer, "signature", statements[i].signature);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    return out;
}

static int check_document(const struct buffer *text, struct manifest_keys *keys)
{
    struct json_doc doc = { 0 };
    struct manifest manifest;
    const char *why = NULL;
    int rc;

    CHECK_EQ_INT(json_parse_copy(&doc, span(text), JSON_UNIQUE_KEYS), 0);
    rc = manifest_document_check(json_root(&doc), "core", keys, &manifest, &why);
    CHECK((why == NULL) == (rc == 0));
    if (rc == 0)
        CHECK_EQ_STR(manifest.pack, "core");
    json_doc_free(&doc);
    return rc;
}

TEST(document, client_follows_rotations_from_the_key_it_knows)
{
    struct signer ada = signer(1), bob = signer(2), eve = signer(3);
    struct manifest manifest = example(&bob);
    struct said history[] = { say_key(&ada, "core", false, &bob),
        say_key(&bob, "core", true, &ada) };
    struct said said = say_manifest(&bob, &manifest);
    struct buffer whole = document(&said, &ada, history, 2);
    struct buffer bare = document(&said, &ada, history, 0);
    struct manifest_keys keys = { 0 };

    /* First use: trust the first key and the keys that it adds. */
    CHECK_EQ_INT(check_document(&whole, &keys), 0);
    CHECK_EQ_U64(keys.count, 1);
    CHECK_EQ_STR(keys.keys[0], bob.text);
    /* Later use, starting with bob's key; the history starts before it. */
    CHECK_EQ_INT(check_document(&whole, &keys), 0);
    /* A client that knows ada's key needs the statement. */
    keys = (struct manifest_keys){ 0 };
    CHECK_EQ_INT(manifest_keys_add(&keys, span_of(ada.text)), 0);
    CHECK_EQ_INT(check_document(&bare, &keys), TR_EACCES);
    CHECK_EQ_STR(keys.keys[0], ada.text); /* nothing changed */
    CHECK_EQ_INT(check_document(&whole, &keys), 0);
    CHECK_EQ_STR(keys.keys[0], bob.text);
    /* A client that knows only an unrelated key trusts no key of the document. */
    keys = (struct manifest_keys){ 0 };
    CHECK_EQ_INT(manifest_keys_add(&keys, span_of(eve.text)), 0);
    CHECK_EQ_INT(check_document(&whole, &keys), TR_EACCES);

    buffer_free(&whole);
    buffer_free(&bare);
    end_said(&said);
    end_said(&history[0]);
    end_said(&history[1]);
    crypto_key_unref(&ada.key);
    crypto_key_unref(&bob.key);
    crypto_key_unref(&eve.key);
}

TEST(document, manifest_of_a_retired_key_is_refused)
{
    struct signer ada = signer(1), bob = signer(2);
    struct manifest manifest = example(&ada);
    struct said history[] = { say_key(&ada, "core", false, &bob),
        say_key(&bob, "core", true, &ada) };
    struct said said = say_manifest(&ada, &manifest);
    struct buffer text = document(&said, &ada, history, 2);
    struct buffer hidden = document(&said, &ada, history, 1);
    struct manifest_keys keys = { 0 };

    CHECK_EQ_INT(check_document(&text, &keys), TR_EACCES);
    /* A mirror that hides the last statement cannot deceive a client that has seen it. */
    CHECK_EQ_INT(manifest_keys_add(&keys, span_of(bob.text)), 0);
    CHECK_EQ_INT(check_document(&hidden, &keys), TR_EACCES);
    buffer_free(&text);
    buffer_free(&hidden);
    end_said(&said);
    end_said(&history[0]);
    end_said(&history[1]);
    crypto_key_unref(&ada.key);
    crypto_key_unref(&bob.key);
}

TEST(document, every_allocation_may_fail)
{
    struct signer ada = signer(1), bob = signer(2);
    struct manifest manifest = example(&bob);
    struct said history = say_key(&ada, "core", false, &bob);
    struct said said = say_manifest(&bob, &manifest);
    struct buffer text = document(&said, &ada, &history, 1);
    struct json_doc doc = { 0 };
    int rc = TR_ENOMEM;

    CHECK_EQ_INT(json_parse_copy(&doc, span(&text), JSON_UNIQUE_KEYS), 0);
    for (uint64_t n = 1; rc != 0; n++) {
        struct manifest_keys keys = { 0 };
        const char *why;

        CHECK(n < 1000);
        CHECK_EQ_INT(manifest_keys_add(&keys, span_of(ada.text)), 0);
        base_fault_countdown(n, 1);
        rc = manifest_document_check(json_root(&doc), "core", &keys, &manifest, &why);
        base_fault_countdown(0, 0);
        CHECK_MSG(rc == 0 || rc == TR_ENOMEM, "allocation %llu: %d", (unsigned long long)n, rc);
        CHECK_EQ_U64(keys.count, rc == 0 ? 2 : 1);
    }
    json_doc_free(&doc);
    buffer_free(&text);
    end_said(&said);
    end_said(&history);
    crypto_key_unref(&ada.key);
    crypto_key_unref(&bob.key);
}
