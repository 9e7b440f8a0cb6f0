/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/bundle.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "services/common/text.h"

void bundle_add_welcome(struct api_body *body, struct span welcome)
{
    struct act_members *members = body->act->members;

    tr_assert(members != NULL);
    if (welcome.size > 0 && members->welcome_count < ACT_WELCOMES_MAX)
        members->welcomes[members->welcome_count++] = welcome;
}

static void add_proposal(struct api_body *body, struct span proposal)
{
    struct commit_act *commit = act_commit(body->act);

    if (commit->proposals == NULL)
        commit->proposals = base_calloc(ACT_PROPOSALS_MAX * sizeof *commit->proposals);
    if (commit->proposals == NULL)
        commit->act.decoded.failed = TR_ENOMEM;
    else if (commit->proposal_count == ACT_PROPOSALS_MAX)
        json_expect_fail(
            &body->reader.expect, "proposals", "has more than 100 items; the most is 100");
    else
        commit->proposals[commit->proposal_count++].bytes = proposal;
}

/* Adds a message of the bundle. NULL, or why it may not be there. */
static const char *add_part(
    struct api_body *body, const struct mls_message *message, struct span bytes)
{
    bool is_framed = message->wire == MLS_PUBLIC || message->wire == MLS_PRIVATE;
    struct span *place = NULL;
    struct commit_act *commit = act_commit(body->act);

    if (is_framed && message->content == MLS_PROPOSAL)
        add_proposal(body, bytes);
    else if (message->wire == MLS_WELCOME && commit->members.welcome_count < ACT_WELCOMES_MAX)
        bundle_add_welcome(body, bytes);
    else if (message->wire == MLS_GROUP_INFO)
        place = &commit->info.bytes;
    else if (is_framed)
        place = message->content == MLS_COMMIT ? &commit->content.bytes : &commit->app_bytes;
    else
        return "A bundle may hold a commit, its proposals, at most 16 Welcomes, a GroupInfo and a "
               "message.";
    if (place != NULL && place->size > 0)
        return "A bundle may hold one commit, one GroupInfo and one message.";
    if (place != NULL)
        *place = bytes;
    return NULL;
}

void bundle_read_mls(struct api_body *body)
{
    struct mls_reader reader = mls_reader_of(body->reader.raw);
    struct mls_message message;
    const char *why = NULL;
    struct span bytes;

    tr_assert(body->reader.raw_name != NULL);
    while (why == NULL && mls_more(&reader)) {
        why = mls_message_next(&reader, &message, &bytes);
        if (why == NULL)
            why = add_part(body, &message, bytes);
    }
    if (why != NULL) /* a sentence; json_expect_fail adds the full stop */
        json_expect_fail(
            &body->reader.expect, NULL, "is not a valid bundle: %.*s", (int)strlen(why) - 1, why);
    if (body->act->content->bytes.size > COMMIT_SIZE_MAX ||
        body->act->info->bytes.size > GROUP_INFO_SIZE_MAX)
        json_expect_fail(&body->reader.expect, NULL, "has a part that is too large");
}

static void read_byte_list(struct api_body *body, const char *name, size_t size_max,
    void (*add)(struct api_body *body, struct span bytes))
{
    for (struct json_iter it = json_iterate(api_value(body, name)->json); json_next(&it);) {
        struct span bytes;

        if (text_get_bytes(it.value, size_max, &bytes))
            add(body, bytes);
        else
            json_expect_fail(&body->reader.expect, name, "must be base64");
    }
}

void bundle_read_json(struct api_body *body)
{
    tr_assert(body->reader.raw_name == NULL);
    read_byte_list(body, "welcomes", WELCOME_SIZE_MAX, bundle_add_welcome);
    read_byte_list(body, "proposals", COMMIT_SIZE_MAX, add_proposal);
    act_commit(body->act)->app_bytes = api_text(body, "appMessage");
}

/* Checks that a part is a message of this content, in the commit's group and of the epoch. */
static const char *read_part(
    const struct commit_act *commit, struct span bytes, enum mls_content content, uint64_t epoch)
{
    struct mls_message part;
    const char *why = content == MLS_APPLICATION ? mls_envelope_read(bytes, &part)
                                                 : mls_message_read(bytes, &part);

    if (why == NULL)
        why = mls_message_check(&part);
    if (why != NULL)
        return why;
    if ((part.wire != MLS_PUBLIC && part.wire != MLS_PRIVATE) || part.content != content)
        return content == MLS_APPLICATION ? "appMessage is not an application message."
                                          : "An item of proposals is not a proposal.";
    if (!span_equal(part.group_id, commit->content.mls.group_id))
        return "A message in the bundle belongs to another group than the commit.";
    return part.epoch == epoch
               ? NULL
               : "A message in the bundle is of another epoch than the commit requires.";
}

/* Proposals are of the epoch that the commit was made in, a message of the epoch it leads to. */
const char *bundle_check(const struct commit_act *commit)
{
    const char *why = NULL;

    if (commit->kind == COMMIT_JOIN && commit->proposal_count > 0)
        return "An external commit brings no proposals.";
    for (uint32_t i = 0; why == NULL && i < commit->proposal_count; i++) {
        why =
            read_part(commit, commit->proposals[i].bytes, MLS_PROPOSAL, commit->content.mls.epoch);
        crypto_sha256(commit->proposals[i].bytes.at, commit->proposals[i].bytes.size,
            commit->proposals[i].sha256);
    }
    if (why == NULL && commit->app_bytes.size > 0)
        why = read_part(commit, commit->app_bytes, MLS_APPLICATION, commit->content.mls.epoch + 1);
    return why;
}

bool bundle_is_public(const struct commit_act *commit)
{
    struct mls_message proposal;

    for (uint32_t i = 0; i < commit->proposal_count; i++)
        if (mls_message_read(commit->proposals[i].bytes, &proposal) != NULL ||
            proposal.wire != MLS_PUBLIC)
            return false;
    return true;
}
