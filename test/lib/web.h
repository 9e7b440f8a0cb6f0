/* SPDX-License-Identifier: Apache-2.0 */
/* web.h: a client for tests: bytes out, the whole answer back. Blocks, with a limit: a server that
 * does not answer fails the case. */
#ifndef TEST_LIB_WEB_H
#define TEST_LIB_WEB_H

#include <stdbool.h>
#include <stddef.h>

struct web_answer {
    unsigned status; /* of the first answer; 0 if there was none */
    char *text;      /* everything that came, ended by a zero */
    size_t capacity; /* of text */
    size_t size;
    const char *body; /* into text */
};

/* A connection to "127.0.0.1:8080". */
int web_connect(const char *address);
void web_send(int fd, const char *text, size_t size);
/* Until the server closes. */
void web_receive(int fd, struct web_answer *ret_answer);
/* Until `text` has come (appending to *answer, which begins zeroed), or the server closes. True if
 * it came. */
bool web_receive_until(int fd, struct web_answer *answer, const char *text);
/* All of it, with Connection: close; headers end with \r\n each, may be "". */
struct web_answer web_ask(const char *address, const char *method, const char *path,
    const char *headers, const char *body);
void web_answer_free(struct web_answer *answer);

/* An empty directory of this case's own, removed by web_place_remove. */
void web_place_make(char path[64]);
void web_place_remove(const char *path);

#endif
