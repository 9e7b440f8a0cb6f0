/* SPDX-License-Identifier: Apache-2.0 */
/* tree_site.h: groups that a server can look into: a group info with a ratchet tree, and public
 * commits and proposals whose signatures are good, or are not. */
#ifndef TEST_UNIT_DELIVERY_TREE_SITE_H
#define TEST_UNIT_DELIVERY_TREE_SITE_H

#include "site.h"

static inline char *base64_free(struct buffer *bytes)
{
    char *text = base64_of(bytes);

    buffer_free(bytes);
    return text;
}

/* ---- the group ------------------------------------------------------------------------------ */

struct leaf {
    const struct caller *who;
    const struct signer *key;
    const char *device;
};

static inline void put_tree(struct buffer *out, const struct leaf *leaves, size_t count)
{
    struct buffer nodes = { 0 };

    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            mls_put_number(&nodes, 0, 1); /* a blank parent */
        mls_put_number(&nodes, 1, 1);
        mls_put_number(&nodes, 1, 1);
        put_leaf(&nodes,
            &(struct package_options){
                .did = leaves[i].who->did, .device = leaves[i].device, .signer = leaves[i].key });
    }
    mls_put_vector(out, (struct span){ nodes.bytes, nodes.size });
    buffer_free(&nodes);
}

/* A group at an epoch; its GroupContext is made up. */
struct group {
    struct span id;
    uint64_t epoch;
    uint16_t suite; /* 0: 1 */
};

static inline void put_external_senders(struct buffer *out, const struct signer *outside)
{
    struct buffer list = { 0 }, data = { 0 };

    mls_put_vector(&list, (struct span){ (const char *)outside->public_key, 32 });
    mls_put_number(&list, MLS_CREDENTIAL_BASIC, 2);
    mls_put_vector(&list, SPAN("a service"));
    mls_put_vector(&data, (struct span){ list.bytes, list.size });
    mls_put_number(out, MLS_EXTERNAL_SENDERS, 2);
    mls_put_vector(out, (struct span){ data.bytes, data.size });
    buffer_free(&list);
    buffer_free(&data);
}

/* `outside` may propose though it is no member; NULL: nobody may. */
static inline void put_group(
    struct buffer *out, const struct group *group, const struct signer *outside)
{
    struct buffer extensions = { 0 };

    if (outside != NULL)
        put_external_senders(&extensions, outside);
    mls_put_number(out, 1, 2);
    mls_put_number(out, group->suite == 0 ? 1 : group->suite, 2);
    mls_put_vector(out, group->id);
    mls_put_number(out, group->epoch, 8);
    mls_put_vector(out, SPAN("tree hash"));
    mls_put_vector(out, SPAN("transcript hash"));
    mls_put_vector(out, (struct span){ extensions.bytes, extensions.size });
    buffer_free(&extensions);
}

struct info_options {
    struct group group;
    const struct leaf *leaves;    /* the first one signs */
    size_t count;                 /* 0: there is no tree */
    const char *tag;              /* NULL: "confirmation tag" */
    const struct signer *outside; /* see put_group */
    bool has_bad_signature;
};

/* base64 of a group info; the caller's to free. */
static inline char *info_make(const struct info_options *with)
{
    struct buffer info = { 0 }, tree = { 0 }, extensions = { 0 }, signature = { 0 }, out = { 0 };

    put_group(&info, &with->group, with->outside);
    if (with->count > 0) {
        put_tree(&tree, with->leaves, with->count);
        mls_put_number(&extensions, MLS_RATCHET_TREE, 2);
        mls_put_vector(&extensions, (struct span){ tree.bytes, tree.size });
    }
    mls_put_vector(&info, (struct span){ extensions.bytes, extensions.size });
    mls_put_vector(&info, span_of(with->tag == NULL ? "confirmation tag" : with->tag));
    mls_put_number(&info, 0, 4);
    sign_with_label(with->leaves[0].key, "MLS 1.0 GroupInfoTBS", &info, &signature);
    if (with->has_bad_signature)
        signature.bytes[signature.size - 1] ^= 1;
    mls_put_number(&out, 1, 2);
    mls_put_number(&out, MLS_GROUP_INFO, 2);
    buffer_append(&out, info.bytes, info.size);
    buffer_append(&out, signature.bytes, signature.size);
    buffer_free(&info);
    buffer_free(&tree);
    buffer_free(&extensions);
    buffer_free(&signature);
    return base64_free(&out);
}

/* ---- public messages ------------------------------------------------------------------------ */

struct public_options {
    struct group group;
    const struct signer *signer;
    uint32_t sender;       /* leaf index; of who is outside: its place in the group's list */
    bool is_outside;       /* a proposal of one who is no member */
    const char *joiner;    /* a commit from outside: the identity in its leaf; NULL: a member's */
    const char *reference; /* hex: a commit names this proposal; NULL: none */
    bool has_bad_signature;
};

