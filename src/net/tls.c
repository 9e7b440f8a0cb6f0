/* SPDX-License-Identifier: Apache-2.0 */
/* tls.c: TLS streams by OpenSSL. OpenSSL reads and writes through our own BIO, since its socket BIO
 * would raise SIGPIPE. A stream with a fatal error is marked broken: OpenSSL must not send a close
 * notification on it. */
#include "net/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { RECORD = 16 << 10 };

struct net_tls {
    pthread_mutex_t lock;
    SSL_CTX *context; /* protected by the lock: a reload replaces it */
    char *certificate_path, *key_path;
    const char *const *protocols; /* borrowed for ever */
};

struct session {
    SSL *ssl;
    char protocol[16];
    bool is_broken;
    bool is_open; /* the handshake is over */
};

/* ---- the BIO ------------------------------------------------------------------------------- */

static int bio_fd(BIO *bio)
{
    return (int)(intptr_t)BIO_get_data(bio);
}

static int bio_write(BIO *bio, const char *bytes, int size)
{
    ssize_t sent = send(bio_fd(bio), bytes, (size_t)size, MSG_NOSIGNAL);

    BIO_clear_retry_flags(bio);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)sent;
}

static int bio_read(BIO *bio, char *bytes, int size)
{
    ssize_t got = recv(bio_fd(bio), bytes, (size_t)size, 0);

    BIO_clear_retry_flags(bio);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    return (int)got;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *bio_method;
static pthread_once_t bio_once = PTHREAD_ONCE_INIT;

static void bio_method_make(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "troupe");

    if (method == NULL)
        return;
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_control);
    bio_method = method;
}

/* ---- the stream ---------------------------------------------------------------------------- */

