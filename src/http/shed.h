/* SPDX-License-Identifier: Apache-2.0 */
/* shed.h: saying no before work is done, for less than the work would cost.
 *
 * A request has a place from when it first waits, or its body is awaited, until its answer. Places
 * are bounded twice: by limits.in_flight_max, and by how long requests have been waiting lately.
 * Any thread. */
#ifndef HTTP_SHED_H
#define HTTP_SHED_H

#include <stdbool.h>
#include <stdint.h>

#include "http/connection.h"

/* Is no place left? */
bool http_shed_is_full(const struct http_server *server);
/* What http_request_start does, and shed what has no place. */
void http_shed_start(struct http_request *request);
/* HTTP/1, when the head of a request is complete: if it must be shed, answer it without memory, id,
 * log line or time in a histogram, and return true. */
bool http_shed_quickly(struct http_request *request);
/* The request is about to be answered: what its time says about the places. */
void http_shed_learn(const struct http_request *request);

#endif
