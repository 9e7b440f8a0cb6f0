/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>

#include "objects_site.h"

static const char id[] = "00112233445566778899aabbccddeeff";

/* An object of these bytes; its name. */
static void make_object(const struct objects_site *site, const char *text, char hex[65])
{
    uint8_t digest[32];

    digest_of(text, strlen(text), digest, hex);
    put_object(site, hex, text, strlen(text));
}

TEST(objects, object_is_opened_by_its_digest)
{
    struct objects_site site;
    struct file_identity identity, again;
    char hex[65], bytes[8];
    int fd = -1;

    objects_site_open(&site);
    make_object(&site, "hello", hex);
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity), 0);
    CHECK_EQ_U64(identity.size, 5);
    CHECK_EQ_INT(read(fd, bytes, sizeof bytes), 5);
    CHECK_EQ_INT(file_identify(fd, &again), 0);
    CHECK(file_identity_equal(&identity, &again));
    CHECK_EQ_INT(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
    hex[3] = hex[3] == '0' ? '1' : '0';
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity), TR_ENOENT);
    objects_site_close(&site);
}

/* Everything else than a plain file stands there. */
TEST(objects, what_is_no_plain_file_is_not_opened)
{
    struct objects_site site;
    struct file_identity identity;
    char hex[65], path[256], secret[256];
    int fd = -1;

    objects_site_open(&site);
    make_object(&site, "to be replaced", hex);
    object_path(&site, hex, path);
    snprintf(secret, sizeof secret, "%s/secret", site.path);
    put_file(secret, "secret", 6);

    CHECK_EQ_INT(unlink(path), 0);
    CHECK_EQ_INT(symlink(secret, path), 0);
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity), TR_EACCES);
    CHECK_EQ_INT(unlink(path), 0);
    CHECK_EQ_INT(mkdir(path, 0755), 0);
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity), TR_EACCES);
    CHECK_EQ_INT(rmdir(path), 0);
    CHECK_EQ_INT(mkfifo(path, 0644), 0); /* and does not wait for a writer */
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity), TR_EACCES);
    CHECK_EQ_INT(fd, -1);
    objects_site_close(&site);
}

/* ---- names that lead elsewhere -------------------------------------------------------------- */

enum { NAMES = 200 };
static char names[NAMES + 64][300];
static unsigned name_count;

static void add(const char *before, const char *text, const char *after)
{
    CHECK(name_count < NAMES + 64);
    snprintf(names[name_count++], sizeof names[0], "%s%s%s", before, text, after);
}

static void make_names(const char *folder)
{
    static const char *const before[] = { "", "./", "../", "../../", "../../../", "../objects/../",
        "/../", "//", "x/../../", "..//", "./.././", "..\\", "..%2f", "%2e%2e/", "..;/", "....//",
        " ../", "link/", "up/", "up/../up/", "root/" };
    static const char *const after[] = { "/", "/.", "/..", " " };
    static const char *const targets[] = { "secret", "packs/../secret", "etc/passwd", "incoming/x",
        "proc/self/environ", "up/secret", "link" };
    char absolute[200];

    for (size_t j = 0; j < sizeof targets / sizeof targets[0]; j++) {
        for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
            add(before[i], targets[j], "");
        for (size_t i = 0; i < sizeof after / sizeof after[0]; i++)
            add("", targets[j], after[i]);
    }
    snprintf(absolute, sizeof absolute, "%s/secret", folder);
    add("", absolute, "");
    add("/proc/self/root", absolute, "");
    add("/proc/self/cwd/", "secret", "");
    add("/dev/fd/", "0", "");
    add("", "", "");
    add("", ".", "");
    add("", "..", "");
    add("", "/", "");
    add("", "magic/0", "");
    add("", "secret\xc0\xae\xc0\xae", "");
    for (unsigned i = 0; name_count < NAMES; i++) {
        char text[300];
        size_t used = 0;

        for (unsigned up = 0; up <= i % 12; up++)
            used += (size_t)snprintf(text + used, sizeof text - used, "../");
        snprintf(text + used, sizeof text - used, "%.*s/secret", (int)(i % 40), folder + 1);
        add("", text, "");
    }
}

