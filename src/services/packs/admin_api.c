/* SPDX-License-Identifier: Apache-2.0 */
/* admin_api.c: the calls of administrators that read: packs and releases in any state, and running
 * downloads, which can be cancelled here. Edits of the catalogue are in the *_store.c files. */
#include <string.h>

#include "services/common/param.h"
#include "services/packs/api.h"
#include "services/packs/pack_json.h"
#include "services/packs/transfer.h"

enum { PAGE_LIMIT, PAGE_AFTER };
static const struct param page_params[] = {
    [PAGE_LIMIT] = { "limit", PARAM_INT, .min = 1, .max = 1000, .fallback = 100,
        .rule = PARAM_NUMBER_RULE },
    [PAGE_AFTER] = { "after", PARAM_TEXT, .min = 0 },
    PARAM_LAST,
};

bool put_packs(struct packs_read *read)
{
    const struct packs_view *view = read->view;
    struct param_value page[PARAMS_MAX];
    const struct pack *last = NULL;
    uint32_t i = 0;

    if (!param_read_rest_query(read->request, page_params, page))
        return false;
    while (i < view->pack_count && page[PAGE_AFTER].text.at != NULL &&
           strcmp(view->packs[i].name, page[PAGE_AFTER].text.at) <= 0)
        i++;
    json_put_array(&read->writer, "packs");
    for (int64_t left = page[PAGE_LIMIT].number; i < view->pack_count && left > 0; i++, left--) {
        last = &view->packs[i];
        put_pack(&read->writer, last);
    }
    json_put_end(&read->writer);
    if (i < view->pack_count && last != NULL)
        json_put_text(&read->writer, "after", last->name);
    json_put_int(&read->writer, "stored_bytes", (int64_t)view->stored_bytes);
    return true;
}

bool put_one_pack(struct packs_read *read)
{
    const struct pack *pack = catalogue_any_pack(read->view, http_path_part(read->request, "name"));

    if (pack == NULL)
        packs_respond_no_pack(read->request);
    else
        put_pack_members(&read->writer, pack, true);
    return pack != NULL;
}

bool put_releases(struct packs_read *read)
{
    json_put_array(&read->writer, "releases");
    for (uint32_t i = read->view->release_count; i > 0; i--) { /* newest first */
        const struct release *release = &read->view->releases[i - 1];

        json_put_object(&read->writer, NULL);
        json_put_text(&read->writer, "release_id", release->id);
        json_put_text(&read->writer, "name", release->name);
        json_put_text(&read->writer, "status", release_states[release->state]);
        json_put_int(&read->writer, "artifact_count", release->artifact_count);
        json_put_int(&read->writer, "created_ms", release->created_ms);
        json_put_end(&read->writer);
    }
    json_put_end(&read->writer);
    return true;
}

bool put_one_release(struct packs_read *read)
{
    const struct release *release =
        catalogue_release(read->view, http_path_part(read->request, "id"));

    if (release == NULL)
        http_respond_error(read->request, 404, "ReleaseNotFound", RELEASE_NOT_FOUND);
    else
        put_release_members(&read->writer, release, false);
    return release != NULL;
}

/* ---- downloads ------------------------------------------------------------------------------ */

static void put_transfer(
    struct json_writer *writer, const struct transfer_info *info, uint64_t now_ns)
{
    json_put_object(writer, NULL);
    json_put_int(writer, "id", (int64_t)info->id);
    json_put_text(writer, "pack", info->pack);
    json_put_text(writer, "version", info->version);
    if (info->user[0] != '\0')
        json_put_text(writer, "user", info->user);
    json_put_text(writer, "address", info->address);
    json_put_int(writer, "size_bytes", (int64_t)info->size);
    json_put_int(writer, "sent_bytes", (int64_t)info->sent);
    json_put_int(writer, "age_ms", (int64_t)((now_ns - info->began_ns) / 1000000));
    json_put_end(writer);
}

static const struct param transfer_params[] = {
    { "after", PARAM_INT, .max = INT64_MAX, .rule = PARAM_NUMBER_RULE },
    PARAM_LAST,
};

bool put_transfers(struct packs_read *read)
{
    const struct tr_env *env = read->packs->calls.env;
    struct transfer_info *infos = http_alloc(read->request, TRANSFER_LIST_MAX * sizeof *infos);
    struct param_value after[PARAMS_MAX];
    uint32_t count;

    if (!param_read_rest_query(read->request, transfer_params, after))
        return false;
    if (infos == NULL) {
        http_respond_shed(read->request, 503, 1, "flights");
        return false;
    }
    count = transfers_list(read->packs->transfers, (uint64_t)after[0].number, infos);
    json_put_array(&read->writer, "flights");
    for (uint32_t i = 0; i < count; i++)
        put_transfer(&read->writer, &infos[i], env->now_ns(env->data));
    json_put_end(&read->writer);
    if (count == TRANSFER_LIST_MAX)
        json_put_int(&read->writer, "next", (int64_t)infos[count - 1].id);
    return true;
}

void api_cancel_transfer(struct http_request *request)
{
    const struct packs *packs = http_service(request);
    uint64_t id;

    if (!span_u64(http_path_part(request, "id"), &id) || transfers_cancel(packs->transfers, id) < 0)
        http_respond_error(request, 404, "DownloadNotFound", "No running download has this id.");
    else
        http_respond(request, 204, NULL, (struct span){ NULL, 0 });
}
