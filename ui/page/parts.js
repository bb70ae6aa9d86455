// The parts of the page, each from what the server says of it.
import {bits, byId, bytes, clock, duration, keep, loss, make, rate, seat, setText, share, show} from './text.js';

const kEnded = ['finished', 'stopped', 'failed'];
const kMood = {
  running: 'good', finished: 'good', active: 'good', pool: 'calm', queued: 'calm', waiting: 'warn', planning: 'calm',
  loading: 'calm', stopping: 'warn', stopped: 'calm', failed: 'bad', suspect: 'warn', draining: 'warn', paused: 'calm', left: 'calm', gone: 'bad', banned: 'bad',
};
export const mood = (state) => kMood[state] ?? 'warn';
export const hasEnded = (job) => kEnded.includes(job.state);

function pill(element, state) {
  setText(element, state);
  element.className = `pill ${mood(state)}`;
}

// ---- jobs

export function showJobs(state, chosen) {
  keep(byId('jobs'), state.jobs, (job) => job.job, (job) => {
    const link = make('a', '', make('span', 'name'), make('span', 'dot'), make('span', 'soft'));
    link.href = `#job=${job.job}`;
    return make('li', '', link);
  }, (item, job) => {
    const [name, dot, says] = item.firstChild.children;
    setText(name, `${job.job} ${job.name}`);
    dot.className = `dot ${mood(job.state)}`;
    const done = job.steps > 0 ? `${job.step}/${job.steps}` : `step ${job.step}`;
    setText(says, job.state === 'running' ? done : job.state);
    item.firstChild.toggleAttribute('aria-current', job.job === chosen);
    item.firstChild.title = job.reason;
  });
  show(byId('jobs-none'), state.jobs.length === 0);
  show(byId('jobs-more'), state.more);
  if (state.more) setText(byId('jobs-more'), `Older ones: weft jobs --before ${state.jobs.at(-1).job}`);
}

// ---- the job

function figure(list, name, value) {
  if (value !== null) list.push({name, value});
}

// Of many replicas the least and the most.
function rounds(steps) {
  const least = Math.min(...steps), most = Math.max(...steps);
  if (least === most) return String(least);
  return steps.length <= 4 ? steps.join(', ') : `${least} to ${most}`;
}

function figuresOf(job, curves) {
  const list = [], steps = job.steps > 0 ? ` of ${job.steps}` : '';
  const accuracy = curves.evaluations.at(-1)?.metrics.accuracy ?? null;
  const last = curves.loss.at(-1) ?? null;
  figure(list, `step${steps}`, String(job.step));
  figure(list, 'loss', last === null ? null : loss(last));
  figure(list, 'accuracy', accuracy === null ? null : share(accuracy));
  figure(list, 'samples/s', job.samples_per_second > 0 && !hasEnded(job) ? rate(job.samples_per_second) : null);
  // Who makes no steps fetches what the others have.
  const replicas = job.replicas, makers = replicas?.steps.filter((own) => own > 0) ?? [];
  const isAlone = makers.length === 1, fetching = (replicas?.steps.length ?? 0) - makers.length;
  figure(list, isAlone ? 'replica' : 'replicas',
    replicas ? `${makers.length}${fetching > 0 ? ` and ${fetching} to come` : ''}` : null);
  figure(list, `steps a round${isAlone || !replicas ? '' : ' each'}`, replicas ? rounds(makers) : null);
  figure(list, 'since they agreed', replicas?.agreed_step && !hasEnded(job)
    ? duration(replicas.seconds_since_agreement) : null);
  const saving = job.saving, isBehind = job.steps > 0 && Math.max(job.step, saving?.step ?? 0) >= job.steps;
  figure(list, 'left', job.seconds_left > 0 && !hasEnded(job) && !isBehind ? duration(job.seconds_left) : null);
  figure(list, 'checkpoint at', job.checkpoint_step > 0 ? String(job.checkpoint_step) : null);
  figure(list, `of ${bytes(saving?.bytes ?? 0)} saved`, saving ? bytes(saving.saved) : null);
  figure(list, 'peers replaced', job.recoveries > 0 ? String(job.recoveries) : null);
  return list;
}

