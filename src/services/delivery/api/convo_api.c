/* SPDX-License-Identifier: Apache-2.0 */
/* convo_api.c: conversations over HTTP: creating and reading them, and everything that moves the
 * epoch. addMembers, removeMember, leaveConvo and processExternalCommit are submitCommit with
 * another body. */
#include <string.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "services/common/text.h"
#include "services/delivery/api/bundle.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/api/recipients.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/log_store.h"

/* ---- members -------------------------------------------------------------------------------- */

static void add_accounts(struct api_body *body, const struct span *dids, uint32_t count)
{
    struct act_members *members = body->act->members;

    tr_assert(members->adds == NULL);
    members->adds = api_alloc(body, count, sizeof *members->adds);
    members->add_count = members->adds == NULL ? 0 : count;
    for (uint32_t i = 0; i < members->add_count; i++)
        members->adds[i].did = dids[i];
}

static void remove_accounts(struct api_body *body, const struct span *dids, uint32_t count)
{
    struct act_members *members = body->act->members;

    tr_assert(members->removes == NULL);
    members->removes = api_alloc(body, count, sizeof *members->removes);
    members->remove_count = members->removes == NULL ? 0 : count;
    if (members->remove_count > 0)
        memcpy(members->removes, dids, count * sizeof *dids);
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

/* Checks the Welcomes, and what assisted mode requires. */
static void check_members(struct api_body *body)
{
    struct act *act = body->act;
    bool is_numbered = act->content != NULL && act->content->bytes.size == 0;
    const char *why;

    tr_assert(act->members != NULL);
    if (body->reader.expect.failed)
        return;
    if (api_delivery(body)->mode == DELIVERY_ASSISTED && !is_numbered &&
        act->info->bytes.size == 0) {
        api_refuse(body, 400, "GroupInfoRequired",
            "groupInfo is missing; assisted mode requires it, with the ratchet tree.");
        return;
    }
    why = recipients_read(act->members);
    api_refuse(body, 400, "InvalidWelcome", why);
    if (why == NULL && !recipients_are_hashed(act->members))
        api_refuse(body, 400, "WelcomeMismatch",
            "keyPackageHashes must list the key packages that the Welcomes name.");
}

/* Checks a commit, its bundle and its members. */
static void check_commit(struct api_body *body)
{
    struct commit_act *commit = act_commit(body->act);

    if (body->reader.expect.failed)
        return;
    api_refuse(body, 400, "InvalidCommit", commit_read_bytes(commit));
    if (body->refusal.status == 0)
        api_refuse(body, 400, "InvalidMessage", bundle_check(commit));
    if (body->refusal.status == 0 && api_delivery(body)->mode == DELIVERY_ASSISTED &&
        commit->content.bytes.size > 0 &&
        (commit->content.mls.wire != MLS_PUBLIC || !bundle_is_public(commit)))
        api_refuse(body, 400, "PublicHandshakeRequired",
            "In assisted mode commits and proposals must be public messages.");
    if (body->refusal.status == 0)
        check_members(body);
}

/* The answer has the fields of all calls that move the epoch. */
static void put_moved(struct json_writer *writer, struct act *act)
{
    json_put_bool(writer, "success", true);
    json_put_bool(writer, "ok", true);
    json_put_int(writer, "newEpoch", (int64_t)act->result_epoch);
    json_put_int(writer, "epochHint", (int64_t)act->result_epoch);
    json_put_int(writer, "epoch", (int64_t)act->result_epoch);
    json_put_int(writer, "seq", (int64_t)act->result_seq);
    if (act_has(act, ACT_COMMITS) && act_commit(act)->kind == COMMIT_JOIN)
        text_put_time(writer, "rejoinedAt", act->result_ms);
}

/* ---- calls that move the epoch -------------------------------------------------------------- */

enum { COMMIT_BYTES = 1 }; /* their names differ */
/* clang-format off */
#define PARAM_KEY PARAM_MAY_TEXT("idempotencyKey", 1, 128)
#define PARAM_GROUP_INFO { "groupInfo", PARAM_MLS, .max = GROUP_INFO_SIZE_MAX }
#define PARAMS_OF_COMMIT(name)                                                                     \
    PARAM_CONVO, { name, PARAM_MLS, .max = COMMIT_SIZE_MAX }, PARAM_GROUP_INFO, PARAM_KEY
#define PARAM_WELCOME { "welcomeMessage", PARAM_MLS, .max = WELCOME_SIZE_MAX }
#define PARAM_HASHES { "keyPackageHashes", PARAM_JSON, .max = ACT_MEMBERS_MAX }
#define PARAM_ACCOUNTS(name) { name, PARAM_DIDS, .max = ACT_MEMBERS_MAX }
#define COMMIT_CALL                                                                                \
    .type = &commit_act_type, .raw = BUNDLE_RAW, .is_checked = true, .put = put_moved
/* clang-format on */

static void fill_commit(struct api_body *body)
{
    struct act *act = body->act;

    tr_assert(act_has(act, ACT_COMMITS));
    act_commit(act)->kind = (enum commit_kind)body->call->variant;
    if (body->reader.raw_name != NULL) {
        bundle_read_mls(body);
    } else {
        act->content->bytes = body->values[COMMIT_BYTES].text;
        act->info->bytes = api_text(body, "groupInfo");
    }
    api_set_op(body, "op", api_text(body, "idempotencyKey"));
}

/* Reads the accounts of a list, and the Welcome for them. */
static void read_additions(struct api_body *body, const char *list)
{
    const struct param_value *dids = api_value(body, list);

    if (dids->is_given)
        add_accounts(body, dids->items, dids->count);
    bundle_add_welcome(body, api_text(body, "welcomeMessage"));
    recipients_read_hashes(body);
}

static void fill_add(struct api_body *body)
{
    fill_commit(body);
    read_additions(body, "didList");
    if (body->act->members->add_count == 0)
        json_expect_fail(&body->reader.expect, "didList", "must name at least one account");
    check_commit(body);
}

const struct api_call api_add_members = { COMMIT_CALL,
    .params =
        PARAMS(PARAMS_OF_COMMIT("commit"), PARAM_ACCOUNTS("didList"), PARAM_WELCOME, PARAM_HASHES),
    .variant = COMMIT_CHANGE, .fill = fill_add };

static void fill_remove(struct api_body *body)
{
    struct span target = api_text(body, "targetDid");

    if (span_equal(target, body->act->claims->issuer)) {
        api_refuse(body, 400, "CannotRemoveSelf",
            "targetDid is your own account; call leaveConvo to leave.");
        return;
    }
    fill_commit(body);
    remove_accounts(body, &target, 1);
    check_commit(body);
}

const struct api_call api_remove_member = { COMMIT_CALL,
    .params = PARAMS(PARAMS_OF_COMMIT("commit"), PARAM_DID("targetDid")), .variant = COMMIT_CHANGE,
    .fill = fill_remove };

static void fill_leave(struct api_body *body)
{
    struct span caller = body->act->claims->issuer, target = api_text(body, "targetDid");

    fill_commit(body);
    if (target.at != NULL && !span_equal(target, caller))
        json_expect_fail(&body->reader.expect, "targetDid",
            "must be your own account; removeMember removes others");
    remove_accounts(body, &caller, 1);
    check_commit(body);
}

const struct api_call api_leave_convo = { COMMIT_CALL,
    .params =
        PARAMS(PARAMS_OF_COMMIT("commit"), PARAM_MAY_TEXT("targetDid", DID_SIZE_MIN, DID_SIZE_MAX)),
    .variant = COMMIT_LEAVE, .fill = fill_leave };

/* The secret of an invite: the server stores the hash of its text, or of the bytes that the text is
 * base64 of. */
static void read_secret(struct api_body *body, struct act_invite *invite)
{
    struct span text = api_text(body, "psk"), bytes;

    if (text.at == NULL)
        return;
    invite->is_given = true;
    crypto_sha256(text.at, text.size, invite->hashes[0]);
    memcpy(invite->hashes[1], invite->hashes[0], sizeof invite->hashes[1]);
    /* The text is decoded in place, so its own hash comes first. */
    if (text_get_bytes(json_get(body->reader.expect.object, "psk"), text.size, &bytes))
        crypto_sha256(bytes.at, bytes.size, invite->hashes[1]);
}

static void fill_join(struct api_body *body)
{
    fill_commit(body);
    read_secret(body, &act_commit(body->act)->invite);
    add_accounts(body, &body->act->claims->issuer, 1);
    if (body->act->content->bytes.size == 0)
        json_expect_fail(&body->reader.expect, "externalCommit", "is missing");
    check_commit(body);
}

const struct api_call api_process_external_commit = { COMMIT_CALL,
    .params = PARAMS(PARAMS_OF_COMMIT("externalCommit"), PARAM_MAY_TEXT("psk", 1, 1024)),
    .variant = COMMIT_JOIN, .fill = fill_join };

static void fill_submit(struct api_body *body)
{
    const struct param_value *removes = api_value(body, "removes");

    fill_commit(body);
    if (body->act->content->bytes.size == 0)
        json_expect_fail(&body->reader.expect, "commit", "is missing");
    if (body->reader.raw_name == NULL)
        bundle_read_json(body);
    if (removes->is_given)
        remove_accounts(body, removes->items, removes->count);
    check_commit(body);
}

const struct api_call api_submit_commit = { COMMIT_CALL,
    .params =
        PARAMS(PARAMS_OF_COMMIT("commit"), { "welcomes", PARAM_JSON, .max = ACT_WELCOMES_MAX },
            { "proposals", PARAM_JSON, .max = ACT_PROPOSALS_MAX },
            { "appMessage", PARAM_MLS, .max = MESSAGE_SIZE_MAX }, PARAM_ACCOUNTS("removes")),
    .variant = COMMIT_CHANGE, .fill = fill_submit };

/* ---- create --------------------------------------------------------------------------------- */

static void fill_creation(struct api_body *body)
{
    struct creation_act *creation = act_creation(body->act);
    struct json_expect *expect = &body->reader.expect;

    creation->suite = api_text(body, "cipherSuite");
    creation->epoch = (uint64_t)api_value(body, "currentEpoch")->number;
    creation->info.bytes = api_text(body, "groupInfo");
    if (json_get(expect->object, "metadata") != NULL) {
        struct json_expect metadata = json_expect_member(expect, "metadata");

        creation->name = json_may_string(&metadata, "name", 0, 128);
        creation->description = json_may_string(&metadata, "description", 0, 512);
    }
    read_additions(body, "initialMembers");
    api_set_op(body, "op", api_text(body, "idempotencyKey"));
    if (!expect->failed && mls_suite_named(creation->suite) == NULL) {
        api_refuse(body, 400, "InvalidCipherSuite",
            "cipherSuite is not known; use a name like " MLS_SUITE_EXAMPLE ".");
        return;
    }
    for (uint32_t i = 0; i < creation->members.add_count; i++)
        if (span_equal(creation->members.adds[i].did, body->act->claims->issuer))
            json_expect_fail(expect, "initialMembers", "must not name the creator");
    check_members(body);
}

const struct api_call api_create_convo = {
    .type = &creation_act_type,
    .params = PARAMS(PARAM_NEED_TEXT("groupId", 1, ACT_CONVO_SIZE_MAX),
        PARAM_NEED_TEXT("cipherSuite", 1, 63),
        { "currentEpoch", PARAM_INT, .max = INT64_C(1) << 53 }, PARAM_GROUP_INFO,
        { "metadata", PARAM_ANY, .max = 0 }, PARAM_ACCOUNTS("initialMembers"), PARAM_WELCOME,
        PARAM_HASHES, PARAM_KEY),
    .is_checked = true,
    .fill = fill_creation,
};

/* ---- read ----------------------------------------------------------------------------------- */

const struct api_call api_get_convo = { .type = &view_act_type, .params = PARAMS(PARAM_CONVO) };

static void put_epoch(struct json_writer *writer, struct act *act)
{
    json_put_string(writer, "convoId", act->convo);
    json_put_int(writer, "currentEpoch", (int64_t)act->result_epoch);
}

const struct api_call api_get_epoch = {
    .type = &epoch_act_type,
    .params = PARAMS(PARAM_CONVO),
    .put = put_epoch,
};

/* ---- group info ----------------------------------------------------------------------------- */

/* The hash of an invite's secret lets its holder read the group info. */
static void fill_context(struct api_body *body)
{
    struct context_act *context = act_context(body->act);
    const struct param_value *hash = api_value(body, "pskHash");

    tr_assert(!hash->is_given || hash->text.size == CRYPTO_SHA256_BYTES);
    context->wants_mls = api_wants_mls(body->request);
    context->invite.is_given = hash->is_given;
    for (int i = 0; i < 2 && hash->is_given; i++)
        memcpy(context->invite.hashes[i], hash->text.at, sizeof context->invite.hashes[i]);
}

const struct api_call api_get_group_info = {
    .type = &context_act_type,
    .params = PARAMS(PARAM_CONVO,
        { "pskHash", PARAM_HEX, .min = CRYPTO_SHA256_BYTES, .max = CRYPTO_SHA256_BYTES }),
    .fill = fill_context,
};

static void fill_group_info(struct api_body *body)
{
    struct group_info_act *act = act_group_info(body->act);
    struct mls_group_info info = { 0 };
    const char *why;

    act->info.bytes = api_text(body, "groupInfo");
    act->epoch = (uint64_t)api_value(body, "epoch")->number;
    why = mls_group_info_read(act->info.bytes, &info);
    if (why == NULL && info.context.epoch != act->epoch)
        why = "epoch must be the epoch inside groupInfo.";
    api_refuse(body, 400, "InvalidGroupInfo", why);
}

const struct api_call api_update_group_info = {
    .type = &group_info_act_type,
    .params =
        PARAMS(PARAM_CONVO, { "groupInfo", PARAM_MLS, PARAM_REQUIRED, .max = GROUP_INFO_SIZE_MAX },
            { "epoch", PARAM_INT, PARAM_REQUIRED, .max = INT64_MAX }),
    .is_checked = true,
    .fill = fill_group_info,
    .put = put_moved,
};

/* ---- list ------------------------------------------------------------------------------------ */

/* getConvos: the conversations a caller is in, each as getConvo shows it, but with the first
 * MEMBERS_MAX members only: memberCount says how many there are. */
enum { MEMBERS_MAX = 100 };
enum { STEP_CONVOS, STEP_MEMBERS };

static const struct field member_fields[] = {
    TEXT_AT("did", 1),
    TEXT_AT("userDid", 1),
    TIME_AT("joinedAt", 2),
    BOOL_AT("isAdmin", 3),
    BOOL_AT("isModerator", 4),
    FIELD_LAST,
};
static const struct field member_list =
    LIST("members", .step = STEP_MEMBERS, .fields = member_fields);

/* Write the members of a conversation. Both steps are in the same order, so the rows go on where the
 * conversation before ended: run->next. */
static void put_members(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    struct call_run *run = call_run_of(source);
    uint32_t members = call_step(run, STEP_MEMBERS);
    struct span id = sql_row_bytes(run->unit, call_step(run, STEP_CONVOS), source->row, 0);
    struct field_source inner = *source;
    int64_t total = 0;

    tr_assert(run->next <= call_rows(run, STEP_MEMBERS));
    inner.list = &member_list;
    json_put_array(writer, field->fields[0].name);
    while (run->next < call_rows(run, STEP_MEMBERS) &&
           span_equal(sql_row_bytes(run->unit, members, run->next, 0), id)) {
        total = sql_row_int(run->unit, members, run->next, 5);
        inner.row = run->next++;
        json_put_object(writer, NULL);
        field_put_json(writer, member_fields, &inner);
        json_put_end(writer);
    }
    json_put_end(writer);
    json_put_int(writer, field->fields[1].name, total);
}

const struct call call_get_convos = {
    .params = PARAMS(PARAM_LIMIT(100, 50), PARAM_CURSOR),
    .steps = CALL_STEPS([STEP_CONVOS] = STEP(convo_list, "@caller cursor limit"),
        [STEP_MEMBERS] = STEP(convo_list_members, "@caller cursor limit #", WITH(MEMBERS_MAX))),
    .fields = FIELDS(
        ROWS("conversations", STEP_CONVOS, TEXT_AT("id", 0), TEXT_AT("groupId", 8),
            TEXT_AT("creator", 1),
            { NULL, FIELD_PUT, .put = put_members,
                .fields =
                    FIELDS(LIST("members", .fields = member_fields), INT_AT("memberCount", 5)) },
            INT_AT("epoch", 2), TEXT_AT("cipherSuite", 3), TIME_AT("createdAt", 4),
            TIME_AT("lastMessageAt", 5),
            OBJECT("metadata", TEXT_AT("name", 6, OPTIONAL), TEXT_AT("description", 7, OPTIONAL))),
        CURSOR_OF(STEP_CONVOS, 0)),
};
