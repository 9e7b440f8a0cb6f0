/* SPDX-License-Identifier: Apache-2.0 */
/* This code must read the tokens of node's crypto and of the openssl command, and they must read its
 * tokens. A program that is not installed is skipped with the reason. */
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/error.h>

#include "auth/jwk.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/encoding.h"

static const enum crypto_algorithm all[] = { CRYPTO_ES256, CRYPTO_ES256K, CRYPTO_EDDSA,
    CRYPTO_RS256 };
enum { ALL = sizeof all / sizeof all[0] };

static bool has_program(const char *name)
{
    char command[128];

    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", name);
    return system(command) == 0;
}

static void make_folder(char folder[64])
{
    snprintf(folder, 64, "/tmp/test_jwt_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

static void remove_folder(const char *folder)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ_INT(system(command), 0);
}

static void write_file(const char *folder, const char *name, const void *bytes, size_t size)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK_EQ_U64(fwrite(bytes, 1, size, file), size);
    CHECK_EQ_INT(fclose(file), 0);
}

static struct crypto_key *generate(enum crypto_algorithm algorithm)
{
    struct crypto_key *key = NULL;

    CHECK_EQ_INT(crypto_key_generate(algorithm, &key), 0);
    return key;
}

static enum jwt_refusal verify(const struct crypto_key *key, struct span token)
{
    struct jwt jwt;
    enum jwt_refusal refusal = jwt_parse(&jwt, token);

    if (refusal == JWT_OK)
        refusal = jwt_verify(&jwt, key);
    jwt_fini(&jwt);
    return refusal;
}

/* For each algorithm: a line with the JWK, then tokens. S is random. */
static const char make_script[] =
    "const c = require('crypto');\n"
    "const b = x => Buffer.from(x).toString('base64url');\n"
    "const kinds = { ES256: ['ec', {namedCurve: 'P-256'}], ES256K: ['ec', {namedCurve: "
    "'secp256k1'}],\n"
    "  EdDSA: ['ed25519', {}], RS256: ['rsa', {modulusLength: 2048}] };\n"
    "for (const [alg, [type, options]] of Object.entries(kinds)) {\n"
    "  const { privateKey, publicKey } = c.generateKeyPairSync(type, options);\n"
    "  console.log(JSON.stringify(publicKey.export({ format: 'jwk' })));\n"
    "  for (let i = 0; i < 25; i++) {\n"
    "    const text = b(JSON.stringify({ alg, typ: 'JWT' })) + '.' +\n"
    "      b(JSON.stringify({ iss: 'did:web:example.com', n: i, t: '\\u00e9\\u20ac' + i }));\n"
    "    const s = c.sign(alg == 'EdDSA' ? null : 'sha256', Buffer.from(text),\n"
    "      { key: privateKey, dsaEncoding: 'ieee-p1363' });\n"
    "    console.log(text + '.' + s.toString('base64url'));\n"
    "  }\n"
    "}\n";

TEST_LONG(differential, tokens_of_node_are_read, 60)
{
    char folder[64], command[160], line[4096];
    struct crypto_key *key = NULL;
    unsigned keys = 0, accepted = 0, high_s = 0;
    FILE *output;

    if (!has_program("node"))
        SKIP("node is not installed");
    make_folder(folder);
    write_file(folder, "make.js", make_script, sizeof make_script - 1);
    snprintf(command, sizeof command, "node '%s/make.js'", folder);
    output = popen(command, "r");
    CHECK(output != NULL);
    while (fgets(line, sizeof line, output) != NULL) {
        struct span text = { line, strcspn(line, "\n") };
        enum jwt_refusal refusal;

        if (line[0] == '{') {
            struct json_doc doc = { 0 };

            crypto_key_unref(&key);
            CHECK_EQ_INT(json_parse_copy(&doc, text, JSON_UNIQUE_KEYS), 0);
            CHECK_EQ_INT(jwk_parse(json_root(&doc), JWK_PUBLIC, &key, NULL), 0);
            CHECK_EQ_INT(crypto_key_algorithm(key), all[keys]);
            json_doc_free(&doc);
            keys++;
            continue;
        }
        refusal = verify(key, text);
        CHECK_MSG(refusal == JWT_OK || refusal == JWT_SIGNATURE_HIGH_S, "%s: %s", line,
            jwt_refusal_label(refusal));
        CHECK(refusal == JWT_OK || crypto_key_algorithm(key) <= CRYPTO_ES256K);
        refusal == JWT_OK ? accepted++ : high_s++;
        line[text.size - 3] = line[text.size - 3] == 'A' ? 'B' : 'A';
        CHECK(verify(key, text) != JWT_OK);
    }
    CHECK_EQ_INT(pclose(output), 0);
    CHECK_EQ_U64(keys, ALL);
    CHECK_EQ_U64(accepted + high_s, ALL * 25);
    CHECK(high_s > 3);
    CHECK(high_s < 47);
    crypto_key_unref(&key);
    remove_folder(folder);
}

/* Reads NAME.pem and NAME.tokens; one line "alg good bad" for each. */
static const char verify_script[] =
    "const c = require('crypto'), fs = require('fs'), dir = process.argv[2];\n"
    "for (const alg of ['ES256', 'ES256K', 'EdDSA', 'RS256']) {\n"
    "  const key = c.createPublicKey(fs.readFileSync(dir + '/' + alg + '.pem'));\n"
    "  let good = 0, bad = 0;\n"
    "  for (const token of fs.readFileSync(dir + '/' + alg + '.tokens', 'utf8').split('\\n')) {\n"
    "    if (token == '') continue;\n"
    "    const [h, p, s] = token.split('.');\n"
    "    if (JSON.parse(Buffer.from(h, 'base64url')).alg != alg) throw 'alg';\n"
    "    if (JSON.parse(Buffer.from(p, 'base64url')).iss != 'did:web:example.com') throw 'iss';\n"
    "    c.verify(alg == 'EdDSA' ? null : 'sha256', Buffer.from(h + '.' + p),\n"
    "      { key, dsaEncoding: 'ieee-p1363' }, Buffer.from(s, 'base64url')) ? good++ : bad++;\n"
    "  }\n"
    "  console.log(alg, good, bad);\n"
    "}\n";

