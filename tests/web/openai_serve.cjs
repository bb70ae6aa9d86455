// The npm package `openai`, unmodified, against a `weft serve` that runs: list, complete, chat, stream, abort,
// errors.
//   WEFT_NPM=FOLDER node openai_serve.cjs URL MODEL
// FOLDER is where `npm install openai` was run. The model has a chat template, and 128 positions.
'use strict';
const assert = require('node:assert/strict');
const {createRequire} = require('node:module');

const [baseURL, model] = process.argv.slice(2);
const OpenAI = createRequire(process.env.WEFT_NPM + '/')('openai');
const messages = [{role: 'system', content: 'Be brief.'}, {role: 'user', content: 'Good day'}];
const same = {model, seed: 7, max_tokens: 20, temperature: 0.8};

const tests = {
  async list(client) {
    const names = [];
    for await (const found of client.models.list()) names.push(found.id);
    assert.deepEqual(names, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async completeWholeAndAsStream(client) {
    const whole = await client.completions.create({...same, prompt: 'Once upon', logprobs: 2});
    assert.equal(whole.usage.completion_tokens, 20);
    assert.equal(whole.choices[0].finish_reason, 'length');
    assert.equal(whole.choices[0].logprobs.token_logprobs.length, 20);
    const stream = await client.completions.create({...same, prompt: 'Once upon', stream: true});
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0].text;
    assert.equal(text, whole.choices[0].text);
  },

  async chatWholeAndAsStream(client) {
    const whole = await client.chat.completions.create({...same, messages});
    assert.ok(whole.system_fingerprint);
    const stream = await client.chat.completions.create(
        {...same, messages, stream: true, stream_options: {include_usage: true}});
    let text = '', usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usage, whole.usage);
  },

  async many(client) {
    const alone = [], seeds = [1, 2, 3, 4, 5, 6, 7, 8];
    const ask = seed => client.completions.create({...same, seed, prompt: 'Once upon'});
    for (const seed of seeds) alone.push((await ask(seed)).choices[0].text);
    const together = await Promise.all(seeds.map(ask));
    assert.deepEqual(together.map(answer => answer.choices[0].text), alone);
  },

  async abort(client) {
    const stream = await client.chat.completions.create({...same, max_tokens: 60, messages, stream: true});
    for await (const chunk of stream)
      if (chunk.choices[0].delta.content) break;  // the client hangs up
    const controller = new AbortController();
    const whole = client.chat.completions.create({...same, max_tokens: 60, messages}, {signal: controller.signal});
    setImmediate(() => controller.abort());
    await assert.rejects(whole, OpenAI.APIUserAbortError);
  },

  async errors(client) {
    const chat = more => client.chat.completions.create({...same, messages, ...more}, {maxRetries: 0});
    await assert.rejects(chat({n: 2}), error => error instanceof OpenAI.BadRequestError && error.param === 'n');
    await assert.rejects(chat({model: 'gpt-9'}),
                         error => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found');
    await assert.rejects(chat({max_tokens: 500}), error => error.code === 'context_length_exceeded');
    await assert.rejects(chat({messages: [{role: 'user', content: 'x'.repeat(2 << 20)}]}),
                         error => error.status === 413);
  },
};

(async () => {
  const client = new OpenAI({baseURL, apiKey: 'none', timeout: 60_000});
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test(client);
      console.log(`ok: openai ${name}`);
    } catch (error) {
      ++failed;
      console.log(`FAILED: openai ${name}: ${error.stack}`);
    }
  }
  process.exitCode = failed === 0 ? 0 : 1;
})();
