/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/commit_check.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "services/common/step.h"
#include "services/delivery/mls/commit_check_store.h"
#include "services/delivery/mls/commit_roster.h"
#include "services/delivery/mls/mls_check.h"

/* ---- the stored epoch ------------------------------------------------------------------------ */

enum { STORED_CONTEXT, STORED_PROPOSALS };

static bool needs_proposals(const struct act *act, enum delivery_mode mode)
{
    return act_has(act, ACT_COMMITS) && mode == DELIVERY_ASSISTED &&
           act->content->mls.commit.reference_count > 0;
}

bool commit_check_needs_stored(const struct act *act, enum delivery_mode mode)
{
    if (mode == DELIVERY_BLIND || act->content == NULL || act->content->bytes.size == 0)
        return false;
    return act->content->mls.wire == MLS_PUBLIC || (act->info != NULL && act->info->bytes.size > 0);
}

uint32_t commit_check_ask(struct act *act, enum delivery_mode mode, struct sql_unit *unit)
{
    uint64_t epoch = act->content->mls.epoch;
    int64_t bounded = epoch > INT64_MAX ? INT64_MAX : (int64_t)epoch;

    tr_assert(commit_check_needs_stored(act, mode));
    UNIT_STEP(unit, &commit_check_find_context, SQL_ROWS_ANY, VALUE_TEXT(act->convo),
        VALUE_INT(bounded), VALUE_TEXT(act->claims->issuer));
    if (!needs_proposals(act, mode))
        return STORED_CONTEXT + 1;
    UNIT_STEP(unit, &commit_check_find_proposals, SQL_ROWS_ANY, VALUE_TEXT(act->convo),
        VALUE_INT(bounded), VALUE_INT(LOG_PAGE_BYTES));
    return STORED_PROPOSALS + 1;
}

static bool is_in(const struct commit_check *check)
{
    return sql_row_int(check->unit, STORED_CONTEXT, 0, 1) > 0;
}

/* Reads the group as it was when the commit or proposal was made. Returns false if the server does
 * not have it, or the caller may not see it. An account that joins by an external commit may. */
static bool read_stored(const struct commit_check *check, struct mls_group_info *ret_info)
{
    tr_assert(!check->has_stored || check->unit != NULL);
    if (!check->has_stored || sql_unit_rows(check->unit, STORED_CONTEXT) != 1)
        return false;
    if (!is_in(check) &&
        (!act_has(check->act, ACT_COMMITS) || act_commit(check->act)->kind != COMMIT_JOIN))
        return false;
    return mls_group_info_read(sql_row_bytes(check->unit, STORED_CONTEXT, 0, 0), ret_info) == NULL;
}

/* ---- signatures ------------------------------------------------------------------------------ */

/* Finds the key that must have signed a public message; {NULL, 0} if there is none. A member's key
 * is in the tree, an external sender's in the group context; a joiner brings its own. */
static struct span find_signer(const struct mls_message *message, const struct mls_group_info *info)
{
    struct mls_leaf leaf = { .signature_key = { NULL, 0 } };
    struct span key = { NULL, 0 };

    switch (message->sender) {
    case MLS_MEMBER:
        return mls_tree_find(info->ratchet_tree, message->sender_index, &leaf) ? leaf.signature_key
                                                                               : key;
    case MLS_EXTERNAL:
        (void)mls_external_sender(&info->context, message->sender_index, &key);
        return key;
    case MLS_NEW_PROPOSAL:
        return message->proposal.key_package.leaf.signature_key;
    case MLS_NEW_COMMIT:
        return message->commit.path_leaf.signature_key;
    }
    return key;
}

/* Verifies the signature of a public message, as far as the group info allows: *ret_is_verified
 * says whether it did. Returns NULL, or a sentence about the fault. */
static const char *check_message(
    const struct mls_message *message, const struct mls_group_info *info, bool *ret_is_verified)
{
    const struct mls_suite *suite = mls_suite_of(info->context.suite);
    bool is_commit = message->content == MLS_COMMIT;
    struct span key;

    if (suite == NULL || (message->sender == MLS_MEMBER && info->ratchet_tree.at == NULL))
        return NULL;
    key = find_signer(message, info);
    if (key.at == NULL)
        return is_commit ? "The sender of the commit is not in the group."
                         : "The sender of the proposal is not in the group.";
    if (!mls_message_verify(suite, message, key, info->context.bytes))
        return is_commit ? "The signature of the commit is wrong."
                         : "The signature of the proposal is wrong.";
    *ret_is_verified = true;
    return NULL;
}

/* Checks the message and the proposals in its bundle. Only a member may learn whether the signatures
 * fit the stored group. Of other callers the commit just counts as not verified; the conversation
 * checks the right to join first. */
static const char *check_signatures(struct commit_check *check, const struct mls_group_info *stored)
{
    struct act_content *content = check->act->content;
    const struct commit_act *commit =
        act_has(check->act, ACT_COMMITS) ? act_commit(check->act) : NULL;
    const char *why = NULL;

    check->label = commit != NULL ? "InvalidCommit" : "InvalidMessage";
    if (content != NULL && content->mls.wire == MLS_PUBLIC)
        why = check_message(&content->mls, stored, &content->is_verified);
    for (uint32_t i = 0; why == NULL && commit != NULL && i < commit->proposal_count; i++) {
        struct mls_message proposal;
        bool is_verified;

        check->label = "InvalidMessage";
        why = mls_message_read(commit->proposals[i].bytes, &proposal);
        if (why == NULL && proposal.wire == MLS_PUBLIC)
            why = check_message(&proposal, stored, &is_verified);
    }
    if (why == NULL || is_in(check))
        return why;
    if (content != NULL)
        content->is_verified = false;
    return NULL;
}

