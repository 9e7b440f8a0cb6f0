/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <troupe/error.h>

#include "auth/did.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/encoding.h"

#define NOW 1700000000

static const enum crypto_algorithm all[] = { CRYPTO_ES256, CRYPTO_ES256K, CRYPTO_EDDSA,
    CRYPTO_RS256, CRYPTO_HS256 };
enum { ALL = sizeof all / sizeof all[0] };

static const struct span audience = { "did:web:localhost", 17 };

static struct jwt_claims good_claims(void)
{
    return (struct jwt_claims){
        .iss = SPAN("did:web:example.com"),
        .aud = audience,
        .lxm = SPAN("com.example.send"),
        .jti = SPAN("n-1"),
        .iat_s = NOW,
        .nbf_s = -1,
        .exp_s = NOW + 60,
    };
}

static struct jwt_expect good_expect(void)
{
    return (struct jwt_expect){
        .now_s = NOW,
        .issuer_is_did = true,
        .audiences = &audience,
        .audience_count = 1,
        .lxm = SPAN("com.example.send"),
        .algorithms = UINT32_MAX,
    };
}

static struct crypto_key *generate(enum crypto_algorithm algorithm)
{
    struct crypto_key *key = NULL;

    CHECK_EQ_INT(crypto_key_generate(algorithm, &key), 0);
    return key;
}

static struct span token_span(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

static void make(const struct crypto_key *key, struct span kid, const struct jwt_claims *claims,
    struct buffer *token)
{
    buffer_clear(token);
    CHECK_EQ_INT(jwt_sign_claims(key, kid, claims, token), 0);
}

static enum jwt_refusal judge(
    const struct crypto_key *key, struct span token, const struct jwt_expect *expect)
{
    struct jwt jwt;
    enum jwt_refusal refusal = jwt_parse(&jwt, token);

    if (refusal == JWT_OK)
        refusal = jwt_check(&jwt, expect);
    if (refusal == JWT_OK)
        refusal = jwt_verify(&jwt, key);
    jwt_fini(&jwt);
    return refusal;
}

static void check_label(enum jwt_refusal refusal, const char *label)
{
    CHECK_EQ_STR(jwt_refusal_label(refusal), label);
}

/* ---- the whole way --------------------------------------------------------------------------- */

TEST(jwt, what_is_signed_is_accepted_and_read_back)
{
    const struct jwt_claims claims = good_claims();
    const struct jwt_expect expect = good_expect();
    struct buffer token = { 0 };
    struct jwt jwt;

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]), *other = generate(all[(i + 1) % ALL]);

        make(key, (struct span){ NULL, 0 }, &claims, &token);
        CHECK_EQ_INT(judge(key, token_span(&token), &expect), JWT_OK);
        CHECK_EQ_INT(judge(other, token_span(&token), &expect), JWT_ALGORITHM_MISMATCH);
        CHECK_EQ_INT(jwt_parse(&jwt, token_span(&token)), JWT_OK);
        CHECK_EQ_INT(jwt.algorithm, all[i]);
        CHECK(span_equal(jwt.claims.iss, claims.iss));
        CHECK(span_equal(jwt.claims.aud, claims.aud));
        CHECK(span_equal(jwt.claims.lxm, claims.lxm));
        CHECK(span_equal(jwt.claims.jti, claims.jti));
        CHECK(jwt.claims.sub.at == NULL);
        CHECK_EQ_INT(jwt.claims.exp_s, NOW + 60);
        CHECK_EQ_INT(jwt.claims.iat_s, NOW);
        CHECK_EQ_INT(jwt.claims.nbf_s, -1);
        CHECK(jwt.kid.at == NULL);
        jwt_fini(&jwt);
        jwt_fini(&jwt);
        crypto_key_unref(&key);
        crypto_key_unref(&other);
    }
    buffer_free(&token);
}

TEST_LONG(jwt, cut_anywhere_is_refused, 60)
{
    const struct jwt_claims claims = good_claims();
    const struct jwt_expect expect = good_expect();
    struct buffer token = { 0 };

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);

        make(key, (struct span){ NULL, 0 }, &claims, &token);
        for (size_t size = 0; size < token.size; size++) {
            /* A copy of exactly this size: a sanitizer sees a read past its end. */
            char *copy = base_alloc(size);

            memcpy(copy, token.bytes, size);
            CHECK(judge(key, (struct span){ copy, size }, &expect) != JWT_OK);
            memcpy(copy, token.bytes + token.size - size, size);
            CHECK(judge(key, (struct span){ copy, size }, &expect) != JWT_OK);
            base_free(copy);
        }
        crypto_key_unref(&key);
    }
    buffer_free(&token);
}

