// Elements, pictures and numbers. Text from the server goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className !== "") made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

// An SVG element; `title` becomes what shows when the pointer rests on it.
export function shape(name, attributes, title = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  if (title !== "") made.append(shape("title", {}));
  if (title !== "") made.firstChild.textContent = title;
  return made;
}

export function picture(width, height, label) {
  return shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

export function label(x, y, text, anchor = "start") {
  const made = shape("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

// Neighbouring requests get hues far apart (golden angle); none is near the violet of what several share.
export function colourOf(request) {
  const hue = (request * 107 + 130) % 280;
  return `hsl(${hue < 230 ? hue : hue + 80} 55% 50%)`;
}

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(Math.round(value));

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
  return `${value < 10 && unit > 0 ? value.toFixed(1) : value.toFixed(0)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

export const several = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
