/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "check.h"
#include "ops/secret.h"

static char folder[] = "/tmp/test-token-XXXXXX";
static char path[64];
static char why[256];

static void begin(void)
{
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/token", folder);
}

static void end(void)
{
    unlink(path);
    rmdir(folder);
}

static void write_file(const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(fchmod(fd, mode) == 0);
    close(fd);
}

TEST(secret, is_made_once_and_for_its_owner_alone)
{
    struct secret first;
    struct secret second;
    struct stat status;

    begin();
    CHECK_EQ_INT(secret_load(&first, path, SECRET_BASE64URL, why, sizeof why), 0);
    CHECK(stat(path, &status) == 0 && (status.st_mode & 0777) == 0600);
    CHECK_EQ_INT(strlen(first.text), 43);
    CHECK_EQ_INT(status.st_nlink, 1); /* no other name is left */
    CHECK_EQ_INT(secret_load(&second, path, SECRET_BASE64URL, why, sizeof why), 0);
    CHECK_EQ_STR(first.text, second.text);
    unlink(path);
    CHECK_EQ_INT(secret_load(&second, path, SECRET_BASE64URL, why, sizeof why), 0);
    CHECK(strcmp(first.text, second.text) != 0);
    unlink(path);
    CHECK_EQ_INT(secret_load(&second, path, SECRET_HEX, why, sizeof why), 0);
    CHECK_EQ_INT(strlen(second.text), 64);
    CHECK_EQ_INT(strspn(second.text, "0123456789abcdef"), 64);
    end();
}

TEST(secret, without_create_it_must_be_there)
{
    struct secret token;

    begin();
    CHECK_EQ_INT(secret_load(&token, path, SECRET_MUST_EXIST, why, sizeof why), TR_ENOENT);
    CHECK(access(path, F_OK) != 0);
    end();
}

TEST(secret, file_that_others_can_read_is_refused)
{
    static const mode_t modes[] = { 0640, 0604, 0620, 0644, 0660 };
    struct secret token;

    begin();
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        write_file("0123456789abcdef0123456789abcdef\n", modes[i]);
        CHECK_EQ_INT(secret_load(&token, path, SECRET_BASE64URL, why, sizeof why), TR_EACCES);
        CHECK(strstr(why, "chmod 600") != NULL);
    }
    write_file("0123456789abcdef0123456789abcdef\n", 0400);
    CHECK_EQ_INT(secret_load(&token, path, SECRET_MUST_EXIST, why, sizeof why), 0);
    end();
}

TEST(secret, what_is_no_token_is_refused)
{
    static const char *const bad[] = { "", "\n", "short", "0123456789abcdef0123456789abcde\n",
        "0123456789abcdef 0123456789abcdef\n", "0123456789abcdef0123456789abcdef\nsecond\n",
        "0123456789abcdef0123456789abcdef\r\n", "0123456789abcdef0123456789abcde\xc3\xa9\n" };
    char large[400];
    struct secret token;

    begin();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file(bad[i], 0600);
        CHECK_MSG(secret_load(&token, path, SECRET_BASE64URL, why, sizeof why) == TR_EINVAL,
            "case %zu", i);
    }
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    write_file(large, 0600);
    CHECK_EQ_INT(secret_load(&token, path, SECRET_BASE64URL, why, sizeof why), TR_EINVAL);
    end();
}

TEST(secret, only_the_whole_text_opens)
{
    struct secret token;

    begin();
    write_file("0123456789abcdef0123456789abcdef", 0600);
    CHECK_EQ_INT(secret_load(&token, path, SECRET_MUST_EXIST, why, sizeof why), 0);
    CHECK(secret_matches(&token, SPAN("0123456789abcdef0123456789abcdef")));
    CHECK(!secret_matches(&token, SPAN("0123456789abcdef0123456789abcdeF")));
    CHECK(!secret_matches(&token, SPAN("0123456789abcdef0123456789abcde")));
    CHECK(!secret_matches(&token, SPAN("0123456789abcdef0123456789abcdef0")));
    CHECK(!secret_matches(&token, SPAN("0123456789abcdef0123456789abcdef\0")));
    CHECK(!secret_matches(&token, SPAN("")));
    CHECK(!secret_matches(&token, (struct span){ NULL, 0 }));
    end();
}
