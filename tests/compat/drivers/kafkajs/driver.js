// KafkaJS under the orders of a test: the protocol of drivers/lines.py.
const { Kafka, CompressionTypes, PartitionAssigners, ConfigResourceTypes, logLevel } = require('kafkajs')
const fs = require('fs')
const readline = require('readline')

const login = process.argv[3] ? JSON.parse(process.argv[3]) : null
const secure = login && {
  ssl: { ca: [fs.readFileSync(login.authority, 'utf-8')] },
  sasl: login.token_url
    ? { mechanism: 'oauthbearer', oauthBearerProvider: fetchToken }
    : { mechanism: login.mechanism.toLowerCase(), username: login.user, password: login.password },
}

async function fetchToken() {
  const credentials = Buffer.from(`${login.user}:${login.password}`).toString('base64')
  const reply = await fetch(login.token_url, {
    method: 'POST', body: new URLSearchParams({ grant_type: 'client_credentials' }),
    headers: { Authorization: `Basic ${credentials}` }, signal: AbortSignal.timeout(30000),
  })
  return { value: (await reply.json()).access_token }
}

const kafka = new Kafka({
  clientId: 'compat-kafkajs', brokers: [process.argv[2]], logLevel: logLevel.NOTHING, ...secure,
})
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const pack = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const unpack = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n')

const producers = {}
const transactional = {}
const transactions = {}
let consumer = null
let group = null
let theAdmin = null
const positions = {}

async function admin() {
  if (!theAdmin) {
    theAdmin = kafka.admin()
    await theAdmin.connect()
  }
  return theAdmin
}

async function producer(idempotent) {
  if (!producers[idempotent]) {
    producers[idempotent] = kafka.producer({ idempotent, maxInFlightRequests: idempotent ? 1 : null })
    await producers[idempotent].connect()
  }
  return producers[idempotent]
}

function headersOf(record) {
  const headers = {}
  for (const [name, data] of record.h || []) {
    headers[name] = headers[name] === undefined ? unpack(data) : [].concat(headers[name], [unpack(data)])
  }
  return headers
}

function listed(headers) {
  const all = []
  for (const [name, data] of Object.entries(headers || {})) {
    for (const each of Array.isArray(data) ? data : [data]) all.push([name, pack(each)])
  }
  return all
}

function received({ topic, partition, message }) {
  return {
    t: topic, p: partition, o: Number(message.offset), ts: Number(message.timestamp),
    k: pack(message.key), v: pack(message.value), h: listed(message.headers),
  }
}

async function eachBatch({ batch, resolveOffset, heartbeat, isRunning, isStale, pause }) {
  const records = []
  for (const message of batch.messages) {
    if (!isRunning() || isStale()) break
    records.push(received({ topic: batch.topic, partition: batch.partition, message }))
    resolveOffset(message.offset)
    positions[`${batch.topic}/${batch.partition}`] = String(Number(message.offset) + 1)
  }
  if (records.length) say({ records })
  await heartbeat()
}

