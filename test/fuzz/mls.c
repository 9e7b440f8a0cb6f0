/* SPDX-License-Identifier: Apache-2.0 */
/* mls.c: any bytes as an MLS message, a key package, a group info and a padded message. The target
 * walks an accepted input to its end; all spans must lie inside the input. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/mls/mls_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void inside(struct span whole, struct span part)
{
    if (part.size > 0)
        tr_assert(part.at >= whole.at && part.at + part.size <= whole.at + whole.size);
}

static void walk_commit(struct span whole, const struct mls_commit *commit)
{
    struct mls_reader list = mls_reader_of(commit->proposals);
    struct mls_proposal proposal;
    uint32_t count = 0;

    while (mls_proposal_next(&list, &proposal)) {
        inside(whole, proposal.reference);
        count++;
    }
    tr_assert(list.fault == NULL && count == commit->proposal_count);
}

static void walk_tree(struct span whole, struct span bytes)
{
    struct mls_tree tree = mls_tree_of(bytes);
    uint32_t index, count, seen = 0;
    struct mls_leaf leaf;

    while (mls_tree_next(&tree, &index, &leaf)) {
        inside(whole, leaf.signature);
        seen++;
    }
    if (mls_tree_check(bytes, &count) == NULL)
        tr_assert(seen == count);
}

static void walk(struct span whole, const struct mls_message *message)
{
    struct mls_reader list = mls_reader_of(message->secrets);
    struct span reference;
    uint32_t count = 0;

    (void)mls_message_check(message);
    inside(whole, message->group_id);
    inside(whole, message->framed);
    if (message->wire == MLS_PUBLIC && message->content == MLS_COMMIT)
        walk_commit(whole, &message->commit);
    while (message->wire == MLS_WELCOME && mls_welcome_next(&list, &reference))
        count++;
    tr_assert(count == message->secret_count);
    if (message->wire == MLS_GROUP_INFO && message->group_info.ratchet_tree.at != NULL)
        walk_tree(whole, message->group_info.ratchet_tree);
    for (uint32_t i = 0; message->wire == MLS_GROUP_INFO && i < 3; i++)
        if (mls_external_sender(&message->group_info.context, i, &reference))
            inside(whole, reference);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size == 0 ? 1 : size);
    struct span bytes = { copy, size };
    struct mls_message message;
    struct mls_key_package package;
    struct mls_group_info info;

    tr_assert(copy != NULL);
    if (size > 0)
        memcpy(copy, data, size);
    if (mls_message_read(bytes, &message) == NULL)
        walk(bytes, &message);
    if (mls_key_package_read(bytes, &package) == NULL) {
        unsigned char reference[MLS_REFERENCE_SIZE_MAX];

        inside(bytes, package.bytes);
        (void)mls_key_package_reference(&package, reference);
    }
    if (mls_group_info_read(bytes, &info) == NULL && info.ratchet_tree.at != NULL)
        walk_tree(bytes, info.ratchet_tree);
    if (mls_envelope_read(bytes, &message) == NULL)
        walk(bytes, &message);
    free(copy);
    return 0;
}
