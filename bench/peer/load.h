/* What the modes of the loader share: options, clocks, librdkafka's handles, marks on stdout. */
#ifndef LOAD_H
#define LOAD_H

#include <librdkafka/rdkafka.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { PROPERTIES_MAX = 32, NAME_MAX_BYTES = 128 };

struct options {
    const char *brokers, *topic, *payload_file;
    int partitions, size, groups;
    long records;      /* of one run; 0: until the time is over */
    double rate;       /* records a second */
    double warm, time; /* seconds */
    long transactions, abort_every; /* 0: no limit, none aborted */
    char *properties[PROPERTIES_MAX]; /* name=value */
    int n_properties;
};

/* One value after the other, round and round. */
struct payloads {
    char **lines;
    size_t *lengths;
    size_t count, next;
};

/* Nanoseconds of every sample, told as quantiles. Written by one thread. */
struct latencies {
    int64_t *ns;
    size_t count, room;
};

int64_t now_ns(void);
double cpu_seconds(void); /* of this process */
void sleep_until(int64_t ns);
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A line by itself, at once: whoever started the loader reads the broker's clocks when it comes. */
void mark(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct payloads payloads_of(const struct options *o);

void latencies_room(struct latencies *l, size_t room);
void latencies_add(struct latencies *l, int64_t ns);
/* JSON members p50_us to max_us. Sorts. */
const char *latencies_json(struct latencies *l);

rd_kafka_conf_t *conf_of(const struct options *o);
void conf_put(rd_kafka_conf_t *conf, const char *name, const char *value);
rd_kafka_t *producer_of(const struct options *o);
rd_kafka_t *producer_from(rd_kafka_conf_t *conf);
rd_kafka_t *consumer_of(const struct options *o, const char *group);
/* Sends, waiting while the queue is full. */
void send_record(rd_kafka_t *rk, rd_kafka_topic_t *topic, int partition, int flags, void *value, size_t length);
/* Returns when every record was acknowledged. */
void flush_all(rd_kafka_t *rk);
extern atomic_long delivery_failures;

void run_produce(const struct options *o);
void run_consume(const struct options *o);
void run_latency(const struct options *o);
void run_fanout(const struct options *o);
void run_closed(const struct options *o);
void run_transactions(const struct options *o);

#endif
