/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/edit.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/packs/pack_json.h"

struct edit *edit_create(struct http_request *request, const struct edit_kind *kind)
{
    const struct packs_request *asked = packs_request_of(request);
    struct edit *edit = base_calloc(sizeof *edit);

    tr_assert(kind->plan != NULL);
    if (edit != NULL && asked->claims != NULL) {
        edit->claims = auth_claims_create(asked->claims);
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
    edit->packs = asked->packs;
    packs_copy(edit->actor, asked->actor);
    return edit;
}

struct edit *edit_ref(struct edit *edit)
{
    atomic_fetch_add_explicit(&edit->holders, 1, memory_order_relaxed);
    return edit;
}

void edit_unref(struct edit *edit)
{
    if (edit == NULL || atomic_fetch_sub_explicit(&edit->holders, 1, memory_order_acq_rel) != 1)
        return;
    auth_claims_unref(edit->claims);
    buffer_free(&edit->answer);
    base_free(edit->texts);
    base_free(edit->data);
    base_free(edit);
}

/* ---- reading the request -------------------------------------------------------------------- */

/* A name that cannot exist is 404, as if it were looked up. */
static bool read_path(struct http_request *request, struct edit *edit)
{
    struct span name = http_path_part(request, "name");
    struct span version = http_path_part(request, "version");
    struct span id = http_path_part(request, "id");

    if (name.at != NULL && !manifest_is_pack(name)) {
        http_respond_error(request, 404, "PackNotFound", PACK_NOT_FOUND);
    } else if (version.at != NULL && !manifest_is_version(version)) {
        http_respond_error(request, 404, "VersionNotFound", VERSION_NOT_FOUND);
    } else if (id.size > RELEASE_ID_SIZE) {
        http_respond_error(request, 404, "ReleaseNotFound", RELEASE_NOT_FOUND);
    } else {
        packs_copy(edit->pack, name);
        packs_copy(edit->version, version);
        packs_copy(edit->release, id);
        return true;
    }
    return false;
}

/* The texts point into the body, which goes with the request: copy them. Returns TR_ENOMEM. */
static int copy_texts(struct edit *edit)
{
    size_t size = 1;
    char *to;

    tr_assert(edit->texts == NULL);
    for (size_t i = 0; i < PARAMS_MAX; i++)
        size += edit->values[i].text.size;
    edit->texts = to = base_alloc(size);
    if (to == NULL)
        return TR_ENOMEM;
    for (size_t i = 0; i < PARAMS_MAX; i++) {
        struct span *text = &edit->values[i].text;

        if (text->at == NULL)
            continue;
        memcpy(to, text->at, text->size);
        text->at = to;
        to += text->size;
    }
    return 0;
}

static bool read_params(struct http_request *request, struct edit *edit)
{
    struct param_reader reader = { .request = request, .is_rest = true };
    const struct edit_kind *kind = edit->kind;
    int rc = 0;

    if (kind->params == NULL)
        return true;
    param_read_body(&reader, kind->params, edit->values);
    if (param_reader_refuse(&reader))
        return false;
    if (kind->read != NULL)
        rc = kind->read(edit, &reader.expect);
    if (!reader.expect.failed && rc == 0)
        rc = copy_texts(edit);
    reader.is_out_of_memory = rc < 0;
    if (param_reader_refuse(&reader))
        return false;
    param_reader_fini(&reader);
    return true;
}

/* ---- the call ------------------------------------------------------------------------------- */

void edit_respond(struct http_request *request, struct edit *edit)
{
    tr_assert(edit->status != 0);
    if (edit->status == 504)
        http_respond_lost(request, SQL_EUNKNOWN, true, edit->label);
    else if (edit->status == 503)
        http_respond_shed(request, 503, 1, edit->label);
    else if (edit->answer.size > 0)
        http_respond_buffer(request, edit->status, "application/json", &edit->answer);
    else
        http_respond_error(request, edit->status, edit->label, edit->text);
}

static void on_edited(struct http_request *request, const struct tr_event *event)
{
    struct packs_request *asked = packs_request_of(request);
    struct edit *edit = asked->data;

    tr_assert(edit != NULL);
    asked->data = NULL;
    if (event->status == 0 && edit->status != 0)
        edit_respond(request, edit);
    else
        http_respond_lost(request, event->status, true, "catalogue");
    edit_unref(edit);
}

void edit_call(struct http_request *request)
{
    struct packs_request *asked = packs_request_start(request);
    struct edit *edit = asked == NULL ? NULL : edit_create(request, http_route(request)->extra);
    struct edit_message message = { edit };

    if (edit == NULL)
        return;
    if (!read_path(request, edit) || !read_params(request, edit)) {
        edit_unref(edit);
        return;
    }
    asked->data = edit_ref(edit);
    if (http_ask(request, asked->packs->catalogue, &message, sizeof message, on_edited) == 0)
        return;
    asked->data = NULL;
    edit_unref(edit);
    edit_unref(edit);
    http_respond_shed(request, 503, 1, "busy");
}

/* ---- planning ------------------------------------------------------------------------------- */

void edit_refuse(struct edit *edit, unsigned status, const char *label, const char *text)
{
    tr_assert(status >= 400);
    tr_assert(label != NULL);
    if (edit->status != 0)
        return;
    edit->status = status;
    edit->label = label;
    edit->text = text;
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
        edit_refuse(edit, 404, "PackNotFound", PACK_NOT_FOUND);
    return pack;
}

const struct pack_version *edit_version(struct edit *edit, const struct pack *pack)
{
    const struct pack_version *version = catalogue_any_version(pack, span_of(edit->version));

    tr_assert(edit->version[0] != '\0'); /* the route or the body of such an edit names one */
    if (version == NULL)
        edit_refuse(edit, 404, "VersionNotFound", VERSION_NOT_FOUND);
    return version;
}

const struct release *edit_release(struct edit *edit, const struct packs_view *view)
{
    const struct release *release = catalogue_release(view, span_of(edit->release));

    if (release == NULL)
        edit_refuse(edit, 404, "ReleaseNotFound", RELEASE_NOT_FOUND);
    return release;
}

bool edit_answer_pack(
    const struct edit *edit, const struct packs_view *view, struct json_writer *writer)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));

    if (pack != NULL)
        put_pack_members(writer, pack, true);
    return pack != NULL;
}
