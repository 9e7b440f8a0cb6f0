/* SPDX-License-Identifier: Apache-2.0 */
/* tinychat.c: a chat server in one file, to be read from top to bottom.
 *
 *   make && ./tinychat 7777        then, twice:   nc 127.0.0.1 7777
 *
 * Three kinds of actor. An arrow is a sender that is held; a dotted one is weak and keeps nobody
 * alive:
 *
 *     main ──▶ listener ──▶ connection ──▶ room
 *                            ▲                :
 *                            :................:
 *
 * - The listener accepts and spawns a connection actor per client. It holds their senders, so they
 * live as long as it does, or until the client goes.
 * - A connection reads lines from its client and writes lines to it. Its output is bounded:
 * a client that does not read is disconnected, and no other client waits for it.
 * - A room sends each line of a member to the others. Rooms come from a registry: the first who
 * joins a room starts it, and a room that is empty for a while ends.
 *
 * Because the arrows form no circle, the whole program ends when main drops its one sender: the
 * listener ends and drops the connections; they say goodbye, close their sockets and drop the
 * rooms. No flag says "shutting down". */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/troupe.h>

/* Everything that can grow has a limit. */
enum {
    NAME_SIZE = 16,       /* of a person or a room, with its end */
    LINE_SIZE = 200,      /* of what somebody says */
    OUT_SIZE = 16 * 1024, /* output that may wait for one client */
    BEHIND_MAX = 1000,    /* lines of rooms that a connection may not have got to yet */
    CLIENTS_MAX = 256,
    MEMBERS_MAX = 64, /* of one room */
    ROOMS_MAX = 1000,
};
static const uint64_t second_ns = UINT64_C(1000000000);

/* ---- the messages ---------------------------------------------------------------------------- */

/* Each kind of actor has one struct for all its messages. A message that is sent belongs to the
 * receiver; these own nothing but their bytes, so there is nothing to free when one is lost. */

/* To a connection: a line for its client. */
struct connection_message {
    char line[LINE_SIZE + 2 * NAME_SIZE];
};

struct room_message {
    enum { ROOM_JOIN, ROOM_LEAVE, ROOM_SAY, ROOM_WHO } kind;
    uint64_t id; /* of the actor that sent the message */
    tr_weak to;  /* of JOIN: where the room's lines are to go */
    char name[NAME_SIZE];
    char text[LINE_SIZE]; /* of SAY; of LEAVE: why */
};

/* The actors themselves: plain data. The functions are below. */

struct room {
    char name[NAME_SIZE];
    struct member {
        uint64_t id;
        tr_weak to;
        char name[NAME_SIZE];
    } members[MEMBERS_MAX];
    uint32_t count;
};

struct connection {
    int fd; /* owned: closed in connection_finish() */
    struct tr_registry *rooms;
    tr_sender room; /* owned: the room it is in */
    char name[NAME_SIZE];
    bool is_slow; /* it did not read what it was sent */
    size_t in_used, out_used;
    char in[LINE_SIZE], out[OUT_SIZE];
};

struct listener {
    int fd; /* owned */
    struct tr_registry *rooms;
    uint32_t guests;
    tr_sender clients[CLIENTS_MAX]; /* owned; {0} is a free place */
};

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

/* ---- a room --------------------------------------------------------------------------------- */

static void room_remove(struct room *self, uint32_t index)
{
    self->members[index] = self->members[--self->count];
}

/* A line for everybody but `except`. */
static void __attribute__((format(printf, 3, 4)))
room_send(struct room *self, uint64_t except, const char *format, ...)
{
    struct connection_message out;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(out.line, sizeof out.line, format, arguments);
    va_end(arguments);
    for (uint32_t i = self->count; i-- > 0;) {
        tr_sender to;
        int rc;

        if (self->members[i].id == except)
            continue;
        /* A weak sender becomes a strong one for as long as it takes to send, if its actor is still
         * there. */
        rc = tr_weak_upgrade(self->members[i].to, "room", &to);
        if (rc == 0) {
            /* try: connections wait for rooms (see connection_line), so a room must never wait for
             * a connection. */
            rc = tr_try_tell(to, &out, sizeof out);
            tr_sender_drop(&to);
        }
        if (rc == TR_EFULL)
            tr_stop(self->members[i].to);
        if (rc < 0)
            room_remove(self, i);
    }
}

static enum tr_next room_join(
    struct room *self, struct tr_context *ctx, const struct room_message *m)
{
    struct member *member = &self->members[self->count];

    if (self->count == MEMBERS_MAX) {
        tr_reply(ctx, TR_ELIMIT, NULL, 0);
        return TR_GO;
    }
    *member = (struct member){ .id = m->id, .to = m->to };
    copy_text(member->name, sizeof member->name, m->name);
    self->count++;
    room_send(self, m->id, "* %s joined #%s", m->name, self->name);
    tr_reply(ctx, 0, self->name, sizeof self->name);
    return TR_GO;
}