static ssize_t tls_result(struct session *session, int rc)
{
    switch (SSL_get_error(session->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return NET_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return NET_END;
    default:
        session->is_broken = true;
        ERR_clear_error();
        return NET_GONE;
    }
}

static ssize_t tls_read(struct net_stream *stream, void *bytes, size_t size)
{
    struct session *session = stream->tls;
    int rc;

    ERR_clear_error();
    rc = SSL_read(session->ssl, bytes, (int)(size < RECORD ? size : RECORD));
    return rc > 0 ? rc : tls_result(session, rc);
}

static ssize_t tls_write_bytes(struct session *session, const void *bytes, size_t size)
{
    ssize_t rc;

    ERR_clear_error();
    rc = SSL_write(session->ssl, bytes, (int)(size < RECORD ? size : RECORD));
    if (rc > 0)
        return rc;
    rc = tls_result(session, (int)rc);
    return rc == NET_END ? NET_GONE : rc;
}

static ssize_t tls_write(struct net_stream *stream, const struct iovec *parts, int count, bool more)
{
    char record[RECORD];
    size_t used = 0;

    (void)more;
    if (count == 1 || parts[0].iov_len >= RECORD)
        return tls_write_bytes(stream->tls, parts[0].iov_base, parts[0].iov_len);
    /* Small parts share a record, since each record costs its framing and its tag. */
    for (int i = 0; i < count && used < RECORD; i++) {
        size_t size = parts[i].iov_len < RECORD - used ? parts[i].iov_len : RECORD - used;

        memcpy(record + used, parts[i].iov_base, size);
        used += size;
    }
    return tls_write_bytes(stream->tls, record, used);
}

static ssize_t tls_send_file(struct net_stream *stream, int fd, uint64_t *offset, size_t size)
{
    char record[RECORD];
    ssize_t got = pread(fd, record, size < RECORD ? size : RECORD, (off_t)*offset);
    ssize_t sent;

    if (got <= 0)
        return got == 0 ? NET_END : NET_GONE;
    sent = tls_write_bytes(stream->tls, record, (size_t)got);
    if (sent > 0)
        *offset += (uint64_t)sent;
    return sent;
}

static void tls_send_close(struct session *session)
{
    if (session->is_open && !session->is_broken) {
        ERR_clear_error();
        SSL_shutdown(session->ssl);
        ERR_clear_error();
    }
}

static void tls_shutdown(struct net_stream *stream)
{
    tls_send_close(stream->tls);
    shutdown(stream->fd, SHUT_WR);
}

static void tls_close(struct net_stream *stream)
{
    struct session *session = stream->tls;

    tls_send_close(session);
    SSL_free(session->ssl);
    base_free(session);
    close(stream->fd);
}

static const struct net_stream_table tls_table = {
    .read = tls_read,
    .write = tls_write,
    .send_file = tls_send_file,
    .shutdown = tls_shutdown,
    .close = tls_close,
};

int net_tls_wrap(struct net_tls *tls, struct net_stream *stream)
{
    struct session *session = base_calloc(sizeof *session);
    BIO *bio;

    tr_assert(stream->tls == NULL);
    pthread_once(&bio_once, bio_method_make);
    if (session == NULL || bio_method == NULL) {
        base_free(session);
        return TR_ENOMEM;
    }
    pthread_mutex_lock(&tls->lock);
    session->ssl = SSL_new(tls->context); /* takes a reference of the context */
    pthread_mutex_unlock(&tls->lock);
    bio = session->ssl == NULL ? NULL : BIO_new(bio_method);
    if (bio == NULL) {
        SSL_free(session->ssl);
        base_free(session);
        return TR_ENOMEM;
    }
    BIO_set_data(bio, (void *)(intptr_t)stream->fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(session->ssl, bio, bio);
    SSL_set_accept_state(session->ssl);
    stream->tls = session;
    stream->table = &tls_table;
    return 0;
}

int net_tls_handshake(struct net_stream *stream)
{
    struct session *session = stream->tls;
    const unsigned char *name = NULL;
    unsigned size = 0;
    int rc;

    ERR_clear_error();
    rc = SSL_do_handshake(session->ssl);
    if (rc != 1) {
        rc = (int)tls_result(session, rc);
        return rc == NET_AGAIN ? NET_AGAIN : NET_GONE;
    }
    session->is_open = true;
    SSL_get0_alpn_selected(session->ssl, &name, &size);
    if (size < sizeof session->protocol && size > 0)
        memcpy(session->protocol, name, size);
    return 1;
}

const char *net_tls_protocol(const struct net_stream *stream)
{
    const struct session *session = stream->tls;

    return session == NULL ? "" : session->protocol;
}

/* ---- certificate and key ------------------------------------------------------------------- */

static int tls_explain(char *why, size_t size, int rc, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int tls_explain(char *why, size_t size, int rc, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (why != NULL && size > 0)
        vsnprintf(why, size, format, arguments);
    va_end(arguments);
    ERR_clear_error();
    return rc;
}

/* Choose the first of our protocols that the client offers. */
static int tls_on_alpn(SSL *ssl, const unsigned char **ret_name, unsigned char *ret_size,
    const unsigned char *offered, unsigned offered_size, void *argument)
{
    const char *const *protocols = argument;

    (void)ssl;
    for (size_t i = 0; protocols[i] != NULL; i++) {
        size_t size = strlen(protocols[i]);

        for (unsigned at = 0; at < offered_size; at += 1u + offered[at])
            if (offered[at] == size && at + 1 + size <= offered_size &&
                memcmp(offered + at + 1, protocols[i], size) == 0) {
                *ret_name = offered + at + 1;
                *ret_size = offered[at];
                return SSL_TLSEXT_ERR_OK;
            }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static int tls_load(struct net_tls *tls, char *why, size_t why_size, SSL_CTX **ret_context)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    union {
        const char *const *in;
        void *out;
    } pun = { .in = tls->protocols }; /* tls_on_alpn only reads it; it may outlive tls */

    if (context == NULL)
        return tls_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(
        context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_num_tickets(context, 1);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* tickets need no memory here */
    SSL_CTX_set_alpn_select_cb(context, tls_on_alpn, pun.out);
    if (SSL_CTX_use_certificate_chain_file(context, tls->certificate_path) != 1) {
        SSL_CTX_free(context);
        return tls_explain(why, why_size, TR_EINVAL, "Certificate %s must be a readable PEM file.",
            tls->certificate_path);
    }
    if (SSL_CTX_use_PrivateKey_file(context, tls->key_path, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
        SSL_CTX_free(context);
        return tls_explain(why, why_size, TR_EINVAL,
            "Key %s must be a readable PEM file and belong to certificate %s.", tls->key_path,
            tls->certificate_path);
    }
    *ret_context = context;
    return 0;
}

int net_tls_create(const char *certificate_path, const char *key_path, const char *const *protocols,
    char *why, size_t why_size, struct net_tls **ret_tls)
{
    struct net_tls *tls = base_calloc(sizeof *tls);
    int rc;

    tr_assert(certificate_path != NULL);
    tr_assert(key_path != NULL);
    if (tls == NULL)
        return tls_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    pthread_mutex_init(&tls->lock, NULL);
    tls->protocols = protocols;
    tls->certificate_path = base_strdup(certificate_path);
    tls->key_path = base_strdup(key_path);
    if (tls->certificate_path == NULL || tls->key_path == NULL)
        rc = tls_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    else
        rc = tls_load(tls, why, why_size, &tls->context);
    if (rc < 0) {
        net_tls_destroy(&tls);
        return rc;
    }
    *ret_tls = tls;
    return 0;
}

int net_tls_reload(struct net_tls *tls, char *why, size_t why_size)
{
    SSL_CTX *fresh = NULL, *old;
    int rc = tls_load(tls, why, why_size, &fresh);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&tls->lock);
    old = tls->context;
    tls->context = fresh;
    pthread_mutex_unlock(&tls->lock);
    SSL_CTX_free(old);
    return 0;
}

void net_tls_destroy(struct net_tls **tls)
{
    struct net_tls *old = *tls;

    if (old == NULL)
        return;
    *tls = NULL;
    SSL_CTX_free(old->context);
    base_free(old->certificate_path);
    base_free(old->key_path);
    pthread_mutex_destroy(&old->lock);
    base_free(old);
}
