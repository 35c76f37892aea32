// The playground: one page over the server's own routes. Texts are only ever added as text, never as markup.

const $ = (id) => document.getElementById(id);
const GONE = "The server does not answer. Is `selfdraft serve` still running? What was said so far is kept.";
const KINDS = { off: "Plain round: nothing is skipped", copy: "Copied from the text: nothing is skipped" };

let model = null;      // of /v1/models
let messages = [];     // what was said, as the model is told
let running = null;    // AbortController of the answer that is being written
let last = null;       // {own, plain}: runs of the last answer
let replay = 0;        // number of the race that runs

// ------------------------------------------------------------------------------------------------ the server

class Refused extends Error {}

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { headers: headers(), ...options });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refused(GONE);
  }
  if (response.ok) return response;
  const told = await response.json().then((body) => body.error?.message, () => null);
  if (response.status === 401) throw new Refused("This server wants an API key: put it in under Method and sampling.");
  throw new Refused(told ?? `The server answered ${response.status}.`);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    let step;
    try {
      step = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Refused(GONE);
    }
    if (step.done) throw new Refused(GONE); // a stream says itself when it is over
    const blocks = (rest + step.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(event.error.message);
      yield event;
    }
  }
}

// One text: {text, tokens: [[text, kind, seconds]], whole}, told as it comes.
async function write(body, signal, told = () => {}) {
  const path = model.selfdraft.can_chat ? "v1/chat/completions" : "v1/completions";
  const began = performance.now(), run = { text: "", tokens: [], whole: null, seconds: 0 };
  const response = await call(path, { method: "POST", body: JSON.stringify(body), signal });
  for await (const event of eventsOf(response)) {
    const details = event.selfdraft;
    if (!details) continue;
    run.seconds = (performance.now() - began) / 1000;
    for (const [text, kind] of details.pieces) {
      run.text += text;
      run.tokens.push([text, kind, run.seconds]);
    }
    if (details.explanation) run.whole = details;
    told(run, details);
  }
  return run;
}

function bodyOf(said, plainly) {
  const number = (id) => Number($(id).value);
  const method = plainly ? { strategy: "off" } : { strategy: $("strategy").value };
  if (!plainly && $("drafter").value) method.drafter = $("drafter").value;
  const prompt = model.selfdraft.can_chat ? { messages: said } : { prompt: said.at(-1).content };
  return {
    model: model.id, stream: true, ...prompt,
    temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed: number("seed"),
    selfdraft: { ...method, details: true },
  };
}

// ------------------------------------------------------------------------------------------------ what is shown

function add(parent, tag, text = "", kind = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}

