import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** The Java client under the orders of a test: the protocol of drivers/lines.py. Compiled and run with 2.8, 3.9 and 4.2. */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String PACKAGE = "org.apache.kafka.clients.consumer.";
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", PACKAGE + "RangeAssignor",
            "round-robin", PACKAGE + "RoundRobinAssignor",
            "sticky", PACKAGE + "StickyAssignor",
            "cooperative-sticky", PACKAGE + "CooperativeStickyAssignor");
    private static final String SERVER = "server-";
    private static final String BYTES = "org.apache.kafka.common.serialization.ByteArray";

    private final String address;
    private final JsonNode login;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Map<String, KafkaProducer<byte[], byte[]>> transactional = new HashMap<>();
    private KafkaConsumer<byte[], byte[]> consumer;
    private ConsumerGroupMetadata kept;

    private Driver(String address, JsonNode login) {
        this.address = address;
        this.login = login;
    }

    /** The settings of every client; without a login only the address. */
    private Properties reach() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        if (login == null) return settings;
        settings.put("security.protocol", "SASL_SSL");
        settings.put("sasl.mechanism", login.get("mechanism").asText());
        String url = login.get("token_url").asText();
        if (url.isEmpty()) {
            String module = login.get("mechanism").asText().equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            settings.put("sasl.jaas.config", String.format(
                    "org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";",
                    module, login.get("user").asText(), login.get("password").asText()));
        } else {
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            String classes = "org.apache.kafka.common.security.oauthbearer.";
            settings.put("sasl.oauthbearer.token.endpoint.url", url);
            settings.put("sasl.login.callback.handler.class", classes + "OAuthBearerLoginCallbackHandler");
            settings.put("sasl.jaas.config", String.format(
                    "%sOAuthBearerLoginModule required clientId=\"%s\" clientSecret=\"%s\";",
                    classes, login.get("user").asText(), login.get("password").asText()));
        }
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", login.get("authority").asText());
        return settings;
    }

    public static void main(String[] arguments) throws Exception {
        LinkedBlockingQueue<String> lines = new LinkedBlockingQueue<>(10_000);
        Thread reader = new Thread(() -> {
            try {
                BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
                for (String line = in.readLine(); line != null; line = in.readLine()) lines.put(line);
                lines.put("");
            } catch (Exception error) {
                System.exit(1);
            }
        });
        reader.setDaemon(true);
        reader.start();
        new Driver(arguments[0], arguments.length > 1 ? JSON.readTree(arguments[1]) : null).serve(lines);
        System.exit(0);
    }

    private void serve(LinkedBlockingQueue<String> lines) throws Exception {
        boolean polled = false;
        while (true) {
            String line = lines.poll(polled ? 0 : 3_600_000, TimeUnit.MILLISECONDS);
            if (line != null && line.isEmpty()) return;
            if (line != null) answer((ObjectNode) JSON.readTree(line));
            polled = poll();
        }
    }

    private void answer(ObjectNode request) {
        ObjectNode answer = JSON.createObjectNode().put("id", request.get("id").asInt());
        try {
            answer.set("value", act(request.get("do").asText(), request));
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        say(answer);
    }

    private JsonNode act(String name, ObjectNode request) throws Exception {
        switch (name) {
            case "send": return send(request);
            case "open": open(request); break;
            case "subscribe": subscribe(request.get("topics")); break;
            case "assign": assign(request.get("partitions")); break;
            case "seek":
                TopicPartition at = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
                consumer.seek(at, request.get("offset").asLong());
                break;
            case "pause": consumer.pause(places(request.get("partitions"))); break;
            case "resume": consumer.resume(places(request.get("partitions"))); break;
            case "commit": commit(request.get("offsets")); break;
            case "committed": return committed(request.get("partitions"));
            case "times": return times(request.get("partitions"));
            case "ends": return ends(request.get("partitions"));
            case "leave": consumer.close(); consumer = null; break;
            case "txn_init": transactional(request).initTransactions(); break;
            case "txn_begin": transactional(request).beginTransaction(); break;
            case "txn_keep_member": kept = consumer.groupMetadata(); break;
            case "txn_offsets": sendOffsets(request); break;
            case "txn_commit": transactional(request).commitTransaction(); break;
            case "txn_abort": transactional(request).abortTransaction(); break;
            case "txn_state": return transactionState(request);
            case "txn_resume": resumeTransaction(request); break;
            default: throw new UnsupportedOperationException(name);
        }
        return JSON.nullNode();
    }

    private static String text(ObjectNode request, String name, String otherwise) {
        return request.hasNonNull(name) ? request.get(name).asText() : otherwise;
    }

    private static synchronized void say(JsonNode what) {
        System.out.println(what);
        System.out.flush();
    }

    private static byte[] unpack(JsonNode data) {
        return data == null || data.isNull() ? null : Base64.getDecoder().decode(data.asText());
    }

    private static String pack(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    private static List<TopicPartition> places(JsonNode partitions) {
        List<TopicPartition> all = new ArrayList<>();
        for (JsonNode each : partitions) all.add(new TopicPartition(each.get(0).asText(), each.get(1).asInt()));
        return all;
    }

    private static ArrayNode place(TopicPartition each) {
        return JSON.createArrayNode().add(each.topic()).add(each.partition());
    }

    private static ArrayNode listed(Collection<TopicPartition> partitions) {
        ArrayNode all = JSON.createArrayNode();
        List<TopicPartition> sorted = new ArrayList<>(partitions);
        sorted.sort((a, b) -> a.topic().equals(b.topic()) ? a.partition() - b.partition() : a.topic().compareTo(b.topic()));
        for (TopicPartition each : sorted) all.add(place(each));
        return all;
    }

    private JsonNode send(ObjectNode request) throws Exception {
        String acks = text(request, "acks", "all");
        String codec = text(request, "codec", "none");
        String idempotent = text(request, "idempotent", "false");
        String linger = text(request, "linger_ms", "5");
        String name = text(request, "producer", "");
        KafkaProducer<byte[], byte[]> producer = !name.isEmpty() ? transactional.get(name) : producers.computeIfAbsent(
                acks + codec + idempotent + linger, key -> producer(acks, codec, idempotent, linger));
        String topic = request.get("topic").asText();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode each : request.get("records")) {
            int partition = each.hasNonNull("p") ? each.get("p").asInt() : 0;
            Long timestamp = each.hasNonNull("ts") ? each.get("ts").asLong() : null;
            ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(topic, partition, timestamp, unpack(each.get("k")), unpack(each.get("v")));
            if (each.hasNonNull("h")) {
                for (JsonNode header : each.get("h")) record.headers().add(header.get(0).asText(), unpack(header.get(1)));
            }
            sent.add(producer.send(record));
        }
        ArrayNode placed = JSON.createArrayNode();
        for (Future<RecordMetadata> each : sent) {
            RecordMetadata at = each.get(90, TimeUnit.SECONDS);
            placed.add(JSON.createArrayNode().add(at.partition()).add(at.hasOffset() ? at.offset() : -1));
        }
        return placed;
    }

    private KafkaProducer<byte[], byte[]> producer(String acks, String codec, String idempotent, String linger) {
        Properties settings = producerSettings();
        settings.put("acks", acks);
        settings.put("compression.type", codec);
        settings.put("enable.idempotence", idempotent);
        settings.put("linger.ms", linger);
        return new KafkaProducer<>(settings);
    }

    private Properties producerSettings() {
        Properties settings = reach();
        settings.put("max.request.size", "2000000");
        settings.put("delivery.timeout.ms", "60000");
        settings.put("key.serializer", BYTES + "Serializer");
        settings.put("value.serializer", BYTES + "Serializer");
        return settings;
    }

    private KafkaProducer<byte[], byte[]> transactional(ObjectNode request) {
        String name = request.get("producer").asText();
        return transactional.computeIfAbsent(name, key -> {
            Properties settings = producerSettings();
            settings.put("transactional.id", text(request, "name", name));
            settings.put("transaction.timeout.ms", text(request, "timeout_ms", "60000"));
            return new KafkaProducer<>(settings);
        });
    }

    private void sendOffsets(ObjectNode request) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode each : request.get("offsets")) {
            TopicPartition at = new TopicPartition(each.get(0).asText(), each.get(1).asInt());
            offsets.put(at, new OffsetAndMetadata(each.get(2).asLong()));
        }
        boolean old = "true".equals(text(request, "kept", "false"));
        transactional(request).sendOffsetsToTransaction(offsets, old ? kept : consumer.groupMetadata());
    }

    /** Returns producer id and epoch, which the client keeps to itself. */
    private JsonNode transactionState(ObjectNode request) throws Exception {
        Object state = field(manager(request), "producerIdAndEpoch");
        return JSON.createArrayNode().add((long) field(state, "producerId")).add((short) field(state, "epoch"));
    }

    /** Takes over an open transaction as Flink's connector does: by the fields of the client, without a request. */
    private void resumeTransaction(ObjectNode request) throws Exception {
        Object manager = manager(request);
        Class<?> pair = field(manager, "producerIdAndEpoch").getClass();
        Object state = pair.getConstructor(long.class, short.class).newInstance(
                request.get("producer_id").asLong(), (short) request.get("epoch").asInt());
        synchronized (manager) {
            setState(manager, "INITIALIZING");
            set(manager, "producerIdAndEpoch", state);
            setState(manager, "READY");
            setState(manager, "IN_TRANSACTION");
            set(manager, "transactionStarted", true);
        }
    }

    private Object manager(ObjectNode request) throws Exception {
        return field(transactional(request), "transactionManager");
    }

    private static Object field(Object of, String name) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    private static void set(Object of, String name, Object value) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        field.set(of, value);
    }

    private static void setState(Object manager, String name) throws Exception {
        for (Object each : field(manager, "currentState").getClass().getEnumConstants()) {
            if (each.toString().equals(name)) set(manager, "currentState", each);
        }
    }

    private void open(ObjectNode request) {
        int session = request.hasNonNull("session_ms") ? request.get("session_ms").asInt() : 6000;
        Properties settings = reach();
        settings.put("group.id", request.get("group").asText());
        String assignor = text(request, "assignor", "range");
        if (assignor.startsWith(SERVER)) {
            settings.put("group.protocol", "consumer");
            settings.put("group.remote.assignor", assignor.substring(SERVER.length()));
        } else {
            settings.put("partition.assignment.strategy", ASSIGNORS.get(assignor));
            settings.put("session.timeout.ms", session);
            settings.put("heartbeat.interval.ms", session / 4);
        }
        settings.put("auto.offset.reset", text(request, "reset", "earliest"));
        settings.put("enable.auto.commit", "false");
        settings.put("max.partition.fetch.bytes", "2000000");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("metadata.max.age.ms", "1000");
        settings.put("allow.auto.create.topics", "false");
        settings.put("isolation.level", text(request, "isolation", "read_uncommitted"));
        settings.put("key.deserializer", BYTES + "Deserializer");
        settings.put("value.deserializer", BYTES + "Deserializer");
        if (request.hasNonNull("instance") && !request.get("instance").asText().isEmpty()) {
            settings.put("group.instance.id", request.get("instance").asText());
        }
        consumer = new KafkaConsumer<>(settings);
    }

    private void subscribe(JsonNode topics) {
        List<String> names = new ArrayList<>();
        for (JsonNode each : topics) names.add(each.asText());
        consumer.subscribe(names, new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                say(JSON.createObjectNode().set("revoked", listed(revoked)));
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> added) {
                say(JSON.createObjectNode().set("assigned", listed(consumer.assignment())));
            }
        });
    }

    private void assign(JsonNode partitions) {
        consumer.assign(places(partitions));
        for (JsonNode each : partitions) {
            if (each.size() > 2) {
                consumer.seek(new TopicPartition(each.get(0).asText(), each.get(1).asInt()), each.get(2).asLong());
            }
        }
    }

    private void commit(JsonNode offsets) {
        if (offsets == null || offsets.isNull()) {
            consumer.commitSync();
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
        for (JsonNode each : offsets) {
            TopicPartition at = new TopicPartition(each.get(0).asText(), each.get(1).asInt());
            wanted.put(at, new OffsetAndMetadata(each.get(2).asLong(), each.get(3).asText()));
        }
        consumer.commitSync(wanted);
    }

    private JsonNode committed(JsonNode partitions) {
        List<TopicPartition> asked = places(partitions);
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(new java.util.HashSet<>(asked));
        ArrayNode all = JSON.createArrayNode();
        for (TopicPartition each : asked) {
            OffsetAndMetadata one = found.get(each);
            all.add(place(each).add(one == null ? -1 : one.offset()).add(one == null ? "" : one.metadata()));
        }
        return all;
    }

    private JsonNode times(JsonNode partitions) {
        Map<TopicPartition, Long> asked = new HashMap<>();
        for (JsonNode each : partitions) {
            asked.put(new TopicPartition(each.get(0).asText(), each.get(1).asInt()), each.get(2).asLong());
        }
        Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(asked);
        ArrayNode all = JSON.createArrayNode();
        for (TopicPartition each : places(partitions)) {
            all.add(place(each).add(found.get(each) == null ? -1 : found.get(each).offset()));
        }
        return all;
    }

    private JsonNode ends(JsonNode partitions) {
        List<TopicPartition> asked = places(partitions);
        Map<TopicPartition, Long> first = consumer.beginningOffsets(asked);
        Map<TopicPartition, Long> last = consumer.endOffsets(asked);
        ArrayNode all = JSON.createArrayNode();
        for (TopicPartition each : asked) all.add(place(each).add(first.get(each)).add(last.get(each)));
        return all;
    }

    private boolean poll() {
        if (consumer == null || (consumer.subscription().isEmpty() && consumer.assignment().isEmpty())) return false;
        ArrayNode records = JSON.createArrayNode();
        for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(50))) {
            ObjectNode record = records.addObject();
            record.put("t", each.topic()).put("p", each.partition()).put("o", each.offset()).put("ts", each.timestamp());
            record.put("k", pack(each.key())).put("v", pack(each.value()));
            ArrayNode headers = record.putArray("h");
            for (Header header : each.headers()) {
                headers.add(JSON.createArrayNode().add(header.key()).add(pack(header.value())));
            }
        }
        if (!records.isEmpty()) say(JSON.createObjectNode().set("records", records));
        return true;
    }
}
