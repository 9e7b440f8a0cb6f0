/* SPDX-License-Identifier: Apache-2.0 */
/* The output and the exit status of `troupe check delivery`. */
#include <fcntl.h>

#include "../delivery/convo_acts.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "delivery_tables.h"
#include "server/server.h"
#include "services/delivery/store/check.h"

static struct service alone; /* delivery, without those between its migrations */
const struct service *const server_services[] = { &alone, NULL };
const struct cli_check cli_checks[] = { { .name = "delivery", .run = delivery_check },
    { .name = NULL } };

/* The exit status of the command; *text gets its stdout. */
static int troupe_check(const char *place, char *const arguments[4], char text[4096])
{
    char path[128], *argv[8] = { (char *)(uintptr_t) "check" };
    int argc = 1, status, fd, out = dup(STDOUT_FILENO);
    ssize_t size;

    (void)snprintf(path, sizeof path, "%s/said", place);
    for (int i = 0; i < 4 && arguments[i] != NULL; i++)
        argv[argc++] = arguments[i];
    CHECK_EQ_INT(fflush(stdout), 0);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
    status = cmd_check.run(&cmd_check, argc, argv);
    CHECK_EQ_INT(fflush(stdout), 0);
    CHECK(dup2(out, STDOUT_FILENO) >= 0);
    close(out);
    size = pread(fd, text, 4095, 0);
    CHECK(size >= 0);
    text[size] = '\0';
    close(fd);
    return status;
}

TEST(check, says_sound_damaged_or_that_it_could_not_look)
{
    char text[4096], db[128], place[64], missing[128], *json = (char *)(uintptr_t) "--json";
    char *delivery = (char *)(uintptr_t) "delivery", *other = (char *)(uintptr_t) "packs";
    struct sql_migration *tables;
    struct cast cast;
    size_t count;

    tables = delivery_tables(&count);
    alone = delivery_service;
    alone.migrations = tables + auth_migration_count;
    alone.migration_count = count - auth_migration_count;
    web_place_make(place);
    cast_begin(&cast);
    (void)snprintf(db, sizeof db, "--db=sqlite:%s/delivery.db", cast.site.place);
    (void)snprintf(missing, sizeof missing, "--db=sqlite:%s/none.db", cast.site.place);
    site_close(&cast.site);
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ delivery, db }, text), 0);
    CHECK_EQ_STR(text, "delivery: sound\n");
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ delivery, db, json }, text), 0);
    CHECK_EQ_STR(text,
        "{\"violations\":[],\"notes\":[],\"checked\":\"delivery\",\"count\":0,\"sound\":true}\n");

    site_open(&cast.site);
    plant(&cast.site, "UPDATE convos SET epoch = 7");
    site_close(&cast.site);
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ delivery, db }, text), 1);
    CHECK(strstr(text, "epoch     g1: its epoch is 7, its newest commit leads to 1") != NULL);
    CHECK(strstr(text, "delivery: 1 violation\n") != NULL);
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ delivery, db, json }, text), 1);
    CHECK(strstr(text, "{\"check\":\"epoch\",\"subject\":\"g1\",") != NULL);
    CHECK(strstr(text, "\"count\":1,\"sound\":false}") != NULL);

    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ delivery, missing }, text), 2);
    CHECK(access(missing + strlen("--db=sqlite:"), F_OK) != 0); /* none was made */
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ other, db }, text), 2);
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ NULL }, text), 2);
    site_open(&cast.site);
    CHECK_EQ_INT(troupe_check(place, (char *const[4]){ delivery, db }, text), 2); /* in use */
    cast_end(&cast);
    web_place_remove(place);
    free(tables);
}
