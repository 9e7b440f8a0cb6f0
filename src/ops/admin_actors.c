/* SPDX-License-Identifier: Apache-2.0 */
/* admin_actors.c: GET /v1/actors: the supervision tree. Conversations and connections may be many
 * and stand outside the tree, so the answer only counts them. */
#include <string.h>

#include <troupe/inspect.h>

#include "base/alloc.h"
#include "json/json_write.h"
#include "ops/admin_private.h"

enum { ACTORS_BYTES_MAX = 1 << 20 };

struct actors_job {
    struct tr_system *system;
    struct buffer body;
    struct json_writer writer;
    uint64_t other_count;
};

static bool put_actor(void *data, const struct tr_actor_info *info)
{
    struct actors_job *job = data;

    if (info->supervisor == 0 && strcmp(info->type, "supervisor") != 0) {
        job->other_count++;
        return true;
    }
    json_put_object(&job->writer, NULL);
    json_put_int(&job->writer, "id", (int64_t)info->id);
    json_put_int(&job->writer, "supervisor", (int64_t)info->supervisor);
    json_put_text(&job->writer, "name", info->name);
    json_put_text(&job->writer, "type", info->type);
    json_put_text(&job->writer, "doing", tr_doing_text(info->doing));
    json_put_int(&job->writer, "restarts", info->restarts);
    json_put_int(&job->writer, "queued", info->depth);
    json_put_int(&job->writer, "handled", (int64_t)info->handled);
    json_put_end(&job->writer);
    return true;
}

/* On the blocking pool: this walks every actor. */
static int write_actors(void *argument)
{
    struct actors_job *job = argument;

    job->writer = json_writer(&job->body);
    json_put_object(&job->writer, NULL);
    json_put_array(&job->writer, "actors");
    tr_inspect(job->system, put_actor, job);
    json_put_end(&job->writer);
    json_put_int(&job->writer, "others", (int64_t)job->other_count);
    json_put_end(&job->writer);
    return job->body.failed;
}

static void actors_job_destroy(void *argument)
{
    struct actors_job *job = argument;

    buffer_free(&job->body);
    base_free(job);
}

static void on_actors(struct http_request *request, const struct tr_event *event)
{
    struct actors_job *job = (struct actors_job *)(uintptr_t)event->value;

    if (event->status != 0)
        http_respond_error(
            request, 503, "OutOfMemory", "The server is out of memory; retry later.");
    else
        http_respond_buffer(request, 200, "application/json", &job->body);
    actors_job_destroy(job);
}

void admin_handle_actors(struct http_request *request)
{
    const struct admin *admin = http_service(request);
    struct actors_job *job = base_calloc(sizeof *job);

    if (job != NULL) {
        *job = (struct actors_job){ .system = admin->system, .body.size_max = ACTORS_BYTES_MAX };
        if (http_offload(request, write_actors, job, actors_job_destroy, on_actors) == 0)
            return;
        actors_job_destroy(job);
    }
    http_respond_error(request, 503, "OutOfMemory", "The server is out of memory; retry later.");
}
