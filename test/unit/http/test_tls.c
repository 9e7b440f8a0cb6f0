/* SPDX-License-Identifier: Apache-2.0 */
/* TLS, with certificates made by the test. */
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>

#include "http_stage.h"
#include "support/metric.h"

static char text[2000000];

struct files {
    char certificate[64], key[64];
};

static void files_name(struct files *files)
{
    snprintf(
        files->certificate, sizeof files->certificate, "/tmp/troupe-tls-%d.crt", (int)getpid());
    snprintf(files->key, sizeof files->key, "/tmp/troupe-tls-%d.key", (int)getpid());
}

/* Create a key and a self-signed certificate with this name. */
static void files_make(struct files *files, const char *name)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    X509 *certificate = X509_new();
    X509_NAME *subject = X509_get_subject_name(certificate);
    FILE *file;

    CHECK(key != NULL);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
    files_name(files);
    file = fopen(files->certificate, "w");
    CHECK(file != NULL);
    PEM_write_X509(file, certificate);
    fclose(file);
    file = fopen(files->key, "w");
    CHECK(file != NULL);
    PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static void files_remove(const struct files *files)
{
    unlink(files->certificate);
    unlink(files->key);
}

struct tls_client {
    SSL_CTX *context;
    SSL *ssl;
    int fd;
};

/* Returns true if the handshake succeeded. */
static bool tls_open(
    struct tls_client *client, const char *address, int version_max, const char *alpn)
{
    client->context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(client->context, TLS1_VERSION);
    SSL_CTX_set_security_level(client->context, 0);
    if (version_max != 0)
        SSL_CTX_set_max_proto_version(client->context, version_max);
    client->ssl = SSL_new(client->context);
    if (alpn != NULL)
        SSL_set_alpn_protos(client->ssl, (const unsigned char *)alpn, (unsigned)strlen(alpn));
    client->fd = client_socket(address, 0);
    SSL_set_fd(client->ssl, client->fd);
    return SSL_connect(client->ssl) == 1;
}

static void tls_close(struct tls_client *client)
{
    SSL_free(client->ssl);
    SSL_CTX_free(client->context);
    close(client->fd);
    ERR_clear_error();
}

static size_t tls_ask(struct tls_client *client, const char *request, char *answer, size_t room)
{
    size_t used = 0;
    char *end;

    CHECK(SSL_write(client->ssl, request, (int)strlen(request)) == (int)strlen(request));
    for (;;) {
        int got = SSL_read(client->ssl, answer + used, (int)(room - used - 1));
        size_t head;

        CHECK(got > 0);
        used += (size_t)got;
        answer[used] = '\0';
        end = strstr(answer, "\r\n\r\n");
        if (end == NULL)
            continue;
        head = (size_t)(end - answer) + 4;
        if (used >= head + strtoul(strstr(answer, "Content-Length: ") + 16, NULL, 10))
            return used - head;
    }
}

static void start(struct stage *stage, const struct http_route *routes, size_t count,
    const struct files *files, struct http_limits limits)
{
    struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = routes,
        .route_count = count,
        .tls_certificate_path = files->certificate,
        .tls_key_path = files->key,
        .limits = limits,
        .quiet = true,
        .name = "tls" };

    signal(SIGPIPE, SIG_IGN);
    stage_start_with(stage, &options, 2);
}

#define TLS_STAGE(...)                                                                             \
    struct files files;                                                                            \
    struct stage stage = { 0 };                                                                    \
    const struct http_route routes[] = STAGE_ROUTES(&stage);                                       \
    files_make(&files, "one");                                                                     \
    start(&stage, routes, sizeof routes / sizeof routes[0], &files, (struct http_limits)__VA_ARGS__)
#define TLS_END()                                                                                  \
    stage_stop(&stage);                                                                            \
    files_remove(&files)

