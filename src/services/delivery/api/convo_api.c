/* SPDX-License-Identifier: Apache-2.0 */
/* convo_api.c: conversations over HTTP: creating and reading them, and everything that moves the
 * epoch. addMembers, removeMember, leaveConvo and processExternalCommit are submitCommit with
 * another body. */
#include <string.h>

#include "base/alloc.h"
#include "json/json_write.h"
#include "services/common/param.h"
#include "services/common/text.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/bundle.h"
#include "services/delivery/api/invite_api.h"
#include "services/delivery/api/recipients.h"
#include "services/delivery/mls/mls_check.h"

/* ---- lists of names ------------------------------------------------------------------------- */

static void read_adds(struct api_body *body, const char *name, uint32_t count_max)
{
    const struct json *list = json_may_array(&body->expect, name, 0, count_max);
    struct act_members *members = body->act->members;
    size_t index = 0;

    if (json_count(list) == 0)
        return;
    members->adds = base_calloc(json_count(list) * sizeof *members->adds);
    if (members->adds == NULL) {
        body->act->decoded.failed = TR_ENOMEM;
        return;
    }
    for (struct json_iter it = json_iterate(list); json_next(&it); index++)
        members->adds[members->add_count++].did =
            json_item_string(&body->expect, name, index, it.value, 8, 255);
    for (uint32_t i = 0; i < members->add_count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (span_equal(members->adds[i].did, members->adds[k].did))
                json_expect_fail(&body->expect, name, "must not name an account twice");
}

static void remove_one(struct act *act, struct span did)
{
    act->members->removes = base_calloc(sizeof *act->members->removes);
    if (act->members->removes == NULL)
        act->decoded.failed = TR_ENOMEM;
    else
        act->members->removes[act->members->remove_count++] = did;
}

/* ---- commits -------------------------------------------------------------------------------- */

/* An external committer joins as itself: its DID, or a device of it. */
static bool is_own_leaf(const struct mls_leaf *leaf, struct span did)
{
    if (leaf->credential != MLS_CREDENTIAL_BASIC || leaf->identity.size < did.size ||
        memcmp(leaf->identity.at, did.at, did.size) != 0)
        return false;
    return leaf->identity.size == did.size || leaf->identity.at[did.size] == '#';
}

/* Reads the commit's bytes. NULL, or what is wrong. */
static const char *commit_read_bytes(struct commit_act *commit)
{
    struct mls_message *mls = &commit->content.mls;
    bool is_external;
    const char *why;

    commit_act_hash(commit);
    if (commit->content.bytes.size == 0)
        return NULL;
    why = mls_message_read(commit->content.bytes, mls);
    if (why == NULL)
        why = mls_message_check(mls);
    if (why != NULL)
        return why;
    if ((mls->wire != MLS_PUBLIC && mls->wire != MLS_PRIVATE) || mls->content != MLS_COMMIT)
        return "The message is not a commit.";
    is_external = mls->wire == MLS_PUBLIC && mls->sender == MLS_NEW_COMMIT;
    if (is_external && commit->kind != COMMIT_JOIN)
        return "The commit is external; send it to processExternalCommit.";
    if (!is_external && commit->kind == COMMIT_JOIN)
        return "externalCommit is not an external commit.";
    if (is_external && !is_own_leaf(&mls->commit.path_leaf, commit->act.claims->issuer))
        return "The leaf of this external commit belongs to another account.";
    return NULL;
}

static void commit_answered(struct http_request *request, const struct tr_event *event);

static void send_act(struct http_request *request, struct act *act)
{
    struct api_body body = { .act = act };

    api_send(request, &body, act_has(act, ACT_CREATES) ? api_answered : commit_answered);
}

/* Checks a commit and its bundle. NULL, or the label of what is wrong; *ret_why is the sentence. */
static const char *commit_check_body(
    struct commit_act *commit, enum delivery_mode mode, const char **ret_why)
{
    *ret_why = commit_read_bytes(commit);
    if (*ret_why != NULL)
        return "InvalidCommit";
    *ret_why = bundle_check(commit);
    if (*ret_why != NULL)
        return "InvalidMessage";
    if (mode == DELIVERY_ASSISTED && commit->content.bytes.size > 0 &&
        (commit->content.mls.wire != MLS_PUBLIC || !bundle_is_public(commit))) {
        *ret_why = "In assisted mode commits and proposals must be public messages.";
        return "PublicHandshakeRequired";
    }
    return NULL;
}

/* Checks the Welcomes, and what assisted mode requires. NULL, or the label of what is wrong. */
static const char *check_members(struct act *act, enum delivery_mode mode, const char **ret_why)
{
    bool is_numbered = act->content != NULL && act->content->bytes.size == 0;

    if (mode == DELIVERY_ASSISTED && !is_numbered && act->info->bytes.size == 0) {
        *ret_why = "groupInfo is missing; assisted mode requires it, with the ratchet tree.";
        return "GroupInfoRequired";
    }
    *ret_why = recipients_read(act->members);
    if (*ret_why != NULL)
        return "InvalidWelcome";
    if (!recipients_are_hashed(act->members)) {
        *ret_why = "keyPackageHashes must list the key packages that the Welcomes name.";
        return "WelcomeMismatch";
    }
    return NULL;
}

/* The common end of all calls: read, check against the database and on the pool, send. */
static void convo_submit(struct http_request *request, struct api_body *body)
{
    enum delivery_mode mode = ((struct delivery *)http_service(request))->mode;
    struct act *act = body->act;
    const char *why = body->expect.message;
    const char *label = body->expect.failed ? "InvalidRequest" : NULL;

    tr_assert(act->members != NULL);
    if (label == NULL && act_has(act, ACT_COMMITS))
        label = commit_check_body(act_commit(act), mode, &why);
    if (label == NULL)
        label = check_members(act, mode, &why);
    if (label != NULL) {
        api_refuse(request, body, 400, label, why);
        return;
    }
    json_doc_free(&body->doc);
    api_check(request, act, send_act);
}

/* The answer has the fields of all calls that move the epoch. */
static void commit_answered(struct http_request *request, const struct tr_event *event)
{
    struct act *act = api_act(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (act == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_bool(&writer, "ok", true);
    json_put_int(&writer, "newEpoch", (int64_t)act->result_epoch);
    json_put_int(&writer, "epochHint", (int64_t)act->result_epoch);
    json_put_int(&writer, "epoch", (int64_t)act->result_epoch);
    json_put_int(&writer, "seq", (int64_t)act->result_seq);
    if (act_has(act, ACT_COMMITS) && act_commit(act)->kind == COMMIT_JOIN)
        text_put_time(&writer, "rejoinedAt", act->result_ms);
    json_put_end(&writer);
    if (answer.failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", &answer);
    buffer_free(&answer);
    api_end(request);
}

/* ---- the calls ------------------------------------------------------------------------------ */

/* Begins a call that moves the epoch: convoId, the commit, groupInfo and idempotencyKey. */
static bool begin_commit(struct http_request *request, const char *commit_name,
    enum commit_kind kind, struct api_body *ret_body)
{
    struct act *act;

    if (!api_begin_mls(request, &commit_act_type, "commit", ret_body))
        return false;
    act = ret_body->act;
    act_commit(act)->kind = kind;
    act->convo = json_need_string(&ret_body->expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    if (ret_body->raw_name != NULL) {
        bundle_read_mls(ret_body);
    } else {
        act->content->bytes = api_may_bytes(ret_body, commit_name, COMMIT_SIZE_MAX);
        act->info->bytes = api_may_bytes(ret_body, "groupInfo", GROUP_INFO_SIZE_MAX);
    }
    api_set_op(ret_body, "op", json_may_string(&ret_body->expect, "idempotencyKey", 1, 128));
    return true;
}

static void read_one_welcome(struct api_body *body)
{
    bundle_add_welcome(body, api_may_bytes(body, "welcomeMessage", WELCOME_SIZE_MAX));
    recipients_read_hashes(body);
}

void api_add_members(struct http_request *request)
{
    struct api_body body;

    if (!begin_commit(request, "commit", COMMIT_CHANGE, &body))
        return;
    read_adds(&body, "didList", ACT_MEMBERS_MAX);
    read_one_welcome(&body);
    if (body.act->members->add_count == 0)
        json_expect_fail(&body.expect, "didList", "must name at least one account");
    convo_submit(request, &body);
}

void api_remove_member(struct http_request *request)
{
    struct api_body body;

    if (!begin_commit(request, "commit", COMMIT_CHANGE, &body))
        return;
    remove_one(body.act, json_need_string(&body.expect, "targetDid", 8, 255));
    if (body.act->members->remove_count == 1 &&
        span_equal(body.act->members->removes[0], body.act->claims->issuer)) {
        api_refuse(request, &body, 400, "CannotRemoveSelf",
            "targetDid is your own account; call leaveConvo to leave.");
        return;
    }
    convo_submit(request, &body);
}

void api_leave_convo(struct http_request *request)
{
    struct api_body body;
    struct span did;

    if (!begin_commit(request, "commit", COMMIT_LEAVE, &body))
        return;
    did = json_may_string(&body.expect, "targetDid", 8, 255);
    if (did.at != NULL && !span_equal(did, body.act->claims->issuer))
        json_expect_fail(
            &body.expect, "targetDid", "must be your own account; removeMember removes others");
    remove_one(body.act, body.act->claims->issuer);
    convo_submit(request, &body);
}

void api_process_external_commit(struct http_request *request)
{
    struct act_members *members;
    struct api_body body;

    if (!begin_commit(request, "externalCommit", COMMIT_JOIN, &body))
        return;
    invite_read_secret(&body, &act_commit(body.act)->invite);
    members = body.act->members;
    members->adds = base_calloc(sizeof *members->adds);
    if (members->adds == NULL)
        body.act->decoded.failed = TR_ENOMEM;
    else
        members->adds[members->add_count++].did = body.act->claims->issuer;
    if (body.act->content->bytes.size == 0)
        json_expect_fail(&body.expect, "externalCommit", "is missing");
    convo_submit(request, &body);
}

/* Accounts that the commit removes. */
static void read_removes(struct api_body *body)
{
    const struct json *list = json_may_array(&body->expect, "removes", 0, ACT_MEMBERS_MAX);
    struct act_members *members = body->act->members;
    size_t index = 0;

    if (json_count(list) == 0)
        return;
    members->removes = base_calloc(json_count(list) * sizeof *members->removes);
    if (members->removes == NULL) {
        body->act->decoded.failed = TR_ENOMEM;
        return;
    }
    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct span did = json_item_string(&body->expect, "removes", index, it.value, 8, 255);

        for (uint32_t i = 0; i < members->remove_count; i++)
            if (span_equal(members->removes[i], did))
                json_expect_fail(&body->expect, "removes", "must not name an account twice");
        members->removes[members->remove_count++] = did;
    }
}

void api_submit_commit(struct http_request *request)
{
    struct api_body body;

    if (!begin_commit(request, "commit", COMMIT_CHANGE, &body))
        return;
    if (body.act->content->bytes.size == 0)
        json_expect_fail(&body.expect, "commit", "is missing");
    if (body.raw_name == NULL)
        bundle_read_json(&body);
    read_removes(&body);
    convo_submit(request, &body);
}

void api_create_convo(struct http_request *request)
{
    struct creation_act *creation;
    struct api_body body;

    if (!api_begin(request, &creation_act_type, &body))
        return;
    creation = act_creation(body.act);
    body.act->convo = json_need_string(&body.expect, "groupId", 1, ACT_CONVO_SIZE_MAX);
    creation->suite = json_need_string(&body.expect, "cipherSuite", 1, 63);
    creation->epoch = (uint64_t)json_may_int(&body.expect, "currentEpoch", 0, INT64_C(1) << 53, 0);
    creation->info.bytes = api_may_bytes(&body, "groupInfo", GROUP_INFO_SIZE_MAX);
    if (json_get(body.expect.object, "metadata") != NULL) {
        struct json_expect metadata = json_expect_member(&body.expect, "metadata");

        creation->name = json_may_string(&metadata, "name", 0, 128);
        creation->description = json_may_string(&metadata, "description", 0, 512);
    }
    read_adds(&body, "initialMembers", ACT_MEMBERS_MAX);
    read_one_welcome(&body);
    api_set_op(&body, "op", json_may_string(&body.expect, "idempotencyKey", 1, 128));
    if (!body.expect.failed && mls_suite_named(creation->suite) == NULL) {
        api_refuse(request, &body, 400, "InvalidCipherSuite",
            "cipherSuite is not known to this server; use a registered MLS name.");
        return;
    }
    for (uint32_t i = 0; i < creation->members.add_count; i++)
        if (span_equal(creation->members.adds[i].did, body.act->claims->issuer))
            json_expect_fail(&body.expect, "initialMembers", "must not name the creator");
    convo_submit(request, &body);
}

void api_get_convo(struct http_request *request)
{
    struct api_body body;

    if (api_begin_query(request, &view_act_type, &body))
        api_send(request, &body, api_answered);
}

static void put_epoch(struct json_writer *writer, struct act *act)
{
    json_put_string(writer, "convoId", act->convo);
    json_put_int(writer, "currentEpoch", (int64_t)act->result_epoch);
}

static void epoch_answered(struct http_request *request, const struct tr_event *event)
{
    api_answer_with(request, event, put_epoch);
}

void api_get_epoch(struct http_request *request)
{
    struct api_body body;

    if (api_begin_query(request, &epoch_act_type, &body))
        api_send(request, &body, epoch_answered);
}

void api_get_group_info(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_query(request, &context_act_type, &body) ||
        !invite_read_hash(request, &body, &act_context(body.act)->invite))
        return;
    act_context(body.act)->wants_mls = api_wants_mls(request);
    api_send(request, &body, api_answered);
}

void api_update_group_info(struct http_request *request)
{
    struct mls_group_info info = { 0 };
    struct group_info_act *act;
    struct api_body body;
    const char *why;

    if (!api_begin_convo(request, &group_info_act_type, &body))
        return;
    act = act_group_info(body.act);
    act->info.bytes = api_need_bytes(&body, "groupInfo", GROUP_INFO_SIZE_MAX);
    act->epoch = (uint64_t)json_need_int(&body.expect, "epoch", 0, INT64_MAX);
    why = body.expect.failed ? NULL : mls_group_info_read(act->info.bytes, &info);
    if (why == NULL && !body.expect.failed && info.context.epoch != act->epoch)
        why = "epoch must be the epoch inside groupInfo.";
    if (why != NULL || body.expect.failed) {
        api_refuse(request, &body, 400, why != NULL ? "InvalidGroupInfo" : "InvalidRequest",
            why != NULL ? why : body.expect.message);
        return;
    }
    json_doc_free(&body.doc);
    api_check(request, body.act, send_act);
}
