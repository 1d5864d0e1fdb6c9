// The tree of cached prefixes as an icicle: tokens from left to right, a node as high as the leaves behind it.
import { colourOf, count, label, picture, several, shape } from "./dom.js";

const MOST_HEIGHT = 220;
const AXIS = 18;

// Nodes with their children, by id; what hangs on nodes that were left out counts as a root.
function read(prefixes) {
  const column = Object.fromEntries(prefixes.fields.map((name, i) => [name, i]));
  const nodes = new Map();
  for (const row of prefixes.nodes) {
    nodes.set(row[column.id], {
      id: row[column.id],
      parent: row[column.parent],
      first: row[column.first_page],
      pages: row[column.pages],
      sequences: row[column.sequences],
      request: null,
      children: [],
    });
  }
  const roots = [];
  for (const node of [...nodes.values()].sort((a, b) => a.id - b.id)) {
    (nodes.get(node.parent)?.children ?? roots).push(node);
  }
  return { nodes, roots };
}

export function drawTree(view, width) {
  const { nodes, roots } = read(view.prefixes);
  if (nodes.size === 0) return null;
  // A node on which one request stands has its colour.
  for (const request of view.requests.list) {
    for (let node = nodes.get(request.prefix); node; node = nodes.get(node.parent)) node.request = request.id;
  }
  // Rows by leaf, without recursion: a tree may be as deep as a conversation is long.
  let leaves = 0;
  let deepest = 0;
  const stack = [...roots].reverse().map((node) => ({ node, next: 0 }));
  while (stack.length > 0) {
    const top = stack.at(-1);
    const { node } = top;
    if (top.next === 0) {
      node.row = leaves;
      deepest = Math.max(deepest, node.first + node.pages);
    }
    if (top.next < node.children.length) {
      stack.push({ node: node.children[top.next++], next: 0 });
    } else {
      if (node.children.length === 0) ++leaves;
      node.rows = leaves - node.row;
      stack.pop();
    }
  }
  const pitch = Math.min(14, MOST_HEIGHT / leaves);
  const scale = width / deepest;
  const used = [...nodes.values()].filter((node) => node.sequences > 0).length;
  const tokens = view.kv.page_tokens;
  const svg = picture(width, pitch * leaves + AXIS,
    `Prefix tree: ${several(nodes.size, "node")}, ${count(used)} in use, longest prefix ${count(deepest * tokens)} tokens`);
  for (const node of nodes.values()) {
    const box = shape("rect", {
      x: node.first * scale, y: node.row * pitch, width: Math.max(node.pages * scale, 1), height: node.rows * pitch,
      class: `box ${node.sequences > 1 ? "shared" : node.sequences === 1 ? "own" : "cached"}`,
    }, `tokens ${count(node.first * tokens)} to ${count((node.first + node.pages) * tokens)}, ` +
       (node.sequences > 0 ? `read by ${several(node.sequences, "sequence")}` : "cached"));
    if (node.sequences === 1 && node.request !== null) box.style.fill = colourOf(node.request);
    svg.append(box);
  }
  svg.append(label(0, pitch * leaves + 13, "token 0"));
  svg.append(label(width, pitch * leaves + 13, count(deepest * tokens), "end"));
  return svg;
}