export function showJob(job, curves) {
  setText(byId('job-title'), `${job.job} ${job.name}`);
  pill(byId('job-state'), job.state);
  setText(byId('job-says'), job.reason);
  show(byId('job-says'), job.reason !== '');
  byId('job-plan').href = `/plan?job=${job.job}`;
  show(byId('job-plan'), job.plan.length > 0 || job.plan_version > 0);
  show(byId('job-stop'), !hasEnded(job) && job.state !== 'stopping');
  show(byId('job-resume'), job.state === 'stopped' || job.state === 'failed');
  const progress = byId('job-progress');
  show(progress, job.steps > 0);
  if (job.steps > 0) {
    progress.max = job.steps;
    progress.value = job.step;
  }
  keep(byId('figures'), figuresOf(job, curves), (one) => one.name.split(' ')[0],
       () => make('div', 'figure', make('b'), make('span')), (box, one) => {
         setText(box.children[0], one.value);
         setText(box.children[1], one.name);
       });
  const hasSteps = curves.step.length > 0;
  byId('figures').dataset.step = curves.step.at(-1) ?? 0;  // whose loss it is
  document.querySelector('.charts').hidden = !hasSteps;
  const hasNone = job.state === 'running' && job.steps === 0 && job.step === 0;
  show(byId('charts-none'), !hasSteps && !hasEnded(job));
  setText(byId('charts-none'), hasNone ? 'This job serves a model or predicts: it has no steps, and no curves.'
                                       : 'No step is done yet: the curves begin with the first one.');
}

// ---- the pipeline

// What the plan calls its links' codec, where they all have one.
function codecOf(job) {
  const said = job.plan.map((line) => /compressed as (.+?): /.exec(line)?.[1]).find(Boolean);
  return said && !said.includes(' ') ? said : '';
}

function linkText(link, codec) {
  let text = '';
  const sends = link.bytes >= 64;  // less are acknowledgements alone
  if (sends) text = `${bytes(link.bytes)} a step`;
  if (link.encoded > 0) {
    text += `, ${codec ? `${codec}: ` : ''}${(link.dense / link.encoded).toFixed(1)} × smaller`;
    if (link.error !== null) text += ` (${(100 * link.error).toPrecision(2)} % off)`;
  }
  if (link.relay) text += `${text ? ', ' : ''}through the broker`;
  if (link.waiting >= 0.0005) text += `${text ? ', ' : ''}waited ${duration(link.waiting)} for it`;
  return text;
}

// Of several stages, the one that works for more of a step than the others do.
function slowest(stages) {
  if (stages.length < 2) return null;
  const mean = stages.reduce((sum, stage) => sum + stage.busy, 0) / stages.length;
  const most = stages.reduce((a, b) => (b.busy > a.busy ? b : a));
  return most.busy > 1.15 * mean && most.busy > 0.3 ? most : null;
}

function makeStage() {
  const meter = make('meter');
  meter.min = 0, meter.max = 1;
  return make('li', 'stage', make('div', 'row', make('b'), make('span', 'tag')), make('div', 'who'), meter,
              make('div', 'soft'), make('ul', 'plain links'));
}

export function showPipeline(job, peers) {
  const stages = job.stages, running = !hasEnded(job);
  show(byId('pipeline-box'), stages.length > 0 && running);
  const states = new Map(peers.list.map((peer) => [peer.peer, peer.state]));
  const slow = slowest(stages), codec = codecOf(job);
  keep(byId('pipeline'), stages, (stage) => `${stage.stage}.${stage.replica}`, makeStage, (box, stage) => {
    const [head, who, meter, busy, links] = box.children;
    const state = states.get(stage.peer) ?? 'active';
    const isLost = state === 'gone' || state === 'suspect';
    setText(head.children[0], seat(stage));
    setText(head.children[1], isLost ? state : stage === slow ? 'slowest' : '');
    box.classList.toggle('lost', isLost);
    box.classList.toggle('slow', stage === slow);
    setText(who, stage.name + (stage.region ? `, ${stage.region}` : ''));
    meter.value = Math.min(1, stage.busy);
    meter.setAttribute('aria-label', `${seat(stage)} busy`);
    setText(busy, `${share(stage.busy)} busy`);
    const told = stage.links.map((link) => ({link, text: linkText(link, codec)})).filter((one) => one.text);
    keep(links, told, (one) => seat(one.link), () => make('li'),
         (item, one) => setText(item, `${one.link.stage > stage.stage ? '→' : '←'} ${seat(one.link)}: ${one.text}`));
  });
  const replicas = new Set(stages.map((stage) => stage.replica)).size;
  const kind = replicas > 1 ? `${replicas} replicas` : 'Pipeline';
  setText(byId('pipeline-title'), `${kind}: ${stages.length} ${stages.length === 1 ? 'stage' : 'stages'}, plan ${job.plan_version}`);
  // What the plan says first; the rest is on its own page.
  const summary = job.plan.filter((line) => !line.startsWith(' ')).slice(0, 6);
  keep(byId('summary'), summary, (line) => line, (line) => make('li', 'soft', line), () => {});
  const c = job.comparison;
  show(byId('comparison'), c !== null);
  if (c) {
    setText(byId('comparison'), `Compressed links, after step ${c.step}: loss ${loss(c.loss)}, dense ${loss(c.loss_dense)}; ` +
                                `gradients ${((c.gradient_error ?? 0) * 100).toPrecision(2)} % off`);
  }
}

