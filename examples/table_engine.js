// A complete engine in another language: speculative sampling over two bigram tables, in plain
// JavaScript (Node 18 or newer, no packages). It speaks the host protocol, docs/host-protocol.md.
//
//     conformance run 'exec:node examples/table_engine.js' --probe table
//
// It reads a probe's config.json and model.safetensors. Of all probes it can take those whose law
// depends on the last token alone; it says so, out loud, of any other.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");

const PROPOSALS = 4; // a block

// --- the models: logits after every token, [V][V] -----------------------------------------------

function readTensors(file) {
  const bytes = fs.readFileSync(file);
  const begin = 8 + Number(bytes.readBigUInt64LE(0)); // the header's length, the header, the data
  const header = JSON.parse(bytes.toString("utf8", 8, begin));
  delete header.__metadata__;
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    if (dtype !== "F32") throw fail("EngineLoadError", `${name} is ${dtype}, not F32`);
    const data = new Float32Array((to - from) / 4);
    for (let i = 0; i < data.length; i++) data[i] = bytes.readFloatLE(begin + from + 4 * i);
    tensors[name] = { shape, data };
  }
  return tensors;
}

function readTable(folder) {
  const config = JSON.parse(fs.readFileSync(path.join(folder, "config.json"), "utf8"));
  const tensors = readTensors(path.join(folder, "model.safetensors"));
  const blocks = Object.keys(tensors).filter((n) => /(o_proj|down_proj)\.weight$/.test(n));
  if (blocks.some((n) => tensors[n].data.some((x) => x !== 0))) {
    throw fail("NotSupportedError", "a table knows the last token alone; use --probe table");
  }
  const { vocab_size: V, hidden_size: H, rms_norm_eps: eps } = config;
  const rows = (name) =>
    Array.from({ length: V }, (_, i) => tensors[name].data.subarray(i * H, (i + 1) * H));
  const norm = tensors["model.norm.weight"].data;
  const head = rows("lm_head.weight");
  return rows("model.embed_tokens.weight").map((x) => {
    const scale = 1 / Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / H + eps);
    return head.map((w) => w.reduce((sum, v, j) => sum + v * x[j] * scale * norm[j], 0));
  });
}

// --- from logits to the law: temperature, then top-k, then top-p --------------------------------

function softmax(logits) {
  const highest = Math.max(...logits);
  return normalised(logits.map((z) => Math.exp(z - highest)));
}

function normalised(weights) {
  const total = weights.reduce((sum, w) => sum + w, 0);
  return weights.map((w) => w / total);
}

function lawOf(logits, decoding) {
  const { greedy, temperature, top_k: topK, top_p: topP, ...others } = decoding;
  const unknown = Object.keys(others).filter((name) => others[name] !== null);
  if (unknown.length) throw fail("NotSupportedError", `no ${unknown.join(", ")} here`);
  if (greedy) {
    const best = logits.indexOf(Math.max(...logits));
    return logits.map((_, i) => (i === best ? 1 : 0));
  }
  let z = logits.map((v) => v / temperature);
  if (topK !== null && topK < z.length) {
    const edge = [...z].sort((a, b) => b - a)[topK - 1];
    z = z.map((v) => (v >= edge ? v : -Infinity)); // what ties with the last one is kept
  }
  const p = softmax(z);
  if (topP === null || topP >= 1) return p;
  const kept = new Array(p.length).fill(0);
  let before = 0;
  for (const i of p.map((_, j) => j).sort((a, b) => p[b] - p[a])) {
    if (before >= topP) break; // the token that crosses top_p is kept
    kept[i] = p[i];
    before += p[i];
  }
  return normalised(kept);
}

// --- random numbers: xoshiro128**, its state filled by a splitmix of the seed --------------------

function generator(seed) {
  const s = new Uint32Array(4);
  for (let i = 0; i < 4; i++) {
    let x = (seed + Math.imul(i + 1, 0x9e3779b9)) | 0;
    x = Math.imul(x ^ (x >>> 16), 0x21f0aaad);
    x = Math.imul(x ^ (x >>> 15), 0x735a2d97);
    s[i] = x ^ (x >>> 15);
  }
  const rotated = (x, k) => (x << k) | (x >>> (32 - k));
  function next() {
    const out = Math.imul(rotated(Math.imul(s[1], 5), 7), 9) >>> 0;
    const t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotated(s[3], 11);
    return out;
  }
  return () => ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53; // 53 bits, in [0, 1)
}

function draw(law, uniform) {
  let left = uniform();
  let last = 0;
  for (let i = 0; i < law.length; i++) {
    if (law[i] <= 0) continue;
    last = i;
    left -= law[i];
    if (left < 0) break;
  }
  return last;
}

// --- speculative sampling -----------------------------------------------------------------------

function complete(request, target, draft) {
  const uniform = generator(request.seed ?? 0); // greedy decoding has no seed, and needs none
  const tokens = [];
  const rounds = [];
  let last = request.prompt[request.prompt.length - 1];
  while (tokens.length < request.max_new_tokens) {
    const proposed = [];
    for (let before = last; request.speculate && proposed.length < PROPOSALS; ) {
      before = draw(draft[before], uniform);
      proposed.push(before);
    }
    let accepted = 0;
    let law = target[last];
    for (const x of proposed) {
      const q = draft[last];
      if (uniform() >= law[x] / q[x]) {
        law = normalised(law.map((p, i) => Math.max(p - q[i], 0))); // recovered
        break;
      }
      accepted += 1;
      tokens.push(x);
      last = x;
      law = target[last]; // after the last proposal: the bonus
    }
    last = draw(law, uniform);
    tokens.push(last);
    rounds.push([proposed.length, accepted]);
  }
  return {
    tokens: tokens.slice(0, request.max_new_tokens),
    rounds: request.speculate ? rounds : null, // the control arm has no blocks
  };
}

// --- the host protocol --------------------------------------------------------------------------

const fail = (name, message) => Object.assign(new Error(message), { name });
let pair = null; // the logits of target and draft
let laws = new Map(); // by decoding: their laws

const answers = {
  start: () => ({
    protocol: 1,
    card: { name: "table-engine", version: "1.0", method: "draft model" },
    capabilities: {
      draft: "model",
      max_batch: 256,
      min_p: false, // not claimed, so not asked for
      verification: "token", // rounds are exact, proposals are verified one after the other
      dialect: {
        order: ["temperature", "top_k", "top_p", "min_p"],
        top_p_crossing: "keep",
        top_k_ties: "keep",
      },
    },
  }),

  load({ probe }) {
    laws = new Map();
    pair = [probe.target, probe.draft].map(readTable);
    return {};
  },

  generate({ requests }) {
    const completions = requests.map((request) => {
      const key = JSON.stringify(request.decoding);
      if (!laws.has(key)) {
        laws.set(key, pair.map((table) => table.map((row) => lawOf(row, request.decoding))));
      }
      return complete(request, ...laws.get(key));
    });
    return { completions };
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.op === "stop") process.exit(0);
  let answer;
  try {
    if (!(message.op in answers)) throw new Error(`no message ${message.op}`);
    answer = answers[message.op](message);
  } catch (error) {
    answer = { error: error.name, message: error.message, traceback: error.stack };
  }
  process.stdout.write(JSON.stringify({ ...answer, id: message.id }) + "\n");
});
