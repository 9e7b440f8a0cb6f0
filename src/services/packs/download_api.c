/* SPDX-License-Identifier: Apache-2.0 */
/* download_api.c: which version a URL means; who looks at downloads and cancels them. */
#include "auth/rate_limit.h"
#include "json/json_write.h"
#include "services/packs/api.h"
#include "services/packs/download.h"
#include "services/packs/download_rate.h"
#include "services/packs/packs_request.h"
#include "services/packs/transfer.h"

/* Packs are for everybody: only who brings a token is asked who that is. How many downloads an
 * address may begin in a second, and have at once, is counted without a message to anybody. */
bool download_gate(struct http_request *request)
{
    const struct packs *packs = http_service(request);
    unsigned char key[17];
    size_t size;

    if (http_header(request, "Authorization").at != NULL)
        return auth_gate(request);
    size = rate_limit_address_key(http_peer(request), key);
    if (download_rate_take(packs->download_rate, (struct span){ (const char *)key, size },
            tr_now_ns(http_context(request))))
        return true;
    http_respond_shed(request, 429, 1, "address");
    return false;
}

/* Since when a pack's own URL has meant what it means now. A version that was rolled back to was
 * published before the one it replaces, so its own date would say that nothing is new; what counts
 * is when the pack changed, rounded up. Before that second has begun no date is told: another
 * version may become active in it, and who was told would take one for the other. */
static uint64_t changed_s(const struct packs *packs, const struct pack *pack)
{
    uint64_t now_s = packs->env->wall_ns(packs->env->data) / 1000000000;
    uint64_t seconds = (uint64_t)pack->changed_ms / 1000 + 1;

    return seconds <= now_s ? seconds : 0;
}

void api_download(struct http_request *request, void *state)
{
    struct span wanted = http_path_part(request, "version");
    const struct pack *pack =
        catalogue_pack(catalogue_view(state), http_path_part(request, "name"));
    const struct auth_claims *claims = auth_claims_of(request);
    const struct pack_version *version = NULL;
    struct download_options options = { .is_versioned = wanted.at != NULL };

    if (pack == NULL) {
        http_respond_error(request, 404, "PackNotFound", "there is no such pack");
        return;
    }
    version = wanted.at == NULL ? catalogue_active(pack) : catalogue_version(pack, wanted);
    if (version == NULL) {
        http_respond_error(request, 404, "VersionNotFound", "this pack has no such version");
        return;
    }
    if (claims != NULL)
        options.user = claims->issuer;
    options.modified_s =
        options.is_versioned ? (uint64_t)version->published_s : changed_s(state, pack);
    download_serve(request, state, version, &options);
}

/* ---- for administrators --------------------------------------------------------------------- */

static void listed(struct http_request *request, const struct tr_event *event)
{
    const struct transfer_info *infos = event->value;
    const struct packs *packs = packs_request_of(request)->packs;
    size_t count = event->status < 0 ? 0 : event->size / sizeof *infos;
    uint64_t now_ns = packs->env->now_ns(packs->env->data);
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);

    if (event->status < 0) {
        http_respond_shed(request, 503, 1, "flights");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_array(&writer, "flights");
    for (size_t i = 0; i < count; i++) {
        const struct transfer_info *info = &infos[i];

        json_put_object(&writer, NULL);
        json_put_int(&writer, "id", (int64_t)info->id);
        json_put_text(&writer, "pack", info->pack);
        json_put_text(&writer, "version", info->version);
        if (info->user[0] != '\0')
            json_put_text(&writer, "user", info->user);
        json_put_text(&writer, "address", info->address);
        json_put_int(&writer, "size_bytes", (int64_t)info->size);
        json_put_int(&writer, "sent_bytes", (int64_t)info->sent);
        json_put_int(&writer, "age_ms", (int64_t)((now_ns - info->began_ns) / 1000000));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    if (count == TRANSFER_LIST_MAX)
        json_put_int(&writer, "next", (int64_t)infos[count - 1].id);
    json_put_end(&writer);
    api_respond(request, &body);
}

void api_list_transfers(struct http_request *request, void *state)
{
    struct packs_request *call = packs_request_start(request, state);
    struct transfer_message message = { .kind = TRANSFER_LIST };
    struct span after;

    if (call == NULL)
        return;
    if (http_parameter(request, "after", &after) && !span_u64(after, &message.id)) {
        http_respond_error(request, 400, "InvalidRequest", "after is the id of a download");
        return;
    }
    if (http_ask(request, transfers_sender(call->packs->transfers), &message, sizeof message,
            listed) < 0)
        http_respond_shed(request, 503, 1, "flights");
}

static void cancelled(struct http_request *request, const struct tr_event *event)
{
    if (event->status == 0)
        http_respond(request, 204, NULL, (struct span){ NULL, 0 });
    else if (event->status == TR_ENOENT)
        http_respond_error(request, 404, "DownloadNotFound", "there is no such download now");
    else
        http_respond_shed(request, 503, 1, "flights");
}

void api_cancel_transfer(struct http_request *request, void *state)
{
    struct packs_request *call = packs_request_start(request, state);
    struct transfer_message message = { .kind = TRANSFER_CANCEL };

    if (call == NULL)
        return;
    if (!span_u64(http_path_part(request, "id"), &message.id))
        http_respond_error(request, 404, "DownloadNotFound", "there is no such download now");
    else if (http_ask(request, transfers_sender(call->packs->transfers), &message, sizeof message,
                 cancelled) < 0)
        http_respond_shed(request, 503, 1, "flights");
}
