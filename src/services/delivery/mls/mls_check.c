/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/mls_check.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/assert.h"

static const struct mls_suite suites[] = {
    { 1, "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", "SHA256", 32, 32, "ED25519", NULL },
    { 2, "MLS_128_DHKEMP256_AES128GCM_SHA256_P256", "SHA256", 65, 65, "EC", "P-256" },
    { 3, "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519", "SHA256", 32, 32, "ED25519", NULL },
    { 4, "MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448", "SHA512", 56, 57, "ED448", NULL },
    { 5, "MLS_256_DHKEMP521_AES256GCM_SHA512_P521", "SHA512", 133, 133, "EC", "P-521" },
    { 6, "MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448", "SHA512", 56, 57, "ED448", NULL },
    { 7, "MLS_256_DHKEMP384_AES256GCM_SHA384_P384", "SHA384", 97, 97, "EC", "P-384" },
    { 0x4d, "MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519", "SHA256", 1216, 32, "ED25519", NULL },
};

const struct mls_suite *mls_suite_of(uint16_t id)
{
    for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++)
        if (suites[i].id == id)
            return &suites[i];
    return NULL;
}

const char *mls_suite_name(int64_t id)
{
    const struct mls_suite *suite = mls_suite_of((uint16_t)id);

    return suite == NULL ? "unknown" : suite->name;
}

const struct mls_suite *mls_suite_named(struct span name)
{
    for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++)
        if (span_is(name, suites[i].name))
            return &suites[i];
    return NULL;
}

/* ---- signatures ----------------------------------------------------------------------------- */

static EVP_PKEY *public_key(const struct mls_suite *suite, struct span bytes)
{
    OSSL_PARAM params[3] = {
        OSSL_PARAM_construct_octet_string(
            OSSL_PKEY_PARAM_PUB_KEY, (void *)(uintptr_t)bytes.at, bytes.size),
        OSSL_PARAM_construct_end(),
        OSSL_PARAM_construct_end(),
    };
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *ctx;

    if (bytes.size != suite->signature_key_size)
        return NULL;
    if (suite->curve != NULL && bytes.at[0] != 4) /* section 5.1.1 wants points uncompressed */
        return NULL;
    if (suite->curve != NULL)
        params[1] = OSSL_PARAM_construct_utf8_string(
            OSSL_PKEY_PARAM_GROUP_NAME, (char *)(uintptr_t)suite->curve, 0);
    ctx = EVP_PKEY_CTX_new_from_name(NULL, suite->key_type, NULL);
    if (ctx == NULL || EVP_PKEY_fromdata_init(ctx) != 1 ||
        EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_PUBLIC_KEY, params) != 1)
        key = NULL;
    EVP_PKEY_CTX_free(ctx);
    return key;
}

bool mls_verify(const struct mls_suite *suite, struct span key, const char *label,
    struct span content, struct span signature)
{
    struct buffer signed_content = { 0 };
    EVP_PKEY *public = public_key(suite, key);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool is_good;

    tr_assert(suite != NULL && label != NULL);
    mls_put_vector(&signed_content, span_of(label));
    mls_put_vector(&signed_content, content);
    is_good = public != NULL && ctx != NULL && signed_content.failed == 0 &&
              EVP_DigestVerifyInit_ex(ctx, NULL, suite->curve == NULL ? NULL : suite->digest, NULL,
                  NULL, public, NULL) == 1 &&
              EVP_DigestVerify(ctx, (const unsigned char *)signature.at, signature.size,
                  (const unsigned char *)signed_content.bytes, signed_content.size) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(public);
    buffer_free(&signed_content);
    ERR_clear_error(); /* a bad signature is no error of ours */
    return is_good;
}

static bool verify_and_free(const struct mls_suite *suite, struct span key, const char *label,
    struct buffer *content, struct span signature)
{
    bool is_good =
        content->failed == 0 &&
        mls_verify(suite, key, label, (struct span){ content->bytes, content->size }, signature);

    buffer_free(content);
    return is_good;
}

bool mls_leaf_verify(const struct mls_suite *suite, const struct mls_leaf *leaf,
    struct span group_id, uint32_t index)
{
    struct buffer content = { 0 };

    buffer_span(&content, leaf->bytes);
    if (leaf->source != MLS_FROM_KEY_PACKAGE) {
        mls_put_vector(&content, group_id);
        mls_put_number(&content, index, 4);
    }
    return verify_and_free(
        suite, leaf->signature_key, "MLS 1.0 LeafNodeTBS", &content, leaf->signature);
}

bool mls_message_verify(const struct mls_suite *suite, const struct mls_message *message,
    struct span key, struct span group_context)
{
    struct buffer content = { 0 };

    mls_put_number(&content, 1, 2);
    mls_put_number(&content, message->wire, 2);
    buffer_span(&content, message->framed);
    if (message->sender == MLS_MEMBER || message->sender == MLS_NEW_COMMIT)
        buffer_span(&content, group_context);
    return verify_and_free(suite, key, "MLS 1.0 FramedContentTBS", &content, message->signature);
}

/* ---- references ----------------------------------------------------------------------------- */