/* Is this one of the files that must not be reached? */
static bool is_outside(const struct objects_site *site, int fd)
{
    char folder[256], here[300], link[64];
    ssize_t size;

    snprintf(folder, sizeof folder, "%s/packs/objects", site->path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, here, sizeof here - 1);
    CHECK(size > 0);
    here[size] = '\0';
    return strncmp(here, folder, strlen(folder)) != 0;
}

TEST(objects, no_name_of_two_hundred_leads_out)
{
    struct objects_site site;
    struct file_identity identity;
    char path[256], target[256];
    unsigned escapes = 0, opened = 0;
    int folder, fd;

    objects_site_open(&site);
    snprintf(path, sizeof path, "%s/secret", site.path);
    put_file(path, "secret", 6);
    /* Links that somebody left there. */
    snprintf(path, sizeof path, "%s/packs/objects/up", site.path);
    CHECK_EQ_INT(symlink("../..", path), 0);
    snprintf(path, sizeof path, "%s/packs/objects/root", site.path);
    CHECK_EQ_INT(symlink("/", path), 0);
    snprintf(path, sizeof path, "%s/packs/objects/magic", site.path);
    CHECK_EQ_INT(symlink("/proc/self/fd", path), 0);
    snprintf(path, sizeof path, "%s/packs/objects/link", site.path);
    snprintf(target, sizeof target, "%s/secret", site.path);
    CHECK_EQ_INT(symlink(target, path), 0);
    snprintf(path, sizeof path, "%s/packs/objects", site.path);
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(folder >= 0);

    make_names(site.path);
    CHECK(name_count >= NAMES);
    for (unsigned i = 0; i < name_count; i++) {
        CHECK_MSG(objects_open_file(site.objects, names[i], &fd, &identity) == TR_EINVAL,
            "%s is taken for the name of an object", names[i]);
        CHECK_MSG(objects_open_incoming(site.objects, names[i], true, &fd) == TR_EINVAL,
            "%s is taken for the name of an upload", names[i]);
        CHECK_EQ_INT(objects_remove(site.objects, OBJECTS_COMPLETE, names[i]), TR_EINVAL);
        CHECK_EQ_INT(objects_remove(site.objects, OBJECTS_INCOMING, names[i]), TR_EINVAL);
        /* The second wall alone. */
        fd = -1;
        if (file_open_beneath(folder, names[i], O_RDONLY, 0, &fd) == 0) {
            opened++;
            escapes += is_outside(&site, fd);
            close(fd);
        }
    }
    CHECK_MSG(escapes == 0, "%u of %u names lead out", escapes, name_count);
    CHECK(opened < name_count); /* "." and the like are the folder itself */
    close(folder);
    objects_site_close(&site);
}

TEST(objects, names_are_lower_case_digits_of_the_right_number)
{
    struct objects_site site;
    struct file_identity identity;
    char hex[130];
    int fd;

    objects_site_open(&site);
    for (size_t size = 0; size < 129; size++) {
        memset(hex, 'a', sizeof hex);
        hex[size] = '\0';
        CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity),
            size == OBJECT_NAME_CHARS ? TR_ENOENT : TR_EINVAL);
    }
    for (int c = 1; c < 256; c++) {
        memset(hex, '0', sizeof hex);
        hex[64] = '\0';
        hex[63] = (char)c;
        CHECK_EQ_INT(objects_open_file(site.objects, hex, &fd, &identity),
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ? TR_ENOENT : TR_EINVAL);
    }
    objects_site_close(&site);
}

/* ---- uploads -------------------------------------------------------------------------------- */

