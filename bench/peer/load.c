/* The loader of `make bench-peer`: one client for both brokers, on librdkafka.

   load MODE -b BROKERS -t TOPIC [-p partitions] [-s bytes] [-n records] [-f payloads] [-r records/s]
        [-w warm seconds] [-T seconds] [-g groups] [-k transactions] [-a abort every] [-X name=value]...

   MODE: produce, consume, latency, fanout, closed, transactions. Prints a line "start" when the timed part begins and "end {JSON}" after it. */
#include "load.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { FLUSH_MS = 60000, QUEUE_POLL_MS = 5 };

atomic_long delivery_failures;

int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

void sleep_until(int64_t ns) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(1);
}

void mark(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static void add_line(struct payloads *p, char *line, size_t length) {
    p->lines = realloc(p->lines, (p->count + 1) * sizeof *p->lines);
    p->lengths = realloc(p->lengths, (p->count + 1) * sizeof *p->lengths);
    if (!p->lines || !p->lengths) fail("no memory");
    p->lines[p->count] = line;
    p->lengths[p->count++] = length;
}

struct payloads payloads_of(const struct options *o) {
    struct payloads p = {0};
    if (!o->payload_file) {
        char *line = malloc((size_t)o->size);
        if (!line) fail("no memory");
        for (int i = 0; i < o->size; i++) line[i] = (char)('a' + i % 26);
        add_line(&p, line, (size_t)o->size);
        return p;
    }
    FILE *file = fopen(o->payload_file, "r");
    if (!file) fail("%s: %s", o->payload_file, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, file)) > 1) {
        add_line(&p, line, (size_t)length - 1);
        line = NULL;
        room = 0;
    }
    free(line);
    fclose(file);
    if (!p.count) fail("%s is empty", o->payload_file);
    return p;
}

void latencies_room(struct latencies *l, size_t room) {
    l->ns = malloc(room * sizeof *l->ns);
    if (!l->ns) fail("no memory");
    l->count = 0;
    l->room = room;
}

void latencies_add(struct latencies *l, int64_t ns) {
    if (l->count < l->room) l->ns[l->count++] = ns;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

const char *latencies_json(struct latencies *l) {
    static char text[256];
    if (!l->count) fail("no samples");
    qsort(l->ns, l->count, sizeof *l->ns, by_size);
    double last = (double)(l->count - 1);
#define AT(q) ((double)l->ns[(size_t)(last * (q) + 0.5)] / 1e3)
    snprintf(text, sizeof text,
             "\"samples\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f", l->count,
             AT(0.5), AT(0.99), AT(0.999), AT(1.0));
#undef AT
    return text;
}

void conf_put(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[512];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) fail("%s", why);
}

rd_kafka_conf_t *conf_of(const struct options *o) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    conf_put(conf, "bootstrap.servers", o->brokers);
    conf_put(conf, "socket.nagle.disable", "true");
    conf_put(conf, "log_level", "3"); /* not that a property is for producers only */
    for (int i = 0; i < o->n_properties; i++) {
        char name[NAME_MAX_BYTES];
        const char *equals = strchr(o->properties[i], '=');
        if (!equals || (size_t)(equals - o->properties[i]) >= sizeof name) fail("-X %s", o->properties[i]);
        memcpy(name, o->properties[i], (size_t)(equals - o->properties[i]));
        name[equals - o->properties[i]] = 0;
        conf_put(conf, name, equals + 1);
    }
    return conf;
}

static rd_kafka_t *made(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char why[512];
    rd_kafka_t *rk = rd_kafka_new(type, conf, why, sizeof why);
    if (!rk) fail("%s", why);
    return rk;
}

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) {
        if (!atomic_fetch_add(&delivery_failures, 1)) fprintf(stderr, "load: %s\n", rd_kafka_err2str(message->err));
    }
}

rd_kafka_t *producer_of(const struct options *o) {
    return producer_from(conf_of(o));
}

rd_kafka_t *producer_from(rd_kafka_conf_t *conf) {
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    return made(RD_KAFKA_PRODUCER, conf);
}

rd_kafka_t *consumer_of(const struct options *o, const char *group) {
    rd_kafka_conf_t *conf = conf_of(o);
    if (group) conf_put(conf, "group.id", group);
    return made(RD_KAFKA_CONSUMER, conf);
}

void send_record(rd_kafka_t *rk, rd_kafka_topic_t *topic, int partition, int flags, void *value, size_t length) {
    while (rd_kafka_produce(topic, partition, flags, value, length, NULL, 0, NULL)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            fail("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(rk, QUEUE_POLL_MS);
    }
}

void flush_all(rd_kafka_t *rk) {
    if (rd_kafka_flush(rk, FLUSH_MS)) fail("not acknowledged within %d ms", FLUSH_MS);
    if (atomic_load(&delivery_failures)) fail("%ld records were not taken", atomic_load(&delivery_failures));
}

static struct options options_of(int argc, char **argv) {
    struct options o = {.partitions = 6, .size = 1024, .groups = 8, .rate = 1000, .warm = 1, .time = 5};
    int letter;
    while ((letter = getopt(argc, argv, "b:t:p:s:n:f:r:w:T:g:k:a:X:")) != -1) {
        switch (letter) {
        case 'b': o.brokers = optarg; break;
        case 't': o.topic = optarg; break;
        case 'p': o.partitions = atoi(optarg); break;
        case 's': o.size = atoi(optarg); break;
        case 'n': o.records = atol(optarg); break;
        case 'f': o.payload_file = optarg; break;
        case 'r': o.rate = atof(optarg); break;
        case 'w': o.warm = atof(optarg); break;
        case 'T': o.time = atof(optarg); break;
        case 'g': o.groups = atoi(optarg); break;
        case 'k': o.transactions = atol(optarg); break;
        case 'a': o.abort_every = atol(optarg); break;
        case 'X':
            if (o.n_properties == PROPERTIES_MAX) fail("more than %d -X", PROPERTIES_MAX);
            o.properties[o.n_properties++] = optarg;
            break;
        default: _exit(2);
        }
    }
    if (!o.brokers || !o.topic) fail("-b and -t are needed");
    return o;
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        void (*run)(const struct options *);
    } modes[] = {
        {"produce", run_produce}, {"consume", run_consume}, {"latency", run_latency},
        {"fanout", run_fanout},   {"closed", run_closed},   {"transactions", run_transactions},
    };
    if (argc < 2) fail("a mode is needed");
    if (!strcmp(argv[1], "version")) {
        puts(rd_kafka_version_str());
        return 0;
    }
    struct options o = options_of(argc - 1, argv + 1);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (!strcmp(argv[1], modes[i].name)) {
            modes[i].run(&o);
            _exit(0); /* the handles' orderly end would cost the broker's other work time */
        }
    }
    fail("no mode %s", argv[1]);
}