size_t mls_reference(const struct mls_suite *suite, const char *label, struct span value,
    unsigned char reference[MLS_REFERENCE_SIZE_MAX])
{
    struct buffer content = { 0 };
    size_t size = 0;

    tr_assert(suite != NULL);
    mls_put_vector(&content, span_of(label));
    mls_put_vector(&content, value);
    if (content.failed != 0 ||
        EVP_Q_digest(NULL, suite->digest, NULL, content.bytes, content.size, reference, &size) != 1)
        size = 0;
    buffer_free(&content);
    tr_assert(size <= MLS_REFERENCE_SIZE_MAX);
    return size;
}

size_t mls_key_package_reference(
    const struct mls_key_package *package, unsigned char reference[MLS_REFERENCE_SIZE_MAX])
{
    const struct mls_suite *suite = mls_suite_of(package->suite);

    return suite == NULL
               ? 0
               : mls_reference(suite, "MLS 1.0 KeyPackage Reference", package->bytes, reference);
}

size_t mls_proposal_reference(const struct mls_suite *suite, const struct mls_message *message,
    unsigned char reference[MLS_REFERENCE_SIZE_MAX])
{
    struct buffer content = { 0 };
    size_t size = 0;

    mls_put_number(&content, message->wire, 2);
    buffer_span(&content, message->framed);
    mls_put_vector(&content, message->signature);
    if (content.failed == 0)
        size = mls_reference(suite, "MLS 1.0 Proposal Reference",
            (struct span){ content.bytes, content.size }, reference);
    buffer_free(&content);
    return size;
}

/* ---- key packages --------------------------------------------------------------------------- */

static bool list_has(struct span list, uint16_t wanted)
{
    struct mls_reader reader = mls_reader_of(list);

    tr_assert(list.size % 2 == 0); /* the reader of a leaf refuses half an entry */
    while (mls_more(&reader))
        if (mls_number(&reader, 2) == wanted)
            return true;
    return false;
}

/* 0x0A0A, 0x1A1A, … 0xEAEA: meant to be ignored. */
static bool is_grease(uint16_t type)
{
    return (type & 0x0f0f) == 0x0a0a && type >> 8 == (type & 0xff) && type != 0xfafa;
}

static bool are_listed(struct span extensions, const struct mls_leaf *leaf)
{
    struct mls_reader reader = mls_reader_of(extensions);
    uint16_t type;
    struct span data;

    while (mls_extension_next(&reader, &type, &data))
        if (type > MLS_EXTERNAL_SENDERS && !is_grease(type) &&
            !list_has(leaf->capabilities[2], type))
            return false;
    return true;
}

static const char *check_lifetime(const struct mls_leaf *leaf, const struct mls_lifetime_rule *rule)
{
    if (leaf->not_after_s <= leaf->not_before_s)
        return "The lifetime of the key package ends before it begins.";
    if (leaf->not_after_s - leaf->not_before_s > rule->span_s_max)
        return "The key package is valid for longer than this server allows.";
    if (leaf->not_before_s > rule->now_s + rule->skew_s)
        return "The key package is not valid yet.";
    if (leaf->not_after_s <= rule->now_s)
        return "The key package has expired.";
    return NULL;
}

const char *mls_key_package_check(
    const struct mls_key_package *package, const struct mls_lifetime_rule *rule)
{
    const struct mls_suite *suite = mls_suite_of(package->suite);
    const struct mls_leaf *leaf = &package->leaf;
    const char *why;

    if (suite == NULL)
        return "The cipher suite is unknown to this server.";
    if (package->init_key.size != suite->kem_key_size ||
        leaf->encryption_key.size != suite->kem_key_size ||
        leaf->signature_key.size != suite->signature_key_size)
        return "A key has the wrong size for the cipher suite.";
    if (span_equal(package->init_key, leaf->encryption_key))
        return "The init key and the encryption key are the same.";
    if (!list_has(leaf->capabilities[4], leaf->credential))
        return "The capabilities do not list the credential's type.";
    if (!are_listed(leaf->extensions, leaf) || !are_listed(package->extensions, leaf))
        return "An extension is used that the capabilities do not list.";
    why = check_lifetime(leaf, rule);
    if (why != NULL)
        return why;
    if (!mls_leaf_verify(suite, leaf, (struct span){ "", 0 }, 0))
        return "The signature of the leaf node is wrong.";
    if (!mls_verify(suite, leaf->signature_key, "MLS 1.0 KeyPackageTBS", package->to_sign,
            package->signature))
        return "The signature of the key package is wrong.";
    return NULL;
}

/* ---- group info ----------------------------------------------------------------------------- */

const char *mls_group_info_check(const struct mls_group_info *info)
{
    const struct mls_suite *suite = mls_suite_of(info->context.suite);
    uint32_t leaf_count;
    struct mls_leaf signer;
    const char *why;

    if (suite == NULL)
        return "The cipher suite is unknown to this server.";
    if (info->ratchet_tree.at == NULL)
        return NULL;
    why = mls_tree_check(info->ratchet_tree, &leaf_count);
    if (why != NULL)
        return why;
    if (!mls_tree_find(info->ratchet_tree, info->signer, &signer))
        return "The signer of the group info is not in its tree.";
    if (!mls_verify(
            suite, signer.signature_key, "MLS 1.0 GroupInfoTBS", info->to_sign, info->signature))
        return "The signature of the group info is wrong.";
    return NULL;
}
