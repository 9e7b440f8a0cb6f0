/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

struct fake_connection {
    struct fake_server *server;
    struct fake_connection *next;
    pthread_t thread;
    int fd;
    SSL *ssl;
    char *kept; /* read and not used yet */
    size_t kept_size;
};

struct fake_server {
    fake_script script;
    void *data;
    const struct fake_tls *tls;
    int fd;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;                /* of what follows */
    struct fake_connection *connections; /* joined and freed by stop */
    bool is_stopping;
    unsigned count, open, open_max;
    char url[2048];
};

/* ---- certificates --------------------------------------------------------------------------- */

static X509 *certificate_make(
    EVP_PKEY *key, const char *name, X509 *issuer, EVP_PKEY *issuer_key, long serial)
{
    X509 *certificate = X509_new();
    char san[128];
    X509_NAME *subject;
    X509V3_CTX context;
    X509_EXTENSION *extension;

    CHECK(certificate != NULL && key != NULL);
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    subject = X509_get_subject_name(certificate);
    CHECK(X509_NAME_add_entry_by_txt(
        subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0));
    X509_set_issuer_name(certificate, issuer == NULL ? subject : X509_get_subject_name(issuer));
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer == NULL ? certificate : issuer, certificate, NULL, NULL, 0);
    snprintf(san, sizeof san, "%s:%s", name[0] >= '0' && name[0] <= '9' ? "IP" : "DNS", name);
    extension = X509V3_EXT_conf_nid(NULL, &context,
        issuer == NULL ? NID_basic_constraints : NID_subject_alt_name,
        issuer == NULL ? "critical,CA:TRUE" : san);
    CHECK(extension != NULL);
    CHECK(X509_add_ext(certificate, extension, -1));
    X509_EXTENSION_free(extension);
    CHECK(X509_sign(certificate, issuer_key, EVP_sha256()) > 0);
    return certificate;
}

void fake_tls_make(struct fake_tls *tls, const char *name)
{
    EVP_PKEY *ca_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
    X509 *ca = certificate_make(ca_key, "test authority", NULL, ca_key, 1);
    X509 *certificate = certificate_make(key, name, ca, ca_key, 2);
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    const char *directory = getenv("TMPDIR");
    FILE *file;
    int fd;

    CHECK(context != NULL);
    CHECK(SSL_CTX_use_certificate(context, certificate) == 1);
    CHECK(SSL_CTX_use_PrivateKey(context, key) == 1);
    tls->context = context;
    snprintf(tls->ca_path, sizeof tls->ca_path, "%s/fake-ca-XXXXXX",
        directory != NULL && strlen(directory) < 40 ? directory : "/tmp");
    fd = mkstemp(tls->ca_path);
    CHECK(fd >= 0);
    file = fdopen(fd, "w");
    CHECK(file != NULL);
    CHECK(PEM_write_X509(file, ca) == 1);
    CHECK_EQ_INT(fclose(file), 0);
    X509_free(ca);
    X509_free(certificate);
    EVP_PKEY_free(ca_key);
    EVP_PKEY_free(key);
}

void fake_tls_free(struct fake_tls *tls)
{
    unlink(tls->ca_path);
    SSL_CTX_free(tls->context);
    tls->context = NULL;
}

/* ---- connections ---------------------------------------------------------------------------- */

static long raw_read(struct fake_connection *connection, char *bytes, size_t size)
{
    if (connection->ssl != NULL)
        return SSL_read(connection->ssl, bytes, (int)size);
    return recv(connection->fd, bytes, size, 0);
}

