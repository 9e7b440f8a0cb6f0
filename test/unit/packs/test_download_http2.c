/* SPDX-License-Identifier: Apache-2.0 */
/* test_download_http2.c: the same downloads over HTTP/2, where bytes are copied into frames. The
 * client is libcurl. */
#include <curl/curl.h>

#include "download_site.h"

struct transfer {
    const unsigned char *right;
    uint64_t got;
    bool is_right;
    void (*in_the_middle)(void); /* after the first bytes */
};

static size_t on_bytes(char *bytes, size_t one, size_t size, void *data)
{
    struct transfer *transfer = data;

    (void)one;
    if (memcmp(bytes, transfer->right + transfer->got, size) != 0)
        transfer->is_right = false;
    transfer->got += size;
    if (transfer->in_the_middle != NULL) {
        transfer->in_the_middle();
        transfer->in_the_middle = NULL;
    }
    return size;
}

/* Of curl; *ret_status of HTTP. */
static CURLcode fetch(int index, const char *range, struct transfer *transfer, long *ret_status)
{
    CURL *curl = curl_easy_init();
    char url[128];
    CURLcode code;

    CHECK(curl != NULL);
    snprintf(url, sizeof url, "http://%s/d/%d", site.address, index);
    transfer->is_right = true;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    if (range != NULL)
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, ret_status);
    curl_easy_cleanup(curl);
    return code;
}

TEST(download_http2, every_size_arrives_as_it_is)
{
    static const size_t sizes[] = { 1, 4096, 65536, 65537, 300000, 5 << 20 };
    long status;

    site_open();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int index = site_add(i, sizes[i]);

        for (int round = 0; round < 2; round++) {
            struct transfer transfer = { .right = site.bytes[index] };

            CHECK_EQ_INT(fetch(index, NULL, &transfer, &status), CURLE_OK);
            CHECK_EQ_INT(status, 200);
            CHECK_EQ_U64(transfer.got, sizes[i]);
            CHECK(transfer.is_right);
        }
    }
    site_close();
}

TEST(download_http2, ranges_are_the_right_bytes)
{
    struct transfer transfer;
    long status;
    int index;

    site_open();
    index = site_add(1, 300000);
    transfer = (struct transfer){ .right = site.bytes[index] + 1000 };
    CHECK_EQ_INT(fetch(index, "1000-200999", &transfer, &status), CURLE_OK);
    CHECK_EQ_INT(status, 206);
    CHECK_EQ_U64(transfer.got, 200000);
    CHECK(transfer.is_right);
    transfer = (struct transfer){ .right = site.bytes[index] + 5 };
    CHECK_EQ_INT(fetch(index, "5-9", &transfer, &status), CURLE_OK);
    CHECK_EQ_U64(transfer.got, 5);
    CHECK(transfer.is_right);
    site_close();
}

TEST_LONG(download_http2, pace_is_kept, 60)
{
    enum { RATE = 400000, SIZE = 500000 };
    const struct tr_env *env = tr_env_real();
    struct transfer transfer;
    uint64_t begin_ns;
    long status;

    site_open_with(&(struct packs_settings){ .rate_max = RATE }, NULL);
    (void)site_add(1, SIZE);
    transfer = (struct transfer){ .right = site.bytes[0] };
    begin_ns = env->now_ns(env->data);
    CHECK_EQ_INT(fetch(0, NULL, &transfer, &status), CURLE_OK);
    CHECK_EQ_U64(transfer.got, SIZE);
    CHECK(transfer.is_right);
    CHECK(env->now_ns(env->data) - begin_ns >=
          (SIZE - RATE / 8) * UINT64_C(1000000000) / RATE * 9 / 10);
    site_close();
}

static void spoil(void)
{
    char path[256];
    int fd;

    site_path(0, path);
    CHECK_EQ_INT(chmod(path, 0640), 0);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ_INT(pwrite(fd, "!", 1, (19 << 20) + 5), 1);
    close(fd);
}

static bool is_empty(void)
{
    return transfers_held(site.packs.transfers) == 0;
}

TEST(download_http2, file_that_changes_while_it_is_sent_is_cut_off)
{
    struct transfer transfer;
    long status;

    site_open_with(&(struct packs_settings){ .downloads_per_address = 2 }, NULL);
    (void)site_add(1, 20 << 20);
    transfer = (struct transfer){ .right = site.bytes[0], .in_the_middle = spoil };
    CHECK(fetch(0, NULL, &transfer, &status) != CURLE_OK);
    CHECK_EQ_INT(status, 200);
    CHECK(transfer.got < 20 << 20);
    CHECK(transfer.is_right); /* the bytes that arrived are right */
    wait_until(is_empty, "the lease returned");
    site_close();
}