TEST_LONG(jwt, any_bit_changed_is_refused, 120)
{
    const struct jwt_claims claims = good_claims();
    const struct jwt_expect expect = good_expect();
    struct buffer token = { 0 };
    size_t flips = 0;

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);

        make(key, (struct span){ NULL, 0 }, &claims, &token);
        for (size_t bit = 0; bit < token.size * 8; bit++, flips++) {
            token.bytes[bit / 8] = (char)(token.bytes[bit / 8] ^ (1 << bit % 8));
            CHECK_MSG(judge(key, token_span(&token), &expect) != JWT_OK, "%s: bit %zu is free",
                crypto_algorithm_name(all[i]), bit);
            token.bytes[bit / 8] = (char)(token.bytes[bit / 8] ^ (1 << bit % 8));
        }
        CHECK_EQ_INT(judge(key, token_span(&token), &expect), JWT_OK);
        crypto_key_unref(&key);
    }
    CHECK(flips > 10000);
    buffer_free(&token);
}

/* Any character in any place: the token is the only text that means it. */
TEST_LONG(jwt, any_character_replaced_is_refused, 120)
{
    static const char characters[] = "AQgwZz09-_.= +/{\"";
    const struct jwt_claims claims = good_claims();
    const struct jwt_expect expect = good_expect();
    struct crypto_key *key = generate(CRYPTO_HS256); /* the cheapest */
    struct buffer token = { 0 };

    make(key, (struct span){ NULL, 0 }, &claims, &token);
    for (size_t at = 0; at < token.size; at++) {
        const char was = token.bytes[at];

        for (const char *c = characters; *c != '\0'; c++) {
            if (*c == was)
                continue;
            token.bytes[at] = *c;
            CHECK(judge(key, token_span(&token), &expect) != JWT_OK);
        }
        token.bytes[at] = was;
    }
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(jwt, every_failed_allocation_is_no_memory_and_leaves_nothing)
{
    const struct jwt_claims claims = good_claims();
    const struct jwt_expect expect = good_expect();

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);
        uint64_t n = 1;

        for (;; n++) {
            struct buffer token = { 0 };
            enum jwt_refusal refusal = JWT_NO_MEMORY;
            bool is_over;
            int rc;

            base_fault_countdown(n, 1);
            rc = jwt_sign_claims(key, SPAN("k"), &claims, &token);
            if (rc == 0)
                refusal = judge(key, token_span(&token),
                    &(struct jwt_expect){ .now_s = expect.now_s,
                        .issuer_is_did = true,
                        .audiences = &audience,
                        .audience_count = 1,
                        .lxm = expect.lxm,
                        .algorithms = UINT32_MAX,
                        .kid_rule = JWT_KID_ANY });
            is_over = base_fault_countdown(0, 0) < n;
            CHECK(rc == 0 || rc == TR_ENOMEM);
            CHECK(rc == 0 || token.size == 0);
            CHECK(refusal == JWT_NO_MEMORY || refusal == JWT_OK);
            buffer_free(&token);
            if (is_over) {
                CHECK_EQ_INT(refusal, JWT_OK);
                break;
            }
        }
        CHECK(n > 5);
        crypto_key_unref(&key);
    }
}

/* ---- what is expected ------------------------------------------------------------------------ */

