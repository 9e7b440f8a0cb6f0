/* SPDX-License-Identifier: Apache-2.0 */
/* http1.h: the functions that the files of HTTP/1 share. */
#ifndef HTTP_HTTP1_H
#define HTTP_HTTP1_H

#include "http/request.h"

/* Append the request's answer to the output, and decide whether the connection stays open after
 * it. */
void http1_answer(struct http_request *request);
/* Append the answer to a request that is shed: 503 with Retry-After, the same bytes each time. */
void http1_answer_shed(struct http_request *request);
/* Take no more requests: send what is left, then close. With `linger`, read until the peer closes,
 * so that the answer arrives. Other transports end with it too. */
void http1_start_closing(struct http_connection *connection, bool linger);
/* Release the memory of input and request. */
void http1_release_memory(struct http_connection *connection);

#endif
