/* SPDX-License-Identifier: Apache-2.0 */
/* mls_message.h: reads MLS messages (RFC 9420) as far as a server without secrets can. A reader
 * reads every structure to its last byte; all spans point into the input. It allocates nothing, no
 * input makes it recurse, and the rest of the input bounds every length. */
#ifndef SERVICES_DELIVERY_MLS_MLS_MESSAGE_H
#define SERVICES_DELIVERY_MLS_MLS_MESSAGE_H

#include "services/delivery/mls/mls_reader.h"

enum mls_wire { MLS_PUBLIC = 1, MLS_PRIVATE, MLS_WELCOME, MLS_GROUP_INFO, MLS_KEY_PACKAGE };
enum mls_content { MLS_APPLICATION = 1, MLS_PROPOSAL, MLS_COMMIT };
enum mls_sender { MLS_MEMBER = 1, MLS_EXTERNAL, MLS_NEW_PROPOSAL, MLS_NEW_COMMIT };
enum mls_source { MLS_FROM_KEY_PACKAGE = 1, MLS_FROM_UPDATE, MLS_FROM_COMMIT };
enum mls_proposal_type {
    MLS_ADD = 1,
    MLS_UPDATE,
    MLS_REMOVE,
    MLS_PSK,
    MLS_REINIT,
    MLS_EXTERNAL_INIT,
    MLS_CONTEXT_EXTENSIONS,
    MLS_SELF_REMOVE = 10,
};
enum mls_extension {
    MLS_RATCHET_TREE = 2,
    MLS_EXTERNAL_SENDERS = 5, /* the last of the default ones, which no capabilities list */
    MLS_APP_DATA_DICTIONARY = 6,
    MLS_LAST_RESORT = 10,
};
enum { MLS_CREDENTIAL_BASIC = 1, MLS_CREDENTIAL_X509 = 2 };

struct mls_leaf {
    struct span encryption_key;
    struct span signature_key;
    uint16_t credential;
    struct span identity;        /* of a basic credential */
    struct span capabilities[5]; /* versions, suites, extensions, proposals, credentials */
    enum mls_source source;
    uint64_t not_before_s, not_after_s; /* from a key package */
    struct span extensions;
    struct span bytes; /* the signed part, without group id and index */
    struct span signature;
};

struct mls_key_package {
    uint16_t suite;
    struct span init_key;
    struct mls_leaf leaf;
    struct span extensions;
    struct span bytes; /* all of it, without MLSMessage around it */
    struct span to_sign;
    struct span signature;
    bool is_last_resort;
};

struct mls_proposal {
    bool is_reference;
    struct span reference;
    uint16_t type;
    struct mls_key_package key_package; /* add */
    struct mls_leaf leaf;               /* update */
    uint32_t removed;                   /* remove: leaf index */
};

struct mls_commit {
    struct span proposals; /* walk it with mls_proposal_next */
    uint32_t proposal_count;
    uint32_t reference_count;
    uint32_t counts[16]; /* by value, by type; others count as 0 */
    bool has_path;
    struct mls_leaf path_leaf;
};

struct mls_group_context {
    uint16_t suite;
    struct span group_id;
    uint64_t epoch;
    struct span extensions;
    struct span bytes;
};

struct mls_group_info {
    struct mls_group_context context;
    struct span extensions;
    struct span ratchet_tree; /* {NULL, 0} if it has none */
    struct span confirmation_tag;
    uint32_t signer;
    struct span to_sign;
    struct span signature;
};

struct mls_message {
    enum mls_wire wire;
    /* public and private */
    struct span group_id;
    uint64_t epoch;
    enum mls_content content;
    /* public */
    enum mls_sender sender;
    uint32_t sender_index;
    struct span framed; /* FramedContent, for the signature */
    struct span signature;
    struct span confirmation_tag;
    struct mls_commit commit;     /* content MLS_COMMIT */
    struct mls_proposal proposal; /* content MLS_PROPOSAL */
    /* welcome */
    uint16_t suite;
    struct span secrets; /* walk it with mls_welcome_next */
    uint32_t secret_count;
    /* others */
    struct mls_group_info group_info;
    struct mls_key_package key_package;
};

/* Reads one message to its end. Returns NULL, or a sentence about the fault for the sender. */
const char *mls_message_read(struct span bytes, struct mls_message *ret_message);
/* Reads the next of several messages: *ret_bytes is its part. Call mls_more first. */
const char *mls_message_next(
    struct mls_reader *reader, struct mls_message *ret_message, struct span *ret_bytes);
/* Checks the rules of RFC 9420 sections 6, 12.2 and 12.4 for a public message of this sender.
 * Returns NULL, or a sentence about the fault. */
const char *mls_message_check(const struct mls_message *message);
/* Reads a KeyPackage, bare or inside an MLSMessage. */
const char *mls_key_package_read(struct span bytes, struct mls_key_package *ret_package);
/* Reads a GroupInfo, bare or inside an MLSMessage. */
const char *mls_group_info_read(struct span bytes, struct mls_group_info *ret_info);

/* Appends the GroupInfo as an MLSMessage to `out`. */
void mls_group_info_wrap(struct span bytes, struct buffer *out);

/* Reads the content of sendMessage: a bare MLSMessage, or one in Catbird's envelope, which pads it
 * to a bucket (512, 1024, 2048, 4096 bytes or a multiple of 8192). */
const char *mls_envelope_read(struct span bytes, struct mls_message *ret_message);

/* Splits an identity: a DID, or a DID, # and a device. Returns the DID. *ret_device, which may be
 * NULL, is {NULL, 0} without one. */
struct span mls_identity_did(struct span identity, struct span *ret_device);

/* Walks a list that was read, as in mls_reader_of(commit.proposals). */
bool mls_proposal_next(struct mls_reader *reader, struct mls_proposal *ret_proposal);
bool mls_welcome_next(struct mls_reader *reader, struct span *ret_reference);
bool mls_extension_next(struct mls_reader *reader, uint16_t *ret_type, struct span *ret_data);
/* Walks the leaves of a ratchet_tree extension that are not blank. */
struct mls_tree {
    struct mls_reader reader;
    uint32_t node;
    bool is_blank; /* the node that was read last */
};
struct mls_tree mls_tree_of(struct span ratchet_tree);
bool mls_tree_next(struct mls_tree *tree, uint32_t *ret_index, struct mls_leaf *ret_leaf);
/* Finds a leaf. Returns false if the tree has none at the index. */
bool mls_tree_find(struct span ratchet_tree, uint32_t index, struct mls_leaf *ret_leaf);
/* Finds the key of an external sender (section 12.1.8.1). Returns false if the group has none at
 * the index. */
bool mls_external_sender(
    const struct mls_group_context *context, uint32_t index, struct span *ret_key);
/* Checks that the whole tree can be read and its last node is not blank. Returns NULL, or a
 * sentence about the fault. */
const char *mls_tree_check(struct span ratchet_tree, uint32_t *ret_leaf_count);

#endif