TEST(tls, serves_1_2_and_1_3)
{
    const int versions[] = { TLS1_2_VERSION, TLS1_3_VERSION };
    TLS_STAGE({ 0 });

    for (int i = 0; i < 2; i++) {
        struct tls_client client;

        CHECK(tls_open(&client, http_server_address(stage.server), versions[i], NULL));
        CHECK_EQ_INT(SSL_version(client.ssl), versions[i]);
        for (int j = 0; j < 20; j++) {
            tls_ask(&client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", text, sizeof text);
            CHECK(strstr(text, "{\"hello\":\"world\"}") != NULL);
            tls_ask(&client, "GET /ask/a?value=4 HTTP/1.1\r\n" HOST "\r\n", text, sizeof text);
            CHECK(strstr(text, "\r\n\r\n8") != NULL);
        }
        tls_close(&client);
    }
    TLS_END();
}

TEST(tls, refuses_1_1_and_unknown_protocols)
{
    struct tls_client client;
    TLS_STAGE({ 0 });

    CHECK(!tls_open(&client, http_server_address(stage.server), TLS1_1_VERSION, NULL));
    tls_close(&client);
    CHECK(!tls_open(&client, http_server_address(stage.server), 0, "\010http/9.9"));
    tls_close(&client);
    CHECK(tls_open(&client, http_server_address(stage.server), 0, "\010http/9.9\010http/1.1"));
    tls_close(&client);
    TLS_END();
}

TEST(tls, large_bodies_pass_both_ways)
{
    struct tls_client client;
    static char body[900000];
    char head[128];
    TLS_STAGE({ 0 });

    memset(body, 'x', sizeof body - 1);
    CHECK(tls_open(&client, http_server_address(stage.server), 0, NULL));
    CHECK_EQ_U64(
        tls_ask(&client, "GET /large?size=1500000 HTTP/1.1\r\n" HOST "\r\n", text, sizeof text),
        1500000);
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n",
        sizeof body - 1);
    CHECK(SSL_write(client.ssl, head, (int)strlen(head)) > 0);
    CHECK_EQ_U64(tls_ask(&client, body, text, sizeof text), sizeof body - 1);
    CHECK(memcmp(strstr(text, "\r\n\r\n") + 4, body, sizeof body - 1) == 0);
    tls_close(&client);
    TLS_END();
}

TEST(tls, a_client_that_speaks_plainly_is_cut)
{
    struct client *client;
    TLS_STAGE({ 0 });

    client = client_open(http_server_address(stage.server));
    client_send(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    while (client_fill(client)) {
    }
    client->bytes[client->size] = '\0';
    CHECK(strstr(client->bytes, "HTTP/1.1") == NULL);
    client_close(client);
    TLS_END();
}

TEST(tls, a_handshake_has_a_deadline)
{
    struct client *client;
    TLS_STAGE({ .header_ns = TR_MILLISECONDS(100) });

    client = client_open(http_server_address(stage.server));
    CHECK(client_try_send(client, "\026\003\001", 3));
    CHECK(client_ends(client));
    client_close(client);
    TLS_END();
}

static void common_name(struct tls_client *client, char *name, size_t size)
{
    X509 *certificate = SSL_get1_peer_certificate(client->ssl);

    CHECK(certificate != NULL);
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, (int)size);
    X509_free(certificate);
}

TEST(tls, a_new_certificate_is_taken_and_a_bad_one_is_not)
{
    struct tls_client old, fresh;
    char name[32], why[256] = "";
    int fd;
    TLS_STAGE({ 0 });

    CHECK(tls_open(&old, http_server_address(stage.server), 0, NULL));
    common_name(&old, name, sizeof name);
    CHECK_EQ_STR(name, "one");
    files_make(&files, "two");
    CHECK_EQ_INT(http_server_reload_tls(stage.server, why, sizeof why), 0);
    CHECK(tls_open(&fresh, http_server_address(stage.server), 0, NULL));
    common_name(&fresh, name, sizeof name);
    CHECK_EQ_STR(name, "two");
    tls_close(&fresh);
    fd = open(files.key, O_WRONLY | O_TRUNC | O_CLOEXEC);
    CHECK(write(fd, "nonsense", 8) == 8);
    close(fd);
    CHECK_EQ_INT(http_server_reload_tls(stage.server, why, sizeof why), TR_EINVAL);
    CHECK(strstr(why, files.key) != NULL);
    CHECK(tls_open(&fresh, http_server_address(stage.server), 0, NULL));
    common_name(&fresh, name, sizeof name);
    CHECK_EQ_STR(name, "two");
    tls_close(&fresh);
    tls_ask(&old, "GET /hello HTTP/1.1\r\n" HOST "\r\n", text, sizeof text);
    CHECK(strstr(text, "{\"hello\":\"world\"}") != NULL);
    tls_close(&old);
    TLS_END();
}

TEST(tls, says_why_it_cannot_start)
{
    struct tr_system_options system_options = { .workers = 1 };
    struct http_server_options options = { .listen = "127.0.0.1:0",
        .tls_certificate_path = "/nowhere/a.crt" };
    struct http_server *server;
    struct tr_system *system;
    char why[256];

    CHECK_EQ_INT(tr_system_create(&system_options, &system), 0);
    CHECK_EQ_INT(http_server_start(system, &options, why, sizeof why, &server), TR_EINVAL);
    CHECK(strstr(why, "one of them is not set") != NULL);
    options.tls_key_path = "/nowhere/a.key";
    CHECK_EQ_INT(http_server_start(system, &options, why, sizeof why, &server), TR_EINVAL);
    CHECK(strstr(why, "/nowhere/a.crt") != NULL);
    tr_system_destroy(&system);
}
