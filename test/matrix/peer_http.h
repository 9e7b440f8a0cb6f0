/* SPDX-License-Identifier: Apache-2.0 */
/* peer_http.h: requests of the test peer by libcurl: one that the caller waits for, or one in the
 * background beside it. */
#ifndef TEST_MATRIX_PEER_HTTP_H
#define TEST_MATRIX_PEER_HTTP_H

#include <curl/curl.h>

#include "matrix/client/session.h"

/* One request at a time; its connection stays open for the next. {0} is a fresh one. */
struct peer_transfer {
    CURL *easy;
    struct curl_slist *headers;
    struct buffer url;
    struct buffer body; /* of the answer */
    char retry_after[32];
};

void peer_transfer_fini(struct peer_transfer *transfer);
/* Prepare a request, with the session's token if its call has one. `type` is that of its body. */
void peer_transfer_init(struct peer_transfer *transfer, const struct mxclient_session *session,
    const struct mxclient_request *request, const char *type);
/* Return the answer of a transfer that has ended. Its texts stay until the next request. */
struct mxclient_answer peer_transfer_answer(struct peer_transfer *transfer, CURLcode code);
/* Run a prepared request to its end. */
struct mxclient_answer peer_transfer_run(struct peer_transfer *transfer);

/* Print a message to stderr and end the process. */
_Noreturn void peer_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
