/* SPDX-License-Identifier: Apache-2.0 */
/* Releases: their required roles, and that a published release never changes. */
#include "site.h"

/* A draft of this name; its id, in memory that is the caller's. */
static char *draft(struct site *site, const char *body)
{
    return ask_for(site, TOKEN, "POST admin/releases", body, 201, "release_id");
}

static void want_of(struct site *site, const char *id, const char *method, const char *act,
    const char *body, unsigned status, const char *parts)
{
    char call[160];

    (void)snprintf(call, sizeof call, "%s admin/releases/%s%s", method, id, act);
    want(site, TOKEN, call, body, status, parts);
}

static void want_manifest(struct site *site, const char *id, unsigned status, const char *parts)
{
    char call[160];

    (void)snprintf(call, sizeof call, "GET releases/%s/manifest", id);
    want(site, ANYONE, call, NULL, status, parts);
}

TEST(release, goes_from_draft_to_published_to_deprecated_and_never_back)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    id = draft(&site, "{'name':'spring','notes':'what is new'}");
    want_manifest(&site, id, 404, "ReleaseNotFound");
    want_of(&site, id, "POST", "/deprecate", NULL, 409, "ReleaseNotPublished");
    want_of(&site, id, "POST", "/artifacts", "{'package_id':'core','artifact_role':'content'}", 200,
        "'package_id':'core'|'required':true|'artifact_role':'content'|'version':'1.0.0'|"
        "'status':'draft'");
    want_of(&site, id, "POST", "/validate", NULL, 200, "{'failures':[],'valid':true}");
    want(&site, ANYONE, "GET releases/latest", NULL, 404, "ReleaseNotFound");
    want_of(&site, id, "POST", "/publish", NULL, 200, "'status':'published'|published_ms");
    want_manifest(&site, id, 200,
        "'name':'spring'|'notes':'what is new'|'package_id':'core'|'version':'1.0.0'|"
        "'file_size_bytes':3|'download_url':'/v1/packs/core/versions/1.0.0/download'");
    want(&site, ANYONE, "GET releases/latest", NULL, 200, "spring");
    want_of(&site, id, "POST", "/publish", NULL, 409, "ReleaseNotDraft");
    want_of(&site, id, "POST", "/validate", NULL, 409, "ReleaseNotDraft");
    want_of(&site, id, "POST", "/artifacts", "{'package_id':'core','artifact_role':'x'}", 409,
        "ReleaseNotDraft");
    want_of(&site, id, "DELETE", "/artifacts/core", NULL, 409, "ReleaseNotDraft");
    want_of(&site, id, "POST", "/deprecate", NULL, 200, "'status':'deprecated'");
    want_of(&site, id, "POST", "/deprecate", NULL, 200, "'status':'deprecated'");
    want_of(&site, id, "POST", "/publish", NULL, 409, "ReleaseNotDraft");
    want_manifest(&site, id, 404, "ReleaseNotFound");
    want(&site, ANYONE, "GET releases/latest", NULL, 404, "ReleaseNotFound");
    free(id);
    site_end(&site);
}

/* The fifth defect: the manifest of a published release followed the active versions. */
TEST(defect_5, a_published_release_is_pinned_whatever_is_published_after)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    id = draft(&site, "{'name':'spring'}");
    want_of(&site, id, "POST", "/artifacts", "{'package_id':'core','artifact_role':'content'}", 200,
        "1.0.0");
    want_of(&site, id, "POST", "/publish", NULL, 200, "1.0.0");
    site_add_version(&site, "core", "2.0.0", "two two");
    site_publish(&site, "core", "2.0.0");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "2.0.0");
    want_manifest(&site, id, 200,
        "'version':'1.0.0'|'file_size_bytes':3|"
        "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
    want(&site, ANYONE, "GET releases/latest", NULL, 200, "'version':'1.0.0'");
    /* Nor does it follow what happens to the version's row. */
    want(&site, TOKEN, "POST admin/packs/core/disable", NULL, 200, "null");
    want_manifest(&site, id, 200, "'version':'1.0.0'|'file_size_bytes':3");
    site_close(&site);
    site_open(&site);
    want_manifest(&site, id, 200, "'version':'1.0.0'|'file_size_bytes':3");
    free(id);
    site_end(&site);
}

TEST(release, says_everything_that_is_wrong_with_a_draft)
{
    struct site site;
    char *id;

    site_begin(&site);
    id = draft(&site, "{'name':'spring','required_roles':['core_content_db','knowledge_graph']}");
    want_of(&site, id, "POST", "/validate", NULL, 200,
        "'valid':false|'no_artifacts'|"
        "{'reason':'missing_required_roles','artifact_role':'core_content_db'}|"
        "{'reason':'missing_required_roles','artifact_role':'knowledge_graph'}");
    want_of(&site, id, "POST", "/publish", NULL, 422, "ReleaseInvalid|'no_artifacts'");
    site_register(&site, "core");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'core','artifact_role':'core_content_db'}", 200, "core");
    want_of(&site, id, "POST", "/publish", NULL, 422,
        "{'reason':'package_not_published','package_id':'core'}|knowledge_graph");
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'graph'}", 201, "graph"); /* no name */
    site_add_version(&site, "graph", "1", "graph");
    site_publish(&site, "graph", "1");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'graph','artifact_role':'knowledge_graph'}", 200, "graph");
    want_of(&site, id, "POST", "/publish", NULL, 422,
        "{'reason':'package_metadata_missing','package_id':'graph'}");
    want(&site, TOKEN, "PATCH admin/packs/graph", "{'name':'The graph'}", 200, "The graph");
    site_add_version(&site, "core", "1.0.0", "one");
    site_publish(&site, "core", "1.0.0");
    want_of(&site, id, "POST", "/publish", NULL, 200, "published");
    CHECK_EQ_INT(
        site_number(&site, "SELECT COUNT(*) FROM pack_artifacts WHERE version IS NOT NULL"), 2);
    free(id);
    site_end(&site);
}