static int upload(const struct objects_site *site, const char *name, const char *text)
{
    int fd = -1;

    CHECK_EQ_INT(objects_open_incoming(site->objects, name, true, &fd), 0);
    CHECK_EQ_INT(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}

TEST(objects, kept_upload_is_a_read_only_object)
{
    struct objects_site site;
    struct file_identity identity;
    struct stat status;
    char hex[65];
    uint8_t digest[32];
    int fd, object;

    objects_site_open(&site);
    fd = upload(&site, id, "some bytes");
    CHECK_EQ_INT(objects_open_incoming(site.objects, id, true, &object), TR_EEXIST);
    digest_of("some bytes", 10, digest, hex);
    CHECK_EQ_INT(objects_add(site.objects, id, fd, hex), 0);
    close(fd);
    CHECK_EQ_INT(objects_open_incoming(site.objects, id, false, &fd), TR_ENOENT);
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &object, &identity), 0);
    CHECK_EQ_INT(fstat(object, &status), 0);
    CHECK_EQ_INT(status.st_mode & 07777, 0440);
    close(object);
    CHECK_EQ_INT(objects_remove(site.objects, OBJECTS_COMPLETE, hex), 0);
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &object, &identity), TR_ENOENT);
    objects_site_close(&site);
}

TEST(objects, second_upload_of_the_same_bytes_leaves_the_first_alone)
{
    struct objects_site site;
    struct file_identity before, after;
    static const char other[] = "ffffffffffffffffffffffffffffffff";
    char hex[65];
    uint8_t digest[32];
    int first, second, object;

    objects_site_open(&site);
    digest_of("same", 4, digest, hex);
    first = upload(&site, id, "same");
    CHECK_EQ_INT(objects_add(site.objects, id, first, hex), 0);
    CHECK_EQ_INT(objects_open_file(site.objects, hex, &object, &before), 0);
    second = upload(&site, other, "same");
    CHECK_EQ_INT(objects_add(site.objects, other, second, hex), 0);
    CHECK_EQ_INT(file_identify(object, &after), 0);
    CHECK(file_identity_equal(&before, &after));
    CHECK_EQ_INT(objects_open_incoming(site.objects, other, false, &second), TR_ENOENT);
    close(object);
    close(first);
    objects_site_close(&site);
}

static int count_name(void *data, const char *name, uint64_t size)
{
    unsigned *counts = data;

    counts[0]++;
    counts[1] += (unsigned)size;
    return name[0] == '!' ? TR_EIO : 0;
}

TEST(objects, lists_objects_and_uploads)
{
    struct objects_site site;
    unsigned objects[2] = { 0 }, uploads[2] = { 0 };
    char hex[65], path[256];

    objects_site_open(&site);
    make_object(&site, "one", hex);
    make_object(&site, "three", hex);
    close(upload(&site, id, "1234567"));
    CHECK_EQ_INT(objects_each(site.objects, OBJECTS_COMPLETE, count_name, objects), 0);
    CHECK_EQ_INT(objects_each(site.objects, OBJECTS_INCOMING, count_name, uploads), 0);
    CHECK_EQ_INT(objects[0], 2);
    CHECK_EQ_INT(objects[1], 8);
    CHECK_EQ_INT(uploads[0], 1);
    CHECK_EQ_INT(uploads[1], 7);
    snprintf(path, sizeof path, "%s/packs/objects/!", site.path);
    put_file(path, "", 0);
    CHECK_EQ_INT(objects_each(site.objects, OBJECTS_COMPLETE, count_name, objects), TR_EIO);
    CHECK_EQ_INT(objects_remove(site.objects, OBJECTS_INCOMING, id), 0);
    CHECK_EQ_INT(objects_remove(site.objects, OBJECTS_INCOMING, id), TR_ENOENT);
    objects_site_close(&site);
}

TEST(objects, folder_that_cannot_be_used_is_named)
{
    struct objects *objects = NULL;
    char why[256] = "";

    CHECK_EQ_INT(objects_open("/nonexistent/data", true, why, sizeof why, &objects), TR_ENOENT);
    CHECK(strstr(why, "/nonexistent/data") != NULL);
    CHECK(objects == NULL);
}
