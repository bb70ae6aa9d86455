// What tests/web/openai_client.sh runs: node openai_client.cjs SERVER [options of the server].
'use strict';
const assert = require('node:assert/strict');
const {spawn} = require('node:child_process');
const {createRequire} = require('node:module');
const readline = require('node:readline');

const [program, ...options] = process.argv.slice(2);
const OpenAI = createRequire(process.env.WEFT_NPM + '/')('openai');

const server = spawn(program, options, {stdio: ['pipe', 'pipe', 'inherit']});
const lines = readline.createInterface({input: server.stdout})[Symbol.asyncIterator]();
const nextLine = async () => (await lines.next()).value;
const isCancelled = async count => {
  server.stdin.write(`cancelled ${count}\n`);
  return await nextLine() === 'yes';
};

const messages = text => [{role: 'system', content: 'Be brief.'}, {role: 'user', content: text}];
const tests = {
  async list(client) {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names, ['fake']);
    assert.equal((await client.models.retrieve('fake')).owned_by, 'weft');
  },

  async complete(client) {
    const answer = await client.completions.create({model: 'fake', prompt: 'count 5', max_tokens: 3, logprobs: 1});
    assert.equal(answer.choices[0].text, '1 2 3');
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert.equal(answer.choices[0].logprobs.tokens.length, 3);
    assert.equal(answer.usage.completion_tokens, 3);
    assert.equal(answer._request_id, answer.id);
  },

  async completeAsStream(client) {
    const stream = await client.completions.create({model: 'fake', prompt: 'count 50', stream: true});
    let text = '', reason = null;
    for await (const chunk of stream) {
      text += chunk.choices[0].text;
      reason = chunk.choices[0].finish_reason ?? reason;
    }
    assert.equal(text.split(' ').length, 50);
    assert.equal(reason, 'stop');
  },

  async chat(client) {
    const answer = await client.chat.completions.create({model: 'fake', messages: messages('good day wörld'), seed: 7,
                                                         temperature: 0.5, top_p: 0.9, stop: ['nothing'],
                                                         logprobs: true, top_logprobs: 2, user: 'me'});
    assert.equal(answer.choices[0].message.content, 'good day wörld');
    assert.equal(answer.choices[0].logprobs.content.length, 3);
    assert.equal(answer.system_fingerprint, 'fp-fake');
  },

  async chatAsStream(client) {
    const stream = await client.chat.completions.create({model: 'fake', messages: messages('count 200'), stream: true,
                                                         stream_options: {include_usage: true}});
    let text = '', usage = null, role = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      role ??= chunk.choices[0]?.delta?.role;
      usage = chunk.usage ?? usage;
    }
    assert.equal(text.split(' ').length, 200);
    assert.equal(role, 'assistant');
    assert.equal(usage.completion_tokens, 200);
  },

  async helperForStreams(client) {
    const runner = client.chat.completions.stream({model: 'fake', messages: messages('one two')});
    assert.equal(await runner.finalContent(), 'one two');
  },

  async many(client) {
    const answers = await Promise.all(Array.from({length: 50}, (_, i) => client.completions.create(
        {model: 'fake', prompt: `count ${i + 1}`})));
    answers.forEach((answer, i) => assert.equal(answer.usage.completion_tokens, i + 1));
  },

  async abort(client) {
    const stream = await client.chat.completions.create({model: 'fake', messages: messages('hang'), stream: true});
    let words = 0;
    for await (const chunk of stream)
      if (chunk.choices[0].delta.content && ++words === 3) break;  // the client hangs up
    assert.ok(await isCancelled(1));
    const controller = new AbortController();
    const whole = client.chat.completions.create({model: 'fake', messages: messages('hang')},
                                                 {signal: controller.signal});
    setImmediate(() => controller.abort());
    await assert.rejects(whole, OpenAI.APIUserAbortError);
  },

  async errors(client) {
    const chat = more => client.chat.completions.create({model: 'fake', messages: messages('a'), ...more},
                                                        {maxRetries: 0});
    await assert.rejects(chat({n: 2}), error => error instanceof OpenAI.BadRequestError && error.param === 'n');
    await assert.rejects(chat({tools: [{type: 'function', function: {name: 'f'}}]}),
                         error => error instanceof OpenAI.BadRequestError && error.param === 'tools');
    await assert.rejects(chat({model: 'gpt-9'}),
                         error => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found');
    await assert.rejects(chat({messages: messages('fail')}), OpenAI.RateLimitError);
    await assert.rejects(chat({messages: messages('break')}), OpenAI.InternalServerError);
    await assert.rejects(chat({messages: messages('x'.repeat(2 << 20))}), error => error.status === 413);
    const stranger = new OpenAI({baseURL: client.baseURL, apiKey: 'guess', maxRetries: 0});
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
    const stream = await chat({messages: messages('break'), stream: true});
    await assert.rejects(async () => { for await (const chunk of stream) void chunk; }, /stage 2 has no peer/);
  },
};

(async () => {
  const client = new OpenAI({baseURL: await nextLine(), apiKey: 'secret', timeout: 60_000});
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test(client);
      console.log(`ok ${name}`);
    } catch (error) {
      ++failed;
      console.log(`FAILED ${name}: ${error.stack}`);
    }
  }
  server.stdin.end();
  process.exitCode = failed === 0 ? 0 : 1;
})();