/* A role counts when the artifact that has it is required. */
TEST(release, wants_its_roles_among_the_required_artifacts)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    id = draft(&site, "{'name':'spring','required_roles':['content']}");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'core','artifact_role':'content','required':false}", 200,
        "'required':false");
    want_of(&site, id, "POST", "/publish", NULL, 422, "missing_required_roles");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'core','artifact_role':'content','required':true}", 200, "'required':true");
    want_of(&site, id, "POST", "/publish", NULL, 200, "published");
    free(id);
    site_end(&site);
}

TEST(release, pins_the_version_it_names_and_else_the_active_one)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    site_add_version(&site, "core", "1.2.0", "never published");
    site_publish(&site, "core", "1.1.0");
    site_add_pack(&site, "extra", "7", "extra");
    id = draft(&site, "{'name':'spring'}");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'core','artifact_role':'content','version':'9.9.9'}", 404,
        "VersionNotFound");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'core','artifact_role':'content','version':'1.2.0'}", 200,
        "'wanted_version':'1.2.0'");
    want_of(&site, id, "POST", "/publish", NULL, 422, "package_not_published");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'core','artifact_role':'content','version':'1.0.0'}", 200,
        "'wanted_version':'1.0.0'");
    want_of(&site, id, "POST", "/artifacts",
        "{'package_id':'extra','artifact_role':'more','required':false}", 200, "extra");
    want_of(&site, id, "POST", "/publish", NULL, 200, "published");
    want_manifest(&site, id, 200, "'version':'1.0.0'|'package_id':'extra'");
    want_not(&site, ANYONE, "GET releases/latest", 200, "extra"); /* required ones alone */
    free(id);
    site_end(&site);
}

TEST(release, lets_a_draft_be_changed)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    id = draft(&site, "{'name':'spring'}");
    want(&site, TOKEN, "POST admin/releases", "{'name':'spring'}", 409, "ReleaseExists");
    want_of(&site, id, "POST", "/artifacts", "{'package_id':'core','artifact_role':'content'}", 200,
        "core");
    want_of(&site, id, "DELETE", "/artifacts/none", NULL, 404, "PackNotFound");
    want_of(&site, id, "DELETE", "/artifacts/core", NULL, 200, "'artifacts':[]");
    want_of(&site, id, "DELETE", "/artifacts/core", NULL, 404, "ArtifactNotFound");
    want_of(&site, id, "GET", "", NULL, 200, "spring");
    want(&site, TOKEN, "GET admin/releases", NULL, 200, "'name':'spring'|'artifact_count':0");
    free(id);
    site_end(&site);
}

TEST(release, refuses_what_is_none)
{
    struct site site;
    char *id;

    site_begin(&site);
    want(&site, TOKEN, "POST admin/releases", "{}", 400, "name is missing.");
    want(&site, TOKEN, "POST admin/releases", "{'name':'x','required_roles':['A']}", 400,
        "required_roles");
    want(&site, TOKEN, "POST admin/releases", "{'name':'x','required_roles':['a,b']}", 400,
        "required_roles");
    want(&site, TOKEN, "GET admin/releases/none", NULL, 404, "ReleaseNotFound");
    want(&site, TOKEN, "POST admin/releases/none/artifacts",
        "{'package_id':'core','artifact_role':'content'}", 404, "ReleaseNotFound");
    id = draft(&site, "{'name':'spring'}");
    want_of(
        &site, id, "POST", "/artifacts", "{'package_id':'core'}", 400, "artifact_role is missing.");
    want_of(&site, id, "POST", "/artifacts", "{'package_id':'../x','artifact_role':'a'}", 400,
        "package_id must");
    want_of(&site, id, "POST", "/artifacts", "{'package_id':'none','artifact_role':'a'}", 404,
        "PackNotFound");
    free(id);
    site_end(&site);
}

TEST(release, the_newest_published_one_is_the_latest)
{
    char *first, *second;
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    first = draft(&site, "{'name':'spring'}");
    second = draft(&site, "{'name':'summer'}");
    want_of(&site, first, "POST", "/artifacts", "{'package_id':'core','artifact_role':'a'}", 200,
        "core");
    want_of(&site, second, "POST", "/artifacts", "{'package_id':'core','artifact_role':'a'}", 200,
        "core");
    want_of(&site, second, "POST", "/publish", NULL, 200, "summer");
    want(&site, ANYONE, "GET releases/latest", NULL, 200, "summer");
    want_of(&site, first, "POST", "/publish", NULL, 200, "spring");
    want(&site, ANYONE, "GET releases/latest", NULL, 200, "spring");
    want_of(&site, first, "POST", "/deprecate", NULL, 200, "deprecated");
    want(&site, ANYONE, "GET releases/latest", NULL, 200, "summer");
    free(first);
    free(second);
    site_end(&site);
}
