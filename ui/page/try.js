// The form that asks a served model.
import {byId, make, setText, show} from './text.js';

const kModelsEvery = 15000;  // ms

async function refreshModels(ask) {
  const list = byId('try-model');
  try {
    const {models} = await ask('/api/models');
    const before = list.value;
    if ([...list.options].map((one) => one.value).join() !== models.join()) {
      list.replaceChildren(...models.map((name) => {
        const option = make('option', '', name);
        option.value = name;
        return option;
      }));
      if (models.includes(before)) list.value = before;
    }
    byId('try-go').disabled = models.length === 0;
    setText(byId('try-says'), models.length === 0 ? 'No model is served now: weft submit a job with task: serve.' : '');
    show(byId('try-box'), true);
  } catch (error) {
    byId('try-go').disabled = true;
    if (error.status !== 404) {
      setText(byId('try-says'), error.message);
      show(byId('try-box'), list.options.length > 0);
    } else {
      return;  // nobody said where models are served: there will be none
    }
  }
  setTimeout(() => (document.hidden ? wait(ask) : refreshModels(ask)), kModelsEvery);
}
function wait(ask) {
  document.addEventListener('visibilitychange', () => refreshModels(ask), {once: true});
}

// Each event of the answer as it comes.
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6));
      if (data.length > 0) yield JSON.parse(data.join('\n'));
    }
  }
}

async function generate(signal) {
  const out = byId('try-text'), prompt = byId('try-prompt').value, isChat = byId('try-chat').checked;
  const body = {
    model: byId('try-model').value, prompt, chat: isChat,
    max_tokens: byId('try-tokens').valueAsNumber, temperature: byId('try-temperature').valueAsNumber,
  };
  out.replaceChildren(make('span', 'soft', isChat ? '' : prompt));
  show(out, true);
  const answer = await fetch('/api/try', {
    method: 'POST', body: JSON.stringify(body), headers: {'Content-Type': 'application/json'}, signal,
    credentials: 'same-origin',
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  for await (const event of eventsOf(answer)) {
    if (event.text) out.append(event.text);
    if (event.error) throw new Error(event.error);
    if (event.end) return;
  }
  throw new Error('the answer broke off');
}

export function beginTrying(ask) {
  const button = byId('try-go');
  let under = null;
  byId('try').addEventListener('submit', async (event) => {
    event.preventDefault();
    if (under) return under.abort();
    under = new AbortController();
    setText(button, 'Stop');
    setText(byId('try-says'), '');
    try {
      await generate(under.signal);
    } catch (error) {
      if (error.name !== 'AbortError') setText(byId('try-says'), error.message);
    }
    under = null;
    setText(button, 'Ask');
  });
  refreshModels(ask);
}
