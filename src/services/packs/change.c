/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/change.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/packs/catalogue_private.h"

static void copy_text(char *to, size_t size, struct span text)
{
    size_t length = text.size < size ? text.size : size - 1;

    memcpy(to, text.at == NULL ? "" : text.at, length);
    to[length] = '\0';
}

struct change *change_new(struct http_request *request, const struct change_kind *kind)
{
    const struct packs_call *call = packs_call(request);
    struct change *change = base_calloc(sizeof *change);

    if (change != NULL && call->claims != NULL) {
        change->claims = auth_claims_create(call->claims);
        if (change->claims == NULL) {
            base_free(change);
            change = NULL;
        }
    }
    if (change == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    atomic_init(&change->holders, 1);
    change->kind = kind;
    change->packs = call->packs;
    copy_text(change->actor, sizeof change->actor, call->actor);
    return change;
}

void change_unref(struct change *change)
{
    if (change == NULL || atomic_fetch_sub_explicit(&change->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (change->kind->finish != NULL)
        change->kind->finish(change);
    auth_claims_unref(change->claims);
    buffer_free(&change->answer);
    base_free(change);
}

bool change_read_path(struct http_request *request, struct change *change)
{
    struct span name = http_path_part(request, "name");
    struct span version = http_path_part(request, "version");
    struct span id = http_path_part(request, "id");

    if (name.at != NULL && !pack_name_is_valid(name)) {
        http_respond_error(request, 404, "PackNotFound", "there is no such pack");
    } else if (version.at != NULL && !pack_version_is_valid(version)) {
        http_respond_error(request, 404, "VersionNotFound", "this pack has no such version");
    } else if (id.size > RELEASE_ID_SIZE) {
        http_respond_error(request, 404, "ReleaseNotFound", "there is no such release");
    } else {
        copy_text(change->pack, sizeof change->pack, name);
        copy_text(change->version, sizeof change->version, version);
        copy_text(change->release, sizeof change->release, id);
        return true;
    }
    change_unref(change);
    return false;
}

/* ---- asking --------------------------------------------------------------------------------- */

void change_ask_then(struct http_request *request, struct change *change, http_then_fn then)
{
    struct packs_call *call = packs_call(request);
    struct change_message message = { change };

    atomic_fetch_add_explicit(&change->holders, 1, memory_order_relaxed);
    call->data = change;
    if (http_ask(request, call->packs->catalogue, &message, sizeof message, then) == 0)
        return;
    call->data = NULL;
    change_unref(change);
    change_unref(change);
    http_respond_shed(request, 503, 1, "busy");
}

static void respond_refused(struct http_request *request, struct change *change)
{
    if (change->status == 504)
        http_respond_lost(request, SQL_EUNKNOWN, true, change->label);
    else if (change->status == 503)
        http_respond_shed(request, 503, 1, change->label);
    else if (change->answer.size > 0)
        http_respond_buffer(request, change->status, "application/json", &change->answer);
    else
        http_respond_error(request, change->status, change->label, change->text);
}

struct change *change_take(struct http_request *request, const struct tr_event *event)
{
    struct packs_call *call = packs_call(request);
    struct change *change = call->data;

    call->data = NULL;
    if (event->status == 0 && change->status >= 200 && change->status < 300)
        return change;
    if (event->status == 0 && change->status != 0)
        respond_refused(request, change);
    else
        http_respond_lost(request, event->status, !change->kind->is_read, "catalogue");
    change_unref(change);
    return NULL;
}

static void answered(struct http_request *request, const struct tr_event *event)
{
    struct change *change = change_take(request, event);

    if (change == NULL)
        return;
    http_respond_buffer(request, change->status, "application/json", &change->answer);
    change_unref(change);
}

void change_ask(struct http_request *request, struct change *change)
{
    change_ask_then(request, change, answered);
}

/* ---- planning ------------------------------------------------------------------------------- */

void change_refuse(struct change *change, unsigned status, const char *label, const char *text)
{
    if (change->status != 0)
        return;
    change->status = status;
    change->label = label;
    (void)snprintf(change->text, sizeof change->text, "%s", text);
}

void change_done(struct change *change)
{
    if (change->status == 0)
        change->status = 200;
}

const struct pack *change_pack(struct change *change, const struct packs_view *view)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(change->pack));

    if (pack == NULL)
        change_refuse(change, 404, "PackNotFound", "there is no such pack");
    return pack;
}

const struct pack_version *change_version(struct change *change, const struct pack *pack)
{
    const struct pack_version *version = catalogue_any_version(pack, span_of(change->version));

    if (version == NULL)
        change_refuse(change, 404, "VersionNotFound", "this pack has no such version");
    return version;
}

const struct release *change_release(struct change *change, const struct packs_view *view)
{
    const struct release *release = catalogue_release(view, span_of(change->release));

    if (release == NULL)
        change_refuse(change, 404, "ReleaseNotFound", "there is no such release");
    return release;
}
