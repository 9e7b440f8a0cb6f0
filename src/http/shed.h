/* SPDX-License-Identifier: Apache-2.0 */
/* shed.h: refuses requests under overload, before any work is done.
 *
 * A request occupies a place from its first wait, or from the start of its body, until its answer.
 * The number of places has two bounds: limits.in_flight_max, and one that follows how long recent
 * requests took. Any thread. */
#ifndef HTTP_SHED_H
#define HTTP_SHED_H

#include <stdbool.h>
#include <stdint.h>

#include "http/connection.h"

/* Returns true if no place is left. */
bool http_shed_is_full(const struct http_server *server);
/* Call http_request_start, and shed the request if it gets no place. */
void http_shed_start(struct http_request *request);
/* Shed an HTTP/1 request whose head is complete, if it gets no place. The answer needs no memory,
 * id, log line or histogram. Returns true if the request was shed. */
bool http_shed_quickly(struct http_request *request);
/* Adapt the places to the time that this request took. Call it when the request is answered. */
void http_shed_learn(const struct http_request *request);

#endif
