/* SPDX-License-Identifier: Apache-2.0 */
/* convo_api.c: conversations over HTTP: create, look, and everything that moves the epoch. The
 * older calls (addMembers, removeMember, leaveConvo, processExternalCommit) are submitCommit with
 * another body. */
#include <string.h>

#include "base/alloc.h"
#include "json/json_write.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/bundle.h"
#include "services/delivery/api/invite_api.h"
#include "services/delivery/api/recipients.h"
#include "services/delivery/api/text.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/db_query.h"

/* ---- lists of names ------------------------------------------------------------------------- */

static void read_adds(struct api_body *body, const char *name, uint32_t count_max)
{
    const struct json *list = json_may_array(&body->expect, name, 0, count_max);
    struct job *job = body->job;
    size_t index = 0;

    if (json_count(list) == 0)
        return;
    job->adds = base_calloc(json_count(list) * sizeof *job->adds);
    if (job->adds == NULL) {
        job->decoded.failed = TR_ENOMEM;
        return;
    }
    for (struct json_iter it = json_iterate(list); json_next(&it); index++)
        job->adds[job->add_count++].did =
            json_item_string(&body->expect, name, index, it.value, 8, 255);
}

static bool names_twice(const struct job *job)
{
    for (uint32_t i = 0; i < job->add_count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (span_equal(job->adds[i].did, job->adds[k].did))
                return true;
    return false;
}

static void remove_one(struct job *job, struct span did)
{
    job->removes = base_calloc(sizeof *job->removes);
    if (job->removes == NULL)
        job->decoded.failed = TR_ENOMEM;
    else
        job->removes[job->remove_count++] = did;
}

/* ---- commits -------------------------------------------------------------------------------- */

/* Who joins by itself joins as itself: its DID, or a device of it. */
static bool is_own_leaf(const struct mls_leaf *leaf, struct span did)
{
    if (leaf->credential != MLS_CREDENTIAL_BASIC || leaf->identity.size < did.size ||
        memcmp(leaf->identity.at, did.at, did.size) != 0)
        return false;
    return leaf->identity.size == did.size || leaf->identity.at[did.size] == '#';
}

/* What the bytes are. NULL, or what is wrong. */
static const char *read_commit(struct job *job)
{
    const char *why;

    job_hash_commit(job);
    if (job->bytes.size == 0)
        return NULL;
    why = mls_message_read(job->bytes, &job->mls);
    if (why == NULL)
        why = mls_message_check(&job->mls);
    if (why != NULL)
        return why;
    if (job->mls.wire != MLS_PUBLIC && job->mls.wire != MLS_PRIVATE)
        return "this message is no commit";
    if (job->mls.content != MLS_COMMIT)
        return "this message is no commit";
    if (job->is_external != (job->mls.wire == MLS_PUBLIC && job->mls.sender == MLS_NEW_COMMIT))
        return job->is_external ? "this is not an external commit"
                                : "an external commit goes to processExternalCommit";
    if (job->is_external && !is_own_leaf(&job->mls.commit.path_leaf, job->claims->issuer))
        return "the leaf of this external commit is somebody else's";
    return NULL;
}

SQL_STATEMENT(find_package, "SELECT did, device FROM key_packages WHERE ref = $1");

static void commit_answered(struct http_request *request, const struct tr_event *event);

static void send_job(struct http_request *request, struct job *job)
{
    struct api_body body = { .job = job };

    api_send(request, &body, job->kind == JOB_CREATE ? api_answered : commit_answered);
}

/* The owners of the references, in the job's own memory: the unit goes away. */
static bool take_owners(struct job *job, const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < job->add_count; i++) {
        struct span did, device;

        if (sql_unit_rows(unit, i) != 1)
            return false;
        did = sql_row_bytes(unit, i, 0, 0);
        device = sql_row_bytes(unit, i, 0, 1);
        buffer_span(&job->decoded, did);
        buffer_span(&job->decoded, device);
        job->adds[i].did.size = did.size;
        job->adds[i].device.size = device.size;
    }
    return true;
}

/* The buffer may have moved while it grew: point into it at the end. */
static void point_owners(struct job *job, size_t from)
{
    const char *at = job->decoded.bytes + from;

    for (uint32_t i = 0; i < job->add_count; i++) {
        job->adds[i].did.at = at;
        at += job->adds[i].did.size;
        job->adds[i].device.at = at;
        at += job->adds[i].device.size;
    }
}

