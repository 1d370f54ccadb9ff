// franz-go under the orders of a test: the protocol of drivers/lines.py.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	saslplain "github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 25 * time.Second

type header struct {
	name string
	data []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.name, h.data}) }

func (h *header) UnmarshalJSON(line []byte) error { return json.Unmarshal(line, &[]any{&h.name, &h.data}) }

type record struct {
	Topic     string   `json:"t"`
	Partition int32    `json:"p"`
	Offset    int64    `json:"o"`
	Time      *int64   `json:"ts"`
	Key       []byte   `json:"k"`
	Value     []byte   `json:"v"`
	Headers   []header `json:"h"`
}

type place struct {
	topic     string
	partition int32
	offset    int64
}

func (p *place) UnmarshalJSON(line []byte) error {
	return json.Unmarshal(line, &[]any{&p.topic, &p.partition, &p.offset})
}

type order struct {
	ID         int      `json:"id"`
	Do         string   `json:"do"`
	Topic      string   `json:"topic"`
	Topics     []string `json:"topics"`
	Records    []record `json:"records"`
	Idempotent bool     `json:"idempotent"`
	Producer   string   `json:"producer"`
	Name       string   `json:"name"`
	TimeoutMS  int      `json:"timeout_ms"`
	Group      string   `json:"group"`
	SessionMS  int      `json:"session_ms"`
	Isolation  string   `json:"isolation"`
	Partitions []place  `json:"partitions"`
	Offsets    []place  `json:"offsets"`
}

var (
	address       = os.Args[1]
	plain         = map[bool]*kgo.Client{}
	transactional = map[string]*kgo.Client{}
	names         = map[string]string{}
	opened        order
	consumer      *kgo.Client
	polls         sync.WaitGroup
	out           sync.Mutex
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

func newClient(options ...kgo.Opt) (*kgo.Client, error) {
	common := []kgo.Opt{
		kgo.SeedBrokers(address), kgo.ClientID("compat-franz"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.ProducerLinger(0),
	}
	secure, err := loginOptions()
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(append(common, secure...), options...)...)
}

// loginOptions returns the options of the login in the second argument, none without one.
func loginOptions() ([]kgo.Opt, error) {
	if len(os.Args) < 3 {
		return nil, nil
	}
	var login login
	if err := json.Unmarshal([]byte(os.Args[2]), &login); err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(login.Authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return []kgo.Opt{kgo.DialTLSConfig(&tls.Config{RootCAs: roots}), kgo.SASL(login.asMechanism())}, nil
}

type login struct {
	User, Password, Mechanism, Authority string
	TokenURL                             string `json:"token_url"`
}

func (l login) asMechanism() sasl.Mechanism {
	switch l.Mechanism {
	case "OAUTHBEARER":
		return oauth.Oauth(l.fetchToken)
	case "PLAIN":
		return saslplain.Auth{User: l.User, Pass: l.Password}.AsMechanism()
	}
	return scram.Auth{User: l.User, Pass: l.Password}.AsSha512Mechanism()
}

// fetchToken returns a new token of the token server.
func (l login) fetchToken(ctx context.Context) (oauth.Auth, error) {
	body := strings.NewReader("grant_type=client_credentials")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.TokenURL, body)
	if err != nil {
		return oauth.Auth{}, err
	}
	request.SetBasicAuth(l.User, l.Password)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return oauth.Auth{}, err
	}
	defer reply.Body.Close()
	var made struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(io.LimitReader(reply.Body, 1<<20)).Decode(&made)
	return oauth.Auth{Token: made.Token}, err
}

func producerOf(o order) (*kgo.Client, error) {
	if o.Producer != "" {
		return transactional[o.Producer], nil
	}
	if plain[o.Idempotent] == nil {
		var options []kgo.Opt
		if !o.Idempotent {
			options = append(options, kgo.DisableIdempotentWrite())
		}
		made, err := newClient(options...)
		if err != nil {
			return nil, err
		}
		plain[o.Idempotent] = made
	}
	return plain[o.Idempotent], nil
}

func send(ctx context.Context, o order) (any, error) {
	client, err := producerOf(o)
	if err != nil {
		return nil, err
	}
	records := make([]*kgo.Record, 0, len(o.Records))
	for _, each := range o.Records {
		made := &kgo.Record{Topic: o.Topic, Partition: each.Partition, Key: each.Key, Value: each.Value}
		if each.Time != nil {
			made.Timestamp = time.UnixMilli(*each.Time)
		}
		for _, h := range each.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: h.name, Value: h.data})
		}
		records = append(records, made)
	}
	placed := [][]int64{}
	for _, result := range client.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return nil, result.Err
		}
		placed = append(placed, []int64{int64(result.Record.Partition), result.Record.Offset})
	}
	return placed, nil
}

