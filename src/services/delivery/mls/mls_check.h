/* SPDX-License-Identifier: Apache-2.0 */
/* mls_check.h: signatures and references of RFC 9420 that can be checked without secrets, by
 * OpenSSL alone. Each takes tens of microseconds: call it on the blocking pool. */
#ifndef SERVICES_DELIVERY_MLS_MLS_CHECK_H
#define SERVICES_DELIVERY_MLS_MLS_CHECK_H

#include "services/delivery/mls/mls_message.h"

enum { MLS_REFERENCE_SIZE_MAX = 64 };

struct mls_suite {
    uint16_t id;
    const char *name;   /* of the registry */
    const char *digest; /* OpenSSL's name */
    size_t kem_key_size;
    size_t signature_key_size;
    const char *key_type; /* OpenSSL's name */
    const char *curve;    /* of an EC key */
};
/* Finds a cipher suite. NULL: unknown. */
const struct mls_suite *mls_suite_of(uint16_t id);
const struct mls_suite *mls_suite_named(struct span name);
#define MLS_SUITE_EXAMPLE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519" /* for error texts */

/* The name of a suite for clients. */
const char *mls_suite_name(int64_t id);

/* Verifies a signature by `key` with a label such as "MLS 1.0 LeafNodeTBS". */
bool mls_verify(const struct mls_suite *suite, struct span key, const char *label,
    struct span content, struct span signature);
/* RefHash: writes the digest, returns its size, 0 when out of memory. */
size_t mls_reference(const struct mls_suite *suite, const char *label, struct span value,
    unsigned char reference[MLS_REFERENCE_SIZE_MAX]);
size_t mls_key_package_reference(
    const struct mls_key_package *package, unsigned char reference[MLS_REFERENCE_SIZE_MAX]);
/* Hashes a public proposal to its reference. */
size_t mls_proposal_reference(const struct mls_suite *suite, const struct mls_message *message,
    unsigned char reference[MLS_REFERENCE_SIZE_MAX]);

struct mls_lifetime_rule {
    uint64_t now_s;
    uint64_t skew_s;
    uint64_t span_s_max; /* not_after - not_before */
};
/* Checks both signatures, the keys, the lifetime, and the extensions against the capabilities.
 * Returns NULL, or a sentence about the fault. */
const char *mls_key_package_check(
    const struct mls_key_package *package, const struct mls_lifetime_rule *rule);
/* Verifies a leaf's signature. A leaf of an update or commit is signed together with its place. */
bool mls_leaf_verify(const struct mls_suite *suite, const struct mls_leaf *leaf,
    struct span group_id, uint32_t index);
/* Checks that the suite is known, the tree is whole, the signer is a member and its signature is
 * good; without a ratchet tree, only the suite. Returns NULL, or a sentence about the fault. */
const char *mls_group_info_check(const struct mls_group_info *info);
/* Verifies the signature of a public message with this key in this group context. */
bool mls_message_verify(const struct mls_suite *suite, const struct mls_message *message,
    struct span key, struct span group_context);

#endif