TEST(expect, nothing_stated_means_nothing_accepted)
{
    const struct jwt_claims claims = good_claims();
    struct crypto_key *key = generate(CRYPTO_ES256K);
    struct jwt_expect expect = { .now_s = NOW };
    struct buffer token = { 0 };

    make(key, (struct span){ NULL, 0 }, &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "IssuerRefused");
    expect.issuer = claims.iss;
    check_label(judge(key, token_span(&token), &expect), "AudienceMismatch");
    expect.audiences = &audience;
    expect.audience_count = 1;
    check_label(judge(key, token_span(&token), &expect), "MethodMismatch");
    expect.lxm = claims.lxm;
    check_label(judge(key, token_span(&token), &expect), "Ok");
    make(key, SPAN("#atproto"), &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "KeyIdRefused");
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, a_secret_is_accepted_only_where_it_is_named)
{
    const struct jwt_claims claims = good_claims();
    struct jwt_expect expect = good_expect();
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct buffer token = { 0 };

    make(key, (struct span){ NULL, 0 }, &claims, &token);
    expect.algorithms = 0;
    check_label(judge(key, token_span(&token), &expect), "AlgorithmRefused");
    expect.algorithms = 1u << CRYPTO_ES256 | 1u << CRYPTO_ES256K;
    check_label(judge(key, token_span(&token), &expect), "AlgorithmRefused");
    expect.algorithms = 1u << CRYPTO_HS256;
    check_label(judge(key, token_span(&token), &expect), "Ok");
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, times_have_sharp_edges)
{
    static const struct {
        int64_t iat, nbf, exp, lifetime, skew;
        const char *label;
    } cases[] = {
        { NOW, -1, NOW + 1, 0, 0, "Ok" },
        { NOW - 10, -1, NOW, 0, 0, "TokenExpired" },
        { NOW, -1, NOW + 120, 0, 0, "Ok" },
        { NOW, -1, NOW + 121, 0, 0, "ExpiryTooFar" },
        { NOW, -1, NOW + 3600, 3600, 0, "Ok" },
        { NOW, -1, NOW + 3601, 3600, 0, "ExpiryTooFar" },
        { NOW - 1, -1, NOW + 120, 0, 0, "ExpiryTooFar" },
        { NOW + 20, -1, NOW + 120, 0, 0, "Ok" }, /* counted from now and from iat */
        { NOW + 20, -1, NOW + 121, 0, 0, "ExpiryTooFar" },
        { NOW + 30, -1, NOW + 60, 0, 0, "Ok" },
        { NOW + 31, -1, NOW + 60, 0, 0, "IssuedInFuture" },
        { NOW + 1, -1, NOW + 60, 0, -1, "IssuedInFuture" },
        { NOW, -1, NOW + 60, 0, -1, "Ok" },
        { NOW + 5, -1, NOW + 60, 0, 5, "Ok" },
        { NOW + 6, -1, NOW + 60, 0, 5, "IssuedInFuture" },
        { NOW, NOW + 30, NOW + 60, 0, 0, "Ok" },
        { NOW, NOW + 31, NOW + 60, 0, 0, "IssuedInFuture" },
        { NOW + 9, -1, NOW + 9, 0, 0, "IssuedAfterExpiry" },
        { NOW, NOW + 10, NOW + 10, 0, 0, "IssuedAfterExpiry" },
        { NOW, 0, NOW + 10, 0, 0, "Ok" },
        { 0, -1, NOW + 10, 0, 0, "ExpiryTooFar" },
        { NOW, -1, INT64_C(1) << 53, 0, 0, "ExpiryTooFar" },
        { INT64_C(1) << 53, -1, NOW + 10, 0, 0, "IssuedInFuture" },
        { -1, -1, NOW + 10, 0, 0, "IssuedMissing" },
        { NOW, -1, -1, 0, 0, "ExpiryMissing" },
    };
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct buffer token = { 0 };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct jwt_claims claims = good_claims();
        struct jwt_expect expect = good_expect();

        claims.iat_s = cases[i].iat;
        claims.nbf_s = cases[i].nbf;
        claims.exp_s = cases[i].exp;
        expect.lifetime_s_max = cases[i].lifetime;
        expect.skew_s = cases[i].skew;
        make(key, (struct span){ NULL, 0 }, &claims, &token);
        CHECK_MSG(
            strcmp(jwt_refusal_label(judge(key, token_span(&token), &expect)), cases[i].label) == 0,
            "case %zu: %s", i, jwt_refusal_label(judge(key, token_span(&token), &expect)));
    }
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, a_token_without_iat_is_capped_all_the_same)
{
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct jwt_claims claims = good_claims();
    struct jwt_expect expect = good_expect();
    struct buffer token = { 0 };

    expect.optional = JWT_OPTIONAL_IAT;
    claims.iat_s = -1;
    claims.exp_s = NOW + 120;
    make(key, (struct span){ NULL, 0 }, &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "Ok");
    claims.exp_s = NOW + 121;
    make(key, (struct span){ NULL, 0 }, &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "ExpiryTooFar");
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, a_kept_token_is_refused_once_it_has_expired_or_is_used_elsewhere)
{
    const struct jwt_claims claims = good_claims();
    struct jwt_expect expect = good_expect();
    const struct span elsewhere = SPAN("did:web:other.example.com");
    struct crypto_key *key = generate(CRYPTO_ES256K);
    struct buffer token = { 0 };
    struct jwt jwt;

    make(key, (struct span){ NULL, 0 }, &claims, &token);
    CHECK_EQ_INT(jwt_parse(&jwt, token_span(&token)), JWT_OK);
    CHECK_EQ_INT(jwt_verify(&jwt, key), JWT_OK);
    CHECK_EQ_INT(jwt_check(&jwt, &expect), JWT_OK);
    expect.lxm = SPAN("com.example.read");
    CHECK_EQ_INT(jwt_check(&jwt, &expect), JWT_METHOD);
    expect = good_expect();
    expect.audiences = &elsewhere;
    CHECK_EQ_INT(jwt_check(&jwt, &expect), JWT_AUDIENCE);
    expect = good_expect();
    expect.now_s = NOW + 59;
    CHECK_EQ_INT(jwt_check(&jwt, &expect), JWT_OK);
    expect.now_s = NOW + 60;
    CHECK_EQ_INT(jwt_check(&jwt, &expect), JWT_EXPIRED);
    jwt_fini(&jwt);
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, the_bare_did_and_the_service_are_two_names)
{
    const struct span names[] = { SPAN("did:web:localhost#svc"), SPAN("did:web:localhost") };
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct buffer token = { 0 };

    for (size_t expected = 0; expected < 2; expected++)
        for (size_t given = 0; given < 2; given++) {
            struct jwt_claims claims = good_claims();
            struct jwt_expect expect = good_expect();

            claims.aud = names[given];
            expect.audiences = &names[expected];
            make(key, (struct span){ NULL, 0 }, &claims, &token);
            CHECK_EQ_INT(
                judge(key, token_span(&token), &expect), expected == given ? JWT_OK : JWT_AUDIENCE);
            expect.audiences = names; /* both listed */
            expect.audience_count = 2;
            CHECK_EQ_INT(judge(key, token_span(&token), &expect), JWT_OK);
        }
    buffer_free(&token);
    crypto_key_unref(&key);
}

