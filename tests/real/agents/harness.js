// An agent on Node or Bun: starts what its plan says, keeps their streams, reads its own input.
//
// usage: node harness.js PLAN   (PLAN: see stage.py)
'use strict';
const fs = require('fs');
const tty = require('tty');
const { spawn } = require('child_process');

const plan = JSON.parse(fs.readFileSync(process.argv[process.argv.length - 1], 'utf8'));
const kept = [];

function report(id, pid) {
  fs.appendFileSync(plan.report, JSON.stringify({ id, pid }) + '\n');
}

function onTerminal(item) {
  const master = fs.openSync('/dev/ptmx', fs.constants.O_RDWR | fs.constants.O_NOCTTY);
  const child = spawn(plan.python, ['-IS', plan.pty_start, ...item.argv], {
    cwd: item.cwd,
    env: { STAND_IN_ENVIRONMENT: JSON.stringify(item.env), PATH: process.env.PATH },
    stdio: ['ignore', 'ignore', 'ignore', master],
    detached: true,
  });
  const stream = new tty.ReadStream(master);
  let fed = !item.feed;
  stream.on('data', () => {
    if (!fed) {
      fed = true;
      fs.writeSync(master, item.feed);
    }
  });
  stream.on('error', () => stream.destroy());
  kept.push(stream);
  return child;
}

function onStreams(item) {
  const [input, output] = item.stdio;
  const stdin = { null: 'ignore', closed: 'pipe', open: 'pipe', inherit: 'inherit' }[input];
  let out = ['pipe', 'pipe'];
  if (output === 'file') {
    const fd = fs.openSync(`${item.cwd}/output`, 'a');
    out = [fd, fd];
  }
  const child = spawn(item.argv[0], item.argv.slice(1), {
    cwd: item.cwd,
    env: item.env,
    stdio: [stdin, ...out],
    detached: item.session,
  });
  if (output === 'file') fs.closeSync(out[0]);
  else for (const stream of [child.stdout, child.stderr]) stream.resume();
  if (input === 'closed') child.stdin.end();
  if (child.stdin) child.stdin.on('error', () => {});
  if (input === 'open' && item.feed) child.stdin.write(item.feed);
  return child;
}

if (plan.relaunch && !process.env.STAND_IN_RELAUNCHED) {
  // The outer of two: waits for the inner one, which has its streams.
  const env = { ...process.env, ...plan.relaunch_env, STAND_IN_RELAUNCHED: '1' };
  const stdio = ['inherit', 'inherit', 'inherit', ...(plan.ipc ? ['ipc'] : [])];
  kept.push(spawn(plan.relaunch[0], plan.relaunch.slice(1), { stdio, env }));
} else {
  if (plan.title) process.title = plan.title;
  report('self', process.pid);
  for (const item of plan.items) {
    item.argv = item.argv.map((word) => (word === '@harness' ? String(process.pid) : word));
    const child = item.stdio[0] === 'pty' ? onTerminal(item) : onStreams(item);
    child.on('error', (error) => report(`${item.id}: ${error.message}`, 0));
    kept.push(child);
    report(item.id, child.pid);
  }
  process.stdin.resume();
  process.stdin.on('error', () => {});
  setInterval(() => kept.length, 3600e3); // it lives on when its input has ended
}