// ---- what happened

export function showLines(job) {
  const lines = [...job.lines].reverse();
  show(byId('lines-box'), lines.length > 0);
  let again = 0, before = '';
  keep(byId('lines'), lines, (line) => {
    const key = `${line.ms} ${line.kind} ${line.text}`;
    again = key === before ? again + 1 : 0;
    before = key;
    return `${key} ${again}`;
  }, (line) => make('li', line.kind, make('time', 'soft', clock(line.ms)), make('span', '', line.text)), () => {});
}

// ---- peers

const kOrder = ['active', 'suspect', 'draining', 'pool', 'paused', 'other version', 'left out'];
const kAway = ['gone', 'left', 'banned'];
const isAway = (peer) => kAway.includes(peer.state);
const rank = (peer) => (kOrder.indexOf(peer.state) + kOrder.length) % kOrder.length;

function peerText(peer) {
  const parts = [peer.reason, peer.device, peer.region, peer.owner].filter(Boolean);
  if (peer.flops > 0) parts.push(`${rate(peer.flops / 1e9)} GFLOP/s`);
  if (!peer.reachable && !isAway(peer)) parts.push('by relay');
  if (peer.heard > 5 || isAway(peer)) parts.push(`heard ${duration(peer.heard)} ago`);
  return parts.join(' · ');
}
function showPeerList(list, peers, slow) {
  keep(list, peers, (peer) => peer.peer,
       () => make('li', '', make('span', 'name'), make('span', 'pill'), make('span', 'soft more')), (item, peer) => {
         const [name, state, more] = item.children;
         setText(name, peer.name);
         pill(state, peer.state);
         setText(more, (peer.peer === slow ? 'the slowest stage · ' : '') + peerText(peer));
       });
}

export function showPeers(state) {
  const {list, count} = state.peers;
  const here = list.filter((peer) => !isAway(peer)).sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  const gone = list.filter(isAway).sort((a, b) => a.heard - b.heard);
  const few = gone.filter((peer) => peer.heard < 600).slice(0, 5), rest = gone.filter((peer) => !few.includes(peer));
  const slow = state.job && state.job.state === 'running' ? slowest(state.job.stages)?.peer : undefined;
  showPeerList(byId('peers'), [...here, ...few], slow);
  showPeerList(byId('gone'), rest, undefined);
  show(byId('gone-box'), rest.length > 0);
  setText(byId('gone-title'), `${rest.length} more that ${rest.length === 1 ? 'was' : 'were'} here once`);
  setText(byId('peers-count'), count > 0 ? `${here.length} here${count > list.length ? ` of the ${list.length} shown` : ''}` : '');
  show(byId('peers-none'), count === 0);
  show(byId('changes-box'), state.changes.length > 0);
  keep(byId('changes'), [...state.changes].reverse(), (one) => `${one.ms} ${one.name} ${one.after}`,
       (one) => make('li', '', make('time', 'soft', clock(one.ms)), make('span', '', changeText(one))), () => {});
}

function changeText(one) {
  if (!one.before) return `${one.name} came (${one.after})`;
  if (!one.after) return `${one.name} is no longer known`;
  if (one.after === 'gone') return `${one.name} is gone (it was ${one.before})`;
  return `${one.name}: ${one.before} → ${one.after}`;
}

// ---- links

const kNameMax = 14;
let linksShown = '';
export function showLinks(links) {
  const names = links.by_peer ? links.ends.map((end) => end.name)
                              : [...new Set(links.links.map((link) => link[0]))].map((site) => `site ${site + 1}`);
  show(byId('links-box'), names.length > 1 && links.links.length > 0);
  const text = JSON.stringify(links.links.map((link) => link.slice(0, 6))) + names;
  if (text === linksShown) return;
  linksShown = text;
  const title = (name) => {
    const cell = make('th', '', name.length > kNameMax ? `${name.slice(0, kNameMax - 1)}…` : name);
    cell.title = name;
    return cell;
  };
  const head = make('tr', '', make('th', '', 'from \\ to'), ...names.map(title));
  const rows = names.map((name, from) => make('tr', '', title(name), ...names.map((_, to) => {
    const link = links.links.find((one) => one[0] === from && one[1] === to);
    const cell = make('td', link?.[4] ? 'soft' : '', link ? cellText(link) : '–');
    cell.dataset.to = names[to];  // on a phone the table is a list
    cell.classList.toggle('none', !link);
    return cell;
  })));
  byId('links').replaceChildren(make('thead', '', head), make('tbody', '', ...rows));
}
function cellText([, , bytesPerSecond, ms, assumed, relayed]) {
  return `${assumed ? '~' : ''}${bits(bytesPerSecond ?? 0)} ${(ms ?? 0).toFixed(ms < 10 ? 1 : 0)} ms${relayed ? ' relay' : ''}`;
}