static void owners_found(struct http_request *request, const struct tr_event *event);

static void drop_job(void *job)
{
    job_unref(job);
}

static void find_owners(struct http_request *request, struct job *job)
{
    struct sql_unit *unit = sql_unit_create(0);

    for (uint32_t i = 0; unit != NULL && i < job->add_count; i++) {
        sql_unit_step(unit, &find_package, SQL_ROWS_ANY);
        sql_unit_blob(unit, job->adds[i].reference.at, job->adds[i].reference.size);
    }
    db_query_run_with(request, http_service(request), unit, true, owners_found, job, drop_job);
}

static void owners_found(struct http_request *request, const struct tr_event *event)
{
    struct job *job = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    size_t op_from, from;
    bool is_known;

    if (unit == NULL) {
        job_unref(job);
        return;
    }
    op_from = job->op.at == NULL ? 0 : (size_t)(job->op.at - job->decoded.bytes);
    from = job->decoded.size;
    is_known = take_owners(job, unit);
    db_query_end(request);
    if (!is_known) {
        http_respond_error(request, 404, "KeyPackageNotFound",
            "a Welcome names a key package this server did not hand out");
        job_unref(job);
        return;
    }
    if (job->decoded.failed == 0) {
        point_owners(job, from);
        if (job->op.at != NULL)
            job->op.at = job->decoded.bytes + op_from;
        if (!recipients_are_named(job)) {
            http_respond_error(
                request, 400, "WelcomeMismatch", "the Welcomes are for others than the list says");
            job_unref(job);
            return;
        }
    }
    send_job(request, job);
}

/* Whom the Welcomes are for, if that has to be known. */
static void find_added(struct http_request *request, struct job *job)
{
    if (job->welcome_count > 0 && job->add_count > 0)
        find_owners(request, job);
    else
        send_job(request, job);
}

/* What assisted mode does not take. NULL, or the label of why, with the sentence. */
static const char *check_assisted(const struct job *job, const char **ret_why)
{
    if (job->kind == JOB_COMMIT && job->bytes.size == 0)
        return NULL; /* numbered, if it may be: the conversation knows */
    if (job->kind == JOB_COMMIT && (job->mls.wire != MLS_PUBLIC || !bundle_is_public(job))) {
        *ret_why = "in assisted mode commits and proposals are public messages";
        return "PublicHandshakeRequired";
    }
    if (job->group_info.size == 0) {
        *ret_why = "in assisted mode a group info, with the ratchet tree, goes with it";
        return "GroupInfoRequired";
    }
    return NULL;
}

/* From here on every call is the same: read, check on the pool, find the added, submit. */
static void submit(struct http_request *request, struct api_body *body)
{
    struct delivery *delivery = http_service(request);
    struct job *job = body->job;
    const char *why, *label;

    if (body->expect.failed) {
        api_refuse(request, body, 400, "InvalidRequest", body->expect.message);
        return;
    }
    why = job->kind == JOB_COMMIT ? read_commit(job) : NULL;
    if (why != NULL) {
        api_refuse(request, body, 400, "InvalidCommit", why);
        return;
    }
    why = job->kind == JOB_COMMIT ? bundle_check(job) : NULL;
    if (why != NULL) {
        api_refuse(request, body, 400, "InvalidMessage", why);
        return;
    }
    label = delivery->mode == DELIVERY_ASSISTED ? check_assisted(job, &why) : NULL;
    if (label != NULL) {
        api_refuse(request, body, 400, label, why);
        return;
    }
    why = recipients_read(job);
    if (why != NULL) {
        api_refuse(request, body, 400, "InvalidWelcome", why);
        return;
    }
    if (!recipients_are_hashed(job)) {
        api_refuse(request, body, 400, "WelcomeMismatch",
            "the Welcomes are for other key packages than keyPackageHashes says");
        return;
    }
    json_doc_free(&body->doc);
    api_check(request, job, find_added);
}