static enum tr_next room_handle(void *state, struct tr_context *ctx, void *message)
{
    struct room *self = state;
    const struct room_message *m = message;
    char text[MEMBERS_MAX * NAME_SIZE] = "";

    switch (m->kind) {
    case ROOM_JOIN:
        return room_join(self, ctx, m);
    case ROOM_LEAVE:
        for (uint32_t i = self->count; i-- > 0;)
            if (self->members[i].id == m->id)
                room_remove(self, i);
        room_send(self, m->id, "* %s %s", m->name, m->text);
        break;
    case ROOM_SAY:
        room_send(self, m->id, "%s: %s", m->name, m->text);
        break;
    case ROOM_WHO:
        for (uint32_t i = 0; i < self->count; i++) {
            size_t used = strlen(text);

            snprintf(text + used, sizeof text - used, " %s", self->members[i].name);
        }
        tr_reply(ctx, 0, text, strlen(text) + 1);
        break;
    }
    return TR_GO;
}

/* The registry has a new key: fill the struct of its actor. */
static int room_make(void *data, const void *key, size_t key_size, void *state)
{
    struct room *self = state;

    (void)data;
    if (key_size >= sizeof self->name)
        return TR_EINVAL;
    memcpy(self->name, key, key_size);
    return 0;
}

static const struct tr_type room_type = {
    .name = "room",
    .message_size = sizeof(struct room_message),
    .state_size = sizeof(struct room),
    .handle = room_handle,
};

/* ---- a connection: towards its client ------------------------------------------------------- */

