/* SPDX-License-Identifier: Apache-2.0 */
/* `troupe check packs` finds each kind of planted damage. */
#include "services/packs/check.h"
#include "site.h"

struct found {
    int count;
    char text[4096];
};

static void on_violation(void *data, const char *check, struct span subject, const char *text)
{
    struct found *found = data;
    size_t size = strlen(found->text);

    found->count++;
    (void)snprintf(found->text + size, sizeof found->text - size, "%s %.*s: %s\n", check,
        (int)subject.size, subject.at, text);
}

/* Exactly so many violations and notes, and each of the parts (with | between them) among them. */
static void want_notes(const struct site *site, int count, int notes, const char *parts)
{
    struct found found = { 0 };
    char *rest = strdup(parts), *at = rest, *part;
    uint64_t violations = 99;

    CHECK_EQ_INT(packs_check(site->sql, site->place, on_violation, &found, &violations), 0);
    CHECK_MSG(found.count == count + notes, "wanted %d, found:\n%s", count, found.text);
    CHECK_EQ_INT(violations, count);
    while ((part = strsep(&at, "|")) != NULL)
        CHECK_MSG(strstr(found.text, part) != NULL, "wanted %s in:\n%s", part, found.text);
    free(rest);
}

static void want_found(const struct site *site, int count, const char *parts)
{
    want_notes(site, count, 0, parts);
}

static void begin(struct site *site)
{
    site_begin(site);
    site_add_pack(site, "core", "1.0.0", "first bytes");
    site_add_version(site, "core", "1.1.0", "second bytes");
    want_found(site, 0, "");
}

TEST(check, finds_nothing_in_what_is_sound)
{
    struct site site;

    site_begin(&site);
    want_found(&site, 0, "");
    site_register(&site, "draft");
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    site_add_pack(&site, "twin", "7", "first bytes"); /* one object for both */
    site_add_version(&site, "core", "1.1.0", "second bytes");
    site_publish(&site, "core", "1.1.0");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "1.0.0");
    want(&site, TOKEN, "POST admin/packs/twin/disable", NULL, 200, "null");
    want_found(&site, 0, "");
    site_end(&site);
}