static void sign_json(const struct crypto_key *key, const char *json, struct buffer *token)
{
    buffer_clear(token);
    CHECK_EQ_INT(jwt_sign(key, (struct span){ NULL, 0 }, span_of(json), token), 0);
}

#define ID_TOKEN(aud)                                                                              \
    "{\"iss\":\"https://accounts.example.com\",\"sub\":\"42\",\"exp\":1700000060,"                 \
    "\"iat\":1700000000," aud "}"

TEST(expect, an_audience_list_needs_azp_when_it_names_others)
{
    static const struct {
        const char *json, *label;
    } cases[] = {
        { ID_TOKEN("\"aud\":\"app\""), "Ok" },
        { ID_TOKEN("\"aud\":[\"app\"]"), "Ok" },
        { ID_TOKEN("\"aud\":[\"app\",\"other\"]"), "AudienceMismatch" },
        { ID_TOKEN("\"aud\":[\"app\",\"other\"],\"azp\":\"app\""), "Ok" },
        { ID_TOKEN("\"aud\":[\"other\",\"app\"],\"azp\":\"app\""), "Ok" },
        { ID_TOKEN("\"aud\":[\"app\",\"other\"],\"azp\":\"other\""), "AudienceMismatch" },
        { ID_TOKEN("\"aud\":[\"other\"],\"azp\":\"app\""), "AudienceMismatch" },
        { ID_TOKEN("\"aud\":[]"), "AudienceMismatch" },
        { ID_TOKEN("\"aud\":[\"app\",1]"), "ClaimType" },
    };
    const struct span app = SPAN("app");
    const struct jwt_expect expect = {
        .now_s = NOW,
        .issuer = SPAN("https://accounts.example.com"),
        .audiences = &app,
        .audience_count = 1,
        .allow_audience_list = true,
        .any_lxm = true,
        .optional = JWT_OPTIONAL_JTI,
        .kid_rule = JWT_KID_ANY,
    };
    struct crypto_key *key = generate(CRYPTO_ES256);
    struct buffer token = { 0 };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sign_json(key, cases[i].json, &token);
        check_label(judge(key, token_span(&token), &expect), cases[i].label);
    }
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, a_required_kid_must_be_there)
{
    const struct jwt_claims claims = good_claims();
    static const char *const kids[] = { "#atproto", "k1", NULL };
    struct jwt_expect expect = good_expect();
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct buffer token = { 0 };

    expect.kids = kids;
    expect.kid_rule = JWT_KID_REQUIRED;
    make(key, (struct span){ NULL, 0 }, &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "KeyIdMissing");
    make(key, SPAN("k1"), &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "Ok");
    make(key, SPAN("k2"), &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "KeyIdRefused");
    make(key, SPAN("did:web:example.com#atproto"), &claims, &token);
    check_label(judge(key, token_span(&token), &expect), "Ok");
    make(key, SPAN("did:web:example.comk1"), &claims, &token); /* only a fragment joins */
    check_label(judge(key, token_span(&token), &expect), "KeyIdRefused");
    buffer_free(&token);
    crypto_key_unref(&key);
}