/* ---- proposals by reference ------------------------------------------------------------------ */

/* Appends the reference of a proposal. A private one has none here: its content is encrypted. */
static void add_reference(
    struct buffer *references, uint32_t *count, const struct mls_suite *suite, struct span bytes)
{
    unsigned char reference[MLS_REFERENCE_SIZE_MAX];
    struct mls_message proposal;
    size_t size;

    if (mls_message_read(bytes, &proposal) != NULL || proposal.wire != MLS_PUBLIC)
        return;
    size = mls_proposal_reference(suite, &proposal, reference);
    *count += size > 0;
    if (size > 0)
        mls_put_vector(references, (struct span){ (const char *)reference, size });
}

static bool has_reference(const struct buffer *references, struct span reference)
{
    struct mls_reader list = mls_reader_of((struct span){ references->bytes, references->size });

    while (mls_more(&list))
        if (span_equal(mls_vector(&list), reference))
            return true;
    return false;
}

/* Does the server have every proposal that the commit refers to, in the log or in the bundle? Only
 * assisted mode, which takes no private proposals, can tell. */
static bool knows_proposals(const struct commit_check *check)
{
    const struct commit_act *act = act_commit(check->act);
    const struct mls_commit *commit = &check->act->content->mls.commit;
    const struct mls_suite *suite = mls_suite_of(check->act->info->suite);
    struct mls_reader list = mls_reader_of(commit->proposals);
    struct buffer references = { 0 };
    struct mls_proposal proposal;
    uint32_t count = 0;
    bool is_known;

    if (!check->has_stored || !needs_proposals(check->act, check->mode))
        return true;
    if (suite == NULL)
        return false;
    for (uint32_t i = 0; i < sql_unit_rows(check->unit, STORED_PROPOSALS); i++)
        add_reference(
            &references, &count, suite, sql_row_bytes(check->unit, STORED_PROPOSALS, i, 0));
    for (uint32_t i = 0; i < act->proposal_count; i++)
        add_reference(&references, &count, suite, act->proposals[i].bytes);
    /* A commit names no proposal twice, so more references than proposals cannot all be known. */
    is_known = references.failed == 0 && commit->reference_count <= count;
    while (is_known && mls_proposal_next(&list, &proposal))
        is_known = !proposal.is_reference || has_reference(&references, proposal.reference);
    buffer_free(&references);
    return is_known;
}

/* ---- the new epoch --------------------------------------------------------------------------- */

static const char *check_group_info(struct commit_check *check, const struct mls_group_info *stored)
{
    struct act *act = check->act;
    const struct act_content *content = act->content;
    struct mls_group_info info;
    const char *why;
    int rc;

    if (act->info == NULL || act->info->bytes.size == 0)
        return NULL;
    why = mls_group_info_read(act->info->bytes, &info);
    if (why != NULL)
        return why;
    if (content != NULL && content->bytes.size > 0 &&
        (info.context.epoch != content->mls.epoch + 1 ||
            !span_equal(info.context.group_id, content->mls.group_id)))
        return "The group info is not of the epoch this commit leads to.";
    act->info->group_id = info.context.group_id;
    act->info->epoch = info.context.epoch;
    act->info->suite = info.context.suite;
    if (check->mode == DELIVERY_BLIND)
        return NULL;
    if (check->mode == DELIVERY_ASSISTED && info.ratchet_tree.at == NULL) {
        check->label = "GroupInfoRequired";
        return "The group info has no ratchet tree; assisted mode requires it.";
    }
    if (content != NULL && content->mls.wire == MLS_PUBLIC &&
        !span_equal(info.confirmation_tag, content->mls.confirmation_tag))
        return "The group info has another confirmation tag than the commit.";
    why = mls_group_info_check(&info);
    if (why != NULL || (content != NULL && content->bytes.size == 0))
        return why;
    rc = commit_roster_create(&info, stored, &act->info->roster);
    if (rc < 0)
        act->decoded.failed = rc;
    if (rc == 0 && act->info->roster == NULL && check->mode == DELIVERY_ASSISTED)
        return "The tree has a leaf whose credential is not a DID.";
    return NULL;
}

int commit_check_run(void *argument)
{
    struct commit_check *check = argument;
    struct mls_group_info info;
    const struct mls_group_info *stored = read_stored(check, &info) ? &info : NULL;

    tr_assert(check->act != NULL && check->why == NULL);
    /* Without a stored group info the commit vouches for its proposals. */
    if (stored != NULL)
        check->why = check_signatures(check, stored);
    if (check->why != NULL)
        return 0;
    check->label = "InvalidGroupInfo";
    check->why = check_group_info(check, stored);
    if (check->why == NULL && act_has(check->act, ACT_COMMITS))
        act_commit(check->act)->knows_proposals = knows_proposals(check);
    return 0;
}

void commit_check_destroy(void *argument)
{
    struct commit_check *check = argument;

    sql_unit_destroy(check->unit);
    act_unref(check->act);
    base_free(check);
}
