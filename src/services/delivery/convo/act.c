/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/act.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/delivery.h"
#include "services/delivery/mls/commit_roster.h"

static void *part_at(struct act *act, size_t offset)
{
    return offset == 0 ? NULL : (char *)act + offset;
}

struct act *act_create(const struct act_type *type, const struct auth_claims *claims)
{
    size_t size = type->size == 0 ? sizeof(struct act) : type->size;
    struct act *act = base_calloc(size); /* the head is every payload's first member: acts.h */

    tr_assert(size >= sizeof *act);
    if (act == NULL)
        return NULL;
    act->claims = claims == NULL ? NULL : auth_claims_create(claims);
    if (claims != NULL && act->claims == NULL) {
        base_free(act);
        return NULL;
    }
    act->type = type;
    atomic_init(&act->holders, 1);
    act->content = part_at(act, type->content_at);
    act->members = part_at(act, type->members_at);
    act->info = part_at(act, type->info_at);
    return act;
}

void act_become(struct act *act, const struct act_type *type)
{
    tr_assert(act->type->payload == type->payload);
    act->type = type;
    act_forget(act);
}

struct act *act_ref(struct act *act)
{
    atomic_fetch_add_explicit(&act->holders, 1, memory_order_relaxed);
    return act;
}

void act_unref(struct act *act)
{
    if (act == NULL || atomic_fetch_sub_explicit(&act->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (act->content != NULL)
        buffer_free(&act->content->stored_id);
    if (act->members != NULL) {
        base_free(act->members->adds);
        base_free(act->members->removes);
        base_free(act->members->named);
        base_free(act->members->hashes);
    }
    if (act->info != NULL)
        commit_roster_destroy(act->info->roster);
    if (act->type->fini != NULL)
        act->type->fini(act);
    auth_claims_unref(act->claims);
    base_free(act->body);
    buffer_free(&act->decoded);
    buffer_free(&act->answer);
    base_free(act);
}

void act_fail(struct act *act, unsigned status, const char *label, const char *text)
{
    tr_assert(status >= 400);
    if (act->status != 0)
        return;
    act->status = status;
    act->label = label;
    (void)snprintf(act->text, sizeof act->text, "%s", text);
}

enum convo_plan act_refuse(struct act *act, unsigned status, const char *label, const char *text)
{
    act_fail(act, status, label, text);
    return CONVO_ANSWERED;
}

enum convo_plan act_refuse_stranger(struct act *act)
{
    return act_refuse(act, 403, "NotMember", "You are not a member of this conversation.");
}

void act_forget(struct act *act)
{
    act->status = 0;
    act->label = NULL;
}

void act_respond(struct http_request *request, struct act *act)
{
    const struct delivery *delivery = http_service(request);

    tr_assert(act->status != 0);
    if (act->status == 503 && act->is_in_doubt)
        http_respond_lost(request, SQL_EUNKNOWN, true, NULL);
    else if (act->status == 503 || act->status == 429)
        http_respond_shed(request, act->status, 1, act->label);
    else if (!call_may_answer(&delivery->calls, act->answer.size))
        http_respond_lost(request, TR_ENOMEM,
            act->status < 300 && http_route(request)->method != HTTP_GET, "answers");
    else if (act->answer.size > 0)
        http_respond_buffer(request, act->status,
            act->is_answer_mls ? "message/mls" : "application/json", &act->answer);
    else
        http_respond_error(request, act->status, act->label, act->text);
}

void act_envelope_drop(void *message)
{
    struct act *act = ((struct act_envelope *)message)->act;

    if (act != NULL && act->type == &subscribe_act_type)
        http_stream_end(act_subscribe(act)->stream, NULL, 1013);
    act_unref(act);
}
