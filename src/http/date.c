/* SPDX-License-Identifier: Apache-2.0 */
/* date.c: dates of RFC 9110 5.6.7. Plain arithmetic, without locale and time zone. */
#include "http/date.h"

#include <string.h>

#include "http/http.h"

static const char days[7][4] = { "Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed" };
static const char long_days[7][10] = { "Thursday", "Friday", "Saturday", "Sunday", "Monday",
    "Tuesday", "Wednesday" };
static const char months[12][4] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep",
    "Oct", "Nov", "Dec" };

struct civil {
    int64_t year;
    unsigned month, day; /* from 1 */
};

/* Convert days since 1970-01-01 to a date and back, by eras of 400 years that begin in March. */
static struct civil civil_of(int64_t day)
{
    int64_t shifted = day + 719468;
    int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    unsigned of_era = (unsigned)(shifted - era * 146097);
    unsigned year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    unsigned of_year = of_era - (365 * year + year / 4 - year / 100);
    unsigned month = (5 * of_year + 2) / 153;
    struct civil civil = { .day = of_year - (153 * month + 2) / 5 + 1,
        .month = month < 10 ? month + 3 : month - 9 };

    civil.year = (int64_t)year + era * 400 + (civil.month <= 2);
    return civil;
}

static int64_t day_of(struct civil civil)
{
    int64_t year = civil.year - (civil.month <= 2);
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    unsigned of_era = (unsigned)(year - era * 400);
    unsigned of_year =
        (153 * (civil.month > 2 ? civil.month - 3 : civil.month + 9) + 2) / 5 + civil.day - 1;
    unsigned day = of_era * 365 + of_era / 4 - of_era / 100 + of_year;

    return era * 146097 + (int64_t)day - 719468;
}

static void put_two(char *text, unsigned value)
{
    text[0] = (char)('0' + value / 10 % 10);
    text[1] = (char)('0' + value % 10);
}

void http_date(uint64_t seconds, char text[30])
{
    uint64_t day, rest;
    struct civil civil;

    if (seconds > UINT64_C(253402300799)) /* the year 9999 */
        seconds = UINT64_C(253402300799);
    day = seconds / 86400;
    rest = seconds % 86400;
    civil = civil_of((int64_t)day);
    memcpy(text, "Thu, 01 Jan 1970 00:00:00 GMT", 30);
    memcpy(text, days[day % 7], 3);
    put_two(text + 5, civil.day);
    memcpy(text + 8, months[civil.month - 1], 3);
    put_two(text + 12, (unsigned)(civil.year / 100));
    put_two(text + 14, (unsigned)(civil.year % 100));
    put_two(text + 17, (unsigned)(rest / 3600));
    put_two(text + 20, (unsigned)(rest / 60 % 60));
    put_two(text + 23, (unsigned)(rest % 60));
}

const char *http_date_now(const struct tr_env *env, uint64_t now_ns)
{
    static _Thread_local struct {
        const struct tr_env *env;
        uint64_t until_ns;
        char text[30];
    } cache;

    if (cache.env != env || now_ns >= cache.until_ns) {
        uint64_t wall_ns = env->wall_ns(env->data);

        http_date(wall_ns / UINT64_C(1000000000), cache.text);
        cache.env = env;
        cache.until_ns = now_ns + UINT64_C(1000000000) - wall_ns % UINT64_C(1000000000);
    }
    return cache.text;
}

/* ---- parsing: the three forms of RFC 9110 -------------------------------------------------- */

struct cursor {
    const char *at, *end;
    bool bad;
};

static void date_expect(struct cursor *cursor, const char *text)
{
    size_t size = strlen(text);

    if ((size_t)(cursor->end - cursor->at) < size || memcmp(cursor->at, text, size) != 0) {
        cursor->bad = true;
        return;
    }
    cursor->at += size;
}

static unsigned date_number(struct cursor *cursor, unsigned digits)
{
    unsigned value = 0;

    for (unsigned i = 0; i < digits; i++) {
        if (cursor->at == cursor->end || *cursor->at < '0' || *cursor->at > '9') {
            cursor->bad = true;
            return 0;
        }
        value = value * 10 + (unsigned)(*cursor->at++ - '0');
    }
    return value;
}

