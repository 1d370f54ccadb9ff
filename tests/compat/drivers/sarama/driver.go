// Sarama under the orders of a test: the protocol of drivers/lines.py.
package main

import (
	"bufio"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

const patience = 25 * time.Second

type header struct {
	name string
	data []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.name, h.data}) }

func (h *header) UnmarshalJSON(line []byte) error {
	return json.Unmarshal(line, &[]any{&h.name, &h.data})
}

type record struct {
	Topic     string   `json:"t"`
	Partition int32    `json:"p"`
	Offset    int64    `json:"o"`
	Time      *int64   `json:"ts"`
	Key       []byte   `json:"k"`
	Value     []byte   `json:"v"`
	Headers   []header `json:"h"`
}

// A place is a partition with an offset, a time, or nothing.
type place struct {
	topic     string
	partition int32
	value     int64
}

func (p *place) UnmarshalJSON(line []byte) error {
	return json.Unmarshal(line, &[]any{&p.topic, &p.partition, &p.value})
}

type order struct {
	ID         int      `json:"id"`
	Do         string   `json:"do"`
	Topic      string   `json:"topic"`
	Records    []record `json:"records"`
	Codec      string   `json:"codec"`
	Acks       string   `json:"acks"`
	Idempotent bool     `json:"idempotent"`
	Isolation  string   `json:"isolation"`
	Partitions []place  `json:"partitions"`
}

type settings struct {
	codec, acks string
	idempotent  bool
}

var (
	address   = os.Args[1]
	producers = map[settings]sarama.SyncProducer{}
	lookups   sarama.Client
	opened    order
	consumer  sarama.Consumer
	readers   sync.WaitGroup
	out       sync.Mutex
	codecs    = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	acknowledged = map[string]sarama.RequiredAcks{
		"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
	}
)

func say(what any) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func newConfig() (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.ClientID = "compat-sarama"
	config.Net.DialTimeout, config.Net.ReadTimeout, config.Net.WriteTimeout = patience, patience, patience
	config.Metadata.RefreshFrequency = time.Second
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config, addLogin(config)
}

type login struct {
	User, Password, Mechanism, Authority string
	TokenURL                             string `json:"token_url"`
}

// addLogin sets the login of the second argument, if there is one.
func addLogin(config *sarama.Config) error {
	if len(os.Args) < 3 {
		return nil
	}
	var mine login
	if err := json.Unmarshal([]byte(os.Args[2]), &mine); err != nil {
		return err
	}
	authority, err := os.ReadFile(mine.Authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
	sasl := &config.Net.SASL
	sasl.Enable, sasl.User, sasl.Password = true, mine.User, mine.Password
	sasl.Version, sasl.Mechanism = sarama.SASLHandshakeV1, sarama.SASLMechanism(mine.Mechanism)
	sasl.TokenProvider = mine
	sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{} }
	return nil
}

// Token returns a new token of the token server.
func (l login) Token() (*sarama.AccessToken, error) {
	request, err := http.NewRequest(http.MethodPost, l.TokenURL, strings.NewReader("grant_type=client_credentials"))
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(l.User, l.Password)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	reply, err := (&http.Client{Timeout: patience}).Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	var made struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(io.LimitReader(reply.Body, 1<<20)).Decode(&made)
	return &sarama.AccessToken{Token: made.Token}, err
}

type conversation struct{ *scram.ClientConversation }

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := scram.HashGeneratorFcn(func() hash.Hash { return sha512.New() }).NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

func producerOf(o order) (sarama.SyncProducer, error) {
	wanted := settings{o.Codec, o.Acks, o.Idempotent}
	if producers[wanted] != nil {
		return producers[wanted], nil
	}
	config, err := newConfig()
	if err != nil {
		return nil, err
	}
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.MaxMessageBytes = 4 << 20
	config.Producer.Compression = codecs[o.Codec]
	config.Producer.RequiredAcks = acknowledged[o.Acks]
	if o.Idempotent {
		config.Producer.Idempotent, config.Net.MaxOpenRequests = true, 1
	}
	made, err := sarama.NewSyncProducer([]string{address}, config)
	if err == nil {
		producers[wanted] = made
	}
	return made, err
}

