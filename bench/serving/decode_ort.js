// Decodes with ONNX Runtime and a cache: for each line "BEFORE TOKENS" of its input one with milliseconds a token.
//
//     node decode_ort.js cached.onnx LAYERS HEADS HEAD_WIDTH THREADS     # npm install onnxruntime-node
const ort = require('onnxruntime-node');
const readline = require('readline');

async function main() {
  const [file, layers, heads, headWidth, threads] = process.argv.slice(2);
  const session = await ort.InferenceSession.create(
      file, {intraOpNumThreads: Number(threads), interOpNumThreads: 1, graphOptimizationLevel: 'all'});
  const step = async (token, position, past) => {
    const feeds = {
      tokens: new ort.Tensor('int64', BigInt64Array.from([BigInt(token)]), [1, 1]),
      positions: new ort.Tensor('int64', BigInt64Array.from([BigInt(position)]), [1, 1]),
    };
    past.forEach((tensor, i) => { feeds[`past.${i}`] = tensor; });
    const results = await session.run(feeds);
    const logits = results.logits.data;
    let best = 0;
    for (let i = 1; i < logits.length; ++i) if (logits[i] > logits[best]) best = i;
    return {token: best, past: past.map((_, i) => results[`present.${i}`])};
  };
  console.log('ready');
  for await (const line of readline.createInterface({input: process.stdin})) {
    const [before, count] = line.split(' ').map(Number);
    const size = Number(heads) * before * Number(headWidth);
    const past = Array.from({length: 2 * Number(layers)}, () => {
      const data = new Float32Array(size);
      for (let i = 0; i < size; ++i) data[i] = Math.random() - 0.5;
      return new ort.Tensor('float32', data, [1, Number(heads), before, Number(headWidth)]);
    });
    await step(0, before, past);  // warm
    let state = {token: 0, past};
    const begin = process.hrtime.bigint();
    for (let i = 0; i < count; ++i) state = await step(state.token, before + i, state.past);
    console.log(Number(process.hrtime.bigint() - begin) / 1e6 / count);
  }
}
main();
