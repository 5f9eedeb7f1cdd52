// Time that moves only when it is told to: each line of the socket is the new time in milliseconds, answered by a byte.
// ETags of tables are made of the date and four digits of `hrtime`: those count, so that no two writes share one.
const net = require('net')

const Real = Date
let now = Real.UTC(2026, 0, 1)
let ticks = 0

globalThis.Date = new Proxy(Real, {
  construct: (real, given, target) =>
    Reflect.construct(real, given.length ? given : [now], target === globalThis.Date ? real : target),
  apply: () => new Real(now).toString(),
  get: (real, name) => (name === 'now' ? () => now : Reflect.get(real, name)),
})
const big = process.hrtime.bigint
process.hrtime = () => [Math.floor(now / 1000), (ticks = (ticks + 1) % 10000)]
process.hrtime.bigint = big

// every minute of real time Azurite collects the garbage of its queues, which after ten lives takes longer than they did
const later = globalThis.setTimeout
globalThis.setTimeout = (call, wait, ...given) => later(call, wait < 60000 ? wait : 2 ** 31 - 1, ...given)

const line = net.connect(process.env.STILL_CLOCK)
let rest = ''
line.on('data', (data) => {
  const lines = (rest + data).split('\n')
  rest = lines.pop()
  for (const text of lines) {
    now = Number(text)
    line.write('.')
  }
})
line.unref()
