/* SPDX-License-Identifier: Apache-2.0 */
/* The output and the exit status of `troupe check packs`. */
#include "../packs/site.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "server/server.h"
#include "services/packs/check.h"

const struct service *const server_services[] = { &delivery_service, &packs_service, &users_service,
    NULL };
const struct cli_check cli_checks[] = { { .name = "packs", .run_in = packs_check },
    { .name = NULL } };

/* The exit status of the command; *text gets its stdout. */
static int troupe_check(const struct site *site, bool is_json, char text[4096])
{
    char path[128], data[128], db[300],
        *argv[] = { (char *)(uintptr_t) "check", (char *)(uintptr_t) "packs", data, db,
            (char *)(uintptr_t) "--json" };
    int status, fd, out = dup(STDOUT_FILENO);
    ssize_t size;

    (void)snprintf(data, sizeof data, "--data=%s", site->place);
    (void)snprintf(db, sizeof db, "--db=%s", site->url);
    (void)snprintf(path, sizeof path, "%s/said", site->place);
    CHECK_EQ_INT(fflush(stdout), 0);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
    status = cmd_check.run(&cmd_check, is_json ? 5 : 4, argv);
    CHECK_EQ_INT(fflush(stdout), 0);
    CHECK(dup2(out, STDOUT_FILENO) >= 0);
    close(out);
    size = pread(fd, text, 4095, 0);
    CHECK(size >= 0);
    text[size] = '\0';
    close(fd);
    return status;
}

TEST(check_packs, says_sound_damaged_or_that_it_could_not_look)
{
    char text[4096], path[192];
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    CHECK_EQ_INT(troupe_check(&site, false, text), 2); /* the server has the file */
    site_close(&site);
    CHECK_EQ_INT(troupe_check(&site, false, text), 0);
    CHECK_EQ_STR(text, "packs: sound\n");
    site_object_path(&site, "one", path);
    CHECK_EQ_INT(unlink(path), 0);
    CHECK_EQ_INT(troupe_check(&site, false, text), 1);
    CHECK(strstr(text, "rows      core 1.0.0: Its object ") != NULL);
    CHECK(strstr(text, "packs: 1 violation\n") != NULL);
    CHECK_EQ_INT(troupe_check(&site, true, text), 1);
    CHECK(strstr(text, "\"check\":\"rows\",\"subject\":\"core 1.0.0\"") != NULL);
    CHECK(strstr(text, "\"count\":1,\"sound\":false}") != NULL);
    site_open(&site);
    site_end(&site);
}

/* After the restore of an older backup objects are left that no version needs: the data is sound. */
TEST(check_packs, notes_what_does_no_harm)
{
    char text[4096];
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_write_object(&site, "bytes of nobody");
    site_close(&site);
    CHECK_EQ_INT(troupe_check(&site, false, text), 0);
    CHECK(strstr(text, ": No version and no upload has this object; it may be deleted ") != NULL);
    CHECK(strncmp(text, "note      ", 10) == 0);
    CHECK(strstr(text, "\npacks: sound\n") != NULL);
    CHECK_EQ_INT(troupe_check(&site, true, text), 0);
    CHECK(strstr(text, "{\"violations\":[],\"notes\":[{\"check\":\"note\",") != NULL);
    CHECK(strstr(text, "\"count\":0,\"sound\":true}") != NULL);
    site_open(&site);
    site_end(&site);
}

/* A backup has no incoming directory: the check reports no loss and creates nothing. */
TEST(check_packs, needs_no_incoming)
{
    char text[4096], path[192];
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_close(&site);
    (void)snprintf(path, sizeof path, "%s/packs/incoming", site.place);
    CHECK_EQ_INT(rmdir(path), 0);
    CHECK_EQ_INT(troupe_check(&site, false, text), 0);
    CHECK_EQ_STR(text, "packs: sound\n");
    CHECK(access(path, F_OK) != 0);
    site_open(&site);
    site_end(&site);
}

/* A directory that cannot be opened is no violation: the exit status is 2. */
TEST(check_packs, says_that_a_folder_cannot_be_opened)
{
    static const char *const names[] = { "objects", "incoming" };
    char text[4096], path[192], aside[192];
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_close(&site);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/packs/%s", site.place, names[i]);
        (void)snprintf(aside, sizeof aside, "%s/aside", site.place);
        CHECK_EQ_INT(rename(path, aside), 0);
        site_write_file(path, "not a folder");
        CHECK_EQ_INT(troupe_check(&site, false, text), 2);
        CHECK_EQ_STR(text, "");
        CHECK_EQ_INT(unlink(path), 0);
        CHECK_EQ_INT(rename(aside, path), 0);
    }
    CHECK_EQ_INT(troupe_check(&site, false, text), 0);
    site_open(&site);
    site_end(&site);
}

/* The check creates no directory. */
TEST(check_packs, makes_no_folder)
{
    char text[4096], path[128];
    struct site site;

    site_begin(&site);
    site_close(&site);
    (void)snprintf(path, sizeof path, "%s/packs", site.place);
    CHECK_EQ_INT(nftw(path, site_remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    CHECK_EQ_INT(troupe_check(&site, false, text), 0);
    CHECK(access(path, F_OK) != 0);
    site_open(&site);
    site_end(&site);
}
