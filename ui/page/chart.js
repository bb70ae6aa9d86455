// Curves over steps, drawn by uPlot in the page's own colours.
import {byId, loss, rate, share} from './text.js';

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const short = (value) => value.toLocaleString('en', {notation: 'compact', maximumSignificantDigits: 3});

// From zero to nearly all of the values: a step that was told of late seems a thousand times as fast.
function rangeOfMost(plot) {
  const values = plot.data[1].filter((value) => value !== null).sort((a, b) => a - b);
  const most = values[Math.floor(0.99 * (values.length - 1))] ?? 1, all = values.at(-1) ?? 1;
  return [0, 1.1 * (all > 3 * most ? most : all) || 1];
}

class Chart {
  // `series`: {label, colour (of page.css), points (dots instead of a line), show}
  constructor(id, series, show, range) {
    this.box = byId(id);
    this.range = range;
    this.series = series;
    this.show = show;
    this.data = null;
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(this.box);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.begin());
  }
  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width > 0) {
      this.legend = this.legendHeight();  // of several lines where there is little room
      this.plot.setSize({width, height: Math.max(80, this.box.clientHeight - this.legend)});
    } else if (this.data) this.begin();
  }
  legendHeight() {
    return this.plot ? this.plot.root.querySelector('.u-legend').offsetHeight : 26;
  }
  begin() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    const width = this.box.clientWidth;
    if (width === 0 || !this.data) return;
    const line = colour('--line'), soft = colour('--soft');
    const axis = {stroke: soft, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}, font: '12px system-ui'};
    const series = this.series.map((one) => ({
      label: one.label,
      stroke: colour(one.colour),
      width: 1.5,
      spanGaps: Boolean(one.points),
      points: {show: Boolean(one.points), size: 5, fill: colour(one.colour)},
      value: (plot, value, index, at) => this.show(this.at(plot, value, index, at)),
    }));
    const step = {label: 'step', value: (plot, value, index, at) => String(this.at(plot, value, index, at) ?? '–')};
    this.plot = new uPlot({
      width, height: Math.max(80, this.box.clientHeight - 26),
      scales: {x: {time: false}, y: this.range ? {range: this.range} : {}},
      axes: [{...axis, size: 30}, {...axis, size: 52, values: (plot, ticks) => ticks.map(short)}],
      cursor: {drag: {x: true, y: false}},
      series: [step, ...series],
    }, this.data, this.box);
  }
  // Where nobody points at a step, the newest there is.
  at(plot, value, index, at) {
    return at === null || at === undefined ? plot.data[index].findLast((one) => one !== null && one !== undefined) ?? null : value;
  }
  set(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.begin();
    if (this.plot && this.legendHeight() !== this.legend) this.resize();
  }
  say(text) { this.box.setAttribute('aria-label', text); }
}

// The curves of the job that is shown: what the server has told so far.
export class Curves {
  constructor() {
    this.forget();
    this.charts = null;
  }
  forget() {
    this.generation = 0;
    this.step = [];
    this.loss = [];
    this.rate = [];
    this.evaluations = [];
  }
  // What it lacks, as the server numbers it.
  query() {
    return `generation=${this.generation}&points=${this.step.length}&evaluations=${this.evaluations.length}`;
  }
  take(curves) {
    const changed = this.generation !== curves.generation || curves.step.length > 1 ||
        curves.evaluations.length > 1 || curves.step.at(-1) !== this.step.at(-1) || this.step.length === 0;
    for (const name of ['step', 'loss', 'rate']) this[name].splice(curves.from, Infinity, ...curves[name]);
    this.evaluations.splice(curves.evaluations_from, Infinity, ...curves.evaluations);
    this.generation = curves.generation;
    return changed;
  }
  draw() {
    this.charts ??= {
      loss: new Chart('loss', [{label: 'training', colour: '--first'}, {label: 'test', colour: '--second', points: true}], loss),
      score: new Chart('score', [{label: 'test', colour: '--second', points: true}], (value) => value === null ? '–' : share(value)),
      rate: new Chart('rate', [{label: 'samples/s', colour: '--third'}], (value) => value === null ? '–' : rate(value), rangeOfMost),
    };
    const tested = (name) => this.evaluations.map((one) => one.metrics[name] ?? null);
    const at = this.evaluations.map((one) => one.step);
    const join = (...tables) => uPlot.join(tables);
    this.charts.loss.set(at.length ? join([this.step, this.loss], [at, tested('loss')])
                                   : [this.step, this.loss, this.step.map(() => null)]);
    this.charts.rate.set([this.step, this.rate]);
    this.charts.loss.say(`loss ${loss(this.loss.at(-1))} at step ${this.step.at(-1) ?? 0}`);
    this.charts.rate.say(`${rate(this.rate.at(-1) ?? 0)} samples a second`);
    const accuracy = tested('accuracy');
    const isScored = accuracy.some((value) => value !== null);
    document.querySelector('.charts').classList.toggle('scored', isScored);
    if (isScored) {
      byId('score-figure').hidden = false;
      this.charts.score.set([at, accuracy]);
      this.charts.score.say(`accuracy ${share(accuracy.at(-1) ?? 0)} at step ${at.at(-1)}`);
    } else {
      byId('score-figure').hidden = true;
    }
  }
}
