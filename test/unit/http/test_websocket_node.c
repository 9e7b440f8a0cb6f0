/* SPDX-License-Identifier: Apache-2.0 */
/* A WebSocket client of others: the one in node. */
#include "http_stage.h"

/* Echo everything; "bye" ends the stream with 4001. */
static void receive(http_stream stream, void *data, bool is_text, const char *bytes, size_t size)
{
    (void)data;
    (void)is_text;
    if (size == 3 && memcmp(bytes, "bye", 3) == 0)
        http_stream_end(stream, NULL, 4001);
    else
        http_stream_send(stream, http_frame_create(bytes, size));
}

static void handle_socket(struct http_request *request)
{
    const struct http_stream_options options = { .pending_max = 4 << 20 };
    http_stream stream;

    http_websocket_open(request, &options, 1 << 20, receive, NULL, &stream);
}

/* Texts, bytes, a large message in the client's own framing, and the close frames of both sides. */
static const char script[] =
    "const sizes = [0, 1, 125, 126, 65535, 65536, 300000];"
    "function open(path) { const s = new WebSocket(process.argv[1] + path);"
    "  s.binaryType = 'arraybuffer'; return s; }"
    "function fail(why) { console.log('failed: ' + why); process.exit(1); }"
    "const one = open('/socket'); let count = 0;"
    "one.onerror = () => fail('one');"
    "one.onopen = () => { if (one.extensions !== '' || one.protocol !== '') fail('agreed');"
    "  for (const n of sizes) one.send(new Uint8Array(n).fill(n % 251)); one.send('h\\u00e4'); };"
    "one.onmessage = (m) => { const bytes = new Uint8Array(m.data);"
    "  if (count < sizes.length) { if (bytes.length !== sizes[count] ||"
    "    !bytes.every((b) => b === sizes[count] % 251)) fail('bytes ' + count); }"
    "  else if (new TextDecoder().decode(bytes) !== 'h\\u00e4') fail('text');"
    "  if (++count === sizes.length + 1) one.send('bye'); };"
    "one.onclose = (e) => { if (e.code !== 4001 || !e.wasClean) fail('code ' + e.code);"
    "  const two = open('/socket'); two.onopen = () => two.close(3000, 'enough');"
    "  two.onclose = (e) => { if (e.code !== 3000 || !e.wasClean) fail('code ' + e.code);"
    "    const three = open('/hello'); three.onopen = () => fail('opened');"
    "    three.onerror = () => { console.log('done'); process.exit(0); }; }; };";

TEST(websocket_node, a_foreign_client_is_served)
{
    const struct http_route routes[] = { { .path = "/socket", .handle = handle_socket },
        { .path = "/hello", .handle = handle_hello } };
    struct stage stage = { 0 };
    char command[4096], said[4096];
    size_t size;
    FILE *pipe;

    if (system("node --experimental-websocket -e 0 >/dev/null 2>&1") != 0)
        SKIP("there is no node with --experimental-websocket");
    stage_start(&stage, routes, 2, (struct http_limits){ 0 });
    snprintf(command, sizeof command,
        "node --no-warnings --experimental-websocket -e \"%s\" ws://%s 2>&1", script,
        http_server_address(stage.server));
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    size = fread(said, 1, sizeof said - 1, pipe);
    said[size] = '\0';
    CHECK_EQ_STR(said, "done\n");
    CHECK_EQ_INT(pclose(pipe), 0);
    stage_stop(&stage);
}