TEST(expect, unknown_claims_and_headers_are_ignored)
{
    struct crypto_key *key = generate(CRYPTO_HS256);
    const struct jwt_expect expect = good_expect();
    struct buffer token = { 0 };
    struct jwt jwt;
    struct span email;

    sign_json(key,
        "{\"iss\":\"did:web:example.com\",\"aud\":\"did:web:localhost\","
        "\"lxm\":\"com.example.send\",\"jti\":\"x\",\"iat\":1700000000,\"exp\":1700000060,"
        "\"email\":\"a\\u0040example.com\",\"deep\":{\"a\":[1,2.5,null]}}",
        &token);
    CHECK_EQ_INT(judge(key, token_span(&token), &expect), JWT_OK);
    CHECK_EQ_INT(jwt_parse(&jwt, token_span(&token)), JWT_OK);
    CHECK(json_string(json_get(jwt.claims_json, "email"), &email));
    CHECK(span_is(email, "a@example.com"));
    jwt_fini(&jwt);
    buffer_free(&token);
    crypto_key_unref(&key);
}

/* ---- making ---------------------------------------------------------------------------------- */

TEST(sign, refuses_text_that_would_break_out_of_its_quotes)
{
    static const char *const bad[] = { "a\"b", "a\\b", "a\nb", "a\x7f", "\xc3\xa9" };
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct buffer token = { 0 };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct jwt_claims claims = good_claims();

        claims.sub = span_of(bad[i]);
        CHECK_EQ_INT(jwt_sign_claims(key, (struct span){ NULL, 0 }, &claims, &token), TR_EINVAL);
        claims = good_claims();
        CHECK_EQ_INT(jwt_sign_claims(key, span_of(bad[i]), &claims, &token), TR_EINVAL);
        CHECK_EQ_INT(jwt_sign(key, span_of(bad[i]), SPAN("{}"), &token), TR_EINVAL);
    }
    CHECK_EQ_U64(token.size, 0);
    crypto_key_unref(&key);
}

TEST(sign, a_token_that_nobody_would_read_is_not_made)
{
    struct crypto_key *key = generate(CRYPTO_HS256);
    struct buffer token = { 0 };
    char *large = base_alloc(JWT_BYTES_MAX);
    struct jwt_claims claims = good_claims();

    memset(large, 'x', JWT_BYTES_MAX);
    claims.sub = (struct span){ large, JWT_BYTES_MAX };
    CHECK_EQ_INT(jwt_sign_claims(key, (struct span){ NULL, 0 }, &claims, &token), TR_ETOOBIG);
    claims.sub.size = 6500;
    CHECK_EQ_INT(jwt_sign_claims(key, (struct span){ NULL, 0 }, &claims, &token), TR_ETOOBIG);
    CHECK_EQ_U64(token.size, 0);
    claims.sub.size = JWT_NAME_CHARS_MAX;
    CHECK_EQ_INT(jwt_sign_claims(key, (struct span){ NULL, 0 }, &claims, &token), 0);
    buffer_free(&token);
    base_free(large);
    crypto_key_unref(&key);
}

TEST(sign, a_public_key_cannot)
{
    struct crypto_key *key = generate(CRYPTO_ES256K), *public_key = NULL;
    uint8_t bytes[CRYPTO_PUBLIC_BYTES_MAX];
    struct buffer token = { 0 };

    CHECK_EQ_INT(crypto_key_from_public(
                     CRYPTO_ES256K, bytes, crypto_key_public_bytes(key, bytes), &public_key),
        0);
    CHECK_EQ_INT(jwt_sign(public_key, (struct span){ NULL, 0 }, SPAN("{}"), &token), TR_EACCES);
    CHECK_EQ_U64(token.size, 0);
    crypto_key_unref(&key);
    crypto_key_unref(&public_key);
    buffer_free(&token);
}

