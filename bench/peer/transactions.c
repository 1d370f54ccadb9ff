/* Transactions: -g producers, each in a thread of its own with the transactional id TOPIC-i. A transaction has -n
   records, or those of 1/-r seconds if -n is 0; records go round the partitions. Every -a-th transaction is aborted.
   It runs for -T seconds, or until -k transactions are done; times are those of the calls that commit. */
#include "load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALL_MS = 60000, POLL_EVERY = 1024, RUN = 64, SAMPLES_PER_SECOND = 20000, ID_BYTES = 256 };

struct writer {
    pthread_t thread;
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic;
    struct payloads payloads;
    int partition;
    long records, commits;
};

static struct options set;
static struct latencies seen;
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long ended;
static int64_t until;
static int timed;

static void check(rd_kafka_error_t *error, const char *call) {
    if (error) fail("%s: %s", call, rd_kafka_error_string(error));
}

static void start_writer(struct writer *w, int number) {
    char id[ID_BYTES];
    rd_kafka_conf_t *conf = conf_of(&set);
    snprintf(id, sizeof id, "%s-%d", set.topic, number);
    conf_put(conf, "transactional.id", id);
    w->rk = producer_from(conf);
    w->topic = rd_kafka_topic_new(w->rk, set.topic, NULL);
    w->payloads = payloads_of(&set);
    w->partition = number % set.partitions;
    check(rd_kafka_init_transactions(w->rk, CALL_MS), "init");
}

static void send_some(struct writer *w, long count, int64_t end) {
    for (long i = 0; count ? i < count : i % RUN || now_ns() < end; i++) {
        struct payloads *p = &w->payloads;
        send_record(w->rk, w->topic, w->partition, 0, p->lines[p->next], p->lengths[p->next]);
        if (++p->next == p->count) p->next = 0;
        if ((i % RUN == 0 || count == 1) && ++w->partition == set.partitions) w->partition = 0;
        if (i % POLL_EVERY == 0) rd_kafka_poll(w->rk, 0);
        w->records++;
    }
}

static void *run_writer(void *given) {
    struct writer *w = given;
    while (now_ns() < until) {
        long number = atomic_fetch_add(&ended, 1);
        if (set.transactions && number >= set.transactions) break;
        check(rd_kafka_begin_transaction(w->rk), "begin");
        send_some(w, set.records, now_ns() + (int64_t)(1e9 / set.rate));
        if (set.abort_every && number % set.abort_every == set.abort_every - 1) {
            if (rd_kafka_flush(w->rk, CALL_MS)) fail("not acknowledged within %d ms", CALL_MS);
            check(rd_kafka_abort_transaction(w->rk, CALL_MS), "abort");
            continue;
        }
        int64_t began = now_ns();
        check(rd_kafka_commit_transaction(w->rk, CALL_MS), "commit");
        w->commits++;
        if (timed) {
            int64_t took = now_ns() - began;
            pthread_mutex_lock(&seen_lock);
            latencies_add(&seen, took);
            pthread_mutex_unlock(&seen_lock);
        }
    }
    return NULL;
}

static void run_all(struct writer *writers, double seconds) {
    until = now_ns() + (int64_t)(seconds * 1e9);
    atomic_store(&ended, 0);
    for (int i = 0; i < set.groups; i++) {
        writers[i].records = writers[i].commits = 0;
        if (pthread_create(&writers[i].thread, NULL, run_writer, &writers[i])) fail("no thread");
    }
    for (int i = 0; i < set.groups; i++) pthread_join(writers[i].thread, NULL);
}

void run_transactions(const struct options *o) {
    set = *o;
    struct writer *writers = calloc((size_t)o->groups, sizeof *writers);
    if (!writers) fail("no memory");
    latencies_room(&seen, (size_t)(o->time * SAMPLES_PER_SECOND));
    for (int i = 0; i < o->groups; i++) start_writer(&writers[i], i);
    if (o->warm > 0) run_all(writers, o->warm);

    timed = 1;
    mark("start");
    int64_t began = now_ns();
    double cpu = cpu_seconds();
    run_all(writers, o->time);
    double seconds = (double)(now_ns() - began) / 1e9;
    cpu = cpu_seconds() - cpu;
    long records = 0, commits = 0;
    for (int i = 0; i < o->groups; i++) {
        records += writers[i].records;
        commits += writers[i].commits;
    }
    mark("end {\"records\": %ld, \"bytes\": %ld, \"commits\": %ld, \"seconds\": %.6f, \"client_cpu\": %.3f, %s}", records,
         records * o->size, commits, seconds, cpu, latencies_json(&seen));
}