static inline void put_sender(
    struct buffer *out, const struct public_options *with, enum mls_content content)
{
    mls_put_number(out, 1, 2);
    mls_put_number(out, MLS_PUBLIC, 2);
    mls_put_vector(out, with->group.id);
    mls_put_number(out, with->group.epoch, 8);
    mls_put_number(out,
        with->is_outside       ? MLS_EXTERNAL
        : with->joiner == NULL ? MLS_MEMBER
                               : MLS_NEW_COMMIT,
        1);
    if (with->joiner == NULL)
        mls_put_number(out, with->sender, 4);
    mls_put_vector(out, SPAN(""));
    mls_put_number(out, content, 1);
}

/* RFC 9420 section 6.1: after version, wire format and content comes the context, which who is
 * outside does not know. */
static inline void put_signature(struct buffer *out, const struct public_options *with)
{
    struct buffer content = { 0 };

    buffer_append(&content, out->bytes, out->size);
    if (!with->is_outside)
        put_group(&content, &with->group, NULL);
    sign_with_label(with->signer, "MLS 1.0 FramedContentTBS", &content, out);
    if (with->has_bad_signature)
        out->bytes[out->size - 1] ^= 1;
    buffer_free(&content);
}

static inline void put_proposals(struct buffer *out, const struct public_options *with)
{
    unsigned char reference[MLS_REFERENCE_SIZE_MAX];
    struct buffer list = { 0 };
    size_t size;

    if (with->joiner != NULL) {
        mls_put_number(&list, 1, 1);
        mls_put_number(&list, MLS_EXTERNAL_INIT, 2);
        mls_put_vector(&list, SPAN("kem output"));
    }
    if (with->reference != NULL) {
        CHECK_EQ_INT(
            crypto_hex_decode(span_of(with->reference), reference, sizeof reference, &size), 0);
        mls_put_number(&list, 2, 1);
        mls_put_vector(&list, (struct span){ (const char *)reference, size });
    }
    mls_put_vector(out, (struct span){ list.bytes, list.size });
    buffer_free(&list);
}

/* base64 of a public commit; the caller's to free. */
static inline char *public_commit(const struct public_options *with)
{
    struct buffer out = { 0 };

    put_sender(&out, with, MLS_COMMIT);
    put_proposals(&out, with);
    mls_put_number(&out, 1, 1); /* there is a path: its leaf first */
    put_fresh_key(&out);
    mls_put_vector(&out, (struct span){ (const char *)with->signer->public_key, 32 });
    mls_put_number(&out, MLS_CREDENTIAL_BASIC, 2);
    mls_put_vector(&out, span_of(with->joiner == NULL ? "somebody" : with->joiner));
    for (int i = 0; i < 5; i++)
        mls_put_vector(&out, SPAN(""));
    mls_put_number(&out, MLS_FROM_COMMIT, 1);
    mls_put_vector(&out, SPAN("parent hash"));
    mls_put_vector(&out, SPAN(""));
    mls_put_vector(&out, SPAN("leaf signature"));
    mls_put_vector(&out, SPAN("")); /* nodes */
    put_signature(&out, with);
    mls_put_vector(&out, SPAN("confirmation tag"));
    if (with->joiner == NULL)
        mls_put_vector(&out, SPAN("membership tag"));
    return base64_free(&out);
}

/* base64 of a public proposal to remove leaf 1; ret_reference gets 65 bytes of hex. */
static inline char *public_proposal(const struct public_options *with, char *ret_reference)
{
    unsigned char reference[MLS_REFERENCE_SIZE_MAX];
    struct buffer out = { 0 };
    struct mls_message message;

    put_sender(&out, with, MLS_PROPOSAL);
    mls_put_number(&out, MLS_REMOVE, 2);
    mls_put_number(&out, 1, 4);
    put_signature(&out, with);
    if (!with->is_outside)
        mls_put_vector(&out, SPAN("membership tag"));
    CHECK(mls_message_read((struct span){ out.bytes, out.size }, &message) == NULL);
    CHECK_EQ_INT(mls_proposal_reference(mls_suite_of(1), &message, reference), 32);
    ret_reference[crypto_hex_encode(reference, 32, ret_reference)] = '\0';
    return base64_free(&out);
}

/* base64 of a private message of the group; the caller's to free. */
static inline char *private_make(const struct group *group, enum mls_content content)
{
    static unsigned number;
    struct buffer out = { 0 };
    char secret[48];

    (void)snprintf(secret, sizeof secret, "secret %u", number++);
    mls_put_number(&out, 1, 2);
    mls_put_number(&out, MLS_PRIVATE, 2);
    mls_put_vector(&out, group->id);
    mls_put_number(&out, group->epoch, 8);
    mls_put_number(&out, content, 1);
    mls_put_vector(&out, SPAN(""));
    mls_put_vector(&out, SPAN("encrypted sender data, 28 by"));
    mls_put_vector(&out, span_of(secret));
    return base64_free(&out);
}

#endif
