/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/mls_message.h"

#include <string.h>

static const char bad_optional[] = "An optional field is neither absent nor present.";

/* ---- parts ---------------------------------------------------------------------------------- */

bool mls_extension_next(struct mls_reader *reader, uint16_t *ret_type, struct span *ret_data)
{
    if (!mls_more(reader))
        return false;
    *ret_type = (uint16_t)mls_number(reader, 2);
    *ret_data = mls_vector(reader);
    return reader->fault == NULL;
}

/* Reads extensions; each must be whole and occur once. */
static struct span read_extensions(struct mls_reader *reader)
{
    struct span list = mls_vector(reader);
    struct mls_reader inner = mls_reader_of(list);
    uint64_t seen = 0;
    uint16_t type;
    struct span data;

    while (mls_extension_next(&inner, &type, &data)) {
        if (type < 64 && (seen >> type & 1) != 0)
            mls_fault(&inner, "An extension occurs twice.");
        if (type < 64)
            seen |= UINT64_C(1) << type;
    }
    mls_list_end(reader, &inner);
    return list;
}

static struct span find_extension(struct span extensions, uint16_t wanted)
{
    struct mls_reader reader = mls_reader_of(extensions);
    uint16_t type;
    struct span data;

    while (mls_extension_next(&reader, &type, &data))
        if (type == wanted)
            return data;
    return (struct span){ NULL, 0 };
}

struct span mls_identity_did(struct span identity, struct span *ret_device)
{
    struct span did = identity;

    (void)span_cut(&identity, '#', &did);
    if (ret_device != NULL)
        *ret_device = identity; /* what is left */
    return did;
}

static void read_credential(struct mls_reader *reader, struct mls_leaf *leaf)
{
    leaf->credential = (uint16_t)mls_choice(reader, 2, MLS_CREDENTIAL_BASIC, MLS_CREDENTIAL_X509,
        "The credential is neither basic nor X.509.");
    if (leaf->credential == MLS_CREDENTIAL_BASIC)
        leaf->identity = mls_vector(reader);
    else
        mls_skip(reader, "[v]"); /* the chain of certificates */
}

static void read_leaf(struct mls_reader *reader, struct mls_leaf *leaf)
{
    const unsigned char *from = reader->at;

    memset(leaf, 0, sizeof *leaf);
    leaf->encryption_key = mls_vector(reader);
    leaf->signature_key = mls_vector(reader);
    read_credential(reader, leaf);
    for (int i = 0; i < 5; i++) {
        leaf->capabilities[i] = mls_vector(reader);
        if (leaf->capabilities[i].size % 2 != 0)
            mls_fault(reader, "A list of capabilities has half an entry.");
    }
    leaf->source = (enum mls_source)mls_choice(reader, 1, MLS_FROM_KEY_PACKAGE, MLS_FROM_COMMIT,
        "A leaf node's source is not key_package, update or commit.");
    if (leaf->source == MLS_FROM_KEY_PACKAGE) {
        leaf->not_before_s = mls_number(reader, 8);
        leaf->not_after_s = mls_number(reader, 8);
    } else if (leaf->source == MLS_FROM_COMMIT) {
        mls_vector(reader); /* parent hash */
    }
    leaf->extensions = read_extensions(reader);
    leaf->bytes = mls_since(reader, from);
    leaf->signature = mls_vector(reader);
}

static void read_key_package(struct mls_reader *reader, struct mls_key_package *package)
{
    const unsigned char *from = reader->at;
    struct mls_reader dictionary;
    struct span mark;

    memset(package, 0, sizeof *package);
    mls_choice(reader, 2, 1, 1, "The key package is not of MLS version 1.");
    package->suite = (uint16_t)mls_number(reader, 2);
    package->init_key = mls_vector(reader);
    read_leaf(reader, &package->leaf);
    if (reader->fault == NULL && package->leaf.source != MLS_FROM_KEY_PACKAGE)
        mls_fault(reader, "The leaf of a key package has another source.");
    package->extensions = read_extensions(reader);
    package->to_sign = mls_since(reader, from);
    package->signature = mls_vector(reader);
    package->bytes = mls_since(reader, from);
    if (reader->fault != NULL)
        return;
    mark = find_extension(package->extensions, MLS_LAST_RESORT);
    dictionary = mls_reader_of(find_extension(package->extensions, MLS_APP_DATA_DICTIONARY));
    /* Component 4 of the dictionary marks a last resort (draft-ietf-mls-extensions). Its entries
     * are encoded like extensions. */
    package->is_last_resort = (mark.at != NULL && mark.size == 0) ||
                              find_extension(mls_vector(&dictionary), 4).at != NULL;
}

