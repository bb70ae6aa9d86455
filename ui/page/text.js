// Numbers and times as people read them, and elements made of text. Nothing here, or in any other file of the
// page, makes markup of a text: names come from strangers.

export const byId = (id) => document.getElementById(id);

// An element with classes and text, or with children.
export function make(tag, classes = '', ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  element.append(...children);
  return element;
}

// What changes is written; what stays is left alone, with the reader's selection in it.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

// One child for each item, by key: those that stay keep their element, and so the keyboard's focus.
export function keep(list, items, keyOf, create, update) {
  const old = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let at = list.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    old.delete(key);
    update(child, item);
    if (child === at) at = at.nextElementSibling;
    else list.insertBefore(child, at);
  }
  for (const child of old.values()) child.remove();
}

const trim = (value, digits) => value.toLocaleString('en', {maximumFractionDigits: digits});

export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) value /= 1024, ++unit;
  return `${trim(value, value < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}
export function bits(bytesPerSecond) {
  let value = bytesPerSecond * 8e-6;
  const giga = value >= 1000;
  if (giga) value /= 1000;
  return `${trim(value, value < 10 ? 1 : 0)} ${giga ? 'Gbit/s' : 'Mbit/s'}`;
}
export const loss = (value) => (value === null || value === undefined ? '–' : value.toFixed(4));
export const share = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
export const rate = (value) => trim(value, value < 100 ? 1 : 0);
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${trim(seconds, seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.round(hours / 24)} d`;
}
const kOfDay = {hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false};
export function clock(ms) {
  const at = new Date(ms), isToday = Math.abs(Date.now() - ms) < 18 * 3600 * 1000;
  return isToday ? at.toLocaleTimeString([], kOfDay) : at.toLocaleString([], {month: 'short', day: 'numeric', ...kOfDay});
}
export const seat = (place) => `stage ${place.stage + 1}${place.replica ? `, replica ${place.replica + 1}` : ''}`;
