/* SPDX-License-Identifier: Apache-2.0 */
/* Admin routes of services: they answer while their service runs, to who may ask. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "ops/admin.h"
#include "ops/service.h"
#include "web.h"

static void tell(struct http_request *request, void *state)
{
    http_respond(request, 200, "text/plain", tr_span_of(state));
}

static const struct service_admin_route offered[] = {
    { HTTP_GET, "/v1/things/{id}", tell },
    { HTTP_POST, "/v1/things", tell },
};
static const struct service thing_service = {
    .name = "things", .admin_routes = offered, .admin_route_count = 2
};
static const struct service other_service = { .name = "others" };

struct stage {
    char place[64];
    char token[128];
    struct tr_system *system;
    struct admin *admin;
};

static void stage_begin(struct stage *stage)
{
    const struct service *services[] = { &other_service, &thing_service };
    char why[256] = "", path[96];
    FILE *file;

    web_place_make(stage->place);
    (void)snprintf(path, sizeof path, "%s/token", stage->place);
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 1 }, &stage->system), 0);
    CHECK_MSG(admin_start(stage->system,
                  &(struct admin_options){ .listen = "127.0.0.1:0",
                      .token_path = path,
                      .version = "1",
                      .data_path = stage->place,
                      .services = services,
                      .service_count = 2 },
                  why, sizeof why, &stage->admin) == 0,
        "%s", why);
    (void)snprintf(stage->token, sizeof stage->token, "Authorization: Bearer ");
    file = fopen(path, "r");
    CHECK(file != NULL && fgets(stage->token + 22, 100, file) != NULL);
    CHECK_EQ_INT(fclose(file), 0);
    (void)snprintf(stage->token + strcspn(stage->token, "\n"), 3, "\r\n");
}

static void stage_end(struct stage *stage)
{
    admin_stop(&stage->admin);
    tr_system_destroy(&stage->system);
    web_place_remove(stage->place);
}

static void expect(const struct stage *stage, const char *method, const char *path,
    const char *header, unsigned status, const char *part)
{
    struct web_answer answer = web_ask(admin_address(stage->admin), method, path, header, "");

    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL, "%s", answer.text);
    web_answer_free(&answer);
}

TEST(offer, is_answered_while_its_service_runs)
{
    char state[] = "what it knows";
    struct stage stage;

    stage_begin(&stage);
    expect(&stage, "GET", "/v1/things/1", "", 503, "Retry-After");
    admin_set_state(stage.admin, &other_service, state);
    expect(&stage, "GET", "/v1/things/1", "", 503, "Overloaded");
    admin_set_state(stage.admin, &thing_service, state);
    expect(&stage, "GET", "/v1/things/1", "", 200, "what it knows");
    admin_remove_checks(stage.admin);
    expect(&stage, "GET", "/v1/things/1", "", 503, "Overloaded");
    stage_end(&stage);
}

TEST(offer, that_changes_something_needs_the_token)
{
    char state[] = "what it did";
    struct stage stage;

    stage_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    expect(&stage, "POST", "/v1/things", "", 401, "AuthRequired");
    expect(&stage, "POST", "/v1/things", stage.token, 200, "what it did");
    stage_end(&stage);
}