/* Write what can be written. False when the client has gone. */
static bool connection_flush(struct connection *self)
{
    while (self->out_used > 0) {
        ssize_t n = send(self->fd, self->out, self->out_used, MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        self->out_used -= (size_t)n;
        memmove(self->out, self->out + n, self->out_used);
    }
    return true;
}

/* Say when to wake this actor next: readiness comes once, so it is asked for after every turn. */
static enum tr_next connection_watch(struct connection *self, struct tr_context *ctx)
{
    unsigned events = EPOLLIN;

    if (!connection_flush(self))
        return TR_STOP;
    if (self->out_used > 0)
        events |= EPOLLOUT;
    return tr_fd_watch(ctx, self->fd, events, 0) < 0 ? TR_STOP : TR_GO;
}

/* A line for the client. False when no more may wait for it: then it is cut. */
static bool __attribute__((format(printf, 2, 3)))
connection_put(struct connection *self, const char *format, ...)
{
    size_t room = OUT_SIZE - self->out_used;
    va_list arguments;
    int n;

    va_start(arguments, format);
    n = vsnprintf(self->out + self->out_used, room, format, arguments);
    va_end(arguments);
    if (n < 0 || (size_t)n + 1 >= room) {
        self->is_slow = true;
        return false;
    }
    self->out_used += (size_t)n;
    self->out[self->out_used++] = '\n';
    return true;
}

/* ---- a connection: towards its room --------------------------------------------------------- */

enum { TAG_JOINED, TAG_WHO };

static void connection_leave(struct connection *self, struct tr_context *ctx, const char *why)
{
    struct room_message leave = { .kind = ROOM_LEAVE, .id = tr_self_id(ctx) };

    copy_text(leave.name, sizeof leave.name, self->name);
    copy_text(leave.text, sizeof leave.text, why);
    tr_tell(self->room, &leave, sizeof leave); /* nobody there, no harm done */
    tr_sender_drop(&self->room);
}

static int connection_join(struct connection *self, struct tr_context *ctx, const char *name)
{
    struct room_message join = { .kind = ROOM_JOIN, .id = tr_self_id(ctx), .to = tr_self(ctx) };
    int rc;

    connection_leave(self, ctx, "went to another room");
    /* The first member starts the room; there is never a second room of the same name. */
    rc = tr_registry_get(self->rooms, name, strlen(name), self->name, &self->room);
    if (rc < 0)
        return rc;
    copy_text(join.name, sizeof join.name, self->name);
    /* The answer arrives as an event with this tag. The actor goes on meanwhile: nothing blocks. */
    return tr_ask(ctx, self->room, &join, sizeof join,
        &(struct tr_ask_options){ .tag = TAG_JOINED, .timeout_ns = 5 * second_ns });
}

static bool is_name(const char *text)
{
    size_t size = strlen(text);

    return size > 0 && size < NAME_SIZE &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

/* One line from the client. False: it wants to go, or has to. */
static bool connection_line(struct connection *self, struct tr_context *ctx, const char *line)
{
    struct room_message out = { .kind = ROOM_SAY, .id = tr_self_id(ctx) };
    int rc;

    if (line[0] == '\0')
        return true;
    if (strcmp(line, "/quit") == 0)
        return false;
    if (strncmp(line, "/join ", 6) == 0) {
        rc = is_name(line + 6) ? connection_join(self, ctx, line + 6) : TR_EINVAL;
    } else if (strncmp(line, "/name ", 6) == 0) {
        rc = is_name(line + 6) ? 0 : TR_EINVAL;
        if (rc == 0) {
            connection_leave(self, ctx, "has another name now");
            copy_text(self->name, sizeof self->name, line + 6);
            rc = connection_join(self, ctx, "lobby"); /* a new name begins in the lobby */
        }
    } else if (strcmp(line, "/who") == 0) {
        out.kind = ROOM_WHO;
        rc = tr_ask(ctx, self->room, &out, sizeof out,
            &(struct tr_ask_options){ .tag = TAG_WHO, .timeout_ns = 5 * second_ns });
    } else if (line[0] == '/') {
        return connection_put(self, "* there is /name NAME, /join ROOM, /who and /quit");
    } else {
        copy_text(out.name, sizeof out.name, self->name);
        copy_text(out.text, sizeof out.text, line);
        /* When the room's box is full this actor is parked after its turn, and does not read from
         * its client until there is room: back-pressure reaches whoever types too fast. */
        rc = tr_tell(self->room, &out, sizeof out);
    }
    return rc == 0 || connection_put(self, "* that did not work: %s", tr_error_text(rc));
}

/* Reads lines from the client. Returns false when the client has gone. */
static bool connection_read(struct connection *self, struct tr_context *ctx)
{
    ssize_t n = recv(self->fd, self->in + self->in_used, sizeof self->in - self->in_used, 0);
    char *end;

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    self->in_used += (size_t)n;
    while ((end = memchr(self->in, '\n', self->in_used)) != NULL) {
        size_t size = (size_t)(end - self->in) + 1;

        *end = '\0';
        if (size > 1 && end[-1] == '\r')
            end[-1] = '\0';
        if (!connection_line(self, ctx, self->in))
            return false;
        self->in_used -= size;
        memmove(self->in, self->in + size, self->in_used);
    }
    if (self->in_used == sizeof self->in) { /* a line that never ends is not a line */
        self->in_used = 0;
        return connection_put(self, "* a line has at most %d bytes", LINE_SIZE - 1);
    }
    return true;
}

/* ---- a connection: the actor ---------------------------------------------------------------- */

static int connection_start(void *state, struct tr_context *ctx)
{
    struct connection *self = state;
    int rc = connection_join(self, ctx, "lobby");

    if (rc < 0)
        return rc;
    connection_put(self, "* hello, %s: /name NAME, /join ROOM, /who, /quit", self->name);
    return connection_watch(self, ctx) == TR_GO ? 0 : TR_EIO;
}

/* A line from the room. */
static enum tr_next connection_handle(void *state, struct tr_context *ctx, void *message)
{
    struct connection *self = state;
    const struct connection_message *m = message;

    return connection_put(self, "%s", m->line) ? connection_watch(self, ctx) : TR_STOP;
}

/* Everything that is not a message: here, readiness of the socket and answers of the room. */
static enum tr_next connection_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct connection *self = state;
    bool ok = true;

    if (event->kind == TR_EVENT_FD)
        ok = !(event->ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) || connection_read(self, ctx);
    else if (event->kind == TR_EVENT_REPLY && event->status < 0)
        ok = connection_put(self, "* the room says no: %s", tr_error_text(event->status));
    else if (event->kind == TR_EVENT_REPLY && event->tag == TAG_JOINED)
        ok = connection_put(self, "* you are in #%s", (const char *)event->value);
    else if (event->kind == TR_EVENT_REPLY && event->tag == TAG_WHO)
        ok = connection_put(self, "* here:%s", (const char *)event->value);
    return ok ? connection_watch(self, ctx) : TR_STOP;
}

/* Asked to end, for whatever reason. DONE means that nobody holds a sender any more: the listener
 * has ended. */
static void connection_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct connection *self = state;

    connection_leave(self, ctx, self->is_slow ? "was too slow" : "left");
    if (why == TR_WHY_DONE)
        connection_put(self, "* the server is going down");
    connection_flush(self);
}

/* The last call. The runtime has stopped watching the descriptor by now. */
static void connection_finish(void *state)
{
    struct connection *self = state;

    tr_sender_drop(&self->room);
    close(self->fd);
}

static const struct tr_type connection_type = {
    .name = "connection",
    .message_size = sizeof(struct connection_message),
    .state_size = sizeof(struct connection),
    .start = connection_start,
    .handle = connection_handle,
    .event = connection_event,
    .stop = connection_stop,
    .finish = connection_finish,
};

/* ---- the listener --------------------------------------------------------------------------- */