func consume(options ...kgo.Opt) error {
	level := kgo.ReadUncommitted()
	if opened.Isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	options = append(options, kgo.FetchIsolationLevel(level), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	made, err := newClient(options...)
	if err != nil {
		return err
	}
	consumer = made
	polls.Add(1)
	go func() {
		defer polls.Done()
		for {
			fetches := made.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			records := []record{}
			fetches.EachRecord(func(r *kgo.Record) {
				milliseconds, headers := r.Timestamp.UnixMilli(), []header{}
				for _, h := range r.Headers {
					headers = append(headers, header{h.Key, h.Value})
				}
				records = append(records, record{r.Topic, r.Partition, r.Offset, &milliseconds, r.Key, r.Value, headers})
			})
			if len(records) > 0 {
				say(map[string]any{"records": records})
			}
		}
	}()
	return nil
}

func subscribe(o order) error {
	session := time.Duration(max(opened.SessionMS, 6000)) * time.Millisecond
	assigned := func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
		places := [][]any{}
		for topic, partitions := range given {
			for _, each := range partitions {
				places = append(places, []any{topic, each})
			}
		}
		say(map[string]any{"assigned": places})
	}
	return consume(
		kgo.ConsumerGroup(opened.Group), kgo.ConsumeTopics(o.Topics...), kgo.DisableAutoCommit(),
		kgo.Balancers(kgo.RoundRobinBalancer()), kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/4),
		kgo.OnPartitionsAssigned(assigned),
	)
}

func assign(o order) error {
	wanted := map[string]map[int32]kgo.Offset{}
	for _, each := range o.Partitions {
		if wanted[each.topic] == nil {
			wanted[each.topic] = map[int32]kgo.Offset{}
		}
		wanted[each.topic][each.partition] = kgo.NewOffset().At(each.offset)
	}
	return consume(kgo.ConsumePartitions(wanted))
}

func leave() {
	if consumer != nil {
		consumer.Close()
		polls.Wait()
	}
	consumer = nil
}

func committed(ctx context.Context, o order) (any, error) {
	client, err := producerOf(order{})
	if err != nil {
		return nil, err
	}
	found := [][]any{}
	for _, each := range o.Partitions {
		topic := kmsg.NewOffsetFetchRequestGroupTopic()
		topic.Topic, topic.Partitions = each.topic, []int32{each.partition}
		group := kmsg.NewOffsetFetchRequestGroup()
		group.Group, group.Topics = opened.Group, []kmsg.OffsetFetchRequestGroupTopic{topic}
		request := kmsg.NewPtrOffsetFetchRequest()
		request.Groups, request.RequireStable = append(request.Groups, group), true
		answer, err := request.RequestWith(ctx, client)
		if err != nil {
			return nil, err
		}
		row := answer.Groups[0].Topics[0].Partitions[0]
		if row.ErrorCode == kerr.UnstableOffsetCommit.Code {
			return committed(ctx, o)
		}
		if err := kerr.ErrorForCode(row.ErrorCode); err != nil {
			return nil, err
		}
		metadata := ""
		if row.Metadata != nil {
			metadata = *row.Metadata
		}
		found = append(found, []any{each.topic, each.partition, row.Offset, metadata})
	}
	return found, nil
}

func beginWith(ctx context.Context, o order) error {
	options := []kgo.Opt{
		kgo.TransactionalID(o.Name), kgo.TransactionTimeout(time.Duration(o.TimeoutMS) * time.Millisecond),
	}
	made, err := newClient(options...)
	if err != nil {
		return err
	}
	transactional[o.Producer], names[o.Producer] = made, o.Name
	_, _, err = made.ProducerID(ctx)
	return err
}

// Offsets of another client's group. franz-go has a call only for a client that is producer and member in one.
func sendOffsets(ctx context.Context, o order) error {
	client := transactional[o.Producer]
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return err
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = names[o.Producer], id, epoch, opened.Group
	added, err := add.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return err
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.Group = names[o.Producer], opened.Group
	commit.ProducerID, commit.ProducerEpoch = id, epoch
	if consumer != nil {
		commit.MemberID, commit.Generation = consumer.GroupMetadata()
	}
	for _, each := range o.Offsets {
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset = each.partition, each.offset
		topic := kmsg.NewTxnOffsetCommitRequestTopic()
		topic.Topic, topic.Partitions = each.topic, append(topic.Partitions, partition)
		commit.Topics = append(commit.Topics, topic)
	}
	answer, err := commit.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, topic := range answer.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

func run(o order) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch o.Do {
	case "send":
		return send(ctx, o)
	case "open":
		opened = o
		return nil, nil
	case "subscribe":
		return nil, subscribe(o)
	case "assign":
		return nil, assign(o)
	case "leave":
		leave()
		return nil, nil
	case "committed":
		return committed(ctx, o)
	case "txn_init":
		return nil, beginWith(ctx, o)
	case "txn_begin":
		return nil, transactional[o.Producer].BeginTransaction()
	case "txn_offsets":
		return nil, sendOffsets(ctx, o)
	case "txn_commit":
		return nil, transactional[o.Producer].EndTransaction(ctx, kgo.TryCommit)
	case "txn_abort":
		return nil, transactional[o.Producer].EndTransaction(ctx, kgo.TryAbort)
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
		o := order{Isolation: "read_uncommitted"}
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