/* Every shape an answer to a moved epoch has in the older calls. */
static void commit_answered(struct http_request *request, const struct tr_event *event)
{
    struct job *job = api_job(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (job == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_bool(&writer, "ok", true);
    json_put_int(&writer, "newEpoch", (int64_t)job->result_epoch);
    json_put_int(&writer, "epochHint", (int64_t)job->result_epoch);
    json_put_int(&writer, "epoch", (int64_t)job->result_epoch);
    json_put_int(&writer, "seq", (int64_t)job->result_seq);
    if (job->is_external)
        delivery_put_time(&writer, "rejoinedAt", job->result_ms);
    json_put_end(&writer);
    if (answer.failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", &answer);
    buffer_free(&answer);
    api_end(request);
}

/* ---- the calls ------------------------------------------------------------------------------ */

static void read_common(struct api_body *body, const char *commit_name)
{
    struct job *job = body->job;

    job->convo = json_need_string(&body->expect, "convoId", 1, JOB_CONVO_SIZE_MAX);
    if (body->raw_name != NULL) {
        bundle_read_mls(body);
    } else {
        job->bytes = api_may_bytes(body, commit_name, COMMIT_SIZE_MAX);
        job->group_info = api_may_bytes(body, "groupInfo", GROUP_INFO_SIZE_MAX);
    }
    api_set_op(body, "op", json_may_string(&body->expect, "idempotencyKey", 1, 128));
}

void api_add_members(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_mls(request, JOB_COMMIT, "commit", &body))
        return;
    read_common(&body, "commit");
    read_adds(&body, "didList", JOB_MEMBERS_MAX);
    bundle_add_welcome(&body, api_may_bytes(&body, "welcomeMessage", WELCOME_SIZE_MAX));
    recipients_read_hashes(&body);
    if (body.job->add_count == 0)
        json_expect_fail(&body.expect, "didList", "must name somebody");
    if (names_twice(body.job))
        json_expect_fail(&body.expect, "didList", "must not name anybody twice");
    submit(request, &body);
}

void api_remove_member(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_mls(request, JOB_COMMIT, "commit", &body))
        return;
    read_common(&body, "commit");
    remove_one(body.job, json_need_string(&body.expect, "targetDid", 8, 255));
    if (body.job->remove_count == 1 && span_equal(body.job->removes[0], body.job->claims->issuer)) {
        api_refuse(request, &body, 400, "CannotRemoveSelf", "to leave, call leaveConvo");
        return;
    }
    submit(request, &body);
}

/* A client may say who leaves; everybody leaves for themselves. */
static void read_leaver(struct api_body *body)
{
    struct span did = json_may_string(&body->expect, "targetDid", 8, 255);

    if (did.at != NULL && !span_equal(did, body->job->claims->issuer))
        json_expect_fail(
            &body->expect, "targetDid", "must be the caller: removeMember removes others");
}

void api_leave_convo(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_mls(request, JOB_COMMIT, "commit", &body))
        return;
    read_common(&body, "commit");
    read_leaver(&body);
    body.job->is_leave = true;
    remove_one(body.job, body.job->claims->issuer);
    submit(request, &body);
}

void api_process_external_commit(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_mls(request, JOB_COMMIT, "commit", &body))
        return;
    read_common(&body, "externalCommit");
    invite_read_secret(&body);
    body.job->is_external = true;
    body.job->adds = base_calloc(sizeof *body.job->adds);
    if (body.job->adds == NULL)
        body.job->decoded.failed = TR_ENOMEM;
    else
        body.job->adds[body.job->add_count++].did = body.job->claims->issuer;
    if (body.job->bytes.size == 0)
        json_expect_fail(&body.expect, "externalCommit", "must be there");
    submit(request, &body);
}

/* Whom the commit removes, each once. */
static void read_removes(struct api_body *body)
{
    const struct json *list = json_may_array(&body->expect, "removes", 0, JOB_MEMBERS_MAX);
    struct job *job = body->job;
    size_t index = 0;

    if (json_count(list) == 0)
        return;
    job->removes = base_calloc(json_count(list) * sizeof *job->removes);
    if (job->removes == NULL) {
        job->decoded.failed = TR_ENOMEM;
        return;
    }
    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct span did = json_item_string(&body->expect, "removes", index, it.value, 8, 255);

        for (uint32_t i = 0; i < job->remove_count; i++)
            if (span_equal(job->removes[i], did))
                json_expect_fail(&body->expect, "removes", "must not name anybody twice");
        job->removes[job->remove_count++] = did;
    }
}