/* A new client. The descriptor is the connection's from here on, or closed. */
static void listener_adopt(struct listener *self, struct tr_context *ctx, int fd)
{
    struct connection *connection = calloc(1, sizeof *connection);
    int size = OUT_SIZE; /* the kernel is not to keep more for a slow client than we do */
    uint32_t place = 0;
    int rc = TR_ELIMIT;

    while (place < CLIENTS_MAX && self->clients[place].box != NULL)
        place++;
    if (connection != NULL && place < CLIENTS_MAX && fcntl(fd, F_SETFL, O_NONBLOCK) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0) {
        connection->fd = fd;
        connection->rooms = self->rooms;
        snprintf(connection->name, sizeof connection->name, "guest-%u", ++self->guests % 1000000);
        /* The struct is copied into the actor, which runs on any worker from now on. */
        rc = tr_spawn(tr_system_of(ctx), &connection_type, connection,
            &(struct tr_spawn_options){ .name = connection->name,
                .owner = "listener",
                .box.capacity = BEHIND_MAX,
                .grace_ns = second_ns },
            &self->clients[place]);
    }
    free(connection);
    if (rc < 0) {
        close(fd);
        return;
    }
    /* To hear when it ends, so that its place can be given to somebody else. */
    if (tr_watch(ctx, tr_sender_weaken(self->clients[place]), place) < 0)
        tr_sender_drop(&self->clients[place]);
}

static int listener_start(void *state, struct tr_context *ctx)
{
    const struct listener *self = state;

    return tr_fd_watch(ctx, self->fd, EPOLLIN, 0);
}

static enum tr_next listener_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message; /* it gets none: its sender is only there to be dropped */
    return TR_GO;
}

static enum tr_next listener_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct listener *self = state;
    int fd;

    if (event->kind == TR_EVENT_DOWN) {
        tr_sender_drop(&self->clients[event->tag]);
        return TR_GO;
    }
    while ((fd = accept(self->fd, NULL, NULL)) >= 0)
        listener_adopt(self, ctx, fd);
    return tr_fd_watch(ctx, self->fd, EPOLLIN, 0) < 0 ? TR_FAIL : TR_GO;
}

static void listener_finish(void *state)
{
    struct listener *self = state;

    close(self->fd);
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        tr_sender_drop(&self->clients[i]);
}

static const struct tr_type listener_type = {
    .name = "listener",
    .message_size = sizeof(int),
    .state_size = sizeof(struct listener),
    .start = listener_start,
    .handle = listener_handle,
    .event = listener_event,
    .finish = listener_finish,
};

/* ---- main ----------------------------------------------------------------------------------- */

static void must(int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "tinychat: %s: %s\n", what, tr_error_text(rc));
    exit(1);
}

/* Returns a socket on the loopback interface, and in *port the port it got. */
static int listen_on(uint16_t *port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)
    };
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 64) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        perror("tinychat: listen");
        exit(1);
    }
    *port = ntohs(address.sin_port);
    return fd;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    unsigned long wanted = argc > 1 ? strtoul(argv[1], &end, 10) : 7777;
    uint16_t port = (uint16_t)wanted;
    struct tr_system *system;
    struct tr_registry *rooms;
    struct listener *listener;
    tr_sender top;
    sigset_t signals;
    int signal_number;

    if (argc > 2 || (end != NULL && (*end != '\0' || end == argv[1])) || wanted > 65535) {
        fprintf(stderr, "usage: tinychat [PORT]\n");
        return 2;
    }
    /* Before there are other threads, so that all of them leave these signals to sigwait() below.
     */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    must(tr_system_create(NULL, &system), "system");
    must(tr_registry_create(system,
             &(struct tr_registry_options){ .name = "rooms",
                 .type = &room_type,
                 .make = room_make,
                 .idle_ns = 60 * second_ns,
                 .live_max = ROOMS_MAX },
             &rooms),
        "rooms");
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return 1;
    listener->fd = listen_on(&port);
    listener->rooms = rooms;
    must(tr_spawn(
             system, &listener_type, listener, &(struct tr_spawn_options){ .owner = "main" }, &top),
        "listener");
    free(listener); /* its bytes have moved into the actor */
    printf("tinychat: listening on 127.0.0.1:%u\n", port);
    fflush(stdout);

    sigwait(&signals, &signal_number);

    printf("tinychat: signal %d, dropping the one sender main holds\n", signal_number);
    tr_sender_drop(&top);
    /* The registry keeps rooms for whoever may come: nobody will. It waits until the connections
     * have let go. */
    if (tr_registry_close(&rooms, 5 * second_ns) < 0 || tr_system_join(system, 5 * second_ns) < 0) {
        tr_system_holders(system, stderr); /* the holders of every actor's senders */
        return 1;
    }
    tr_system_destroy(&system);
    printf("tinychat: everybody has left\n");
    return 0;
}
