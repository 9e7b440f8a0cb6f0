/* SPDX-License-Identifier: Apache-2.0 */
/* engine_http.h: the engine's requests over HTTP. One transport belongs to one engine. */
#ifndef MATRIX_CLIENT_ENGINE_HTTP_H
#define MATRIX_CLIENT_ENGINE_HTTP_H

#include "http/client.h"
#include "matrix/client/engine.h"

struct mxengine_http;

/* Create the transport of one engine. The client is borrowed. TR_ENOMEM. */
int mxengine_http_create(struct http_client *client, struct mxengine_http **ret_http);
/* Null *http; NULL is fine. The engine has ended. */
void mxengine_http_destroy(struct mxengine_http **http);
/* Return the table for struct mxengine_options. */
struct mxengine_transport mxengine_http_transport(struct mxengine_http *http);

#endif