void api_submit_commit(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_mls(request, JOB_COMMIT, "commit", &body))
        return;
    read_common(&body, "commit");
    if (body.job->bytes.size == 0)
        json_expect_fail(&body.expect, "commit", "must be there and not be empty");
    if (body.raw_name == NULL)
        bundle_read_json(&body);
    read_removes(&body);
    submit(request, &body);
}

void api_create_convo(struct http_request *request)
{
    struct api_body body;
    struct job *job;

    if (!api_begin(request, JOB_CREATE, &body))
        return;
    job = body.job;
    job->convo = json_need_string(&body.expect, "groupId", 1, JOB_CONVO_SIZE_MAX);
    job->suite = json_need_string(&body.expect, "cipherSuite", 1, 63);
    job->epoch = (uint64_t)json_may_int(&body.expect, "currentEpoch", 0, INT64_C(1) << 53, 0);
    job->group_info = api_may_bytes(&body, "groupInfo", GROUP_INFO_SIZE_MAX);
    if (json_get(body.expect.object, "metadata") != NULL) {
        struct json_expect metadata = json_expect_member(&body.expect, "metadata");

        job->name = json_may_string(&metadata, "name", 0, 128);
        job->description = json_may_string(&metadata, "description", 0, 512);
    }
    read_adds(&body, "initialMembers", JOB_MEMBERS_MAX);
    bundle_add_welcome(&body, api_may_bytes(&body, "welcomeMessage", WELCOME_SIZE_MAX));
    recipients_read_hashes(&body);
    api_set_op(&body, "op", json_may_string(&body.expect, "idempotencyKey", 1, 128));
    if (!body.expect.failed && mls_suite_named(job->suite) == NULL) {
        api_refuse(
            request, &body, 400, "InvalidCipherSuite", "this cipher suite is not known here");
        return;
    }
    if (names_twice(job))
        json_expect_fail(&body.expect, "initialMembers", "must not name anybody twice");
    for (uint32_t i = 0; i < job->add_count; i++)
        if (span_equal(job->adds[i].did, job->claims->issuer))
            json_expect_fail(&body.expect, "initialMembers", "must not name the creator");
    submit(request, &body);
}

void api_get_convo(struct http_request *request)
{
    struct api_body body;

    if (api_begin_query(request, JOB_CONVO, &body))
        api_send(request, &body, api_answered);
}

static void put_epoch(struct json_writer *writer, const struct job *job)
{
    json_put_string(writer, "convoId", job->convo);
    json_put_int(writer, "currentEpoch", (int64_t)job->result_epoch);
}

static void epoch_answered(struct http_request *request, const struct tr_event *event)
{
    api_answer_with(request, event, put_epoch);
}

void api_get_epoch(struct http_request *request)
{
    struct api_body body;

    if (api_begin_query(request, JOB_EPOCH, &body))
        api_send(request, &body, epoch_answered);
}

void api_get_group_info(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_query(request, JOB_CONTEXT, &body) || !invite_read_hash(request, &body))
        return;
    body.job->wants_mls = api_wants_mls(request);
    api_send(request, &body, api_answered);
}

void api_update_group_info(struct http_request *request)
{
    struct mls_group_info info = { 0 };
    struct api_body body;
    const char *why;

    if (!api_begin_convo(request, JOB_GROUP_INFO, &body))
        return;
    body.job->group_info = api_need_bytes(&body, "groupInfo", GROUP_INFO_SIZE_MAX);
    body.job->epoch = (uint64_t)json_need_int(&body.expect, "epoch", 0, INT64_MAX);
    why = body.expect.failed ? NULL : mls_group_info_read(body.job->group_info, &info);
    if (why == NULL && !body.expect.failed && info.context.epoch != body.job->epoch)
        why = "epoch is not the one inside the group info";
    if (why != NULL || body.expect.failed) {
        api_refuse(request, &body, 400, why != NULL ? "InvalidGroupInfo" : "InvalidRequest",
            why != NULL ? why : body.expect.message);
        return;
    }
    json_doc_free(&body.doc);
    api_check(request, body.job, send_job);
}