function addToken(parent, [text, kind]) {
  if (text) add(parent, "span", text, kind).title = kind;
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

function showStrip(round) {
  const rows = [["attention", round?.skipped_attention ?? []], ["MLP", round?.skipped_mlp ?? []]];
  const count = rows[0][1].length + rows[1][1].length;
  const layers = model.selfdraft.num_layers;
  const drafted = count ? `Drafted without ${count} of ${2 * layers} sub-layers` : "Drafted by all sub-layers";
  $("round").textContent = round ? KINDS[round.kind] ?? drafted : "Sub-layers of the draft";
  $("strip").replaceChildren();
  for (const [name, skipped] of rows) {
    const row = add($("strip"), "div", name), cells = add(row, "span", "", "cells");
    for (let layer = 0; layer < layers; layer++) add(cells, "i", "", skipped.includes(layer) ? "skipped" : "");
  }
  const named = rows.map(([name, skipped]) => `${name} ${skipped.length ? skipped.join(", ") : "none"}`);
  $("strip").setAttribute("aria-label", `skipped layers: ${named.join("; ")}`);
}

function showFigures(run, counts) {
  const first = run.tokens[0]?.[2] ?? 0, speed = (run.tokens.length - 1) / (run.seconds - first);
  const known = run.whole?.tokens_per_second ?? (run.tokens.length > 1 && speed < 1e6 ? speed : null);
  $("speed").textContent = known === null ? "-" : known.toFixed(1);
  $("accepted").textContent = counts.drafted ? `${Math.round(100 * counts.accepted / counts.drafted)} %` : "-";
}

function showComparison() {
  const own = last?.own?.whole, plain = last?.plain?.whole;
  $("plain").textContent = plain ? plain.tokens_per_second.toFixed(1) : "-";
  $("gain").textContent = own && plain ? `${(own.tokens_per_second / plain.tokens_per_second).toFixed(2)}x` : "-";
  const isSame = plain && last.plain.text === last.own.text;
  $("same").textContent = plain ? (isSame ? "Both texts are the same." : "The texts differ: a tie of rounding, or it was stopped.") : "";
  $("race").disabled = !plain;
}

function newTurn(said) {
  const turn = add($("turns"), "article", "", "turn");
  add(turn, "div", said, "said");
  return { text: add(turn, "div", "", "text"), foot: add(turn, "footer") };
}

function working(controller) {
  running = controller;
  $("send").disabled = $("new").disabled = Boolean(controller);
  $("stop").disabled = !controller;
}

// ------------------------------------------------------------------------------------------------ a turn

async function answer(said) {
  const controller = new AbortController(), asked = [...messages, { role: "user", content: said }];
  const turn = newTurn(said), counts = { drafted: 0, accepted: 0 };
  let own = { text: "" }, drafting = null;
  $("hint").hidden = true;
  leaveRace();
  last = null;
  showComparison();
  working(controller);
  say("writing ...");
  try {
    own = await write(bodyOf(asked, false), controller.signal, (run, details) => {
      own = run;
      details.pieces.forEach((token) => addToken(turn.text, token));
      for (const round of details.rounds) {
        counts.drafted += round.num_drafted;
        counts.accepted += round.num_accepted;
      }
      drafting = details.rounds.findLast((round) => round.num_drafted) ?? drafting;
      if (details.rounds.length) showStrip(drafting ?? details.rounds.at(-1)); // what drafts at last: some rounds are plain
      showFigures(run, counts);
      turn.text.scrollIntoView({ block: "end" });
    });
    last = { own };
    const figures = own.whole;
    turn.foot.textContent = `${figures.num_tokens} tokens, ${figures.tokens_per_second.toFixed(1)} tokens/s, ` +
      `${$("strategy").value}, seed ${figures.seed}`;
    $("why").replaceChildren();
    figures.explanation.forEach((line) => add($("why"), "li", line));
    if ($("beside").checked) await compare(asked, controller.signal);
    say("");
  } catch (error) {
    if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
    say(error instanceof Refused ? error.message : "Stopped. What was written is kept.", error instanceof Refused);
    if (!own.text) turn.foot.textContent = "no answer";
  } finally {
    if (own.text) messages = [...asked, { role: "assistant", content: own.text }];
    working(null);
    $("prompt").focus();
  }
}

async function compare(asked, signal) {
  say("decoding the same text plainly, to compare ...");
  last.plain = await write(bodyOf(asked, true), signal);
  showComparison();
}

// ------------------------------------------------------------------------------------------------ the race

function leaveRace() {
  replay += 1;
  $("course").hidden = true;
}

function race() {
  const number = ++replay, began = performance.now();
  $("course").hidden = false;
  scrollTo({ top: 0 });
  const lanes = [["plain", last.plain], ["own", last.own]].map(([name, run]) => ({
    run, next: 0, lane: $(`lane-${name}`), time: $(`time-${name}`),
  }));
  lanes.forEach(({ lane }) => lane.replaceChildren());
  const frame = () => {
    if (number !== replay) return;
    const seconds = (performance.now() - began) / 1000;
    for (const one of lanes) {
      while (one.next < one.run.tokens.length && one.run.tokens[one.next][2] <= seconds) {
        addToken(one.lane, one.run.tokens[one.next++]);
      }
      one.time.textContent = `${Math.min(seconds, one.run.seconds).toFixed(2)} s`;
    }
    if (lanes.some((one) => one.next < one.run.tokens.length || seconds < one.run.seconds)) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

// ------------------------------------------------------------------------------------------------ begin

async function begin() {
  try {
    model = (await (await call("v1/models")).json()).data[0];
  } catch (error) {
    $("model").textContent = "not connected";
    say(error.message, true);
    return;
  }
  $("model").textContent = model.id;
  const fill = (id, names) => names.forEach((name) => {
    if (![...$(id).options].some((option) => option.value === name)) add($(id), "option", name).value = name;
  });
  fill("strategy", model.selfdraft.strategies);
  fill("drafter", model.selfdraft.drafters);
  showStrip(null);
  say("");
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = $("prompt").value.trim();
  if (!said || running) return;
  if (!model) await begin();
  if (!model) return;
  $("prompt").value = "";
  await answer(said);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && (running ? running.abort() : leaveRace()));
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  messages = [];
  last = null;
  $("turns").replaceChildren();
  $("hint").hidden = false;
  leaveRace();
  showComparison();
  say("");
  $("prompt").focus();
});
$("race").addEventListener("click", race);
$("leave").addEventListener("click", leaveRace);
$("key").addEventListener("change", begin);
begin();
$("prompt").focus();