/* ---- proposals and commits ------------------------------------------------------------------ */

static void read_psk(struct mls_reader *reader)
{
    if (mls_choice(reader, 1, 1, 2, "A pre-shared key is neither external nor resumption.") == 2) {
        mls_choice(reader, 1, 1, 3, "A resumption key has an unknown use.");
        mls_skip(reader, "v8"); /* group and epoch */
    } else {
        mls_vector(reader);
    }
    mls_vector(reader); /* nonce */
}

static void read_proposal(struct mls_reader *reader, struct mls_proposal *proposal)
{
    proposal->type = (uint16_t)mls_number(reader, 2);
    switch (proposal->type) {
    case MLS_ADD:
        read_key_package(reader, &proposal->key_package);
        break;
    case MLS_UPDATE:
        read_leaf(reader, &proposal->leaf);
        break;
    case MLS_REMOVE:
        proposal->removed = (uint32_t)mls_number(reader, 4);
        break;
    case MLS_PSK:
        read_psk(reader);
        break;
    case MLS_REINIT:
        mls_skip(reader, "v22"); /* group, version, suite */
        read_extensions(reader);
        break;
    case MLS_EXTERNAL_INIT:
        mls_vector(reader);
        break;
    case MLS_CONTEXT_EXTENSIONS:
        read_extensions(reader);
        break;
    case MLS_SELF_REMOVE:
        break;
    default:
        mls_fault(reader, "A proposal is of a type this server does not know.");
    }
}

bool mls_proposal_next(struct mls_reader *reader, struct mls_proposal *ret_proposal)
{
    if (!mls_more(reader))
        return false;
    memset(ret_proposal, 0, sizeof *ret_proposal);
    ret_proposal->is_reference =
        mls_choice(
            reader, 1, 1, 2, "An entry of a commit is neither a proposal nor a reference.") == 2;
    if (ret_proposal->is_reference)
        ret_proposal->reference = mls_vector(reader);
    else
        read_proposal(reader, ret_proposal);
    return reader->fault == NULL;
}

