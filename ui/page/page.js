// The page of `weft ui`: asks the server once a second while somebody looks, and shows what it says.
import {Curves} from './chart.js';
import {showJob, showJobs, showLines, showLinks, showPeers, showPipeline} from './parts.js';
import {byId, clock, setText, show} from './text.js';
import {beginTrying} from './try.js';

const kEvery = 1000, kPatience = 20000;  // ms
const curves = new Curves();
let wanted = 0, shown = 0;  // jobs; 0: whichever the server takes
let timer = 0, isAsking = false;

async function ask(path, body) {
  const options = {signal: AbortSignal.timeout(kPatience), cache: 'no-store', credentials: 'same-origin'};
  if (body) Object.assign(options, {method: 'POST', body: JSON.stringify(body), headers: {'Content-Type': 'application/json'}});
  const answer = await fetch(path, options);
  const says = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(says.error || `status ${answer.status}`), {status: answer.status});
  return says;
}

// ---- how it stands with the broker

function say(pill, mood, banner) {
  setText(byId('link'), pill);
  byId('link').className = `pill ${mood}`;
  setText(byId('banner'), banner);
  show(byId('banner'), banner !== '');
}
function showBroker(state) {
  const broker = state.broker;
  setText(byId('broker'), broker.address + (broker.is_admin ? ', everybody’s jobs' : ''));
  const since = broker.heard ? ` What is shown is of ${clock(broker.heard)}.` : '';
  if (broker.is_there) say('live', 'good', '');
  else say('broker away', 'bad', `The broker does not answer: ${broker.why}. It is asked again and again.${since}`);
  document.body.classList.toggle('stale', !broker.is_there);
}

// ---- what the server says

function showState(state) {
  show(byId('door'), false);
  show(byId('main'), true);
  showBroker(state);
  const job = state.job;
  if (job && job.job !== shown) curves.forget();
  shown = job ? job.job : 0;
  document.title = job ? `${job.job} ${job.name} – weft` : 'weft';
  showJobs(state, shown);
  showPeers(state);
  showLinks(state.links);
  show(byId('job'), job !== null);
  show(byId('job-none'), job === null);
  if (!job) {
    for (const id of ['pipeline-box', 'lines-box']) show(byId(id), false);
    const isWrong = state.missing !== '';
    setText(byId('none-title'), isWrong ? `Job ${wanted}` : 'Nothing runs yet');
    setText(byId('none-text'), isWrong ? state.missing : 'Send a job with weft submit job.yaml; its curves appear here.');
    return;
  }
  const changed = curves.take(job.curves);
  showJob(job, curves);
  showPipeline(job, state.peers);
  showLines(job);
  if (changed && curves.step.length > 0) curves.draw();
}

async function look() {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  const known = wanted === 0 || wanted === shown ? curves.query() : '';
  try {
    showState(await ask(`/api/state?job=${wanted || shown}&${known}`));
  } catch (error) {
    if (error.status === 403) askForKey(error.message);
    else say('no answer', 'bad', `weft ui does not answer (${error.message}). It is asked again and again.`);
  }
  isAsking = false;
  if (!document.hidden && byId('door').hidden) timer = setTimeout(look, kEvery);
}

// ---- the key

function askForKey(why) {
  show(byId('main'), false);
  show(byId('door'), true);
  say('closed', 'warn', '');
  setText(byId('door-says'), why);
}
async function openWith(key) {
  try {
    await ask('/api/session', {key});
    show(byId('door'), false);
    byId('key').value = '';
    look();
  } catch (error) {
    askForKey(error.message);
  }
}

// ---- what the reader does

// Asks once more before it does something: the button says so for some seconds.
function onSecond(button, question, work) {
  const first = button.textContent;
  let until = 0;
  const restore = () => {
    clearTimeout(until);
    until = 0;
    setText(button, first);
    button.classList.remove('sure');
  };
  button.addEventListener('click', async () => {
    if (!until) {
      setText(button, question);
      button.classList.add('sure');
      until = setTimeout(restore, 5000);
      return;
    }
    restore();
    button.disabled = true;
    try {
      await work();
    } catch (error) {
      setText(byId('job-says'), error.message);
      show(byId('job-says'), true);
    }
    button.disabled = false;
    look();
  });
}

function readFragment() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const key = fields.get('key');
  if (key) {
    fields.delete('key');  // it stands in no history, and nobody reads it over a shoulder
    history.replaceState(null, '', `${location.pathname}${fields.size ? `#${fields}` : ''}`);
  }
  wanted = Number(fields.get('job')) || 0;
  if (wanted !== shown) curves.forget();
  return key;
}

addEventListener('hashchange', () => {
  const key = readFragment();
  if (key) openWith(key);
  else look();
});
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && byId('door').hidden) look();
});
byId('door').addEventListener('submit', (event) => {
  event.preventDefault();
  openWith(byId('key').value.trim());
});
onSecond(byId('job-stop'), 'Stop it?', () => ask('/api/stop', {job: shown}));
onSecond(byId('job-resume'), 'Resume it?', () => ask('/api/resume', {job: shown}));
beginTrying(ask);
const key = readFragment();
if (key) openWith(key);
else look();
