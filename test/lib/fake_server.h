/* SPDX-License-Identifier: Apache-2.0 */
/* fake_server.h: a scripted HTTP server for tests of clients. It listens on a loopback port of the
 * system's choice; every connection is a thread that runs the test's script, which reads requests
 * and writes whatever bytes it likes. Nothing here is careful about HTTP: that is the point.
 *
 *     static void script(struct fake_connection *connection, void *data)
 *     {
 *         struct fake_request request;
 *
 *         while (fake_read(connection, &request))
 *             fake_send(connection, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
 *     }
 */
#ifndef TEST_LIB_FAKE_SERVER_H
#define TEST_LIB_FAKE_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_server;
struct fake_connection;

/* Certificates made on the spot: an authority, and a server's certificate signed by it. */
struct fake_tls {
    char ca_path[64]; /* of the authority, PEM; removed by fake_tls_free */
    void *context;    /* the server's SSL_CTX */
};
/* `name` is what the certificate is for: a DNS name, or "127.0.0.1". */
void fake_tls_make(struct fake_tls *tls, const char *name);
void fake_tls_free(struct fake_tls *tls);

typedef void (*fake_script)(struct fake_connection *connection, void *data);

/* `tls` is borrowed until the server is stopped; NULL is plain TCP. */
struct fake_server *fake_server_start(fake_script script, void *data, const struct fake_tls *tls);
/* Cuts what is open, so that scripts come to their end, and waits for them. Nulls *server. */
void fake_server_stop(struct fake_server **server);
uint16_t fake_server_port(const struct fake_server *server);
/* "http://127.0.0.1:PORT/path", or https. Valid until the next call with the same server. */
const char *fake_server_url(struct fake_server *server, const char *path);
/* Connections so far, and the most that were open at once. */
unsigned fake_server_connections(struct fake_server *server);
unsigned fake_server_open_max(struct fake_server *server);

/* ---- in a script ---------------------------------------------------------------------------- */

enum { FAKE_HEAD_MAX = 16384, FAKE_BODY_MAX = 65536 };

struct fake_request {
    char method[16];
    char path[1024];
    char head[FAKE_HEAD_MAX]; /* all of it, with a NUL */
    char body[FAKE_BODY_MAX];
    size_t body_size;
};

/* The next request with its body, if it says Content-Length. False at the end of the connection. */
bool fake_read(struct fake_connection *connection, struct fake_request *request);
/* The head of the next request alone; body_size is what it says. Read the body with the next. */
bool fake_read_head(struct fake_connection *connection, struct fake_request *request);
/* At most `size` bytes of what comes next; 0 at the end of the connection. */
size_t fake_read_bytes(struct fake_connection *connection, void *bytes, size_t size);
/* The header's value in `value`; false if it is not there. */
bool fake_header(const struct fake_request *request, const char *name, char *value, size_t size);
/* False if the client is gone. */
bool fake_send(struct fake_connection *connection, const char *text);
bool fake_send_bytes(struct fake_connection *connection, const void *bytes, size_t size);
/* A whole answer: the status line's rest, header lines each with its CRLF (or NULL), the body. */
bool fake_answer(
    struct fake_connection *connection, const char *status, const char *headers, const char *body);
/* Until the client closes or the server is stopped. */
void fake_wait_end(struct fake_connection *connection);
/* Cut it hard: the client sees a reset. */
void fake_reset(struct fake_connection *connection);

#endif