TEST_LONG(differential, node_reads_our_tokens, 60)
{
    char folder[64], command[160], name[32], line[128];
    FILE *output;

    if (!has_program("node"))
        SKIP("node is not installed");
    make_folder(folder);
    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);
        struct buffer pem = { 0 }, tokens = { 0 };

        CHECK_EQ_INT(crypto_key_public_pem(key, &pem), 0);
        for (int n = 0; n < 25; n++) {
            CHECK_EQ_INT(
                jwt_sign_claims(key, (struct span){ NULL, 0 },
                    &(struct jwt_claims){
                        .iss = SPAN("did:web:example.com"), .iat_s = n, .exp_s = -1, .nbf_s = -1 },
                    &tokens),
                0);
            buffer_text(&tokens, "\n");
        }
        snprintf(name, sizeof name, "%s.pem", crypto_algorithm_name(all[i]));
        write_file(folder, name, pem.bytes, pem.size);
        snprintf(name, sizeof name, "%s.tokens", crypto_algorithm_name(all[i]));
        write_file(folder, name, tokens.bytes, tokens.size);
        buffer_free(&pem);
        buffer_free(&tokens);
        crypto_key_unref(&key);
    }
    write_file(folder, "verify.js", verify_script, sizeof verify_script - 1);
    snprintf(command, sizeof command, "node '%s/verify.js' '%s'", folder, folder);
    output = popen(command, "r");
    CHECK(output != NULL);
    for (size_t i = 0; i < ALL; i++) {
        char expected[64];

        CHECK(fgets(line, sizeof line, output) != NULL);
        snprintf(expected, sizeof expected, "%s 25 0\n", crypto_algorithm_name(all[i]));
        CHECK_EQ_STR(line, expected);
    }
    CHECK_EQ_INT(pclose(output), 0);
    remove_folder(folder);
}

static size_t to_der(const uint8_t raw[64], uint8_t *der)
{
    ECDSA_SIG *pair = ECDSA_SIG_new();
    int size;

    CHECK_EQ_INT(ECDSA_SIG_set0(pair, BN_bin2bn(raw, 32, NULL), BN_bin2bn(raw + 32, 32, NULL)), 1);
    size = i2d_ECDSA_SIG(pair, &der);
    ECDSA_SIG_free(pair);
    return (size_t)size;
}

TEST_LONG(differential, the_openssl_command_verifies_our_signatures, 60)
{
    static const enum crypto_algorithm algorithms[] = { CRYPTO_ES256, CRYPTO_ES256K, CRYPTO_RS256 };
    char folder[64], command[256];

    if (!has_program("openssl"))
        SKIP("openssl is not installed");
    make_folder(folder);
    for (size_t i = 0; i < 3; i++) {
        struct crypto_key *key = generate(algorithms[i]);
        struct buffer pem = { 0 };
        uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX], der[80];
        bool is_pair = algorithms[i] != CRYPTO_RS256;
        size_t size;

        CHECK_EQ_INT(crypto_key_public_pem(key, &pem), 0);
        CHECK_EQ_INT(crypto_key_sign(key, "message", 7, signature), 0);
        size = is_pair ? to_der(signature, der) : crypto_key_signature_size(key);
        write_file(folder, "pem", pem.bytes, pem.size);
        write_file(folder, "signature", is_pair ? der : signature, size);
        snprintf(command, sizeof command,
            "cd '%s' && openssl dgst -sha256 -verify pem -signature signature message >log 2>&1",
            folder);
        write_file(folder, "message", "message", 7);
        CHECK_EQ_INT(system(command), 0);
        write_file(folder, "message", "Message", 7);
        CHECK(system(command) != 0);
        buffer_free(&pem);
        crypto_key_unref(&key);
    }
    remove_folder(folder);
}

TEST_LONG(differential, keys_of_the_openssl_command_are_read, 60)
{
    static const struct {
        const char *command;
        enum crypto_algorithm algorithm;
    } keys[] = {
        { "ecparam -name prime256v1 -genkey -noout", CRYPTO_ES256 },
        { "ecparam -name secp256k1 -genkey -noout", CRYPTO_ES256K },
        { "genpkey -algorithm ed25519", CRYPTO_EDDSA },
        { "genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:2048 -quiet", CRYPTO_RS256 },
        { "genrsa 2048", CRYPTO_RS256 },
    };
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];

    if (!has_program("openssl"))
        SKIP("openssl is not installed");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char command[256], text[8192];
        struct crypto_key *key = NULL;
        FILE *output;
        size_t size;

        snprintf(command, sizeof command, "openssl %s 2>/dev/null", keys[i].command);
        output = popen(command, "r");
        CHECK(output != NULL);
        size = fread(text, 1, sizeof text, output);
        pclose(output);
        CHECK_MSG(crypto_key_from_pem((struct span){ text, size }, &key) == 0, "openssl %s",
            keys[i].command);
        CHECK_EQ_INT(crypto_key_algorithm(key), keys[i].algorithm);
        CHECK(crypto_key_is_private(key));
        CHECK_EQ_INT(crypto_key_sign(key, "x", 1, signature), 0);
        crypto_key_unref(&key);
    }
}
