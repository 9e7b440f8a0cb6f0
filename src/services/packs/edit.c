/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/edit.h"

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

struct edit *edit_create(struct http_request *request, const struct edit_kind *kind)
{
    const struct packs_request *call = packs_request_of(request);
    struct edit *edit = base_calloc(sizeof *edit);

    if (edit != NULL && call->claims != NULL) {
        edit->claims = auth_claims_create(call->claims);
        if (edit->claims == NULL) {
            base_free(edit);
            edit = NULL;
        }
    }
    if (edit == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    atomic_init(&edit->holders, 1);
    edit->kind = kind;
    edit->packs = call->packs;
    copy_text(edit->actor, sizeof edit->actor, call->actor);
    return edit;
}

void edit_unref(struct edit *edit)
{
    if (edit == NULL || atomic_fetch_sub_explicit(&edit->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (edit->kind->finish != NULL)
        edit->kind->finish(edit);
    auth_claims_unref(edit->claims);
    buffer_free(&edit->answer);
    base_free(edit);
}

bool edit_read_path(struct http_request *request, struct edit *edit)
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
        copy_text(edit->pack, sizeof edit->pack, name);
        copy_text(edit->version, sizeof edit->version, version);
        copy_text(edit->release, sizeof edit->release, id);
        return true;
    }
    edit_unref(edit);
    return false;
}

/* ---- asking --------------------------------------------------------------------------------- */

void edit_ask_then(struct http_request *request, struct edit *edit, http_then_fn then)
{
    struct packs_request *call = packs_request_of(request);
    struct edit_message message = { edit };

    atomic_fetch_add_explicit(&edit->holders, 1, memory_order_relaxed);
    call->data = edit;
    if (http_ask(request, call->packs->catalogue, &message, sizeof message, then) == 0)
        return;
    call->data = NULL;
    edit_unref(edit);
    edit_unref(edit);
    http_respond_shed(request, 503, 1, "busy");
}

static void respond_refused(struct http_request *request, struct edit *edit)
{
    if (edit->status == 504)
        http_respond_lost(request, SQL_EUNKNOWN, true, edit->label);
    else if (edit->status == 503)
        http_respond_shed(request, 503, 1, edit->label);
    else if (edit->answer.size > 0)
        http_respond_buffer(request, edit->status, "application/json", &edit->answer);
    else
        http_respond_error(request, edit->status, edit->label, edit->text);
}

struct edit *edit_take(struct http_request *request, const struct tr_event *event)
{
    struct packs_request *call = packs_request_of(request);
    struct edit *edit = call->data;

    call->data = NULL;
    if (event->status == 0 && edit->status >= 200 && edit->status < 300)
        return edit;
    if (event->status == 0 && edit->status != 0)
        respond_refused(request, edit);
    else
        http_respond_lost(request, event->status, !edit->kind->is_read, "catalogue");
    edit_unref(edit);
    return NULL;
}

static void answered(struct http_request *request, const struct tr_event *event)
{
    struct edit *edit = edit_take(request, event);

    if (edit == NULL)
        return;
    http_respond_buffer(request, edit->status, "application/json", &edit->answer);
    edit_unref(edit);
}

void edit_ask(struct http_request *request, struct edit *edit)
{
    edit_ask_then(request, edit, answered);
}

/* ---- planning ------------------------------------------------------------------------------- */

void edit_refuse(struct edit *edit, unsigned status, const char *label, const char *text)
{
    if (edit->status != 0)
        return;
    edit->status = status;
    edit->label = label;
    (void)snprintf(edit->text, sizeof edit->text, "%s", text);
}

void edit_done(struct edit *edit)
{
    if (edit->status == 0)
        edit->status = 200;
}

const struct pack *edit_pack(struct edit *edit, const struct packs_view *view)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));

    if (pack == NULL)
        edit_refuse(edit, 404, "PackNotFound", "there is no such pack");
    return pack;
}

const struct pack_version *edit_version(struct edit *edit, const struct pack *pack)
{
    const struct pack_version *version = catalogue_any_version(pack, span_of(edit->version));

    if (version == NULL)
        edit_refuse(edit, 404, "VersionNotFound", "this pack has no such version");
    return version;
}

const struct release *edit_release(struct edit *edit, const struct packs_view *view)
{
    const struct release *release = catalogue_release(view, span_of(edit->release));

    if (release == NULL)
        edit_refuse(edit, 404, "ReleaseNotFound", "there is no such release");
    return release;
}
