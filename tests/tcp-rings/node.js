// `serve PORT` returns what it gets, by HTTP, and `serve-some PORT` ends each connection after 20
// requests; `ask PORT COUNT BEGIN` has COUNT bodies returned on each of some connections when there
// is the file BEGIN, and compares them; `share PORT COUNT` has them returned to one agent, which
// keeps five connections.
'use strict';
const fs = require('fs');
const http = require('http');
const timers = require('timers/promises');
const crypto = require('crypto');

const CONNECTIONS = 8;
// Requests after which both ends have offered their sockets.
const FEW = 10;
const LENGTHS = [1, 100, 5000, 300000];
const KEPT = 5;
const REQUESTS_OF_KEPT = 20;

function serve(port, requests) {
  const server = http.createServer((request, response) => {
    response.writeHead(200);
    request.pipe(response);
  });
  server.maxRequestsPerSocket = requests;
  server.listen(port, '127.0.0.1', () => console.log('ready'));
}

function ask(port, agent, body) {
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port, agent, method: 'POST' };
    const request = http.request(options, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('error', reject);
      response.on('end', () => resolve(Buffer.concat(parts).equals(body)));
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function askSome(port, agent, bodies) {
  for (const body of bodies) {
    if (!await ask(port, agent, body)) {
      throw new Error(`a body of ${body.length} octets is another one`);
    }
  }
}

async function run(port, count, begin) {
  const agents = Array.from({ length: CONNECTIONS },
    () => new http.Agent({ keepAlive: true, maxSockets: 1 }));
  const few = Array.from({ length: FEW }, () => crypto.randomBytes(64));
  await Promise.all(agents.map((agent) => askSome(port, agent, few)));
  while (!fs.existsSync(begin)) {
    await timers.setTimeout(10);
  }
  let octets = 0;
  await Promise.all(agents.map(async (agent, index) => {
    const lengths = Array.from({ length: count }, (_, number) =>
      LENGTHS[(index + number) % LENGTHS.length]);
    octets += lengths.reduce((sum, length) => sum + length, 0);
    await askSome(port, agent, lengths.map((length) => crypto.randomBytes(length)));
    agent.destroy();
  }));
  console.log('equal', octets);
}

async function share(port, count) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: KEPT, maxFreeSockets: KEPT });
  const lengths = Array.from({ length: count }, (_, number) => LENGTHS[number % LENGTHS.length]);
  await Promise.all(lengths.map((length) => askSome(port, agent, [crypto.randomBytes(length)])));
  agent.destroy();
  console.log('equal', lengths.reduce((sum, length) => sum + length, 0));
}

const [what, port, count, begin] = process.argv.slice(2);
if (what === 'serve') {
  serve(Number(port), 0);
} else if (what === 'serve-some') {
  serve(Number(port), REQUESTS_OF_KEPT);
} else if (what === 'share') {
  share(Number(port), Number(count));
} else {
  run(Number(port), Number(count), begin);
}