TEST(labels, are_all_different_and_have_texts)
{
    for (int i = 0; i < JWT_REFUSAL_COUNT; i++) {
        CHECK(strlen(jwt_refusal_text((enum jwt_refusal)i)) > 5);
        CHECK(strchr(jwt_refusal_label((enum jwt_refusal)i), ' ') == NULL);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(jwt_refusal_label((enum jwt_refusal)i),
                      jwt_refusal_label((enum jwt_refusal)j)) != 0);
            CHECK(strcmp(jwt_refusal_text((enum jwt_refusal)i),
                      jwt_refusal_text((enum jwt_refusal)j)) != 0);
        }
    }
}

/* ---- sentences ------------------------------------------------------------------------------ */

static void check_sentence(enum jwt_refusal refusal, const struct jwt_claims *claims,
    const struct jwt_expect *expect, const char *wanted)
{
    char text[JWT_TEXT_SIZE];

    jwt_explain(refusal, claims, expect, text);
    CHECK_EQ_STR(text, wanted);
}

TEST(explain, a_sentence_names_the_value_and_the_limit)
{
    const struct span audiences[] = { SPAN("did:web:a.example"), SPAN("did:web:a.example#mls") };
    struct jwt_claims claims = { .exp_s = 1800000000,
        .iat_s = 1799999990,
        .nbf_s = -1,
        .aud = SPAN("did:web:b.example"),
        .lxm = SPAN("com.example.read") };
    struct jwt_expect expect = { .now_s = 1800000001,
        .audiences = audiences,
        .audience_count = 2,
        .lxm = SPAN("com.example.write") };

    check_sentence(
        JWT_EXPIRED, &claims, &expect, "The token expired at 08:00:00Z; make a new one.");
    check_sentence(JWT_AUDIENCE, &claims, &expect,
        "aud is did:web:b.example; this service is did:web:a.example#mls.");
    check_sentence(
        JWT_METHOD, &claims, &expect, "lxm is com.example.read; it must be com.example.write.");
    check_sentence(
        JWT_METHOD_MISSING, &claims, &expect, "lxm is missing; it must be com.example.write.");
    expect.now_s += 86400;
    check_sentence(JWT_EXPIRED, &claims, &expect,
        "The token expired at 2027-01-15T08:00:00Z; make a new one.");
    expect.now_s = 1799999000;
    check_sentence(JWT_EXPIRY_FAR, &claims, &expect, "The token lives 1000 s; the most is 120 s.");
    check_sentence(JWT_ISSUED_FUTURE, &claims, &expect,
        "iat is 990 s in the future; at most 30 s are allowed. Set the clock.");
}

TEST(explain, a_value_that_is_long_or_not_visible_is_not_quoted)
{
    char text[JWT_TEXT_SIZE], aud[JWT_QUOTE_CHARS_MAX + 1];
    const struct span service = SPAN("did:web:a.example");
    struct jwt_claims claims = { .aud = { aud, sizeof aud } };
    const struct jwt_expect expect = { .audiences = &service, .audience_count = 1 };

    memset(aud, 'a', sizeof aud);
    check_sentence(JWT_AUDIENCE, &claims, &expect, jwt_refusal_text(JWT_AUDIENCE));
    claims.aud = SPAN("a\nb");
    check_sentence(JWT_AUDIENCE, &claims, &expect, jwt_refusal_text(JWT_AUDIENCE));
    claims.aud.size = 1;
    jwt_explain(JWT_AUDIENCE, &claims, &expect, text);
    CHECK_EQ_STR(text, "aud is a; this service is did:web:a.example.");
}

TEST(explain, a_claim_of_the_wrong_type_is_named)
{
    static const struct {
        const char *json;
        const char *wanted;
    } rows[] = {
        { "{\"iss\":1}", "iss must be text of 1 to 2048 characters." },
        { "{\"jti\":\"a b\"}", "jti must be 1 to 128 visible ASCII characters." },
        { "{\"exp\":\"1\"}", "exp must be a whole number of seconds since 1970." },
    };
    struct crypto_key *key = generate(CRYPTO_HS256);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buffer token = { 0 };
        struct jwt jwt;
        enum jwt_refusal refusal;

        CHECK_EQ_INT(jwt_sign(key, (struct span){ NULL, 0 }, span_of(rows[i].json), &token), 0);
        refusal = jwt_parse(&jwt, (struct span){ token.bytes, token.size });
        check_sentence(refusal, &jwt.claims, NULL, rows[i].wanted);
        jwt_fini(&jwt);
        buffer_free(&token);
    }
    crypto_key_unref(&key);
}
