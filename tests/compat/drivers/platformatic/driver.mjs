// @platformatic/kafka under the orders of a test: the protocol of drivers/lines.py.
import { Consumer, Producer } from '@platformatic/kafka'
import fs from 'node:fs'
import readline from 'node:readline'

const login = process.argv[3] ? JSON.parse(process.argv[3]) : null
const secure = login && {
  tls: { ca: [fs.readFileSync(login.authority, 'utf-8')] },
  sasl: { mechanism: login.mechanism, username: login.user, password: login.password },
}
const common = { clientId: 'compat-platformatic', bootstrapBrokers: [process.argv[2]], ...secure }
const ISOLATION = { read_uncommitted: 0, read_committed: 1 }
const pack = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const unpack = (text) => (text === null || text === undefined ? undefined : Buffer.from(text, 'base64'))
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n')

const producers = {}
const transactional = {}
const transactions = {}
const received = {}
let consumer = null
let stream = null
let reset = 'earliest'

function plainProducer(idempotent) {
  producers[idempotent] ??= new Producer({ ...common, idempotent })
  return producers[idempotent]
}

function onMessage(message) {
  received[`${message.topic}/${message.partition}/${message.offset}`] = message
  const headers = [...message.headers].map(([name, data]) => [name.toString(), pack(data)])
  say({
    records: [{
      t: message.topic, p: message.partition, o: Number(message.offset), ts: Number(message.timestamp),
      k: pack(message.key), v: pack(message.value), h: headers,
    }],
  })
}

const DO = {
  async send({ topic, records, idempotent = false, producer: name = '' }) {
    const messages = records.map((each) => ({
      topic, key: unpack(each.k), value: unpack(each.v), partition: each.p || 0,
      headers: new Map((each.h || []).map(([header, data]) => [Buffer.from(header), unpack(data)])),
    }))
    const sender = transactions[name] || plainProducer(idempotent)
    const { offsets } = await sender.send({ messages, acks: -1 })
    const next = Object.fromEntries(offsets.map((each) => [each.partition, Number(each.offset)]))
    return records.map((each) => [each.p || 0, next[each.p || 0]++])
  },
  async open({ group, session_ms = 6000, reset: mode = 'earliest', isolation = 'read_uncommitted' }) {
    reset = mode
    consumer = new Consumer({
      ...common, groupId: group, sessionTimeout: session_ms, heartbeatInterval: Math.floor(session_ms / 4),
      autocommit: false, maxWaitTime: 100, isolationLevel: ISOLATION[isolation],
    })
  },
  async subscribe({ topics }) {
    stream = await consumer.consume({ topics, mode: 'committed', fallbackMode: reset })
    stream.on('data', onMessage)
  },
  async committed({ partitions }) {
    const topics = [...new Set(partitions.map(([topic]) => topic))]
    const wanted = topics.map((topic) => (
      { topic, partitions: partitions.filter(([name]) => name === topic).map(([, partition]) => partition) }))
    const found = await consumer.listCommittedOffsets({ topics: wanted })
    return partitions.map(([topic, partition]) => [topic, partition, Number(found.get(topic)[partition]), ''])
  },
  async leave() {
    await stream?.close()
    await consumer.close(true)
    consumer = stream = null
  },
  async txn_init({ producer: name, name: transactionalId = name, timeout_ms = 60000 }) {
    transactional[name] = new Producer({ ...common, transactionalId, idempotent: true, timeout: timeout_ms })
  },
  async txn_begin({ producer: name }) { transactions[name] = await transactional[name].beginTransaction() },
  async txn_offsets({ producer: name, offsets }) {
    await transactions[name].addConsumer(consumer)
    for (const [topic, partition, offset] of offsets) {
      await transactions[name].addOffset(received[`${topic}/${partition}/${offset - 1}`])
    }
  },
  async txn_commit({ producer: name }) { await transactions[name].commit() },
  async txn_abort({ producer: name }) { await transactions[name].abort() },
}

let turn = Promise.resolve()
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, do: name, ...request } = JSON.parse(line)
  turn = turn.then(async () => {
    try {
      const value = await DO[name](request)
      say({ id, value: value === undefined ? null : value })
    } catch (error) {
      const words = []
      for (const list = [error]; list.length;) {
        const one = list.pop()
        words.push(`${one.name}: ${one.message} ${one.apiId || ''}`)
        list.push(...(one.errors || []), ...(one.cause ? [one.cause] : []))
      }
      say({ id, error: words.join(' ') })
    }
  })
}).on('close', () => process.exit(0))
