/* SPDX-License-Identifier: Apache-2.0 */
#include "http/http.h"

/* To be replaced by the real thing: until then nobody is told a handshake worked. */
int http_websocket_begin(struct http_request *request, const struct http_stream_options *options,
    size_t receive_max, http_receive_fn receive, void *data, http_stream *ret_stream)
{
    (void)options;
    (void)receive_max;
    (void)receive;
    (void)data;
    (void)ret_stream;
    http_respond_error(request, 501, "NotImplemented", "use server-sent events");
    return TR_EUNSUPPORTED;
}