static void read_commit(struct mls_reader *reader, struct mls_commit *commit)
{
    struct mls_proposal proposal;
    struct mls_reader list;

    commit->proposals = mls_vector(reader);
    list = mls_reader_of(commit->proposals);
    while (mls_proposal_next(&list, &proposal)) {
        commit->proposal_count++;
        if (proposal.is_reference)
            commit->reference_count++;
        else
            commit->counts[proposal.type < 16 ? proposal.type : 0]++;
    }
    tr_assert(commit->reference_count <= commit->proposal_count);
    mls_list_end(reader, &list);
    commit->has_path = mls_choice(reader, 1, 0, 1, bad_optional) == 1;
    if (commit->has_path) {
        read_leaf(reader, &commit->path_leaf);
        mls_skip(reader, "[v[vv]]"); /* nodes: encryption key, encrypted secrets */
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

static enum mls_content read_content_type(struct mls_reader *reader)
{
    return (enum mls_content)mls_choice(
        reader, 1, MLS_APPLICATION, MLS_COMMIT, "The content is of an unknown type.");
}

static void read_public(struct mls_reader *reader, struct mls_message *message)
{
    const unsigned char *from = reader->at;

    message->group_id = mls_vector(reader);
    message->epoch = mls_number(reader, 8);
    message->sender = (enum mls_sender)mls_choice(
        reader, 1, MLS_MEMBER, MLS_NEW_COMMIT, "The sender is of an unknown kind.");
    if (message->sender == MLS_MEMBER || message->sender == MLS_EXTERNAL)
        message->sender_index = (uint32_t)mls_number(reader, 4);
    mls_vector(reader); /* authenticated data */
    message->content = read_content_type(reader);
    if (message->content == MLS_PROPOSAL)
        read_proposal(reader, &message->proposal);
    else if (message->content == MLS_COMMIT)
        read_commit(reader, &message->commit);
    else
        mls_vector(reader);
    message->framed = mls_since(reader, from);
    message->signature = mls_vector(reader);
    if (message->content == MLS_COMMIT)
        message->confirmation_tag = mls_vector(reader);
    if (message->sender == MLS_MEMBER)
        mls_vector(reader); /* membership tag */
}

static void read_private(struct mls_reader *reader, struct mls_message *message)
{
    message->group_id = mls_vector(reader);
    message->epoch = mls_number(reader, 8);
    message->content = read_content_type(reader);
    mls_skip(reader, "vvv"); /* authenticated data, encrypted sender data, ciphertext */
}

bool mls_welcome_next(struct mls_reader *reader, struct span *ret_reference)
{
    if (!mls_more(reader))
        return false;
    *ret_reference = mls_vector(reader);
    mls_skip(reader, "vv");
    return reader->fault == NULL;
}

static void read_welcome(struct mls_reader *reader, struct mls_message *message)
{
    struct span reference;
    struct mls_reader list;

    message->suite = (uint16_t)mls_number(reader, 2);
    message->secrets = mls_vector(reader);
    list = mls_reader_of(message->secrets);
    while (mls_welcome_next(&list, &reference))
        message->secret_count++;
    mls_list_end(reader, &list);
    mls_vector(reader); /* encrypted group info */
}

static void read_group_info(struct mls_reader *reader, struct mls_group_info *info)
{
    struct mls_group_context *context = &info->context;
    const unsigned char *from = reader->at;

    mls_choice(reader, 2, 1, 1, "The group is not of MLS version 1.");
    context->suite = (uint16_t)mls_number(reader, 2);
    context->group_id = mls_vector(reader);
    context->epoch = mls_number(reader, 8);
    mls_skip(reader, "vv"); /* tree hash, confirmed transcript hash */
    context->extensions = read_extensions(reader);
    context->bytes = mls_since(reader, from);
    info->extensions = read_extensions(reader);
    info->confirmation_tag = mls_vector(reader);
    info->signer = (uint32_t)mls_number(reader, 4);
    info->to_sign = mls_since(reader, from);
    info->signature = mls_vector(reader);
    if (reader->fault == NULL)
        info->ratchet_tree = find_extension(info->extensions, MLS_RATCHET_TREE);
}

const char *mls_message_read(struct span bytes, struct mls_message *ret_message)
{
    struct mls_reader reader = mls_reader_of(bytes);
    struct span whole;

    if (mls_message_next(&reader, ret_message, &whole) == NULL)
        mls_reader_end(&reader);
    return reader.fault;
}

const char *mls_message_next(
    struct mls_reader *reader, struct mls_message *ret_message, struct span *ret_bytes)
{
    const unsigned char *from = reader->at;

    memset(ret_message, 0, sizeof *ret_message);
    mls_choice(reader, 2, 1, 1, "The bytes are not a message of MLS version 1.");
    ret_message->wire = (enum mls_wire)mls_choice(
        reader, 2, MLS_PUBLIC, MLS_KEY_PACKAGE, "The wire format is none of the five of RFC 9420.");
    switch (ret_message->wire) {
    case MLS_PUBLIC:
        read_public(reader, ret_message);
        break;
    case MLS_PRIVATE:
        read_private(reader, ret_message);
        break;
    case MLS_WELCOME:
        read_welcome(reader, ret_message);
        break;
    case MLS_GROUP_INFO:
        read_group_info(reader, &ret_message->group_info);
        break;
    case MLS_KEY_PACKAGE:
        read_key_package(reader, &ret_message->key_package);
        break;
    }
    if (reader->fault == NULL)
        *ret_bytes = mls_since(reader, from);
    return reader->fault;
}

/* An MLSMessage begins 0001, its wire format and 0001; a bare key package or group info 0001 and its
 * suite. They cannot be taken for each other: a bare key package of suite 5 has keys of 133 bytes,
 * so its third pair is 4085. */
static struct mls_reader unwrapped(struct span bytes, enum mls_wire wire)
{
    const char wrapped[6] = { 0, 1, 0, (char)wire, 0, 1 };
    struct mls_reader reader = mls_reader_of(bytes);

    if (bytes.size > 6 && memcmp(bytes.at, wrapped, sizeof wrapped) == 0)
        mls_take(&reader, 4);
    return reader;
}

const char *mls_key_package_read(struct span bytes, struct mls_key_package *ret_package)
{
    struct mls_reader reader = unwrapped(bytes, MLS_KEY_PACKAGE);

    read_key_package(&reader, ret_package);
    mls_reader_end(&reader);
    return reader.fault;
}

const char *mls_group_info_read(struct span bytes, struct mls_group_info *ret_info)
{
    struct mls_reader reader = unwrapped(bytes, MLS_GROUP_INFO);

    memset(ret_info, 0, sizeof *ret_info);
    read_group_info(&reader, ret_info);
    mls_reader_end(&reader);
    return reader.fault;
}

void mls_group_info_wrap(struct span bytes, struct buffer *out)
{
    struct mls_reader bare = unwrapped(bytes, MLS_GROUP_INFO);

    mls_put_number(out, 1, 2);
    mls_put_number(out, MLS_GROUP_INFO, 2);
    buffer_append(out, bare.at, (size_t)(bare.end - bare.at));
}

/* ---- forbidden messages ---------------------------------------------------------------------- */

static const char *check_external_commit(const struct mls_commit *commit)
{
    if (commit->counts[MLS_EXTERNAL_INIT] != 1)
        return "An external commit must have exactly one external_init.";
    if (commit->counts[MLS_REMOVE] > 1)
        return "An external commit must remove at most one leaf.";
    if (commit->counts[MLS_ADD] + commit->counts[MLS_UPDATE] + commit->counts[MLS_REINIT] +
            commit->counts[MLS_CONTEXT_EXTENSIONS] >
        0)
        return "An external commit may only hold external_init, remove and psk.";
    return NULL;
}

static const char *check_commit(const struct mls_message *message)
{
    const struct mls_commit *commit = &message->commit;
    bool needs_path = commit->proposal_count == 0 || commit->counts[MLS_UPDATE] > 0 ||
                      commit->counts[MLS_REMOVE] > 0 || commit->counts[MLS_EXTERNAL_INIT] > 0 ||
                      commit->counts[MLS_CONTEXT_EXTENSIONS] > 0;
    struct mls_reader list = mls_reader_of(commit->proposals);
    struct mls_proposal proposal;

    if (needs_path && !commit->has_path)
        return "The commit must have a path.";
    if (commit->has_path && commit->path_leaf.source != MLS_FROM_COMMIT)
        return "The leaf of a path does not say that it is from a commit.";
    if (message->sender == MLS_NEW_COMMIT)
        return check_external_commit(commit);
    if (commit->counts[MLS_EXTERNAL_INIT] > 0)
        return "A member's commit must not hold external_init.";
    while (mls_proposal_next(&list, &proposal))
        if (!proposal.is_reference && proposal.type == MLS_REMOVE &&
            proposal.removed == message->sender_index)
            return "A commit may not remove its own sender.";
    return NULL;
}

const char *mls_message_check(const struct mls_message *message)
{
    uint16_t type = message->proposal.type;

    tr_assert(message->wire >= MLS_PUBLIC && message->wire <= MLS_KEY_PACKAGE); /* it was read */
    if (message->wire != MLS_PUBLIC)
        return NULL;
    if (message->content == MLS_APPLICATION)
        return "Application data is never sent as a public message.";
    if (message->sender == MLS_NEW_COMMIT && message->content != MLS_COMMIT)
        return "A new member's commit must be a commit.";
    if ((message->sender == MLS_NEW_PROPOSAL || message->sender == MLS_EXTERNAL) &&
        message->content != MLS_PROPOSAL)
        return "This sender may only propose.";
    if (message->content == MLS_COMMIT)
        return check_commit(message);
    if (message->sender == MLS_NEW_PROPOSAL && type != MLS_ADD)
        return "A new member may only propose to be added.";
    if (message->sender == MLS_EXTERNAL && type != MLS_ADD && type != MLS_REMOVE &&
        type != MLS_PSK && type != MLS_REINIT && type != MLS_CONTEXT_EXTENSIONS)
        return "An external sender may not propose this.";
    return NULL;
}

/* ---- Catbird's envelope --------------------------------------------------------------------- */

const char *mls_envelope_read(struct span bytes, struct mls_message *ret_message)
{
    struct mls_reader reader = mls_reader_of(bytes);
    struct span inside;
    uint64_t size;

    if (mls_message_read(bytes, ret_message) == NULL)
        return NULL;
    size = mls_number(&reader, 4);
    inside = mls_take(&reader, (size_t)size);
    if (reader.fault != NULL)
        return "The ciphertext must be an MLS message (RFC 9420), or one padded to a bucket.";
    if (bytes.size != 512 && bytes.size != 1024 && bytes.size != 2048 && bytes.size != 4096 &&
        bytes.size % 8192 != 0)
        return "A padded message must have 512, 1024, 2048, 4096 bytes or a multiple of 8192.";
    for (; reader.at < reader.end; reader.at++)
        if (*reader.at != 0)
            return "The padding is not all zeros.";
    return mls_message_read(inside, ret_message);
}

/* ---- external senders ------------------------------------------------------------------------ */

bool mls_external_sender(
    const struct mls_group_context *context, uint32_t index, struct span *ret_key)
{
    struct mls_reader extension =
        mls_reader_of(find_extension(context->extensions, MLS_EXTERNAL_SENDERS));
    struct mls_reader list = mls_reader_of(mls_vector(&extension));
    struct mls_leaf credential;

    while (mls_more(&list)) {
        struct span key = mls_vector(&list);

        read_credential(&list, &credential);
        if (list.fault == NULL && index-- == 0) {
            *ret_key = key;
            return true;
        }
    }
    return false;
}

/* ---- the ratchet tree ----------------------------------------------------------------------- */

struct mls_tree mls_tree_of(struct span ratchet_tree)
{
    struct mls_reader outer = mls_reader_of(ratchet_tree);
    struct mls_tree tree = { .reader = mls_reader_of(mls_vector(&outer)), .is_blank = true };

    mls_reader_end(&outer);
    if (outer.fault != NULL)
        mls_fault(&tree.reader, outer.fault);
    return tree;
}

/* Reads one node; a leaf goes to *leaf. */
static void read_node(struct mls_tree *tree, struct mls_leaf *leaf)
{
    struct mls_reader *reader = &tree->reader;
    bool is_leaf = tree->node % 2 == 0;
    uint64_t type = is_leaf ? 1 : 2;

    tree->is_blank = mls_choice(reader, 1, 0, 1, bad_optional) == 0;
    if (tree->is_blank || reader->fault != NULL)
        return;
    mls_choice(reader, 1, type, type, "A leaf and a parent of the tree have changed places.");
    if (is_leaf) {
        read_leaf(reader, leaf);
        return;
    }
    mls_skip(reader, "vv"); /* encryption key, parent hash */
    if (mls_vector(reader).size % 4 != 0)
        mls_fault(reader, "The list of unmerged leaves has half an entry.");
}

bool mls_tree_next(struct mls_tree *tree, uint32_t *ret_index, struct mls_leaf *ret_leaf)
{
    while (mls_more(&tree->reader)) {
        uint32_t node = tree->node;

        read_node(tree, ret_leaf);
        tree->node++;
        tr_assert(tree->node > node); /* a node has a byte, and a span fewer than 2^32 */
        if (tree->reader.fault == NULL && !tree->is_blank && node % 2 == 0) {
            *ret_index = node / 2;
            return true;
        }
    }
    return false;
}

bool mls_tree_find(struct span ratchet_tree, uint32_t index, struct mls_leaf *ret_leaf)
{
    struct mls_tree tree = mls_tree_of(ratchet_tree);
    uint32_t at;

    while (mls_tree_next(&tree, &at, ret_leaf))
        if (at == index)
            return true;
    return false;
}

const char *mls_tree_check(struct span ratchet_tree, uint32_t *ret_leaf_count)
{
    struct mls_tree tree = mls_tree_of(ratchet_tree);
    struct mls_leaf leaf;
    uint32_t index;

    *ret_leaf_count = 0;
    while (mls_tree_next(&tree, &index, &leaf))
        ++*ret_leaf_count;
    tr_assert(!mls_more(&tree.reader));
    if (tree.reader.fault != NULL)
        return tree.reader.fault;
    return tree.is_blank ? "The tree ends with a blank node." : NULL;
}