/* Uploads whose files are gone are told of, and nothing else. */
TEST(check, takes_a_missing_incoming_for_an_empty_one)
{
    char path[192];
    struct site site;

    begin(&site);
    (void)snprintf(path, sizeof path, "%s/packs/incoming", site.place);
    CHECK_EQ_INT(rmdir(path), 0);
    want_found(&site, 0, "");
    CHECK_MSG(access(path, F_OK) != 0, "the check has made it");
    (void)snprintf(path, sizeof path, "%s/packs/objects", site.place);
    CHECK_EQ_INT(nftw(path, site_remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    want_found(&site, 2, "rows core 1.0.0: Its object|rows core 1.1.0: Its object");
    site_end(&site);
}

TEST(check, finds_objects_that_are_missing_or_nobodys)
{
    char path[192];
    struct site site;

    begin(&site);
    site_object_path(&site, "second bytes", path);
    CHECK_EQ_INT(unlink(path), 0);
    want_found(&site, 1, "rows core 1.1.0: Its object");
    site_write_object(&site, "bytes of nobody");
    want_notes(&site, 1, 1, "rows core 1.1.0|note |No version and no upload");
    (void)snprintf(path, sizeof path, "%s/packs/objects/README", site.place);
    site_write_file(path, "hello");
    want_notes(&site, 1, 2, "note README: No version");
    site_end(&site);
}

TEST(check, finds_objects_that_are_not_what_they_were)
{
    char path[192];
    struct site site;

    begin(&site);
    site_object_path(&site, "first bytes", path);
    CHECK_EQ_INT(chmod(path, 0600), 0);
    site_write_file(path, "First bytes"); /* the same size */
    want_found(&site, 1, "content core 1.0.0: The bytes of its object have another digest");
    site_write_file(path, "first byte");
    want_found(&site, 1, "content core 1.0.0: Its row says 11 bytes, and its object has 10.");
    site_end(&site);
}

TEST(check, finds_what_is_left_in_incoming)
{
    char path[192];
    struct site site;

    begin(&site);
    (void)snprintf(
        path, sizeof path, "%s/packs/incoming/0123456789abcdef0123456789abcdef", site.place);
    site_write_file(path, "part of it");
    want_notes(
        &site, 0, 1, "note 0123456789abcdef0123456789abcdef: This file belongs to no upload");
    site_plant(&site, "INSERT INTO pack_uploads (id, pack, version, sha256, size, media_type,"
                      " created_by, created_ms) SELECT '0123456789abcdef0123456789abcdef', pack,"
                      " '2.0.0', sha256, 20, 'x/y', 'me', 1 FROM pack_versions WHERE version ="
                      " '1.1.0'");
    want_found(&site, 0, "");
    site_plant(&site, "UPDATE pack_uploads SET sha256 = (SELECT sha256 FROM pack_versions WHERE"
                      " version = '1.0.0')");
    CHECK_EQ_INT(unlink(path), 0);
    want_found(&site, 0, ""); /* it is complete: its bytes are an object already */
    site_plant(&site, "DELETE FROM pack_uploads");
    site_plant(&site,
        SITE_ON_POSTGRES
            ? "INSERT INTO pack_uploads (id, pack, version, sha256, size, media_type, created_by,"
              " created_ms) SELECT 'feed', id, '3', '\\x00'::bytea, 20, 'x/y', 'me', 1 FROM packs"
            : "INSERT INTO pack_uploads (id, pack, version, sha256, size, media_type, created_by,"
              " created_ms) SELECT 'feed', id, '3', x'00', 20, 'x/y', 'me', 1 FROM packs");
    want_notes(&site, 0, 1, "note feed: This upload has no file");
    site_end(&site);
}

TEST(check, finds_packs_without_their_one_active_version)
{
    struct site site;

    begin(&site);
    site_plant(&site, "UPDATE pack_versions SET is_active = 0");
    want_found(&site, 1, "active core: A published pack must have one active version");
    site_plant(&site, "UPDATE pack_versions SET is_active = 1 WHERE version = '1.1.0'");
    want_found(&site, 2,
        "active core: Its active version 1.1.0 is disabled, or was never published|"
        "Its active version 1.1.0 is not the one that was published last");
    site_plant(&site, "UPDATE pack_versions SET is_active = 0");
    site_plant(&site, "UPDATE pack_versions SET is_active = 1 WHERE version = '1.0.0'");
    want_found(&site, 0, "");
    site_plant(&site, "UPDATE packs SET state = 2");
    want_found(&site, 1,
        "active core: A published pack must have one active version, and any other pack none");
    site_plant(&site, "UPDATE packs SET state = 1");
    /* More than one can only be without the index that forbids it. */
    site_plant(&site, "DROP INDEX pack_versions_active");
    site_plant(&site, "UPDATE pack_versions SET is_active = 1, published_ms = 1");
    want_found(&site, 2, "active core: A published pack|not the one that was published last");
    site_end(&site);
}

TEST(check, finds_releases_that_are_not_what_was_pinned)
{
    struct site site;
    char call[160], *id;

    begin(&site);
    id = ask_for(&site, TOKEN, "POST admin/releases", "{'name':'spring'}", 201, "release_id");
    (void)snprintf(call, sizeof call, "POST admin/releases/%s/artifacts", id);
    want(&site, TOKEN, call, "{'package_id':'core','artifact_role':'a'}", 200, "core");
    want_found(&site, 0, "");
    (void)snprintf(call, sizeof call, "POST admin/releases/%s/publish", id);
    want(&site, TOKEN, call, NULL, 200, "published");
    want_found(&site, 0, "");
    site_plant(&site, "UPDATE pack_artifacts SET size = 3");
    want_found(&site, 1,
        "releases spring: It is published, and its artifact core differs from what was pinned");
    site_plant(&site, "UPDATE pack_artifacts SET size = 11");
    site_plant(&site, "UPDATE pack_releases SET state = 0");
    want_found(&site, 1, "releases spring: It is a draft, and its artifact core is pinned");
    free(id);
    site_end(&site);
}
