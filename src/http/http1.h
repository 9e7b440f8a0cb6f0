/* SPDX-License-Identifier: Apache-2.0 */
/* http1.h: what the two halves of HTTP/1 share. */
#ifndef HTTP_HTTP1_H
#define HTTP_HTTP1_H

#include "http/request.h"

/* Put the request's answer into its connection's output, and decide whether the connection goes on
 * after it. */
void http1_answer(struct http_request *request);
/* The same for a request that is shed: 503 with Retry-After, the same bytes each time. */
void http1_answer_shed(struct http_request *request);
/* No more requests: send what is left, then close; `linger`: read on, so that it arrives. Also the
 * end of other transports. */
void http1_start_closing(struct http_connection *connection, bool linger);
/* Give back the memory of input and request. */
void http1_release_memory(struct http_connection *connection);

#endif
