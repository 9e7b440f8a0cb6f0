/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that two parsers might read differently. Each has a second request hidden in it or
 * behind it. The server must refuse it and close, and must never answer the second. */
#include "http_stage.h"

#define POST "POST /echo HTTP/1.1\r\nHost: test\r\n"
#define GET "GET /hello HTTP/1.1\r\nHost: test\r\n"
#define SECOND "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"

struct probe {
    const char *name;
    const char *bytes;
    size_t size; /* 0: strlen */
};
#define TEXT(name, text)                                                                           \
    {                                                                                              \
        (name), (text), sizeof(text) - 1                                                           \
    }

/* The first eighteen are those of the survey. */
static const struct probe probes[] = {
    TEXT("length and chunked", POST "Content-Length: 4\r\n" CHUNKED "\r\n0\r\n\r\n" SECOND),
    TEXT("chunked and length", POST CHUNKED "Content-Length: 4\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("two lengths", POST "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd" SECOND),
    TEXT("bare CR hides chunked",
        POST "X-Abc:\rxTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("space before colon", POST "Content-Length : 4\r\n\r\nabcd" SECOND),
    TEXT("plus in length", POST "Content-Length: +4\r\n\r\nabcd" SECOND),
    TEXT("chunk size overflow", POST CHUNKED "\r\nfffffffffffffffff\r\na\r\n0\r\n\r\n" SECOND),
    TEXT("NUL in value", POST "X: a\0b\r\nContent-Length: 4\r\n\r\nabcd" SECOND),
    TEXT("bare LF", "GET /hello HTTP/1.1\nHost: test\n\n" SECOND),
    TEXT("no version", "GET /hello\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 0.9", "GET /hello HTTP/0.9\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 2.0", "GET /hello HTTP/2.0\r\nHost: test\r\n\r\n" SECOND),
    TEXT("no host", "GET /hello HTTP/1.1\r\n\r\n" SECOND),
    TEXT("two hosts", "GET /hello HTTP/1.1\r\nHost: test\r\nHost: other\r\n\r\n" SECOND),
    TEXT("chunked in 1.0", "POST /echo HTTP/1.0\r\nHost: test\r\n" CHUNKED "\r\n0\r\n\r\n" SECOND),
    TEXT("folded line", POST "X: a\r\n b\r\nContent-Length: 4\r\n\r\nabcd" SECOND),
    TEXT("chunk extension", POST CHUNKED "\r\n4;a=b\r\nabcd\r\n0\r\n\r\n" SECOND),

    /* lengths */
    TEXT("two equal lengths", POST "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd" SECOND),
    TEXT("two lengths in a list", POST "Content-Length: 4, 4\r\n\r\nabcd" SECOND),
    TEXT("negative length", POST "Content-Length: -4\r\n\r\nabcd" SECOND),
    TEXT("hex length", POST "Content-Length: 0x4\r\n\r\nabcd" SECOND),
    TEXT("length with a point", POST "Content-Length: 4.0\r\n\r\nabcd" SECOND),
    TEXT("length with an exponent", POST "Content-Length: 4e0\r\n\r\nabcd" SECOND),
    TEXT("length with a space inside", POST "Content-Length: 1 4\r\n\r\nabcd" SECOND),
    TEXT("length with a tab inside", POST "Content-Length: 1\t4\r\n\r\nabcd" SECOND),
    TEXT("empty length", POST "Content-Length:\r\n\r\nabcd" SECOND),
    TEXT("length of letters", POST "Content-Length: abcd\r\n\r\nabcd" SECOND),
    TEXT(
        "length overflows 64 bits", POST "Content-Length: 18446744073709551620\r\n\r\nabcd" SECOND),
    TEXT("length is 2^63", POST "Content-Length: 9223372036854775808\r\n\r\nabcd" SECOND),
    TEXT("length in quotes", POST "Content-Length: \"4\"\r\n\r\nabcd" SECOND),
    TEXT("length with a trailing comma", POST "Content-Length: 4,\r\n\r\nabcd" SECOND),
    TEXT("length with a leading comma", POST "Content-Length: ,4\r\n\r\nabcd" SECOND),
    TEXT("length and a folded one", POST "Content-Length: 4\r\n 4\r\n\r\nabcd" SECOND),
    TEXT("folded before length", POST "Content-Length:\r\n 4\r\n\r\nabcd" SECOND),
    TEXT("length with a vertical tab", POST "Content-Length: \0134\r\n\r\nabcd" SECOND),
    TEXT("length with a form feed", POST "Content-Length: \0144\r\n\r\nabcd" SECOND),
    TEXT("length with a no-break space", POST "Content-Length: \xc2\xa0"
                                              "4\r\n\r\nabcd" SECOND),
    TEXT("tab before colon", POST "Content-Length\t: 4\r\n\r\nabcd" SECOND),
    TEXT("space before name", POST " Content-Length: 4\r\n\r\nabcd" SECOND),

    /* codings */
    TEXT("chunked twice", POST CHUNKED CHUNKED "\r\n0\r\n\r\n" SECOND),
    TEXT("chunked, chunked", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("identity, chunked", POST "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("chunked, identity", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("gzip, chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("identity", POST "Transfer-Encoding: identity\r\n\r\n" SECOND),
    TEXT("identity and length",
        POST "Transfer-Encoding: identity\r\nContent-Length: 4\r\n\r\nabcd" SECOND),
    TEXT("chunked in quotes", POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("chunked with a parameter", POST "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("chunked with a comma", POST "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("comma chunked", POST "Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("chunkedx", POST "Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("chunked x", POST "Transfer-Encoding: chunked x\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("cow", POST "Transfer-Encoding: cow\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("empty coding", POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("vertical tab chunked", POST "Transfer-Encoding: \013chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("NUL chunked", POST "Transfer-Encoding: \0chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("folded chunked", POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding with a space before colon",
        POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding with a tab before colon",
        POST "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding with a NUL in its name",
        POST "Transfer\0-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding after a bare LF", POST "X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding after a bare CR", POST "X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding after CR CR LF",
        POST "X: a\r\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding after LF CR", POST "X: a\n\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("coding without a name", POST ": chunked\r\n\r\n0\r\n\r\n" SECOND),
    TEXT("length in 1.0 with chunked",
        "POST /echo HTTP/1.0\r\nHost: test\r\nContent-Length: 5\r\n" CHUNKED
        "\r\n0\r\n\r\n" SECOND),

    /* chunks */
    TEXT("chunk size with a sign", POST CHUNKED "\r\n+4\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("negative chunk size", POST CHUNKED "\r\n-4\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("chunk size 0x4", POST CHUNKED "\r\n0x4\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("chunk size with a space", POST CHUNKED "\r\n4 \r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("space before chunk size", POST CHUNKED "\r\n 4\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("chunk size with a letter", POST CHUNKED "\r\n4g\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("empty chunk size", POST CHUNKED "\r\n\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("chunk line with bare LF", POST CHUNKED "\r\n4\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("chunk end with bare LF", POST CHUNKED "\r\n4\r\nabcd\n0\r\n\r\n" SECOND),
    TEXT("chunk end with bare CR", POST CHUNKED "\r\n4\r\nabcd\r0\r\n\r\n" SECOND),
    TEXT("chunk longer than said", POST CHUNKED "\r\n4\r\nabcde\r\n0\r\n\r\n" SECOND),
    TEXT("chunk end missing", POST CHUNKED "\r\n4\r\nabcd0\r\n\r\n" SECOND),
    TEXT("chunk end of other bytes", POST CHUNKED "\r\n4\r\nabcdxx0\r\n\r\n" SECOND),
    TEXT("bare LF in a chunk extension", POST CHUNKED "\r\n4;x\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("empty chunk extension", POST CHUNKED "\r\n4;\r\nabcd\r\n0\r\n\r\n" SECOND),
    TEXT("extension on the last chunk", POST CHUNKED "\r\n4\r\nabcd\r\n0;a\r\n\r\n" SECOND),
    TEXT("trailer", POST CHUNKED "\r\n4\r\nabcd\r\n0\r\nX: y\r\n\r\n" SECOND),
    TEXT("length in the trailer",
        POST CHUNKED "\r\n4\r\nabcd\r\n0\r\nContent-Length: 99\r\n\r\n" SECOND),
    TEXT(
        "coding in the trailer", POST CHUNKED "\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n" SECOND),
    TEXT("last chunk with bare LF", POST CHUNKED "\r\n0\n\n" SECOND),
    TEXT("chunk size of 17 digits",
        POST CHUNKED "\r\n10000000000000004\r\nabcd\r\n0\r\n\r\n" SECOND),

    /* lines and fields */
    TEXT("two spaces after the method", "GET  /hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("tab after the method", "GET\t/hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("two spaces before the version", "GET /hello  HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("space after the version", "GET /hello HTTP/1.1 \r\nHost: test\r\n\r\n" SECOND),
    TEXT("space in the target", "GET /hel lo HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("NUL in the target", "GET /hel\0lo HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("bare CR in the target", "GET /hel\rlo HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("lower case method", "get /hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("lower case version", "GET /hello http/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 1.2", "GET /hello HTTP/1.2\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 1.10", "GET /hello HTTP/1.10\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 1.", "GET /hello HTTP/1.\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 11.1", "GET /hello HTTP/11.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("version 3.0", "GET /hello HTTP/3.0\r\nHost: test\r\n\r\n" SECOND),
    TEXT("another protocol", "GET /hello ICE/1.0\r\nHost: test\r\n\r\n" SECOND),
    TEXT("RTSP", "DESCRIBE /hello RTSP/1.0\r\nHost: test\r\n\r\n" SECOND),
    TEXT("nearly the HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nXM\r\n\r\n" SECOND),
    TEXT("bare LF after the request line", "GET /hello HTTP/1.1\nHost: test\r\n\r\n" SECOND),
    TEXT("bare LF at the end of the head", "GET /hello HTTP/1.1\r\nHost: test\r\n\n" SECOND),
    TEXT("bare CR at the end of the head", "GET /hello HTTP/1.1\r\nHost: test\r\n\rx" SECOND),
    TEXT("field without a colon", GET "nonsense\r\n\r\n" SECOND),
    TEXT("field name with a space", GET "X Y: z\r\n\r\n" SECOND),
    TEXT("field name with a slash", GET "X/Y: z\r\n\r\n" SECOND),
    TEXT("field name with a high byte", GET "X\xff: z\r\n\r\n" SECOND),
    TEXT("empty field name", GET ": z\r\n\r\n" SECOND),
    TEXT("DEL in a value", GET "X: a\177b\r\n\r\n" SECOND),
    TEXT("control character in a value", GET "X: a\001b\r\n\r\n" SECOND),
    TEXT("escape in a value", GET "X: a\033b\r\n\r\n" SECOND),
    TEXT("first header folded", "GET /hello HTTP/1.1\r\n Host: test\r\n\r\n" SECOND),
    TEXT("folded with a tab", GET "X: a\r\n\tb\r\n\r\n" SECOND),
    TEXT("folded with nothing", GET "X: a\r\n \r\n\r\n" SECOND),
    TEXT("folded after an empty value", GET "X:\r\n b\r\n\r\n" SECOND),

    /* hosts and targets */
    TEXT("empty host", "GET /hello HTTP/1.1\r\nHost:\r\n\r\n" SECOND),
    TEXT("two equal hosts", "GET /hello HTTP/1.1\r\nHost: test\r\nHost: test\r\n\r\n" SECOND),
    TEXT("two hosts in 1.0", "GET /hello HTTP/1.0\r\nHost: test\r\nhost: test\r\n\r\n" SECOND),
    TEXT("host with a space", "GET /hello HTTP/1.1\r\nHost: te st\r\n\r\n" SECOND),
    TEXT("host with a comma", "GET /hello HTTP/1.1\r\nHost: a,b\r\n\r\n" SECOND),
    TEXT("host with a user", "GET /hello HTTP/1.1\r\nHost: a@b\r\n\r\n" SECOND),
    TEXT("host with a path", "GET /hello HTTP/1.1\r\nHost: a/b\r\n\r\n" SECOND),
    TEXT("absolute form with another host",
        "GET http://other/hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("absolute form with a user",
        "GET http://a@test/hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("another scheme", "GET ftp://test/hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("no slash", "GET hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("fragment", "GET /hello#a HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("asterisk", "GET * HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("connect", "CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("trace", "TRACE /hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("encoded NUL", "GET /hello%00 HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("encoded slash", "GET /show%2fa HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("backslash", "GET /show\\a HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("encoded backslash", "GET /show%5ca HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("dot segment", "GET /a/../hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("encoded dot segment", "GET /a/%2e%2E/hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("single dot", "GET /./hello HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("dots at the end", "GET /hello/.. HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("half an escape", "GET /hello%4 HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("bad escape", "GET /hello%zz HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("overlong UTF-8", "GET /show/%c0%ae HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("surrogate", "GET /show/%ed%a0%80 HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("encoded line end", "GET /show/%0d%0a HTTP/1.1\r\nHost: test\r\n\r\n" SECOND),
    TEXT("another expectation", POST "Expect: 200-maybe\r\nContent-Length: 4\r\n\r\nabcd" SECOND),
};

enum { PROBE_COUNT = sizeof probes / sizeof probes[0] };
_Static_assert(PROBE_COUNT >= 18 + 80, "the survey's and eighty more");

/* Expect one refusal, then the end, whether the bytes come at once or one by one. */
static void run_probes(bool byte_by_byte)
{
    STAGE({ 0 });

    for (size_t i = 0; i < PROBE_COUNT; i++) {
        const struct probe *probe = &probes[i];
        struct client *client = client_open(http_server_address(stage.server));
        int handled = atomic_load(&stage_handled);
        unsigned answers;
        int status;

        printf("%s\n", probe->name); /* shown if the case fails */
        fflush(stdout);
        if (byte_by_byte) {
            for (size_t at = 0; at < probe->size; at++)
                if (!client_try_send(client, probe->bytes + at, 1))
                    break;
        } else {
            client_try_send(client, probe->bytes, probe->size);
        }
        answers = client_read_all(client);
        status = client->size > 12 ? (int)strtol(client->bytes + 9, NULL, 10) : 0;
        CHECK_MSG(answers == 1, "%s: %u answers: %s", probe->name, answers, client->bytes);
        CHECK_MSG(status >= 400 && status < 600, "%s: %d", probe->name, status);
        CHECK_MSG(strstr(client->bytes, "\r\nConnection: close\r\n") != NULL, "%s: %s", probe->name,
            client->bytes);
        CHECK_MSG(atomic_load(&stage_handled) == handled, "%s reached a handler", probe->name);
        client_close(client);
    }
    STAGE_END();
}

TEST_LONG(smuggling, every_probe_is_refused_and_closes, 60)
{
    run_probes(false);
}

TEST_LONG(smuggling, every_probe_is_refused_byte_by_byte, 60)
{
    run_probes(true);
}

/* Allowed requests that look similar: the table must not pass because everything is refused. */
TEST(smuggling, what_is_allowed_is_served)
{
    static const char *const allowed[] = {
        GET "\r\n",
        "\r\n" GET "\r\n",
        GET "Content-Length: 0\r\n\r\n",
        "GET http://test/hello HTTP/1.1\r\nHost: test\r\n\r\n",
        "GET http://TEST/hello HTTP/1.1\r\nhOsT: test\r\n\r\n",
        "GET /hello? HTTP/1.1\r\nHost: test:8080\r\n\r\n",
        "GET /%68ello HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        GET "X:\r\n\r\n",
        GET "X: a\tb \r\n\r\n",
        GET "X: \xc3\xa4\r\n\r\n",
        GET "X-Same: 1\r\nX-Same: 2\r\n\r\n",
        POST "Content-Length: 004\r\n\r\nabcd",
        POST "Content-Length:4\r\n\r\nabcd",
        POST "content-length: \t4 \r\n\r\nabcd",
        POST "transfer-encoding: CHUNKED\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        POST CHUNKED "\r\n0004\r\nabcd\r\n000\r\n\r\n",
        POST CHUNKED "\r\nA\r\n0123456789\r\n0\r\n\r\n",
        POST "Content-Length: 41\r\n\r\n" SECOND "012345",
    };
    STAGE({ 0 });

    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        struct client *client = client_open(http_server_address(stage.server));

        client_ask(client, allowed[i], answer);
        CHECK_MSG(answer->status == 200, "%zu: %d %s", i, answer->status, answer->body);
        client_ask(client, GET "\r\n", answer);
        CHECK_MSG(answer->status == 200, "after %zu: %d", i, answer->status);
        client_close(client);
    }
    STAGE_END();
}