func encoder(data []byte) sarama.Encoder {
	if data == nil {
		return nil
	}
	return sarama.ByteEncoder(data)
}

func send(o order) (any, error) {
	producer, err := producerOf(o)
	if err != nil {
		return nil, err
	}
	messages := make([]*sarama.ProducerMessage, 0, len(o.Records))
	for _, each := range o.Records {
		made := &sarama.ProducerMessage{
			Topic: o.Topic, Partition: each.Partition, Key: encoder(each.Key), Value: encoder(each.Value),
		}
		if each.Time != nil {
			made.Timestamp = time.UnixMilli(*each.Time)
		}
		for _, h := range each.Headers {
			made.Headers = append(made.Headers, sarama.RecordHeader{Key: []byte(h.name), Value: h.data})
		}
		messages = append(messages, made)
	}
	if err := producer.SendMessages(messages); err != nil {
		if all, is := err.(sarama.ProducerErrors); is {
			return nil, all[0].Err
		}
		return nil, err
	}
	placed := [][]int64{}
	for _, each := range messages {
		placed = append(placed, []int64{int64(each.Partition), each.Offset})
	}
	return placed, nil
}

func read(source sarama.PartitionConsumer) {
	defer readers.Done()
	for message := range source.Messages() {
		milliseconds, headers := message.Timestamp.UnixMilli(), []header{}
		for _, h := range message.Headers {
			headers = append(headers, header{string(h.Key), h.Value})
		}
		say(map[string]any{"records": []record{{
			message.Topic, message.Partition, message.Offset, &milliseconds, message.Key, message.Value, headers,
		}}})
	}
}

func assign(o order) error {
	config, err := newConfig()
	if err != nil {
		return err
	}
	if opened.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	if consumer, err = sarama.NewConsumer([]string{address}, config); err != nil {
		return err
	}
	for _, each := range o.Partitions {
		source, err := consumer.ConsumePartition(each.topic, each.partition, each.value)
		if err != nil {
			return err
		}
		sources = append(sources, source)
		readers.Add(1)
		go read(source)
	}
	return nil
}

var sources []sarama.PartitionConsumer

func leave() error {
	for _, each := range sources {
		each.AsyncClose()
	}
	readers.Wait()
	sources = nil
	if consumer == nil {
		return nil
	}
	last := consumer
	consumer = nil
	return last.Close()
}

// offsets returns the offsets of each place at these times, or at the time of the place itself without any.
func offsets(o order, times ...int64) (any, error) {
	if lookups == nil {
		config, err := newConfig()
		if err != nil {
			return nil, err
		}
		if lookups, err = sarama.NewClient([]string{address}, config); err != nil {
			return nil, err
		}
	}
	found := [][]any{}
	for _, each := range o.Partitions {
		row := []any{each.topic, each.partition}
		wanted := times
		if len(wanted) == 0 {
			wanted = []int64{each.value}
		}
		for _, moment := range wanted {
			offset, err := lookups.GetOffset(each.topic, each.partition, moment)
			if err != nil {
				return nil, err
			}
			row = append(row, offset)
		}
		found = append(found, row)
	}
	return found, nil
}

func run(o order) (any, error) {
	switch o.Do {
	case "send":
		return send(o)
	case "open":
		opened = o
		return nil, nil
	case "assign":
		return nil, assign(o)
	case "leave":
		return nil, leave()
	case "times":
		return offsets(o)
	case "ends":
		return offsets(o, sarama.OffsetOldest, sarama.OffsetNewest)
	}
	return nil, fmt.Errorf("no order %q", o.Do)
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		o := order{Isolation: "read_uncommitted", Codec: "none", Acks: "all"}
		if err := json.Unmarshal(line, &o); err != nil {
			panic(err)
		}
		value, err := run(o)
		if err != nil {
			say(map[string]any{"id": o.ID, "error": err.Error()})
			continue
		}
		say(map[string]any{"id": o.ID, "value": value})
	}
}