const DO = {
  async send({ topic, records, acks = 'all', codec = 'none', idempotent = false, producer: name = '' }) {
    const messages = records.map((each) => ({
      key: unpack(each.k), value: unpack(each.v), headers: headersOf(each), partition: each.p || 0,
      ...(each.ts === undefined || each.ts === null ? {} : { timestamp: String(each.ts) }),
    }))
    const send = { topic, messages, acks: acks === 'all' ? -1 : Number(acks), compression: CODECS[codec] }
    const placed = await (transactions[name] || (await producer(idempotent))).send(send)
    const next = {}
    for (const each of placed) next[each.partition] = Number(each.baseOffset)
    return records.map((each) => {
      const partition = each.p || 0
      return next[partition] === undefined ? null : [partition, next[partition]++]
    })
  },
  async open({ group: name, session_ms = 6000, reset = 'earliest', isolation = 'read_uncommitted' }) {
    group = name
    consumer = kafka.consumer({
      groupId: name, sessionTimeout: session_ms, heartbeatInterval: Math.floor(session_ms / 4),
      rebalanceTimeout: 10000, maxBytesPerPartition: 2000000, maxWaitTimeInMs: 100, metadataMaxAge: 1000,
      partitionAssigners: [PartitionAssigners.roundRobin], readUncommitted: isolation === 'read_uncommitted',
    })
    consumer.reset = reset
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      const parts = []
      for (const [topic, those] of Object.entries(payload.memberAssignment)) for (const p of those) parts.push([topic, p])
      say({ assigned: parts.sort() })
    })
    await consumer.connect()
  },
  async subscribe({ topics }) {
    await consumer.subscribe({ topics, fromBeginning: consumer.reset === 'earliest' })
    await consumer.run({ autoCommit: false, eachBatch, eachBatchAutoResolve: false })
  },
  async seek({ topic, partition, offset }) { consumer.seek({ topic, partition, offset: String(offset) }) },
  async pause({ partitions }) { consumer.pause(partitions.map(([topic, p]) => ({ topic, partitions: [p] }))) },
  async resume({ partitions }) { consumer.resume(partitions.map(([topic, p]) => ({ topic, partitions: [p] }))) },
  async commit({ offsets = null }) {
    const wanted = offsets
      ? offsets.map(([topic, partition, offset, metadata]) => ({ topic, partition, offset: String(offset), metadata }))
      : Object.entries(positions).map(([place, offset]) => {
        const at = place.lastIndexOf('/')
        return { topic: place.slice(0, at), partition: Number(place.slice(at + 1)), offset }
      })
    await consumer.commitOffsets(wanted)
  },
  async committed({ partitions }) {
    const topics = [...new Set(partitions.map(([topic]) => topic))]
    const found = await (await admin()).fetchOffsets({ groupId: group, topics })
    return partitions.map(([topic, partition]) => {
      const those = found.find((each) => each.topic === topic).partitions
      const one = those.find((each) => each.partition === partition)
      return one ? [topic, partition, Number(one.offset), one.metadata || ''] : [topic, partition, -1, '']
    })
  },
  async times({ partitions }) {
    return Promise.all(partitions.map(async ([topic, partition, time]) => {
      const found = await (await admin()).fetchTopicOffsetsByTimestamp(topic, time)
      return [topic, partition, Number(found.find((each) => each.partition === partition).offset)]
    }))
  },
  async ends({ partitions }) {
    return Promise.all(partitions.map(async ([topic, partition]) => {
      const found = await (await admin()).fetchTopicOffsets(topic)
      const one = found.find((each) => each.partition === partition)
      return [topic, partition, Number(one.low), Number(one.high)]
    }))
  },
  async leave() {
    await consumer.disconnect()
    consumer = null
  },
  async txn_init({ producer: name, name: transactionalId = name, timeout_ms = 60000 }) {
    const settings = { transactionalId, transactionTimeout: timeout_ms, idempotent: true, maxInFlightRequests: 1 }
    transactional[name] = kafka.producer(settings)
    await transactional[name].connect()
  },
  async txn_begin({ producer: name }) { transactions[name] = await transactional[name].transaction() },
  async txn_offsets({ producer: name, offsets }) {
    const topics = offsets.map(([topic, partition, offset]) => (
      { topic, partitions: [{ partition, offset: String(offset) }] }))
    await transactions[name].sendOffsets({ consumerGroupId: group, topics })
  },
  async txn_commit({ producer: name }) { await transactions[name].commit() },
  async txn_abort({ producer: name }) { await transactions[name].abort() },
  async create({ topic, partitions = 1, configs = {} }) {
    const configEntries = Object.entries(configs || {}).map(([name, value]) => ({ name, value }))
    const asked = { topics: [{ topic, numPartitions: partitions, configEntries }], waitForLeaders: true }
    if (!(await (await admin()).createTopics(asked))) throw new Error(`TopicAlreadyExists: ${topic}`)
  },
  async delete({ topic }) { await (await admin()).deleteTopics({ topics: [topic] }) },
  async add_partitions({ topic, total }) {
    await (await admin()).createPartitions({ topicPartitions: [{ topic, count: total }] })
  },
  async topics() {
    const { topics } = await (await admin()).fetchTopicMetadata()
    return Object.fromEntries(topics.map((each) => [each.name, each.partitions.length]))
  },
  async configs({ kind, name }) {
    const type = ConfigResourceTypes[kind.toUpperCase()]
    const { resources } = await (await admin()).describeConfigs({ resources: [{ type, name }], includeSynonyms: false })
    return Object.fromEntries(resources[0].configEntries.map((e) => [e.configName, [e.configValue, e.configSource]]))
  },
  async delete_records({ partitions }) {
    for (const [topic, partition, offset] of partitions) {
      await (await admin()).fetchTopicOffsets(topic) // else: "Topic metadata not loaded"
      await (await admin()).deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] })
    }
    return partitions.map(([, , offset]) => offset)
  },
  async groups() {
    const { groups } = await (await admin()).listGroups()
    return Object.fromEntries(groups.map((each) => [each.groupId, '']))
  },
  async group({ group: name }) {
    const { groups } = await (await admin()).describeGroups([name])
    const members = groups[0].members.map((each) => ({ instance: '', parts: null }))
    return { state: groups[0].state.toLowerCase(), assignor: groups[0].protocol, members }
  },
  async delete_group({ group: name }) { await (await admin()).deleteGroups([name]) },
  async group_offsets({ group: name }) {
    const found = await (await admin()).fetchOffsets({ groupId: name })
    return found.flatMap(({ topic, partitions }) => partitions.map((e) => [topic, e.partition, Number(e.offset)])).sort()
  },
  async set_offsets({ group: name, offsets }) {
    for (const [topic, partition, offset] of offsets) {
      await (await admin()).setOffsets({ groupId: name, topic, partitions: [{ partition, offset: String(offset) }] })
    }
  },
}

let turn = Promise.resolve()
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, do: name, ...request } = JSON.parse(line)
  turn = turn.then(async () => {
    try {
      const value = await DO[name](request)
      say({ id, value: value === undefined ? null : value })
    } catch (error) {
      const inner = [...(error.errors || []), ...(error.groups || []).map((each) => each.error || each)]
      const words = inner.map((each) => each.message || each.type || each.errorCode).join(' ')
      say({ id, error: `${error.name}: ${error.message} ${error.type || ''} ${words}` })
    }
  })
}).on('close', () => process.exit(0))
