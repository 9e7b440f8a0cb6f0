/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <troupe/error.h>

#include "auth/did.h"
#include "auth/jwk.h"
#include "base/alloc.h"
#include "check.h"

#define P256 "zDnaembgSGUhZULN2Caob4HLJPaxBh92N7rtH21TErzqf8HQo"
#define K256 "zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwc"
#define ED "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
#define PLC "did:plc:ewvi7nxzyoun6zhxrhs64oiz"

/* ---- the identifier -------------------------------------------------------------------------- */

TEST(did, knows_three_methods)
{
    static const struct {
        const char *text, *label;
        enum did_method method;
    } cases[] = {
        { "did:key:" K256, "Ok", DID_METHOD_KEY },
        { "did:web:example.com", "Ok", DID_METHOD_WEB },
        { PLC, "Ok", DID_METHOD_PLC },
        { "", "DidSyntax", 0 },
        { "did", "DidSyntax", 0 },
        { "did:", "DidMethod", 0 },
        { "did:web:", "DidSyntax", 0 },
        { "did:web", "DidMethod", 0 },
        { "did:web:example.com:", "DidSyntax", 0 },
        { "did:web:example.com#key", "DidSyntax", 0 },
        { "did:web:example.com?x", "DidSyntax", 0 },
        { "did:web:example.com/x", "DidSyntax", 0 },
        { "did:web:exa mple.com", "DidSyntax", 0 },
        { "did:web:example.com\n", "DidSyntax", 0 },
        { "did:web:ex\xc3\xa4mple.com", "DidSyntax", 0 },
        { "did:web:user@example.com", "DidSyntax", 0 },
        { "did:ion:abc", "DidMethod", 0 },
        { "did:WEB:example.com", "DidMethod", 0 },
        { "DID:web:example.com", "DidSyntax", 0 },
        { " did:web:example.com", "DidSyntax", 0 },
        { "did:plc:ewvi7nxzyoun6zhxrhs64oi", "DidSyntax", 0 },
        { "did:plc:ewvi7nxzyoun6zhxrhs64oizz", "DidSyntax", 0 },
        { "did:plc:ewvi7nxzyoun6zhxrhs64oi1", "DidSyntax", 0 },
        { "did:plc:EWVI7NXZYOUN6ZHXRHS64OIZ", "DidSyntax", 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct did did = { 0 };
        enum did_refusal refusal = did_parse(span_of(cases[i].text), &did);

        CHECK_MSG(strcmp(did_refusal_label(refusal), cases[i].label) == 0, "%s: %s", cases[i].text,
            did_refusal_label(refusal));
        CHECK_EQ_INT(did.method, cases[i].method);
    }
    CHECK_EQ_INT(
        did_parse((struct span){ "did:web:a\0b.com", 15 }, &(struct did){ 0 }), DID_SYNTAX);
}

TEST(did_key, is_its_key)
{
    static const char *const texts[] = { "did:key:" P256, "did:key:" K256, "did:key:" ED };

    for (size_t i = 0; i < 3; i++) {
        struct crypto_key *key = NULL;
        char text[DID_KEY_CHARS_MAX];

        CHECK_EQ_INT(did_key_parse(span_of(texts[i]), &key), DID_OK);
        CHECK_EQ_U64(did_key_format(key, text), strlen(texts[i]));
        CHECK_EQ_STR(text, texts[i]);
        crypto_key_unref(&key);
    }
}

TEST(did_key, refuses_what_is_not_a_key)
{
    static const struct {
        const char *text, *label;
    } cases[] = {
        { PLC, "DidMethod" },
        { "did:web:example.com", "DidMethod" },
        { "did:key:", "DidSyntax" },
        { "did:key:z", "DidKey" },
        { "did:key:" K256 "#" K256, "DidSyntax" },
        { "did:key:" K256 ":" K256, "DidKey" },
        { "did:key:z6LSeu9HkTHSfLLeUs2nnzUSNedgDUevfNQgQjQC23ZCit6F", "DidKeyKind" },
        { "did:key:uAAAA", "DidKeyKind" },
        { "did:key:zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwcd", "DidKey" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crypto_key *key = NULL;

        CHECK_EQ_STR(
            did_refusal_label(did_key_parse(span_of(cases[i].text), &key)), cases[i].label);
        CHECK(key == NULL);
    }
}

/* Base58 has no checksum: a text with a typing error is another key or no key, never the same key. */
TEST(did_key, another_text_is_never_the_same_key)
{
    char text[] = "did:key:" K256, again[DID_KEY_CHARS_MAX];

    for (size_t at = 9; at + 1 < sizeof text; at++) {
        const char was = text[at];

        for (const char *c = "123AZaz"; *c != '\0'; c++) {
            struct crypto_key *key = NULL;

            text[at] = *c;
            if (*c != was && did_key_parse(span_of(text), &key) == DID_OK) {
                did_key_format(key, again);
                CHECK_EQ_STR(again, text);
            }
            crypto_key_unref(&key);
        }
        text[at] = was;
    }
}

/* ---- where documents lie --------------------------------------------------------------------- */

struct url_case {
    const char *did, *label, *url; /* url NULL if refused */
};

static void check_urls(const struct url_case *cases, size_t count, bool allow_private)
{
    struct buffer url = { 0 };

    for (size_t i = 0; i < count; i++) {
        enum did_refusal refusal;

        buffer_clear(&url);
        refusal = did_web_url(span_of(cases[i].did), allow_private, &url);
        CHECK_MSG(strcmp(did_refusal_label(refusal), cases[i].label) == 0, "%s: %s", cases[i].did,
            did_refusal_label(refusal));
        buffer_append(&url, "", 1);
        CHECK_EQ_STR(url.bytes, cases[i].url == NULL ? "" : cases[i].url);
    }
    buffer_free(&url);
}

TEST(did_web, maps_public_hosts_and_refuses_the_rest)
{
    static const struct url_case cases[] = {
        { "did:web:example.com", "Ok", "https://example.com/.well-known/did.json" },
        { "did:web:a.b-c.example.com", "Ok", "https://a.b-c.example.com/.well-known/did.json" },
        { "did:web:xn--bcher-kva.example.com", "Ok",
            "https://xn--bcher-kva.example.com/.well-known/did.json" },
        { "did:web:1.example.com", "Ok", "https://1.example.com/.well-known/did.json" },
        { "did:web:example.com%3A8443", "Ok", "https://example.com:8443/.well-known/did.json" },
        { "did:web:example.com%3A65535", "Ok", "https://example.com:65535/.well-known/did.json" },
        { PLC, "DidMethod", NULL },
        /* paths */
        { "did:web:example.com:user:alice", "DidPath", NULL },
        { "did:web:example.com::x", "DidPath", NULL },
        { "did:web:example.com:8443", "DidPath", NULL },
        /* ports and percent signs */
        { "did:web:example.com%3A", "DidHost", NULL },
        { "did:web:example.com%3A0", "DidHost", NULL },
        { "did:web:example.com%3A08443", "DidHost", NULL },
        { "did:web:example.com%3A65536", "DidHost", NULL },
        { "did:web:example.com%3A99999999999999999999", "DidHost", NULL },
        { "did:web:example.com%3a8443", "DidHost", NULL },
        { "did:web:example.com%3A80%3A81", "DidHost", NULL },
        { "did:web:example.com%3A80.evil.com", "DidHost", NULL },
        { "did:web:example.com%3A-1", "DidHost", NULL },
        { "did:web:example.com%2Fpath", "DidHost", NULL },
        { "did:web:user%40example.com", "DidHost", NULL },
        { "did:web:example.com%23", "DidHost", NULL },
        { "did:web:example.com%00", "DidHost", NULL },
        { "did:web:%3A80", "DidHost", NULL },
        { "did:web:%65xample.com", "DidHost", NULL },
        { "did:web:example%2Ecom", "DidHost", NULL },
        { "did:web:%5B%3A%3A1%5D", "DidHost", NULL },
        /* names */
        { "did:web:Example.com", "DidHost", NULL },
        { "did:web:exa_mple.com", "DidHost", NULL },
        { "did:web:-example.com", "DidHost", NULL },
        { "did:web:example-.com", "DidHost", NULL },
        { "did:web:example..com", "DidHost", NULL },
        { "did:web:.example.com", "DidHost", NULL },
        { "did:web:example.com.", "DidHost", NULL },
        { "did:web:.", "DidHost", NULL },
        { "did:web:"
          "a123456789a123456789a123456789a123456789a123456789a123456789abcd.example.com",
            "DidHost", NULL },
        /* private */
        { "did:web:localhost", "DidPrivate", NULL },
        { "did:web:localhost%3A8080", "DidPrivate", NULL },
        { "did:web:foo.localhost", "DidPrivate", NULL },
        { "did:web:printer.local", "DidPrivate", NULL },
        { "did:web:metadata.google.internal", "DidPrivate", NULL },
        { "did:web:router.home.arpa", "DidPrivate", NULL },
        { "did:web:a.test", "DidPrivate", NULL },
        { "did:web:intranet", "DidPrivate", NULL },
        { "did:web:127.0.0.1", "DidPrivate", NULL },
        { "did:web:127.0.0.1%3A80", "DidPrivate", NULL },
        { "did:web:127.1", "DidPrivate", NULL },
        { "did:web:2130706433", "DidPrivate", NULL },
        { "did:web:0x7f000001", "DidPrivate", NULL },
        { "did:web:0x7f.1", "DidPrivate", NULL },
        { "did:web:0177.0.0.1", "DidPrivate", NULL },
        { "did:web:10.0.0.1", "DidPrivate", NULL },
        { "did:web:192.168.1.1", "DidPrivate", NULL },
        { "did:web:169.254.169.254", "DidPrivate", NULL },
        { "did:web:8.8.8.8", "DidPrivate", NULL },
        { "did:web:0.0.0.0", "DidPrivate", NULL },
        { "did:web:example.com.127.0.0.1", "DidPrivate", NULL },
    };

    check_urls(cases, sizeof cases / sizeof cases[0], false);
}

TEST(did_web, private_hosts_are_reached_only_when_allowed)
{
    static const struct url_case cases[] = {
        { "did:web:localhost", "Ok", "http://localhost/.well-known/did.json" },
        { "did:web:localhost%3A8080", "Ok", "http://localhost:8080/.well-known/did.json" },
        { "did:web:127.0.0.1%3A8080", "Ok", "http://127.0.0.1:8080/.well-known/did.json" },
        { "did:web:pds.test", "Ok", "https://pds.test/.well-known/did.json" },
        { "did:web:example.com", "Ok", "https://example.com/.well-known/did.json" },
        /* never in a form that others read as another address */
        { "did:web:127.1", "DidHost", NULL },
        { "did:web:0177.0.0.1", "DidHost", NULL },
        { "did:web:0x7f000001", "DidHost", NULL },
        { "did:web:256.0.0.1", "DidHost", NULL },
        { "did:web:1.2.3.4.5", "DidHost", NULL },
        { "did:web:localhost%3A0", "DidHost", NULL },
    };

    check_urls(cases, sizeof cases / sizeof cases[0], true);
}

TEST(did_plc, lies_in_the_directory)
{
    struct buffer url = { 0 };

    CHECK_EQ_INT(did_plc_url(SPAN(PLC), SPAN("https://plc.directory"), &url), DID_OK);
    CHECK(span_is((struct span){ url.bytes, url.size }, "https://plc.directory/" PLC));
    buffer_clear(&url);
    CHECK_EQ_INT(did_plc_url(SPAN(PLC), SPAN("http://127.0.0.1:9/plc/"), &url), DID_OK);
    CHECK(span_is((struct span){ url.bytes, url.size }, "http://127.0.0.1:9/plc/" PLC));
    CHECK_EQ_INT(did_plc_url(SPAN("did:web:example.com"), SPAN("https://x"), &url), DID_METHOD);
    CHECK_EQ_INT(did_plc_url(SPAN("did:plc:../../../x"), SPAN("https://x"), &url), DID_SYNTAX);
    buffer_free(&url);
}

/* ---- documents ------------------------------------------------------------------------------- */

#define JWK_K256                                                                                   \
    "{\"kty\":\"EC\",\"crv\":\"secp256k1\",\"x\":\"uDj_ROW8F3vyEYnQdmCC_J2EMiaIf8l2A3EQC37iCm8\"," \
    "\"y\":\"8MnXW_unsxpryhl0SW7rVt41cHGVXYPEsbraoLIYMuk\"}"
#define METHOD(id, rest) "{\"id\":\"" id "\",\"controller\":\"" PLC "\"," rest "}"
#define MULTIKEY(key) "\"type\":\"Multikey\",\"publicKeyMultibase\":\"" key "\""
#define DOCUMENT(methods)                                                                          \
    "{\"@context\":[\"https://www.w3.org/ns/did/v1\"],\"id\":\"" PLC                               \
    "\",\"alsoKnownAs\":[\"at://alice.example.com\"],\"verificationMethod\":[" methods             \
    "],\"service\":[]}"
#define GOOD DOCUMENT(METHOD(PLC "#atproto", MULTIKEY(K256)))

static const struct document_case {
    const char *document, *label;
} documents[] = {
    { GOOD, "Ok" },
    { DOCUMENT(METHOD("#atproto", MULTIKEY(P256))), "Ok" },
    { DOCUMENT(METHOD("#other", MULTIKEY(P256)) "," METHOD("#atproto", MULTIKEY(K256))), "Ok" },
    { DOCUMENT(METHOD("#atproto", "\"type\":\"JsonWebKey2020\",\"publicKeyJwk\":" JWK_K256)),
        "Ok" },
    { DOCUMENT(METHOD("#atproto", "\"type\":\"JsonWebKey\",\"publicKeyJwk\":" JWK_K256)), "Ok" },
    { DOCUMENT("{\"id\":\"#atproto\"," MULTIKEY(K256) "}"), "Ok" }, /* no controller: its own */
    { "{\"id\":\"" PLC
      "\",\"deactivated\":false,\"verificationMethod\":[" METHOD("#atproto", MULTIKEY(K256)) "]}",
        "Ok" },
    /* shape */
    { "", "DidDocument" },
    { "null", "DidDocument" },
    { "[]", "DidDocument" },
    { "\"" PLC "\"", "DidDocument" },
    { GOOD "x", "DidDocument" },
    { GOOD GOOD, "DidDocument" },
    { "{\"id\":\"" PLC "\",\"id\":\"" PLC "\"}", "DidDocument" },
    { DOCUMENT("1"), "DidDocument" },
    { DOCUMENT("{}"), "DidDocument" },
    { DOCUMENT("{\"id\":1}"), "DidDocument" },
    { DOCUMENT("{\"id\":\"#atproto\"}"), "DidDocument" },
    { DOCUMENT("{\"id\":\"#atproto\",\"type\":1}"), "DidDocument" },
    { "{\"id\":\"" PLC "\",\"verificationMethod\":{}}", "DidDocument" },
    /* the document of another DID */
    { "{}", "DidDocumentId" },
    { "{\"id\":1}", "DidDocumentId" },
    { "{\"id\":\"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa\",\"verificationMethod\":[" METHOD(
          PLC "#atproto", MULTIKEY(K256)) "]}",
        "DidDocumentId" },
    { "{\"id\":\"" PLC "#atproto\"}", "DidDocumentId" },
    { "{\"message\":\"DID not registered: " PLC "\"}", "DidDocumentId" },
    /* gone */
    { "{\"id\":\"" PLC
      "\",\"deactivated\":true,\"verificationMethod\":[" METHOD("#atproto", MULTIKEY(K256)) "]}",
        "DidDeactivated" },
    { "{\"id\":\"" PLC "\",\"deactivated\":\"false\"}", "DidDeactivated" },
    { "{\"id\":\"" PLC "\",\"deactivated\":null}", "DidDeactivated" },
    /* which */
    { "{\"id\":\"" PLC "\"}", "DidKeyMissing" },
    { DOCUMENT(""), "DidKeyMissing" },
    { DOCUMENT(METHOD("#other", MULTIKEY(K256))), "DidKeyMissing" },
    { DOCUMENT(METHOD("atproto", MULTIKEY(K256))), "DidKeyMissing" },
    { DOCUMENT(METHOD("#atproto2", MULTIKEY(K256))), "DidKeyMissing" },
    { DOCUMENT(METHOD("did:web:evil.example.com#atproto", MULTIKEY(K256))), "DidKeyMissing" },
    { DOCUMENT(METHOD("#atproto", MULTIKEY(K256)) "," METHOD("#atproto", MULTIKEY(P256))),
        "DidKeyAmbiguous" },
    { DOCUMENT(METHOD("#atproto", MULTIKEY(K256)) "," METHOD(PLC "#atproto", MULTIKEY(P256))),
        "DidKeyAmbiguous" },
    { DOCUMENT(
          "{\"id\":\"#atproto\",\"controller\":\"did:web:evil.example.com\"," MULTIKEY(K256) "}"),
        "DidController" },
    { DOCUMENT("{\"id\":\"#atproto\",\"controller\":[\"" PLC "\"]," MULTIKEY(K256) "}"),
        "DidController" },
    /* a missing or malformed key */
    { DOCUMENT(METHOD("#atproto", "\"type\":\"Multikey\"")), "DidKey" },
    { DOCUMENT(METHOD("#atproto", "\"type\":\"Multikey\",\"publicKeyMultibase\":1")), "DidKey" },
    { DOCUMENT(METHOD("#atproto", MULTIKEY(""))), "DidKey" },
    { DOCUMENT(METHOD("#atproto", MULTIKEY("zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJw0"))),
        "DidKey" },
    { DOCUMENT(METHOD("#atproto", MULTIKEY("uAAAA"))), "DidKeyKind" },
    { DOCUMENT(
          METHOD("#atproto", "\"type\":\"Ed25519VerificationKey2018\",\"publicKeyBase58\":\"x\"")),
        "DidKeyKind" },
    { DOCUMENT(METHOD("#atproto", "\"type\":\"JsonWebKey2020\"")), "DidKey" },
    { DOCUMENT(METHOD("#atproto", "\"type\":\"JsonWebKey2020\",\"publicKeyJwk\":{}")), "DidKey" },
    { DOCUMENT(
          METHOD("#atproto", "\"type\":\"JsonWebKey2020\",\"publicKeyJwk\":{\"kty\":\"oct\",\"k\":"
                             "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}")),
        "DidKey" }, /* a shared secret in public */
    { DOCUMENT(METHOD("#atproto",
          "\"type\":\"JsonWebKey2020\",\"publicKeyJwk\":{\"kty\":\"EC\",\"crv\":\"P-384\"}")),
        "DidKeyKind" },
};
enum { DOCUMENTS = sizeof documents / sizeof documents[0] };

static enum did_refusal read_document(struct span document, struct crypto_key **ret_key)
{
    return did_document_key(document, SPAN(PLC), SPAN("#atproto"), ret_key);
}

TEST(document, gives_the_key_or_its_own_label)
{
    for (size_t i = 0; i < DOCUMENTS; i++) {
        struct crypto_key *key = NULL;
        enum did_refusal refusal = read_document(span_of(documents[i].document), &key);

        CHECK_MSG(strcmp(did_refusal_label(refusal), documents[i].label) == 0, "%s: %s",
            documents[i].document, did_refusal_label(refusal));
        CHECK_EQ_INT(key != NULL, refusal == DID_OK);
        crypto_key_unref(&key);
    }
}

TEST(document, gives_the_key_that_was_asked_for)
{
    static const char text[] =
        DOCUMENT(METHOD("#other", MULTIKEY(P256)) "," METHOD("#atproto", MULTIKEY(K256)));
    struct crypto_key *key = NULL;
    char did[DID_KEY_CHARS_MAX];

    CHECK_EQ_INT(read_document(span_of(text), &key), DID_OK);
    did_key_format(key, did);
    CHECK_EQ_STR(did, "did:key:" K256);
    crypto_key_unref(&key);
    CHECK_EQ_INT(did_document_key(span_of(text), SPAN(PLC), SPAN("#other"), &key), DID_OK);
    did_key_format(key, did);
    CHECK_EQ_STR(did, "did:key:" P256);
    crypto_key_unref(&key);
}

TEST(document, cut_anywhere_is_refused)
{
    for (size_t size = 0; size < sizeof GOOD - 1; size++) {
        struct crypto_key *key = NULL;
        char *copy = base_alloc(size);

        memcpy(copy, GOOD, size);
        CHECK_EQ_INT(read_document((struct span){ copy, size }, &key), DID_DOCUMENT);
        base_free(copy);
    }
}

TEST(document, has_limits)
{
    struct buffer text = { 0 };
    struct crypto_key *key = NULL;

    buffer_text(&text, GOOD);
    while (text.size <= DID_DOCUMENT_BYTES_MAX)
        buffer_text(&text, " ");
    CHECK_EQ_INT(read_document((struct span){ text.bytes, text.size }, &key), DID_DOCUMENT_LARGE);
    text.size--;
    CHECK_EQ_INT(read_document((struct span){ text.bytes, text.size }, &key), DID_OK);
    crypto_key_unref(&key);
    buffer_clear(&text);
    buffer_text(&text, "{\"id\":\"" PLC "\",\"verificationMethod\":[");
    for (int i = 0; i < DID_METHODS_MAX; i++)
        buffer_text(&text, "{\"id\":\"#x\"},");
    buffer_text(&text, METHOD("#atproto", MULTIKEY(K256)) "]}");
    CHECK_EQ_INT(read_document((struct span){ text.bytes, text.size }, &key), DID_DOCUMENT);
    buffer_clear(&text);
    buffer_text(&text, "{\"id\":\"" PLC "\",\"x\":");
    for (int i = 0; i < 100; i++)
        buffer_text(&text, "[");
    CHECK_EQ_INT(read_document((struct span){ text.bytes, text.size }, &key), DID_DOCUMENT);
    buffer_free(&text);
}

TEST(document, every_failed_allocation_is_no_memory_and_leaves_nothing)
{
    for (size_t i = 0; i < DOCUMENTS; i++) {
        for (uint64_t n = 1;; n++) {
            struct crypto_key *key = NULL;
            struct buffer url = { 0 };
            enum did_refusal refusal, web;
            bool is_over;

            base_fault_countdown(n, 1);
            refusal = read_document(span_of(documents[i].document), &key);
            web = did_web_url(SPAN("did:web:example.com"), false, &url);
            is_over = base_fault_countdown(0, 0) < n;
            CHECK(refusal == DID_NO_MEMORY ||
                  strcmp(did_refusal_label(refusal), documents[i].label) == 0);
            CHECK(web == DID_NO_MEMORY ? url.size == 0 : web == DID_OK);
            crypto_key_unref(&key);
            buffer_free(&url);
            if (is_over)
                break;
        }
    }
}

TEST(labels, are_all_different_and_have_texts)
{
    for (int i = 0; i < DID_REFUSAL_COUNT; i++) {
        CHECK(strlen(did_refusal_text((enum did_refusal)i)) > 5);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(did_refusal_label((enum did_refusal)i),
                      did_refusal_label((enum did_refusal)j)) != 0);
    }
}