static unsigned date_month(struct cursor *cursor)
{
    for (unsigned i = 0; i < 12; i++)
        if (cursor->end - cursor->at >= 3 && memcmp(cursor->at, months[i], 3) == 0) {
            cursor->at += 3;
            return i + 1;
        }
    cursor->bad = true;
    return 1;
}

static uint64_t date_time(struct cursor *cursor)
{
    unsigned hour = date_number(cursor, 2), minute, second;

    date_expect(cursor, ":");
    minute = date_number(cursor, 2);
    date_expect(cursor, ":");
    second = date_number(cursor, 2);
    if (hour > 23 || minute > 59 || second > 60)
        cursor->bad = true;
    return hour * UINT64_C(3600) + minute * UINT64_C(60) + second;
}

static bool date_result(
    struct cursor *cursor, struct civil civil, uint64_t time, uint64_t *ret_seconds)
{
    static const unsigned char lengths[12] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    bool leap = (civil.year % 4 == 0 && civil.year % 100 != 0) || civil.year % 400 == 0;

    if (cursor->bad || cursor->at != cursor->end || civil.year < 1970 || civil.day < 1 ||
        civil.day > lengths[civil.month - 1] + (civil.month == 2 && leap ? 1u : 0u))
        return false;
    *ret_seconds = (uint64_t)day_of(civil) * 86400 + time;
    return true;
}

/* "Sun, 06 Nov 1994 08:49:37 GMT" */
static bool date_parse_fixed(struct cursor cursor, uint64_t *ret_seconds)
{
    struct civil civil;
    uint64_t time;

    date_expect(&cursor, ", ");
    civil.day = date_number(&cursor, 2);
    date_expect(&cursor, " ");
    civil.month = date_month(&cursor);
    date_expect(&cursor, " ");
    civil.year = date_number(&cursor, 4);
    date_expect(&cursor, " ");
    time = date_time(&cursor);
    date_expect(&cursor, " GMT");
    return date_result(&cursor, civil, time, ret_seconds);
}

/* "Sunday, 06-Nov-94 08:49:37 GMT"; years below 70 are 20xx */
static bool date_parse_rfc850(struct cursor cursor, uint64_t *ret_seconds)
{
    struct civil civil;
    uint64_t time;

    date_expect(&cursor, ", ");
    civil.day = date_number(&cursor, 2);
    date_expect(&cursor, "-");
    civil.month = date_month(&cursor);
    date_expect(&cursor, "-");
    civil.year = date_number(&cursor, 2);
    civil.year += civil.year < 70 ? 2000 : 1900;
    date_expect(&cursor, " ");
    time = date_time(&cursor);
    date_expect(&cursor, " GMT");
    return date_result(&cursor, civil, time, ret_seconds);
}

/* "Sun Nov  6 08:49:37 1994" */
static bool date_parse_asctime(struct cursor cursor, uint64_t *ret_seconds)
{
    struct civil civil;
    uint64_t time;

    date_expect(&cursor, " ");
    civil.month = date_month(&cursor);
    date_expect(&cursor, " ");
    if (cursor.at < cursor.end && *cursor.at == ' ') {
        cursor.at++;
        civil.day = date_number(&cursor, 1);
    } else {
        civil.day = date_number(&cursor, 2);
    }
    date_expect(&cursor, " ");
    time = date_time(&cursor);
    date_expect(&cursor, " ");
    civil.year = date_number(&cursor, 4);
    return date_result(&cursor, civil, time, ret_seconds);
}

bool http_date_parse(struct span text, uint64_t *ret_seconds)
{
    for (unsigned i = 0; i < 7; i++) {
        struct cursor cursor = { text.at, text.at + text.size, false };

        if (span_starts(text, long_days[i])) {
            cursor.at += strlen(long_days[i]);
            return date_parse_rfc850(cursor, ret_seconds);
        }
        if (span_starts(text, days[i])) {
            cursor.at += 3;
            return cursor.at < cursor.end && *cursor.at == ','
                       ? date_parse_fixed(cursor, ret_seconds)
                       : date_parse_asctime(cursor, ret_seconds);
        }
    }
    return false;
}