bool fake_send_bytes(struct fake_connection *connection, const void *bytes, size_t size)
{
    const char *at = bytes;

    while (size > 0) {
        long n = connection->ssl != NULL ? SSL_write(connection->ssl, at, (int)size)
                                         : send(connection->fd, at, size, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

bool fake_send(struct fake_connection *connection, const char *text)
{
    return fake_send_bytes(connection, text, strlen(text));
}

bool fake_answer(
    struct fake_connection *connection, const char *status, const char *headers, const char *body)
{
    char head[4096];
    int size = snprintf(head, sizeof head, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", status,
        headers == NULL ? "" : headers, strlen(body));

    CHECK(size > 0 && (size_t)size < sizeof head);
    return fake_send_bytes(connection, head, (size_t)size) && fake_send(connection, body);
}

/* Read on until `until` bytes are kept, or, if it is 0, the end of a head is among them. Returns
 * the size of the head (or `until`), 0 at the end of the connection. */
static size_t fill(struct fake_connection *connection, size_t until)
{
    for (;;) {
        char *end;
        long n;

        connection->kept[connection->kept_size] = '\0';
        end = strstr(connection->kept, "\r\n\r\n");
        if (until == 0 && end != NULL)
            return (size_t)(end - connection->kept) + 4;
        if (until > 0 && connection->kept_size >= until)
            return until;
        CHECK(connection->kept_size < FAKE_HEAD_MAX + FAKE_BODY_MAX);
        n = raw_read(connection, connection->kept + connection->kept_size,
            FAKE_HEAD_MAX + FAKE_BODY_MAX - connection->kept_size);
        if (n <= 0)
            return 0;
        connection->kept_size += (size_t)n;
    }
}

bool fake_header(const struct fake_request *request, const char *name, char *value, size_t size)
{
    size_t name_size = strlen(name);

    for (const char *line = strstr(request->head, "\r\n"); line != NULL;
         line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, name_size) == 0 && line[name_size] == ':') {
            line += name_size + 1;
            line += strspn(line, " ");
            snprintf(value, size, "%.*s", (int)strcspn(line, "\r"), line);
            return true;
        }
    }
    return false;
}

static void keep_after(struct fake_connection *connection, size_t size)
{
    connection->kept_size -= size;
    memmove(connection->kept, connection->kept + size, connection->kept_size);
}

bool fake_read_head(struct fake_connection *connection, struct fake_request *request)
{
    size_t head = fill(connection, 0);
    char length[32];

    if (head == 0)
        return false;
    CHECK(head < FAKE_HEAD_MAX);
    memcpy(request->head, connection->kept, head);
    request->head[head] = '\0';
    CHECK_EQ_INT(sscanf(request->head, "%15s %1023s", request->method, request->path), 2);
    request->body_size = 0;
    if (fake_header(request, "Content-Length", length, sizeof length))
        request->body_size = strtoul(length, NULL, 10);
    keep_after(connection, head);
    return true;
}

size_t fake_read_bytes(struct fake_connection *connection, void *bytes, size_t size)
{
    long n;

    if (connection->kept_size > 0) {
        size = size < connection->kept_size ? size : connection->kept_size;
        memcpy(bytes, connection->kept, size);
        keep_after(connection, size);
        return size;
    }
    n = raw_read(connection, bytes, size);
    return n <= 0 ? 0 : (size_t)n;
}

bool fake_read(struct fake_connection *connection, struct fake_request *request)
{
    if (!fake_read_head(connection, request))
        return false;
    CHECK(request->body_size < FAKE_BODY_MAX);
    if (request->body_size > 0 && fill(connection, request->body_size) == 0)
        return false;
    memcpy(request->body, connection->kept, request->body_size);
    request->body[request->body_size] = '\0';
    keep_after(connection, request->body_size);
    return true;
}

void fake_wait_end(struct fake_connection *connection)
{
    char bytes[4096];

    while (raw_read(connection, bytes, sizeof bytes) > 0) {
    }
}

void fake_reset(struct fake_connection *connection)
{
    struct linger linger = { .l_onoff = 1, .l_linger = 0 };

    setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

static void *connection_main(void *argument)
{
    struct fake_connection *connection = argument;
    struct fake_server *server = connection->server;
    bool is_ready = true;
    sigset_t set;

    /* OpenSSL writes without MSG_NOSIGNAL. Blocked here only: the client's threads must not need
     * it. */
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (server->tls != NULL) {
        connection->ssl = SSL_new(server->tls->context);
        CHECK(connection->ssl != NULL);
        SSL_set_fd(connection->ssl, connection->fd);
        is_ready = SSL_accept(connection->ssl) == 1;
    }
    if (is_ready)
        server->script(connection, server->data);
    if (connection->ssl != NULL && is_ready)
        SSL_shutdown(connection->ssl);
    SSL_free(connection->ssl);
    ERR_clear_error();
    pthread_mutex_lock(&server->lock);
    close(connection->fd);
    connection->fd = -1;
    server->open--;
    pthread_mutex_unlock(&server->lock);
    free(connection->kept);
    return NULL;
}

static void connection_begin(struct fake_server *server, int fd)
{
    struct fake_connection *connection = calloc(1, sizeof *connection);

    CHECK(connection != NULL);
    connection->server = server;
    connection->fd = fd;
    connection->kept = malloc(FAKE_HEAD_MAX + FAKE_BODY_MAX + 1);
    CHECK(connection->kept != NULL);
    pthread_mutex_lock(&server->lock);
    connection->next = server->connections;
    server->connections = connection;
    server->count++;
    if (++server->open > server->open_max)
        server->open_max = server->open;
    if (server->is_stopping)
        shutdown(fd, SHUT_RDWR);
    CHECK_EQ_INT(pthread_create(&connection->thread, NULL, connection_main, connection), 0);
    pthread_mutex_unlock(&server->lock);
}

static void *server_main(void *argument)
{
    struct fake_server *server = argument;
    int fd;

    while ((fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        connection_begin(server, fd);
    return NULL;
}

struct fake_server *fake_server_start(fake_script script, void *data, const struct fake_tls *tls)
{
    struct fake_server *server = calloc(1, sizeof *server);
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;

    CHECK(server != NULL);
    server->script = script;
    server->data = data;
    server->tls = tls;
    pthread_mutex_init(&server->lock, NULL);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(server->fd >= 0);
    CHECK_EQ_INT(bind(server->fd, (struct sockaddr *)&address, size), 0);
    CHECK_EQ_INT(listen(server->fd, 512), 0);
    CHECK_EQ_INT(getsockname(server->fd, (struct sockaddr *)&address, &size), 0);
    server->port = ntohs(address.sin_port);
    CHECK_EQ_INT(pthread_create(&server->thread, NULL, server_main, server), 0);
    return server;
}

void fake_server_stop(struct fake_server **server)
{
    struct fake_server *s = *server;

    *server = NULL;
    shutdown(s->fd, SHUT_RDWR); /* wakes accept */
    pthread_join(s->thread, NULL);
    close(s->fd);
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    for (struct fake_connection *at = s->connections; at != NULL; at = at->next)
        if (at->fd >= 0)
            shutdown(at->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    while (s->connections != NULL) {
        struct fake_connection *connection = s->connections;

        s->connections = connection->next;
        pthread_join(connection->thread, NULL);
        free(connection);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint16_t fake_server_port(const struct fake_server *server)
{
    return server->port;
}

const char *fake_server_url(struct fake_server *server, const char *path)
{
    snprintf(server->url, sizeof server->url, "%s://127.0.0.1:%u%s",
        server->tls != NULL ? "https" : "http", server->port, path);
    return server->url;
}

unsigned fake_server_connections(struct fake_server *server)
{
    unsigned count;

    pthread_mutex_lock(&server->lock);
    count = server->count;
    pthread_mutex_unlock(&server->lock);
    return count;
}

unsigned fake_server_open_max(struct fake_server *server)
{
    unsigned count;

    pthread_mutex_lock(&server->lock);
    count = server->open_max;
    pthread_mutex_unlock(&server->lock);
    return count;
}
